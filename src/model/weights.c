/* weights.c - turns bound tensors into the matrices that kernels read: the second half of loading.
 *
 * Place: model; weights_bind.c found where everything is.
 * Idea:  first every rewritten matrix gets its place (experts in the arenas of weights_experts.c, all
 *        others in one block, so that the total is known before a byte is touched), then the work is
 *        cut into jobs of some rows each, and the pool runs them. In the block a matrix's packed
 *        values, scales, zeros and permutation lie side by side on 64-byte borders.
 * Pass:  arenas that go to a device are written to the same memory one after the other, each sent when
 *        its last job is done: to let the kernel clear pages for all of them would take longer than
 *        the packing itself, and the host need not have room for what the device holds.
 * File:  arenas in a file are written to the disk one by one, each while the next is filled, so that no more than
 *        two of them are ever in memory that cannot be given to others.
 * Cost:  a job unpacks rows into a buffer of bytes and packs them again; that is one extra pass through
 *        the cache, and keeps the file's format and the kernels' format apart. */
#include "model/weights.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/pool.h"
#include "base/size.h"
#include "model/weights_bind.h"
#include "model/weights_experts.h"

enum {
    PLACE_ALIGN = 64,
    JOB_ROWS_MAX = 64,
    JOB_BYTES_MAX = 1 << 20, /* values of one job: they should stay in the cache */
    JOBS_PER_ROUND = 2048    /* between two looks at the progress line */
};

struct job {
    size_t matrix, row0, n_rows;
};

struct loader {
    const struct model_spec *spec;
    struct model_weights *w;
    struct backend *be; /* that arenas pass to */
    struct binding bound;
    bool *is_placed; /* [n_matrices] an expert in its block */
    struct job *jobs;
    size_t n_jobs;
    size_t round0; /* first job of the running round */
    struct scratch {
        uint8_t *q, *zeros;
        float *scales;
    } * scratch; /* one per thread */
    size_t n_scratch;
    const struct expert_arena *flushed; /* the last one that is on its way to the disk, or NULL */
};

/* ---- places in the block ---- */

/* n elements of `each` bytes at the end of what is laid out so far. base is NULL while only sizes are
 * wanted; then *out stays NULL. */
static bool place(void **out, uint8_t *base, size_t *used, size_t n, size_t each)
{
    size_t bytes, start = *used, end;

    if (!size_mul(&bytes, n, each) || !size_add(&end, start, bytes) ||
        !size_align(&end, end, PLACE_ALIGN)) {
        return false;
    }
    if (out && base) {
        *out = base + start;
    }
    *used = end;
    return true;
}

static bool place_quantised(struct weight *wt, const struct gptq_matrix *g, uint8_t *base,
                            size_t *used)
{
    void *data = NULL, *scales = NULL, *zeros = NULL, *perm = NULL;
    size_t n_groups, n_scales;

    wt->kind = g->bits == 4 ? WEIGHT_INT4 : WEIGHT_INT8;
    wt->dtype = g->scales.dtype;
    wt->group = g->group_size;
    n_groups = weight_n_groups(wt);
    assert(n_groups == g->n_groups);
    if (!size_mul(&n_scales, wt->n_out, n_groups) ||
        !place(&data, base, used, wt->n_out, weight_row_bytes(wt)) ||
        !place(&scales, base, used, n_scales, dtype_bytes(wt->dtype)) ||
        !place(&zeros, base, used, g->qzeros ? n_scales : 0, 1) ||
        !place(&perm, base, used, g->perm ? wt->n_in : 0, sizeof(int32_t))) {
        return false;
    }
    wt->data = data;
    wt->scales = scales;
    wt->zeros = g->qzeros ? zeros : NULL;
    wt->perm = g->perm ? perm : NULL;
    return true;
}

static bool place_matrix(struct weight *wt, const struct spec_matrix *m,
                         const struct matrix_source *s, uint8_t *base, size_t *used)
{
    void *data = NULL;

    *wt = (struct weight){.kind = WEIGHT_DENSE, .n_out = m->n_out, .n_in = m->n_in};
    switch (s->kind) {
    case SOURCE_MAPPED:
        wt->dtype = s->tensor.dtype;
        wt->data = s->rows;
        return true;
    case SOURCE_COPY:
        wt->dtype = s->tensor.dtype;
        break;
    case SOURCE_CONVERT:
    case SOURCE_DEQUANTISED:
        wt->dtype = DTYPE_F32;
        break;
    case SOURCE_QUANTISED:
        return place_quantised(wt, &s->gptq, base, used);
    }
    if (!place(&data, base, used, m->n_out, weight_row_bytes(wt))) {
        return false;
    }
    wt->data = data;
    return true;
}

