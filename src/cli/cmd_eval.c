/* cmd_eval.c - `spillway eval`: a model's numbers, for comparing with a reference.
 *
 * Place: cli. Three uses, in one command because they share the loaded model:
 *          --inputs/--outputs   every P.input_ids of a safetensors file: logits, hidden rows, states and
 *                               greedy continuations into another, named and shaped as in tests/golden
 *          --loss               mean loss over rows of token ids
 *          --golden             recorded greedy answers and mean loss (golden.json of the demo model)
 *        Prompts can be cut on purpose, since the answer must not depend on where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "cli/command.h"
#include "cli/model_setup.h"
#include "formats/safetensors.h"
#include "model/eval_run.h"

enum {
    EVAL_ROWS_MAX = 512,       /* rows of one step: with all their logits they need vocab x 2 KiB */
    EVAL_TOKENS_MAX = 1 << 24, /* of one prompt or loss file */
    EVAL_NAME_BYTES = 256,
    GOLDEN_BYTES_MAX = 64 << 20
};

struct eval_flags {
    const char *inputs, *outputs, *loss, *golden;
    size_t greedy, split, window;
    bool split_each, no_logits, no_hidden, no_states;
};

#define AT(member) .offset = FLAG_OFFSET(struct eval_flags, member)

static const struct flag eval_flag_table[] = {
    {.name = "inputs",
     .kind = FLAG_STRING,
     AT(inputs),
     .metavar = "FILE",
     .help = "safetensors with P.input_ids for each prompt P"},
    {.name = "outputs",
     .kind = FLAG_STRING,
     AT(outputs),
     .metavar = "FILE",
     .help = "safetensors to write: P.logits, P.hidden.N, P.conv_states.L, P.keys.L, ..."},
    {.name = "greedy",
     .kind = FLAG_SIZE,
     AT(greedy),
     .metavar = "N",
     .help = "continue each prompt with the N most likely tokens: P.greedy, P.greedy_logits"},
    {.name = "split",
     .kind = FLAG_SIZE,
     AT(split),
     .metavar = "N",
     .help = "cut each prompt after its first N tokens"},
    {.name = "split-each",
     .kind = FLAG_BOOL,
     AT(split_each),
     .help = "run prompts one token at a time"},
    {.name = "window",
     .kind = FLAG_SIZE,
     AT(window),
     .metavar = "N",
     .help = "run prompts in pieces of N tokens"},
    {.name = "no-logits", .kind = FLAG_BOOL, AT(no_logits), .help = "leave out P.logits"},
    {.name = "no-hidden", .kind = FLAG_BOOL, AT(no_hidden), .help = "leave out P.hidden.N"},
    {.name = "no-states",
     .kind = FLAG_BOOL,
     AT(no_states),
     .help = "leave out states, keys, values"},
    {.name = "loss",
     .kind = FLAG_STRING,
     AT(loss),
     .metavar = "FILE",
     .help = "print the mean loss over the rows of the integer tensors in this safetensors file"},
    {.name = "golden",
     .kind = FLAG_STRING,
     AT(golden),
     .metavar = "FILE",
     .help = "compare with recorded answers and loss (golden.json)"},
};

struct eval {
    struct eval_flags flags;
    struct model_flags model_flags;
    struct model_setup setup;
    struct safetensors *inputs;
    struct safetensors_writer *writer;
    struct eval_prompt { /* one P; everything lives until the file is written */
        char name[EVAL_NAME_BYTES];
        struct eval_result result;
    } * prompts;
    size_t n_prompts;
    struct eval_output { /* likewise: the writer borrows both */
        char name[EVAL_NAME_BYTES];
        struct tensor tensor;
    } * outputs;
    size_t n_outputs, outputs_max;
};

/* ---- token ids from tensors ---- */

/* Elements [first, first+n) of an integer tensor. */
static enum status read_tokens(int32_t *out, const struct safetensors_entry *e, size_t first,
                               size_t n, struct error *err)
{
    const uint8_t *data = e->tensor.data;

    for (size_t i = 0; i < n; i++) {
        int64_t wide;
        if (e->tensor.dtype == DTYPE_I32) {
            memcpy(&out[i], data + (first + i) * sizeof *out, sizeof *out);
            continue;
        }
        memcpy(&wide, data + (first + i) * sizeof wide, sizeof wide);
        if (wide < INT32_MIN || wide > INT32_MAX) {
            return error_set(err, ERR_FORMAT, "tensor '%s': %lld is not a token id", e->name,
                             (long long)wide);
        }
        out[i] = (int32_t)wide;
    }
    return OK;
}

