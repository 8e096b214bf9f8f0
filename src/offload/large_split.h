/* large_split.h - which experts of a large step the CPU computes while others stream.
 *
 * Place:  offload, under offload.c; plain arithmetic on choices and measured times.
 * Model:  of a layer's chosen experts without a slot those that fewest rows chose are the CPU's: an expert costs the
 *         link the same however many rows it has, the CPU reads its weights once and then computes row by row. With r
 *         rows of each of k experts
 *
 *             C = scale * (start + sum(expert + (r - 1) * row))        L = link * (all of them - k)
 *
 *         and k is such that max(C, L) is smallest. Blocks of a pageable layer are copied by the thread that then
 *         computes, so there C + L is.
 * Times:  `link`, `expert` and `row` are measured at the start. `scale` follows what the CPU really takes, which
 *         others may keep from its memory; `link` of pageable layers follows what their copies take. A time that is
 *         far from what was expected is cut. If the CPU seems too slow to be used, it is tried now and then.
 * Thread: the one that runs steps. */
#ifndef OFFLOAD_LARGE_SPLIT_H
#define OFFLOAD_LARGE_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct large_times { /* nanoseconds; 0: not known */
    double link;     /* an expert over the link */
    double expert;   /* one on the CPU, for one row */
    double row;      /* another row of it */
};

struct large_expert { /* wanted, and without a slot */
    int32_t expert;
    uint32_t n_rows;
};

struct large_split {
    struct large_times times;
    double scale;
    double n_learned;        /* times that `scale` is made of */
    double pageable_link;    /* as times.link, of layers that are pageable */
    double n_pageable;       /* times that it is made of */
    uint32_t since_cpu;      /* layers since the CPU had a part */
    double expected;         /* of the last division's CPU part, without `scale` */
    struct large_expert *by; /* [n_experts] scratch: candidates by rows, then by number */
    uint32_t *n_rows;        /* [n_experts] scratch */
    size_t n_experts;
};

/* ERR_NO_MEMORY; release also after a failure. */
enum status large_split_init(struct large_split *s, size_t n_experts, struct error *err);
void large_split_release(struct large_split *s);

/* Before the first division, and whenever they were measured anew. */
void large_split_times(struct large_split *s, const struct large_times *times);

/* Choices idx [n_rows][top_k] of a layer, slot_of [n_experts] with -1 for experts without one. Marks the CPU's in
 * on_cpu; they are by[0 .. k) then, k is returned, and *n_streamed is how many others have no slot. */
size_t large_split_divide(struct large_split *s, size_t n_rows, size_t top_k, const int32_t *idx,
                          const int32_t *slot_of, bool is_pageable, bool *on_cpu,
                          size_t *n_streamed);

/* The CPU's part of the last division took so long. */
void large_split_learn(struct large_split *s, double cpu_ns);
/* A pageable layer's n > 0 copies took so long. */
void large_split_learn_copies(struct large_split *s, size_t n, double ns);

#endif
