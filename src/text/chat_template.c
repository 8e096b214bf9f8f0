/* chat_template.c - the checkpoint's chat template, found, compiled and rendered. See
 * chat_template.h. */
#include "text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "text/jinja.h"

enum {
    CONFIG_BYTES_MAX =
        64 << 20, /* tokenizer_config.json lists every added token in old checkpoints */
    TEMPLATE_MEMORY_BYTES_MAX =
        1 << 30, /* of one rendering's values; a 64 MiB text with marks fits */
    PATH_BYTES_MAX = 4096
};

struct chat_template {
    struct jinja_template *jinja;
    char *source;
    struct json_object *variables; /* bos_token, ...: from the checkpoint, so trusted; or NULL */
};

enum status chat_template_new(struct chat_template **out, const char *text, size_t len,
                              struct error *err)
{
    struct chat_template *t = calloc(1, sizeof *t);
    enum status rc;

    *out = NULL;
    if (!t) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a chat template");
    }
    rc = len > TEMPLATE_BYTES_MAX
             ? error_set(err, ERR_LIMIT, "chat template: %zu bytes are more than %d", len,
                         TEMPLATE_BYTES_MAX)
             : jinja_template_new(&t->jinja, (struct str){text, len}, err);
    if (rc == OK) {
        t->source = malloc(len + 1);
        rc = t->source ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate a chat template");
    } else {
        error_prefix(err, "chat template");
    }
    if (rc != OK) {
        chat_template_free(t);
        return rc;
    }
    if (len > 0) {
        memcpy(t->source, text, len);
    }
    t->source[len] = '\0';
    *out = t;
    return OK;
}

void chat_template_free(struct chat_template *t)
{
    if (t) {
        jinja_template_free(t->jinja);
        free(t->source);
        json_object_put(t->variables);
        free(t);
    }
}

const char *chat_template_source(const struct chat_template *t)
{
    return t->source;
}

struct chat_template_traits chat_template_traits(const struct chat_template *t)
{
    return (struct chat_template_traits){
        .has_thinking = strstr(t->source, "<think>") != NULL,
        .has_qwen_xml_tools = strstr(t->source, "<function=") != NULL,
        .has_enable_thinking = jinja_template_reads(t->jinja, STR("enable_thinking")),
    };
}

bool chat_template_reads(const struct chat_template *t, const char *variable)
{
    return jinja_template_reads(t->jinja, str_of(variable));
}

/* ---- finding it ---- */

/* The template text in a parsed tokenizer_config.json (or a file of the same form): a string, or a
 * list of {name, template} of which "default" counts. */
static struct json_object *config_template(struct json_object *config)
{
    struct json_object *v = json_get(config, "chat_template");

    if (v && json_object_is_type(v, json_type_array)) {
        size_t n = json_object_array_length(v);
        for (size_t i = 0; i < n; i++) {
            struct json_object *entry = json_object_array_get_idx(v, i);
            struct json_object *name = json_get(entry, "name");
            if (name && json_object_is_type(name, json_type_string) &&
                strcmp(json_object_get_string(name), "default") == 0) {
                v = json_get(entry, "template");
                break;
            }
        }
    }
    return v && json_object_is_type(v, json_type_string) ? v : NULL;
}

/* A special token stands as a string, or as {"content": ...}. */
static struct json_object *token_text(struct json_object *v)
{
    if (v && json_object_is_type(v, json_type_object)) {
        v = json_get(v, "content");
    }
    return v && json_object_is_type(v, json_type_string) ? v : NULL;
}

static enum status add_variable(struct json_object *variables, const char *key,
                                struct json_object *value, struct error *err)
{
    if (json_object_object_add(variables, key, value) != 0) {
        json_object_put(value);
        return error_set(err, ERR_NO_MEMORY, "cannot keep the tokens of tokenizer_config.json");
    }
    return OK;
}

static enum status add_token_list(struct json_object *variables, struct json_object *list,
                                  struct error *err)
{
    struct json_object *copy;
    size_t n;

    if (!list || !json_object_is_type(list, json_type_array)) {
        return OK;
    }
    copy = json_object_new_array();
    n = json_object_array_length(list);
    for (size_t i = 0; copy && i < n; i++) {
        struct json_object *text = token_text(json_object_array_get_idx(list, i));
        if (text && json_object_array_add(copy, json_object_get(text)) != 0) {
            json_object_put(text);
            json_object_put(copy);
            copy = NULL;
        }
    }
    return copy ? add_variable(variables, "additional_special_tokens", copy, err)
                : error_set(err, ERR_NO_MEMORY, "cannot keep the additional special tokens");
}

