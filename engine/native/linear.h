/* y = x W^T + b on packed weights, for one element type.

   W [outputs, inputs] is packed as panels [outputs / 64][words][64], a word being the elements that `multiply_add`
   takes at once; the last panel is filled up with zeros. A row's sum runs over the inputs in one fixed order, whatever
   the number of rows: its bits depend on the row alone. */

enum {
    CHUNK_ROWS = 96,  /* rows whose sums a thread keeps while it runs over the inputs */
    CHUNK_WORDS = 512 /* inputs of a panel that stay in the second-level cache beside them: 128 KiB */
};

/* Rows [first, first + PANEL) of W to a panel; rows past the last are zeros. */
static void pack_panel(const PackedWeight *weight, int64_t panel) {
    int64_t words = weight->inputs / ELEMENTS_IN_WORD;
    uint32_t *packed = weight->packed + panel * words * PANEL;
    for (int column = 0; column < PANEL; column++) {
        int64_t row = panel * PANEL + column;
        const char *source = (const char *)weight->rows + row * weight->inputs * (int64_t)sizeof(Element);
        for (int64_t word = 0; word < words; word++) {
            uint32_t value = 0;
            if (row < weight->outputs) memcpy(&value, source + word * 4, sizeof value);
            packed[word * PANEL + column] = value;
        }
    }
}

/* Adds the bias and writes `rows` rows of sums [rows, PANEL] to the panel's columns of the output. */
static void store_sums(const Product *product, int64_t row, int64_t rows, int64_t column, const float *sums) {
    int64_t columns = product->outputs - column < PANEL ? product->outputs - column : PANEL;
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = (row + i) * product->outputs + column;
        for (int64_t v = 0; v < columns; v += LANES) {
            __mmask16 mask = columns - v < LANES ? (__mmask16)((1u << (columns - v)) - 1) : 0xffff;
            __m512 values = _mm512_loadu_ps(sums + i * PANEL + v);
            if (product->bias)
                values = _mm512_add_ps(values, load_some(mask, (const Element *)product->bias + column + v));
            if (product->fp32_output) _mm512_mask_storeu_ps((float *)product->output + start + v, mask, values);
            else store_some((Element *)product->output + start + v, mask, values);
        }
    }
}

/* Rows [start, end), at most CHUNK_ROWS, times one panel. */
static void multiply_panel(const Product *product, int64_t start, int64_t end, int64_t panel) {
    float sums[CHUNK_ROWS * PANEL] __attribute__((aligned(64)));
    int words = (int)(product->inputs / ELEMENTS_IN_WORD);
    const uint32_t *rows = (const uint32_t *)product->rows + start * words;
    const uint32_t *columns = product->packed + panel * words * PANEL;
    for (int word = 0; word < words; word += CHUNK_WORDS) {
        int steps = words - word < CHUNK_WORDS ? words - word : CHUNK_WORDS;
        multiply(sums, PANEL, rows + word, words, columns + (ptrdiff_t)word * PANEL, steps, word > 0,
                 (int)(end - start), PANEL / LANES);
    }
    store_sums(product, start, end - start, panel * PANEL, sums);
}
