/* state_test.c - the state store against a simple model of it.
 *
 * The store runs on a backend that is malloc and memcpy. A "token" written here is a number put into
 * every KV row of its position, and a running hash put into the slot: so a page or slot that is
 * shared when it should have been copied, or copied wrongly, shows as wrong content. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/state.h"

struct fake_backend {
    struct backend base;
    size_t n_buffers, fail_at; /* the fail_at-th buffer_new fails; 0: none */
    size_t n_made;
};

static void *fake_new(struct backend *be, size_t n_bytes)
{
    struct fake_backend *f = (struct fake_backend *)be;

    if (++f->n_made == f->fail_at) {
        return NULL;
    }
    f->n_buffers++;
    return calloc(1, n_bytes);
}

static void fake_free(struct backend *be, void *data)
{
    ((struct fake_backend *)be)->n_buffers--;
    free(data);
}

static void fake_copy(struct backend *be, void *dst, const void *src, size_t n_bytes)
{
    (void)be;
    memcpy(dst, src, n_bytes);
}

static const struct backend_ops fake_ops = {.name = "fake",
                                            .buffer_new = fake_new,
                                            .buffer_free = fake_free,
                                            .copy = fake_copy,
                                            .read = fake_copy,
                                            .write = fake_copy};

static const struct state_shape hybrid = {.n_gdn_layers = 2,
                                          .n_attn_layers = 2,
                                          .conv_elems = 6,
                                          .recurrent_elems = 8,
                                          .n_kv_heads = 2,
                                          .head_dim = 4,
                                          .conv_dtype = DTYPE_F32,
                                          .recurrent_dtype = DTYPE_F32,
                                          .kv_dtype = DTYPE_F32};

struct fixture {
    struct fake_backend be;
    struct state_store *s;
};

static void open_store(struct fixture *f, const struct state_shape *shape, size_t live,
                       size_t snapshots, size_t tokens, size_t context)
{
    struct state_budget budget = {live, snapshots, tokens, context};
    struct error err;

    memset(f, 0, sizeof *f);
    f->be.base.ops = &fake_ops;
    assert_int_equal(state_store_new(&f->s, &f->be.base, shape, &budget, &err), OK);
}

static void close_store(struct fixture *f)
{
    struct state_counts c = state_store_counts(f->s);

    assert_int_equal(c.live_used, 0);
    assert_int_equal(c.snapshots_used, 0);
    assert_int_equal(c.pages_used, 0);
    state_store_free(f->s);
    assert_int_equal(f->be.n_buffers, 0);
}

/* ---- writing and checking content ---- */

enum { TOKENS_MAX = 400 };

struct content { /* what a sequence or snapshot should hold */
    size_t n;
    float token[TOKENS_MAX];
};

static float content_hash(const struct content *c)
{
    uint32_t h = 17;

    for (size_t i = 0; i < c->n; i++) {
        h = h * 31 + (uint32_t)c->token[i];
    }
    return (float)(h % 1000003);
}

static void fill(uint8_t *pool, size_t place, size_t elems, float value)
{
    float *p = (float *)(void *)pool + place * elems;

    for (size_t i = 0; i < elems; i++) {
        p[i] = value + (float)i;
    }
}

/* What a forward pass would do: n reserved tokens into the pages, the hash into the slot. */
static void append(struct fixture *f, struct seq_state *q, struct content *c, size_t n,
                   unsigned seed)
{
    const struct state_pools *p = state_store_pools(f->s);
    struct span span = {0};

    assert_true(state_is_reserved(q, n));
    state_span(q, &span);
    assert_int_equal(span.position, c->n);
    assert_int_equal(span.state_is_zero, c->n == 0);
    for (size_t i = 0; i < n; i++) {
        size_t t = c->n;
        float value = (float)((seed * 131 + t * 7) % 4096);
        size_t page = (size_t)span.pages[t / KV_PAGE_TOKENS], row = t % KV_PAGE_TOKENS;

        c->token[c->n++] = value;
        for (size_t layer = 0; layer < p->n_attn_layers; layer++) {
            for (size_t head = 0; head < 2; head++) {
                size_t place =
                    (layer * p->n_pages + page) * 2 * KV_PAGE_TOKENS + head * KV_PAGE_TOKENS + row;
                fill(p->k, place, 4, value + (float)layer);
                fill(p->v, place, 4, -value - (float)head);
            }
        }
    }
    for (size_t layer = 0; layer < p->n_gdn_layers; layer++) {
        size_t place = layer * p->n_slots + (size_t)span.slot;
        fill(p->conv, place, p->conv_elems, content_hash(c) + (float)layer);
        fill(p->recurrent, place, p->recurrent_elems, -content_hash(c));
    }
    state_advance(q, n);
}

