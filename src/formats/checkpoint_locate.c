/* checkpoint_locate.c - from what the user typed to a model folder.
 *
 * Place:  formats. A folder is taken as it is; "org/name[@revision]" is looked up in hub caches:
 *
 *   <cache>/models--org--name/refs/<revision>          holds a commit id
 *   <cache>/models--org--name/snapshots/<commit>/      the files (links into ../../blobs)
 *
 * Idea:   nothing is downloaded here; a miss says what was looked for and which command fetches it. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file_map.h"
#include "formats/checkpoint.h"

enum { REF_BYTES_MAX = 256 };

/* "org/name@revision" taken apart; the texts borrow the argument. */
struct hub_name {
    struct str repo, revision;
    bool has_revision;
};

/* Characters of one path component that hub names and branches use. */
static bool is_component(struct str s)
{
    if (s.len == 0 || s.ptr[0] == '.') {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];

        if (!(isalnum(c) || c == '-' || c == '_' || c == '.')) {
            return false;
        }
    }
    return true;
}

/* Components separated by '/', at most n_max of them; no empty ones, none that begins with '.'. */
static bool are_components(struct str s, size_t n_max)
{
    size_t start = 0;

    for (size_t i = 0; i <= s.len; i++) {
        if (i == s.len || s.ptr[i] == '/') {
            if (n_max-- == 0 || !is_component((struct str){s.ptr + start, i - start})) {
                return false;
            }
            start = i + 1;
        }
    }
    return true;
}

static bool hub_name_parse(struct hub_name *out, const char *text)
{
    const char *at = strchr(text, '@');
    struct str all = str_of(text);

    out->repo = at ? (struct str){text, (size_t)(at - text)} : all;
    out->has_revision = at != NULL;
    out->revision = at ? str_of(at + 1) : STR("main");
    return are_components(out->repo, 2) && are_components(out->revision, 4);
}

static bool is_dir(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static enum status copy_path(char *buf, size_t n, const char *path, struct error *err)
{
    size_t len = strlen(path);

    if (len >= n) {
        return error_set(err, ERR_LIMIT, "the path '%.100s...' has %zu bytes, more than %zu", path,
                         len, n - 1);
    }
    memcpy(buf, path, len + 1);
    return OK;
}

static void append_slice(struct buf *b, struct str s)
{
    buf_append(b, s.ptr, s.len);
}

/* <cache>/models--org--name */
static void append_repo_dir(struct buf *b, const char *cache, struct str repo)
{
    buf_appendf(b, "%s/models--", cache);
    for (size_t i = 0; i < repo.len; i++) {
        if (repo.ptr[i] == '/') {
            buf_append_str(b, "--");
        } else {
            buf_append_char(b, repo.ptr[i]);
        }
    }
}

/* The commit that refs/<revision> names, without its newline; false when there is none. */
static bool read_ref(struct buf *commit, const char *repo_dir, struct str revision)
{
    struct buf path;
    char *text = NULL;
    size_t n = 0;
    bool found;

    buf_init(&path);
    buf_appendf(&path, "%s/refs/", repo_dir);
    append_slice(&path, revision);
    found = buf_ok(&path) && file_read(&text, &n, buf_cstr(&path), REF_BYTES_MAX, NULL) == OK;
    if (found) {
        while (n > 0 && isspace((unsigned char)text[n - 1])) {
            n--;
        }
        found = is_component((struct str){text, n});
        buf_append(commit, text, n);
    }
    free(text);
    buf_release(&path);
    return found && buf_ok(commit);
}

/* The snapshot folder of one cache in *dir; false when that cache does not hold it. A revision
 * without a ref may itself be a commit. */
static bool find_snapshot(struct buf *dir, const char *cache, const struct hub_name *name)
{
    struct buf repo, commit;
    bool found;

    buf_init(&repo);
    buf_init(&commit);
    append_repo_dir(&repo, cache, name->repo);
    if (!read_ref(&commit, buf_cstr(&repo), name->revision) && is_component(name->revision)) {
        buf_clear(&commit);
        append_slice(&commit, name->revision);
    }
    buf_clear(dir);
    buf_appendf(dir, "%s/snapshots/%s", buf_cstr(&repo), buf_cstr(&commit));
    found =
        buf_ok(&repo) && buf_ok(&commit) && buf_ok(dir) && commit.len > 0 && is_dir(buf_cstr(dir));
    buf_release(&repo);
    buf_release(&commit);
    return found;
}

/* "... looked in A, B; download it with: huggingface-cli download org/name" */
static enum status not_in_cache(const struct hub_name *name, const char *const *cache_dirs,
                                struct error *err)
{
    struct buf text;
    enum status rc;

    buf_init(&text);
    buf_appendf(&text, "model '%.*s'", (int)name->repo.len, name->repo.ptr);
    if (name->has_revision) {
        buf_appendf(&text, " (revision '%.*s')", (int)name->revision.len, name->revision.ptr);
    }
    buf_append_str(&text, " is neither a folder here nor in the Hugging Face cache (looked for ");
    for (size_t i = 0; cache_dirs && cache_dirs[i]; i++) {
        buf_append_str(&text, i ? ", " : "");
        append_repo_dir(&text, cache_dirs[i], name->repo);
    }
    if (!cache_dirs || !cache_dirs[0]) {
        buf_append_str(&text, "no cache folder, as none is known");
    }
    buf_appendf(&text, "); download it with: huggingface-cli download %.*s", (int)name->repo.len,
                name->repo.ptr);
    if (name->has_revision) {
        buf_appendf(&text, " --revision %.*s", (int)name->revision.len, name->revision.ptr);
    }
    rc = error_set(err, ERR_NOT_FOUND, "%s", buf_cstr(&text));
    buf_release(&text);
    return rc;
}

enum status checkpoint_locate(char *buf, size_t n, const char *path_or_name,
                              const char *const *cache_dirs, struct error *err)
{
    struct hub_name name;
    struct stat st;

    if (path_or_name[0] == '\0') {
        return error_set(err, ERR_NOT_FOUND, "the model's path is empty");
    }
    if (stat(path_or_name, &st) == 0) {
        if (!S_ISDIR(st.st_mode)) {
            return error_set(err, ERR_NOT_FOUND,
                             "'%s' is a file; give the model's folder, the one with config.json",
                             path_or_name);
        }
        return copy_path(buf, n, path_or_name, err);
    }
    if (errno != ENOENT && errno != ENOTDIR) {
        return error_set(err, ERR_IO, "cannot look at '%s': %s", path_or_name, strerror(errno));
    }
    if (!hub_name_parse(&name, path_or_name)) {
        return error_set(err, ERR_NOT_FOUND, "there is no folder '%s'", path_or_name);
    }
    for (size_t i = 0; cache_dirs && cache_dirs[i]; i++) {
        struct buf dir;
        bool found;
        enum status rc = OK;

        buf_init(&dir);
        found = find_snapshot(&dir, cache_dirs[i], &name);
        if (found) {
            rc = copy_path(buf, n, buf_cstr(&dir), err);
        }
        buf_release(&dir);
        if (found) {
            return rc;
        }
    }
    return not_in_cache(&name, cache_dirs, err);
}
