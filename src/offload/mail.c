/* mail.c - see mail.h.
 *
 * Words that device and thread share (posted, answered) are plain integers of a struct that the device
 * knows too, so they are read and written by the compiler's atomics. `ticket` is raised by mail_open,
 * `finished` follows when the thread is done with that step; equal means idle. */
#include "offload/mail.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/size.h"
#include "offload/read_ahead.h"

static const uint64_t POST_WAIT_NS =
    60 * (uint64_t)1000000000; /* longer than a device waits for us */

enum {
    POLLS_PER_YIELD = 1024,  /* about 50 us: for machines with fewer cores than threads */
    LINGER_NS = 2000 * 1000, /* between steps, before sleep: longer than sampling a token takes */
    POLLS_PER_LOOK = 64,     /* at the clock while lingering */
};

struct mail {
    const struct expert_home *home;
    struct backend *cpu;
    struct op *ops;                 /* [n_layers] */
    struct expert_weights *experts; /* [n_layers][n_experts] */
    struct mail_answer *log;        /* [n_layers], the thread's while a step is open */
    struct {                        /* for mail_measure, of MAIL_MEASURE_ROWS rows */
        float *x, *y, *prob;
        int32_t *idx;
    } trial;

    pthread_t thread;
    bool has_thread;
    _Atomic uint32_t ticket, finished;
    _Atomic bool is_closing, stop;
    pthread_mutex_t lock; /* only to sleep: guards is_asleep and is_awaited */
    pthread_cond_t work, idle;
    bool is_asleep, is_awaited;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* --- one box --- */

static size_t count_distinct(const int32_t *idx, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++) {
        size_t j = 0;

        while (j < i && idx[j] != idx[i]) {
            j++;
        }
        count += idx[i] >= 0 && j == i;
    }
    return count;
}

static enum status compute(struct mail *m, const struct op *op, int32_t n_rows, struct error *err)
{
    struct step step = {.n_rows = (size_t)n_rows};

    if (n_rows < 0 || n_rows > EXPERT_HOME_ROWS) {
        return error_set(err, ERR_INTERNAL, "a box with %d rows", (int)n_rows);
    }
    return m->cpu->ops->run(m->cpu, op, &step, NULL, err);
}

static void answer(struct mail *m, size_t layer, uint32_t ticket)
{
    struct expert_mail *box = &m->home->mail[layer];
    struct mail_answer *log = &m->log[layer];
    struct error err;

    *log = (struct mail_answer){.posted_ns = clock_now_ns()};
    if (box->n_rows > 0 && box->n_rows <= EXPERT_HOME_ROWS) {
        read_ahead_experts(m->home, layer, box->idx, (size_t)box->n_rows * m->home->top_k);
    }
    if (box->n_rows != 0 && compute(m, &m->ops[layer], box->n_rows, &err) != OK) {
        log->has_failed = true;
        for (size_t i = 0; i < EXPERT_HOME_ROWS * m->home->hidden; i++) {
            box->y[i] = NAN;
        }
    }
    log->compute_ns = clock_now_ns() - log->posted_ns;
    __atomic_store_n(&box->answered, ticket, __ATOMIC_RELEASE);
    log->answered_ns = clock_now_ns();
    if (box->n_rows > 0 && !log->has_failed) { /* the box stays as it is until the step's end */
        log->n_experts = (uint32_t)count_distinct(box->idx, (size_t)box->n_rows * m->home->top_k);
    }
}

/* False: the step ended before the layer's box was posted, or nobody will (a device that failed). */
static bool wait_post(struct mail *m, size_t layer, uint32_t ticket)
{
    const uint32_t *posted = &m->home->mail[layer].posted;
    uint64_t start = clock_now_ns();

    for (unsigned i = 1; __atomic_load_n(posted, __ATOMIC_ACQUIRE) != ticket; i++) {
        if (atomic_load(&m->is_closing) || atomic_load(&m->stop)) {
            return __atomic_load_n(posted, __ATOMIC_ACQUIRE) == ticket; /* just before the end */
        }
        relax();
        if (i % POLLS_PER_YIELD == 0) {
            sched_yield();
            if (clock_now_ns() - start > POST_WAIT_NS) {
                return false;
            }
        }
    }
    return true;
}

/* --- the thread --- */

static bool has_work(struct mail *m)
{
    return atomic_load(&m->ticket) != atomic_load(&m->finished) || atomic_load(&m->stop);
}

