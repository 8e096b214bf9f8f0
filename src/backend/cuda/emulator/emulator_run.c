/* emulator_run.c - see emulator_run.h.
 *
 * Turns:  a thread runs until it must wait, then hands its turn to the next thread that can run: of its
 *         own warp first, then of the other warps. Within a warp, threads are counted by their place in
 *         the order of turns (struct warp's masks), not by their lane.
 * Warps:  a warp function is a meeting: each lane puts its part into a slot, the last to come does the
 *         work for all and lets the others go. Slots are used in turn, two sets, so that a fast lane's
 *         next meeting does not overwrite what a slow one has yet to read. */
#include "backend/cuda/emulator/emulator_run.h"

#include <assert.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/emulator/emulator_fiber.h"
#include "backend/cuda/emulator/emulator_races.h"
#include "base/half.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum {
    WARPS_MAX = EMULATOR_THREADS_MAX / EMULATOR_WARP,
    COPIES_MAX = 256, /* of one thread, in flight */
    SHARED_ALIGN = 1024,
    RED_ZONE_BYTES = 256,
    RED_ZONE = 0xa5,
    POISON = 0xff, /* NaN in every float type, -1 in integers */
    SWITCH_WARP_ONE_IN = 4,
};

struct copy {
    void *to;
    unsigned group;
    unsigned char data[16];
};

enum wait_kind { WAIT_NONE, WAIT_WARP, WAIT_BLOCK, WAIT_DONE };

struct thread {
    struct fiber fiber;
    struct emulator_index index;
    unsigned number, warp, place; /* place: among its warp's turns */
    enum wait_kind waits;
    struct copy *copies;
    unsigned n_copies, group; /* group: which the next copy joins */
};

struct slot {
    uint32_t in[6]; /* a value, or a[4] and b[2] */
    union {
        float f[4];
        int32_t i[4];
        uint32_t u[4];
    } out; /* d before and after */
    const unsigned char *row;
};

struct warp {
    uint32_t exists, can_run, at_meeting, done; /* by place */
    enum emulator_meeting meeting;
    unsigned set;
    uint16_t n_syncs;
    unsigned lane_at[EMULATOR_WARP]; /* which lane has the place */
    struct slot slots[2][EMULATOR_WARP];
};

static struct {
    const struct emulator_launch *launch;
    struct emulator_kernel *kernels;
    struct fiber outside;
    struct thread *threads; /* [EMULATOR_THREADS_MAX], kept from launch to launch */
    unsigned n_threads_made;
    struct thread *now;
    struct warp warps[WARPS_MAX];
    unsigned warp_at[WARPS_MAX]; /* order of the warps' turns */
    unsigned n_threads, n_warps, n_done, n_at_barrier;
    uint64_t seed;
    bool has_failed;
    bool has_waited;   /* a thread of this block has passed depend_wait() */
    bool has_let_go;   /* or depend_launch() */
    bool waited_first; /* in each block so far */
    char *text;
    size_t text_bytes;
} run;

struct emulator_index threadIdx, blockIdx, blockDim, gridDim;
void *emulator_dynamic_shared;

/* Where the kernels' SHARED variables are put, all of them together. */
extern char __start_emulator_shared[] __attribute__((weak));
extern char __stop_emulator_shared[] __attribute__((weak));

static const char *const meeting_names[EMULATOR_MEETINGS] = {
    "warp_sync", "shuffle", "warp_ballot", "mma_bf16",
    "mma_f16",   "mma_s8",  "load_matrix", "load_matrix_trans"};

void emulator_register(struct emulator_kernel *kernel)
{
    kernel->next = run.kernels;
    run.kernels = kernel;
}

const struct emulator_kernel *emulator_kernel_find(const char *name)
{
    for (const struct emulator_kernel *k = run.kernels; k; k = k->next) {
        if (!strcmp(k->name, name)) {
            return k;
        }
    }
    return NULL;
}

static uint64_t next_random(void)
{
    run.seed ^= run.seed << 13;
    run.seed ^= run.seed >> 7;
    run.seed ^= run.seed << 17;
    return run.seed >> 16;
}

/* order[i] = which one has turn i. */
static void make_order(unsigned *order, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned j = i;

        if (run.launch->order == EMULATOR_ORDER_SHUFFLED) {
            j = (unsigned)(next_random() % (i + 1));
        }
        order[i] = order[j];
        order[j] = run.launch->order == EMULATOR_ORDER_REVERSE ? n - 1 - i : i;
    }
}

