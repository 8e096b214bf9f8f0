/* state.c - the state store: slots and pages that are counted, shared, and copied on write.
 *
 * Place: model; see state.h for the rules.
 *
 *     live sequences   [ seq ][ seq ]...        snapshots   [ snap ]...
 *                        |  \\                                 |  \\
 *                      slot  pages[]                         slot  pages[]      counts say how many
 *                                                                               owners each has
 *     slots   n_live + n_snapshots, so that an owner that must stop sharing always finds a free one
 *     pages   one pool for all; what a sequence may write belongs to it alone (state_reserve)
 *
 * Everything is allocated by state_store_new; afterwards places only move between free lists and
 * owners. Functions that can refuse decide before they change anything. */
#include "model/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

struct holder { /* what a sequence and a snapshot have in common */
    int32_t slot;
    size_t n_tokens;
    size_t n_pages; /* held; a sequence may hold more than its tokens fill */
    int32_t *pages; /* [pages_per_seq] */
    bool is_used;
};

struct seq_state {
    struct holder h;
    struct state_store *store;
};

struct state_snapshot {
    struct holder h;
};

struct free_list { /* a stack of free numbers and the owners of each number */
    int32_t *free;
    size_t n_free;
    uint32_t *owners;
};

struct state_store {
    struct backend *be;
    struct state_shape shape;
    struct state_budget budget;
    struct state_pools pools;
    struct free_list slots, pages;
    struct seq_state *seqs;           /* [n_live] */
    struct state_snapshot *snapshots; /* [n_snapshots] */
    int32_t *page_tables;             /* the pages arrays of both */
    size_t pages_per_seq;
    size_t live_used, snapshots_used;
};

/* ---- sizes ---- */

struct store_sizes { /* bytes of each pool, and their geometry */
    size_t n_slots, n_pages, kv_elems, kv_scales;
    size_t conv, recurrent, kv, scales;
};

static size_t pages_for(size_t n_tokens)
{
    return n_tokens / KV_PAGE_TOKENS + (n_tokens % KV_PAGE_TOKENS != 0);
}

static bool is_fp8(enum dtype t)
{
    return t == DTYPE_F8_E4M3 || t == DTYPE_F8_E5M2;
}

/* n of each x layers x elements x bytes */
static bool pool_bytes(size_t *out, size_t layers, size_t n, size_t elems, size_t each)
{
    size_t bytes;

    return size_mul(&bytes, layers, n) && size_mul(&bytes, bytes, elems) &&
           size_mul(out, bytes, each);
}

static bool sizes_compute(struct store_sizes *z, const struct state_shape *shape,
                          const struct state_budget *budget)
{
    const size_t n_attn = shape->n_attn_layers, n_gdn = shape->n_gdn_layers;

    z->n_pages = n_attn > 0 ? pages_for(budget->n_tokens) : 0;
    return size_add(&z->n_slots, budget->n_live, budget->n_snapshots) && z->n_slots <= INT32_MAX &&
           z->n_pages <= INT32_MAX && size_mul(&z->kv_scales, shape->n_kv_heads, KV_PAGE_TOKENS) &&
           size_mul(&z->kv_elems, z->kv_scales, shape->head_dim) &&
           pool_bytes(&z->conv, n_gdn, z->n_slots, shape->conv_elems,
                      dtype_bytes(shape->conv_dtype)) &&
           pool_bytes(&z->recurrent, n_gdn, z->n_slots, shape->recurrent_elems,
                      dtype_bytes(shape->recurrent_dtype)) &&
           pool_bytes(&z->kv, n_attn, z->n_pages, z->kv_elems, dtype_bytes(shape->kv_dtype)) &&
           pool_bytes(&z->scales, n_attn, z->n_pages, z->kv_scales,
                      is_fp8(shape->kv_dtype) ? sizeof(float) : 0);
}

