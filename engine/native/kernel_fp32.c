/* Attention on fp32. */

#include "attention.h"

#ifdef HAVE_KERNELS
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma")

#include <immintrin.h>

#define ELEMENTS_IN_WORD 1
typedef float Element;

static inline __attribute__((always_inline)) __m512 multiply_add(__m512 sum, __m512i left, __m512i right) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), sum);
}

static inline __attribute__((always_inline)) void store_elements(Element *target, __m512 lanes) {
    _mm512_storeu_ps(target, lanes);
}

static inline __attribute__((always_inline)) __m512 load_elements(const Element *source) {
    return _mm512_loadu_ps(source);
}

/* The same for the lanes of a mask; nothing else is read or written. */
static inline __attribute__((always_inline)) void store_some(Element *target, __mmask16 mask, __m512 lanes) {
    _mm512_mask_storeu_ps(target, mask, lanes);
}

static inline __attribute__((always_inline)) __m512 load_some(__mmask16 mask, const Element *source) {
    return _mm512_maskz_loadu_ps(mask, source);
}

/* A word is one element here: there is no second row. */
static inline __attribute__((always_inline)) __m512i pair_rows(const Element *even, const Element *odd) {
    (void)odd;
    return _mm512_loadu_si512(even);
}

/* int8 to words; the words whose bits are not in `mask` are zero, and their bytes are not read. */
static inline __attribute__((always_inline)) __m512i widen_words(const int8_t *source, __mmask16 mask) {
    __m512i whole = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, source));
    return _mm512_castps_si512(_mm512_cvtepi32_ps(whole));
}

static inline __attribute__((always_inline)) __m512i pair_bytes(const int8_t *even, const int8_t *odd) {
    (void)odd;
    return widen_words(even, 0xffff);
}

#define KERNEL docqa_kernel_fp32
#include "unit.h"
#endif
