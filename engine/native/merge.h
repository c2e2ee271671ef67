/* The result of rows that several units worked on: sum(exp(l) o) / sum(exp(l)) over partials (o, l). */

/* One head: its partials are [parts[i] * group] apart. No partial, or only empty ones, gives zeros, never NaN. */
static void merge_head(const Attention *attention, const float *outputs, const float *log_sum_exps,
                       const int32_t *parts, int count, Element *output) {
    int head_size = attention->head_size, group = attention->heads / attention->kv_heads;
    __m512 merged[MAX_HEAD_SIZE / LANES];
    float largest = -INFINITY, total = 0;
    for (int i = 0; i < count; i++) largest = fmaxf(largest, log_sum_exps[parts[i] * group]);
    for (int v = 0; v < head_size / LANES; v++) merged[v] = _mm512_setzero_ps();
    for (int i = 0; i < count && largest > -INFINITY; i++) {
        const float *partial = outputs + (ptrdiff_t)parts[i] * group * head_size;
        float weight = expf(log_sum_exps[parts[i] * group] - largest);
        total += weight;
        for (int v = 0; v < head_size / LANES; v++)
            merged[v] = _mm512_fmadd_ps(_mm512_loadu_ps(partial + v * LANES), _mm512_set1_ps(weight), merged[v]);
    }
    __m512 factor = _mm512_set1_ps(total > 0 ? 1 / total : 0);
    for (int v = 0; v < head_size / LANES; v++) store_elements(output + v * LANES, _mm512_mul_ps(merged[v], factor));
}

static void merge_row(const Attention *attention, int index) {
    int group = attention->heads / attention->kv_heads, head_size = attention->head_size;
    int start = attention->merge_starts[index], count = attention->merge_starts[index + 1] - start;
    ptrdiff_t first_head = (ptrdiff_t)attention->merge_rows[index] * attention->heads;
    for (int head = 0; head < attention->heads; head++) {
        ptrdiff_t partial = (ptrdiff_t)(head / group) * attention->partial_rows * group + head % group;
        merge_head(attention, attention->partial_output + partial * head_size,
                   attention->partial_log_sum_exp + partial, attention->merge_parts + start, count,
                   (Element *)attention->output + (first_head + head) * head_size);
    }
}
