/* cuda_late_testing.c - see cuda_late_testing.h.
 *
 * A stream that the emulator captures keeps a list of its work, arguments and all. So each stream captures
 * all the time, and what was captured between two events is one entry of its queue. */
#include "backend/cuda/cuda_late_testing.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/cuda/emulator/emulator.h"

enum { STREAMS_MAX = 4, EVENTS_MAX = 512, ERROR_INVALID_VALUE_ = 1 };

struct entry { /* work, or a wait for another stream's first n entries */
    CUgraphExec exec;
    size_t stream, n;
};

struct queue {
    CUstream stream; /* NULL: a free place */
    struct entry *entries;
    size_t n, n_done, capacity;
};

static struct {
    const struct cuda_driver *real;
    enum late_policy policy;
    uint64_t dice;
    struct queue queues[STREAMS_MAX];
    CUstream now; /* does what is taken from a queue */
    struct {
        CUevent event;
        size_t stream, n;
    } events[EVENTS_MAX]; /* where they were recorded last */
    size_t n_events;
    size_t until_failure, n_calls, until_no_memory, n_allocations;
    CUresult result; /* the first failure of work that was done later */
} late;

static bool fails(void)
{
    late.n_calls++;
    return late.until_failure > 0 && --late.until_failure == 0;
}

static bool memory_ends(void)
{
    late.n_allocations++;
    return late.until_no_memory > 0 && --late.until_no_memory == 0;
}

static size_t queue_of(CUstream stream)
{
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        if (late.queues[i].stream == stream) {
            return i;
        }
    }
    fprintf(stderr, "a stream that is not there\n");
    abort();
}

static void push(struct queue *q, struct entry e)
{
    if (q->n == q->capacity) {
        q->capacity = q->capacity ? 2 * q->capacity : 64;
        q->entries = realloc(q->entries, q->capacity * sizeof *q->entries);
        if (!q->entries) {
            abort();
        }
    }
    q->entries[q->n++] = e;
}

/* What was asked for since the last time becomes an entry. */
static void close_entry(struct queue *q)
{
    CUgraph graph = NULL;
    struct entry e = {0};

    if (late.real->stream_end_capture(q->stream, &graph) != CUDA_SUCCESS_ ||
        late.real->graph_instantiate(&e.exec, graph, 0) != CUDA_SUCCESS_) {
        abort();
    }
    late.real->graph_destroy(graph);
    push(q, e);
    if (late.real->stream_begin_capture(q->stream, 0) != CUDA_SUCCESS_) {
        abort();
    }
}

static void work_off(size_t which, size_t n)
{
    struct queue *q = &late.queues[which];

    while (q->n_done < n) {
        struct entry e = q->entries[q->n_done++];

        if (e.exec) {
            CUresult r = late.real->graph_launch(e.exec, late.now);

            late.result = late.result ? late.result : r;
            late.real->graph_exec_destroy(e.exec);
        } else {
            work_off(e.stream, e.n);
        }
    }
}

static bool throws(unsigned of)
{
    late.dice = late.dice * 6364136223846793005u + 1442695040888963407u;
    return late.dice >> 33 < (1u << 31) / of;
}

/* After each call: who is not late works. */
static void go_on(size_t which)
{
    if (late.policy == LATE_DICE ? throws(3)
                                 : late.policy == (which == 0 ? LATE_OTHERS : LATE_FIRST)) {
        close_entry(&late.queues[which]);
        work_off(which, late.queues[which].n);
    }
}

static CUresult stream_create(CUstream *out, unsigned flags)
{
    size_t which = queue_of(NULL);
    CUresult r = memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_ : late.real->stream_create(out, flags);

    if (r == CUDA_SUCCESS_) {
        late.queues[which] = (struct queue){.stream = *out};
        r = late.real->stream_begin_capture(*out, 0);
    }
    return r;
}

static CUresult stream_synchronize(CUstream stream)
{
    size_t which = queue_of(stream);
    CUresult r;

    close_entry(&late.queues[which]);
    work_off(which, late.queues[which].n);
    r = late.result;
    late.result = CUDA_SUCCESS_;
    return r;
}

static CUresult stream_destroy(CUstream stream)
{
    size_t which = queue_of(stream);

    stream_synchronize(stream);
    free(late.queues[which].entries);
    late.queues[which] = (struct queue){0};
    return late.real->stream_destroy(stream);
}

static CUresult event_create(CUevent *out, unsigned flags)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_ : late.real->event_create(out, flags);
}

static size_t event_find(CUevent event)
{
    size_t i = 0;

    while (i < late.n_events && late.events[i].event != event) {
        i++;
    }
    return i;
}

