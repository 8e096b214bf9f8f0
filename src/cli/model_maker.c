/* model_maker.c - see model_maker.h. The folder's old and unfinished files are model_folder.c. */
#include "cli/model_maker.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/file_out.h"
#include "base/json.h"
#include "base/size.h"
#include "cli/model_fill.h"
#include "cli/model_folder.h"
#include "cli/model_inventory.h"
#include "cli/model_texts.h"
#include "formats/checkpoint.h"
#include "formats/safetensors_stream.h"

enum {
    BLOCK_BYTES = 1 << 20, /* stays in the second cache level between filling and writing */
    SHARD_NAME_BYTES = 64,
    INDEX_ENTRY_BYTES = 128 /* about; for the check of the disk's free space */
};

static const char index_name[] = "model.safetensors.index.json";

struct making {
    const struct make_options *o;
    struct pool *pool;
    struct progress *progress;
    struct model_inventory inv;
    struct fill fills[FILL_SPECS_MAX]; /* of inv.fills */
    unsigned char *blocks;             /* [threads][BLOCK_BYTES] */
    size_t *shard_first; /* [n_shards + 1]: shard i has tensors [first[i], first[i+1]) */
    size_t n_shards;
    uint64_t done_bytes; /* of tensors, in finished shards */
    uint64_t file_bytes;
};

/* ---- one shard ---- */

struct shard_job {
    const struct making *m;
    const struct safetensors_stream *stream;
    _Atomic size_t next_block;
    _Atomic size_t done_bytes;
    _Atomic bool failed;
    pthread_mutex_t lock; /* guards rc and *err */
    enum status rc;       /* the first failure */
    struct error *err;
};

static void job_fail(struct shard_job *job, const struct error *err)
{
    pthread_mutex_lock(&job->lock);
    if (job->rc == OK) {
        job->rc = err->code;
        if (job->err) {
            *job->err = *err;
        }
    }
    pthread_mutex_unlock(&job->lock);
    atomic_store(&job->failed, true);
}

/* Bytes [begin, begin + n) of the shard's data. Both ends fall on elements: blocks are multiples of
 * every element size, and so is the place of a tensor. */
static void fill_block(unsigned char *out, const struct shard_job *job, size_t begin, size_t n)
{
    size_t end = begin + n;

    for (size_t i = safetensors_stream_find(job->stream, begin); begin < end; i++) {
        const struct safetensors_slot *slot = safetensors_stream_at(job->stream, i);
        const struct made_tensor *t = slot->source;
        size_t each = dtype_bytes(slot->tensor.dtype);
        size_t part = size_min(end, slot->begin + slot->n_bytes) - begin;

        fill_range(out, &job->m->fills[t->fill_idx], fill_key(job->m->o->seed, t->name),
                   (begin - slot->begin) / each, part / each);
        out += part;
        begin += part;
    }
}

/* Only the caller's thread reports and asks whether to go on. */
static void look_around(struct shard_job *job)
{
    const struct make_options *o = job->m->o;
    struct error err = {0};

    progress_update(job->m->progress, job->m->done_bytes + atomic_load(&job->done_bytes));
    if (o->should_stop && o->should_stop(o->stop_ctx)) {
        error_set(&err, ERR_CANCELLED, "stopped; what was written of '%s' is removed", o->dir);
        job_fail(job, &err);
    }
}

static void work(void *ctx, size_t begin, size_t end, size_t thread)
{
    struct shard_job *job = ctx;
    unsigned char *block = job->m->blocks + thread * BLOCK_BYTES;
    size_t total = safetensors_stream_bytes(job->stream);

    (void)begin;
    (void)end;
    while (!atomic_load(&job->failed)) {
        size_t at = atomic_fetch_add(&job->next_block, 1) * BLOCK_BYTES;
        size_t n = at < total ? size_min(BLOCK_BYTES, total - at) : 0;
        struct error err = {0};

        if (n == 0) {
            return;
        }
        fill_block(block, job, at, n);
        if (safetensors_stream_write(job->stream, at, block, n, &err) != OK) {
            job_fail(job, &err);
            return;
        }
        atomic_fetch_add(&job->done_bytes, n);
        if (thread == 0) {
            look_around(job);
        }
    }
}

static void shard_name(char out[SHARD_NAME_BYTES], const struct making *m, size_t shard)
{
    snprintf(out, SHARD_NAME_BYTES, "model-%05zu-of-%05zu.safetensors", shard + 1, m->n_shards);
}

/* No wait for the disk: these bytes can be made again, and waiting would cost more than making them. */
static enum status write_data(struct making *m, struct safetensors_stream *s, struct error *err)
{
    size_t n_threads = pool_threads(m->pool);
    struct shard_job job = {.m = m, .stream = s, .err = err};

    pthread_mutex_init(&job.lock, NULL);
    pool_run_even(m->pool, n_threads, 1, work, &job);
    pthread_mutex_destroy(&job.lock);
    if (job.rc != OK) {
        return job.rc;
    }
    m->done_bytes += safetensors_stream_bytes(s);
    m->file_bytes += safetensors_stream_bytes(s);
    progress_update(m->progress, m->done_bytes);
    return safetensors_stream_finish(s, false, err);
}

static enum status write_shard(struct making *m, size_t shard, struct error *err)
{
    char name[SHARD_NAME_BYTES], path[CHECKPOINT_PATH_BYTES];
    struct safetensors_stream *s = NULL;
    enum status rc;