/* ---- faults ---- */

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    size_t used = strlen(run.text);
    va_list args;

    va_start(args, format);
    vsnprintf(run.text + used, run.text_bytes - used, format, args);
    va_end(args);
}

static void fault_place(void)
{
    run.has_failed = true;
    run.text[0] = '\0';
    say("kernel %s, block %u,%u,%u of %u,%u,%u", run.launch->kernel->name, blockIdx.x, blockIdx.y,
        blockIdx.z, gridDim.x, gridDim.y, gridDim.z);
}

void emulator_fail(const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fault_place();
    if (run.now->index.y || run.now->index.z) {
        say(", thread %u,%u,%u: %s", run.now->index.x, run.now->index.y, run.now->index.z, text);
    } else {
        say(", thread %u: %s", run.now->index.x, text);
    }
    fiber_leave(&run.now->fiber, &run.outside);
    abort();
}

static uint32_t lanes_that(unsigned warp, enum wait_kind kind)
{
    uint32_t lanes = 0;

    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        unsigned t = warp * EMULATOR_WARP + lane;

        lanes |= t < run.n_threads && run.threads[t].waits == kind ? 1u << lane : 0;
    }
    return lanes;
}

/* All wait, for different things: who waits where. */
static void deadlock(void)
{
    fault_place();
    say(": nobody can go on.");
    for (unsigned i = 0; i < run.n_warps; i++) {
        const struct warp *w = &run.warps[i];
        uint32_t at_block = lanes_that(i, WAIT_BLOCK), at_warp = lanes_that(i, WAIT_WARP);
        uint32_t done = lanes_that(i, WAIT_DONE);

        say(" Warp %u:", i);
        if (at_block) {
            say(" lanes %08x wait at block_sync;", at_block);
        }
        if (at_warp) {
            say(" lanes %08x wait at %s;", at_warp, meeting_names[w->meeting]);
        }
        if (done) {
            say(" lanes %08x have returned;", done);
        }
    }
    fiber_leave(&run.now->fiber, &run.outside);
}

/* ---- turns ---- */

static struct thread *thread_at(unsigned warp, unsigned place)
{
    return &run.threads[warp * EMULATOR_WARP + run.warps[warp].lane_at[place]];
}

/* The next of the warp after this place, all around. */
static struct thread *next_of_warp(unsigned warp, unsigned place)
{
    uint32_t can = run.warps[warp].can_run, later = can & ~((2u << place) - 1u);

    if (!can) {
        return NULL;
    }
    return thread_at(warp, (unsigned)__builtin_ctz(later ? later : can));
}

static struct thread *next_of_others(unsigned warp)
{
    unsigned at = 0;

    while (run.warp_at[at] != warp) {
        at++;
    }
    for (unsigned i = 1; i <= run.n_warps; i++) {
        struct thread *t = next_of_warp(run.warp_at[(at + i) % run.n_warps], EMULATOR_WARP - 1);

        if (t) {
            return t;
        }
    }
    return NULL;
}

static struct thread *next_thread(void)
{
    struct thread *t = NULL;

    if (run.launch->order == EMULATOR_ORDER_SHUFFLED && next_random() % SWITCH_WARP_ONE_IN == 0) {
        t = next_of_others(run.now->warp);
    }
    t = t ? t : next_of_warp(run.now->warp, run.now->place);
    return t ? t : next_of_others(run.now->warp);
}

static void take_turn(struct thread *t)
{
    run.now = t;
    threadIdx = t->index;
}

/* The running thread can not go on; returns when it can. */
static void hand_over(void)
{
    struct thread *self = run.now, *next = next_thread();

    if (!next) {
        deadlock();
    }
    if (next != self) {
        take_turn(next);
        fiber_switch(&self->fiber, &next->fiber);
        take_turn(self);
    }
}

/* ---- barriers ---- */

static void open_barrier(void)
{
    run.n_at_barrier = 0;
    races_barrier();
    for (unsigned i = 0; i < run.n_warps; i++) {
        struct warp *w = &run.warps[i];

        for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
            struct thread *t = &run.threads[i * EMULATOR_WARP + lane];

            if (i * EMULATOR_WARP + lane < run.n_threads && t->waits == WAIT_BLOCK) {
                t->waits = WAIT_NONE;
                w->can_run |= 1u << t->place;
            }
        }
    }
}