static CUresult event_destroy(CUevent event)
{
    size_t i = event_find(event);

    if (i < late.n_events) {
        late.events[i] = late.events[--late.n_events];
    }
    return late.real->event_destroy(event);
}

static CUresult event_record(CUevent event, CUstream stream)
{
    size_t i = event_find(event), which = queue_of(stream);

    if (fails() || i == EVENTS_MAX) {
        return ERROR_INVALID_VALUE_;
    }
    close_entry(&late.queues[which]);
    late.n_events += i == late.n_events;
    late.events[i].event = event;
    late.events[i].stream = which;
    late.events[i].n = late.queues[which].n;
    go_on(which);
    return CUDA_SUCCESS_;
}

/* An event that was never recorded holds nobody up. */
static CUresult event_synchronize(CUevent event)
{
    size_t i = event_find(event);

    if (fails()) {
        return ERROR_INVALID_VALUE_;
    }
    if (i < late.n_events) {
        work_off(late.events[i].stream, late.events[i].n);
    }
    return CUDA_SUCCESS_;
}

static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags)
{
    size_t i = event_find(event), which = queue_of(stream);

    if (fails() || flags) {
        return ERROR_INVALID_VALUE_;
    }
    close_entry(&late.queues[which]);
    if (i < late.n_events) {
        push(&late.queues[which],
             (struct entry){.stream = late.events[i].stream, .n = late.events[i].n});
    }
    go_on(which);
    return CUDA_SUCCESS_;
}

static CUresult memcpy_htod_async(CUdeviceptr dst, const void *src, size_t n_bytes, CUstream stream)
{
    CUresult r =
        fails() ? ERROR_INVALID_VALUE_ : late.real->memcpy_htod_async(dst, src, n_bytes, stream);

    go_on(queue_of(stream));
    return r;
}

static CUresult memcpy_dtoh_async(void *dst, CUdeviceptr src, size_t n_bytes, CUstream stream)
{
    CUresult r = late.real->memcpy_dtoh_async(dst, src, n_bytes, stream);

    go_on(queue_of(stream));
    return r;
}

static CUresult launch_kernel_ex(const struct cuda_launch_config *c, CUfunction f, void **params,
                                 void **extra)
{
    CUresult r = fails() ? ERROR_INVALID_VALUE_ : late.real->launch_kernel_ex(c, f, params, extra);

    go_on(queue_of(c->stream));
    return r;
}

/* The driver waits for the card before it frees. */
static CUresult mem_free(CUdeviceptr p)
{
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        if (late.queues[i].stream) {
            close_entry(&late.queues[i]);
            work_off(i, late.queues[i].n);
        }
    }
    return late.real->mem_free(p);
}

static CUresult mem_alloc(CUdeviceptr *out, size_t n_bytes)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_ : late.real->mem_alloc(out, n_bytes);
}

static CUresult mem_host_alloc(void **out, size_t n_bytes, unsigned flags)
{
    return memory_ends() ? CUDA_ERROR_OUT_OF_MEMORY_
                         : late.real->mem_host_alloc(out, n_bytes, flags);
}

const struct cuda_driver *late_driver(enum late_policy policy, uint64_t seed)
{
    static struct cuda_driver drv;

    if (late.now) {
        late.real->stream_destroy(late.now);
        late.now = NULL;
    }
    late.real = cuda_emulator_driver();
    late.policy = policy;
    late.dice = seed;
    late.n_events = 0;
    late_fail(0);
    late_fail_memory(0);
    drv = *late.real;
    drv.mem_alloc = mem_alloc;
    drv.mem_host_alloc = mem_host_alloc;
    if (policy == LATE_NOBODY) {
        return &drv;
    }
    if (late.real->stream_create(&late.now, 0) != CUDA_SUCCESS_) {
        abort();
    }
    drv.mem_free = mem_free;
    drv.stream_create = stream_create;
    drv.stream_synchronize = stream_synchronize;
    drv.stream_destroy = stream_destroy;
    drv.stream_wait_event = stream_wait_event;
    drv.event_create = event_create;
    drv.event_destroy = event_destroy;
    drv.event_record = event_record;
    drv.event_synchronize = event_synchronize;
    drv.memcpy_htod_async = memcpy_htod_async;
    drv.memcpy_dtoh_async = memcpy_dtoh_async;
    drv.launch_kernel_ex = launch_kernel_ex;
    return &drv;
}

size_t late_fail(size_t which)
{
    size_t n = late.n_calls;

    late.until_failure = which;
    late.n_calls = 0;
    return n;
}

size_t late_fail_memory(size_t which)
{
    size_t n = late.n_allocations;

    late.until_no_memory = which;
    late.n_allocations = 0;
    return n;
}
