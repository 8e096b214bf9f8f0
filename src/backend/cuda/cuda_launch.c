/* cuda_launch.c - modules, functions, launches, and what an error of the driver becomes.
 *
 * Place: backend/cuda. Each kernels/X.cu is one image in the program (cuda_images.h) and one module on
 *        the card. A family's functions are found when its first op is checked, so a missing one is
 *        known before the model is loaded and nothing is loaded during a capture.
 * Loss:  kernels run later than their launch, so an error such as a wrong address shows at some later
 *        call and nothing says whose it was; the driver refuses everything after it. We keep the first
 *        text and give it to every later call. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_images.h"
#include "backend/cuda/cuda_private.h"

enum {
    THREADS_MAX = 1024,
    GRID_YZ_MAX = 65535,
    /* Dynamic shared bytes that need no asking, whatever a kernel has besides: both together 48 KiB. */
    SHARED_ALWAYS = 16 * 1024,
};

/* Does the driver refuse all work after it? Wrong arguments and want of memory leave the device usable. */
static bool ends_the_device(CUresult r)
{
    switch (r) {
    case 4:   /* deinitialised */
    case 46:  /* unavailable */
    case 100: /* no device */
    case 201: /* no context */
    case 214: /* memory error that cannot be corrected */
    case 220: /* the same of a link */
    case 226: /* memory error, contained */
    case 700: /* illegal address */
    case 702: /* a kernel ran too long */
    case 709: /* context destroyed */
    case 710: /* assertion in a kernel */
    case 714: /* stack error */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid program counter */
    case 719: /* launch failed */
    case 999: /* unknown */
        return true;
    default:
        return false;
    }
}

enum status cuda_result(struct cuda_backend *be, CUresult r, struct error *err, const char *what,
                        ...)
{
    const char *name = NULL, *text = NULL;
    enum status code = ERR_INTERNAL;
    char subject[256];
    struct error made;
    va_list args;

    if (r == CUDA_SUCCESS_) {
        return OK;
    }
    va_start(args, what);
    vsnprintf(subject, sizeof subject, what, args);
    va_end(args);
    if (be->drv->get_error_name(r, &name) != CUDA_SUCCESS_ || !name) {
        name = "an error without a name";
    }
    if (be->drv->get_error_string(r, &text) != CUDA_SUCCESS_ || !text) {
        text = "no text";
    }
    if (r == CUDA_ERROR_OUT_OF_MEMORY_) {
        code = ERR_NO_MEMORY;
    } else if (ends_the_device(r)) {
        code = ERR_DEVICE;
    }
    error_set(&made, code, "%s: %s (%s)", subject, name, text);
    if (code == ERR_DEVICE && be->own && !be->own->is_lost) {
        be->own->is_lost = true;
        be->own->lost = made;
    }
    if (err) {
        *err = made;
    }
    return code;
}

enum status cuda_enter(struct cuda_backend *be, struct error *err)
{
    if (be->own->is_lost) {
        return error_set(err, ERR_DEVICE, "%s", be->own->lost.text);
    }
    return cuda_result(be, be->drv->ctx_set_current(be->context), err, "cuCtxSetCurrent");
}

enum status cuda_wait(struct cuda_backend *be, struct error *err)
{
    return cuda_result(be, be->drv->stream_synchronize(be->stream), err,
                       "waiting for the card (the error may be an earlier kernel's)");
}

/* ---- modules ---- */

/* Notes the functions of a module. Where that does not work (a driver before 12.4), they are asked for one by
 * one, and tools that watch the driver count each wrong module as an error. */
static void names_add(struct cuda_backend *be, CUmodule module)
{
    const struct cuda_driver *drv = be->drv;
    struct cuda_private *own = be->own;
    struct cuda_named *named;
    CUfunction *functions;
    unsigned n = 0;

    if (!drv->module_get_function_count || !drv->module_enumerate_functions ||
        !drv->func_get_name || drv->module_get_function_count(&n, module) != CUDA_SUCCESS_) {
        return;
    }
    functions = calloc((size_t)n + 1, sizeof(CUfunction));
    named = realloc(own->named, (own->n_named + n + 1) * sizeof *named);
    own->named = named ? named : own->named;
    if (functions && named &&
        drv->module_enumerate_functions(functions, n, module) == CUDA_SUCCESS_) {
        for (unsigned i = 0; i < n; i++) {
            struct cuda_named *at = &own->named[own->n_named];

            *at = (struct cuda_named){.function = functions[i]};
            if (drv->func_get_name(&at->name, functions[i]) == CUDA_SUCCESS_ && at->name) {
                own->n_named++;
            }
        }
    }
    free(functions);
}