    shard_name(name, m, shard);
    rc = model_folder_path(path, m->o->dir, name, err);
    if (rc == OK) {
        rc = safetensors_stream_new(&s, err);
    }
    for (size_t i = m->shard_first[shard]; rc == OK && i < m->shard_first[shard + 1]; i++) {
        const struct made_tensor *t = &m->inv.tensors[i];

        rc = safetensors_stream_add(s, t->name, &t->tensor, t, err);
    }
    if (rc == OK) {
        rc = safetensors_stream_open(s, path, err);
    }
    if (rc == OK) {
        rc = write_data(m, s, err);
    }
    safetensors_stream_free(s);
    return rc;
}

/* ---- the other files ---- */

static enum status save(struct making *m, const char *name, struct buf *content, struct error *err)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status rc = OK;

    if (!buf_ok(content)) {
        rc = error_set(err, ERR_NO_MEMORY, "cannot allocate the content of '%s'", name);
    }
    if (rc == OK) {
        rc = model_folder_path(path, m->o->dir, name, err);
    }
    if (rc == OK) {
        rc = file_out_save(path, content->data, content->len, false, err);
    }
    m->file_bytes += content->len;
    buf_release(content);
    return rc;
}

static enum status write_index(struct making *m, struct error *err)
{
    char name[SHARD_NAME_BYTES];
    struct buf b;

    buf_init(&b);
    buf_appendf(&b, "{\n  \"metadata\": {\"total_size\": %zu},\n  \"weight_map\": {",
                m->inv.n_bytes);
    for (size_t shard = 0; shard < m->n_shards; shard++) {
        shard_name(name, m, shard);
        for (size_t i = m->shard_first[shard]; i < m->shard_first[shard + 1]; i++) {
            buf_append_str(&b, i ? ",\n    " : "\n    ");
            json_write_string(&b, m->inv.tensors[i].name, strlen(m->inv.tensors[i].name));
            buf_appendf(&b, ": \"%s\"", name);
        }
    }
    buf_append_str(&b, "\n  }\n}\n");
    return save(m, index_name, &b, err);
}

static enum status write_texts(struct making *m, struct error *err)
{
    const struct model_text_input in = {&m->o->shape, &m->o->variant, m->o->seed};
    enum status rc = OK;

    for (size_t i = 0; i < model_texts_count && rc == OK; i++) {
        struct buf b;

        buf_init(&b);
        model_texts[i].write(&b, &in);
        rc = save(m, model_texts[i].name, &b, err);
    }
    return rc;
}

/* ---- the whole ---- */

/* A new shard begins where the next tensor would pass the limit. */
static enum status deal_out(struct making *m, struct error *err)
{
    size_t used = 0;

    m->shard_first = calloc(CHECKPOINT_SHARDS_MAX + 1, sizeof *m->shard_first);
    if (!m->shard_first) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of shards");
    }
    m->n_shards = 1;
    for (size_t i = 0; i < m->inv.n; i++) {
        size_t n = m->inv.tensors[i].n_bytes;

        if (used > 0 && (n > m->o->shard_bytes || used > m->o->shard_bytes - n)) {
            if (m->n_shards == CHECKPOINT_SHARDS_MAX) {
                return error_set(err, ERR_USAGE,
                                 "shards of %zu bytes: %zu bytes need more than %d of them",
                                 m->o->shard_bytes, m->inv.n_bytes, CHECKPOINT_SHARDS_MAX);
            }
            m->shard_first[m->n_shards++] = i;
            used = 0;
        }
        used += n;
    }
    m->shard_first[m->n_shards] = m->inv.n;
    return OK;
}

static enum status prepare(struct making *m, struct error *err)
{
    enum status rc = model_inventory_new(&m->inv, &m->o->shape, &m->o->variant, err);

    if (rc == OK) {
        rc = deal_out(m, err);
    }
    if (rc != OK) {
        return rc;
    }
    for (size_t i = 0; i < m->inv.n_fills; i++) {
        fill_init(&m->fills[i], &m->inv.fills[i]);
    }
    m->blocks = aligned_new(pool_threads(m->pool) * BLOCK_BYTES);
    if (!m->blocks) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the buffers of %zu threads",
                         pool_threads(m->pool));
    }
    return OK;
}

static enum status write_all(struct making *m, struct error *err)
{
    char label[SHARD_NAME_BYTES];
    enum status rc = OK;

    snprintf(label, sizeof label, "writing %s", m->o->shape.name);
    progress_start(m->progress, label, PROGRESS_BYTES, m->inv.n_bytes);
    for (size_t i = 0; i < m->n_shards && rc == OK; i++) {
        rc = write_shard(m, i, err);
    }
    progress_finish(m->progress);
    if (rc == OK) {
        rc = write_index(m, err);
    }
    return rc == OK ? write_texts(m, err) : rc;
}

static void release(struct making *m)
{
    model_inventory_release(&m->inv);
    free(m->shard_first);
    free(m->blocks);
    free(m);
}

enum status model_make(struct make_result *out, const struct make_options *o, struct pool *pool,
                       struct progress *progress, struct error *err)
{
    struct making *m = calloc(1, sizeof *m);
    bool made_dir = false;
    enum status rc;

    *out = (struct make_result){0};
    if (!m) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the writer of '%s'", o->dir);
    }
    m->o = o;
    m->pool = pool;
    m->progress = progress;
    rc = prepare(m, err);
    if (rc == OK) {
        rc = model_folder_prepare(&made_dir, o->dir, o->replace,
                                  m->inv.n_bytes + m->inv.n * INDEX_ENTRY_BYTES, err);
    }
    if (rc == OK) {
        rc = write_all(m, err);
        if (rc != OK) {
            model_folder_clear(o->dir, made_dir);
        }
    }
    *out = (struct make_result){m->inv.n, m->n_shards, m->inv.n_bytes, m->file_bytes};
    release(m);
    return rc;
}
