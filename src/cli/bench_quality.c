/* bench_quality.c - see bench_quality.h. */
#include "cli/bench_quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "cli/token_rows.h"
#include "model/eval_run.h"

enum {
    TOKENS_DEFAULT = 4096,
    ROW_TOKENS = 1025, /* of a text: 1,024 predictions */
    STEP_ROWS = 512,
    PATH_BYTES = 4096
};
static const size_t STORE_BYTES = (size_t)1 << 30; /* reference probabilities, by default */

static const struct quality_row settings[] = {
    {.activations = "f32", .dense_quant = "none"},  {.activations = "bf16", .dense_quant = "none"},
    {.activations = "int8", .dense_quant = "none"}, {.activations = "f32", .dense_quant = "int8"},
    {.activations = "int8", .dense_quant = "int8"},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

struct quality {
    const struct model_flags *flags;
    const struct quality_source *source;
    const struct log *log;
    struct progress *progress;
    struct quality_report *report;
    struct token_rows rows;
    float *reference; /* [n_tokens][vocab] log probabilities */
    size_t n_done;    /* over all settings */

    /* of the row that is being predicted */
    bool is_reference;
    const int32_t *ids;
    size_t first; /* its place among all predictions */
    double loss, divergence;
    size_t n_same;
};

/* ---- one position ---- */

static double log_sum_exp(const float *x, size_t n)
{
    double max = x[eval_argmax(x, n)], sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += exp(x[i] - max);
    }
    return log(sum) + max;
}

double quality_divergence(const float *log_p, const float *logits, size_t n)
{
    double norm = log_sum_exp(logits, n), sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += exp(log_p[i]) * (log_p[i] - (logits[i] - norm));
    }
    return sum;
}

static void note_position(void *ctx, size_t position, const float *logits)
{
    struct quality *q = ctx;
    size_t vocab = q->report->vocab;
    float *log_p = q->reference + (q->first + position) * vocab;
    double norm = log_sum_exp(logits, vocab);

    q->loss += norm - logits[q->ids[position + 1]];
    if (q->is_reference) {
        for (size_t i = 0; i < vocab; i++) {
            log_p[i] = (float)(logits[i] - norm);
        }
        q->n_same++;
    } else {
        q->divergence += quality_divergence(log_p, logits, vocab);
        q->n_same += eval_argmax(log_p, vocab) == eval_argmax(logits, vocab);
    }
    q->n_done++;
}

/* ---- one setting ---- */

static enum status run_rows(struct quality *q, struct model *m, struct error *err)
{
    enum status rc = OK;

    q->loss = q->divergence = 0;
    q->n_same = q->first = 0;
    for (size_t i = 0; i < q->rows.n_rows && rc == OK; i++) {
        const struct token_row *row = &q->rows.rows[i];

        q->ids = row->ids;
        rc = eval_each(m, row->ids, row->n, note_position, q, err);
        q->first += row->n - 1;
        progress_update(q->progress, q->n_done);
        if (rc != OK) {
            error_prefix(err, "sequence %zu", i);
        }
    }
    return rc;
}

static enum status open_rows(struct quality *q, struct model_setup *setup, struct error *err)
{
    const struct quality_source *s = q->source;
    char path[PATH_BYTES];
    enum status rc;

    if (s->rows) {
        return token_rows_of_file(&q->rows, s->rows, err);
    }
    if (s->text) {
        return token_rows_of_text(&q->rows, setup->tokenizer, s->text,
                                  size_min(ROW_TOKENS, setup->context_length), err);
    }
    int len = snprintf(path, sizeof path, "%s/golden.json", checkpoint_dir(setup->checkpoint));
    if (len < 0 || (size_t)len >= sizeof path) {
        return error_set(err, ERR_LIMIT, "the model's path is too long");
    }
    rc = token_rows_of_golden(&q->rows, &q->report->recorded_loss, path, err);
    if (rc == ERR_NOT_FOUND) {
        rc = error_set_param(err, ERR_USAGE, "text",
                             "the model's folder has no golden.json: give --text FILE or --rows "
                             "FILE to measure on");
    }
    return rc;
}

/* With the first model open, the vocabulary is known, and so is how many tokens fit. */
static enum status prepare(struct quality *q, struct model_setup *setup, struct error *err)
{
    struct quality_report *r = q->report;
    size_t n_floats, most;
    enum status rc = open_rows(q, setup, err);

