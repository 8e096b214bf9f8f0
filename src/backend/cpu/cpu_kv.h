/* cpu_kv.h - key and value rows in the paged cache.
 *
 * Place: backend/cpu; written by cpu_qkv.c, read by cpu_attention.c. */
#ifndef BACKEND_CPU_CPU_KV_H
#define BACKEND_CPU_CPU_KV_H

#include "backend/cpu/cpu_internal.h"

/* One head's rows of one page: where they start, and their scales (NULL unless fp8). */
struct kv_rows {
    uint8_t *data;
    float *scales;
};

struct kv_rows cpu_kv_keys(const struct state_pools *s, size_t layer, int32_t page, size_t head,
                           size_t hd);
struct kv_rows cpu_kv_values(const struct state_pools *s, size_t layer, int32_t page, size_t head,
                             size_t hd);

/* Row `at` of the page takes x [hd], converted; fp8 picks a scale for the row. */
void cpu_kv_store(const struct cpu_backend *be, enum dtype t, struct kv_rows rows, size_t at,
                  const float *x, size_t hd);

/* The first n rows as float32 [n][hd]: the stored ones when they are float32, else in buffer. */
const float *cpu_kv_load(const struct cpu_backend *be, enum dtype t, struct kv_rows rows, size_t n,
                         size_t hd, float *buffer);

/* Does the pool fit a layer of nkv heads? */
enum status cpu_kv_check(const struct op *op, const struct state_pools *s, const struct step *step,
                         size_t layer, size_t nkv, size_t hd, struct error *err);

#endif
