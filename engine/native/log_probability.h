/* The log-probability of a token among the allowed ones of a row of fp32 logits; the mask is as in argmax.h. */

enum { GATHERED_LOGITS = 1024 };
#define LOWEST_POWER -160.0f

/* What is added up for the softmax's denominator: sum times e^largest. */
typedef struct {
    float largest;
    double sum;
} Weight;

/* Adds `count` logits; rescales what was added before when the largest changes. */
static void add_weights(Weight *weight, const float *logits, int count) {
    const __m512 log2_e = _mm512_set1_ps(1.4426950408889634f);
    __m512 maxima = _mm512_set1_ps(-INFINITY);
    for (int i = 0; i < count; i += LANES) {
        __mmask16 some = (__mmask16)(count - i < LANES ? (1u << (count - i)) - 1 : 0xffff);
        maxima = _mm512_mask_max_ps(maxima, some, maxima, _mm512_maskz_loadu_ps(some, logits + i));
    }
    float largest = _mm512_reduce_max_ps(maxima);
    if (largest > weight->largest) {
        weight->sum *= exp((double)weight->largest - largest);
        weight->largest = largest;
    }
    if (weight->largest == -INFINITY) return; /* the differences would be no numbers, and the weights are nothing */
    __m512 total = _mm512_setzero_ps();
    for (int i = 0; i < count; i += LANES) {
        __mmask16 some = (__mmask16)(count - i < LANES ? (1u << (count - i)) - 1 : 0xffff);
        __m512 difference = _mm512_sub_ps(_mm512_maskz_loadu_ps(some, logits + i), _mm512_set1_ps(weight->largest));
        /* 2^LOWEST_POWER is 0, where `exponential` would make -inf no number. A second operand that is none stays. */
        __m512 power = _mm512_max_ps(_mm512_set1_ps(LOWEST_POWER), _mm512_mul_ps(difference, log2_e));
        total = _mm512_mask_add_ps(total, some, total, exponential(power));
    }
    weight->sum += _mm512_reduce_add_ps(total);
}

/* Allowed logits are moved together before they are summed, so the result has the same bits whatever forbidden tokens
   stand between them: among a choice of tokens it is what it is among all. NaN where the softmax has no value. */
static double log_probability_row(const float *logits, const uint32_t *mask, int64_t size, int64_t token) {
    float gathered[GATHERED_LOGITS + LANES];
    int count = 0;
    Weight weight = {-INFINITY, 0};
    for (int64_t i = 0; i < size; i += LANES) {
        __mmask16 allowed = mask ? (__mmask16)(mask[i / 32] >> i % 32) : 0xffff;
        if (size - i < LANES) allowed &= (__mmask16)((1u << (size - i)) - 1);
        if (!allowed) continue;
        __m512 values = _mm512_maskz_loadu_ps(allowed, logits + i);
        _mm512_storeu_ps(gathered + count, _mm512_maskz_compress_ps(allowed, values));
        count += __builtin_popcount(allowed);
        if (count < GATHERED_LOGITS) continue;
        add_weights(&weight, gathered, GATHERED_LOGITS);
        count -= GATHERED_LOGITS;
        memmove(gathered, gathered + GATHERED_LOGITS, sizeof(float) * LANES);
    }
    add_weights(&weight, gathered, count);
    return (double)logits[token] - weight.largest - log(weight.sum);
}