static size_t vector_count(const struct spec_vector *v)
{
    return v->form == VECTOR_CONV ? v->n * v->taps : v->n;
}

/* Lays everything out at base (or only counts, with base NULL). */
static bool layout(struct loader *l, uint8_t *base, size_t *n_bytes)
{
    const struct model_spec *spec = l->spec;
    size_t used = 0;

    for (size_t i = 0; i < spec->n_matrices; i++) {
        if (l->is_placed[i]) {
            continue;
        }
        if (!place_matrix(&l->w->matrices[i], &spec->matrices[i], &l->bound.matrices[i], base,
                          &used)) {
            return false;
        }
    }
    for (size_t i = 0; i < spec->n_vectors; i++) {
        void *data = NULL;
        if (!place(&data, base, &used, vector_count(&spec->vectors[i]), sizeof(float))) {
            return false;
        }
        l->w->vectors[i] = data;
    }
    *n_bytes = used;
    return true;
}

/* ---- vectors ---- */

static void vector_fill(float *out, const struct spec_vector *v, const struct tensor *t)
{
    size_t n = vector_count(v);

    for (size_t i = 0; i < n; i++) {
        float x = dtype_load(t->dtype, t->data, i);
        switch (v->form) {
        case VECTOR_PLAIN:
            out[i] = x;
            break;
        case VECTOR_ONE_PLUS:
            out[i] = 1.0f + x;
            break;
        case VECTOR_NEG_EXP:
            out[i] = -expf(x);
            break;
        case VECTOR_CONV: /* [channel][tap] to [tap][channel] */
            out[i % v->taps * v->n + i / v->taps] = x;
            break;
        }
    }
}

/* ---- jobs ---- */

static const int32_t *row_map(const struct spec_matrix *m, size_t row)
{
    return m->rows ? m->rows + row : NULL;
}

/* How many of the n rows from `row` on follow one another in the file; *first is their start there. */
static size_t file_run(size_t *first, const struct spec_matrix *m, size_t row, size_t n)
{
    const int32_t *map = row_map(m, row);
    size_t len = 1;

    if (!map) {
        *first = row;
        return n;
    }
    while (len < n && map[len] == map[0] + (int32_t)len) {
        len++;
    }
    *first = (size_t)map[0];
    return len;
}

static void repack_rows(const struct weight *wt, const struct gptq_matrix *g, size_t row,
                        size_t file_row, size_t n, struct scratch *s)
{
    size_t n_groups = weight_n_groups(wt), row_bytes = weight_row_bytes(wt);
    uint8_t *data = (uint8_t *)wt->data + row * row_bytes;
    uint8_t *scales = (uint8_t *)wt->scales + row * n_groups * dtype_bytes(wt->dtype);

    gptq_unpack(g, file_row, file_row + n, s->q, wt->zeros ? s->zeros : NULL, s->scales);
    for (size_t i = 0; i < n; i++) {
        if (wt->kind == WEIGHT_INT4) {
            weight_pack_int4(data + i * row_bytes, s->q + i * wt->n_in, wt->n_in);
        } else {
            memcpy(data + i * row_bytes, s->q + i * wt->n_in, wt->n_in);
        }
    }
    dtype_from_f32(wt->dtype, scales, s->scales,
                   n * n_groups); /* exact: they came from that type */
    if (wt->zeros) {
        memcpy((uint8_t *)wt->zeros + row * n_groups, s->zeros, n * n_groups);
    }
}

static void copy_rows(const struct weight *wt, const struct matrix_source *s, size_t row,
                      size_t file_row, size_t n)
{
    uint8_t *dst = (uint8_t *)wt->data + row * weight_row_bytes(wt);
    const uint8_t *src = s->rows + file_row * wt->n_in * dtype_bytes(s->tensor.dtype);

    if (s->kind == SOURCE_COPY) {
        memcpy(dst, src, n * weight_row_bytes(wt));
    } else {
        dtype_to_f32((float *)(void *)dst, s->tensor.dtype, src, n * wt->n_in);
    }
}