/* What transformers hands to templates besides the request: the special tokens that are set. */
static enum status read_tokens(struct json_object **out, struct json_object *config,
                               struct error *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    struct json_object *variables = json_object_new_object();
    struct json_object *extra = json_get(config, "extra_special_tokens");
    enum status rc = OK;

    if (!variables) {
        return error_set(err, ERR_NO_MEMORY, "cannot keep the tokens of tokenizer_config.json");
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == OK; i++) {
        struct json_object *text = token_text(json_get(config, names[i]));
        if (text) {
            rc = add_variable(variables, names[i], json_object_get(text), err);
        }
    }
    if (rc == OK) {
        rc = add_token_list(variables, json_get(config, "additional_special_tokens"), err);
    }
    if (rc == OK && extra && json_object_is_type(extra, json_type_object)) {
        json_object_object_foreach(extra, key, value)
        {
            struct json_object *text = token_text(value);
            if (text && rc == OK) {
                rc = add_variable(variables, key, json_object_get(text), err);
            }
        }
    }
    if (rc != OK) {
        json_object_put(variables);
        return rc;
    }
    *out = variables;
    return OK;
}

/* A file that holds the template itself, or, with the name ending in .json, one like
 * tokenizer_config.json or a JSON string. */
static enum status load_file(struct chat_template **out, const char *path, struct error *err)
{
    struct json_object *config = NULL, *v;
    char *text = NULL;
    size_t len;
    enum status rc;

    if (!str_ends(str_of(path), STR(".json"))) {
        rc = file_read(&text, &len, path, TEMPLATE_BYTES_MAX, err);
        if (rc == OK) {
            rc = chat_template_new(out, text, len, err);
            if (rc != OK) {
                error_prefix(err, "%s", path);
            }
        }
        free(text);
        return rc;
    }
    rc = json_parse_file(&config, path, CONFIG_BYTES_MAX, err);
    if (rc != OK) {
        return rc;
    }
    v = json_object_is_type(config, json_type_string) ? config : config_template(config);
    rc = v ? chat_template_new(out, json_str(v).ptr, json_str(v).len, err)
           : error_set(err, ERR_NOT_FOUND, "%s: no chat_template in it", path);
    json_object_put(config);
    return rc;
}

/* chat_template.jinja, or else what tokenizer_config.json (parsed: config) holds. */
static enum status load_from_folder(struct chat_template **out, const char *model_dir,
                                    struct json_object *config, struct error *err)
{
    char path[PATH_BYTES_MAX];
    struct json_object *v = config_template(config);
    enum status rc;

    if (snprintf(path, sizeof path, "%s/chat_template.jinja", model_dir) >= (int)sizeof path) {
        return error_set(err, ERR_LIMIT, "the path of the model folder is too long");
    }
    rc = load_file(out, path, err);
    if (rc != ERR_NOT_FOUND) {
        return rc;
    }
    if (!v) {
        return error_set(err, ERR_NOT_FOUND,
                         "%s has neither chat_template.jinja nor a chat_template in "
                         "tokenizer_config.json",
                         model_dir);
    }
    rc = chat_template_new(out, json_str(v).ptr, json_str(v).len, err);
    if (rc != OK) {
        error_prefix(err, "%s/tokenizer_config.json", model_dir);
    }
    return rc;
}

/* *out: a new reference, NULL when there is no such file. */
static enum status load_config(struct json_object **out, const char *model_dir, struct error *err)
{
    char path[PATH_BYTES_MAX];
    enum status rc;

    *out = NULL;
    if (!model_dir) {
        return OK;
    }
    if (snprintf(path, sizeof path, "%s/tokenizer_config.json", model_dir) >= (int)sizeof path) {
        return error_set(err, ERR_LIMIT, "the path of the model folder is too long");
    }
    rc = json_parse_file(out, path, CONFIG_BYTES_MAX, err);
    return rc == ERR_NOT_FOUND ? OK : rc;
}

