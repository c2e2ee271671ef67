/* One unit of attention: a tile of packed query rows against a range of keys. Included once for each element type,
   which defines Element, ELEMENTS_IN_WORD, KERNEL, multiply_add, load_elements, store_elements, load_some, store_some,
   pair_rows, and widen_words and pair_bytes for keys and values of 8 bits. */

#include <math.h>

#include "product.h"
#include "pack.h"
#include "softmax.h"

/* A thread's buffers. Packed row r is head r % group of row r / group: heads that share a KV head lie together. */
typedef struct {
    uint32_t *queries; /* [TILE_ROWS, words] */
    float *outputs;    /* [TILE_ROWS, head_size] */
    uint32_t *keys;    /* [BLOCK_KEYS / PANEL][words][PANEL] */
    uint32_t *values;  /* [panels][BLOCK_KEYS / ELEMENTS_IN_WORD][PANEL] */
    float *scores;     /* [STRIP_ROWS, BLOCK_KEYS] */
    Element *weights;  /* [STRIP_ROWS, BLOCK_KEYS] */
    float *sums;       /* [TILE_ROWS, LANES] */
    float *maxima;     /* [TILE_ROWS] */
    int32_t *low;      /* [TILE_ROWS], keys of the item that the row sees: [low, high) */
    int32_t *high;
} Workspace;

static char *take(char **memory, ptrdiff_t bytes) {
    char *taken = *memory;
    *memory += (bytes + 63) / 64 * 64;
    return taken;
}

static Workspace lay_out(char *memory, int head_size) {
    ptrdiff_t words = head_size / ELEMENTS_IN_WORD, panels = (head_size + PANEL - 1) / PANEL;
    Workspace space;
    space.queries = (uint32_t *)take(&memory, TILE_ROWS * words * 4);
    space.outputs = (float *)take(&memory, (ptrdiff_t)TILE_ROWS * head_size * 4);
    space.keys = (uint32_t *)take(&memory, BLOCK_KEYS * words * 4);
    space.values = (uint32_t *)take(&memory, BLOCK_KEYS / ELEMENTS_IN_WORD * panels * PANEL * 4);
    space.scores = (float *)take(&memory, STRIP_ROWS * BLOCK_KEYS * 4);
    space.weights = (Element *)take(&memory, STRIP_ROWS * BLOCK_KEYS * (ptrdiff_t)sizeof(Element));
    space.sums = (float *)take(&memory, TILE_ROWS * LANES * 4);
    space.maxima = (float *)take(&memory, TILE_ROWS * 4);
    space.low = (int32_t *)take(&memory, TILE_ROWS * 4);
    space.high = (int32_t *)take(&memory, TILE_ROWS * 4);
    return space;
}

static int clamp(int64_t value, int low, int high) {
    return value < low ? low : value > high ? high : (int)value;
}

/* Copies the unit's queries, resets the rows' states and notes which keys each row sees. */
static void start_rows(const Attention *attention, const Unit *unit, int kv_head, const Workspace *space) {
    int group = attention->heads / attention->kv_heads, head_size = attention->head_size;
    const Element *query = (const Element *)attention->query + kv_head * group * attention->query_head_stride;
    for (int row = 0; row < unit->row_count; row++) {
        int64_t position = attention->positions[unit->row_start + row] - unit->first_key;
        int low = clamp(position - attention->window + 1, unit->key_begin, unit->key_end);
        int high = clamp(position + 1, unit->key_begin, unit->key_end);
        for (int head = 0; head < group; head++) {
            int packed = row * group + head;
            memcpy((Element *)space->queries + (ptrdiff_t)packed * head_size,
                   query + (unit->row_start + row) * attention->query_row_stride + head * attention->query_head_stride,
                   head_size * sizeof(Element));
            space->maxima[packed] = LOWEST_MAXIMUM;
            space->low[packed] = low;
            space->high[packed] = high;
        }
    }
    ptrdiff_t rows = (ptrdiff_t)unit->row_count * group;
    memset(space->outputs, 0, rows * head_size * sizeof(float));
    memset(space->sums, 0, rows * LANES * sizeof(float));
}

/* Keys that some of the rows [start, end) sees lie in [*low, *high). */
static void visible_range(const Workspace *space, int start, int end, int *low, int *high) {
    *low = space->low[start];
    *high = space->high[start];
    for (int row = start + 1; row < end; row++) {
        if (space->low[row] < *low) *low = space->low[row];
        if (space->high[row] > *high) *high = space->high[row];
    }
}

