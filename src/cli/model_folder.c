/* model_folder.c - see model_folder.h. */
#include "cli/model_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/str.h"
#include "cli/model_texts.h"

enum status model_folder_path(char out[CHECKPOINT_PATH_BYTES], const char *dir, const char *name,
                              struct error *err)
{
    int n = snprintf(out, CHECKPOINT_PATH_BYTES, "%s/%s", dir, name);

    if (n < 0 || n >= CHECKPOINT_PATH_BYTES) {
        return error_set(err, ERR_USAGE, "the path '%.80s...' is longer than %d bytes", dir,
                         CHECKPOINT_PATH_BYTES - 1);
    }
    return OK;
}

static bool is_model_file(struct str name)
{
    size_t unfinished = str_find(name, STR(".tmp-"));

    if (unfinished != SIZE_MAX) {
        name.len = unfinished;
    }
    for (size_t i = 0; i < model_texts_count; i++) {
        if (str_eq(name, str_of(model_texts[i].name))) {
            return true;
        }
    }
    return str_ends(name, STR(".safetensors")) || str_ends(name, STR(".safetensors.index.json"));
}

/* What the model files of a folder take on the disk; one of their names. */
struct holding {
    size_t n, n_bytes;
    char name[NAME_MAX + 1];
};

/* A folder that cannot be read counts as empty: writing into it will tell. */
static void look_into(struct holding *h, const char *dir, bool remove_them)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    *h = (struct holding){0};
    while (d && (e = readdir(d)) != NULL) {
        struct stat st;

        if (!is_model_file(str_of(e->d_name))) {
            continue;
        }
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
            h->n_bytes += (size_t)st.st_blocks * 512;
        }
        h->n++;
        snprintf(h->name, sizeof h->name, "%s", e->d_name);
        if (remove_them) {
            unlinkat(dirfd(d), e->d_name, 0);
        }
    }
    if (d) {
        closedir(d);
    }
}

static enum status make_dir(bool *made, const char *dir, struct error *err)
{
    struct stat st;

    *made = mkdir(dir, 0777) == 0;
    if (*made) {
        return OK;
    }
    if (errno != EEXIST) {
        return error_set(err, ERR_IO, "cannot make the folder '%s': %s", dir, strerror(errno));
    }
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode)) {
        return error_set(err, ERR_USAGE, "'%s' is not a folder", dir);
    }
    return OK;
}

/* A file system that does not tell its free space is taken to have enough. */
static enum status check_room(const char *dir, size_t need_bytes, size_t freed_bytes,
                              struct error *err)
{
    struct statvfs fs;
    size_t room;

    if (statvfs(dir, &fs) != 0 || fs.f_blocks == 0) {
        return OK;
    }
    room = (size_t)fs.f_bavail * fs.f_frsize + freed_bytes;
    if (need_bytes > room) {
        return error_set(err, ERR_IO,
                         "'%s' needs %.2f GB of disk space, %.2f GB are free (%zu and %zu bytes)",
                         dir, (double)need_bytes * 1e-9, (double)room * 1e-9, need_bytes, room);
    }
    return OK;
}

enum status model_folder_prepare(bool *made_dir, const char *dir, bool replace, size_t need_bytes,
                                 struct error *err)
{
    struct holding old;
    enum status rc = make_dir(made_dir, dir, err);

    if (rc != OK) {
        return rc;
    }
    look_into(&old, dir, false);
    if (old.n > 0 && !replace) {
        return error_set_param(err, ERR_USAGE, "force",
                               "'%s' holds a model already (%zu files, '%s' is one); --force "
                               "replaces it",
                               dir, old.n, old.name);
    }
    rc = check_room(dir, need_bytes, old.n_bytes, err);
    if (rc != OK) {
        if (*made_dir) {
            rmdir(dir);
        }
        return rc;
    }
    look_into(&old, dir, true);
    return OK;
}

void model_folder_clear(const char *dir, bool remove_dir)
{
    struct holding old;

    look_into(&old, dir, true);
    if (remove_dir) {
        rmdir(dir);
    }
}
