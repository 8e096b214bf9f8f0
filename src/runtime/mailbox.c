/* mailbox.c - see mailbox.h. */
#include "runtime/mailbox.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

struct mailbox {
    size_t unfinished_max;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t wake;
    struct sequence **unfinished; /* [unfinished_max], no order */
    size_t n_unfinished;
    struct sequence *first, *last; /* not seen by the engine */
    size_t n_unseen;
    uint64_t next_id;
    bool is_stopped;
    struct engine_stats stats;
};

enum status mailbox_new(struct mailbox **out, size_t unfinished_max, struct error *err)
{
    struct mailbox *m = calloc(1, sizeof *m);

    *out = NULL;
    if (m) {
        m->unfinished = calloc(unfinished_max, sizeof *m->unfinished);
    }
    if (!m || !m->unfinished) {
        free(m);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a queue of %zu requests",
                         unfinished_max);
    }
    m->unfinished_max = unfinished_max;
    m->next_id = 1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    *out = m;
    return OK;
}

void mailbox_free(struct mailbox *m)
{
    if (m) {
        assert(m->n_unfinished == 0);
        pthread_cond_destroy(&m->wake);
        pthread_mutex_destroy(&m->lock);
        free(m->unfinished);
        free(m);
    }
}

enum status mailbox_submit(struct mailbox *m, struct sequence *q, uint64_t random_seed,
                           uint64_t *id, struct error *err)
{
    enum status rc = OK;

    pthread_mutex_lock(&m->lock);
    if (m->n_unfinished == m->unfinished_max) {
        rc = error_set(err, ERR_BUSY, "the queue is full: %zu requests are running or waiting",
                       m->n_unfinished);
    } else {
        q->id = m->next_id++;
        q->seed = q->sampling.has_seed ? q->sampling.seed : random_seed + q->id;
        *id = q->id; /* under the lock: the engine may end and free q at once */
        q->next = NULL;
        if (m->last) {
            m->last->next = q;
        } else {
            m->first = q;
        }
        m->last = q;
        m->n_unseen++;
        m->unfinished[m->n_unfinished++] = q;
        m->stats.n_requests++;
        pthread_cond_signal(&m->wake);
    }
    pthread_mutex_unlock(&m->lock);
    return rc;
}

void mailbox_cancel(struct mailbox *m, uint64_t id)
{
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n_unfinished; i++) {
        if (m->unfinished[i]->id == id) {
            atomic_store(&m->unfinished[i]->is_cancelled, true);
            break;
        }
    }
    pthread_mutex_unlock(&m->lock);
}

void mailbox_stop(struct mailbox *m)
{
    pthread_mutex_lock(&m->lock);
    m->is_stopped = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

void mailbox_get_stats(struct mailbox *m, struct engine_stats *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->stats;
    out->n_queued += m->n_unseen;
    pthread_mutex_unlock(&m->lock);
}

bool mailbox_take(struct mailbox *m, bool may_wait, struct sequence **list)
{
    pthread_mutex_lock(&m->lock);
    while (may_wait && !m->first && !m->is_stopped) {
        pthread_cond_wait(&m->wake, &m->lock);
    }
    *list = m->first;
    m->first = m->last = NULL;
    m->stats.n_queued += m->n_unseen; /* they are the engine's to count from now on */
    m->n_unseen = 0;
    bool goes_on = !m->is_stopped;
    pthread_mutex_unlock(&m->lock);
    return goes_on;
}

void mailbox_retire(struct mailbox *m, struct sequence *q)
{
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n_unfinished; i++) {
        if (m->unfinished[i] == q) {
            m->unfinished[i] = m->unfinished[--m->n_unfinished];
            break;
        }
    }
    pthread_mutex_unlock(&m->lock);
    sequence_free(q);
}

void mailbox_set_stats(struct mailbox *m, const struct engine_stats *stats)
{
    pthread_mutex_lock(&m->lock);
    uint64_t n_requests = m->stats.n_requests;
    m->stats = *stats;
    m->stats.n_requests = n_requests;
    pthread_mutex_unlock(&m->lock);
}
