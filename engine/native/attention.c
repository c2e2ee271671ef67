/* Entry points: one parallel region executes a layer's work list, then merges partial outputs. */

#include "attention.h"

#include <omp.h>
#include <stddef.h>

/* Whether this CPU can run the code of an element type. */
int docqa_supports(int element) {
#ifdef HAVE_KERNELS
    int common = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return common && (element == FP32 || __builtin_cpu_supports("avx512bf16"));
#else
    (void)element;
    return 0;
#endif
}

/* For checks by the caller that both sides mean the same thing. */
int docqa_attention_bytes(void) { return (int)sizeof(Attention); }
int docqa_tile_rows(void) { return TILE_ROWS; }

/* Bytes a thread needs beside the stack; see `Workspace` in unit.h. fp32 words for everything is an upper bound. */
int64_t docqa_workspace_bytes(int head_size) {
    int64_t panels = (head_size + PANEL - 1) / PANEL;
    int64_t words = 2L * TILE_ROWS * head_size                   /* queries and outputs */
                    + (int64_t)BLOCK_KEYS * head_size            /* keys */
                    + (int64_t)BLOCK_KEYS * panels * PANEL       /* values */
                    + 2L * STRIP_ROWS * BLOCK_KEYS               /* scores and weights */
                    + (int64_t)TILE_ROWS * LANES                 /* sums */
                    + 3L * TILE_ROWS;                            /* maxima, visible ranges */
    return words * 4 + 64 * 10;
}

static void run(const Attention *attention, const Kernel *kernel) {
    int tasks = attention->unit_count * attention->kv_heads;
#pragma omp parallel num_threads(attention->threads)
    {
        char *workspace = attention->workspace + omp_get_thread_num() * attention->workspace_bytes;
        /* Units come largest first, so the threads end together. The loop's barrier makes the partials complete. */
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < tasks; task++) {
            const Unit *unit = attention->units + task / attention->kv_heads;
            kernel->run_unit(attention, unit, task % attention->kv_heads, workspace);
        }
        /* Dynamic here too: a thread that another process holds up does not hold up its share of the merge. */
#pragma omp for schedule(dynamic, 8)
        for (int index = 0; index < attention->merge_count; index++) kernel->merge_row(attention, index);
    }
}

void docqa_attention(const Attention *attention, int element) {
#ifdef HAVE_KERNELS
    run(attention, element == BF16 ? &docqa_kernel_bf16 : &docqa_kernel_fp32);
#else
    (void)attention;
    (void)element;
    (void)run;
#endif
}