void emulator_block_sync(void)
{
    struct thread *self = run.now;

    self->waits = WAIT_BLOCK;
    run.warps[self->warp].can_run &= ~(1u << self->place);
    run.n_at_barrier++;
    if (run.n_at_barrier + run.n_done == run.n_threads) {
        open_barrier(); /* threads that have returned count as arrived, as on a card */
    }
    hand_over();
}

static void meet_work(struct warp *w);

/* Waits for the warp's other lanes; the last to come does the work. The caller has filled its slot. */
static void meet(enum emulator_meeting kind)
{
    struct thread *self = run.now;
    struct warp *w = &run.warps[self->warp];

    if (w->at_meeting && w->meeting != kind) {
        emulator_fail("%s, but others of the warp wait at %s", meeting_names[kind],
                      meeting_names[w->meeting]);
    }
    if (w->done || w->exists != 0xffffffffu) {
        emulator_fail("%s, but some lanes of the warp %s", meeting_names[kind],
                      w->done ? "have returned" : "do not exist");
    }
    w->meeting = kind;
    w->at_meeting |= 1u << self->place;
    if (w->at_meeting == w->exists) {
        meet_work(w);
        w->set ^= 1;
        w->at_meeting = 0;
        w->can_run = w->exists;
        for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
            run.threads[self->warp * EMULATOR_WARP + lane].waits = WAIT_NONE;
        }
        return;
    }
    self->waits = WAIT_WARP;
    w->can_run &= ~(1u << self->place);
    hand_over();
}

struct race_thread emulator_running(void)
{
    const struct thread *t = run.now;

    return (struct race_thread){(uint16_t)t->number, (uint16_t)t->warp, run.warps[t->warp].n_syncs};
}

/* What the compiler does for kernels' own accesses, where they are watched. */
static void touch(const void *p, bool is_write, const void *where)
{
#if defined(SPILLWAY_EMULATOR_RACES)
    races_access(p, 16, is_write, where);
#else
    (void)p;
    (void)is_write;
    (void)where;
#endif
}

static struct slot *own_slot(void)
{
    struct warp *w = &run.warps[run.now->warp];

    return &w->slots[w->set][run.now->number % EMULATOR_WARP];
}

int emulator_lane(void)
{
    return (int)(run.now->number % EMULATOR_WARP);
}

void emulator_warp_sync(void)
{
    meet(EMULATOR_WARP_SYNC);
}

void emulator_exchange(void *out, const void *value, size_t n_bytes, int source)
{
    struct slot *slot = own_slot(), *all = slot - emulator_lane();

    assert(n_bytes <= sizeof slot->in && source >= 0 && source < EMULATOR_WARP);
    memcpy(slot->in, value, n_bytes);
    meet(EMULATOR_EXCHANGE);
    memcpy(out, all[source].in, n_bytes);
}

uint32_t emulator_ballot(bool p)
{
    struct slot *slot = own_slot();

    slot->in[0] = p;
    meet(EMULATOR_BALLOT);
    return slot->out.u[0];
}

/* ---- matrices ---- */

/* Element `col` of fragment register pairs: which register and half of lane (row, col) holds it. */
static float half_of(uint32_t word, unsigned high, bool is_bf16)
{
    uint16_t h = (uint16_t)(high ? word >> 16 : word);

    return is_bf16 ? bf16_to_f32(h) : f16_to_f32(h);
}

/* d += a b of 16x8x16; sums in the order of k. */
static void mma_half(struct slot slots[EMULATOR_WARP], bool is_bf16)
{
    float a[16][16], b[16][8];

    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        unsigned g = lane / 4, t = lane % 4;

        for (unsigned i = 0; i < 8; i++) { /* registers 0..3, two halves each */
            unsigned reg = i / 2, high = i % 2;

            a[g + reg % 2 * 8][2 * t + reg / 2 * 8 + high] =
                half_of(slots[lane].in[reg], high, is_bf16);
        }
        for (unsigned i = 0; i < 4; i++) {
            b[2 * t + i / 2 * 8 + i % 2][g] = half_of(slots[lane].in[4 + i / 2], i % 2, is_bf16);
        }
    }
    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        unsigned g = lane / 4, t = lane % 4;

        for (unsigned i = 0; i < 4; i++) {
            const float *row = a[g + i / 2 * 8];
            float sum = 0;

            for (unsigned k = 0; k < 16; k++) {
                sum += row[k] * b[k][2 * t + i % 2];
            }
            slots[lane].out.f[i] += sum;
        }
    }
}