static enum status tokens_new(int32_t **out, const struct safetensors_entry *e, size_t first,
                              size_t n, struct error *err)
{
    enum status rc;

    *out = NULL;
    if (e->tensor.dtype != DTYPE_I32 && e->tensor.dtype != DTYPE_I64) {
        return error_set(err, ERR_FORMAT, "tensor '%s' is %s: token ids are int32 or int64",
                         e->name, dtype_name(e->tensor.dtype));
    }
    if (n == 0 || n > EVAL_TOKENS_MAX) {
        return error_set(err, ERR_LIMIT, "tensor '%s' has %zu tokens: 1 to %d are possible",
                         e->name, n, EVAL_TOKENS_MAX);
    }
    *out = malloc(n * sizeof **out);
    if (!*out) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu tokens", n);
    }
    rc = read_tokens(*out, e, first, n, err);
    if (rc != OK) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- outputs ---- */

static enum status add(struct eval *ev, const struct eval_prompt *p, const char *what,
                       size_t number, enum dtype dtype, const void *data, size_t n_dims,
                       const size_t *shape, struct error *err)
{
    struct eval_output *out = &ev->outputs[ev->n_outputs];
    int n;

    if (ev->n_outputs == ev->outputs_max) {
        return error_set(err, ERR_INTERNAL, "too many output tensors");
    }
    n = number == SIZE_MAX
            ? snprintf(out->name, sizeof out->name, "%s.%s", p->name, what)
            : snprintf(out->name, sizeof out->name, "%s.%s.%zu", p->name, what, number);
    if (n < 0 || (size_t)n >= sizeof out->name) {
        return error_set(err, ERR_LIMIT, "prompt name '%s' is too long", p->name);
    }
    ev->n_outputs++;
    out->tensor =
        (struct tensor){.data = (void *)(uintptr_t)data, .dtype = dtype, .n_dims = n_dims};
    memcpy(out->tensor.shape, shape, n_dims * sizeof *shape);
    return safetensors_writer_add(ev->writer, out->name, &out->tensor, err);
}

static enum status add_states(struct eval *ev, const struct eval_prompt *p, struct error *err)
{
    const struct eval_result *r = &p->result;
    const size_t conv[] = {r->channels, r->columns}, state[] = {r->nv, r->dk, r->dv};
    const size_t kv[] = {r->nkv, r->n_tokens, r->hd};
    size_t n_conv = conv[0] * conv[1], n_state = state[0] * state[1] * state[2];
    size_t n_kv = kv[0] * kv[1] * kv[2];
    const struct model *m = ev->setup.model;
    enum status rc = OK;

    for (size_t i = 0; rc == OK && i < r->n_gdn; i++) {
        size_t layer = eval_gdn_layer(m, i);
        rc = add(ev, p, "conv_states", layer, DTYPE_F32, r->conv + i * n_conv, 2, conv, err);
        if (rc == OK) {
            rc = add(ev, p, "recurrent_states", layer, DTYPE_F32, r->recurrent + i * n_state, 3,
                     state, err);
        }
    }
    for (size_t i = 0; rc == OK && i < r->n_attn; i++) {
        size_t layer = eval_attn_layer(m, i);
        rc = add(ev, p, "keys", layer, DTYPE_F32, r->keys + i * n_kv, 3, kv, err);
        if (rc == OK) {
            rc = add(ev, p, "values", layer, DTYPE_F32, r->values + i * n_kv, 3, kv, err);
        }
    }
    return rc;
}

static enum status add_result(struct eval *ev, const struct eval_prompt *p, struct error *err)
{
    const struct eval_result *r = &p->result;
    const size_t logits[] = {r->n_tokens, r->vocab}, hidden[] = {r->n_tokens, r->hidden_size};
    const size_t greedy[] = {r->n_greedy, r->vocab};
    enum status rc = OK;

    if (r->logits) {
        rc = add(ev, p, "logits", SIZE_MAX, DTYPE_F32, r->logits, 2, logits, err);
    }
    for (size_t i = 0; rc == OK && r->hidden && i <= r->n_layers; i++) {
        rc = add(ev, p, "hidden", i, DTYPE_F32, r->hidden + i * r->n_tokens * r->hidden_size, 2,
                 hidden, err);
    }
    if (rc == OK && r->conv) {
        rc = add_states(ev, p, err);
    }
    if (rc == OK && r->n_greedy > 0) {
        rc = add(ev, p, "greedy", SIZE_MAX, DTYPE_I32, r->greedy, 1, greedy, err);
    }
    if (rc == OK && r->n_greedy > 0) {
        rc = add(ev, p, "greedy_logits", SIZE_MAX, DTYPE_F32, r->greedy_logits, 2, greedy, err);
    }
    return rc;
}

