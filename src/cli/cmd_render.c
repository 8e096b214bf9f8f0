/* cmd_render.c - `spillway render`: a conversation to the prompt that the model would see.
 *
 * Place: cli. For people who wonder what a chat template makes of their messages, and for the
 *        differential tests (--batch: many templates and contexts in one run). No weights needed. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_setup.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/jinja.h"

enum {
    MESSAGES_BYTES_MAX = 256 << 20, /* of each input file */
    READ_CHUNK_BYTES = 1 << 16,
    BATCH_MEMORY_BYTES_MAX = 1 << 30
};

struct render_flags {
    const char *model_path, *messages, *tools, *template, *kwargs, *batch;
    int64_t time_s;
    bool no_generation_prompt, show_runs, as_given;
};

static const struct flag flags[] = {
    {.name = "model-path",
     .aliases = "model",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct render_flags, model_path),
     .metavar = "PATH",
     .help = "model folder, or org/name[@revision] in the Hugging Face cache"},
    {.name = "messages",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct render_flags, messages),
     .metavar = "FILE",
     .help = "JSON: a list of messages, or a whole request with messages and tools; - is the "
             "standard input (default)"},
    {.name = "tools",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct render_flags, tools),
     .metavar = "FILE",
     .help = "JSON: a list of tools"},
    {.name = "template",
     .aliases = "chat-template",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct render_flags, template),
     .metavar = "FILE",
     .help = "use this template instead of the model's"},
    {.name = "kwargs",
     .aliases = "chat-template-kwargs",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct render_flags, kwargs),
     .metavar = "JSON",
     .help = "an object of further template variables"},
    {.name = "no-generation-prompt",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct render_flags, no_generation_prompt),
     .help = "do not open the assistant's next turn"},
    {.name = "show-runs",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct render_flags, show_runs),
     .help = "print line by line which text is the template's (control tokens count) and which the "
             "request's (they do not)"},
    {.name = "as-given",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct render_flags, as_given),
     .help = "hand the messages to the template as they are, unchecked"},
    {.name = "time",
     .kind = FLAG_INT,
     .offset = FLAG_OFFSET(struct render_flags, time_s),
     .metavar = "SECONDS",
     .help = "what strftime_now shows, in seconds since 1970 (default: now)"},
    {.name = "batch",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct render_flags, batch),
     .metavar = "FILE",
     .help =
         "each line is {\"context\": {variables}, \"template\": text}, the template may be left "
         "out; print one line of JSON for each"},
};

struct job {
    struct render_flags flags;
    struct flag_result parsed;
    struct chat_template *template; /* NULL: none asked for (--batch) */
    struct json_object *messages, *tools, *kwargs;
    struct jinja_template *compiled; /* --batch: the last one */
    struct buf compiled_text;        /* what it was made of */
};

/* ---- input ---- */

static enum status read_stdin(char **out, size_t *len, struct error *err)
{
    struct buf text;
    size_t n;

    buf_init(&text);
    do {
        if (text.len > MESSAGES_BYTES_MAX || !buf_reserve(&text, READ_CHUNK_BYTES)) {
            buf_release(&text);
            return error_set(err, ERR_LIMIT, "the standard input is too long");
        }
        n = fread(text.data + text.len, 1, READ_CHUNK_BYTES, stdin);
        text.len += n;
    } while (n > 0);
    if (ferror(stdin)) {
        buf_release(&text);
        return error_set(err, ERR_IO, "cannot read the standard input");
    }
    *len = text.len;
    *out = buf_take(&text);
    return *out ? OK : error_set(err, ERR_NO_MEMORY, "cannot keep the standard input");
}

static enum status read_text(char **out, size_t *len, const char *path, struct error *err)
{
    return strcmp(path, "-") == 0 ? read_stdin(out, len, err)
                                  : file_read(out, len, path, MESSAGES_BYTES_MAX, err);
}

static enum status read_json(struct json_object **out, const char *path, struct error *err)
{
    char *text = NULL;
    size_t len;
    enum status rc = read_text(&text, &len, path, err);

    if (rc == OK) {
        rc = json_parse(out, text, len, err);
        if (rc != OK) {
            error_prefix(err, "%s", strcmp(path, "-") == 0 ? "standard input" : path);
        }
    }
    free(text);
    return rc;
}

