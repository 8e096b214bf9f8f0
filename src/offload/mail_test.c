/* mail_test.c - answers to a device's mail: the right sums in every layer, an end at any time, NaN when a
 * computation fails. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h wants the four above */
#include <cmocka.h>

#include "base/arena.h"
#include "offload/mail.h"
#include "offload/offload_testing.h"

enum { LAYERS = 6, EXPERTS = 12, TOP_K = 3, HIDDEN = 64, WIDTH = 96 };

struct rig {
    struct test_experts experts;
    struct expert_home home;
    struct expert_mail boxes[LAYERS];
    struct backend *cpu, *reference;
    struct mail *mail;
    uint32_t seed;
};

static void rig_make(struct rig *r)
{
    memset(r, 0, sizeof *r);
    r->seed = 5;
    test_experts_make(&r->experts, LAYERS, EXPERTS, HIDDEN, WIDTH);
    r->home = (struct expert_home){
        .block = r->experts.block,
        .n_layers = LAYERS,
        .n_experts = EXPERTS,
        .top_k = TOP_K,
        .hidden = HIDDEN,
        .blocks = r->experts.blocks,
        .has_cpu = true,
        .mail = r->boxes,
    };
    for (size_t l = 0; l < LAYERS; l++) {
        r->boxes[l].x = aligned_new(EXPERT_HOME_ROWS * HIDDEN * sizeof(float));
        r->boxes[l].y = aligned_new(EXPERT_HOME_ROWS * HIDDEN * sizeof(float));
    }
    r->cpu = test_cpu_new(2);
    r->reference = test_cpu_new(1);
    assert_int_equal(mail_new(&r->mail, &r->home, DTYPE_F32, r->cpu, NULL), OK);
}

static void rig_release(struct rig *r)
{
    mail_free(r->mail);
    r->cpu->ops->free(r->cpu);
    r->reference->ops->free(r->reference);
    for (size_t l = 0; l < LAYERS; l++) {
        free(r->boxes[l].x);
        free(r->boxes[l].y);
    }
    test_experts_release(&r->experts);
}

static uint32_t next(struct rig *r)
{
    return test_random(&r->seed) >> 3;
}

/* Random rows; some choices are the device's. */
static void write_box(struct rig *r, size_t layer, size_t n_rows)
{
    struct expert_mail *box = &r->boxes[layer];

    for (size_t i = 0; i < n_rows * HIDDEN; i++) {
        box->x[i] = (float)(next(r) % 2001) / 1000.0f - 1.0f;
    }
    for (size_t i = 0; i < n_rows * TOP_K; i++) {
        box->idx[i] =
            next(r) % 2 ? -1 : (int32_t)((next(r) % (EXPERTS / TOP_K)) * TOP_K + i % TOP_K);
        box->prob[i] = (float)(next(r) % 1000) / 1000.0f;
    }
    box->n_rows = (int32_t)n_rows;
    memset(box->y, 0xff, EXPERT_HOME_ROWS * HIDDEN * sizeof *box->y);
}

static void post(struct rig *r, size_t layer, uint32_t ticket)
{
    __atomic_store_n(&r->boxes[layer].posted, ticket, __ATOMIC_RELEASE);
}

static void await(struct rig *r, size_t layer, uint32_t ticket)
{
    while (__atomic_load_n(&r->boxes[layer].answered, __ATOMIC_ACQUIRE) != ticket) {
        usleep(1);
    }
}

/* The answer by another backend; a choice that is not the CPU's weighs nothing. */
static void check_answer(struct rig *r, size_t layer, size_t n_rows)
{
    struct expert_mail *box = &r->boxes[layer];
    float prob[EXPERT_HOME_PAIRS], y[EXPERT_HOME_ROWS * HIDDEN];
    int32_t idx[EXPERT_HOME_PAIRS];

    for (size_t i = 0; i < n_rows * TOP_K; i++) {
        idx[i] = box->idx[i] < 0 ? (int32_t)(i % TOP_K) : box->idx[i]; /* distinct in a row */
        prob[i] = box->idx[i] < 0 ? 0 : box->prob[i];
    }
    assert_int_equal(
        test_experts_sum(&r->experts, r->reference, layer, n_rows, TOP_K, idx, prob, box->x, y),
        OK);
    for (size_t i = 0; i < n_rows * HIDDEN; i++) {
        assert_true(y[i] == box->y[i]);
    }
}

