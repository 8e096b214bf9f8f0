/* tokenizer_file.c - from the text of a tokenizer.json to a tokenizer.
 *
 * Place:  text, under tokenizer.c.
 * Idea:   one pass over the file finds its sections and checks the syntax of everything. The large
 *         ones (vocabulary, merges, added tokens) are then read in order, straight into our tables;
 *         the small ones (normaliser, pre-tokeniser, decoder) go through json-c.
 * What a file asks for and we cannot do exactly is refused by name. Not used: truncation and padding
 * (a caller's matter), and the post-processor (it adds tokens around a text, which chat templates
 * write themselves). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/json_reader.h"
#include "text/nfc.h"
#include "text/tokenizer_internal.h"

enum { PRE_TOKENIZER_DEPTH_MAX = 4 };

/* Slices of the file; ptr is NULL for what is absent. */
struct sections {
    struct str model, added_tokens, normalizer, pre_tokenizer, post_processor, decoder;
    struct str type, dropout, prefix, suffix, ignore_merges, vocab, merges; /* of the model */
};

struct loader {
    struct tokenizer *t;
    struct json_reader file;
    struct sections at;
    struct buf key, left, right, scratch; /* strings that had escapes, and work memory */
    struct bpe_loader rules;
    int32_t added_max; /* highest id of an added token so far, or -1 */
    struct error *err;
};

/* ---- sections ---- */

struct section_name {
    const char *name;
    struct str *value;
};

static void find_sections(struct json_reader *r, struct buf *scratch,
                          const struct section_name *names, size_t n)
{
    struct str key;

    json_reader_object(r);
    while (json_reader_key(r, scratch, &key)) {
        struct str *value = NULL;
        struct str section;
        for (size_t i = 0; i < n; i++) {
            if (str_eq(key, str_of(names[i].name))) {
                value = names[i].value;
            }
        }
        section = json_reader_skip(r);
        if (value) {
            *value = section;
        }
    }
}

static enum status locate(struct loader *l, struct str text)
{
    struct sections *at = &l->at;
    const struct section_name top[] = {
        {"model", &at->model},           {"added_tokens", &at->added_tokens},
        {"normalizer", &at->normalizer}, {"pre_tokenizer", &at->pre_tokenizer},
        {"decoder", &at->decoder},       {"post_processor", &at->post_processor}};
    const struct section_name model[] = {{"type", &at->type},
                                         {"dropout", &at->dropout},
                                         {"continuing_subword_prefix", &at->prefix},
                                         {"end_of_word_suffix", &at->suffix},
                                         {"ignore_merges", &at->ignore_merges},
                                         {"vocab", &at->vocab},
                                         {"merges", &at->merges}};
    struct json_reader inner;

    json_reader_init(&l->file, text, l->err);
    find_sections(&l->file, &l->scratch, top, sizeof top / sizeof top[0]);
    json_reader_finish(&l->file);
    if (!json_reader_ok(&l->file)) {
        return l->file.rc;
    }
    if (!at->model.ptr) {
        return error_set(l->err, ERR_FORMAT, "the file has no 'model'");
    }
    inner = json_reader_section(&l->file, at->model);
    find_sections(&inner, &l->scratch, model, sizeof model / sizeof model[0]);
    return inner.rc;
}

static bool is_one_of(struct str value, const char *const *texts)
{
    if (!value.ptr) {
        return true; /* absent is always fine */
    }
    for (; *texts; texts++) {
        if (str_eq(value, str_of(*texts))) {
            return true;
        }
    }
    return false;
}

static enum status refuse(struct loader *l, const char *what, struct str value)
{
    struct str shown = value.ptr ? value : STR("(none)");

    return error_set(l->err, ERR_UNSUPPORTED, "%s %.*s is not supported", what,
                     (int)(shown.len < 80 ? shown.len : 80), shown.ptr);
}

/* unk_token, fuse_unk and byte_fallback need no look: every byte has an entry. */
static enum status check_model(struct loader *l)
{
    const struct sections *at = &l->at;
    static const char *const none[] = {"null", "\"\"", NULL};
    static const char *const no_dropout[] = {"null", "0", "0.0", NULL};
    static const char *const bools[] = {"true", "false", NULL};

