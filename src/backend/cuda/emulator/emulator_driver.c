/* emulator_driver.c - the driver's functions over host memory and emulator_run.
 *
 * Place:  backend/cuda/emulator. Work is done when it is asked for, so streams are always idle; a stream
 *         that captures keeps a list of the work instead, and a graph is such a list.
 * Checks: what the real driver refuses (unknown functions, blocks that are too large, more shared
 *         memory than was asked for) and what it would only notice by luck: copies that leave their
 *         allocation, writes just past one. */
#include "backend/cuda/emulator/emulator.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/emulator/emulator_memory.h"
#include "backend/cuda/emulator/emulator_run.h"

enum {
    ERROR_INVALID_VALUE = 1,
    ERROR_INVALID_DEVICE = 101,
    ERROR_INVALID_HANDLE = 400,
    ERROR_LAUNCH_FAILED = 719,
    ERROR_ALREADY_PINNED = 712,
    ERROR_NOT_PINNED = 713,
    ERROR_NOT_SUPPORTED = 801,
    ERROR_CAPTURE_UNSUPPORTED = 900,
    ERROR_CAPTURE_UNJOINED = 904,
    ERROR_CAPTURE_ISOLATION = 905,
};

enum {
    DRIVER_VERSION = 12080,
    MULTIPROCESSORS = 8,
    SHARED_DEFAULT = 48 << 10,
    GRID_YZ_MAX = 65535,
    HOST_ALIGN = 256,
    POISON = 0xff,             /* NaN in every float type */
    PINNED_MAX = 64,           /* registered pieces of host memory */
    BRANCHES_MAX = 4,          /* streams of a capture beside the first */
    HOST_POISON_MAX = 1 << 20, /* of pinned memory; staging buffers are large and mostly unused */
};
#define MEMORY_BYTES ((size_t)16 << 30)

struct CUfunc_st {
    const struct emulator_kernel *kernel;
    size_t shared_bytes_max; /* dynamic */
    struct CUfunc_st *next;
};

enum work_kind { WORK_LAUNCH, WORK_COPY, WORK_SET };

struct work {
    struct work *next;
    enum work_kind kind;
    struct emulator_launch launch; /* args: behind this struct */
    void *dst;
    const void *src;
    size_t n_bytes;
    unsigned char value;
};

struct CUgraph_st {
    struct work *first, **end;
    CUstream branch[BRANCHES_MAX]; /* other streams that a capture reached through events */
    size_t n_branches;
};

struct CUgraphExec_st {
    struct work *first;
};

struct CUstream_st {
    struct CUgraph_st *capture; /* or NULL */
    /* Of a branch: its work, and how much of that the stream which captures has waited for. */
    size_t n_work, n_joined;
};

struct CUevent_st {
    struct timespec at;
    struct CUgraph_st *capture; /* recorded in it, or NULL */
    CUstream stream;
    size_t n_work;
};

static struct {
    int sm;
    enum emulator_order order;
    struct CUfunc_st *functions;
    struct pinned {
        uintptr_t at;
        size_t n_bytes; /* 0: a free place */
    } pinned[PINNED_MAX];
    char failure[2048];
} card = {.sm = 90};

/* ---- device ---- */

static CUresult init(unsigned flags)
{
    return flags ? ERROR_INVALID_VALUE : CUDA_SUCCESS_;
}

static CUresult driver_get_version(int *version)
{
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS_;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS_, "CUDA_SUCCESS", "no error"},
    {ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY_, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND_, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", card.failure},
    {ERROR_ALREADY_PINNED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {ERROR_NOT_PINNED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {ERROR_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {ERROR_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {ERROR_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
};

static CUresult get_error_name(CUresult error, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == error) {
            *text = errors[i].name;
            return CUDA_SUCCESS_;
        }
    }
    *text = NULL;
    return ERROR_INVALID_VALUE;
}

static CUresult get_error_string(CUresult error, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == error) {
            *text = errors[i].text;
            return CUDA_SUCCESS_;
        }
    }
    *text = NULL;
    return ERROR_INVALID_VALUE;
}

static CUresult device_get_count(int *count)
{
    *count = 1;
    return CUDA_SUCCESS_;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS_ : ERROR_INVALID_DEVICE;
}

static CUresult device_get_name(char *name, int n, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)n, "emulated card %d.%d", card.sm / 10, card.sm % 10);
    return CUDA_SUCCESS_;
}