bool state_store_bytes(size_t *out, const struct state_shape *shape,
                       const struct state_budget *budget)
{
    struct store_sizes z;
    size_t kv, states;

    return sizes_compute(&z, shape, budget) && size_add(&kv, z.kv, z.scales) &&
           size_mul(&kv, kv, 2) && size_add(&states, z.conv, z.recurrent) &&
           size_add(out, kv, states);
}

/* The pools without memory. */
static struct state_pools pools_outline(const struct state_shape *shape,
                                        const struct store_sizes *z)
{
    return (struct state_pools){.conv_dtype = shape->conv_dtype,
                                .recurrent_dtype = shape->recurrent_dtype,
                                .kv_dtype = shape->kv_dtype,
                                .n_slots = z->n_slots,
                                .n_pages = z->n_pages,
                                .n_gdn_layers = shape->n_gdn_layers,
                                .n_attn_layers = shape->n_attn_layers,
                                .conv_elems = shape->conv_elems,
                                .recurrent_elems = shape->recurrent_elems,
                                .kv_elems = z->kv_elems,
                                .kv_scales = z->scales > 0 ? z->kv_scales : 0};
}

bool state_store_outline(struct state_pools *out, const struct state_shape *shape,
                         const struct state_budget *budget)
{
    struct store_sizes z;

    if (!sizes_compute(&z, shape, budget)) {
        return false;
    }
    *out = pools_outline(shape, &z);
    return true;
}

/* ---- counted numbers ---- */

static bool free_list_init(struct free_list *l, size_t n)
{
    l->free = calloc(n + 1, sizeof *l->free);
    l->owners = calloc(n + 1, sizeof *l->owners);
    if (!l->free || !l->owners) {
        return false;
    }
    for (size_t i = 0; i < n; i++) { /* low numbers go first */
        l->free[i] = (int32_t)(n - 1 - i);
    }
    l->n_free = n;
    return true;
}

static void free_list_release(struct free_list *l)
{
    free(l->free);
    free(l->owners);
}

static int32_t take(struct free_list *l)
{
    int32_t i;

    assert(l->n_free > 0);
    i = l->free[--l->n_free];
    assert(l->owners[i] == 0);
    l->owners[i] = 1;
    return i;
}

static void share(struct free_list *l, int32_t i)
{
    assert(l->owners[i] > 0);
    l->owners[i]++;
}

static void drop(struct free_list *l, int32_t i)
{
    assert(l->owners[i] > 0);
    if (--l->owners[i] == 0) {
        l->free[l->n_free++] = i;
    }
}

/* ---- making and ending a store ---- */

static enum status pool_new_buffer(uint8_t **out, struct backend *be, size_t n_bytes,
                                   const char *what, struct error *err)
{
    if (n_bytes == 0) {
        return OK;
    }
    *out = be->ops->buffer_new(be, n_bytes);
    if (!*out) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu MiB for %s", n_bytes >> 20, what);
    }
    return OK;
}

static enum status pools_new(struct state_store *s, const struct store_sizes *z, struct error *err)
{
    struct state_pools *p = &s->pools;
    uint8_t *k_scale = NULL, *v_scale = NULL;
    enum status rc;

    *p = pools_outline(&s->shape, z);
    rc = pool_new_buffer(&p->conv, s->be, z->conv, "convolution states", err);
    if (rc == OK) {
        rc = pool_new_buffer(&p->recurrent, s->be, z->recurrent, "recurrent states", err);
    }
    if (rc == OK) {
        rc = pool_new_buffer(&p->k, s->be, z->kv, "the key cache", err);
    }
    if (rc == OK) {
        rc = pool_new_buffer(&p->v, s->be, z->kv, "the value cache", err);
    }
    if (rc == OK) {
        rc = pool_new_buffer(&k_scale, s->be, z->scales, "the key cache's scales", err);
        p->k_scale = (float *)(void *)k_scale;
    }
    if (rc == OK) {
        rc = pool_new_buffer(&v_scale, s->be, z->scales, "the value cache's scales", err);
        p->v_scale = (float *)(void *)v_scale;
    }
    return rc;
}