static void expect_content(struct fixture *f, const struct seq_state *q, const struct content *c)
{
    static float k[2 * TOKENS_MAX * 4], v[2 * TOKENS_MAX * 4];
    float conv[6], recurrent[8];

    assert_int_equal(state_tokens(q), c->n);
    for (size_t layer = 0; layer < 2; layer++) {
        state_read_kv(f->s, q, layer, k, v);
        for (size_t head = 0; head < 2; head++) {
            for (size_t t = 0; t < c->n; t++) {
                const float *row = k + (head * c->n + t) * 4;
                assert_true(row[0] == c->token[t] + (float)layer && row[3] == row[0] + 3);
                assert_true(v[(head * c->n + t) * 4] == -c->token[t] - (float)head);
            }
        }
        state_read_conv(f->s, q, layer, 2, conv);
        state_read_recurrent(f->s, q, layer, recurrent);
        if (c->n == 0) {
            assert_true(conv[0] == 0 && recurrent[7] == 0);
        } else { /* stored [column][channel], read [channel][column] */
            float base = content_hash(c) + (float)layer;
            assert_true(conv[0] == base && conv[1] == base + 2 && conv[3] == base + 1);
            assert_true(recurrent[7] == 7 - content_hash(c));
        }
    }
}

static void expect_counts(struct fixture *f, size_t live, size_t snapshots, size_t pages)
{
    struct state_counts c = state_store_counts(f->s);

    assert_int_equal(c.live_used, live);
    assert_int_equal(c.snapshots_used, snapshots);
    assert_int_equal(c.pages_used, pages);
}

/* ---- tests ---- */

static void test_append_and_free(void **state)
{
    struct fixture f;
    struct seq_state *q;
    static struct content c;
    struct error err;

    (void)state;
    c.n = 0;
    open_store(&f, &hybrid, 2, 0, 256, 256);
    assert_int_equal(state_new(&q, f.s, &err), OK);
    expect_content(&f, q, &c);
    assert_int_equal(state_pages_needed(q, 64), 1);
    assert_int_equal(state_pages_needed(q, 65), 2);
    assert_int_equal(state_reserve(f.s, q, 65, &err), OK);
    expect_counts(&f, 1, 0, 2);
    append(&f, q, &c, 65, 1);
    assert_int_equal(state_pages_needed(q, 63), 0);
    assert_int_equal(state_pages_needed(q, 64), 1);
    expect_content(&f, q, &c);
    state_free(f.s, q);
    state_free(f.s, NULL);
    close_store(&f);
}

static void test_refusals_change_nothing(void **state)
{
    struct fixture f;
    struct seq_state *a, *b, *none;
    struct state_snapshot *snap, *no_snap;
    static struct content ca, cb;
    struct error err;

    (void)state;
    ca.n = cb.n = 0;
    open_store(&f, &hybrid, 2, 1, 192, 150); /* three pages */
    assert_int_equal(state_new(&a, f.s, &err), OK);
    assert_int_equal(state_new(&b, f.s, &err), OK);
    assert_int_equal(state_new(&none, f.s, &err), ERR_BUSY);
    assert_null(none);

    assert_int_equal(state_reserve(f.s, a, 100, &err), OK);
    append(&f, a, &ca, 100, 1);
    assert_int_equal(state_reserve(f.s, a, 51, &err), ERR_LIMIT); /* context of 150 */
    assert_int_equal(state_reserve(f.s, b, 65, &err), ERR_BUSY);  /* one page left, two needed */
    expect_counts(&f, 2, 0, 2);
    assert_int_equal(state_reserve(f.s, b, 64, &err), OK);
    append(&f, b, &cb, 64, 2);

    assert_int_equal(state_snapshot_new(&snap, f.s, a, &err), OK);
    assert_int_equal(state_snapshot_new(&no_snap, f.s, a, &err), ERR_BUSY);
    assert_null(no_snap);
    /* a's second page is half full and shared now: appending must copy it, and no page is free. */
    assert_int_equal(state_pages_needed(a, 1), 1);
    assert_int_equal(state_reserve(f.s, a, 1, &err), ERR_BUSY);
    assert_false(state_is_reserved(a, 1));
    expect_counts(&f, 2, 1, 3);
    expect_content(&f, a, &ca);
    expect_content(&f, b, &cb);

    state_free(f.s, b);
    assert_int_equal(state_reserve(f.s, a, 1, &err), OK);
    append(&f, a, &ca, 1, 3);
    expect_content(&f, a, &ca);
    ca.n = 100;
    assert_int_equal(state_restore(f.s, a, snap, &err), OK);
    expect_content(&f, a, &ca);
    state_snapshot_free(f.s, snap);
    state_snapshot_free(f.s, NULL);
    state_free(f.s, a);
    close_store(&f);
}