enum status chat_template_load(struct chat_template **out, const char *model_dir,
                               const char *override_path, struct error *err)
{
    struct json_object *config;
    enum status rc;

    *out = NULL;
    rc = load_config(&config, model_dir, err);
    if (rc != OK) {
        return rc;
    }
    rc = override_path ? load_file(out, override_path, err)
                       : load_from_folder(out, model_dir, config, err);
    if (rc == OK) {
        rc = read_tokens(&(*out)->variables, config, err);
        if (rc != OK) {
            chat_template_free(*out);
            *out = NULL;
        }
    }
    json_object_put(config);
    return rc;
}

/* ---- rendering ---- */

void rendered_release(struct rendered *r)
{
    buf_release(&r->text);
    free(r->runs);
    *r = (struct rendered){0};
}

static enum status check_kwargs(const struct chat_template *t, struct json_object *kwargs,
                                struct error *err)
{
    static const char *const reserved[] = {"messages",      "tools",    "documents",
                                           "chat_template", "tokenize", "add_generation_prompt"};

    if (!kwargs) {
        return OK;
    }
    if (!json_object_is_type(kwargs, json_type_object)) {
        return error_set_param(err, ERR_BAD_REQUEST, "chat_template_kwargs",
                               "chat_template_kwargs must be an object");
    }
    json_object_object_foreach(kwargs, key, value)
    {
        bool is_reserved = json_has(t->variables, key);
        (void)value;
        for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
            is_reserved |= strcmp(key, reserved[i]) == 0;
        }
        if (is_reserved) {
            return error_set_param(err, ERR_BAD_REQUEST, "chat_template_kwargs",
                                   "chat_template_kwargs may not set '%s'", key);
        }
    }
    return OK;
}

/* The variables that transformers passes: *out is new. */
static enum status build_context(struct json_object **out, const struct render_options *o,
                                 struct error *err)
{
    struct json_object *c = json_object_new_object();
    struct json_object *generate = json_object_new_boolean(o->add_generation_prompt);

    if (!c || !generate ||
        json_object_object_add(c, "messages", json_object_get(o->messages)) != 0 ||
        json_object_object_add(c, "tools", json_object_get(o->tools)) != 0 ||
        json_object_object_add(c, "documents", NULL) != 0 ||
        json_object_object_add(c, "add_generation_prompt", generate) != 0) {
        json_object_put(c); /* what was not added is lost only when memory has run out */
        return error_set(err, ERR_NO_MEMORY, "cannot build the variables of the chat template");
    }
    *out = c;
    return OK;
}

/* Say at which of the request's messages it happened. */
static enum status name_message(enum status rc, size_t idx, size_t shift, struct error *err)
{
    if (rc == ERR_BAD_REQUEST && err) {
        if (idx != SIZE_MAX) {
            idx += idx > 0 ? shift : 0;
            (void)snprintf(err->param, sizeof err->param, "messages[%zu]", idx);
            error_prefix(err, "messages[%zu]", idx);
        } else {
            (void)snprintf(err->param, sizeof err->param, "messages");
        }
    }
    return rc;
}

enum status chat_template_render(struct rendered *out, const struct chat_template *t,
                                 const struct render_options *o, struct error *err)
{
    struct json_object *context = NULL;
    struct jinja_result result;
    enum status rc;

    *out = (struct rendered){0};
    rc = check_kwargs(t, o->kwargs, err);
    if (rc == OK) {
        rc = build_context(&context, o, err);
    }
    if (rc != OK) {
        return rc;
    }
    const struct jinja_variables variables[] = {
        {.object = t->variables, .is_trusted = true}, {.object = o->kwargs}, {.object = context}};
    const struct jinja_options options = {.variables = variables,
                                          .n_variables = sizeof variables / sizeof *variables,
                                          .watched = "messages",
                                          .roles_trusted = true,
                                          .steps_max = TEMPLATE_STEPS_MAX,
                                          .output_bytes_max = TEMPLATE_OUTPUT_BYTES_MAX,
                                          .memory_bytes_max = TEMPLATE_MEMORY_BYTES_MAX,
                                          .now_s = o->now_s};
    rc = jinja_render(&result, t->jinja, &options, err);
    json_object_put(context);
    if (rc != OK) {
        return name_message(rc, result.watched_idx, o->index_shift, err);
    }
    out->text = result.text;
    out->runs = result.runs;
    out->n_runs = result.n_runs;
    return OK;
}