/* ---- prompts ---- */

static enum status run_prompt(struct eval *ev, struct eval_prompt *p,
                              const struct safetensors_entry *e, struct error *err)
{
    const struct eval_flags *f = &ev->flags;
    const struct eval_options o = {.first = f->split,
                                   .window = f->split_each ? 1 : f->window,
                                   .n_greedy = f->greedy,
                                   .want_logits = !f->no_logits,
                                   .want_hidden = !f->no_hidden,
                                   .want_states = !f->no_states};
    size_t n = tensor_count(&e->tensor);
    uint64_t start = clock_now_ns();
    int32_t *tokens;
    enum status rc = tokens_new(&tokens, e, 0, n, err);

    if (rc == OK) {
        rc = eval_run(&p->result, ev->setup.model, tokens, n, &o, err);
    }
    free(tokens);
    if (rc == OK && p->result.bad_layer >= 0) {
        rc = error_set(err, ERR_INTERNAL, "layer %d gave a value that is not finite",
                       p->result.bad_layer);
    }
    if (rc != OK) {
        error_prefix(err, "prompt '%s'", p->name);
        return rc;
    }
    printf("%s: %zu tokens, %zu more, %.2f s\n", p->name, n, p->result.n_greedy,
           clock_seconds_since(start));
    return add_result(ev, p, err);
}

static enum status outputs_make(struct eval *ev, struct error *err)
{
    const struct model_config *c = model_get_config(ev->setup.model);
    size_t per_prompt = 3 * c->n_layers + 8;

    ev->prompts = calloc(safetensors_count(ev->inputs) + 1, sizeof *ev->prompts);
    if (!size_mul(&ev->outputs_max, per_prompt, safetensors_count(ev->inputs) + 1)) {
        return error_set(err, ERR_LIMIT, "too many prompts");
    }
    ev->outputs = calloc(ev->outputs_max, sizeof *ev->outputs);
    if (!ev->prompts || !ev->outputs) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of outputs");
    }
    return safetensors_writer_new(&ev->writer, err);
}

static enum status run_inputs(struct eval *ev, struct error *err)
{
    static const struct str suffix = {".input_ids", sizeof ".input_ids" - 1};
    enum status rc = outputs_make(ev, err);

    for (size_t i = 0; rc == OK && i < safetensors_count(ev->inputs); i++) {
        const struct safetensors_entry *e = safetensors_at(ev->inputs, i);
        struct str name = str_of(e->name);
        struct eval_prompt *p = &ev->prompts[ev->n_prompts];

        if (!str_ends(name, suffix)) {
            continue;
        }
        if (name.len - suffix.len >= sizeof p->name) {
            return error_set(err, ERR_LIMIT, "tensor name '%s' is too long", e->name);
        }
        memcpy(p->name, name.ptr, name.len - suffix.len);
        ev->n_prompts++;
        rc = run_prompt(ev, p, e, err);
    }
    if (rc == OK && ev->n_prompts == 0) {
        rc = error_set(err, ERR_FORMAT, "'%s' has no tensor named P.input_ids", ev->flags.inputs);
    }
    return rc == OK ? safetensors_writer_finish(ev->writer, ev->flags.outputs, err) : rc;
}

/* ---- loss ---- */

struct loss {
    double sum;
    size_t n_predicted, n_rows;
};

static enum status loss_add(struct loss *l, struct eval *ev, const int32_t *row, size_t n,
                            struct error *err)
{
    double sum;
    enum status rc = eval_loss(&sum, ev->setup.model, row, n, err);

    if (rc == OK) {
        l->sum += sum;
        l->n_predicted += n - 1;
        l->n_rows++;
    }
    return rc;
}

static enum status loss_of_tensor(struct loss *l, struct eval *ev,
                                  const struct safetensors_entry *e, struct error *err)
{
    size_t width = e->tensor.n_dims > 0 ? e->tensor.shape[e->tensor.n_dims - 1] : 0;
    size_t n_rows = width > 0 ? tensor_count(&e->tensor) / width : 0;
    enum status rc = OK;

    if (width < 2) {
        return error_set(err, ERR_FORMAT, "tensor '%s': rows of at least two tokens are needed",
                         e->name);
    }
    for (size_t i = 0; rc == OK && i < n_rows; i++) {
        int32_t *row;
        rc = tokens_new(&row, e, i * width, width, err);
        if (rc == OK) {
            rc = loss_add(l, ev, row, width, err);
        }
        free(row);
    }
    return rc;
}