/* Of one block, when asked for. */
static size_t shared_optin(void)
{
    switch (card.sm) {
    case 75:
        return 64 << 10;
    case 80:
        return 163 << 10;
    case 90:
    case 100:
        return 227 << 10;
    default:
        return 99 << 10;
    }
}

static CUresult device_get_attribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    switch (attribute) {
    case 1: /* threads of a block */
        *value = EMULATOR_THREADS_MAX;
        break;
    case 5: /* grid x, y, z */
        *value = INT32_MAX;
        break;
    case 6:
    case 7:
        *value = GRID_YZ_MAX;
        break;
    case 8: /* shared bytes of a block without asking */
        *value = SHARED_DEFAULT;
        break;
    case 10: /* lanes of a warp */
        *value = EMULATOR_WARP;
        break;
    case 13: /* kHz */
        *value = 1000000;
        break;
    case CUDA_ATTRIBUTE_MULTIPROCESSORS:
        *value = MULTIPROCESSORS;
        break;
    case 36: /* memory clock, kHz */
        *value = 1000000;
        break;
    case 37: /* memory bus, bits */
        *value = 64;
        break;
    case 38: /* second-level cache */
        *value = 4 << 20;
        break;
    case CUDA_ATTRIBUTE_CAPABILITY_MAJOR:
        *value = card.sm / 10;
        break;
    case CUDA_ATTRIBUTE_CAPABILITY_MINOR:
        *value = card.sm % 10;
        break;
    case CUDA_ATTRIBUTE_REGISTERED_AT_HOST_ADDRESS:
        *value = 1;
        break;
    case CUDA_ATTRIBUTE_SHARED_OPTIN:
        *value = (int)shared_optin();
        break;
    default:
        return ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS_;
}

static CUresult device_primary_ctx_retain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = (CUcontext)(void *)&card;
    return CUDA_SUCCESS_;
}

static CUresult device_primary_ctx_release(CUdevice device)
{
    (void)device;
    return CUDA_SUCCESS_;
}

static CUresult ctx_set_current(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS_;
}

/* ---- memory ---- */

static CUresult mem_get_info(size_t *free_bytes, size_t *total)
{
    *total = MEMORY_BYTES;
    *free_bytes = MEMORY_BYTES - emulator_memory_used();
    return CUDA_SUCCESS_;
}

static CUresult mem_alloc(CUdeviceptr *out, size_t n_bytes)
{
    if (n_bytes == 0) {
        return ERROR_INVALID_VALUE;
    }
    if (n_bytes > MEMORY_BYTES - emulator_memory_used()) {
        return CUDA_ERROR_OUT_OF_MEMORY_;
    }
    *out = (CUdeviceptr)(uintptr_t)emulator_memory_new(n_bytes);
    return *out ? CUDA_SUCCESS_ : CUDA_ERROR_OUT_OF_MEMORY_;
}

static CUresult mem_free(CUdeviceptr p)
{
    return !p || emulator_memory_free((void *)(uintptr_t)p) ? CUDA_SUCCESS_ : ERROR_INVALID_VALUE;
}

static CUresult mem_host_alloc(void **out, size_t n_bytes, unsigned flags)
{
    (void)flags;
    if (posix_memalign(out, HOST_ALIGN, n_bytes ? n_bytes : 1)) {
        return CUDA_ERROR_OUT_OF_MEMORY_;
    }
    memset(*out, POISON, n_bytes < HOST_POISON_MAX ? n_bytes : HOST_POISON_MAX);
    return CUDA_SUCCESS_;
}

static CUresult mem_free_host(void *p)
{
    free(p);
    return CUDA_SUCCESS_;
}

static CUresult mem_host_register(void *p, size_t n_bytes, unsigned flags)
{
    uintptr_t at = (uintptr_t)p;
    size_t free_place = PINNED_MAX;

    if (n_bytes == 0 || flags != (CUDA_HOST_REGISTER_PORTABLE | CUDA_HOST_REGISTER_MAPPED)) {
        return ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < PINNED_MAX; i++) {
        const struct pinned *other = &card.pinned[i];

        if (other->n_bytes == 0) {
            free_place = i;
        } else if (at < other->at + other->n_bytes && other->at < at + n_bytes) {
            return ERROR_ALREADY_PINNED;
        }
    }
    if (free_place == PINNED_MAX) {
        return CUDA_ERROR_OUT_OF_MEMORY_;
    }
    card.pinned[free_place] = (struct pinned){at, n_bytes};
    return CUDA_SUCCESS_;
}