/* Rows [start, end) against the packed block. */
static void run_strip(const Attention *attention, const Workspace *space, int start, int end, const Block *block,
                      float log2_scale) {
    int head_size = attention->head_size, words = head_size / ELEMENTS_IN_WORD;
    int low, high;
    visible_range(space, start, end, &low, &high);
    if (high <= block->first || low >= block->first + block->count) return;
    int keys = high - block->first < block->count ? round_up(high - block->first, LANES) : block->count;

    for (int key = 0; key < keys; key += PANEL) {
        int vectors = keys - key < PANEL ? (keys - key) / LANES : PANEL / LANES;
        multiply(space->scores + key, BLOCK_KEYS, space->queries + (ptrdiff_t)start * words, words,
                 space->keys + (ptrdiff_t)key * words, words, false, end - start, vectors);
    }
    const float *value_scales = attention->value_scales ? block->value_scales : NULL;
    for (int row = start; row < end; row++) {
        float *scores = space->scores + (row - start) * BLOCK_KEYS;
        if (attention->key_scales) scale_scores(scores, keys, block->key_scales);
        int row_low = space->low[row] - block->first, row_high = space->high[row] - block->first;
        if (row_low > 0 || row_high < keys) hide_scores(scores, keys, row_low, row_high);
        softmax_row(scores, value_scales, space->weights + (row - start) * BLOCK_KEYS, keys, log2_scale,
                    space->maxima + row, space->sums + row * LANES, space->outputs + (ptrdiff_t)row * head_size,
                    head_size);
    }
    for (int column = 0; column < head_size; column += PANEL) {
        int vectors = head_size - column < PANEL ? (head_size - column) / LANES : PANEL / LANES;
        multiply(space->outputs + (ptrdiff_t)start * head_size + column, head_size, (const uint32_t *)space->weights,
                 BLOCK_KEYS / ELEMENTS_IN_WORD, space->values + (ptrdiff_t)column * (block->count / ELEMENTS_IN_WORD),
                 keys / ELEMENTS_IN_WORD, true, end - start, vectors);
    }
}

/* Runs the packed block over all strips, and meanwhile asks for the next block's keys and values. */
static void run_strips(const Attention *attention, const Workspace *space, int rows, const Block *block,
                       const Block *next) {
    float log2_scale = attention->scale * 1.4426950408889634f;
    int strips = (rows + STRIP_ROWS - 1) / STRIP_ROWS;
    ptrdiff_t head_bytes = attention->head_size * kv_value_bytes(attention);
    for (int strip = 0; strip < strips; strip++) {
        prefetch_sources(next, next->count * strip / strips, next->count * (strip + 1) / strips, head_bytes);
        run_strip(attention, space, rows * strip / strips, rows * (strip + 1) / strips, block, log2_scale);
    }
}

static void run_blocks(const Attention *attention, const Unit *unit, int kv_head, const Workspace *space) {
    int rows = unit->row_count * (attention->heads / attention->kv_heads), head_size = attention->head_size;
    int low, high;
    visible_range(space, 0, rows, &low, &high);
    /* Blocks start at multiples of their size where the range does, so that a row's sums do not depend on the rows
     * beside it, which may see earlier keys. */
    int begin = low / BLOCK_KEYS * BLOCK_KEYS;
    if (begin < unit->key_begin) begin = unit->key_begin;
    Block blocks[2];
    find_block(&blocks[0], attention, unit, kv_head, begin, high);
    for (int i = 0; blocks[i & 1].count > 0; i++) {
        const Block *block = &blocks[i & 1];
        Block *next = &blocks[(i + 1) & 1];
        if (attention->key_scales) {
            pack_keys(space->keys, block->keys, block->count, head_size / ELEMENTS_IN_WORD, true);
            pack_values(space->values, block->values, block->count, head_size, true);
        } else {
            pack_keys(space->keys, block->keys, block->count, head_size / ELEMENTS_IN_WORD, false);
            pack_values(space->values, block->values, block->count, head_size, false);
        }
        find_block(next, attention, unit, kv_head, block->first + BLOCK_KEYS, high);
        run_strips(attention, space, rows, block, next);
    }
}

/* Writes a finished packed row as the result, or as a partial output with its natural log-sum-exp. */
static void finish_row(const Attention *attention, const Workspace *space, int packed, float *partial,
                       float *log_sum_exp, Element *output) {
    int head_size = attention->head_size;
    const float *sums = space->outputs + (ptrdiff_t)packed * head_size;
    float total = _mm512_reduce_add_ps(_mm512_loadu_ps(space->sums + packed * LANES));
    __m512 factor = _mm512_set1_ps(total > 0 ? 1 / total : 0);
    for (int i = 0; i < head_size; i += LANES) {
        __m512 result = _mm512_mul_ps(_mm512_loadu_ps(sums + i), factor);
        if (partial) _mm512_storeu_ps(partial + i, result);
        else store_elements(output + i, result);
    }
    if (partial) *log_sum_exp = total > 0 ? space->maxima[packed] * attention->scale + logf(total) : -INFINITY;
}

static void finish_rows(const Attention *attention, const Unit *unit, int kv_head, const Workspace *space) {
    int group = attention->heads / attention->kv_heads, head_size = attention->head_size;
    for (int row = 0; row < unit->row_count; row++) {
        int target = attention->targets[unit->target_start + row];
        ptrdiff_t partial = ((ptrdiff_t)kv_head * attention->partial_rows + target) * group;
        ptrdiff_t output = (ptrdiff_t)(unit->row_start + row) * attention->heads + kv_head * group;
        for (int head = 0; head < group; head++)
            finish_row(attention, space, row * group + head,
                       target < 0 ? NULL : attention->partial_output + (partial + head) * head_size,
                       target < 0 ? NULL : attention->partial_log_sum_exp + partial + head,
                       (Element *)attention->output + (output + head) * head_size);
    }
}

static void run_unit(const Attention *attention, const Unit *unit, int kv_head, char *memory) {
    Workspace space = lay_out(memory, attention->head_size);
    start_rows(attention, unit, kv_head, &space);
    run_blocks(attention, unit, kv_head, &space);
    finish_rows(attention, unit, kv_head, &space);
}

#include "argmax.h"
#include "log_probability.h"
#include "linear.h"
#include "merge.h"
#include "rows.h"

const Kernel KERNEL = {run_unit,        merge_row,  add_rms_norm,   rotate,     silu_multiply,
                       write_quantized, pack_panel, multiply_panel, argmax_row, log_probability_row};
