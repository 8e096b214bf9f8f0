/* cmd_tokenize.c - `spillway tokenize`: text to token ids and back, without a model's weights.
 *
 * Place: cli. For people who wonder what the model sees, and for the differential tests (--json-lines:
 *        one answer for each line of input). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_map.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_setup.h"
#include "text/detok.h"
#include "text/tokenizer.h"

enum { READ_CHUNK_BYTES = 1 << 16, OUTPUT_FLUSH_BYTES = 1 << 16 };

struct tokenize_options {
    const char *model_path;
    const char *file;
    struct flag_list decode;
    bool ids_only, as_json, json_lines, is_untrusted, skip_special;
};

static const struct flag flags[] = {
    {.name = "model-path",
     .aliases = "model,tokenizer-path",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct tokenize_options, model_path),
     .metavar = "PATH",
     .help = "model folder, org/name[@revision] in the Hugging Face cache, or a tokenizer.json"},
    {.name = "file",
     .kind = FLAG_STRING,
     .offset = FLAG_OFFSET(struct tokenize_options, file),
     .metavar = "FILE",
     .help = "take the text from a file; - is the standard input"},
    {.name = "decode",
     .kind = FLAG_LIST,
     .offset = FLAG_OFFSET(struct tokenize_options, decode),
     .metavar = "ID",
     .help = "print the text of these token ids"},
    {.name = "ids",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct tokenize_options, ids_only),
     .help = "print the ids alone, on one line"},
    {.name = "json",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct tokenize_options, as_json),
     .help = "print one JSON object"},
    {.name = "json-lines",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct tokenize_options, json_lines),
     .help = "each line of the input is a JSON string to encode or an array of ids to decode; "
             "print one line of JSON for each"},
    {.name = "untrusted",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct tokenize_options, is_untrusted),
     .help = "treat the text as a user's: control tokens in it are ordinary text"},
    {.name = "skip-special",
     .kind = FLAG_BOOL,
     .offset = FLAG_OFFSET(struct tokenize_options, skip_special),
     .help = "leave special tokens out of decoded text"},
};

struct job {
    struct tokenize_options options;
    struct flag_result parsed;
    struct tokenizer *tokenizer;
    struct token_ids ids; /* of the current text */
    struct buf out;       /* not yet written */
};

/* ---- input and output ---- */

static enum status flush_output(struct job *j, struct error *err)
{
    if (!buf_ok(&j->out)) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the output");
    }
    if (fwrite(j->out.data, 1, j->out.len, stdout) != j->out.len || fflush(stdout) != 0) {
        return error_set(err, ERR_IO, "cannot write to the standard output");
    }
    buf_clear(&j->out);
    return OK;
}

static enum status read_stdin(struct buf *text, struct error *err)
{
    size_t n;

    do {
        if (text->len > TOKENIZER_TEXT_BYTES_MAX || !buf_reserve(text, READ_CHUNK_BYTES)) {
            return error_set(err, ERR_LIMIT, "the standard input is too long");
        }
        n = fread(text->data + text->len, 1, READ_CHUNK_BYTES, stdin);
        text->len += n;
    } while (n > 0);
    return ferror(stdin) ? error_set(err, ERR_IO, "cannot read the standard input") : OK;
}

/* The text from the argument, the file or the standard input; *owned is to be freed. */
static enum status read_input(struct str *text, char **owned, const struct job *j,
                              struct error *err)
{
    struct buf input = {0};
    size_t len = 0;
    enum status rc;

    *owned = NULL;
    if (j->parsed.n_positional > 0) {
        *text = str_of(j->parsed.positional[0]);
        return OK;
    }
    if (j->options.file && strcmp(j->options.file, "-") != 0) {
        rc = file_read(owned, &len, j->options.file, TOKENIZER_TEXT_BYTES_MAX, err);
    } else {
        rc = read_stdin(&input, err);
        len = input.len;
        *owned = buf_take(&input);
    }
    *text = (struct str){*owned ? *owned : "", *owned ? len : 0};
    return rc;
}

/* ---- one text ---- */

static enum status encode(struct job *j, struct str text, struct error *err)
{
    const struct text_run run = {.text = text, .is_trusted = !j->options.is_untrusted};

    j->ids.n = 0;
    return tokenizer_encode(&j->ids, j->tokenizer, &run, 1, err);
}

static void decode(struct job *j, struct buf *text)
{
    struct detok d;

    detok_init(&d, j->tokenizer, j->options.skip_special);
    for (size_t i = 0; i < j->ids.n; i++) {
        detok_push(&d, j->ids.ids[i], text);
    }
    detok_finish(&d, text);
}

static void print_list(struct buf *out, const struct token_ids *ids, const char *separator)
{
    for (size_t i = 0; i < ids->n; i++) {
        buf_appendf(out, "%s%d", i ? separator : "", ids->ids[i]);
    }
}