static CUresult mem_host_unregister(void *p)
{
    for (size_t i = 0; i < PINNED_MAX; i++) {
        if (card.pinned[i].n_bytes > 0 && card.pinned[i].at == (uintptr_t)p) {
            card.pinned[i].n_bytes = 0;
            return CUDA_SUCCESS_;
        }
    }
    return ERROR_NOT_PINNED;
}

/* Whether [p, p + n) is in one allocation. */
static bool is_device(CUdeviceptr p, size_t n_bytes)
{
    if (emulator_memory_holds((const void *)(uintptr_t)p, n_bytes)) {
        return true;
    }
    snprintf(card.failure, sizeof card.failure,
             "%zu bytes at %p are not inside one device allocation", n_bytes, (void *)(uintptr_t)p);
    return false;
}

/* ---- work, now or in a graph ---- */

static CUresult launch_now(const struct emulator_launch *recorded)
{
    static const enum emulator_order turns[] = {EMULATOR_ORDER_FORWARD, EMULATOR_ORDER_REVERSE,
                                                EMULATOR_ORDER_SHUFFLED};
    static const char *const names[] = {"", "forward", "reverse", "shuffled"};
    struct emulator_launch launch = *recorded;
    size_t n_before = emulator_memory_launches(), n_bytes;
    const void *broken;
    char text[1536];

    launch.order = card.order == EMULATOR_ORDER_VARIES ? turns[n_before % 3] : card.order;
    launch.seed = 0x9e3779b97f4a7c15u * (n_before + 1);
    launch.sm = card.sm;
    emulator_memory_launch_begin(launch.may_overlap);
    if (!emulator_run(&launch, text, sizeof text)) {
        emulator_memory_idle();
        snprintf(card.failure, sizeof card.failure, "%s (turns in %s order)", text,
                 names[launch.order]);
        fprintf(stderr, "emulator: %s\n", card.failure);
        return ERROR_LAUNCH_FAILED;
    }
    emulator_memory_launch_end(emulator_waited_first());
    broken = emulator_memory_broken(&n_bytes);
    if (broken) {
        snprintf(card.failure, sizeof card.failure,
                 "kernel %s wrote past the end of a device allocation of %zu bytes at %p",
                 launch.kernel->name, n_bytes, broken);
        fprintf(stderr, "emulator: %s\n", card.failure);
        return ERROR_LAUNCH_FAILED;
    }
    return CUDA_SUCCESS_;
}

static CUresult do_now(const struct work *w)
{
    switch (w->kind) {
    case WORK_LAUNCH:
        return launch_now(&w->launch);
    case WORK_COPY:
        emulator_memory_idle();
        memmove(w->dst, w->src, w->n_bytes);
        return CUDA_SUCCESS_;
    default:
        emulator_memory_idle();
        memset(w->dst, w->value, w->n_bytes);
        return CUDA_SUCCESS_;
    }
}

static struct work *work_copy(const struct work *w)
{
    size_t n_args = w->kind == WORK_LAUNCH ? w->launch.kernel->args_bytes : 0;
    struct work *copy = malloc(sizeof *copy + n_args);

    if (copy) {
        *copy = *w;
        copy->next = NULL;
        if (n_args) {
            copy->launch.args = memcpy(copy + 1, w->launch.args, n_args);
        }
    }
    return copy;
}

static void work_free(struct work *w)
{
    while (w) {
        struct work *next = w->next;

        free(w);
        w = next;
    }
}

static CUresult submit(CUstream stream, const struct work *w)
{
    if (stream && stream->capture) {
        struct work *copy = work_copy(w);

        if (!copy) {
            return CUDA_ERROR_OUT_OF_MEMORY_;
        }
        *stream->capture->end = copy;
        stream->capture->end = &copy->next;
        stream->n_work++;
        return CUDA_SUCCESS_;
    }
    return do_now(w);
}

