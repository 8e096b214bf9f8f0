/* checkpoint.c - a model folder as one sorted list of tensors.
 *
 * Place:  formats; finding the folder is checkpoint_locate.c, one shard is safetensors.c.
 * Idea:   first the names (index, shards on disk), then the shards' headers, then one list of all
 *         tensors sorted by name, in which a tensor of two shards is two neighbours. Index and
 *         shards must agree in both directions, so a model with missing weights never starts.
 * Trade-off: with an index, a model.safetensors beside it is ignored with a warning, since only the
 *         index says which of the two is meant. */
#include "formats/checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/size.h"
#include "formats/safetensors.h"

enum { SHARD_NAME_BYTES_MAX = 255 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

struct shard {
    char *name; /* owned */
    struct safetensors *file;
};

struct checkpoint {
    char dir[CHECKPOINT_PATH_BYTES];
    struct json_object *config, *generation_config;
    struct json_object *quantize_file; /* quantize_config.json and the like, or NULL */
    struct shard *shards;              /* sorted by name */
    size_t n_shards;
    struct checkpoint_tensor *tensors; /* sorted by name */
    size_t n_tensors;
    size_t n_bytes;
};

static enum status join(char out[CHECKPOINT_PATH_BYTES], const char *dir, const char *name,
                        struct error *err)
{
    int n = snprintf(out, CHECKPOINT_PATH_BYTES, "%s/%s", dir, name);

    if (n < 0 || n >= CHECKPOINT_PATH_BYTES) {
        return error_set(err, ERR_LIMIT, "the path of '%s' is longer than %d bytes", name,
                         CHECKPOINT_PATH_BYTES - 1);
    }
    return OK;
}

static bool file_exists(const char *dir, const char *name)
{
    char path[CHECKPOINT_PATH_BYTES];
    struct stat st;

    return join(path, dir, name, NULL) == OK && stat(path, &st) == 0;
}

/* The object in a JSON file of the folder; *out NULL with OK when there is no such file. */
static enum status read_object(struct json_object **out, const char *dir, const char *name,
                               size_t bytes_max, struct error *err)
{
    char path[CHECKPOINT_PATH_BYTES];
    enum status rc = join(path, dir, name, err);

    *out = NULL;
    if (rc != OK || !file_exists(dir, name)) {
        return rc;
    }
    rc = json_parse_file(out, path, bytes_max, err);
    if (rc == OK && !json_object_is_type(*out, json_type_object)) {
        json_object_put(*out);
        *out = NULL;
        rc = error_set(err, ERR_FORMAT, "'%s' does not hold a JSON object", path);
    }
    return rc;
}

static enum status read_json_files(struct checkpoint *c, struct error *err)
{
    static const struct {
        const char *name;
        size_t offset;
    } files[] = {
        {"config.json", offsetof(struct checkpoint, config)},
        {"generation_config.json", offsetof(struct checkpoint, generation_config)},
        {"quantize_config.json", offsetof(struct checkpoint, quantize_file)},
        {"quant_config.json", offsetof(struct checkpoint, quantize_file)},
    };

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct json_object **slot = (struct json_object **)(void *)((char *)c + files[i].offset);
        enum status rc;

        if (*slot) {
            continue; /* quantize_config.json goes before quant_config.json */
        }
        rc = read_object(slot, c->dir, files[i].name, CHECKPOINT_JSON_BYTES_MAX, err);
        if (rc != OK) {
            return rc;
        }
    }
    if (!c->config) {
        return error_set(err, ERR_NOT_FOUND,
                         "'%s' has no config.json: not a model folder, or a download that is not "
                         "complete (huggingface-cli download finishes it)",
                         c->dir);
    }
    return OK;
}

/* A shard is a plain file name of the folder itself; anything that could lead elsewhere is refused. */
static enum status check_shard_name(const char *name, size_t len, struct error *err)
{
    struct str s = {name, len};