static void every_layer_is_answered(void **state)
{
    enum { STEPS = 60 };
    struct rig r;

    (void)state;
    rig_make(&r);
    for (uint32_t ticket = 1; ticket <= STEPS; ticket++) {
        const struct mail_answer *log;

        if (ticket % 20 == 0) {
            usleep(5000); /* the thread sleeps by now */
        }
        mail_open(r.mail, ticket);
        for (size_t l = 0; l < LAYERS; l++) {
            size_t n_rows = (ticket + l) % 4 == 0 ? 0 : 1 + next(&r) % EXPERT_HOME_ROWS;

            write_box(&r, l, n_rows);
            post(&r, l, ticket);
            if (n_rows > 0) {
                await(&r, l, ticket);
                check_answer(&r, l, n_rows);
            }
        }
        mail_close(r.mail);
        log = mail_log(r.mail);
        for (size_t l = 0; l < LAYERS; l++) {
            bool was_asked[EXPERTS] = {false};
            size_t n = 0;

            for (size_t i = 0; i < (size_t)r.boxes[l].n_rows * TOP_K; i++) {
                if (r.boxes[l].idx[i] >= 0) {
                    n += !was_asked[r.boxes[l].idx[i]];
                    was_asked[r.boxes[l].idx[i]] = true;
                }
            }
            assert_int_equal(r.boxes[l].answered, ticket);
            assert_int_equal(log[l].n_experts, n);
            assert_false(log[l].has_failed);
            assert_true(log[l].posted_ns > 0 && log[l].answered_ns >= log[l].posted_ns);
            assert_true(l == 0 || log[l].posted_ns >= log[l - 1].answered_ns);
        }
    }
    rig_release(&r);
}

/* A step that ends early, one that has no end, none at all: nothing hangs. */
static void the_end_may_come_at_any_time(void **state)
{
    (void)state;
    for (int last = 0; last < 3; last++) {
        struct rig r;

        rig_make(&r);
        mail_close(r.mail); /* not open */
        for (uint32_t ticket = 10; ticket < 20; ticket++) {
            size_t n_posted = ticket % (LAYERS + 1);

            mail_open(r.mail, ticket);
            for (size_t l = 0; l < n_posted; l++) {
                write_box(&r, l, 1);
                post(&r, l, ticket);
            }
            if (ticket % 3 != 0) {
                mail_close(r.mail);
                for (size_t l = 0; l < LAYERS; l++) { /* what was posted is answered */
                    assert_int_equal(r.boxes[l].answered == ticket, l < n_posted);
                    assert_int_equal(mail_log(r.mail)[l].answered_ns > 0, l < n_posted);
                }
            }
        }
        if (last == 1) {
            mail_open(r.mail, 99);
        } else if (last == 2) {
            usleep(5000);
        }
        rig_release(&r);
    }
}

static void a_wrong_box_is_answered_with_nan(void **state)
{
    static const int32_t bad_rows[] = {1, -1, EXPERT_HOME_ROWS + 1};
    struct rig r;

    (void)state;
    rig_make(&r);
    for (uint32_t ticket = 1; ticket <= 3; ticket++) {
        mail_open(r.mail, ticket);
        for (size_t l = 0; l < 2; l++) { /* the second one is right */
            write_box(&r, l, 1);
            if (l == 0) {
                r.boxes[l].idx[0] = EXPERTS;
                r.boxes[l].n_rows = bad_rows[ticket - 1];
            }
            post(&r, l, ticket);
            await(&r, l, ticket);
            assert_true(isnan(r.boxes[l].y[HIDDEN - 1]) == (l == 0));
        }
        mail_close(r.mail);
        assert_true(mail_log(r.mail)[0].has_failed);
        assert_false(mail_log(r.mail)[1].has_failed);
        check_answer(&r, 1, 1);
    }
    rig_release(&r);
}

static void times_can_be_measured(void **state)
{
    struct rig r;
    uint64_t ns = 0;

    (void)state;
    rig_make(&r);
    assert_int_equal(mail_measure(r.mail, LAYERS - 1, EXPERTS - 1, TOP_K, 1, &ns, NULL), OK);
    assert_true(ns > 0);
    rig_release(&r);
}

static void what_the_cpu_cannot_is_refused(void **state)
{
    struct rig r;
    struct mail *m;
    struct error err;

    (void)state;
    rig_make(&r);
    mail_free(r.mail);
    r.mail = NULL;
    r.home.top_k = EXPERT_HOME_TOP_K + 1;
    assert_int_equal(mail_new(&m, &r.home, DTYPE_F32, r.cpu, &err), ERR_LIMIT);
    assert_null(m);
    r.home.top_k = TOP_K;
    assert_int_equal(mail_new(&m, &r.home, DTYPE_I32, r.cpu, &err), ERR_UNSUPPORTED);
    assert_null(m);
    mail_free(NULL);
    rig_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_is_answered),
        cmocka_unit_test(the_end_may_come_at_any_time),
        cmocka_unit_test(a_wrong_box_is_answered_with_nan),
        cmocka_unit_test(times_can_be_measured),
        cmocka_unit_test(what_the_cpu_cannot_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