static void job_run(struct loader *l, const struct job *job, struct scratch *scratch)
{
    const struct spec_matrix *m = &l->spec->matrices[job->matrix];
    const struct matrix_source *s = &l->bound.matrices[job->matrix];
    const struct weight *wt = &l->w->matrices[job->matrix];
    size_t row = job->row0, end = job->row0 + job->n_rows;

    if (job->row0 == 0 && wt->perm) {
        memcpy((int32_t *)(uintptr_t)wt->perm, s->gptq.perm, wt->n_in * sizeof *wt->perm);
    }
    while (row < end) {
        size_t first, n = file_run(&first, m, row, end - row);

        switch (s->kind) {
        case SOURCE_QUANTISED:
            repack_rows(wt, &s->gptq, row, first, n, scratch);
            break;
        case SOURCE_DEQUANTISED:
            gptq_dequantise(&s->gptq, first, first + n,
                            (float *)(uintptr_t)wt->data + row * wt->n_in);
            break;
        case SOURCE_COPY:
        case SOURCE_CONVERT:
            copy_rows(wt, s, row, first, n);
            break;
        case SOURCE_MAPPED:
            break;
        }
        row += n;
    }
}

static void round_run(void *ctx, size_t begin, size_t end, size_t thread)
{
    struct loader *l = ctx;

    for (size_t i = begin; i < end; i++) {
        job_run(l, &l->jobs[l->round0 + i], &l->scratch[thread]);
    }
}

static size_t rows_per_job(size_t n_in)
{
    size_t rows = JOB_BYTES_MAX / n_in;

    return rows == 0 ? 1 : size_min(rows, JOB_ROWS_MAX);
}

static enum status jobs_make(struct loader *l, struct error *err)
{
    const struct model_spec *spec = l->spec;
    size_t n = 0;

    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        n = 0;
        for (size_t i = 0; i < spec->n_matrices; i++) {
            const struct spec_matrix *m = &spec->matrices[i];
            size_t step = rows_per_job(m->n_in);
            if (l->bound.matrices[i].kind == SOURCE_MAPPED) {
                continue;
            }
            for (size_t row = 0; row < m->n_out; row += step, n++) {
                if (pass == 1) {
                    l->jobs[n] = (struct job){i, row, size_min(step, m->n_out - row)};
                }
            }
        }
        if (pass == 0) {
            l->jobs = calloc(n + 1, sizeof *l->jobs);
            if (!l->jobs) {
                return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu loading jobs", n);
            }
        }
    }
    l->n_jobs = n;
    return OK;
}

static enum status scratch_make(struct loader *l, size_t n_threads, struct error *err)
{
    size_t q_bytes = 0, n_scales = 0;

    for (size_t i = 0; i < l->spec->n_matrices; i++) {
        if (l->bound.matrices[i].kind == SOURCE_QUANTISED) {
            const struct weight *wt = &l->w->matrices[i];
            size_t rows = rows_per_job(wt->n_in);
            q_bytes = size_max(q_bytes, rows * wt->n_in);
            n_scales = size_max(n_scales, rows * weight_n_groups(wt));
        }
    }
    l->scratch = calloc(n_threads, sizeof *l->scratch);
    if (!l->scratch) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate loading buffers");
    }
    l->n_scratch = n_threads;
    for (size_t i = 0; i < n_threads; i++) {
        struct scratch *s = &l->scratch[i];
        s->q = malloc(q_bytes + 1);
        s->zeros = malloc(n_scales + 1);
        s->scales = malloc((n_scales + 1) * sizeof *s->scales);
        if (!s->q || !s->zeros || !s->scales) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate loading buffers");
        }
    }
    return OK;
}

static size_t job_bytes(const struct loader *l, const struct job *job)
{
    return job->n_rows * weight_row_bytes(&l->w->matrices[job->matrix]);
}

/* ---- arenas that pass, or lie in a file ---- */

static size_t arena_end(const struct expert_arena *a)
{
    return (size_t)a->expert0 + 3 * a->n_experts;
}

/* The arena of that kind that the matrix is in, or NULL. *stop: the first matrix for which that is not so. */
static struct expert_arena *arena_at(const struct loader *l, size_t matrix, size_t *stop)
{
    *stop = SIZE_MAX;
    for (size_t i = 0; i < l->w->n_arenas; i++) {
        struct expert_arena *a = &l->w->arenas[i];

        if (!a->passes && !a->in_file) {
            continue;
        }
        if (matrix >= (size_t)a->expert0 && matrix < arena_end(a)) {
            *stop = arena_end(a);
            return a;
        }
        if ((size_t)a->expert0 > matrix) {
            *stop = size_min(*stop, (size_t)a->expert0);
        }
    }
    return NULL;
}