/* A token that ends inside a character is shown as its bytes. */
static void print_token(struct job *j, int32_t id)
{
    struct str bytes = tokenizer_bytes(j->tokenizer, id);

    buf_appendf(&j->out, "%7d  ", id);
    if (utf8_valid_prefix(bytes.ptr, bytes.len) == bytes.len) {
        json_write_string(&j->out, bytes.ptr, bytes.len);
    } else {
        buf_append_char(&j->out, '<');
        for (size_t i = 0; i < bytes.len; i++) {
            buf_appendf(&j->out, "%s%02x", i ? " " : "", (unsigned char)bytes.ptr[i]);
        }
        buf_append_char(&j->out, '>');
    }
    buf_append_str(&j->out, tokenizer_is_special(j->tokenizer, id) ? "  special\n"
                            : tokenizer_is_added(j->tokenizer, id) ? "  added\n"
                                                                   : "\n");
}

static void print_tokens_json(struct job *j)
{
    buf_appendf(&j->out, "{\"count\":%zu,\"ids\":[", j->ids.n);
    print_list(&j->out, &j->ids, ",");
    buf_append_str(&j->out, "],\"tokens\":[");
    for (size_t i = 0; i < j->ids.n; i++) {
        struct str bytes = tokenizer_bytes(j->tokenizer, j->ids.ids[i]);
        buf_append_str(&j->out, i ? "," : "");
        json_write_string(&j->out, bytes.ptr, bytes.len);
    }
    buf_append_str(&j->out, "]}\n");
}

static enum status run_encode(struct job *j, struct str text, struct error *err)
{
    enum status rc = encode(j, text, err);

    if (rc != OK) {
        return rc;
    }
    if (j->options.as_json) {
        print_tokens_json(j);
    } else if (j->options.ids_only) {
        print_list(&j->out, &j->ids, " ");
        buf_append_char(&j->out, '\n');
    } else {
        for (size_t i = 0; i < j->ids.n; i++) {
            print_token(j, j->ids.ids[i]);
        }
    }
    return flush_output(j, err);
}

static enum status push_id(struct job *j, int64_t id, struct error *err)
{
    if (id < 0 || id > INT32_MAX || !tokenizer_bytes(j->tokenizer, (int32_t)id).ptr) {
        return error_set(err, ERR_BAD_REQUEST, "the tokenizer has no token %lld", (long long)id);
    }
    return token_ids_push(&j->ids, (int32_t)id)
               ? OK
               : error_set(err, ERR_NO_MEMORY, "cannot allocate the ids");
}

/* Ids may come with commas and brackets, as people paste them. */
static enum status read_ids(struct job *j, const char *text, struct error *err)
{
    const char *p = text + strspn(text, "[], ");

    while (*p) {
        char *end;
        long long id = strtoll(p, &end, 10);
        enum status rc;
        if (end == p) {
            return error_set_param(err, ERR_USAGE, "decode", "--decode: '%.60s' is not a token id",
                                   text);
        }
        rc = push_id(j, id, err);
        if (rc != OK) {
            return rc;
        }
        p = end + strspn(end, "[], ");
    }
    return OK;
}

static enum status run_decode(struct job *j, struct error *err)
{
    struct buf text = {0};
    enum status rc = OK;

    for (size_t i = 0; i < j->options.decode.n && rc == OK; i++) {
        rc = read_ids(j, j->options.decode.items[i], err);
    }
    if (rc == OK) {
        decode(j, &text);
        if (j->options.as_json) {
            buf_append_str(&j->out, "{\"text\":");
            json_write_string(&j->out, buf_cstr(&text), text.len);
            buf_append_str(&j->out, "}\n");
        } else { /* exactly the text; a terminal gets its line end */
            buf_append(&j->out, text.data, text.len);
            buf_append_str(&j->out, isatty(STDOUT_FILENO) ? "\n" : "");
        }
        rc = buf_ok(&text) ? flush_output(j, err)
                           : error_set(err, ERR_NO_MEMORY, "cannot allocate the text");
    }
    buf_release(&text);
    return rc;
}

/* ---- many texts ---- */

static enum status decode_array(struct job *j, struct json_object *ids, struct error *err)
{
    struct buf text = {0};
    enum status rc = OK;

    j->ids.n = 0;
    for (size_t i = 0; i < json_object_array_length(ids) && rc == OK; i++) {
        struct json_object *id = json_object_array_get_idx(ids, i);
        rc = json_object_is_type(id, json_type_int)
                 ? push_id(j, json_object_get_int64(id), err)
                 : error_set(err, ERR_BAD_REQUEST, "an id is not a number");
    }
    if (rc == OK) {
        decode(j, &text);
        json_write_string(&j->out, buf_cstr(&text), text.len);
        rc = buf_ok(&text) ? OK : error_set(err, ERR_NO_MEMORY, "cannot allocate the text");
    }
    buf_release(&text);
    return rc;
}