static enum status places_new(struct state_store *s, struct error *err)
{
    const struct state_budget *b = &s->budget;
    size_t n_tables = s->pools.n_slots, cells;

    s->pages_per_seq = s->shape.n_attn_layers > 0 ? pages_for(b->context_max) : 0;
    if (!size_mul(&cells, n_tables, s->pages_per_seq)) {
        return error_set(err, ERR_LIMIT,
                         "page tables for %zu sequences of %zu tokens are too large", n_tables,
                         b->context_max);
    }
    s->seqs = calloc(b->n_live + 1, sizeof *s->seqs);
    s->snapshots = calloc(b->n_snapshots + 1, sizeof *s->snapshots);
    s->page_tables = calloc(cells + 1, sizeof *s->page_tables);
    if (!s->seqs || !s->snapshots || !s->page_tables ||
        !free_list_init(&s->slots, s->pools.n_slots) ||
        !free_list_init(&s->pages, s->pools.n_pages)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the page tables");
    }
    for (size_t i = 0; i < b->n_live; i++) {
        s->seqs[i].store = s;
        s->seqs[i].h.pages = s->page_tables + i * s->pages_per_seq;
    }
    for (size_t i = 0; i < b->n_snapshots; i++) {
        s->snapshots[i].h.pages = s->page_tables + (b->n_live + i) * s->pages_per_seq;
    }
    return OK;
}

enum status state_store_new(struct state_store **out, struct backend *be,
                            const struct state_shape *shape, const struct state_budget *budget,
                            struct error *err)
{
    struct store_sizes z;
    struct state_store *s;
    enum status rc;

    *out = NULL;
    if (!sizes_compute(&z, shape, budget)) {
        return error_set(err, ERR_LIMIT,
                         "the state store for %zu sequences and %zu tokens is too large",
                         budget->n_live, budget->n_tokens);
    }
    s = calloc(1, sizeof *s);
    if (!s) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the state store");
    }
    s->be = be;
    s->shape = *shape;
    s->budget = *budget;
    rc = pools_new(s, &z, err);
    if (rc == OK) {
        rc = places_new(s, err);
    }
    if (rc != OK) {
        state_store_free(s);
        return rc;
    }
    *out = s;
    return OK;
}

void state_store_free(struct state_store *s)
{
    if (!s) {
        return;
    }
    void *buffers[] = {s->pools.conv, s->pools.recurrent, s->pools.k,
                       s->pools.v,    s->pools.k_scale,   s->pools.v_scale};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        if (buffers[i]) {
            s->be->ops->buffer_free(s->be, buffers[i]);
        }
    }
    free_list_release(&s->slots);
    free_list_release(&s->pages);
    free(s->seqs);
    free(s->snapshots);
    free(s->page_tables);
    free(s);
}

const struct state_pools *state_store_pools(const struct state_store *s)
{
    return &s->pools;
}

const struct state_budget *state_store_budget(const struct state_store *s)
{
    return &s->budget;
}

struct state_counts state_store_counts(const struct state_store *s)
{
    return (struct state_counts){.live_used = s->live_used,
                                 .snapshots_used = s->snapshots_used,
                                 .pages_used = s->pools.n_pages - s->pages.n_free,
                                 .pages_total = s->pools.n_pages};
}

/* ---- copies within the pools ---- */

static void copy_place(struct state_store *s, uint8_t *pool, size_t n_layers, size_t n_places,
                       size_t place_bytes, int32_t dst, int32_t src)
{
    for (size_t layer = 0; layer < n_layers; layer++) {
        uint8_t *base = pool + layer * n_places * place_bytes;
        s->be->ops->copy(s->be, base + (size_t)dst * place_bytes, base + (size_t)src * place_bytes,
                         place_bytes);
    }
}

static void copy_slot(struct state_store *s, int32_t dst, int32_t src)
{
    const struct state_pools *p = &s->pools;

    copy_place(s, p->conv, p->n_gdn_layers, p->n_slots, p->conv_elems * dtype_bytes(p->conv_dtype),
               dst, src);
    copy_place(s, p->recurrent, p->n_gdn_layers, p->n_slots,
               p->recurrent_elems * dtype_bytes(p->recurrent_dtype), dst, src);
}