/* The same with int8, 16x8x32. */
static void mma_bytes(struct slot slots[EMULATOR_WARP])
{
    int8_t a[16][32], b[32][8];

    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        unsigned g = lane / 4, t = lane % 4;

        for (unsigned i = 0; i < 4; i++) {
            for (unsigned reg = 0; reg < 4; reg++) {
                a[g + reg % 2 * 8][4 * t + reg / 2 * 16 + i] =
                    (int8_t)(slots[lane].in[reg] >> 8 * i);
            }
            for (unsigned reg = 0; reg < 2; reg++) {
                b[4 * t + reg * 16 + i][g] = (int8_t)(slots[lane].in[4 + reg] >> 8 * i);
            }
        }
    }
    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        unsigned g = lane / 4, t = lane % 4;

        for (unsigned i = 0; i < 4; i++) {
            uint32_t sum = slots[lane].out.u[i];

            for (unsigned k = 0; k < 32; k++) {
                sum += (uint32_t)(a[g + i / 2 * 8][k] * b[k][2 * t + i % 2]);
            }
            slots[lane].out.u[i] = sum;
        }
    }
}

static void load_matrices(struct slot slots[EMULATOR_WARP], bool is_transposed)
{
    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        unsigned g = lane / 4, t = lane % 4;

        for (unsigned m = 0; m < 4; m++) {
            uint16_t pair[2];

            for (unsigned i = 0; i < 2; i++) {
                unsigned row = is_transposed ? 2 * t + i : g, col = is_transposed ? g : 2 * t + i;

                memcpy(&pair[i], slots[8 * m + row].row + 2 * col, 2);
            }
            slots[lane].out.u[m] = (uint32_t)pair[0] | (uint32_t)pair[1] << 16;
        }
    }
}

static void ballot(struct slot slots[EMULATOR_WARP])
{
    uint32_t mask = 0;

    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        mask |= slots[lane].in[0] << lane;
    }
    for (unsigned lane = 0; lane < EMULATOR_WARP; lane++) {
        slots[lane].out.u[0] = mask;
    }
}

static void meet_work(struct warp *w)
{
    struct slot *slots = w->slots[w->set];

    switch (w->meeting) {
    case EMULATOR_WARP_SYNC:
        w->n_syncs++;
        break;
    case EMULATOR_BALLOT:
        ballot(slots);
        break;
    case EMULATOR_MMA_BF16:
    case EMULATOR_MMA_F16:
        mma_half(slots, w->meeting == EMULATOR_MMA_BF16);
        break;
    case EMULATOR_MMA_S8:
        mma_bytes(slots);
        break;
    case EMULATOR_LOAD_MATRIX:
    case EMULATOR_LOAD_MATRIX_TRANS:
        load_matrices(slots, w->meeting == EMULATOR_LOAD_MATRIX_TRANS);
        break;
    default: /* exchanged values are read by those who want them */
        break;
    }
}

void emulator_mma(enum emulator_meeting kind, void *d, const uint32_t a[4], const uint32_t b[2])
{
    struct slot *slot = own_slot();

    if (kind != EMULATOR_MMA_F16 && run.launch->sm < 80) {
        emulator_fail("%s on a card of compute capability %d.%d", meeting_names[kind],
                      run.launch->sm / 10, run.launch->sm % 10);
    }
    memcpy(slot->in, a, 16);
    memcpy(slot->in + 4, b, 8);
    memcpy(&slot->out, d, 16);
    meet(kind);
    memcpy(d, &slot->out, 16);
}

static void need_aligned(const void *p, const char *what)
{
    if ((uintptr_t)p % 16) {
        emulator_fail("%s %p is not aligned to 16 bytes", what, p);
    }
}

void emulator_load_matrix(enum emulator_meeting kind, uint32_t r[4], const void *row)
{
    struct slot *slot = own_slot();

    need_aligned(row, "load_matrix's row");
    touch(row, false, __builtin_return_address(0));
    slot->row = row;
    meet(kind);
    memcpy(r, &slot->out, 16);
}

/* ---- copies ---- */

/* The target holds NaN from the call until the wait: on a card it may change at any time between. */
void emulator_copy16_async(void *shared, const void *global, bool is_valid)
{
    struct thread *self = run.now;
    struct copy *c;

    need_aligned(shared, "copy16_async's target");
    if (is_valid) {
        need_aligned(global, "copy16_async's source");
        touch(global, false, __builtin_return_address(0));
    }
    touch(shared, true, __builtin_return_address(0));
    if (run.launch->sm < 80) {
        memcpy(shared, is_valid ? global : (const char[16]){0}, 16);
        return;
    }
    if (self->n_copies == COPIES_MAX) {
        emulator_fail("more than %d copies in flight", COPIES_MAX);
    }
    c = &self->copies[self->n_copies++];
    c->to = shared;
    c->group = self->group;
    memcpy(c->data, is_valid ? global : (const char[16]){0}, 16);
    memset(shared, POISON, 16);
}

