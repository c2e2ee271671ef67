/* Entry points for matrix products: tasks of some rows times one panel of weights. */

#include "attention.h"

/* Rows of a task; as in linear.h. */
enum { TASK_ROWS = 96 };

/* Fewer products than this (some 50 microseconds) run on one thread. */
#define LEAST_PARALLEL_PRODUCTS (1LL << 22)

#ifdef HAVE_KERNELS
static const Kernel *kernel_of(int element) { return element == BF16 ? &docqa_kernel_bf16 : &docqa_kernel_fp32; }

static int64_t panels_of(int64_t outputs) { return (outputs + PANEL - 1) / PANEL; }

void docqa_pack_weight(const void *rows, void *packed, int64_t outputs, int64_t inputs, int threads, int element) {
    PackedWeight weight = {rows, packed, outputs, inputs};
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t panel = 0; panel < panels_of(outputs); panel++) kernel_of(element)->pack_panel(&weight, panel);
}

void docqa_linear(const void *rows, const void *packed, const void *bias, void *output, int64_t row_count,
                  int64_t outputs, int64_t inputs, int fp32_output, int threads, int element) {
    Product product = {rows, packed, bias, output, outputs, inputs, fp32_output};
    int64_t panels = panels_of(outputs), chunks = (row_count + TASK_ROWS - 1) / TASK_ROWS;
    if (row_count * outputs * inputs < LEAST_PARALLEL_PRODUCTS) threads = 1;
    /* All panels of a chunk of rows, then the next chunk: the rows stay in the cache, the weights stream. */
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < chunks * panels; task++) {
        int64_t chunk = task / panels;
        kernel_of(element)->multiply_panel(&product, row_count * chunk / chunks, row_count * (chunk + 1) / chunks,
                                           task % panels);
    }
}
#endif