static void copy_page(struct state_store *s, int32_t dst, int32_t src)
{
    const struct state_pools *p = &s->pools;
    size_t page_bytes = p->kv_elems * dtype_bytes(p->kv_dtype);
    size_t scale_bytes = p->kv_scales * sizeof(float);

    copy_place(s, p->k, p->n_attn_layers, p->n_pages, page_bytes, dst, src);
    copy_place(s, p->v, p->n_attn_layers, p->n_pages, page_bytes, dst, src);
    if (scale_bytes > 0) {
        copy_place(s, (uint8_t *)p->k_scale, p->n_attn_layers, p->n_pages, scale_bytes, dst, src);
        copy_place(s, (uint8_t *)p->v_scale, p->n_attn_layers, p->n_pages, scale_bytes, dst, src);
    }
}

/* ---- sequences ---- */

static void drop_pages(struct state_store *s, struct holder *h, size_t n_keep)
{
    while (h->n_pages > n_keep) {
        drop(&s->pages, h->pages[--h->n_pages]);
    }
}

/* h becomes a sharer of what src holds for its tokens. h holds a slot and no pages. */
static void share_from(struct state_store *s, struct holder *h, const struct holder *src)
{
    size_t n = s->shape.n_attn_layers > 0 ? pages_for(src->n_tokens) : 0;

    assert(n <= src->n_pages);
    h->slot = src->slot;
    share(&s->slots, h->slot);
    for (size_t i = 0; i < n; i++) {
        h->pages[i] = src->pages[i];
        share(&s->pages, h->pages[i]);
    }
    h->n_pages = n;
    h->n_tokens = src->n_tokens;
}

enum status state_new(struct seq_state **out, struct state_store *s, struct error *err)
{
    *out = NULL;
    for (size_t i = 0; i < s->budget.n_live; i++) {
        struct seq_state *q = &s->seqs[i];
        if (!q->h.is_used) {
            q->h.is_used = true;
            q->h.slot = take(&s->slots);
            q->h.n_tokens = 0;
            q->h.n_pages = 0;
            s->live_used++;
            *out = q;
            return OK;
        }
    }
    return error_set(err, ERR_BUSY, "all %zu sequence slots are in use", s->budget.n_live);
}

void state_free(struct state_store *s, struct seq_state *q)
{
    if (!q) {
        return;
    }
    assert(q->h.is_used && q->store == s);
    drop_pages(s, &q->h, 0);
    drop(&s->slots, q->h.slot);
    q->h.is_used = false;
    s->live_used--;
}

size_t state_tokens(const struct seq_state *q)
{
    return q->h.n_tokens;
}

/* The first page that appending writes is the only one that can be shared: pages past the tokens are
 * never given to a snapshot. */
static bool first_page_is_shared(const struct seq_state *q)
{
    size_t i = q->h.n_tokens / KV_PAGE_TOKENS;

    return i < q->h.n_pages && q->store->pages.owners[q->h.pages[i]] > 1;
}

size_t state_pages_needed(const struct seq_state *q, size_t n_tokens)
{
    size_t total;

    if (n_tokens == 0 || q->store->shape.n_attn_layers == 0) {
        return 0;
    }
    if (!size_add(&total, q->h.n_tokens, n_tokens)) {
        return SIZE_MAX;
    }
    total = pages_for(total);
    return (total > q->h.n_pages ? total - q->h.n_pages : 0) + (first_page_is_shared(q) ? 1 : 0);
}

static void slot_make_own(struct state_store *s, struct seq_state *q)
{
    int32_t old = q->h.slot;

    if (s->slots.owners[old] == 1) {
        return;
    }
    q->h.slot = take(&s->slots); /* there is one: fewer slots than owners are in use */
    if (q->h.n_tokens > 0) {
        copy_slot(s, q->h.slot, old);
    }
    drop(&s->slots, old);
}