void emulator_copy_commit(void)
{
    run.now->group++;
}

void emulator_copy_wait(unsigned n_groups)
{
    struct thread *self = run.now;
    unsigned kept = 0;

    for (unsigned i = 0; i < self->n_copies; i++) {
        struct copy *c = &self->copies[i];

        if (c->group < self->group && self->group - c->group > n_groups) {
            touch(c->to, true, __builtin_return_address(0));
            memcpy(c->to, c->data, 16);
        } else {
            self->copies[kept++] = *c;
        }
    }
    self->n_copies = kept;
}

/* ---- atomics: one thread at a time runs anyway ---- */

int32_t emulator_atomic_add(int32_t *p, int32_t v)
{
    int32_t old = *p;

    *p = (int32_t)((uint32_t)old + (uint32_t)v);
    return old;
}

bool emulator_atomic_is_last(int32_t *ticket, int32_t n)
{
    bool is_last = *ticket == n - 1;

    *ticket = is_last ? 0 : *ticket + 1;
    return is_last;
}

int32_t emulator_atomic_min(int32_t *p, int32_t v)
{
    int32_t old = *p;

    *p = v < old ? v : old;
    return old;
}

uint32_t emulator_atomic_exchange(uint32_t *p, uint32_t v)
{
    uint32_t old = *p;

    *p = v;
    return old;
}

uint32_t emulator_atomic_max_u32(uint32_t *p, uint32_t v)
{
    uint32_t old = *p;

    *p = v > old ? v : old;
    return old;
}

/* ---- what a thread of the host sees ---- */

void emulator_system_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