static enum status read_conversation(struct job *j, struct error *err)
{
    struct json_object *given = NULL;
    enum status rc = read_json(&given, j->flags.messages ? j->flags.messages : "-", err);

    if (rc == OK && j->flags.tools) {
        rc = read_json(&j->tools, j->flags.tools, err);
    }
    if (rc == OK && j->flags.kwargs) {
        rc = json_parse(&j->kwargs, j->flags.kwargs, strlen(j->flags.kwargs), err);
        if (rc != OK) {
            error_prefix(err, "--kwargs");
        }
    }
    j->messages = given;
    if (given && json_object_is_type(given, json_type_object)) { /* a request */
        j->messages = json_object_get(json_get(given, "messages"));
        if (!j->tools) {
            j->tools = json_object_get(json_get(given, "tools"));
        }
        if (!j->kwargs) {
            j->kwargs = json_object_get(json_get(given, "chat_template_kwargs"));
        }
        json_object_put(given);
    }
    return rc;
}

static enum status load_template(struct job *j, struct error *err)
{
    char folder[PATH_MAX];
    enum status rc = OK;

    if (!j->flags.model_path && !j->flags.template) {
        if (j->flags.batch) {
            return OK;
        }
        return error_set_param(err, ERR_USAGE, "model-path",
                               "no template: give --model FOLDER (models/rill is a small one) or "
                               "--template FILE");
    }
    if (j->flags.model_path) {
        rc = checkpoint_locate(folder, sizeof folder, j->flags.model_path, hub_cache_dirs(), err);
    }
    return rc == OK ? chat_template_load(&j->template, j->flags.model_path ? folder : NULL,
                                         j->flags.template, err)
                    : rc;
}

/* ---- one conversation ---- */

static void print_runs(struct buf *out, const struct rendered *r)
{
    for (size_t i = 0; i < r->n_runs; i++) {
        buf_append_str(out, r->runs[i].is_trusted ? "template " : "request  ");
        json_write_string(out, r->runs[i].text.ptr, r->runs[i].text.len);
        buf_append_char(out, '\n');
    }
}

static enum status write_out(struct buf *text, struct error *err)
{
    if (!buf_ok(text)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the output");
    }
    if (text->len > 0 && fwrite(text->data, 1, text->len, stdout) != text->len) {
        return error_set(err, ERR_IO, "cannot write to the standard output");
    }
    buf_clear(text);
    return fflush(stdout) == 0 ? OK : error_set(err, ERR_IO, "cannot write to the standard output");
}

static int64_t time_of(const struct job *j)
{
    return flags_given(&j->parsed, "time") ? j->flags.time_s : clock_wall_s();
}

static enum status render(struct job *j, struct error *err)
{
    struct json_object *messages = NULL;
    struct rendered r = {0};
    struct buf text;
    enum status rc = OK;

    if (j->flags.as_given) {
        messages = json_object_get(j->messages);
    } else {
        rc = chat_messages_normalise(&messages, j->messages, err);
    }
    struct render_options o = {.messages = messages,
                               .tools = j->tools,
                               .kwargs = j->kwargs,
                               .add_generation_prompt = !j->flags.no_generation_prompt,
                               .now_s = time_of(j)};
    if (rc == OK && !j->flags.as_given) {
        o.index_shift = json_object_array_length(j->messages) - json_object_array_length(messages);
    }
    if (rc == OK) {
        rc = chat_template_render(&r, j->template, &o, err);
    }
    buf_init(&text);
    if (rc == OK) {
        if (j->flags.show_runs) {
            print_runs(&text, &r);
        } else {
            buf_append(&text, r.text.data, r.text.len);
        }
        rc = write_out(&text, err);
    }
    buf_release(&text);
    rendered_release(&r);
    json_object_put(messages);
    return rc;
}

/* ---- many ---- */

static enum status compile(struct job *j, struct str text, struct error *err)
{
    if (j->compiled && str_eq(text, (struct str){j->compiled_text.data, j->compiled_text.len})) {
        return OK;
    }
    jinja_template_free(j->compiled);
    j->compiled = NULL;
    buf_clear(&j->compiled_text);
    buf_append(&j->compiled_text, text.ptr, text.len);
    return jinja_template_new(&j->compiled, text, err);
}

