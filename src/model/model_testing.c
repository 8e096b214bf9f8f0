/* model_testing.c - see model_testing.h. */
#include "model/model_testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"

const char *const fixture_names[N_FIXTURES] = {
    "tiny-qwen3_5-dense", "tiny-qwen3_5-moe", "tiny-qwen3_5-moe-gptq-int4",
    "tiny-qwen3_5-moe-gptq-int4-actorder", "tiny-qwen3_next"};

void fixture_path(char out[512], const char *name, const char *file)
{
    int n = snprintf(out, 512, "%s%s%s%s", GOLDEN_DIR, name, file[0] ? "/" : "", file);
    assert_in_range(n, 1, 511);
}

/* ---- models ---- */

enum test_device test_device_named(int argc, char **argv)
{
    static const char *const names[] = {"cpu", "cuda", "cuda-no-graphs"};
    char why[256];

    for (size_t i = 0; argc > 1 && i < sizeof names / sizeof *names; i++) {
        if (strcmp(argv[1], names[i]) != 0) {
            continue;
        }
        if (i > 0 && !cuda_is_there(why, sizeof why)) {
            fprintf(stderr, "skipped: %s\n", why);
            exit(77);
        }
        return (enum test_device)i;
    }
    return TEST_CPU;
}

static size_t or_default(size_t value, size_t fallback)
{
    return value ? value : fallback;
}

static enum status backends_open(struct test_model *t, const struct test_setup *s,
                                 struct error *err)
{
    struct cpu_backend_options cpu = {
        .n_threads = or_default(s->n_threads, 2), .isa = s->isa, .activations = s->activations};
    struct cuda_backend_options cuda = {.no_graphs = s->device == TEST_CUDA_NO_GRAPHS,
                                        .driver = s->driver};
    struct test_backends own = {0}, *b = s->shared ? s->shared : &own;
    enum status rc = b->cpu ? OK : cpu_backend_new(&b->cpu, &cpu, err);

    if (rc == OK && s->device != TEST_CPU && !b->cuda) {
        rc = cuda_backend_new(&b->cuda, &cuda, err);
    }
    t->is_shared = s->shared != NULL;
    t->cpu = b->cpu;
    t->be = s->device == TEST_CPU ? b->cpu : b->cuda;
    return rc;
}

void test_backends_close(struct test_backends *b)
{
    if (b->cuda) {
        b->cuda->ops->free(b->cuda);
    }
    if (b->cpu) {
        b->cpu->ops->free(b->cpu);
    }
    *b = (struct test_backends){0};
}

static enum status open_all(struct test_model *t, const char *dir, const struct test_setup *s,
                            struct error *err)
{
    struct model_options o = {.compute_dtype = s->compute,
                              .kv_dtype = s->kv,
                              .recurrent_dtype = s->recurrent,
                              .rows_max = or_default(s->rows_max, 512),
                              .gdn_chunk_min = s->gdn_chunk_min,
                              .dense_quant = s->dense_quant,
                              .offload = s->offload};
    enum status rc;

    *t = (struct test_model){0};
    o.out_rows_max = o.rows_max;
    o.budget.n_live = or_default(s->n_live, 1);
    o.budget.n_snapshots = s->n_snapshots;
    o.budget.context_max = or_default(s->context_max, 1024);
    o.budget.n_tokens = o.budget.context_max * o.budget.n_live;
    rc = checkpoint_open(&t->ck, dir, NULL, s->log, err);
    if (rc == OK) {
        rc = backends_open(t, s, err);
    }
    if (rc == OK) {
        o.pool = cpu_backend_pool(t->cpu);
        rc = model_open(&t->m, t->ck, t->be, &o, s->log, NULL, err);
    }
    return rc;
}

void test_model_close(struct test_model *t)
{
    struct test_backends own = {t->cpu, t->be != t->cpu ? t->be : NULL};

    model_free(t->m);
    if (!t->is_shared) {
        test_backends_close(&own);
    }
    checkpoint_close(t->ck);
    *t = (struct test_model){0};
}

void test_model_open(struct test_model *t, const char *dir, const struct test_setup *s)
{
    struct error err = {0};
    enum status rc = open_all(t, dir, s, &err);

    if (rc != OK) {
        fail_msg("%s: %s", dir, err.text);
    }
}

enum status test_model_refused(const char *dir, const struct test_setup *s, struct error *err)
{
    struct test_model t;
    enum status rc;

    memset(err, 0, sizeof *err);
    rc = open_all(&t, dir, s, err);
    test_model_close(&t);
    return rc;
}

/* ---- recorded outputs ---- */

static const struct safetensors_entry *recorded(struct safetensors *file, const char *fmt,
                                                va_list args)
{
    char name[128];

    vsnprintf(name, sizeof name, fmt, args);
    return safetensors_find(file, name);
}

