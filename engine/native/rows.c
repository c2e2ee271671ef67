/* Entry points for row operations and for writing keys and values: in parallel only where it pays. */

#include "attention.h"

#include <string.h>

/* Below so many elements (some 100 microseconds) one thread does it all: a parallel region ends with its last thread,
   and one that another process holds up costs milliseconds. */
enum { PARALLEL_ELEMENTS = 1 << 19, CHUNKS_PER_THREAD = 4 };

#ifdef HAVE_KERNELS
typedef void (*RowFunction)(const void *operation, int64_t start, int64_t end);

static const Kernel *kernel_of(int element) { return element == BF16 ? &docqa_kernel_bf16 : &docqa_kernel_fp32; }

static void for_rows(RowFunction run, const void *operation, int64_t rows, int64_t row_elements, int threads) {
    if (threads == 1 || rows * row_elements < PARALLEL_ELEMENTS) {
        run(operation, 0, rows);
        return;
    }
    int64_t chunks = (int64_t)threads * CHUNKS_PER_THREAD;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        run(operation, rows * chunk / chunks, rows * (chunk + 1) / chunks);
}

void docqa_add_rms_norm(void *hidden, const void *addend, const void *weight, void *output, int64_t rows, int64_t size,
                        float epsilon, int threads, int element) {
    Norm norm = {hidden, addend, weight, output, size, epsilon};
    for_rows((RowFunction)kernel_of(element)->add_rms_norm, &norm, rows, size, threads);
}

void docqa_rotate(const void *input, int64_t row_stride, int64_t head_stride, const float *cosine, const float *sine,
                  void *output, int64_t rows, int64_t heads, int64_t head_size, int threads, int element) {
    Rotation rotation = {input, row_stride, head_stride, cosine, sine, output, heads, head_size};
    for_rows((RowFunction)kernel_of(element)->rotate, &rotation, rows, heads * head_size, threads);
}

void docqa_silu_multiply(const void *input, void *output, int64_t rows, int64_t size, int threads, int element) {
    GatedRows gated = {input, output, size};
    for_rows((RowFunction)kernel_of(element)->silu_multiply, &gated, rows, size, threads);
}

void docqa_write_quantized(const void *rows, int64_t row_stride, int64_t head_stride, const int64_t *slots, void *cache,
                           int64_t cache_head_stride, float *scales, int64_t scale_head_stride, int64_t writes,
                           int64_t kv_heads, int64_t head_size, int threads, int element) {
    QuantizedWrite write = {rows,   row_stride,        head_stride, slots,    cache, cache_head_stride,
                            scales, scale_head_stride, kv_heads,    head_size};
    for_rows((RowFunction)kernel_of(element)->write_quantized, &write, writes, kv_heads * head_size, threads);
}

/* The most likely allowed token of each row of `logits` [rows, size]; `masks` [rows, mask_words], or NULL. Returns
   whether all allowed logits are numbers. */
int docqa_masked_argmax(const float *logits, const uint32_t *masks, int64_t *tokens, int64_t rows, int64_t size,
                        int64_t mask_words, int threads) {
    int numbers = 1;
    if (rows * size < PARALLEL_ELEMENTS) threads = 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) reduction(&& : numbers)
    for (int64_t row = 0; row < rows; row++) {
        int is_number = 1;
        tokens[row] = docqa_kernel_fp32.argmax_row(logits + row * size, masks ? masks + row * mask_words : 0, size,
                                                   &is_number);
        numbers = numbers && is_number;
    }
    return numbers;
}

/* For each row of the same, the log-probability of its token among those allowed; NaN where it has none. */
void docqa_log_probabilities(const float *logits, const uint32_t *masks, const int64_t *tokens, double *output,
                             int64_t rows, int64_t size, int64_t mask_words, int threads) {
    if (rows * size < PARALLEL_ELEMENTS) threads = 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t row = 0; row < rows; row++)
        output[row] = docqa_kernel_fp32.log_probability_row(logits + row * size, masks ? masks + row * mask_words : 0,
                                                            size, tokens[row]);
}
#endif

/* source [writes, kv_heads, head_bytes] to slots [writes] of cache [kv_heads, slots, head_bytes]; strides in bytes. */
void docqa_write_slots(char *cache, int64_t cache_head_bytes, const char *source, int64_t source_row_bytes,
                       int64_t source_head_bytes, const int64_t *slots, int64_t writes, int64_t kv_heads,
                       int64_t head_bytes) {
    for (int64_t head = 0; head < kv_heads; head++) {
        for (int64_t i = 0; i < writes; i++)
            memcpy(cache + head * cache_head_bytes + slots[i] * head_bytes,
                   source + i * source_row_bytes + head * source_head_bytes, head_bytes);
    }
}