static CUresult memcpy_htod_async(CUdeviceptr dst, const void *src, size_t n_bytes, CUstream stream)
{
    struct work w = {
        .kind = WORK_COPY, .dst = (void *)(uintptr_t)dst, .src = src, .n_bytes = n_bytes};

    return is_device(dst, n_bytes) ? submit(stream, &w) : ERROR_INVALID_VALUE;
}

static CUresult memcpy_dtoh_async(void *dst, CUdeviceptr src, size_t n_bytes, CUstream stream)
{
    struct work w = {
        .kind = WORK_COPY, .dst = dst, .src = (void *)(uintptr_t)src, .n_bytes = n_bytes};

    return is_device(src, n_bytes) ? submit(stream, &w) : ERROR_INVALID_VALUE;
}

static CUresult memcpy_dtod_async(CUdeviceptr dst, CUdeviceptr src, size_t n_bytes, CUstream stream)
{
    return is_device(src, n_bytes) ? memcpy_htod_async(dst, (void *)(uintptr_t)src, n_bytes, stream)
                                   : ERROR_INVALID_VALUE;
}

static CUresult memset_d8_async(CUdeviceptr dst, unsigned char value, size_t n_bytes,
                                CUstream stream)
{
    struct work w = {
        .kind = WORK_SET, .dst = (void *)(uintptr_t)dst, .value = value, .n_bytes = n_bytes};

    return is_device(dst, n_bytes) ? submit(stream, &w) : ERROR_INVALID_VALUE;
}

/* ---- streams, graphs, events ---- */

static CUresult stream_create(CUstream *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_SUCCESS_ : CUDA_ERROR_OUT_OF_MEMORY_;
}

static CUresult graph_destroy(CUgraph graph)
{
    if (graph) {
        work_free(graph->first);
        free(graph);
    }
    return CUDA_SUCCESS_;
}

static bool is_branch(CUstream stream)
{
    for (size_t i = 0; i < stream->capture->n_branches; i++) {
        if (stream->capture->branch[i] == stream) {
            return true;
        }
    }
    return false;
}

static CUresult stream_destroy(CUstream stream)
{
    if (stream) {
        if (stream->capture && !is_branch(stream)) {
            graph_destroy(stream->capture);
        }
        free(stream);
    }
    return CUDA_SUCCESS_;
}

static CUresult stream_synchronize(CUstream stream)
{
    if (stream && stream->capture) {
        return ERROR_CAPTURE_UNSUPPORTED;
    }
    emulator_memory_idle();
    return CUDA_SUCCESS_;
}

/* Whatever the event stands for has been done; or, in a capture, is before in its list: what is asked for in
 * turn is in an order that the branches allow. */
static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags)
{
    if (!event || flags != 0) {
        return ERROR_INVALID_VALUE;
    }
    if (!stream || (!stream->capture && !event->capture)) {
        return CUDA_SUCCESS_;
    }
    if (!event->capture || (stream->capture && stream->capture != event->capture)) {
        return ERROR_CAPTURE_ISOLATION;
    }
    if (!stream->capture) {
        struct CUgraph_st *g = event->capture;

        if (g->n_branches == BRANCHES_MAX) {
            return CUDA_ERROR_OUT_OF_MEMORY_;
        }
        g->branch[g->n_branches++] = stream;
        stream->capture = g;
        stream->n_work = stream->n_joined = 0;
    }
    event->stream->n_joined = event->n_work;
    return CUDA_SUCCESS_;
}

static CUresult stream_begin_capture(CUstream stream, int mode)
{
    (void)mode;
    if (!stream || stream->capture) {
        return ERROR_INVALID_VALUE;
    }
    stream->capture = calloc(1, sizeof *stream->capture);
    if (!stream->capture) {
        return CUDA_ERROR_OUT_OF_MEMORY_;
    }
    stream->capture->end = &stream->capture->first;
    return CUDA_SUCCESS_;
}

/* Branches leave the capture; false: one has work that the others did not wait for. */
static bool branches_end(struct CUgraph_st *g)
{
    bool are_joined = true;

    for (size_t i = 0; i < g->n_branches; i++) {
        are_joined = are_joined && g->branch[i]->n_joined == g->branch[i]->n_work;
        g->branch[i]->capture = NULL;
    }
    g->n_branches = 0;
    return are_joined;
}