static enum status arena_send(struct loader *l, struct expert_arena *a, struct pool *pool,
                              struct error *err)
{
    size_t n_bytes = a->block.n_bytes * a->n_experts;
    uint8_t *device = weights_device_buffer(l->w, l->be, n_bytes);

    if (!device) {
        return error_set(err, ERR_NO_MEMORY,
                         "cannot allocate %zu MiB of device memory for the experts of a layer, "
                         "after %zu of %zu",
                         n_bytes >> 20, (size_t)(a - l->w->arenas), l->w->n_arenas);
    }
    weights_device_write(l->be, device, a->base, n_bytes, pool);
    a->base = device;
    weights_view_experts(l->w, a);
    a->base = NULL;
    return OK;
}

static enum status flush(struct loader *l, const struct expert_arena *a, bool must_end,
                         struct error *err)
{
    return a ? file_memory_flush(&l->w->file, a->base, a->block.n_bytes * a->n_experts, must_end,
                                 err)
             : OK;
}

/* The arena is filled; the one before it must have arrived. */
static enum status arena_flush(struct loader *l, const struct expert_arena *a, struct error *err)
{
    enum status rc = flush(l, a, false, err);

    rc = rc == OK ? flush(l, l->flushed, true, err) : rc;
    l->flushed = a;
    return rc;
}

static enum status jobs_run(struct loader *l, struct pool *pool, struct progress *progress,
                            struct error *err)
{
    size_t total = 0, done = 0, n;
    enum status rc = jobs_make(l, err);

    if (rc == OK && l->n_jobs > 0) {
        rc = scratch_make(l, pool ? pool_threads(pool) : 1, err);
    }
    if (rc != OK || l->n_jobs == 0) {
        return rc;
    }
    for (size_t i = 0; i < l->n_jobs; i++) {
        total += job_bytes(l, &l->jobs[i]);
    }
    progress_start(progress, "weights", PROGRESS_BYTES, total);
    for (size_t i = 0; rc == OK && i < l->n_jobs; i += n) {
        size_t stop, most = size_min(JOBS_PER_ROUND, l->n_jobs - i);
        struct expert_arena *a = arena_at(l, l->jobs[i].matrix, &stop);

        for (n = 0; n < most && l->jobs[i + n].matrix < stop; n++) {
            done += job_bytes(l, &l->jobs[i + n]);
        }
        l->round0 = i;
        pool_run(pool, n, 1, round_run, l);
        if (a && (i + n == l->n_jobs || l->jobs[i + n].matrix >= stop)) {
            rc = a->passes ? arena_send(l, a, pool, err) : arena_flush(l, a, err);
        }
        progress_update(progress, done);
    }
    rc = rc == OK ? flush(l, l->flushed, true, err) : rc;
    progress_finish(progress);
    return rc;
}

/* ---- the whole ---- */

static enum status places_make(struct loader *l, const struct weights_target *to, struct error *err)
{
    size_t n_bytes;
    enum status rc;

    l->is_placed = calloc(l->spec->n_matrices + 1, sizeof *l->is_placed);
    if (!l->is_placed) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the table of places");
    }
    rc = weights_place_experts(l->w, l->is_placed, l->spec, &l->bound, to, err);
    if (rc != OK) {
        return rc;
    }
    if (!layout(l, NULL, &n_bytes)) {
        return error_set(err, ERR_LIMIT, "the weights are too large to address");
    }
    l->w->block_bytes = n_bytes;
    if (n_bytes == 0) {
        return OK;
    }
    /* Not zeroed: every byte that is read is written first, by the thread that packs it. */
    l->w->block = huge_new(n_bytes);
    if (!l->w->block || !layout(l, l->w->block, &n_bytes)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu MiB for repacked weights",
                         n_bytes >> 20);
    }
    return OK;
}

enum status weights_load(struct model_weights *out, const struct model_spec *spec,
                         const struct checkpoint *ck, const struct weights_target *to,
                         struct pool *pool, const struct log *log, struct progress *progress,
                         struct error *err)
{
    struct loader l = {.spec = spec, .w = out, .be = to->be};
    enum status rc;