enum status state_reserve(struct state_store *s, struct seq_state *q, size_t n_tokens,
                          struct error *err)
{
    size_t needed, end;

    if (n_tokens > s->budget.context_max - q->h.n_tokens) {
        return error_set(err, ERR_LIMIT, "%zu tokens after %zu pass the context length of %zu",
                         n_tokens, q->h.n_tokens, s->budget.context_max);
    }
    needed = state_pages_needed(q, n_tokens);
    if (needed > s->pages.n_free) {
        return error_set(err, ERR_BUSY, "the KV pool is short: %zu pages needed, %zu of %zu free",
                         needed, s->pages.n_free, s->pools.n_pages);
    }
    if (n_tokens == 0) {
        return OK;
    }
    slot_make_own(s, q);
    if (s->shape.n_attn_layers == 0) {
        return OK;
    }
    if (first_page_is_shared(q)) {
        int32_t *page = &q->h.pages[q->h.n_tokens / KV_PAGE_TOKENS];
        int32_t old = *page;
        *page = take(&s->pages);
        copy_page(s, *page, old);
        drop(&s->pages, old);
    }
    end = pages_for(q->h.n_tokens + n_tokens);
    while (q->h.n_pages < end) {
        q->h.pages[q->h.n_pages++] = take(&s->pages);
    }
    return OK;
}

bool state_is_reserved(const struct seq_state *q, size_t n_tokens)
{
    const struct state_store *s = q->store;

    return n_tokens <= s->budget.context_max - q->h.n_tokens &&
           state_pages_needed(q, n_tokens) == 0 && s->slots.owners[q->h.slot] == 1;
}

void state_advance(struct seq_state *q, size_t n_tokens)
{
    assert(state_is_reserved(q, n_tokens));
    q->h.n_tokens += n_tokens;
}

void state_span(const struct seq_state *q, struct span *out)
{
    out->position = q->h.n_tokens;
    out->slot = q->h.slot;
    out->pages = q->h.pages;
    out->state_is_zero = q->h.n_tokens == 0;
}

/* ---- snapshots ---- */

enum status state_snapshot_new(struct state_snapshot **out, struct state_store *s,
                               struct seq_state *q, struct error *err)
{
    *out = NULL;
    for (size_t i = 0; i < s->budget.n_snapshots; i++) {
        struct state_snapshot *snap = &s->snapshots[i];
        if (!snap->h.is_used) {
            snap->h.is_used = true;
            share_from(s, &snap->h, &q->h);
            s->snapshots_used++;
            *out = snap;
            return OK;
        }
    }
    return error_set(err, ERR_BUSY, "all %zu snapshot slots are in use", s->budget.n_snapshots);
}

void state_snapshot_free(struct state_store *s, struct state_snapshot *snap)
{
    if (!snap) {
        return;
    }
    assert(snap->h.is_used);
    drop_pages(s, &snap->h, 0);
    drop(&s->slots, snap->h.slot);
    snap->h.is_used = false;
    s->snapshots_used--;
}

size_t state_snapshot_tokens(const struct state_snapshot *snap)
{
    return snap->h.n_tokens;
}

enum status state_restore(struct state_store *s, struct seq_state *q,
                          const struct state_snapshot *snap, struct error *err)
{
    if (!snap->h.is_used || !q->h.is_used || q->store != s) {
        return error_set(err, ERR_INTERNAL, "restoring a sequence from a snapshot that is gone");
    }
    drop_pages(s, &q->h, 0);
    drop(&s->slots, q->h.slot);
    share_from(s, &q->h, &snap->h);
    return OK;
}