enum status cuda_modules_load(struct cuda_backend *be, struct error *err)
{
    /* The emulator has its kernels in the program and takes any image, so one without a name serves. */
    static const struct cuda_image emulated[] = {{"emulated", ""}, {NULL, NULL}};
    const struct cuda_image *images = be->own->opened ? cuda_images : emulated;
    struct cuda_private *own = be->own;
    size_t n = 0;

    while (images[n].name) {
        n++;
    }
    if (n == 0) {
        return error_set(err, ERR_UNSUPPORTED,
                         "this program was built without kernels for NVIDIA cards: build it with "
                         "'make cuda' where nvcc is installed");
    }
    own->modules = calloc(n, sizeof(CUmodule));
    if (!own->modules) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of %zu modules", n);
    }
    for (size_t i = 0; i < n; i++) {
        enum status rc =
            cuda_result(be, be->drv->module_load_data(&own->modules[i], images[i].data), err,
                        "loading the kernels of '%s' (compute capability %d.%d)", images[i].name,
                        be->card.sm / 10, be->card.sm % 10);

        if (rc != OK) {
            return rc;
        }
        own->n_modules = i + 1;
        names_add(be, own->modules[i]);
    }
    return OK;
}

void cuda_modules_free(struct cuda_backend *be)
{
    struct cuda_private *own = be->own;

    for (size_t i = 0; i < own->n_loaded; i++) {
        free(own->loaded[i].functions);
        free(own->loaded[i].shared_allowed);
    }
    for (size_t i = 0; i < own->n_modules; i++) {
        be->drv->module_unload(own->modules[i]);
    }
    free(own->modules);
    free(own->named);
}

static CUresult look_up(struct cuda_backend *be, CUfunction *out, const char *name)
{
    const struct cuda_private *own = be->own;
    CUresult r = CUDA_ERROR_NOT_FOUND_;

    for (size_t i = 0; i < own->n_named; i++) {
        if (strcmp(own->named[i].name, name) == 0) {
            *out = own->named[i].function;
            return CUDA_SUCCESS_;
        }
    }
    for (size_t i = 0; r == CUDA_ERROR_NOT_FOUND_ && i < own->n_modules; i++) {
        r = be->drv->module_get_function(out, own->modules[i], name);
    }
    return r;
}

static enum status find_function(struct cuda_backend *be, CUfunction *out, const char *name,
                                 struct error *err)
{
    CUresult r = look_up(be, out, name);

    if (r == CUDA_SUCCESS_ && be->drv->func_load) {
        r = be->drv->func_load(*out); /* else its code may be fetched at the first launch */
    }
    if (r != CUDA_ERROR_NOT_FOUND_) {
        return cuda_result(be, r, err, "finding the kernel '%s'", name);
    }
    return error_set(err, ERR_UNSUPPORTED, "the program has no kernel '%s'", name);
}

static struct cuda_loaded *loaded_of(struct cuda_private *own, const struct cuda_family *family)
{
    for (size_t i = 0; i < own->n_loaded; i++) {
        if (own->loaded[i].family == family) {
            return &own->loaded[i];
        }
    }
    return NULL;
}

enum status cuda_family_load(struct cuda_backend *be, const struct cuda_family *family,
                             struct error *err)
{
    struct cuda_private *own = be->own;
    struct cuda_loaded l = {.family = family};
    enum status rc = OK;

    if (loaded_of(own, family)) {
        return OK;
    }
    if (own->n_loaded == CUDA_FAMILIES_MAX) {
        return error_set(err, ERR_INTERNAL, "more than %d families of kernels", CUDA_FAMILIES_MAX);
    }
    l.functions = calloc(family->n_kernels + 1, sizeof(CUfunction));
    l.shared_allowed = calloc(family->n_kernels + 1, sizeof *l.shared_allowed);
    if (!l.functions || !l.shared_allowed) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate a table of %zu kernels",
                       family->n_kernels);
    }
    for (size_t i = 0; rc == OK && i < family->n_kernels; i++) {
        rc = find_function(be, &l.functions[i], family->kernels[i], err);
        l.shared_allowed[i] = SHARED_ALWAYS;
    }
    if (rc != OK) {
        free(l.functions);
        free(l.shared_allowed);
        return rc;
    }
    own->loaded[own->n_loaded++] = l;
    return OK;
}

/* ---- launches ---- */