static enum status run_loss(struct eval *ev, struct error *err)
{
    struct safetensors *file = NULL;
    struct loss l = {0};
    enum status rc = safetensors_open(&file, ev->flags.loss, err);

    for (size_t i = 0; rc == OK && i < safetensors_count(file); i++) {
        rc = loss_of_tensor(&l, ev, safetensors_at(file, i), err);
    }
    safetensors_close(file);
    if (rc == OK && l.n_predicted == 0) {
        rc = error_set(err, ERR_FORMAT, "'%s' holds no rows", ev->flags.loss);
    }
    if (rc == OK) {
        printf("mean loss %.6f over %zu rows, %zu tokens\n", l.sum / (double)l.n_predicted,
               l.n_rows, l.n_predicted);
    }
    return rc;
}

/* ---- golden.json ---- */

/* The ids of a JSON list; *out is the caller's. */
static enum status json_tokens(int32_t **out, size_t *n, struct json_object *o, const char *key,
                               struct error *err)
{
    struct json_object *list = json_get(o, key);

    *out = NULL;
    if (!json_object_is_type(list, json_type_array)) {
        return error_set(err, ERR_FORMAT, "'%s' is not a list", key);
    }
    *n = json_object_array_length(list);
    *out = malloc((*n + 1) * sizeof **out);
    if (!*out) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate %zu tokens", *n);
    }
    for (size_t i = 0; i < *n; i++) {
        int64_t id = json_object_get_int64(json_object_array_get_idx(list, i));
        if (id < 0 || id > INT32_MAX) {
            free(*out);
            *out = NULL;
            return error_set(err, ERR_FORMAT, "'%s'[%zu] is not a token id", key, i);
        }
        (*out)[i] = (int32_t)id;
    }
    return OK;
}

static enum status golden_answer(struct eval *ev, struct json_object *o, size_t i, bool *is_same,
                                 struct error *err)
{
    struct eval_options options = {0};
    struct eval_result r = {0};
    struct token_ids prompt = {0};
    int32_t *want = NULL;
    const char *text = NULL;
    enum status rc = json_get_string(&text, o, "prompt", ERR_FORMAT, err);

    if (rc == OK) {
        rc = json_tokens(&want, &options.n_greedy, o, "tokens", err);
    }
    if (rc == OK) {
        rc = tokenizer_encode_text(&prompt, ev->setup.tokenizer, str_of(text), err);
    }
    if (rc == OK) {
        rc = eval_run(&r, ev->setup.model, prompt.ids, prompt.n, &options, err);
    }
    if (rc == OK) {
        *is_same = r.n_greedy == options.n_greedy &&
                   memcmp(r.greedy, want, r.n_greedy * sizeof *want) == 0;
        for (size_t j = 0; !*is_same && j < r.n_greedy; j++) {
            if (r.greedy[j] != want[j]) {
                printf("answer %zu: token %zu is %d, recorded %d\n", i, j, r.greedy[j], want[j]);
                break;
            }
        }
    }
    eval_result_release(&r);
    token_ids_release(&prompt);
    free(want);
    return rc;
}

static enum status golden_loss(struct eval *ev, struct json_object *o, struct error *err)
{
    struct loss l = {0};
    size_t n_rows = 0, width = 0, n;
    double recorded = 0;
    int32_t *tokens = NULL;
    enum status rc = json_get_size(&n_rows, o, "loss_rows", ERR_FORMAT, err);

    if (rc == OK) {
        rc = json_get_size(&width, o, "loss_row_tokens", ERR_FORMAT, err);
    }
    if (rc == OK) {
        rc = json_get_double(&recorded, o, "mean_loss", ERR_FORMAT, err);
    }
    if (rc == OK) {
        rc = json_tokens(&tokens, &n, o, "loss_text_tokens", err);
    }
    if (rc == OK && (width < 2 || n_rows == 0 || n / width < n_rows)) {
        rc =
            error_set(err, ERR_FORMAT, "%zu loss tokens are not %zu rows of %zu", n, n_rows, width);
    }
    for (size_t i = 0; rc == OK && i < n_rows; i++) {
        rc = loss_add(&l, ev, tokens + i * width, width, err);
    }
    free(tokens);
    if (rc == OK) {
        double mean = l.sum / (double)l.n_predicted;
        printf("mean loss %.6f over %zu rows, recorded %.6f, difference %+.6f\n", mean, n_rows,
               recorded, mean - recorded);
    }
    return rc;
}