static void test_truncate(void **state)
{
    struct fixture f;
    struct seq_state *q;
    struct state_snapshot *snap;
    static struct content c;
    struct error err;
    struct state_shape attention_only = hybrid;

    (void)state;
    c.n = 0;
    open_store(&f, &hybrid, 1, 1, 256, 256);
    assert_int_equal(state_new(&q, f.s, &err), OK);
    assert_int_equal(state_reserve(f.s, q, 70, &err), OK);
    append(&f, q, &c, 70, 1);
    assert_int_equal(state_snapshot_new(&snap, f.s, q, &err), OK);
    assert_int_equal(state_snapshot_tokens(snap), 70);
    assert_int_equal(state_reserve(f.s, q, 30, &err), OK);
    append(&f, q, &c, 30, 2);
    assert_int_equal(state_truncate(f.s, q, 101, NULL, &err), ERR_INTERNAL);
    assert_int_equal(state_truncate(f.s, q, 100, NULL, &err), OK);
    assert_int_equal(state_truncate(f.s, q, 80, snap, &err), ERR_UNSUPPORTED);
    assert_int_equal(state_truncate(f.s, q, 70, NULL, &err), ERR_UNSUPPORTED);
    expect_content(&f, q, &c);
    assert_int_equal(state_truncate(f.s, q, 70, snap, &err), OK);
    c.n = 70;
    expect_content(&f, q, &c);
    assert_int_equal(state_truncate(f.s, q, 0, NULL, &err), OK);
    c.n = 0;
    expect_content(&f, q, &c);
    expect_counts(&f, 1, 1, 2); /* the snapshot's */
    state_snapshot_free(f.s, snap);
    state_free(f.s, q);
    close_store(&f);

    attention_only.n_gdn_layers = 0;
    open_store(&f, &attention_only, 1, 0, 256, 256);
    assert_int_equal(state_new(&q, f.s, &err), OK);
    assert_int_equal(state_reserve(f.s, q, 130, &err), OK);
    append(&f, q, &c, 130, 1);
    assert_int_equal(state_truncate(f.s, q, 64, NULL, &err), OK);
    expect_counts(&f, 1, 0, 1);
    state_free(f.s, q);
    close_store(&f);
}

static void test_sizes(void **state)
{
    struct state_shape shape = hybrid;
    struct state_budget budget = {3, 2, 100, 4096};
    size_t bytes, kv = 2 * 2 * 2 * (2 * 64 * 4), slots = 5 * 2 * (6 + 8);
    struct state_store *s;
    struct fake_backend be = {.base = {&fake_ops}};
    struct error err;

    (void)state;
    assert_true(state_store_bytes(&bytes, &shape, &budget));
    assert_int_equal(bytes, (kv + slots) * 4);
    shape.kv_dtype = DTYPE_F8_E4M3;
    assert_true(state_store_bytes(&bytes, &shape, &budget));
    assert_int_equal(bytes,
                     kv + kv / 4 * 4 + slots * 4); /* a byte each, a float scale per row of 4 */

    budget.n_tokens = SIZE_MAX;
    assert_false(state_store_bytes(&bytes, &shape, &budget));
    assert_int_equal(state_store_new(&s, &be.base, &shape, &budget, &err), ERR_LIMIT);
    budget.n_tokens = 100;
    budget.n_live = SIZE_MAX;
    assert_int_equal(state_store_new(&s, &be.base, &shape, &budget, &err), ERR_LIMIT);
    budget.n_live = 2;
    for (size_t i = 1; i <= 6; i++) { /* conv, recurrent, k, v, two scales: each may fail */
        be.n_made = 0;
        be.fail_at = i;
        assert_int_equal(state_store_new(&s, &be.base, &shape, &budget, &err), ERR_NO_MEMORY);
        assert_null(s);
        assert_int_equal(be.n_buffers, 0);
    }
}

/* ---- random sequences of operations ---- */

enum { N_LIVE = 4, N_SNAPSHOTS = 3 };

struct world {
    struct fixture f;
    struct seq_state *seq[N_LIVE];
    struct content seq_content[N_LIVE];
    struct state_snapshot *snap[N_SNAPSHOTS];
    struct content snap_content[N_SNAPSHOTS];
    uint32_t random;
};

static uint32_t draw(struct world *w, uint32_t n)
{
    w->random = w->random * 1664525u + 1013904223u;
    return (w->random >> 8) % n;
}

