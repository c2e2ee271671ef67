/* What Python hands over for attention, row operations and matrix products, and what the code of each element type
   provides.

   `Attention` and `Unit` are mirrored in engine/attention_native.py; strides count elements. */

#ifndef DOCQA_ATTENTION_H
#define DOCQA_ATTENTION_H

#include <stdint.h>

/* One task for each KV head: consecutive query rows against consecutive keys of one work item. */
typedef struct {
    int32_t row_start;
    int32_t row_count;
    int32_t first_key;    /* position of the item's key 0 */
    int32_t key_begin;    /* keys of the item, [key_begin, key_end) */
    int32_t key_end;
    int32_t page_start;   /* where the item's pages start in `pages` */
    int32_t target_start; /* where the unit's rows start in `targets` */
    int32_t unused;
} Unit;

typedef struct {
    const void *query; /* [rows, heads, head_size], the last dimension dense */
    const void *keys;  /* [kv_heads, slots, head_size] of one layer, the last dimension dense */
    const void *values;
    const float *key_scales; /* [kv_heads, slots] if keys and values are int8, which count so many each; else NULL */
    const float *value_scales;
    void *output; /* [rows, heads, head_size], dense */
    const int64_t *positions;
    const int32_t *pages;
    const Unit *units;
    const int32_t *targets;      /* for each unit's rows: the partial row to write, or -1: the output itself */
    const int32_t *merge_rows;   /* output rows made of zero partial rows, or of several */
    const int32_t *merge_starts; /* [merge_count + 1], into merge_parts */
    const int32_t *merge_parts;  /* partial rows, in the order of summation */
    float *partial_output;       /* [kv_heads, partial_rows, group, head_size] */
    float *partial_log_sum_exp;  /* [kv_heads, partial_rows, group] */
    char *workspace;             /* [threads, workspace_bytes], aligned to 64 bytes */
    int64_t workspace_bytes;
    int64_t query_row_stride;
    int64_t query_head_stride;
    int64_t kv_head_stride;
    int64_t slot_stride;
    int64_t scale_head_stride;
    int32_t unit_count;
    int32_t merge_count;
    int32_t partial_rows;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_size;
    int32_t page_size;
    int32_t window; /* most recent keys a row sees, INT32_MAX for all */
    int32_t threads;
    float scale;
} Attention;

/* hidden += addend (if any); output = hidden / rms(hidden) * weight. Everything [rows, size], dense. */
typedef struct {
    void *hidden;
    const void *addend;
    const void *weight;
    void *output;
    int64_t size;
    float epsilon;
} Norm;

/* Heads [rows, heads, head_size] turned by the angles of each row, to dense output. */
typedef struct {
    const void *input;
    int64_t row_stride;
    int64_t head_stride;
    const float *cosine; /* [rows, head_size], the same for both halves */
    const float *sine;   /* [rows, head_size / 2] */
    void *output;
    int64_t heads;
    int64_t head_size;
} Rotation;

/* output [rows, size] = silu(gate) * up, from [rows, 2 size]: gate, then up. */
typedef struct {
    const void *input;
    void *output;
    int64_t size;
} GatedRows;

/* Rows [writes, kv_heads, head_size] to int8 with a scale for each head, in `slots` of a layer's cache. */
typedef struct {
    const void *rows;
    int64_t row_stride;
    int64_t head_stride;
    const int64_t *slots;
    int8_t *cache; /* [kv_heads, slots, head_size], slots dense */
    int64_t cache_head_stride;
    float *scales; /* [kv_heads, slots] */
    int64_t scale_head_stride;
    int64_t kv_heads;
    int64_t head_size;
} QuantizedWrite;

/* Weights [outputs, inputs], dense, and where their panels go; see linear.h. */
typedef struct {
    const void *rows;
    uint32_t *packed;
    int64_t outputs;
    int64_t inputs;
} PackedWeight;

/* output [rows, outputs] = rows [rows, inputs] times packed weights, plus bias (if any). Everything dense. */
typedef struct {
    const void *rows;
    const uint32_t *packed;
    const void *bias;
    void *output;
    int64_t outputs;
    int64_t inputs;
    int fp32_output; /* else the element type */
} Product;

/* What `docqa_` functions are told as `element`. */
enum { BF16 = 0, FP32 = 1 };

/* The code for one element type. Row functions (rows.h) work on rows [start, end). */
typedef struct {
    void (*run_unit)(const Attention *attention, const Unit *unit, int kv_head, char *workspace);
    void (*merge_row)(const Attention *attention, int index);
    void (*add_rms_norm)(const Norm *norm, int64_t start, int64_t end);
    void (*rotate)(const Rotation *rotation, int64_t start, int64_t end);
    void (*silu_multiply)(const GatedRows *gated, int64_t start, int64_t end);
    void (*write_quantized)(const QuantizedWrite *write, int64_t start, int64_t end);
    void (*pack_panel)(const PackedWeight *weight, int64_t panel);
    void (*multiply_panel)(const Product *product, int64_t start, int64_t end, int64_t panel);
    int64_t (*argmax_row)(const float *logits, const uint32_t *mask, int64_t size, int *is_number);
    double (*log_probability_row)(const float *logits, const uint32_t *mask, int64_t size, int64_t token);
} Kernel;

#if defined(__x86_64__) && !defined(__clang__)
#define HAVE_KERNELS 1
extern const Kernel docqa_kernel_bf16;
extern const Kernel docqa_kernel_fp32;
#endif

enum {
    TILE_ROWS = 192,   /* packed query rows (row, head of one KV head) of a unit at most */
    STRIP_ROWS = 12,   /* rows whose scores are in the first-level cache at a time */
    BLOCK_KEYS = 256,  /* keys packed at a time */
    PANEL = 64,        /* columns of a packed panel: four vectors */
    LANES = 16,        /* 32-bit lanes of a vector */
    MAX_HEAD_SIZE = 256
};

#endif