const float *recorded_f32(struct safetensors *file, size_t n, const char *fmt, ...)
{
    const struct safetensors_entry *e;
    va_list args;

    va_start(args, fmt);
    e = recorded(file, fmt, args);
    va_end(args);
    if (!e) {
        return NULL;
    }
    assert_int_equal(e->tensor.dtype, DTYPE_F32);
    assert_int_equal(tensor_count(&e->tensor), n);
    return e->tensor.data;
}

const int32_t *recorded_i32(struct safetensors *file, size_t *n, const char *fmt, ...)
{
    const struct safetensors_entry *e;
    va_list args;

    va_start(args, fmt);
    e = recorded(file, fmt, args);
    va_end(args);
    *n = 0;
    if (!e) {
        return NULL;
    }
    assert_int_equal(e->tensor.dtype, DTYPE_I32);
    *n = tensor_count(&e->tensor);
    return e->tensor.data;
}

double relative_error(const float *a, const float *b, size_t n)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < n; i++) {
        double d = (double)a[i] - (double)b[i];
        difference += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    if (difference == 0) {
        return 0;
    }
    return norm > 0 ? sqrt(difference / norm) : INFINITY;
}

/* ---- changed checkpoints ---- */

void edit_open(struct checkpoint_edit *e, const char *dir)
{
    struct error err;

    *e = (struct checkpoint_edit){0};
    assert_int_equal(checkpoint_open(&e->ck, dir, NULL, NULL, &err), OK);
    assert_int_equal(json_object_deep_copy(checkpoint_config(e->ck), &e->config, NULL), 0);
    e->n = checkpoint_count(e->ck);
    e->cap = e->n + 64;
    e->tensors = calloc(e->cap, sizeof *e->tensors);
    assert_non_null(e->tensors);
    for (size_t i = 0; i < e->n; i++) {
        const struct checkpoint_tensor *t = checkpoint_at(e->ck, i);
        e->tensors[i].name = strdup(t->name);
        e->tensors[i].tensor = t->tensor;
    }
}

struct edit_tensor *edit_find(struct checkpoint_edit *e, const char *name)
{
    for (size_t i = 0; i < e->n; i++) {
        if (strcmp(e->tensors[i].name, name) == 0) {
            return &e->tensors[i];
        }
    }
    fail_msg("the checkpoint has no '%s'", name);
    return NULL;
}

void edit_rename(struct edit_tensor *t, const char *name)
{
    free(t->name);
    t->name = strdup(name);
}

void edit_drop(struct checkpoint_edit *e, const char *name)
{
    struct edit_tensor *t = edit_find(e, name);

    free(t->name);
    free(t->owned);
    *t = e->tensors[--e->n];
}

void *edit_own(struct edit_tensor *t)
{
    size_t n_bytes = tensor_count(&t->tensor) * dtype_bytes(t->tensor.dtype);

    if (!t->owned) {
        t->owned = malloc(n_bytes + 1);
        assert_non_null(t->owned);
        memcpy(t->owned, t->tensor.data, n_bytes);
        t->tensor.data = t->owned;
    }
    return t->owned;
}

void *edit_add(struct checkpoint_edit *e, const char *name, enum dtype dtype, size_t n_dims,
               const size_t *shape)
{
    struct edit_tensor *t = &e->tensors[e->n];

    assert_in_range(e->n, 0, e->cap - 1);
    *t = (struct edit_tensor){.name = strdup(name), .tensor = {.dtype = dtype, .n_dims = n_dims}};
    memcpy(t->tensor.shape, shape, n_dims * sizeof *shape);
    t->owned = calloc(tensor_count(&t->tensor) + 1, dtype_bytes(dtype));
    assert_non_null(t->owned);
    t->tensor.data = t->owned;
    e->n++;
    return t->owned;
}

void edit_write(struct checkpoint_edit *e, const char *dir)
{
    struct safetensors_writer *w;
    char path[512];
    struct error err = {0};

    assert_int_equal(safetensors_writer_new(&w, &err), OK);
    for (size_t i = 0; i < e->n; i++) {
        assert_int_equal(safetensors_writer_add(w, e->tensors[i].name, &e->tensors[i].tensor, &err),
                         OK);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (safetensors_writer_finish(w, path, &err) != OK) {
        fail_msg("%s", err.text);
    }
    safetensors_writer_free(w);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(json_object_to_file(path, e->config), 0);
}

void edit_close(struct checkpoint_edit *e)
{
    for (size_t i = 0; i < e->n; i++) {
        free(e->tensors[i].name);
        free(e->tensors[i].owned);
    }
    free(e->tensors);
    json_object_put(e->config);
    checkpoint_close(e->ck);
}
