/* Gathers keys and values from their pages into panels that `multiply` reads with whole vectors. */

static const Element zero_vector[MAX_HEAD_SIZE]; /* what is packed where a block has no more keys */

/* Where a block's keys and values lie, padded with zeros to a multiple of LANES. */
typedef struct {
    const void *keys[BLOCK_KEYS];
    const void *values[BLOCK_KEYS];
    float key_scales[BLOCK_KEYS]; /* of int8 keys and values only, zero for padding */
    float value_scales[BLOCK_KEYS];
    int first; /* key of the item */
    int count;
} Block;

/* 16 x 16 words, rows to columns. */
INLINE void transpose_words(__m512i rows[LANES]) {
    __m512i pairs[LANES], quads[LANES];
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        quads[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        quads[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        quads[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        quads[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    /* quads[4 r + c] lane l holds column 4 l + c of rows 4 r .. 4 r + 3: what remains is a 4 x 4 transpose of lanes. */
    for (int c = 0; c < 4; c++) {
        __m512i low01 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0x44);
        __m512i high01 = _mm512_shuffle_i32x4(quads[c], quads[4 + c], 0xee);
        __m512i low23 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0x44);
        __m512i high23 = _mm512_shuffle_i32x4(quads[8 + c], quads[12 + c], 0xee);
        rows[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
        rows[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
        rows[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
        rows[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
    }
}

/* Keys of `sources` [count, a multiple of 16] to panels [count / 64][words][64]; `quantized` ones are int8, and become
   elements exactly. */
INLINE void pack_keys(uint32_t *packed, const void *const *sources, int count, int words, const bool quantized) {
    for (int key = 0; key < count; key += LANES) {
        uint32_t *target = packed + (ptrdiff_t)(key / PANEL) * words * PANEL + key % PANEL;
        for (int word = 0; word < words; word += LANES) {
            int present = words - word < LANES ? words - word : LANES;
            __mmask16 mask = (__mmask16)((1u << present) - 1);
            __m512i rows[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                rows[i] = quantized ? widen_words((const int8_t *)sources[key + i] + word * ELEMENTS_IN_WORD, mask)
                                    : _mm512_maskz_loadu_epi32(mask, (const char *)sources[key + i] + word * 4);
            transpose_words(rows);
            if (present == LANES) {
#pragma GCC unroll 16
                for (int i = 0; i < LANES; i++) _mm512_storeu_si512(target + (word + i) * PANEL, rows[i]);
            } else { /* head sizes that are no multiple of 32 in bf16 */
                __m512i left_over[LANES];
                memcpy(left_over, rows, sizeof left_over);
                for (int i = 0; i < present; i++) _mm512_storeu_si512(target + (word + i) * PANEL, left_over[i]);
            }
        }
    }
}

/* Values of `sources` [count, a multiple of 16] to panels [head_size / 64][count / elements in a word][64]. */
INLINE void pack_values(uint32_t *packed, const void *const *sources, int count, int head_size, const bool quantized) {
    int steps = count / ELEMENTS_IN_WORD;
    for (int step = 0; step < steps; step++) {
        const void *even = sources[step * ELEMENTS_IN_WORD];
        const void *odd = sources[step * ELEMENTS_IN_WORD + ELEMENTS_IN_WORD - 1];
        for (int column = 0; column < head_size; column += LANES) {
            uint32_t *target = packed + ((ptrdiff_t)(column / PANEL) * steps + step) * PANEL + column % PANEL;
            __m512i words = quantized ? pair_bytes((const int8_t *)even + column, (const int8_t *)odd + column)
                                      : pair_rows((const Element *)even + column, (const Element *)odd + column);
            _mm512_storeu_si512(target, words);
        }
    }
}

static int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

static ptrdiff_t kv_value_bytes(const Attention *attention) { return attention->key_scales ? 1 : sizeof(Element); }

/* The block of a unit's keys [first, high), at most BLOCK_KEYS of them; no keys if first >= high. */
static void find_block(Block *block, const Attention *attention, const Unit *unit, int kv_head, int first, int high) {
    ptrdiff_t value_bytes = kv_value_bytes(attention), head_start = kv_head * attention->kv_head_stride * value_bytes;
    ptrdiff_t slot_bytes = attention->slot_stride * value_bytes;
    const char *keys = (const char *)attention->keys + head_start;
    const char *values = (const char *)attention->values + head_start;
    ptrdiff_t first_scale = kv_head * attention->scale_head_stride;
    const int32_t *pages = attention->pages + unit->page_start;
    int page = first / attention->page_size, offset = first % attention->page_size;
    int present = first >= high ? 0 : high - first < BLOCK_KEYS ? high - first : BLOCK_KEYS;
    block->first = first;
    block->count = round_up(present, LANES);
    for (int key = 0; key < present; key++) {
        ptrdiff_t slot = (ptrdiff_t)pages[page] * attention->page_size + offset;
        block->keys[key] = keys + slot * slot_bytes;
        block->values[key] = values + slot * slot_bytes;
        if (attention->key_scales) {
            block->key_scales[key] = attention->key_scales[first_scale + slot];
            block->value_scales[key] = attention->value_scales[first_scale + slot];
        }
        if (++offset == attention->page_size) {
            offset = 0;
            page++;
        }
    }
    for (int key = present; key < block->count; key++) {
        block->keys[key] = block->values[key] = zero_vector;
        block->key_scales[key] = block->value_scales[key] = 0;
    }
}

/* Asks for keys and values [start, end) of a block: pages lie anywhere, so the hardware cannot guess them. */
static void prefetch_sources(const Block *block, int start, int end, ptrdiff_t head_bytes) {
    for (int key = start; key < end; key++) {
        for (ptrdiff_t byte = 0; byte < head_bytes; byte += 64) {
            _mm_prefetch((const char *)block->keys[key] + byte, _MM_HINT_T1);
            _mm_prefetch((const char *)block->values[key] + byte, _MM_HINT_T1);
        }
    }
}
