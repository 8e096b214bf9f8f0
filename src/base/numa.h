/* numa.h - machines whose memory is in several places.
 *
 * Place: base; used around loading a model and starting its threads.
 * Idea:  a token reads all weights once, by all threads. So the pages of weights are dealt out over the
 *        nodes, and the threads over the nodes' cores: then every memory controller is busy. On one
 *        node nothing happens at all.
 * System calls are made directly: there is no dependency on libnuma. Whatever the kernel refuses is not
 * done; the program is right without it, only slower. */
#ifndef BASE_NUMA_H
#define BASE_NUMA_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

struct pool;

enum { NUMA_NODES_MAX = 64 };

struct numa_topology {
    size_t n_nodes; /* nodes with memory; 0: unknown */
    struct numa_node {
        int id;
        cpu_set_t cpus; /* those that this process may use; may be empty */
    } nodes[NUMA_NODES_MAX];
};

#define NUMA_SYSFS "/sys/devices/system/node"

/* sysfs: NUMA_SYSFS, except in tests. Nodes without memory or past NUMA_NODES_MAX are left
 * out. */
void numa_detect(struct numa_topology *out, const char *sysfs);

/* "0-3,8,10-11\n" as sysfs writes it. False when it is not such a list or a number is CPU_SETSIZE or
 * more; then *out is empty. */
bool numa_parse_list(cpu_set_t *out, const char *text);

/* The processor for worker `idx`: nodes in turn, and within a node its processors in turn. -1 when none
 * is known. */
int numa_cpu_for(const struct numa_topology *t, size_t idx);

/* From now on the pages that the calling thread touches first are dealt out over the nodes, mapped files
 * included; threads started meanwhile inherit that. is_on false: back to the default for the caller.
 * False: not done. */
bool numa_interleave(const struct numa_topology *t, bool is_on);

/* Bind each worker thread to its processor. The caller (thread 0) stays free, since what it is else is
 * not known here. */
void numa_bind_pool(const struct numa_topology *t, struct pool *pool);

#endif