    if (!str_eq(at->type, STR("\"BPE\""))) {
        return refuse(l, "model type", at->type);
    }
    if (!is_one_of(at->dropout, no_dropout)) {
        return refuse(l, "dropout", at->dropout);
    }
    if (!is_one_of(at->prefix, none)) {
        return refuse(l, "continuing_subword_prefix", at->prefix);
    }
    if (!is_one_of(at->suffix, none)) {
        return refuse(l, "end_of_word_suffix", at->suffix);
    }
    if (!is_one_of(at->ignore_merges, bools)) {
        return refuse(l, "ignore_merges", at->ignore_merges);
    }
    if (!at->vocab.ptr || !at->merges.ptr) {
        return error_set(l->err, ERR_FORMAT, "the model has no '%s'",
                         at->vocab.ptr ? "merges" : "vocab");
    }
    l->t->bpe.ignore_merges = str_eq(at->ignore_merges, STR("true"));
    return OK;
}

/* ---- vocabulary and merges ---- */

static enum status read_vocab(struct loader *l)
{
    struct json_reader r = json_reader_section(&l->file, l->at.vocab);
    struct str key;
    enum status rc = OK;

    json_reader_object(&r);
    while (rc == OK && json_reader_key(&r, &l->key, &key)) {
        uint32_t id = (uint32_t)json_reader_uint(&r, VOCAB_IDS_MAX - 1);
        if (json_reader_ok(&r)) {
            rc = vocab_add(&l->t->bpe.vocab, key, id, &l->scratch, l->err);
        }
    }
    return rc != OK ? rc : r.rc;
}

/* "left right", the older form. */
static enum status add_joined_rule(struct loader *l, struct json_reader *r)
{
    struct str line = json_reader_string(r, &l->left);
    size_t cut = str_find(line, STR(" "));
    struct str left = {line.ptr, cut}, right;

    if (!json_reader_ok(r) || str_starts(line, STR("#version"))) {
        return r->rc;
    }
    if (cut == SIZE_MAX) {
        json_reader_fail(r, "merge rule %u has no space", l->rules.next_rank);
        return r->rc;
    }
    right = (struct str){line.ptr + cut + 1, line.len - cut - 1};
    if (str_find(right, STR(" ")) != SIZE_MAX) {
        json_reader_fail(r, "merge rule %u has two spaces", l->rules.next_rank);
        return r->rc;
    }
    return bpe_add_rule(&l->t->bpe, &l->rules, left, right, l->err);
}

static enum status add_paired_rule(struct loader *l, struct json_reader *r)
{
    struct str parts[2] = {{NULL, 0}, {NULL, 0}};
    struct buf *scratch[2] = {&l->left, &l->right};
    size_t n = 0;

    json_reader_array(r);
    while (json_reader_item(r)) {
        if (n == 2) {
            json_reader_fail(r, "merge rule %u has more than two parts", l->rules.next_rank);
            break;
        }
        parts[n] = json_reader_string(r, scratch[n]);
        n++;
    }
    if (json_reader_ok(r) && n != 2) {
        json_reader_fail(r, "merge rule %u has %zu parts", l->rules.next_rank, n);
    }
    return json_reader_ok(r) ? bpe_add_rule(&l->t->bpe, &l->rules, parts[0], parts[1], l->err)
                             : r->rc;
}

static enum status read_merges(struct loader *l)
{
    struct json_reader r = json_reader_section(&l->file, l->at.merges);
    enum status rc = OK;

    json_reader_array(&r);
    while (rc == OK && json_reader_item(&r)) {
        rc = json_reader_peek(&r) == '"' ? add_joined_rule(l, &r) : add_paired_rule(l, &r);
    }
    return rc != OK ? rc : r.rc;
}

static enum status find_bytes(struct loader *l)
{
    return bpe_finish(&l->t->bpe, l->err);
}

/* ---- added tokens ---- */

static void read_added_token(struct loader *l, struct json_reader *r, struct added_token *t,
                             bool *has_id)
{
    struct str key;
    const struct {
        const char *name;
        bool *value;
    } flags[] = {{"single_word", &t->single_word},
                 {"lstrip", &t->lstrip},
                 {"rstrip", &t->rstrip},
                 {"normalized", &t->normalized},
                 {"special", &t->special}};

    *t = (struct added_token){0};
    *has_id = false;
    json_reader_object(r);
    while (json_reader_key(r, &l->key, &key)) {
        bool is_known = false;
        if (str_eq(key, STR("id"))) {
            t->id = (int32_t)json_reader_uint(r, VOCAB_IDS_MAX - 1);
            *has_id = is_known = true;
        } else if (str_eq(key, STR("content"))) {
            t->content = json_reader_string(r, &l->left);
            is_known = true;
        }
        for (size_t i = 0; i < sizeof flags / sizeof flags[0] && !is_known; i++) {
            if (str_eq(key, str_of(flags[i].name))) {
                *flags[i].value = json_reader_bool(r);
                is_known = true;
            }
        }
        if (!is_known) {
            json_reader_skip(r);
        }
    }
}

