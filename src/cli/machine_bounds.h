/* machine_bounds.h - what this machine can do at best, measured when the question is asked.
 *
 * Place:  cli; `bench` divides what it achieved by it. Measured in the same run and with the same threads,
 *         because virtual machines change from hour to hour.
 * Reads:  all threads sum a buffer, each its own part, by several patterns; the best of several passes
 *         counts. The buffer is far larger than the last-level cache, so that the number is the memory's.
 * Peaks:  loops over registers, no memory: the multiply-adds of float32, and the products of int8 that are
 *         added in int32, each with the instructions of the set that the kernels use. */
#ifndef CLI_MACHINE_BOUNDS_H
#define CLI_MACHINE_BOUNDS_H

#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"
#include "base/status.h"

struct pool;

struct machine_bounds {
    double memory_bytes_s; /* reading far more than the caches hold */
    double cached_bytes_s; /* reading `cached_bytes` again and again; 0: not measured */
    double f32_flop_s;     /* an addition and a multiplication are two */
    double int8_op_s;      /* likewise */
};

struct machine_probe {
    unsigned char *buffer;
    size_t n_bytes;
    size_t cache_bytes; /* of the last level; a guess where the system does not say */
    bool is_small;      /* less than twice the cache: what is measured is not quite the memory */
};

/* bytes_max: how much memory may be used (0: no limit, at least a MiB). Released by
 * machine_probe_close, also after a failure. */
enum status machine_probe_open(struct machine_probe *p, size_t bytes_max, struct pool *pool,
                               struct error *err);
void machine_probe_close(struct machine_probe *p);

/* With the pool's present threads. isa: as cpu_backend_isa() says it. cached_bytes: measure reads of so
 * many bytes too (0: no); more than the buffer counts as the buffer. About half a second. */
void machine_bounds_measure(struct machine_bounds *out, const struct machine_probe *p,
                            const char *isa, size_t cached_bytes, struct pool *pool);

/* The memory of the card that `be` computes on, by copies within it: each byte is read and written, and
 * both count. The arithmetic is not measured (0). Takes 2 GiB for a moment; less where less is free. */
enum status card_bounds_measure(struct machine_bounds *out, struct backend *be, struct error *err);

/* The two ways to what is in host memory only: a card's link and the CPU. Both read the same memory, so
 * that together they reach less than the sum of each alone. */
struct link_bounds {
    double link_bytes_s, cpu_bytes_s; /* each alone */
    /* Both at the same time */
    double link_shared_bytes_s, cpu_shared_bytes_s;
};

/* Copies from pinned memory to the card of `be`, reads of the probe's buffer by the pool's present threads,
 * and both at once. pinned_bytes_max: how much memory may be pinned for it, for a moment (0: no limit).
 * Takes 64 MiB of the card at the most. ERR_NO_MEMORY: nothing could be pinned, or the card is full. About
 * half a second. */
enum status link_bounds_measure(struct link_bounds *out, struct backend *be,
                                const struct machine_probe *p, const char *isa,
                                size_t pinned_bytes_max, struct pool *pool, struct error *err);

#endif