static CUresult stream_end_capture(CUstream stream, CUgraph *out)
{
    *out = stream ? stream->capture : NULL;
    if (!*out) {
        return ERROR_INVALID_VALUE;
    }
    stream->capture = NULL;
    if (!branches_end(*out)) {
        graph_destroy(*out);
        *out = NULL;
        return ERROR_CAPTURE_UNJOINED;
    }
    return CUDA_SUCCESS_;
}

static CUresult graph_exec_destroy(CUgraphExec exec)
{
    if (exec) {
        work_free(exec->first);
        free(exec);
    }
    return CUDA_SUCCESS_;
}

static CUresult graph_instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    struct work **end;

    (void)flags;
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return CUDA_ERROR_OUT_OF_MEMORY_;
    }
    end = &(*out)->first;
    for (const struct work *w = graph->first; w; w = w->next) {
        *end = work_copy(w);
        if (!*end) {
            graph_exec_destroy(*out);
            *out = NULL;
            return CUDA_ERROR_OUT_OF_MEMORY_;
        }
        end = &(*end)->next;
    }
    return CUDA_SUCCESS_;
}

static CUresult graph_launch(CUgraphExec exec, CUstream stream)
{
    CUresult r = CUDA_SUCCESS_;

    for (const struct work *w = exec->first; w && r == CUDA_SUCCESS_; w = w->next) {
        r = submit(stream, w);
    }
    return r;
}

static CUresult event_create(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_SUCCESS_ : CUDA_ERROR_OUT_OF_MEMORY_;
}

static CUresult event_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS_;
}

static CUresult event_record(CUevent event, CUstream stream)
{
    event->capture = stream ? stream->capture : NULL;
    event->stream = stream;
    event->n_work = stream ? stream->n_work : 0;
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    return CUDA_SUCCESS_;
}

static CUresult event_synchronize(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS_;
}

static CUresult event_elapsed_time(float *ms, CUevent start, CUevent end)
{
    *ms = (float)(end->at.tv_sec - start->at.tv_sec) * 1e3f +
          (float)(end->at.tv_nsec - start->at.tv_nsec) * 1e-6f;
    return CUDA_SUCCESS_;
}

/* ---- kernels ---- */

static CUresult module_load_data(CUmodule *out, const void *image)
{
    *out = (CUmodule)(void *)&card; /* the kernels are in the program */
    return image ? CUDA_SUCCESS_ : ERROR_INVALID_VALUE;
}

static CUresult module_unload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS_;
}

/* Handles are kept for ever; there is one per kernel. */
static CUresult module_get_function(CUfunction *out, CUmodule module, const char *name)
{
    const struct emulator_kernel *kernel = emulator_kernel_find(name);
    struct CUfunc_st *f = card.functions;

    (void)module;
    *out = NULL;
    if (!kernel) {
        return CUDA_ERROR_NOT_FOUND_;
    }
    while (f && f->kernel != kernel) {
        f = f->next;
    }
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f) {
            return CUDA_ERROR_OUT_OF_MEMORY_;
        }
        *f = (struct CUfunc_st){
            .kernel = kernel, .shared_bytes_max = SHARED_DEFAULT, .next = card.functions};
        card.functions = f;
    }
    *out = f;
    return CUDA_SUCCESS_;
}

static CUresult func_set_attribute(CUfunction f, int attribute, int value)
{
    if (attribute != CUDA_FUNC_DYNAMIC_SHARED_MAX || value < 0 || (size_t)value > shared_optin()) {
        return ERROR_INVALID_VALUE;
    }
    f->shared_bytes_max = (size_t)value;
    return CUDA_SUCCESS_;
}

static CUresult refuse(const struct cuda_launch_config *c, const struct CUfunc_st *f)
{
    size_t threads = (size_t)c->block_x * c->block_y * c->block_z;
    const char *why = NULL;

    if (!c->grid_x || !c->grid_y || !c->grid_z || c->grid_x > INT32_MAX ||
        c->grid_y > GRID_YZ_MAX || c->grid_z > GRID_YZ_MAX) {
        why = "so many blocks";
    } else if (threads == 0 || threads > f->kernel->threads_max) {
        why = "so many threads";
    } else if (c->shared_bytes > f->shared_bytes_max) {
        why = "so much shared memory";
    }
    if (why) {
        fprintf(stderr,
                "emulator: kernel %s can not be launched with %s: grid %u x %u x %u, %zu threads "
                "of %u, %u of %zu bytes\n",
                f->kernel->name, why, c->grid_x, c->grid_y, c->grid_z, threads,
                f->kernel->threads_max, c->shared_bytes, f->shared_bytes_max);
    }
    return why ? ERROR_INVALID_VALUE : CUDA_SUCCESS_;
}