/* The id by which the reference knows a token, which need not be the one in the file: the model's own
 * if the content is in its vocabulary, else the next free one. */
static enum status reference_id(struct loader *l, const struct added_token *t, int32_t *id,
                                bool *in_model)
{
    const struct vocab *vocab = &l->t->bpe.vocab;
    bool is_raw;

    if (!vocab_text_to_bytes(&l->scratch, &is_raw, t->content)) {
        return error_set(l->err, ERR_NO_MEMORY, "cannot allocate an added token");
    }
    *id = vocab_find(vocab, (struct str){buf_cstr(&l->scratch), l->scratch.len}, is_raw);
    *in_model = *id != VOCAB_NONE;
    if (!*in_model) {
        int32_t n_model = (int32_t)vocab->n_model;
        *id = l->added_max >= n_model ? l->added_max + 1 : n_model;
    }
    return OK;
}

/* A token that is looked for in normalised text must be normalised itself; the reference decodes it so
 * too. */
static enum status normalise_pattern(struct loader *l, struct added_token *token)
{
    enum status rc;

    if (!token->normalized || !l->t->has_nfc || !nfc_needed(token->content)) {
        return OK;
    }
    buf_clear(&l->scratch);
    rc = nfc_append(&l->scratch, NULL, token->content, NULL, l->err);
    if (rc != OK) {
        return rc;
    }
    token->pattern.len = l->scratch.len;
    token->pattern.ptr = arena_copy(&l->t->added.arena, buf_cstr(&l->scratch), l->scratch.len);
    return token->pattern.ptr
               ? OK
               : error_set(l->err, ERR_NO_MEMORY, "cannot allocate added token %d", token->id);
}

static enum status add_token(struct loader *l, struct added_token *t, bool has_id)
{
    int quoted = (int)(t->content.len < 80 ? t->content.len : 80);
    bool in_model = false;
    int32_t id = VOCAB_NONE;
    enum status rc;

    if (t->content.len == 0 || !has_id) {
        return error_set(l->err, ERR_FORMAT, "added token %zu has no %s", l->t->added.n,
                         has_id ? "content" : "id");
    }
    if (t->content.len > ADDED_TOKEN_BYTES_MAX) {
        return error_set(l->err, ERR_LIMIT, "added token %d has %zu bytes, more than %d", t->id,
                         t->content.len, ADDED_TOKEN_BYTES_MAX);
    }
    rc = reference_id(l, t, &id, &in_model);
    if (rc != OK) {
        return rc;
    }
    if (id != t->id) {
        return error_set(l->err, ERR_FORMAT,
                         "added token '%.*s' has id %d, but by the vocabulary it must be %d",
                         quoted, t->content.ptr, t->id, id);
    }
    rc = added_tokens_push(&l->t->added, t, l->err);
    if (rc == OK) {
        t = &l->t->added.tokens[l->t->added.n - 1];
        rc = normalise_pattern(l, t);
    }
    if (rc == OK && !in_model) {
        rc = vocab_add_hidden(&l->t->bpe.vocab, t->pattern, (uint32_t)id, &l->scratch, l->err);
    }
    if (id > l->added_max) {
        l->added_max = id;
    }
    return rc;
}

static enum status read_added_tokens(struct loader *l)
{
    struct json_reader r;
    enum status rc = OK;

    if (!l->at.added_tokens.ptr) {
        return OK;
    }
    r = json_reader_section(&l->file, l->at.added_tokens);
    if (json_reader_null(&r)) {
        return OK;
    }
    json_reader_array(&r);
    while (rc == OK && json_reader_item(&r)) {
        struct added_token t;
        bool has_id;
        read_added_token(l, &r, &t, &has_id);
        if (json_reader_ok(&r)) {
            rc = add_token(l, &t, has_id);
        }
    }
    return rc != OK ? rc : r.rc;
}

static enum status set_flags(struct loader *l, const struct added_token *token)
{
    unsigned char *flags = &l->t->flags[token->id];

    if (*flags) {
        return error_set(l->err, ERR_FORMAT, "added token %d is there twice", token->id);
    }
    *flags = (unsigned char)(TOKEN_ADDED | (token->special ? TOKEN_SPECIAL : 0));
    return OK;
}