uint32_t emulator_system_load(const uint32_t *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

void emulator_system_store(uint32_t *p, uint32_t v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}

/* In one piece, and the first word in the lower bytes. */
void emulator_system_store2(uint32_t *p, uint32_t first, uint32_t second)
{
    if ((uintptr_t)p % 8) {
        emulator_fail("two words at once to %p, which is not at a border of 8 bytes", (void *)p);
    }
    __atomic_store_n((uint64_t *)(void *)p, (uint64_t)second << 32 | first, __ATOMIC_RELEASE);
}

uint64_t emulator_system_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void emulator_system_pause(void)
{
    sched_yield();
}

/* ---- blocks ---- */

static void thread_main(void)
{
    struct thread *self = run.now, *next;
    struct warp *w = &run.warps[self->warp];

    run.launch->kernel->call(run.launch->args);
    if (w->at_meeting) {
        emulator_fail("returns while others of the warp wait at %s", meeting_names[w->meeting]);
    }
    self->waits = WAIT_DONE;
    w->can_run &= ~(1u << self->place);
    w->done |= 1u << self->place;
    run.n_done++;
    if (run.n_done == run.n_threads) {
        fiber_leave(&self->fiber, &run.outside);
    }
    if (run.n_at_barrier && run.n_at_barrier + run.n_done == run.n_threads) {
        open_barrier();
    }
    next = next_thread();
    if (!next) {
        deadlock();
    }
    take_turn(next);
    fiber_leave(&self->fiber, &next->fiber);
}

static bool make_threads(unsigned n)
{
    if (!run.threads) {
        run.threads = calloc(EMULATOR_THREADS_MAX, sizeof *run.threads);
    }
    while (run.threads && run.n_threads_made < n) {
        struct thread *t = &run.threads[run.n_threads_made];

        t->number = run.n_threads_made;
        t->warp = t->number / EMULATOR_WARP;
        t->copies = t->copies ? t->copies : malloc(COPIES_MAX * sizeof *t->copies);
        if (!t->copies || !fiber_init(&t->fiber, t->number)) {
            return false;
        }
        run.n_threads_made++;
    }
    return run.threads != NULL;
}

static void block_begin(void)
{
    run.n_done = run.n_at_barrier = 0;
    run.has_waited = run.has_let_go = false;
    make_order(run.warp_at, run.n_warps);
    for (unsigned i = 0; i < run.n_warps; i++) {
        struct warp *w = &run.warps[i];
        unsigned n = run.n_threads - i * EMULATOR_WARP;

        n = n < EMULATOR_WARP ? n : EMULATOR_WARP;
        w->exists = w->can_run = n == EMULATOR_WARP ? 0xffffffffu : (1u << n) - 1;
        w->at_meeting = w->done = 0;
        w->set = 0;
        make_order(w->lane_at, n);
        for (unsigned place = 0; place < n; place++) {
            struct thread *t = thread_at(i, place);

            t->place = place;
            t->waits = WAIT_NONE;
            t->n_copies = t->group = 0;
            t->index.x = t->number % blockDim.x;
            t->index.y = t->number / blockDim.x % blockDim.y;
            t->index.z = t->number / (blockDim.x * blockDim.y);
            fiber_start(&t->fiber, thread_main);
        }
    }
    if (__start_emulator_shared) {
        memset(__start_emulator_shared, POISON,
               (size_t)(__stop_emulator_shared - __start_emulator_shared));
    }
}

static void check_red_zone(const unsigned char *shared, size_t n_bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(shared + n_bytes, RED_ZONE_BYTES);
    for (size_t i = 0; i < RED_ZONE_BYTES && !run.has_failed; i++) {
        if (shared[n_bytes + i] != RED_ZONE) {
            fault_place();
            say(": wrote past its %zu bytes of dynamic shared memory, at +%zu", n_bytes, i);
        }
    }
}

static void run_block(unsigned char *shared, size_t n_bytes)
{
    memset(shared, POISON, n_bytes);
    memset(shared + n_bytes, RED_ZONE, RED_ZONE_BYTES);
    ASAN_POISON_MEMORY_REGION(shared + n_bytes, RED_ZONE_BYTES);
    emulator_dynamic_shared = shared;
    block_begin();
    if (!races_block(shared, n_bytes)) {
        fault_place();
        say(": no memory to watch its shared memory");
        return;
    }
    take_turn(thread_at(run.warp_at[0], 0));
    fiber_switch(&run.outside, &run.now->fiber);
    check_red_zone(shared, n_bytes);
    if (!run.has_failed && !run.has_waited) {
        fault_place();
        say(": a block returned without depend_wait(); the next kernel could overtake the one "
            "before");
    }
}

void emulator_depend_launch(void)
{
    run.waited_first = run.waited_first && (run.has_let_go || run.has_waited);
    run.has_let_go = true;
}

bool emulator_waited_first(void)
{
    return run.waited_first;
}

void emulator_depend_wait(void)
{
    run.has_waited = true;
}

bool emulator_has_waited(void)
{
    return run.has_waited;
}

static size_t block_number(size_t turn, size_t n)
{
    switch (run.launch->order) {
    case EMULATOR_ORDER_REVERSE:
        return n - 1 - turn;
    case EMULATOR_ORDER_SHUFFLED: /* from both ends, towards the middle */
        return turn % 2 ? n - 1 - turn / 2 : turn / 2;
    default:
        return turn;
    }
}

bool emulator_run(const struct emulator_launch *launch, char *text, size_t text_bytes)
{
    size_t n_blocks = (size_t)launch->grid.x * launch->grid.y * launch->grid.z;
    size_t n_bytes = (launch->shared_bytes + 15) & ~(size_t)15;
    unsigned char *shared;

    run.launch = launch;
    run.text = text;
    run.text_bytes = text_bytes;
    run.has_failed = false;
    run.waited_first = true;
    run.seed = launch->seed | 1;
    run.n_threads = launch->block.x * launch->block.y * launch->block.z;
    run.n_warps = (run.n_threads + EMULATOR_WARP - 1) / EMULATOR_WARP;
    gridDim = launch->grid;
    blockDim = launch->block;
    text[0] = '\0';
    if (!make_threads(run.n_threads) ||
        posix_memalign((void **)&shared, SHARED_ALIGN, n_bytes + RED_ZONE_BYTES)) {
        snprintf(text, text_bytes, "no memory for %u threads", run.n_threads);
        return false;
    }
    for (size_t turn = 0; turn < n_blocks && !run.has_failed; turn++) {
        size_t b = block_number(turn, n_blocks);

        blockIdx.x = (unsigned)(b % launch->grid.x);
        blockIdx.y = (unsigned)(b / launch->grid.x % launch->grid.y);
        blockIdx.z = (unsigned)(b / launch->grid.x / launch->grid.y);
        run_block(shared, n_bytes);
    }
    free(shared);
    return !run.has_failed;
}