static CUresult launch_kernel_ex(const struct cuda_launch_config *c, CUfunction f, void **params,
                                 void **extra)
{
    struct work w = {.kind = WORK_LAUNCH};
    bool may_overlap = false;
    CUresult r;

    if (!f || extra || (c->n_attributes && !c->attributes)) {
        return ERROR_INVALID_HANDLE;
    }
    r = refuse(c, f);
    if (r != CUDA_SUCCESS_) {
        return r;
    }
    for (unsigned i = 0; i < c->n_attributes; i++) {
        may_overlap =
            may_overlap || (c->attributes[i].id == CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION &&
                            c->attributes[i].value.programmatic_serialization);
    }
    w.launch = (struct emulator_launch){.kernel = f->kernel,
                                        .args = params[0],
                                        .grid = {c->grid_x, c->grid_y, c->grid_z},
                                        .block = {c->block_x, c->block_y, c->block_z},
                                        .shared_bytes = c->shared_bytes,
                                        .may_overlap = may_overlap};
    return submit(c->stream, &w);
}

static CUresult device_get_pci_bus_id(char *id, int n, CUdevice device)
{
    (void)device;
    snprintf(id, (size_t)n, "emulated");
    return CUDA_SUCCESS_;
}

/* ---- for tests ---- */

const struct cuda_driver *cuda_emulator_driver_sm(int sm)
{
    static const struct cuda_driver driver = {
        .init = init,
        .driver_get_version = driver_get_version,
        .get_error_name = get_error_name,
        .get_error_string = get_error_string,
        .device_get_count = device_get_count,
        .device_get = device_get,
        .device_get_name = device_get_name,
        .device_get_attribute = device_get_attribute,
        .device_primary_ctx_retain = device_primary_ctx_retain,
        .device_primary_ctx_release = device_primary_ctx_release,
        .ctx_set_current = ctx_set_current,
        .mem_get_info = mem_get_info,
        .mem_alloc = mem_alloc,
        .mem_free = mem_free,
        .mem_host_alloc = mem_host_alloc,
        .mem_free_host = mem_free_host,
        .mem_host_register = mem_host_register,
        .mem_host_unregister = mem_host_unregister,
        .memcpy_htod_async = memcpy_htod_async,
        .memcpy_dtoh_async = memcpy_dtoh_async,
        .memcpy_dtod_async = memcpy_dtod_async,
        .memset_d8_async = memset_d8_async,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .stream_synchronize = stream_synchronize,
        .stream_wait_event = stream_wait_event,
        .stream_begin_capture = stream_begin_capture,
        .stream_end_capture = stream_end_capture,
        .graph_instantiate = graph_instantiate,
        .graph_launch = graph_launch,
        .graph_exec_destroy = graph_exec_destroy,
        .graph_destroy = graph_destroy,
        .event_create = event_create,
        .event_destroy = event_destroy,
        .event_record = event_record,
        .event_synchronize = event_synchronize,
        .event_elapsed_time = event_elapsed_time,
        .module_load_data = module_load_data,
        .module_unload = module_unload,
        .module_get_function = module_get_function,
        .func_set_attribute = func_set_attribute,
        .launch_kernel_ex = launch_kernel_ex,
        .device_get_pci_bus_id = device_get_pci_bus_id,
    };

    card.sm = sm;
    return &driver;
}

const struct cuda_driver *cuda_emulator_driver(void)
{
    return cuda_emulator_driver_sm(90);
}

void cuda_emulator_set_order(enum emulator_order order)
{
    card.order = order;
}

const char *cuda_emulator_failure(void)
{
    return card.failure;
}

void cuda_emulator_mark_operand(const void *data, size_t n_bytes)
{
    emulator_memory_mark_operand(data, n_bytes);
}

bool cuda_emulator_sees_races(void)
{
#if defined(SPILLWAY_EMULATOR_RACES)
    return true;
#else
    return false;
#endif
}

size_t cuda_emulator_launches(void)
{
    return emulator_memory_launches();
}