/* So that no merging of user text makes a control token. */
static enum status guard_added_tokens(struct loader *l)
{
    const struct added_tokens *added = &l->t->added;
    struct bpe_guard *guards = calloc(added->n + 1, sizeof *guards);
    enum status rc;

    if (!guards) {
        return error_set(l->err, ERR_NO_MEMORY, "cannot allocate the added tokens");
    }
    for (size_t i = 0; i < added->n; i++) {
        guards[i] =
            (struct bpe_guard){.id = added->tokens[i].id, .is_special = added->tokens[i].special};
    }
    rc = bpe_guard_ids(&l->t->bpe, guards, added->n, l->err);
    free(guards);
    return rc;
}

static enum status finish_added_tokens(struct loader *l)
{
    struct tokenizer *t = l->t;
    enum status rc = OK;

    t->flags = calloc(t->bpe.vocab.n_ids + 1, 1);
    if (!t->flags) {
        return error_set(l->err, ERR_NO_MEMORY, "cannot allocate the added tokens");
    }
    for (size_t i = 0; i < t->added.n && rc == OK; i++) {
        rc = set_flags(l, &t->added.tokens[i]);
    }
    if (rc == OK) {
        rc = added_set_init(&t->raw_set, &t->added, false, l->err);
    }
    if (rc == OK) {
        rc = added_set_init(&t->normalized_set, &t->added, true, l->err);
    }
    return rc == OK ? guard_added_tokens(l) : rc;
}

/* ---- normaliser, pre-tokeniser, decoder ---- */

/* The section's value, NULL for null and for an absent one. */
static enum status small_section(struct json_object **out, struct loader *l, struct str section)
{
    *out = NULL;
    return section.ptr ? json_parse(out, section.ptr, section.len, l->err) : OK;
}

/* The member "type", or "" */
static const char *type_of(struct json_object *o)
{
    struct json_object *type = json_get(o, "type");

    return json_object_is_type(type, json_type_string) ? json_object_get_string(type) : "";
}

static enum status refuse_type(struct loader *l, const char *what, struct json_object *o)
{
    return error_set(l->err, ERR_UNSUPPORTED, "%s '%.80s' is not supported", what, type_of(o));
}

/* The elements of a Sequence's list, or NULL when there is no such list. */
static struct json_object *sequence_list(struct json_object *o, const char *key)
{
    struct json_object *list = json_get(o, key);

    return json_object_is_type(list, json_type_array) ? list : NULL;
}

static enum status read_normalizer(struct loader *l, struct json_object *o)
{
    struct json_object *list = sequence_list(o, "normalizers");

    if (!o) {
        return OK;
    }
    if (strcmp(type_of(o), "NFC") == 0) {
        l->t->has_nfc = true; /* once is as good as twice */
        return OK;
    }
    if (strcmp(type_of(o), "Sequence") != 0 || !list) {
        return refuse_type(l, "normalizer", o);
    }
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        if (strcmp(type_of(item), "NFC") != 0) {
            return refuse_type(l, "normalizer", item);
        }
        l->t->has_nfc = true;
    }
    return OK;
}

static enum status add_split(struct loader *l, struct json_object *o)
{
    struct json_object *regex = json_get(json_get(o, "pattern"), "Regex");
    const char *behavior = "";
    bool invert = false;
    enum status rc = json_get_string(&behavior, o, "behavior", ERR_FORMAT, l->err);

    if (rc == OK) {
        rc = json_get_bool(&invert, o, "invert", ERR_FORMAT, l->err);
    }
    if (rc != OK) {
        return rc;
    }
    if (!json_object_is_type(regex, json_type_string)) {
        return error_set(l->err, ERR_UNSUPPORTED,
                         "pre_tokenizer 'Split' without a 'Regex' pattern is not supported");
    }
    if (strcmp(behavior, "Isolated") == 0 && !invert) {
        return split_add(l->t->split, json_str(regex), SPLIT_KEEP_GAPS, l->err);
    }
    if (strcmp(behavior, "Removed") == 0 && invert) {
        return split_add(l->t->split, json_str(regex), SPLIT_DROP_GAPS, l->err);
    }
    return error_set(l->err, ERR_UNSUPPORTED,
                     "pre_tokenizer 'Split' with behavior '%.80s' and invert %s is not supported",
                     behavior, invert ? "true" : "false");
}

static enum status add_byte_level(struct loader *l, struct json_object *o)
{
    bool add_prefix_space = true, use_regex = true; /* the reference's defaults */
    enum status rc = json_get_bool(&add_prefix_space, o, "add_prefix_space", ERR_FORMAT, l->err);

