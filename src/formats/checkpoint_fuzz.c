/* checkpoint_fuzz.c - fuzz target: model.safetensors.index.json over two good shards in a temporary
 * folder. An index that is accepted lists exactly the tensors that are there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/checkpoint.h"
#include "formats/safetensors.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/checkpoint_fuzz_XXXXXX";
static char paths[4][64];

static void clean_up(void)
{
    for (size_t i = 0; i < 4; i++) {
        unlink(paths[i]);
    }
    rmdir(dir);
}

static void write_file(const char *path, const void *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, data, n) != (ssize_t)n || close(fd) != 0) {
        abort();
    }
}

static void write_shard(const char *path, const char *name)
{
    static float one = 1.0f;
    struct tensor t = {&one, DTYPE_F32, 1, {1}};
    struct safetensors_writer *w;

    if (safetensors_writer_new(&w, NULL) != OK || safetensors_writer_add(w, name, &t, NULL) != OK ||
        safetensors_writer_finish(w, path, NULL) != OK) {
        abort();
    }
    safetensors_writer_free(w);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char *const names[] = {"config.json", "a.safetensors", "b.safetensors",
                                        "model.safetensors.index.json"};

    (void)argc;
    (void)argv;
    if (!mkdtemp(dir)) {
        abort();
    }
    for (size_t i = 0; i < 4; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", dir, names[i]);
    }
    write_file(paths[0], "{}", 2);
    write_shard(paths[1], "x");
    write_shard(paths[2], "y");
    atexit(clean_up);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checkpoint *c;
    struct error err;

    write_file(paths[3], data, size);
    if (checkpoint_open(&c, dir, NULL, NULL, &err) == OK) {
        for (size_t i = 0; i < checkpoint_count(c); i++) {
            if (checkpoint_find(c, checkpoint_at(c, i)->name) != checkpoint_at(c, i)) {
                abort();
            }
        }
        if (checkpoint_count(c) > 2 || checkpoint_count(c) != checkpoint_n_files(c)) {
            abort();
        }
        checkpoint_close(c);
    }
    return 0;
}