static enum status run_golden(struct eval *ev, struct error *err)
{
    struct json_object *o, *prompts;
    size_t n = 0, n_same = 0;
    enum status rc = json_parse_file(&o, ev->flags.golden, GOLDEN_BYTES_MAX, err);

    if (rc != OK) {
        return rc;
    }
    prompts = json_get(o, "prompts");
    if (json_object_is_type(prompts, json_type_array)) {
        n = json_object_array_length(prompts);
    }
    for (size_t i = 0; rc == OK && i < n; i++) {
        bool is_same = false;
        rc = golden_answer(ev, json_object_array_get_idx(prompts, i), i, &is_same, err);
        n_same += is_same;
    }
    if (rc == OK) {
        printf("%zu of %zu greedy answers identical\n", n_same, n);
        rc = golden_loss(ev, o, err);
    }
    if (rc != OK) {
        error_prefix(err, "'%s'", ev->flags.golden);
    }
    json_object_put(o);
    return rc;
}

/* ---- the command ---- */

static enum status flags_check(const struct eval_flags *f, struct error *err)
{
    if (!f->inputs && !f->loss && !f->golden) {
        return error_set(err, ERR_USAGE,
                         "nothing to do: give --inputs and --outputs, --loss or --golden");
    }
    if (!f->inputs != !f->outputs) {
        return error_set_param(err, ERR_USAGE, f->inputs ? "outputs" : "inputs",
                               "--inputs and --outputs go together");
    }
    return OK;
}

static enum status run_parsed(struct eval *ev, struct log *log, struct error *err)
{
    struct model_setup_options o = {
        .rows_max = EVAL_ROWS_MAX, .out_rows_max = SIZE_MAX, .quiet = true};
    enum status rc = flags_check(&ev->flags, err);

    o.want_tokenizer = ev->flags.golden != NULL;
    if (rc == OK && ev->flags.inputs) {
        rc = safetensors_open(&ev->inputs, ev->flags.inputs, err);
    }
    if (rc == OK) {
        rc = model_setup_open(&ev->setup, &ev->model_flags, &o, log, err);
    }
    if (rc == OK && ev->flags.inputs) {
        rc = run_inputs(ev, err);
    }
    if (rc == OK && ev->flags.loss) {
        rc = run_loss(ev, err);
    }
    if (rc == OK && ev->flags.golden) {
        rc = run_golden(ev, err);
    }
    safetensors_writer_free(ev->writer);
    for (size_t i = 0; i < ev->n_prompts; i++) {
        eval_result_release(&ev->prompts[i].result);
    }
    free(ev->prompts);
    free(ev->outputs);
    model_setup_close(&ev->setup);
    safetensors_close(ev->inputs);
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct eval ev = {0};
    struct flag_result given = {0};
    struct error err = {0};
    const struct flag_group groups[] = {
        {"Evaluation", eval_flag_table, sizeof eval_flag_table / sizeof eval_flag_table[0],
         &ev.flags},
        {"Model", model_flag_table, model_flag_count, &ev.model_flags},
    };
    enum status rc;

    model_flags_defaults(&ev.model_flags);
    ev.model_flags.cpu_activations = "f32"; /* references are compared, not speeds */
    rc = flags_parse(&given, &command_eval, groups, sizeof groups / sizeof groups[0], 0, argc, argv,
                     log, &err);
    if (rc == OK && !given.help) {
        log->level = LOG_WARNING;
        rc = run_parsed(&ev, log, &err);
    }
    flags_release(&given);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_eval = {
    .name = "eval",
    .summary = "logits, states and loss, for comparing with a reference",
    .examples =
        "spillway eval --model models/rill --golden models/rill/golden.json\n"
        "spillway eval --model DIR --inputs prompts.safetensors --outputs out.safetensors --greedy "
        "32\n"
        "spillway eval --model DIR --inputs p.safetensors --outputs o.safetensors --split 64 \\\n"
        "    --dtype bfloat16 --kv-cache-dtype fp8_e4m3\n"
        "spillway eval --model DIR --loss rows.safetensors\n",
    .run = run,
};
