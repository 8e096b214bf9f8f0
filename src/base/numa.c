/* numa.c - see numa.h. The kernel's policy numbers stand here, since <numaif.h> is libnuma's. */
#include "base/numa.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/pool.h"

enum { LIST_BYTES = 4096, PATH_BYTES = 512 };
enum { POLICY_DEFAULT = 0, POLICY_INTERLEAVE = 3 }; /* MPOL_DEFAULT, MPOL_INTERLEAVE */

static bool read_text(char *out, size_t n, const char *sysfs, const char *name)
{
    char path[PATH_BYTES];
    FILE *f;
    size_t len;
    int written = snprintf(path, sizeof path, "%s/%s", sysfs, name);

    if (written < 0 || (size_t)written >= sizeof path) {
        return false;
    }
    f = fopen(path, "re");
    if (!f) {
        return false;
    }
    len = fread(out, 1, n - 1, f);
    out[len] = '\0';
    fclose(f);
    return true;
}

static bool read_number(long *out, const char **at)
{
    char *end;

    if (**at < '0' || **at > '9') {
        return false;
    }
    *out = strtol(*at, &end, 10);
    *at = end;
    return *out < CPU_SETSIZE;
}

bool numa_parse_list(cpu_set_t *out, const char *text)
{
    const char *at = text;

    CPU_ZERO(out);
    while (*at != '\0' && *at != '\n') {
        long first, last;
        bool ok = read_number(&first, &at);

        last = first;
        if (ok && *at == '-') {
            at++;
            ok = read_number(&last, &at) && last >= first;
        }
        ok = ok && (*at == ',' || *at == '\0' || *at == '\n');
        if (!ok) {
            CPU_ZERO(out);
            return false;
        }
        for (long i = first; i <= last; i++) {
            CPU_SET((size_t)i, out);
        }
        at += *at == ',';
    }
    return true;
}

void numa_detect(struct numa_topology *out, const char *sysfs)
{
    char text[LIST_BYTES], name[64];
    cpu_set_t nodes, allowed;

    out->n_nodes = 0;
    if (!read_text(text, sizeof text, sysfs, "has_memory") || !numa_parse_list(&nodes, text) ||
        sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return;
    }
    for (int id = 0; id < CPU_SETSIZE && out->n_nodes < NUMA_NODES_MAX; id++) {
        struct numa_node *node = &out->nodes[out->n_nodes];

        if (!CPU_ISSET((size_t)id, &nodes)) {
            continue;
        }
        node->id = id;
        snprintf(name, sizeof name, "node%d/cpulist", id);
        if (!read_text(text, sizeof text, sysfs, name) || !numa_parse_list(&node->cpus, text)) {
            CPU_ZERO(&node->cpus);
        }
        CPU_AND(&node->cpus, &node->cpus, &allowed);
        out->n_nodes++;
    }
}

static int nth_cpu(const cpu_set_t *set, size_t n)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, set) && n-- == 0) {
            return cpu;
        }
    }
    return -1;
}

int numa_cpu_for(const struct numa_topology *t, size_t idx)
{
    const cpu_set_t *with_cpus[NUMA_NODES_MAX];
    size_t n = 0, round;

    for (size_t i = 0; i < t->n_nodes; i++) {
        if (CPU_COUNT(&t->nodes[i].cpus) > 0) {
            with_cpus[n++] = &t->nodes[i].cpus;
        }
    }
    if (n == 0) {
        return -1;
    }
    round = idx / n;
    return nth_cpu(with_cpus[idx % n], round % (size_t)CPU_COUNT(with_cpus[idx % n]));
}

bool numa_interleave(const struct numa_topology *t, bool is_on)
{
    enum { MASK_BITS = CPU_SETSIZE, WORD_BITS = 8 * sizeof(unsigned long) };
    unsigned long mask[MASK_BITS / WORD_BITS] = {0};

    if (t->n_nodes < 2) {
        return false;
    }
    if (!is_on) {
        return syscall(SYS_set_mempolicy, POLICY_DEFAULT, NULL, 0) == 0;
    }
    for (size_t i = 0; i < t->n_nodes; i++) {
        size_t id = (size_t)t->nodes[i].id;
        mask[id / WORD_BITS] |= 1ul << id % WORD_BITS;
    }
    /* The kernel counts the bits one higher than there are. */
    return syscall(SYS_set_mempolicy, POLICY_INTERLEAVE, mask, MASK_BITS + 1) == 0;
}

static void bind_self(void *ctx, size_t begin, size_t end, size_t thread)
{
    int cpu = numa_cpu_for(ctx, thread);
    cpu_set_t set;

    (void)begin;
    (void)end;
    if (thread == 0 || cpu < 0) {
        return;
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

void numa_bind_pool(const struct numa_topology *t, struct pool *pool)
{
    struct numa_topology copy = *t; /* the region's context is not const */

    if (t->n_nodes > 1) {
        pool_run_even(pool, pool_threads(pool), 1, bind_self, &copy);
    }
}
