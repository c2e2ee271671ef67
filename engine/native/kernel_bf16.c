/* Attention on bfloat16: products of pairs (VDPBF16PS) with fp32 sums. */

#include "attention.h"

#ifdef HAVE_KERNELS
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")

#include <immintrin.h>

#define ELEMENTS_IN_WORD 2
typedef uint16_t Element;

/* Adds two products of 16-bit pairs to each 32-bit lane. */
static inline __attribute__((always_inline)) __m512 multiply_add(__m512 sum, __m512i left, __m512i right) {
    return _mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)right);
}

/* 16 lanes to 16 elements, rounded to nearest even. */
static inline __attribute__((always_inline)) void store_elements(Element *target, __m512 lanes) {
    _mm256_storeu_si256((__m256i *)target, (__m256i)_mm512_cvtneps_pbh(lanes));
}

static inline __attribute__((always_inline)) __m512 load_elements(const Element *source) {
    __m512i lanes = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)source));
    return _mm512_castsi512_ps(_mm512_slli_epi32(lanes, 16));
}

/* The same for the lanes of a mask; nothing else is read or written. */
static inline __attribute__((always_inline)) void store_some(Element *target, __mmask16 mask, __m512 lanes) {
    _mm256_mask_storeu_epi16(target, mask, (__m256i)_mm512_cvtneps_pbh(lanes));
}

static inline __attribute__((always_inline)) __m512 load_some(__mmask16 mask, const Element *source) {
    __m512i lanes = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, source));
    return _mm512_castsi512_ps(_mm512_slli_epi32(lanes, 16));
}

/* 16 lanes of word pairs: elements of `even` in the low, of `odd` in the high half. */
static inline __attribute__((always_inline)) __m512i pair_rows(const Element *even, const Element *odd) {
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)even));
    __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)odd));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* 16 int8 as fp32, which has them in its upper halves: bf16 holds whole numbers up to 256. */
static inline __attribute__((always_inline)) __m512i widen_bytes(__m128i bytes) {
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
}

/* int8 to words of two elements; the words whose bits are not in `mask` are zero, and their bytes are not read. */
static inline __attribute__((always_inline)) __m512i widen_words(const int8_t *source, __mmask16 mask) {
    __m256i bytes = _mm256_maskz_loadu_epi16(mask, source);
    __m512i low = widen_bytes(_mm256_castsi256_si128(bytes)), high = widen_bytes(_mm256_extracti128_si256(bytes, 1));
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_castsi512_ps(high), _mm512_castsi512_ps(low));
}

static inline __attribute__((always_inline)) __m512i pair_bytes(const int8_t *even, const int8_t *odd) {
    __m512i low = widen_bytes(_mm_loadu_si128((const __m128i *)even));
    __m512i high = widen_bytes(_mm_loadu_si128((const __m128i *)odd));
    return _mm512_or_si512(_mm512_srli_epi32(low, 16), high);
}

#define KERNEL docqa_kernel_bf16
#include "unit.h"
#endif