    *out = (struct model_weights){0};
    out->matrices = calloc(spec->n_matrices + 1, sizeof *out->matrices);
    out->vectors = calloc(spec->n_vectors + 1, sizeof *out->vectors);
    if (!out->matrices || !out->vectors) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the weight table");
    }
    rc = weights_bind(&l.bound, out, spec, ck, log, err);
    if (rc == OK) {
        rc = places_make(&l, to, err);
    }
    if (rc == OK) {
        for (size_t i = 0; i < spec->n_vectors; i++) {
            vector_fill((float *)(uintptr_t)out->vectors[i], &spec->vectors[i],
                        &l.bound.vectors[i]);
            out->n_bytes += vector_count(&spec->vectors[i]) * sizeof(float);
        }
        rc = jobs_run(&l, pool, progress, err);
    }
    for (size_t i = 0; rc == OK && i < spec->n_matrices; i++) {
        out->n_bytes += weight_bytes(&out->matrices[i]);
    }
    for (size_t i = 0; i < l.n_scratch; i++) {
        free(l.scratch[i].q);
        free(l.scratch[i].zeros);
        free(l.scratch[i].scales);
    }
    free(out->passing);
    out->passing = NULL;
    free(l.scratch);
    free(l.jobs);
    free(l.is_placed);
    binding_release(&l.bound, spec);
    return rc;
}

/* ---- on a device ---- */

uint8_t *weights_device_buffer(struct model_weights *w, struct backend *be, size_t n_bytes)
{
    void **list = realloc(w->device_buffers, (w->n_device_buffers + 1) * sizeof *w->device_buffers);
    uint8_t *data = NULL;

    if (list) {
        w->device_buffers = list;
        w->be = be;
        data = be->ops->buffer_new(be, n_bytes);
    }
    if (data) {
        list[w->n_device_buffers++] = data;
    }
    return data;
}

void weights_device_write(struct backend *be, uint8_t *device, const void *host, size_t n_bytes,
                          struct pool *pool)
{
    if (be->ops->upload) {
        be->ops->upload(be, device, host, n_bytes, pool);
    } else {
        be->ops->write(be, device, host, n_bytes);
    }
}

void weights_release(struct model_weights *w)
{
    weights_release_experts(w);
    weights_release_embedding(w);
    for (size_t i = 0; i < w->n_device_buffers; i++) {
        w->be->ops->buffer_free(w->be, w->device_buffers[i]);
    }
    free(w->device_buffers);
    free(w->block);
    free(w->int8_block);
    free(w->matrices);
    free(w->vectors);
    *w = (struct model_weights){0};
}

/* ---- print-outs ---- */

static void print_bytes(struct buf *out, size_t n)
{
    if (n >= 1u << 30) {
        buf_appendf(out, "%.2f GiB", (double)n / (1u << 30));
    } else if (n >= 1u << 20) {
        buf_appendf(out, "%.1f MiB", (double)n / (1u << 20));
    } else {
        buf_appendf(out, "%.1f KiB", (double)n / 1024);
    }
}

void weights_print_classes(const struct model_weights *w, const struct model_spec *spec,
                           struct buf *out)
{
    enum { FORMS_MAX = 8 };

    for (int class = 0; class < CLASS_COUNT; class ++) {
        struct form {
            const char *name;
            size_t n, bytes;
        } forms[FORMS_MAX];
        size_t n_forms = 0;

        for (size_t i = 0; i < spec->n_matrices; i++) {
            const char *name = weight_kind_name(&w->matrices[i]);
            size_t f = 0;
            if ((int)spec->matrices[i].weight_class != class) {
                continue;
            }
            while (f < n_forms && strcmp(forms[f].name, name) != 0) {
                f++;
            }
            if (f == FORMS_MAX) {
                f = FORMS_MAX - 1; /* more forms than anyone mixes: count under the last */
            } else if (f == n_forms) {
                forms[n_forms++] = (struct form){name, 0, 0};
            }
            forms[f].n++;
            forms[f].bytes += weight_bytes(&w->matrices[i]);
        }
        if (class == CLASS_HEAD && w->tied_head.kind != WEIGHT_NONE) {
            forms[n_forms++] =
                (struct form){weight_kind_name(&w->tied_head), 1, weight_bytes(&w->tied_head)};
        }
        for (size_t f = 0; f < n_forms; f++) {
            buf_appendf(out, "  %-20s %-12s %zu matrices, ",
                        weight_class_name((enum weight_class) class), forms[f].name, forms[f].n);
            print_bytes(out, forms[f].bytes);
            buf_append_char(out, '\n');
        }
    }
}

void weights_print_skipped(const struct model_weights *w, struct buf *out)
{
    for (size_t i = 0; i < w->n_skipped; i++) {
        buf_appendf(out, "%s: %zu tensors, ", w->skipped[i].label, w->skipped[i].n_tensors);
        print_bytes(out, w->skipped[i].n_bytes);
        buf_append_char(out, '\n');
    }
}
