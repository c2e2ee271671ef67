/* The most likely allowed token of a row of fp32 logits. The mask is packed 32 tokens a word, or NULL: all. */

static int64_t argmax_row(const float *logits, const uint32_t *mask, int64_t size, int *is_number) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 largest = _mm512_set1_ps(-INFINITY);
    __m512i places = _mm512_setzero_si512();
    __mmask16 no_number = 0;
    for (int64_t i = 0; i < size; i += LANES) {
        __mmask16 allowed = mask ? (__mmask16)(mask[i / 32] >> i % 32) : 0xffff;
        if (size - i < LANES) allowed &= (__mmask16)((1u << (size - i)) - 1);
        if (!allowed) continue; /* most of the vocabulary, in most states of a grammar */
        __m512 values = _mm512_maskz_loadu_ps(allowed, logits + i);
        no_number |= _mm512_mask_cmp_ps_mask(allowed, values, values, _CMP_UNORD_Q);
        /* Strictly greater: of equal logits in a lane the first token stays. */
        __mmask16 greater = _mm512_mask_cmp_ps_mask(allowed, values, largest, _CMP_GT_OQ);
        largest = _mm512_mask_mov_ps(largest, greater, values);
        places = _mm512_mask_mov_epi32(places, greater, _mm512_add_epi32(lanes, _mm512_set1_epi32((int)i)));
    }
    if (no_number) *is_number = 0;
    __m512 best = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    __mmask16 equal = _mm512_cmp_ps_mask(largest, best, _CMP_EQ_OQ);
    return _mm512_mask_reduce_min_epi32(equal, places);
}