enum status state_truncate(struct state_store *s, struct seq_state *q, size_t n_tokens,
                           const struct state_snapshot *snap, struct error *err)
{
    if (n_tokens > q->h.n_tokens) {
        return error_set(err, ERR_INTERNAL, "cannot cut a sequence of %zu tokens to %zu",
                         q->h.n_tokens, n_tokens);
    }
    if (n_tokens == q->h.n_tokens) {
        return OK;
    }
    if (n_tokens > 0 && s->shape.n_gdn_layers > 0) {
        if (!snap || snap->h.n_tokens != n_tokens) {
            return error_set(err, ERR_UNSUPPORTED,
                             "a recurrent state cannot be cut from %zu to %zu tokens without a "
                             "snapshot of that length",
                             q->h.n_tokens, n_tokens);
        }
        return state_restore(s, q, snap, err);
    }
    drop_pages(s, &q->h, pages_for(n_tokens));
    q->h.n_tokens = n_tokens;
    return OK;
}

/* ---- reading, for tests and eval ---- */

enum { READ_BYTES = 4096 };

/* n elements of type t at src, as float32. */
static void read_f32(struct state_store *s, float *out, enum dtype t, const uint8_t *src, size_t n)
{
    uint8_t part[READ_BYTES];
    size_t each = dtype_bytes(t), per_part = READ_BYTES / each;

    for (size_t i = 0; i < n; i += per_part) {
        size_t m = size_min(per_part, n - i);
        s->be->ops->read(s->be, part, src + i * each, m * each);
        dtype_to_f32(out + i, t, part, m);
    }
}

void state_read_conv(struct state_store *s, const struct seq_state *q, size_t gdn_layer,
                     size_t channels, float *out)
{
    const struct state_pools *p = &s->pools;
    size_t columns = p->conv_elems / channels, each = dtype_bytes(p->conv_dtype);
    const uint8_t *src =
        p->conv + (gdn_layer * p->n_slots + (size_t)q->h.slot) * p->conv_elems * each;
    float value;

    for (size_t t = 0; t < columns; t++) { /* stored [column][channel] */
        for (size_t c = 0; c < channels; c++) {
            read_f32(s, &value, p->conv_dtype, src + (t * channels + c) * each, 1);
            out[c * columns + t] = q->h.n_tokens == 0 ? 0 : value;
        }
    }
}

void state_read_recurrent(struct state_store *s, const struct seq_state *q, size_t gdn_layer,
                          float *out)
{
    const struct state_pools *p = &s->pools;
    size_t bytes = p->recurrent_elems * dtype_bytes(p->recurrent_dtype);

    if (q->h.n_tokens == 0) {
        memset(out, 0, p->recurrent_elems * sizeof *out);
        return;
    }
    read_f32(s, out, p->recurrent_dtype,
             p->recurrent + (gdn_layer * p->n_slots + (size_t)q->h.slot) * bytes,
             p->recurrent_elems);
}

static void read_rows(struct state_store *s, const struct seq_state *q, size_t attn_layer,
                      const uint8_t *pool, const float *scales, float *out)
{
    const struct state_pools *p = &s->pools;
    size_t hd = s->shape.head_dim, each = dtype_bytes(p->kv_dtype), n = q->h.n_tokens;

    for (size_t head = 0; head < s->shape.n_kv_heads; head++) {
        for (size_t t = 0; t < n; t++) {
            size_t page = attn_layer * p->n_pages + (size_t)q->h.pages[t / KV_PAGE_TOKENS];
            size_t row = head * KV_PAGE_TOKENS + t % KV_PAGE_TOKENS;
            float *dst = out + (head * n + t) * hd;

            read_f32(s, dst, p->kv_dtype, pool + (page * p->kv_elems + row * hd) * each, hd);
            if (scales) {
                float scale;
                s->be->ops->read(s->be, &scale, scales + page * p->kv_scales + row, sizeof scale);
                for (size_t i = 0; i < hd; i++) {
                    dst[i] *= scale;
                }
            }
        }
    }
}

void state_read_kv(struct state_store *s, const struct seq_state *q, size_t attn_layer, float *k,
                   float *v)
{
    read_rows(s, q, attn_layer, s->pools.k, s->pools.k_scale, k);
    read_rows(s, q, attn_layer, s->pools.v, s->pools.v_scale, v);
}