static size_t count_pointers(void *const *p, size_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        used += p[i] != NULL;
    }
    return used;
}

static void world_append(struct world *w, size_t i, unsigned step)
{
    struct seq_state *q = w->seq[i];
    size_t n = draw(w, 90), before = state_store_counts(w->f.s).pages_used;
    size_t needed = state_pages_needed(q, n);
    size_t total = state_store_counts(w->f.s).pages_total;
    struct error err;
    enum status rc = state_reserve(w->f.s, q, n, &err);

    if (w->seq_content[i].n + n > 300) {
        assert_int_equal(rc, ERR_LIMIT);
    } else {
        assert_int_equal(rc, needed > total - before ? ERR_BUSY : OK);
    }
    assert_int_equal(state_store_counts(w->f.s).pages_used, before + (rc == OK ? needed : 0));
    if (rc == OK) {
        size_t used = draw(w, 4) == 0 ? n / 2 : n; /* sometimes less than was reserved */
        if (used > 0) {
            append(&w->f, q, &w->seq_content[i], used, step);
        }
    }
}

static void world_snapshot(struct world *w, size_t i, size_t k)
{
    struct error err;

    if (w->snap[k]) {
        state_snapshot_free(w->f.s, w->snap[k]);
        w->snap[k] = NULL;
    } else if (w->seq[i]) {
        assert_int_equal(state_snapshot_new(&w->snap[k], w->f.s, w->seq[i], &err), OK);
        w->snap_content[k] = w->seq_content[i];
    }
}

static void world_step(struct world *w, unsigned step)
{
    size_t i = draw(w, N_LIVE), k = draw(w, N_SNAPSHOTS);
    struct error err;

    switch (draw(w, 8)) {
    case 0:
        if (w->seq[i]) {
            state_free(w->f.s, w->seq[i]);
            w->seq[i] = NULL;
        } else {
            assert_int_equal(state_new(&w->seq[i], w->f.s, &err), OK);
            w->seq_content[i].n = 0;
        }
        break;
    case 1:
        world_snapshot(w, i, k);
        break;
    case 2:
        if (w->seq[i] && w->snap[k]) {
            assert_int_equal(state_restore(w->f.s, w->seq[i], w->snap[k], &err), OK);
            w->seq_content[i] = w->snap_content[k];
        }
        break;
    case 3:
        if (w->seq[i] && draw(w, 4) == 0) {
            assert_int_equal(state_truncate(w->f.s, w->seq[i], 0, NULL, &err), OK);
            w->seq_content[i].n = 0;
        }
        break;
    default:
        if (w->seq[i]) {
            world_append(w, i, step);
        }
        break;
    }
}

static void test_random_operations(void **state)
{
    static struct world w;
    struct error err;

    (void)state;
    for (uint32_t seed = 1; seed <= 12; seed++) {
        memset(&w, 0, sizeof w);
        w.random = seed * 2654435761u;
        open_store(&w.f, &hybrid, N_LIVE, N_SNAPSHOTS, 900, 300);
        for (unsigned step = 0; step < 400; step++) {
            struct state_counts c;

            world_step(&w, step);
            c = state_store_counts(w.f.s);
            assert_int_equal(c.live_used, count_pointers((void *const *)w.seq, N_LIVE));
            assert_int_equal(c.snapshots_used, count_pointers((void *const *)w.snap, N_SNAPSHOTS));
            if (step % 8 == 0) {
                for (size_t i = 0; i < N_LIVE; i++) {
                    if (w.seq[i]) {
                        expect_content(&w.f, w.seq[i], &w.seq_content[i]);
                    }
                }
            }
        }
        for (size_t k = 0; k < N_SNAPSHOTS; k++) { /* snapshots outlive every sequence */
            state_free(w.f.s, w.seq[k]);
            w.seq[k] = NULL;
        }
        state_free(w.f.s, w.seq[N_LIVE - 1]);
        for (size_t k = 0; k < N_SNAPSHOTS; k++) {
            if (w.snap[k]) {
                assert_int_equal(state_new(&w.seq[0], w.f.s, &err), OK);
                assert_int_equal(state_restore(w.f.s, w.seq[0], w.snap[k], &err), OK);
                expect_content(&w.f, w.seq[0], &w.snap_content[k]);
                state_free(w.f.s, w.seq[0]);
                state_snapshot_free(w.f.s, w.snap[k]);
            }
        }
        close_store(&w.f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_and_free),   cmocka_unit_test(test_refusals_change_nothing),
        cmocka_unit_test(test_truncate),          cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
