/* The matrix product under both halves of attention: rows of words times a packed panel of up to 64 columns.

   A word is 32 bits: one fp32 or a pair of bf16. Queries times keys runs over words of the head, weights times values
   over words of keys; the including file's `multiply_add` decides what a word is. */

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK_ROWS = 6 }; /* 6 rows x 4 vectors of sums, 4 columns and a broadcast word fill the 32 registers */

INLINE __m512i broadcast_word(const uint32_t *word) {
    int32_t value;
    memcpy(&value, word, sizeof value);
    return _mm512_set1_epi32(value);
}

/* `rows` and `vectors` are constants wherever this is inlined, so the sums stay in registers. */
INLINE void multiply_block(float *out, ptrdiff_t out_stride, const uint32_t *left, ptrdiff_t left_stride,
                           const uint32_t *panel, int steps, bool add, const int rows, const int vectors) {
    __m512 sums[BLOCK_ROWS][PANEL / LANES];
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[row][v] = add ? _mm512_loadu_ps(out + row * out_stride + v * LANES) : _mm512_setzero_ps();
    }
    for (int step = 0; step < steps; step++) {
        __m512i columns[PANEL / LANES];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) columns[v] = _mm512_loadu_si512(panel + step * PANEL + v * LANES);
#pragma GCC unroll 6
        for (int row = 0; row < rows; row++) {
            __m512i word = broadcast_word(left + row * left_stride + step);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sums[row][v] = multiply_add(sums[row][v], word, columns[v]);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) _mm512_storeu_ps(out + row * out_stride + v * LANES, sums[row][v]);
    }
}

#define FOR_ROWS(ROWS)                                                                                    \
    static __attribute__((noinline)) void multiply_##ROWS(float *out, ptrdiff_t out_stride,               \
                                                          const uint32_t *left, ptrdiff_t left_stride,    \
                                                          const uint32_t *panel, int steps, bool add,     \
                                                          int vectors) {                                  \
        switch (vectors) {                                                                                \
            case 1: multiply_block(out, out_stride, left, left_stride, panel, steps, add, ROWS, 1); break; \
            case 2: multiply_block(out, out_stride, left, left_stride, panel, steps, add, ROWS, 2); break; \
            case 3: multiply_block(out, out_stride, left, left_stride, panel, steps, add, ROWS, 3); break; \
            default: multiply_block(out, out_stride, left, left_stride, panel, steps, add, ROWS, 4);       \
        }                                                                                                 \
    }
FOR_ROWS(1)
FOR_ROWS(2)
FOR_ROWS(3)
FOR_ROWS(4)
FOR_ROWS(5)
FOR_ROWS(6)
#undef FOR_ROWS

/* out [rows, vectors * 16] (+)= left [rows, steps] times panel [steps, PANEL], in words. */
static void multiply(float *out, ptrdiff_t out_stride, const uint32_t *left, ptrdiff_t left_stride,
                     const uint32_t *panel, int steps, bool add, int rows, int vectors) {
    typedef void Multiply(float *, ptrdiff_t, const uint32_t *, ptrdiff_t, const uint32_t *, int, bool, int);
    static Multiply *const by_rows[] = {NULL,       multiply_1, multiply_2, multiply_3,
                                        multiply_4, multiply_5, multiply_6};
    int blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int block = 0; block < blocks; block++) { /* blocks of nearly equal size: 4 + 4 rows rather than 6 + 2 */
        int start = rows * block / blocks, end = rows * (block + 1) / blocks;
        by_rows[end - start](out + start * out_stride, out_stride, left + start * left_stride, left_stride, panel,
                             steps, add, vectors);
    }
}