/* Until a step is open or the end has come. */
static void wait_work(struct mail *m)
{
    uint64_t start = clock_now_ns();

    for (unsigned i = 1; !has_work(m); i++) {
        relax();
        if (i % POLLS_PER_LOOK == 0 && clock_now_ns() - start > LINGER_NS) {
            break;
        }
        if (i % POLLS_PER_YIELD == 0) {
            sched_yield();
        }
    }
    if (has_work(m)) {
        return;
    }
    if (m->cpu->ops->awake) {
        m->cpu->ops->awake(m->cpu, false);
    }
    pthread_mutex_lock(&m->lock);
    while (!has_work(m)) {
        m->is_asleep = true;
        pthread_cond_wait(&m->work, &m->lock);
    }
    m->is_asleep = false;
    pthread_mutex_unlock(&m->lock);
    if (m->cpu->ops->awake) {
        m->cpu->ops->awake(m->cpu, !atomic_load(&m->stop));
    }
}

static void *thread_main(void *arg)
{
    struct mail *m = arg;

    for (;;) {
        uint32_t ticket;

        wait_work(m);
        if (atomic_load(&m->stop)) {
            break;
        }
        mail_rouse(m, true); /* a large step may have let them sleep */
        ticket = atomic_load(&m->ticket);
        for (size_t l = 0; l < m->home->n_layers && wait_post(m, l, ticket); l++) {
            answer(m, l, ticket);
        }
        pthread_mutex_lock(&m->lock);
        atomic_store(&m->finished, ticket);
        if (m->is_awaited) {
            pthread_cond_signal(&m->idle);
        }
        pthread_mutex_unlock(&m->lock);
    }
    if (m->cpu->ops->awake) {
        m->cpu->ops->awake(m->cpu, false);
    }
    return NULL;
}

void mail_open(struct mail *m, uint32_t ticket)
{
    mail_close(m); /* a step that failed has no end */
    memset(m->log, 0, m->home->n_layers * sizeof *m->log);
    atomic_store(&m->is_closing, false);
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->ticket, ticket);
    if (m->is_asleep) {
        pthread_cond_signal(&m->work);
    }
    pthread_mutex_unlock(&m->lock);
}

void mail_close(struct mail *m)
{
    if (atomic_load(&m->finished) == atomic_load(&m->ticket)) {
        return;
    }
    atomic_store(&m->is_closing, true);
    pthread_mutex_lock(&m->lock);
    m->is_awaited = true;
    while (atomic_load(&m->finished) != atomic_load(&m->ticket)) {
        pthread_cond_wait(&m->idle, &m->lock);
    }
    m->is_awaited = false;
    pthread_mutex_unlock(&m->lock);
}

const struct mail_answer *mail_log(const struct mail *m)
{
    return m->log;
}

/* A layer's op with other operands. */
static enum status run_aside(struct mail *m, size_t layer, size_t n_rows, const int32_t *idx,
                             const float *prob, const float *x, float *y, struct error *err)
{
    struct op op = m->ops[layer];
    struct op_experts *u = &op.u.experts;
    struct step step = {.n_rows = n_rows};

    u->in.data = (void *)(uintptr_t)x; /* these three are only read */
    u->idx.data = (void *)(uintptr_t)idx;
    u->prob.data = (void *)(uintptr_t)prob;
    u->out.data = y;
    return m->cpu->ops->run(m->cpu, &op, &step, NULL, err);
}

enum status mail_measure(struct mail *m, size_t layer, size_t first_expert, size_t n, size_t n_rows,
                         uint64_t *out_ns, struct error *err)
{
    size_t n_experts = m->home->n_experts, top_k = m->home->top_k, hidden = m->home->hidden;
    uint64_t start;
    enum status rc;

    for (size_t i = 0; i < n_rows * top_k; i++) {
        size_t j = i % top_k;

        m->trial.idx[i] = j < n ? (int32_t)((first_expert + j) % n_experts) : -1;
        m->trial.prob[i] = 1.0f;
    }
    for (size_t i = 0; i < n_rows * hidden; i++) {
        m->trial.x[i] = (float)((int)(i % 17) - 8) / 8.0f; /* exact in every type */
    }
    read_ahead_experts(m->home, layer, m->trial.idx, top_k);
    start = clock_now_ns();
    rc = run_aside(m, layer, n_rows, m->trial.idx, m->trial.prob, m->trial.x, m->trial.y, err);
    *out_ns = clock_now_ns() - start;
    return rc;
}

enum status mail_compute(struct mail *m, size_t layer, size_t n_rows, const int32_t *idx,
                         const float *prob, const float *x, float *y, struct error *err)
{
    if (layer >= m->home->n_layers || n_rows > EXPERT_HOME_LARGE_ROWS) {
        return error_set(
            err, ERR_LIMIT,
            "%zu rows of overflowing layer %zu on the CPU (at most %d rows, %zu layers)", n_rows,
            layer, EXPERT_HOME_LARGE_ROWS, m->home->n_layers);
    }
    mail_close(m); /* of a small step that failed: from here on the thread leaves the CPU alone */
    return run_aside(m, layer, n_rows, idx, prob, x, y, err);
}