    if (len == 0 || len > SHARD_NAME_BYTES_MAX || strlen(name) != len) {
        return error_set(err, ERR_FORMAT, "a shard name is empty, too long or holds a NUL");
    }
    for (size_t i = 0; i < len; i++) {
        unsigned char ch = (unsigned char)name[i];

        if (ch == '/' || ch == '\\' || ch < 0x20 || ch == 0x7f) {
            return error_set(err, ERR_FORMAT, "shard name '%s' is not a plain file name",
                             ch < 0x20 || ch == 0x7f ? "(control characters)" : name);
        }
    }
    if (name[0] == '.' || !str_ends(s, STR(".safetensors"))) {
        return error_set(err, ERR_FORMAT, "shard name '%s' is not the name of a .safetensors file",
                         name);
    }
    return OK;
}

static int compare_shard(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

static struct shard *find_shard(const struct checkpoint *c, const char *name)
{
    struct shard key = {(char *)(uintptr_t)name, NULL};

    return c->n_shards ? bsearch(&key, c->shards, c->n_shards, sizeof key, compare_shard) : NULL;
}

/* Insert a shard name into the sorted list unless it is there. */
static enum status add_shard(struct checkpoint *c, const char *name, struct error *err)
{
    size_t at = 0;

    if (find_shard(c, name)) {
        return OK;
    }
    if (c->n_shards == CHECKPOINT_SHARDS_MAX) {
        return error_set(err, ERR_LIMIT, "more than %d shards", CHECKPOINT_SHARDS_MAX);
    }
    if (!c->shards) {
        c->shards = calloc(CHECKPOINT_SHARDS_MAX, sizeof *c->shards);
        if (!c->shards) {
            return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of shards");
        }
    }
    while (at < c->n_shards && strcmp(c->shards[at].name, name) < 0) {
        at++;
    }
    memmove(&c->shards[at + 1], &c->shards[at], (c->n_shards - at) * sizeof *c->shards);
    c->shards[at] = (struct shard){strdup(name), NULL};
    if (!c->shards[at].name) {
        memmove(&c->shards[at], &c->shards[at + 1], (c->n_shards - at) * sizeof *c->shards);
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the list of shards");
    }
    c->n_shards++;
    return OK;
}

static enum status list_shards_of_index(struct checkpoint *c, struct json_object *map,
                                        struct error *err)
{
    if (!json_object_is_type(map, json_type_object)) {
        return error_set(err, ERR_FORMAT, "weight_map is missing or not an object");
    }
    json_object_object_foreach(map, tensor, value)
    {
        enum status rc;

        if (!json_object_is_type(value, json_type_string)) {
            return error_set(err, ERR_FORMAT, "tensor '%s': its shard is not a string", tensor);
        }
        rc = check_shard_name(json_object_get_string(value),
                              (size_t)json_object_get_string_len(value), err);
        if (rc == OK) {
            rc = add_shard(c, json_object_get_string(value), err);
        }
        if (rc != OK) {
            return rc;
        }
    }
    if (c->n_shards == 0) {
        return error_set(err, ERR_FORMAT, "weight_map is empty");
    }
    return OK;
}

/* All missing shards in one message, so that one look tells how incomplete a download is. */
static enum status check_shards_present(const struct checkpoint *c, struct error *err)
{
    struct buf missing;
    size_t n = 0;
    enum status rc = OK;

    buf_init(&missing);
    for (size_t i = 0; i < c->n_shards; i++) {
        if (!file_exists(c->dir, c->shards[i].name)) {
            buf_appendf(&missing, "%s%s", n++ ? ", " : "", c->shards[i].name);
        }
    }
    if (n > 0) {
        rc = error_set(err, ERR_NOT_FOUND, "%zu of the %zu shards that %s lists are missing: %s", n,
                       c->n_shards, index_name, buf_cstr(&missing));
    }
    buf_release(&missing);
    return rc;
}

static enum status open_shards(struct checkpoint *c, struct error *err)
{
    for (size_t i = 0; i < c->n_shards; i++) {
        char path[CHECKPOINT_PATH_BYTES];
        enum status rc = join(path, c->dir, c->shards[i].name, err);

        if (rc == OK) {
            rc = safetensors_open(&c->shards[i].file, path, err);
        }
        if (rc != OK) {
            return rc;
        }
        c->n_tensors += safetensors_count(c->shards[i].file);
    }
    return OK;
}

static int compare_tensor(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_tensor *)a)->name,
                  ((const struct checkpoint_tensor *)b)->name);
}