    if (rc != OK) {
        return rc;
    }
    r->vocab = model_get_config(setup->model)->vocab_size;
    most = q->source->n_tokens_max;
    if (most == 0) {
        most = size_min(TOKENS_DEFAULT, size_max(STORE_BYTES / (r->vocab * sizeof(float)), 1));
    }
    token_rows_limit(&q->rows, most);
    r->n_tokens = token_rows_predicted(&q->rows);
    r->n_sequences = q->rows.n_rows;
    if (size_mul(&n_floats, r->n_tokens, r->vocab)) {
        q->reference = calloc(n_floats, sizeof *q->reference);
    }
    if (!q->reference) {
        return error_set(err, ERR_NO_MEMORY,
                         "cannot keep the probabilities of %zu tokens: lower --quality-tokens",
                         r->n_tokens);
    }
    progress_start(q->progress, "quality", PROGRESS_TOKENS, r->n_tokens * N_SETTINGS);
    return OK;
}

static enum status run_setting(struct quality *q, const struct quality_row *setting,
                               struct error *err)
{
    const struct model_setup_options o = {.rows_max = STEP_ROWS,
                                          .out_rows_max = SIZE_MAX,
                                          .quiet = true,
                                          .max_running = 1,
                                          .want_tokenizer = q->source->text != NULL};
    struct quality_row *row = &q->report->rows[q->report->n_rows];
    struct model_flags flags = *q->flags;
    struct model_setup setup;
    enum status rc;

    flags.dtype = "float32";
    flags.cpu_activations = setting->activations;
    flags.dense_quant = setting->dense_quant;
    q->is_reference = q->report->n_rows == 0;
    rc = model_setup_open(&setup, &flags, &o, q->log, err);
    if (rc != OK) {
        return rc;
    }
    if (q->is_reference) {
        rc = prepare(q, &setup, err);
    }
    if (rc == OK) {
        uint64_t start = clock_now_ns();
        double n = (double)q->report->n_tokens;

        rc = run_rows(q, setup.model, err);
        *row = *setting;
        row->loss = q->loss / n;
        row->divergence = q->divergence / n;
        row->same_best = (double)q->n_same / n;
        row->tok_s = n / clock_seconds_since(start);
        q->report->n_rows++;
    }
    model_setup_close(&setup);
    return rc;
}

enum status quality_measure(struct quality_report *out, const struct model_flags *flags,
                            const struct quality_source *source, const struct log *log,
                            struct progress *progress, struct error *err)
{
    struct quality q = {
        .flags = flags, .source = source, .log = log, .progress = progress, .report = out};
    enum status rc = OK;

    *out = (struct quality_report){0};
    for (size_t i = 0; i < N_SETTINGS && rc == OK; i++) {
        rc = run_setting(&q, &settings[i], err);
        if (rc != OK) {
            error_prefix(err, "activations %s, dense %s", settings[i].activations,
                         settings[i].dense_quant);
        }
    }
    if (q.reference) {
        progress_finish(progress); /* also after a failure: the line must end */
    }
    token_rows_release(&q.rows);
    free(q.reference);
    return rc;
}

/* ---- print-outs ---- */

void quality_print(FILE *out, const struct quality_report *r)
{
    fprintf(out, "%zu tokens in %zu sequences, vocabulary %zu\n\n", r->n_tokens, r->n_sequences,
            r->vocab);
    fprintf(out, "%-12s %-6s %12s %12s %14s %12s\n", "activations", "dense", "loss", "difference",
            "divergence", "same best");
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct quality_row *row = &r->rows[i];

        fprintf(out, "%-12s %-6s %12.6f %+12.6f %14.3e %10.2f %%\n", row->activations,
                row->dense_quant, row->loss, row->loss - r->rows[0].loss, row->divergence,
                100 * row->same_best);
    }
    fprintf(out, "\nloss and divergence in nats per token, against the first line\n");
    if (r->recorded_loss > 0) {
        fprintf(out, "recorded by the reference implementation over the whole recording: %.6f\n",
                r->recorded_loss);
    }
}

static void put_number(struct buf *out, const char *key, double v)
{
    if (isfinite(v)) {
        buf_appendf(out, ",\"%s\":%.9g", key, v);
    } else {
        buf_appendf(out, ",\"%s\":null", key);
    }
}

void quality_json(struct buf *out, const struct quality_report *r)
{
    buf_appendf(out, "{\"tokens\":%zu,\"sequences\":%zu,\"vocab\":%zu,\"settings\":[", r->n_tokens,
                r->n_sequences, r->vocab);
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct quality_row *row = &r->rows[i];

        buf_appendf(out, "%s{\"cpu_activations\":\"%s\",\"dense_quant\":\"%s\"", i ? "," : "",
                    row->activations, row->dense_quant);
        put_number(out, "loss", row->loss);
        put_number(out, "divergence", row->divergence);
        put_number(out, "same_best", row->same_best);
        put_number(out, "tok_s", row->tok_s);
        buf_append_char(out, '}');
    }
    buf_append_str(out, "]}\n");
}