void mail_rouse(struct mail *m, bool is_awake)
{
    if (m->cpu->ops->awake) {
        m->cpu->ops->awake(m->cpu, is_awake);
    }
}

/* --- making and unmaking --- */

static struct operand floats(float *data, size_t cols, enum dtype round)
{
    return (struct operand){.data = data, .dtype = DTYPE_F32, .round = round, .cols = cols};
}

static enum status layer_init(struct mail *m, size_t layer, enum dtype activations,
                              struct error *err)
{
    const struct expert_home *h = m->home;
    struct expert_mail *box = &h->mail[layer];
    struct expert_weights *experts = m->experts + layer * h->n_experts;
    struct op *op = &m->ops[layer];

    for (size_t e = 0; e < h->n_experts; e++) {
        experts[e] = expert_block_view(&h->block, h->blocks[layer] + e * h->block.n_bytes);
    }
    *op = (struct op){
        .kind = OP_EXPERTS, .rows = ROWS_ALL, .layer = (int16_t)layer, .name = "missing experts"};
    op->u.experts = (struct op_experts){
        .in = floats(box->x, h->hidden, activations),
        .idx = {.data = box->idx, .dtype = DTYPE_I32, .cols = h->top_k},
        .prob = floats(box->prob, h->top_k, DTYPE_F32),
        .out = floats(box->y, h->hidden, DTYPE_F32),
        .experts = experts,
        .n_experts = h->n_experts,
        .top_k = h->top_k,
        .width = h->block.shape.width,
        .home = h,
        .home_layer = layer,
    };
    return m->cpu->ops->check(m->cpu, op, err);
}

static enum status mail_init(struct mail *m, enum dtype activations, struct error *err)
{
    const struct expert_home *h = m->home;
    enum status rc = OK;
    size_t n;

    if (h->top_k == 0 || h->top_k > EXPERT_HOME_TOP_K || h->n_layers > INT16_MAX ||
        !size_mul(&n, h->n_layers, h->n_experts)) {
        return error_set(err, ERR_LIMIT, "%zu layers with %zu of %zu experts (at most %d at once)",
                         h->n_layers, h->top_k, h->n_experts, EXPERT_HOME_TOP_K);
    }
    m->ops = calloc(h->n_layers + 1, sizeof *m->ops);
    m->experts = calloc(n + 1, sizeof *m->experts);
    m->log = calloc(h->n_layers + 1, sizeof *m->log);
    m->trial.x = aligned_new(MAIL_MEASURE_ROWS * h->hidden * sizeof(float));
    m->trial.y = aligned_new(MAIL_MEASURE_ROWS * h->hidden * sizeof(float));
    m->trial.prob = aligned_new(MAIL_MEASURE_ROWS * h->top_k * sizeof(float));
    m->trial.idx = aligned_new(MAIL_MEASURE_ROWS * h->top_k * sizeof(int32_t));
    if (!m->ops || !m->experts || !m->log || !m->trial.x || !m->trial.y || !m->trial.prob ||
        !m->trial.idx) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate tables of %zu experts", n);
    }
    for (size_t l = 0; rc == OK && l < h->n_layers; l++) {
        rc = layer_init(m, l, activations, err);
    }
    return rc != OK
               ? rc
               : m->cpu->ops->prepare(m->cpu, m->ops, h->n_layers, EXPERT_HOME_LARGE_ROWS, 1, err);
}

enum status mail_new(struct mail **out, const struct expert_home *home, enum dtype activations,
                     struct backend *cpu, struct error *err)
{
    struct mail *m = calloc(1, sizeof *m);
    enum status rc;

    *out = NULL;
    if (!m) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the answers of missing experts");
    }
    m->home = home;
    m->cpu = cpu;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, NULL);
    pthread_cond_init(&m->idle, NULL);
    rc = mail_init(m, activations, err);
    if (rc == OK) {
        int failed = pthread_create(&m->thread, NULL, thread_main, m);

        m->has_thread = failed == 0;
        if (failed) {
            rc = error_set(err, ERR_IO, "cannot start a thread: %s", strerror(failed));
        }
    }
    if (rc != OK) {
        error_prefix(err, "missing experts on the CPU");
        mail_free(m);
        return rc;
    }
    *out = m;
    return OK;
}

void mail_free(struct mail *m)
{
    if (!m) {
        return;
    }
    if (m->has_thread) {
        pthread_mutex_lock(&m->lock);
        atomic_store(&m->stop, true);
        pthread_cond_signal(&m->work);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    pthread_cond_destroy(&m->idle);
    pthread_cond_destroy(&m->work);
    pthread_mutex_destroy(&m->lock);
    free(m->trial.x);
    free(m->trial.y);
    free(m->trial.prob);
    free(m->trial.idx);
    free(m->log);
    free(m->experts);
    free(m->ops);
    free(m);
}