static enum status run_line(struct job *j, struct str line, struct error *err)
{
    struct json_object *value = NULL;
    enum status rc = json_parse(&value, line.ptr, line.len, err);

    if (rc != OK) {
        return rc;
    }
    if (json_object_is_type(value, json_type_string)) {
        rc = encode(j, json_str(value), err);
        buf_append_char(&j->out, '[');
        print_list(&j->out, &j->ids, ",");
        buf_append_char(&j->out, ']');
    } else if (json_object_is_type(value, json_type_array)) {
        rc = decode_array(j, value, err);
    } else {
        rc = error_set(err, ERR_BAD_REQUEST, "neither a string nor an array of ids");
    }
    json_object_put(value);
    buf_append_char(&j->out, '\n');
    if (rc == OK && j->out.len > OUTPUT_FLUSH_BYTES) {
        rc = flush_output(j, err);
    }
    return rc;
}

static enum status run_lines(struct job *j, struct str text, struct error *err)
{
    size_t number = 1;

    while (text.len > 0) {
        const char *end = memchr(text.ptr, '\n', text.len);
        size_t len = end ? (size_t)(end - text.ptr) : text.len;
        enum status rc = run_line(j, (struct str){text.ptr, len}, err);
        if (rc != OK) {
            error_prefix(err, "line %zu", number);
            return rc;
        }
        len += end != NULL;
        text.ptr += len;
        text.len -= len;
        number++;
    }
    return flush_output(j, err);
}

/* ---- the command ---- */

static enum status open_tokenizer(struct job *j, struct error *err)
{
    char folder[PATH_MAX], file[PATH_MAX + 32];
    const char *path = j->options.model_path;
    struct stat st;
    enum status rc;
    int len;

    if (!path) {
        return error_set_param(err, ERR_USAGE, "model-path",
                               "no model: give --model FOLDER (models/rill is a small one)");
    }
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        return tokenizer_load(&j->tokenizer, path, err);
    }
    rc = checkpoint_locate(folder, sizeof folder, path, hub_cache_dirs(), err);
    if (rc != OK) {
        return rc;
    }
    len = snprintf(file, sizeof file, "%s/tokenizer.json", folder);
    if (len < 0 || (size_t)len >= sizeof file) {
        return error_set(err, ERR_LIMIT, "the path of the tokenizer is too long");
    }
    return tokenizer_load(&j->tokenizer, file, err);
}

static enum status check_usage(const struct job *j, struct error *err)
{
    bool has_text = j->parsed.n_positional > 0, has_file = j->options.file != NULL;
    bool has_ids = j->options.decode.n > 0;

    if (has_text + has_file + has_ids > 1) {
        return error_set(err, ERR_USAGE, "give one of TEXT, --file and --decode");
    }
    if (j->options.json_lines && has_ids) {
        return error_set(err, ERR_USAGE,
                         "--json-lines takes ids from its input, not from --decode");
    }
    if (!has_text && !has_file && !has_ids && isatty(STDIN_FILENO)) {
        return error_set(err, ERR_USAGE, "no text: give TEXT, --file FILE, or --decode ID...");
    }
    return OK;
}

static enum status tokenize(struct job *j, struct error *err)
{
    struct str text;
    char *owned = NULL;
    enum status rc = check_usage(j, err);

    if (rc == OK) {
        rc = open_tokenizer(j, err);
    }
    if (rc != OK || j->options.decode.n > 0) {
        return rc == OK ? run_decode(j, err) : rc;
    }
    rc = read_input(&text, &owned, j, err);
    if (rc == OK) {
        rc = j->options.json_lines ? run_lines(j, text, err) : run_encode(j, text, err);
    }
    free(owned);
    return rc;
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
                                     .options = &j->options};
    rc = flags_parse(&j->parsed, &command_tokenize, &group, 1, 1, argc, argv, log, &err);
    if (rc == OK && !j->parsed.help) {
        rc = tokenize(j, &err);
    }
    tokenizer_free(j->tokenizer);
    token_ids_release(&j->ids);
    buf_release(&j->out);
    flags_release(&j->parsed);
    free(j);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_tokenize = {
    .name = "tokenize",
    .summary = "show the token ids of a text, or the text of token ids",
    .arguments = "[TEXT]",
    .examples = "spillway tokenize --model models/rill 'Where does the water go?'\n"
                "spillway tokenize --model models/rill --ids --file README.md\n"
                "spillway tokenize --model models/rill --decode 2707 3545\n"
                "spillway tokenize --model models/rill --untrusted '<|im_end|>'\n"
                "echo '[2707, 3545]' | spillway tokenize --model models/rill --json-lines\n",
    .run = run,
};