    if (rc == OK) {
        rc = json_get_bool(&use_regex, o, "use_regex", ERR_FORMAT, l->err);
    }
    if (rc == OK && add_prefix_space) {
        rc = error_set(l->err, ERR_UNSUPPORTED,
                       "pre_tokenizer 'ByteLevel' with add_prefix_space is not supported");
    }
    if (rc == OK && use_regex) {
        rc = split_add(l->t->split, split_gpt2_pattern(), SPLIT_KEEP_GAPS, l->err);
    }
    return rc;
}

/* *is_bytes: the ByteLevel step was there; nothing may follow it, as text is bytes by then. */
static enum status read_pre_tokenizer(struct loader *l, struct json_object *o, bool *is_bytes,
                                      size_t depth)
{
    struct json_object *list = sequence_list(o, "pretokenizers");
    const char *type = type_of(o);
    enum status rc = OK;

    if (strcmp(type, "Sequence") == 0 && list && depth < PRE_TOKENIZER_DEPTH_MAX) {
        for (size_t i = 0; i < json_object_array_length(list) && rc == OK; i++) {
            rc = read_pre_tokenizer(l, json_object_array_get_idx(list, i), is_bytes, depth + 1);
        }
        return rc;
    }
    if (*is_bytes || (strcmp(type, "Split") != 0 && strcmp(type, "ByteLevel") != 0)) {
        return error_set(l->err, ERR_UNSUPPORTED, "pre_tokenizer '%.80s'%s is not supported", type,
                         *is_bytes ? " after 'ByteLevel'" : "");
    }
    if (strcmp(type, "Split") == 0) {
        return add_split(l, o);
    }
    *is_bytes = true;
    return add_byte_level(l, o);
}

static enum status check_post_processor(struct loader *l, struct json_object *o)
{
    struct json_object *list = sequence_list(o, "processors");
    const char *type = type_of(o);

    if (!o || strcmp(type, "ByteLevel") == 0 || strcmp(type, "TemplateProcessing") == 0) {
        return OK;
    }
    if (strcmp(type, "Sequence") != 0 || !list) {
        return refuse_type(l, "post_processor", o);
    }
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        if (strcmp(type_of(item), "ByteLevel") != 0 &&
            strcmp(type_of(item), "TemplateProcessing") != 0) {
            return refuse_type(l, "post_processor", item);
        }
    }
    return OK;
}

static enum status read_small_sections(struct loader *l)
{
    struct json_object *normalizer = NULL, *pre = NULL, *post = NULL, *decoder = NULL;
    bool is_bytes = false;
    enum status rc = small_section(&normalizer, l, l->at.normalizer);

    if (rc == OK) {
        rc = small_section(&pre, l, l->at.pre_tokenizer);
    }
    if (rc == OK) {
        rc = small_section(&post, l, l->at.post_processor);
    }
    if (rc == OK) {
        rc = small_section(&decoder, l, l->at.decoder);
    }
    if (rc == OK) {
        rc = read_normalizer(l, normalizer);
    }
    if (rc == OK) {
        rc = read_pre_tokenizer(l, pre, &is_bytes, 0);
    }
    if (rc == OK && !is_bytes) {
        rc = error_set(l->err, ERR_UNSUPPORTED, "a pre_tokenizer without 'ByteLevel'");
    }
    if (rc == OK) {
        rc = check_post_processor(l, post);
    }
    if (rc == OK && strcmp(type_of(decoder), "ByteLevel") != 0) {
        rc = refuse_type(l, "decoder", decoder);
    }
    json_object_put(normalizer);
    json_object_put(pre);
    json_object_put(post);
    json_object_put(decoder);
    return rc;
}

enum status tokenizer_parse(struct tokenizer *t, struct str text, struct error *err)
{
    static enum status (*const steps[])(struct loader *) = {
        check_model, read_small_sections, read_vocab,         read_merges,
        find_bytes,  read_added_tokens,   finish_added_tokens};
    struct loader l = {.t = t, .added_max = -1, .err = err};
    enum status rc;

    bpe_init(&t->bpe);
    added_tokens_init(&t->added);
    t->split = split_new();
    rc = t->split ? locate(&l, text) : error_set(err, ERR_NO_MEMORY, "cannot allocate a tokenizer");
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && rc == OK; i++) {
        rc = steps[i](&l);
    }
    bpe_loader_release(&l.rules);
    buf_release(&l.key);
    buf_release(&l.left);
    buf_release(&l.right);
    buf_release(&l.scratch);
    return rc;
}
