/* state.h - the state store: what a sequence carries from step to step.
 *
 * Place:  model. A sequence has fixed tensors (conv and recurrent state of every GDN layer: one
 *         "slot") and token rows (KV of every attention layer: pages of KV_PAGE_TOKENS tokens). All
 *         memory is allocated when the store is made.
 * Share:  slots and pages are counted. A snapshot shares both; the first write after that copies
 *         (copy-on-write), so taking one is cheap. Live slots and snapshot slots are separate budgets:
 *         snapshots can never starve running sequences.
 * Thread: the engine thread only. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/status.h"

struct state_store;

struct state_shape {
    size_t n_gdn_layers, n_attn_layers;
    size_t conv_elems, recurrent_elems; /* per layer */
    size_t n_kv_heads, head_dim;
    enum dtype conv_dtype, recurrent_dtype, kv_dtype;
};
struct state_budget {
    size_t n_live;      /* sequences that may exist at once */
    size_t n_snapshots; /* snapshot slots besides */
    size_t n_tokens;    /* KV pool, rounded up to pages */
    size_t context_max; /* longest sequence */
};

/* Bytes that state_store_new would allocate; false on overflow. */
bool state_store_bytes(size_t *out, const struct state_shape *shape,
                       const struct state_budget *budget);
/* The pools' geometry without memory, for accounting; false on overflow. */
bool state_store_outline(struct state_pools *out, const struct state_shape *shape,
                         const struct state_budget *budget);
enum status state_store_new(struct state_store **out, struct backend *be,
                            const struct state_shape *shape, const struct state_budget *budget,
                            struct error *err);
void state_store_free(struct state_store *s);
const struct state_pools *state_store_pools(const struct state_store *s);
const struct state_budget *state_store_budget(const struct state_store *s);

struct state_counts {
    size_t live_used, snapshots_used, pages_used, pages_total;
};
struct state_counts state_store_counts(const struct state_store *s);

/* A sequence. */
struct seq_state;

/* An empty sequence. ERR_BUSY when no live slot is free. */
enum status state_new(struct seq_state **out, struct state_store *s, struct error *err);
void state_free(struct state_store *s,
                struct seq_state *q); /* returns slot and pages; accepts NULL */
size_t state_tokens(const struct seq_state *q);

/* Make room to append n tokens: pages taken, shared ones that will be written copied, the slot made
 * unique. ERR_BUSY when the pool is short (nothing changed), ERR_LIMIT past context_max. */
enum status state_reserve(struct state_store *s, struct seq_state *q, size_t n_tokens,
                          struct error *err);
size_t state_pages_needed(const struct seq_state *q,
                          size_t n_tokens); /* new pages reserve would take */
/* Whether n tokens could be appended now without another reserve: the promise that model_step needs. */
bool state_is_reserved(const struct seq_state *q, size_t n_tokens);
/* After a step wrote n reserved tokens. */
void state_advance(struct seq_state *q, size_t n_tokens);
/* The span of the next n tokens (reserved): fills position, slot, pages, state_is_zero. */
void state_span(const struct seq_state *q, struct span *out);

/* Snapshot of q as it is now, and restoring it. */
struct state_snapshot;
enum status state_snapshot_new(struct state_snapshot **out, struct state_store *s,
                               struct seq_state *q, struct error *err); /* ERR_BUSY: none free */
void state_snapshot_free(struct state_store *s, struct state_snapshot *snap);
size_t state_snapshot_tokens(const struct state_snapshot *snap);
enum status state_restore(struct state_store *s, struct seq_state *q,
                          const struct state_snapshot *snap, struct error *err);

/* Cut q back to n tokens (n <= state_tokens). With GDN layers the recurrent state cannot be cut: then
 * n must be 0, the present length, or the length of `snap`, which is restored. */
enum status state_truncate(struct state_store *s, struct seq_state *q, size_t n_tokens,
                           const struct state_snapshot *snap, struct error *err);

/* Copies for tests and `eval`, as float32: conv [channels][taps-1] per GDN layer, recurrent
 * [nv][dk][dv], k/v [n_kv_heads][tokens][head_dim] per attention layer (fp8 scales applied). */
void state_read_conv(struct state_store *s, const struct seq_state *q, size_t gdn_layer,
                     size_t channels, float *out);
void state_read_recurrent(struct state_store *s, const struct seq_state *q, size_t gdn_layer,
                          float *out);
void state_read_kv(struct state_store *s, const struct seq_state *q, size_t attn_layer, float *k,
                   float *v);

#endif