static enum status merge_tensors(struct checkpoint *c, struct error *err)
{
    size_t n = 0;

    if (c->n_tensors == 0) {
        return error_set(err, ERR_FORMAT, "it holds no tensors");
    }
    c->tensors = calloc(c->n_tensors, sizeof *c->tensors);
    if (!c->tensors) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a list of %zu tensors", c->n_tensors);
    }
    for (size_t s = 0; s < c->n_shards; s++) {
        for (size_t i = 0; i < safetensors_count(c->shards[s].file); i++) {
            const struct safetensors_entry *e = safetensors_at(c->shards[s].file, i);

            c->tensors[n++] =
                (struct checkpoint_tensor){e->name, e->tensor, e->n_bytes, c->shards[s].name};
            c->n_bytes += e->n_bytes; /* each lies in a mapped file, so the sum fits */
        }
    }
    qsort(c->tensors, n, sizeof *c->tensors, compare_tensor);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(c->tensors[i - 1].name, c->tensors[i].name) == 0) {
            return error_set(err, ERR_FORMAT, "tensor '%s' is in both '%s' and '%s'",
                             c->tensors[i].name, c->tensors[i - 1].file, c->tensors[i].file);
        }
    }
    return OK;
}

/* Every tensor of the shards must be in the index, with its shard, and the reverse. */
static enum status check_index(const struct checkpoint *c, struct json_object *map,
                               struct error *err)
{
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct checkpoint_tensor *t = &c->tensors[i];
        struct json_object *value = json_get(map, t->name);

        if (!value) {
            return error_set(err, ERR_FORMAT, "tensor '%s' is in '%s', but %s does not list it",
                             t->name, t->file, index_name);
        }
        if (strcmp(json_object_get_string(value), t->file) != 0) {
            return error_set(err, ERR_FORMAT, "tensor '%s' is in '%s', but %s says '%s'", t->name,
                             t->file, index_name, json_object_get_string(value));
        }
    }
    if ((size_t)json_object_object_length(map) == c->n_tensors) {
        return OK;
    }
    json_object_object_foreach(map, name, value)
    {
        if (!checkpoint_find(c, name)) {
            return error_set(err, ERR_FORMAT,
                             "tensor '%s' is listed in %s for '%s', which lacks it", name,
                             index_name, json_object_get_string(value));
        }
    }
    return OK;
}

/* What else lies in the folder: shards that are not used are worth a warning, as they may be the
 * weights that somebody misses; other formats and code are never opened. */
static void note_other_files(const struct checkpoint *c, const struct log *log)
{
    DIR *d = opendir(c->dir);
    const struct dirent *e;
    size_t n_foreign = 0;

    while (d && (e = readdir(d)) != NULL) {
        struct str name = str_of(e->d_name);

        if (str_ends(name, STR(".safetensors")) && !find_shard(c, e->d_name)) {
            log_line(log, str_starts(name, STR("model")) ? LOG_WARNING : LOG_INFO,
                     "'%s' in '%s' is not part of the checkpoint and is ignored", e->d_name,
                     c->dir);
        }
        if (str_ends(name, STR(".bin")) || str_ends(name, STR(".pt")) ||
            str_ends(name, STR(".pth")) || str_ends(name, STR(".py"))) {
            n_foreign++;
        }
    }
    if (d) {
        closedir(d);
    }
    if (n_foreign > 0) {
        log_info(log, "%zu files of other formats or code in '%s' are ignored", n_foreign, c->dir);
    }
    if (json_has(c->config, "auto_map")) {
        log_info(log, "config.json names code (auto_map): ignored, no code of a model is run");
    }
}

static enum status no_weights(const struct checkpoint *c, struct error *err)
{
    DIR *d = opendir(c->dir);
    const struct dirent *e;
    const char *other = NULL;

    while (d && !other && (e = readdir(d)) != NULL) {
        struct str name = str_of(e->d_name);

        if (str_ends(name, STR(".gguf"))) {
            other = "; it has GGUF files, which are not read";
        } else if (str_starts(name, STR("pytorch_model")) && str_ends(name, STR(".bin"))) {
            other = "; it has pickled pytorch files, which are not read";
        }
    }
    if (d) {
        closedir(d);
    }
    return error_set(err, ERR_NOT_FOUND, "it has neither %s nor %s%s", single_name, index_name,
                     other ? other : "");
}

