/* port.c - a linked queue under a lock, with an eventfd that is readable while the queue is not empty.
 *
 * Place:     runtime; see port.h.
 * Trade-off: the lock is held for a few pointer moves; a lock-free ring would need its memory up front
 *            for every connection. */
#include "runtime/port.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

struct engine_port {
    int fd;
    pthread_mutex_t lock; /* guards all below */
    size_t n_owners;
    bool is_closed;
    struct port_event *first, *last;
    size_t n_events;
};

enum status engine_port_new(struct engine_port **out, struct engine *e, struct error *err)
{
    struct engine_port *p = calloc(1, sizeof *p);

    (void)e; /* a port is not tied to the engine's life: requests hold the port, not the reverse */
    *out = NULL;
    if (!p) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate an event port");
    }
    p->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p->fd < 0) {
        enum status rc = error_set(err, ERR_IO, "cannot make an eventfd: %s", strerror(errno));
        free(p);
        return rc;
    }
    pthread_mutex_init(&p->lock, NULL);
    p->n_owners = 1;
    *out = p;
    return OK;
}

struct engine_port *port_ref(struct engine_port *p)
{
    pthread_mutex_lock(&p->lock);
    p->n_owners++;
    pthread_mutex_unlock(&p->lock);
    return p;
}

static void release_events(struct port_event *node)
{
    while (node) {
        struct port_event *next = node->next;

        engine_event_release(&node->event);
        free(node);
        node = next;
    }
}

static void port_release(struct engine_port *p)
{
    release_events(p->first);
    pthread_mutex_destroy(&p->lock);
    close(p->fd);
    free(p);
}

void port_unref(struct engine_port *p)
{
    if (!p) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    bool is_last = --p->n_owners == 0;
    pthread_mutex_unlock(&p->lock);
    if (is_last) {
        port_release(p);
    }
}

void engine_port_free(struct engine_port *p)
{
    if (!p) {
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->is_closed = true; /* the engine sees it before its next step and ends the requests */
    pthread_mutex_unlock(&p->lock);
    port_unref(p);
}

int engine_port_fd(const struct engine_port *p)
{
    return p->fd;
}

bool port_is_closed(struct engine_port *p)
{
    pthread_mutex_lock(&p->lock);
    bool is_closed = p->is_closed;
    pthread_mutex_unlock(&p->lock);
    return is_closed;
}

bool port_is_full(struct engine_port *p)
{
    pthread_mutex_lock(&p->lock);
    bool is_full = p->n_events >= PORT_EVENTS_MAX;
    pthread_mutex_unlock(&p->lock);
    return is_full;
}

/* Lock held. */
static void append(struct engine_port *p, struct port_event *node)
{
    node->next = NULL;
    if (p->last) {
        p->last->next = node;
    } else {
        const uint64_t one = 1;

        p->first = node;
        /* The counter is 0 here, so the write can neither block nor be short. */
        (void)!write(p->fd, &one, sizeof one);
    }
    p->last = node;
    p->n_events++;
}

enum status port_push(struct engine_port *p, struct engine_event *event)
{
    struct port_event *node = malloc(sizeof *node);

    if (!node) {
        engine_event_release(event);
        return ERR_NO_MEMORY;
    }
    node->event = *event;
    pthread_mutex_lock(&p->lock);
    bool fits = p->n_events < PORT_EVENTS_MAX && !p->is_closed;
    if (fits) {
        append(p, node);
    }
    pthread_mutex_unlock(&p->lock);
    if (!fits) {
        engine_event_release(event);
        free(node);
    }
    return fits ? OK : ERR_BUSY;
}

void port_push_last(struct engine_port *p, struct port_event *node)
{
    pthread_mutex_lock(&p->lock);
    append(p, node);
    pthread_mutex_unlock(&p->lock);
}

bool engine_port_pop(struct engine_port *p, struct engine_event *out)
{
    pthread_mutex_lock(&p->lock);
    struct port_event *node = p->first;
    if (node) {
        p->first = node->next;
        p->n_events--;
        if (!p->first) {
            uint64_t count;

            p->last = NULL;
            (void)!read(p->fd, &count, sizeof count);
        }
    }
    pthread_mutex_unlock(&p->lock);
    if (!node) {
        return false;
    }
    *out = node->event;
    free(node);
    return true;
}

bool engine_port_wait(struct engine_port *p, int timeout_ms)
{
    uint64_t start = clock_now_ms();
    int left_ms = timeout_ms;

    for (;;) {
        struct pollfd pfd = {.fd = p->fd, .events = POLLIN};
        int n = poll(&pfd, 1, left_ms);

        if (n > 0) {
            return true;
        }
        if (n == 0 || errno != EINTR) {
            return false;
        }
        if (timeout_ms >= 0) {
            uint64_t passed = clock_now_ms() - start;
            left_ms = passed >= (uint64_t)timeout_ms ? 0 : timeout_ms - (int)passed;
        }
    }
}

void engine_event_release(struct engine_event *e)
{
    free(e->text);
    e->text = NULL;
    e->text_len = 0;
}