static enum status render_line(struct job *j, struct json_object *line, struct buf *out,
                               struct error *err)
{
    struct json_object *text = json_get(line, "template");
    const struct jinja_variables variables = {.object = json_get(line, "context")};
    const struct jinja_options options = {.variables = &variables,
                                          .n_variables = 1,
                                          .watched = "messages",
                                          .steps_max = TEMPLATE_STEPS_MAX,
                                          .output_bytes_max = TEMPLATE_OUTPUT_BYTES_MAX,
                                          .memory_bytes_max = BATCH_MEMORY_BYTES_MAX,
                                          .now_s = time_of(j)};
    struct jinja_result r;
    enum status rc;

    if (text && json_object_is_type(text, json_type_string)) {
        rc = compile(j, json_str(text), err);
    } else if (j->template) {
        rc = compile(j, str_of(chat_template_source(j->template)), err);
    } else {
        rc = error_set(err, ERR_USAGE, "no template in the line, and no --model or --template");
    }
    if (rc == OK) {
        rc = jinja_render(&r, j->compiled, &options, err);
    }
    if (rc == OK) {
        buf_append_str(out, "{\"text\":");
        json_write_string(out, buf_cstr(&r.text), r.text.len);
        buf_append_str(out, "}\n");
        jinja_result_release(&r);
    }
    return rc;
}

/* A failed line is an answer too; only failures of our own end the run. */
static enum status answer_line(struct job *j, struct str line, struct buf *out, struct error *err)
{
    struct json_object *v = NULL;
    struct error inner = {0};
    enum status rc = json_parse(&v, line.ptr, line.len, &inner);

    if (rc == OK) {
        rc = render_line(j, v, out, &inner);
    }
    json_object_put(v);
    if (rc != OK) {
        buf_appendf(out, "{\"code\":\"%s\",\"error\":", status_name(rc));
        json_write_string(out, inner.text, strlen(inner.text));
        buf_append_str(out, "}\n");
    }
    return out->len > READ_CHUNK_BYTES ? write_out(out, err) : OK;
}

static enum status batch(struct job *j, struct error *err)
{
    char *owned = NULL;
    struct str text;
    struct buf out;
    enum status rc = read_text(&owned, &text.len, j->flags.batch, err);

    buf_init(&out);
    text.ptr = owned;
    while (rc == OK && text.len > 0) {
        const char *end = memchr(text.ptr, '\n', text.len);
        size_t len = end ? (size_t)(end - text.ptr) : text.len;
        rc = answer_line(j, (struct str){text.ptr, len}, &out, err);
        len += end != NULL;
        text.ptr += len;
        text.len -= len;
    }
    if (rc == OK) {
        rc = write_out(&out, err);
    }
    buf_release(&out);
    free(owned);
    return rc;
}

/* ---- the command ---- */

static enum status run_job(struct job *j, struct error *err)
{
    enum status rc = load_template(j, err);

    if (rc != OK || j->flags.batch) {
        return rc == OK ? batch(j, err) : rc;
    }
    rc = read_conversation(j, err);
    return rc == OK ? render(j, err) : rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct error err = {0};
    struct job *j = calloc(1, sizeof *j); /* flag_result is large */
    enum status rc;

    if (!j) {
        error_set(&err, ERR_NO_MEMORY, "cannot allocate the command");
        return command_fail(&err);
    }
    const struct flag_group group = {.title = "Flags",
                                     .flags = flags,
                                     .n_flags = sizeof flags / sizeof flags[0],
                                     .options = &j->flags};
    rc = flags_parse(&j->parsed, &command_render, &group, 1, 0, argc, argv, log, &err);
    if (rc == OK && !j->parsed.help) {
        rc = run_job(j, &err);
    }
    json_object_put(j->messages);
    json_object_put(j->tools);
    json_object_put(j->kwargs);
    chat_template_free(j->template);
    jinja_template_free(j->compiled);
    buf_release(&j->compiled_text);
    flags_release(&j->parsed);
    free(j);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_render = {
    .name = "render",
    .summary = "show the prompt that a conversation becomes",
    .examples =
        "echo '[{\"role\":\"user\",\"content\":\"Hello\"}]' | spillway render --model models/rill\n"
        "spillway render --model models/rill --messages request.json --show-runs\n"
        "spillway render --model models/rill --messages chat.json --tools tools.json \\\n"
        "    --kwargs '{\"enable_thinking\": false}'\n"
        "spillway render --template my.jinja --messages chat.json --no-generation-prompt\n",
    .run = run,
};
