/* Online softmax (Milakov and Gimelshein, 2018): scores of a row and block become weights, older sums are rescaled. */

/* Hidden scores. A row's maximum starts above them, so their weight is 2^(-huge) = 0 even if nothing else is visible;
   with infinities the difference would be NaN. */
#define HIDDEN_SCORE -1e30f
#define LOWEST_MAXIMUM -1e29f

/* A row's reference maximum may lag behind by this power of two before sums are rescaled. Weights up to 2^8 are as
   exact as those up to 1, and the branch is seldom taken after the first block. */
#define SLACK_LOG2 8.0f

/* 2^x. Minimax polynomial on [-1/2, 1/2]; relative error below 3e-7. */
INLINE __m512 exponential(__m512 x) {
    __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 rest = _mm512_sub_ps(x, whole);
    __m512 power = _mm512_set1_ps(1.3276472454890609e-3f);
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(9.675540961325169e-3f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(5.550713092088699e-2f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(2.4022120237350464e-1f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(6.931469440460205e-1f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1.0000001192092896f));
    return _mm512_scalef_ps(power, whole);
}

/* Scores of keys that are stored as whole numbers, each times its key's scale. */
static void scale_scores(float *scores, int columns, const float *scales) {
    for (int column = 0; column < columns; column += LANES) {
        __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(scores + column), _mm512_loadu_ps(scales + column));
        _mm512_storeu_ps(scores + column, scaled);
    }
}

/* Hides the scores of keys outside [low, high). */
static void hide_scores(float *scores, int columns, int low, int high) {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int column = 0; column < columns; column += LANES) {
        __m512i keys = _mm512_add_epi32(lanes, _mm512_set1_epi32(column));
        __mmask16 visible = _mm512_cmpge_epi32_mask(keys, _mm512_set1_epi32(low)) &
                            _mm512_cmplt_epi32_mask(keys, _mm512_set1_epi32(high));
        __m512 shown = _mm512_mask_loadu_ps(_mm512_set1_ps(HIDDEN_SCORE), visible, scores + column);
        _mm512_storeu_ps(scores + column, shown);
    }
}

INLINE void rescale(float *values, int count, float factor) {
    for (int i = 0; i < count; i += LANES)
        _mm512_storeu_ps(values + i, _mm512_mul_ps(_mm512_loadu_ps(values + i), _mm512_set1_ps(factor)));
}

/* One row of `columns` scores to weights 2^((score - maximum) * log2_scale), with the row's state: a
   reference maximum, sums [16] (lane by lane, added up at the end) and output [head_size], rescaled when it moves.
   With `value_scales` the weights are times the scale of their value; the sums are not. */
INLINE void softmax_row(const float *scores, const float *value_scales, Element *weights, int columns,
                        float log2_scale, float *maximum, float *sums, float *output, int head_size) {
    __m512 largest = _mm512_loadu_ps(scores);
    for (int column = LANES; column < columns; column += LANES)
        largest = _mm512_max_ps(largest, _mm512_loadu_ps(scores + column));
    float block_maximum = _mm512_reduce_max_ps(largest);
    if ((block_maximum - *maximum) * log2_scale > SLACK_LOG2) {
        __m512 growth = _mm512_set1_ps((*maximum - block_maximum) * log2_scale);
        float factor = _mm512_cvtss_f32(exponential(growth));
        *maximum = block_maximum;
        rescale(sums, LANES, factor);
        rescale(output, head_size, factor);
    }
    __m512 offset = _mm512_set1_ps(-*maximum * log2_scale);
    __m512 total = _mm512_loadu_ps(sums);
    for (int column = 0; column < columns; column += LANES) {
        __m512 score = _mm512_loadu_ps(scores + column);
        __m512 weight = exponential(_mm512_fmadd_ps(score, _mm512_set1_ps(log2_scale), offset));
        total = _mm512_add_ps(total, weight);
        if (value_scales) weight = _mm512_mul_ps(weight, _mm512_loadu_ps(value_scales + column));
        store_elements(weights + column, weight);
    }
    _mm512_storeu_ps(sums, total);
}
