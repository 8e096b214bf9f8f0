/* memory_check.c - see memory_check.h. */
#include "cli/memory_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { LINE_BYTES = 256 };

struct state_shape memory_state_shape(const struct model_config *c, enum dtype conv,
                                      enum dtype recurrent, enum dtype kv)
{
    size_t channels = 2 * c->linear_n_key_heads * c->linear_key_dim +
                      c->linear_n_value_heads * c->linear_value_dim;
    struct state_shape s = {
        .conv_elems = c->linear_conv_taps ? (c->linear_conv_taps - 1) * channels : 0,
        .recurrent_elems = c->linear_n_value_heads * c->linear_key_dim * c->linear_value_dim,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .conv_dtype = conv,
        .recurrent_dtype = recurrent,
        .kv_dtype = kv,
    };
    for (size_t i = 0; i < c->n_layers; i++) {
        s.n_attn_layers += c->layer_is_full[i] ? 1 : 0;
    }
    s.n_gdn_layers = c->n_layers - s.n_attn_layers;
    return s;
}

/* Float32 words that a row occupies over the activation buffers of one step: the residual and a few
 * copies, the projections of both kinds of mixer, and the widest feed-forward. An estimate: what
 * counts is the size class, the exact sum is known only to the plan. */
static size_t scratch_words(const struct model_config *c)
{
    size_t values = c->linear_n_value_heads * c->linear_value_dim;
    size_t channels = 2 * c->linear_n_key_heads * c->linear_key_dim + values;
    size_t attention = 3 * c->n_heads * c->head_dim + 2 * c->n_kv_heads * c->head_dim;
    size_t experts = c->n_experts_per_token * c->expert_intermediate_size;
    size_t ffn = 3 * size_max(c->intermediate_size, experts + c->shared_intermediate_size);
    return 6 * c->hidden_size + size_max(2 * channels + 2 * values, attention) + ffn;
}

static bool pool_bytes(struct memory_plan *p, const struct state_shape *shape,
                       const struct state_budget *budget)
{
    /* The two parts apart, by leaving the other one out. */
    struct state_shape states = *shape, kv = *shape;
    states.n_attn_layers = 0;
    kv.n_gdn_layers = 0;
    return state_store_bytes(&p->state_bytes, &states, budget) &&
           state_store_bytes(&p->kv_bytes, &kv, budget);
}

enum status memory_plan_make(struct memory_plan *out, const struct model_config *c,
                             size_t weight_bytes, const struct state_budget *budget,
                             enum dtype conv, enum dtype recurrent, enum dtype kv, size_t rows,
                             size_t out_rows, struct error *err)
{
    struct state_shape shape = memory_state_shape(c, conv, recurrent, kv);
    size_t logits = 0;
    *out = (struct memory_plan){.weight_bytes = weight_bytes};
    bool fits = pool_bytes(out, &shape, budget) &&
                size_mul(&out->scratch_bytes, rows, scratch_words(c) * sizeof(float)) &&
                size_mul(&logits, out_rows, c->vocab_size * sizeof(float)) &&
                size_add(&out->scratch_bytes, out->scratch_bytes, logits) &&
                size_add(&out->total_bytes, weight_bytes, out->state_bytes) &&
                size_add(&out->total_bytes, out->total_bytes, out->kv_bytes) &&
                size_add(&out->total_bytes, out->total_bytes, out->scratch_bytes);
    return fits ? OK
                : error_set(err, ERR_NO_MEMORY,
                            "the pools asked for exceed the address space; "
                            "lower --max-total-tokens or --max-running-requests");
}

/* The number behind `key` in a file of "key number" lines (key NULL: the first number). */
static bool read_number(size_t *out, const char *path, const char *key)
{
    char line[LINE_BYTES];
    FILE *f = fopen(path, "re");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *p = line;
        if (key) {
            size_t len = strlen(key);
            if (strncmp(line, key, len) != 0) {
                continue;
            }
            p += len;
        }
        char *end = NULL;
        unsigned long long v = strtoull(p, &end, 10);
        if (end == p) {
            break; /* "max" */
        }
        *out = (size_t)v;
        found = true;
    }
    if (f) {
        fclose(f);
    }
    return found;
}

/* memory.max less what is in use, where file pages count as free. */
static size_t cgroup_left(const char *dir)
{
    char path[LINE_BYTES];
    size_t limit = 0, used = 0, file = 0;
    snprintf(path, sizeof path, "%s/memory.max", dir);
    if (!read_number(&limit, path, NULL)) {
        return SIZE_MAX;
    }
    snprintf(path, sizeof path, "%s/memory.current", dir);
    if (!read_number(&used, path, NULL)) {
        return limit;
    }
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    (void)read_number(&file, path, "file ");
    used -= size_min(used, file);
    return limit - size_min(limit, used);
}

size_t memory_available(const char *meminfo, const char *cgroup)
{
    size_t kib = 0;
    size_t available = SIZE_MAX;
    if (read_number(&kib, meminfo, "MemAvailable:")) {
        available = kib * 1024;
    }
    return size_min(available, cgroup_left(cgroup));
}

static void size_text(char out[32], size_t n_bytes)
{
    const double mib = (double)n_bytes / (1 << 20);
    if (mib >= 1024) {
        snprintf(out, 32, "%.2f GiB", mib / 1024);
    } else {
        snprintf(out, 32, "%.1f MiB", mib);
    }
}

void memory_plan_text(char *out, size_t n, const struct memory_plan *p)
{
    char weights[32], states[32], kv[32], scratch[32], total[32];
    size_text(weights, p->weight_bytes);
    size_text(states, p->state_bytes);
    size_text(kv, p->kv_bytes);
    size_text(scratch, p->scratch_bytes);
    size_text(total, p->total_bytes);
    snprintf(out, n, "weights %s + states %s + KV pool %s + scratch %s = %s", weights, states, kv,
             scratch, total);
}

enum status memory_check(const struct memory_plan *p, size_t available, struct error *err)
{
    char plan[256], left[32];
    if (p->total_bytes <= available) {
        return OK;
    }
    memory_plan_text(plan, sizeof plan, p);
    size_text(left, available);
    return error_set(err, ERR_NO_MEMORY,
                     "not enough memory: %s, but %s are available; lower --max-total-tokens, "
                     "--max-running-requests or --chunked-prefill-size, or choose a smaller model",
                     plan, left);
}