static enum status open_tensors(struct checkpoint *c, const struct log *log, struct error *err)
{
    struct json_object *index, *map;
    enum status rc = read_object(&index, c->dir, index_name, CHECKPOINT_INDEX_BYTES_MAX, err);

    if (rc != OK) {
        return rc;
    }
    map = json_get(index, "weight_map");
    if (index) {
        rc = list_shards_of_index(c, map, err);
        if (rc != OK) {
            error_prefix(err, "%s", index_name);
        }
    } else {
        rc = file_exists(c->dir, single_name) ? add_shard(c, single_name, err) : no_weights(c, err);
    }
    if (rc == OK) {
        rc = check_shards_present(c, err);
    }
    if (rc == OK) {
        rc = open_shards(c, err);
    }
    if (rc == OK) {
        rc = merge_tensors(c, err);
    }
    if (rc == OK && index) {
        rc = check_index(c, map, err);
    }
    json_object_put(index);
    if (rc == OK) {
        note_other_files(c, log);
    }
    return rc;
}

enum status checkpoint_open_config(struct checkpoint **out, const char *dir, struct error *err)
{
    struct checkpoint *c = calloc(1, sizeof *c);
    enum status rc = OK;
    int n;

    *out = NULL;
    if (!c) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate a checkpoint");
    }
    n = snprintf(c->dir, sizeof c->dir, "%s", dir);
    if (n < 0 || (size_t)n >= sizeof c->dir) {
        rc = error_set(err, ERR_LIMIT, "the path of the model's folder is too long");
    }
    if (rc == OK) {
        rc = read_json_files(c, err);
    }
    if (rc != OK) {
        checkpoint_close(c);
        return rc;
    }
    *out = c;
    return OK;
}

enum status checkpoint_open(struct checkpoint **out, const char *path_or_name,
                            const char *const *cache_dirs, const struct log *log, struct error *err)
{
    char dir[CHECKPOINT_PATH_BYTES];
    struct checkpoint *c;
    enum status rc = checkpoint_locate(dir, sizeof dir, path_or_name, cache_dirs, err);

    *out = NULL;
    if (rc != OK) {
        return rc;
    }
    rc = checkpoint_open_config(&c, dir, err);
    if (rc != OK) {
        return rc;
    }
    rc = open_tensors(c, log, err);
    if (rc != OK) {
        error_prefix(err, "cannot open the checkpoint in '%s'", dir);
        checkpoint_close(c);
        return rc;
    }
    *out = c;
    return OK;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c) {
        return;
    }
    for (size_t i = 0; i < c->n_shards; i++) {
        safetensors_close(c->shards[i].file);
        free(c->shards[i].name);
    }
    free(c->shards);
    free(c->tensors);
    json_object_put(c->config);
    json_object_put(c->generation_config);
    json_object_put(c->quantize_file);
    free(c);
}

const char *checkpoint_dir(const struct checkpoint *c)
{
    return c->dir;
}

struct json_object *checkpoint_config(const struct checkpoint *c)
{
    return c->config;
}

struct json_object *checkpoint_generation_config(const struct checkpoint *c)
{
    return c->generation_config;
}

struct json_object *checkpoint_quantization(const struct checkpoint *c)
{
    struct json_object *o = json_get(c->config, "quantization_config");

    if (!o) { /* some exports of nested models put it beside the text fields */
        o = json_get(json_get(c->config, "text_config"), "quantization_config");
    }
    return o ? o : c->quantize_file;
}

size_t checkpoint_count(const struct checkpoint *c)
{
    return c->n_tensors;
}

const struct checkpoint_tensor *checkpoint_at(const struct checkpoint *c, size_t i)
{
    return i < c->n_tensors ? &c->tensors[i] : NULL;
}

const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    struct checkpoint_tensor key = {.name = name};

    return c->n_tensors ? bsearch(&key, c->tensors, c->n_tensors, sizeof key, compare_tensor)
                        : NULL;
}

size_t checkpoint_bytes(const struct checkpoint *c)
{
    return c->n_bytes;
}

size_t checkpoint_n_files(const struct checkpoint *c)
{
    return c->n_shards;
}