static enum status grid_check(const struct cuda_backend *be, const char *name,
                              const struct cuda_grid *g, struct error *err)
{
    if (g->x > INT32_MAX || g->y > GRID_YZ_MAX || g->z > GRID_YZ_MAX) {
        return error_set(err, ERR_LIMIT,
                         "kernel '%s' would need a grid of %u x %u x %u blocks; %d x %d x %d are "
                         "possible",
                         name, g->x, g->y, g->z, INT32_MAX, GRID_YZ_MAX, GRID_YZ_MAX);
    }
    if (g->threads == 0 || g->threads > THREADS_MAX ||
        g->shared_bytes > be->card.shared_bytes_max) {
        return error_set(err, ERR_INTERNAL,
                         "kernel '%s' with blocks of %u threads and %zu bytes of shared memory; "
                         "%d and %zu are possible",
                         name, g->threads, g->shared_bytes, THREADS_MAX, be->card.shared_bytes_max);
    }
    return OK;
}

static enum status allow_shared(struct cuda_backend *be, struct cuda_loaded *l, size_t kernel,
                                size_t n_bytes, struct error *err)
{
    enum status rc = OK;

    if (n_bytes > l->shared_allowed[kernel]) {
        rc = cuda_result(be,
                         be->drv->func_set_attribute(l->functions[kernel],
                                                     CUDA_FUNC_DYNAMIC_SHARED_MAX, (int)n_bytes),
                         err, "cuFuncSetAttribute of '%s' for %zu bytes of shared memory",
                         l->family->kernels[kernel], n_bytes);
        l->shared_allowed[kernel] = rc == OK ? n_bytes : l->shared_allowed[kernel];
    }
    return rc;
}

/* Kernels may begin before the ones ahead have ended (and wait themselves for what they need): that
 * hides the launches. Captured steps know this from driver 12.3 on. What follows two streams waits for the
 * ends of both. */
static bool may_overlap(const struct cuda_backend *be)
{
    return be->card.sm >= 90 && !be->own->has_joined &&
           (!be->own->is_capturing || be->card.driver_version >= 12030);
}

static enum status launch(struct cuda_backend *be, CUstream stream, bool overlaps,
                          const struct cuda_family *family, size_t kernel, struct cuda_grid grid,
                          const void *args, struct error *err)
{
    struct cuda_launch_attribute overlap = {.id = CUDA_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION,
                                            .value.programmatic_serialization = 1};
    const char *name = kernel < family->n_kernels ? family->kernels[kernel] : "?";
    struct cuda_loaded *l = loaded_of(be->own, family);
    struct cuda_launch_config config;
    /* The driver takes an array of pointers to the arguments, which it only reads. */
    void *params[1] = {(void *)(uintptr_t)args};
    enum status rc;

    if (!l || kernel >= family->n_kernels) {
        return error_set(err, ERR_INTERNAL, "kernel '%s' (%zu) was not loaded", name, kernel);
    }
    grid.x = grid.x ? grid.x : 1;
    grid.y = grid.y ? grid.y : 1;
    grid.z = grid.z ? grid.z : 1;
    rc = grid_check(be, name, &grid, err);
    if (rc == OK) {
        rc = allow_shared(be, l, kernel, grid.shared_bytes, err);
    }
    if (rc != OK) {
        return rc;
    }
    config = (struct cuda_launch_config){.grid_x = grid.x,
                                         .grid_y = grid.y,
                                         .grid_z = grid.z,
                                         .block_x = grid.threads,
                                         .block_y = 1,
                                         .block_z = 1,
                                         .shared_bytes = (unsigned)grid.shared_bytes,
                                         .stream = stream,
                                         .attributes = &overlap,
                                         .n_attributes = overlaps ? 1 : 0};
    return cuda_result(be, be->drv->launch_kernel_ex(&config, l->functions[kernel], params, NULL),
                       err,
                       "cuLaunchKernelEx of '%s' with %u x %u x %u blocks of %u threads and %zu "
                       "bytes of shared memory",
                       name, grid.x, grid.y, grid.z, grid.threads, grid.shared_bytes);
}

enum status cuda_launch(struct cuda_backend *be, const struct cuda_family *family, size_t kernel,
                        struct cuda_grid grid, const void *args, struct error *err)
{
    bool overlaps = may_overlap(be);

    be->own->has_joined = false;
    return launch(be, be->stream, overlaps, family, kernel, grid, args, err);
}

enum status cuda_launch_on(struct cuda_backend *be, CUstream stream,
                           const struct cuda_family *family, size_t kernel, struct cuda_grid grid,
                           const void *args, struct error *err)
{
    return launch(be, stream, false, family, kernel, grid, args, err);
}

enum status cuda_zero(struct cuda_backend *be, void *data, size_t n_bytes, struct error *err)
{
    if (n_bytes == 0) {
        return OK;
    }
    return cuda_result(
        be, be->drv->memset_d8_async((CUdeviceptr)(uintptr_t)data, 0, n_bytes, be->stream), err,
        "cuMemsetD8Async of %zu bytes", n_bytes);
}
