/* What a decoder layer does to each row between its matrix products; sizes are multiples of LANES.
   Inside all is fp32 and rounded once, where torch's separate operators round bf16 after each. */

/* A head of smaller values is stored as zeros: the factor that would spread them is no number. */
#define LEAST_MAGNITUDE 1e-30f

static void add_rms_norm(const Norm *norm, int64_t start, int64_t end) {
    const Element *weight = norm->weight;
    for (int64_t row = start; row < end; row++) {
        Element *hidden = (Element *)norm->hidden + row * norm->size;
        const Element *addend = norm->addend ? (const Element *)norm->addend + row * norm->size : NULL;
        Element *output = (Element *)norm->output + row * norm->size;
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < norm->size; i += LANES) {
            __m512 values = load_elements(hidden + i);
            if (addend) {
                store_elements(hidden + i, _mm512_add_ps(values, load_elements(addend + i)));
                values = load_elements(hidden + i); /* the norm sees the rounded sum, as the next layer will */
            }
            squares = _mm512_fmadd_ps(values, values, squares);
        }
        float mean = _mm512_reduce_add_ps(squares) / (float)norm->size;
        __m512 factor = _mm512_set1_ps(1 / sqrtf(mean + norm->epsilon));
        for (int64_t i = 0; i < norm->size; i += LANES) {
            __m512 normed = _mm512_mul_ps(load_elements(hidden + i), factor);
            store_elements(output + i, _mm512_mul_ps(normed, load_elements(weight + i)));
        }
    }
}

/* Pair i of a head is (first half[i], second half[i]), as in Hugging Face weights: (a cos - b sin, b cos + a sin). */
static void rotate(const Rotation *rotation, int64_t start, int64_t end) {
    int64_t head_size = rotation->head_size, half = head_size / 2;
    for (int64_t row = start; row < end; row++) {
        const float *cosine = rotation->cosine + row * head_size, *sine = rotation->sine + row * half;
        for (int64_t head = 0; head < rotation->heads; head++) {
            const Element *input =
                (const Element *)rotation->input + row * rotation->row_stride + head * rotation->head_stride;
            Element *output = (Element *)rotation->output + (row * rotation->heads + head) * head_size;
            for (int64_t i = 0; i < half; i += LANES) {
                __m512 first = load_elements(input + i), second = load_elements(input + half + i);
                __m512 cos = _mm512_loadu_ps(cosine + i), sin = _mm512_loadu_ps(sine + i);
                store_elements(output + i, _mm512_fnmadd_ps(second, sin, _mm512_mul_ps(first, cos)));
                store_elements(output + half + i, _mm512_fmadd_ps(first, sin, _mm512_mul_ps(second, cos)));
            }
        }
    }
}

/* Largest magnitude of a head; NaN and infinity stay what they are, since as integers they are above all numbers. */
static float largest_magnitude(const Element *head, int64_t head_size) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < head_size; i += LANES) {
        __m512i bits = _mm512_castps_si512(load_elements(head + i));
        largest = _mm512_max_epi32(largest, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    int32_t bits = _mm512_reduce_max_epi32(largest);
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude;
}

/* engine/kv_quantization.py says what is computed here. */
static void write_quantized(const QuantizedWrite *write, int64_t start, int64_t end) {
    for (int64_t row = start; row < end; row++) {
        for (int64_t head = 0; head < write->kv_heads; head++) {
            const Element *source = (const Element *)write->rows + row * write->row_stride + head * write->head_stride;
            int8_t *target = write->cache + head * write->cache_head_stride + write->slots[row] * write->head_size;
            float largest = largest_magnitude(source, write->head_size);
            __m512 factor = _mm512_set1_ps(largest > LEAST_MAGNITUDE ? 127 / largest : 0);
            for (int64_t i = 0; i < write->head_size; i += LANES) {
                __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(load_elements(source + i), factor));
                _mm_storeu_si128((__m128i *)(target + i), _mm512_cvtsepi32_epi8(whole));
            }
            write->scales[head * write->scale_head_stride + write->slots[row]] = largest / 127;
        }
    }
}

static void silu_multiply(const GatedRows *gated, int64_t start, int64_t end) {
    const __m512 one = _mm512_set1_ps(1), minus_log2_e = _mm512_set1_ps(-1.4426950408889634f);
    for (int64_t row = start; row < end; row++) {
        const Element *gate = (const Element *)gated->input + row * 2 * gated->size, *up = gate + gated->size;
        Element *output = (Element *)gated->output + row * gated->size;
        for (int64_t i = 0; i < gated->size; i += LANES) {
            __m512 x = load_elements(gate + i);
            __m512 denominator = _mm512_add_ps(one, exponential(_mm512_mul_ps(x, minus_log2_e)));
            store_elements(output + i, _mm512_mul_ps(_mm512_div_ps(x, denominator), load_elements(up + i)));
        }
    }
}
