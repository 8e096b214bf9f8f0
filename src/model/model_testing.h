/* model_testing.h - what the tests of this room share: opening models, changed copies of checkpoints,
 * comparing arrays.
 *
 * Place: model, tests only. Everything fails the running test on the spot; nothing needs a check. */
#ifndef MODEL_TESTING_H
#define MODEL_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/cpu_backend.h"
#include "formats/safetensors.h"
#include "formats/test_dir.h"
#include "model/eval_run.h"
#include "model/model.h"

#define GOLDEN_DIR SPILLWAY_SOURCE_DIR "/tests/golden/"
#define RILL_DIR   SPILLWAY_SOURCE_DIR "/models/rill"

enum { N_FIXTURES = 5 };
extern const char *const fixture_names[N_FIXTURES];
void fixture_path(char out[512], const char *name, const char *file); /* file "" for the folder */

/* ---- models ---- */

/* Where models run. A golden test takes the name as its argument: cpu, cuda, cuda-no-graphs. */
enum test_device { TEST_CPU, TEST_CUDA, TEST_CUDA_NO_GRAPHS };

/* From the program's arguments; ends it with 77 (skipped) when there is no card. */
enum test_device test_device_named(int argc, char **argv);

/* Backends that models share, one model after the other: to open a card takes a second, and loads every
 * kernel. Zeros at first; made when the first model needs them. */
struct test_backends {
    struct backend *cpu, *cuda;
};
void test_backends_close(struct test_backends *b);

struct test_setup { /* zeros are defaults: auto types, 512 rows, one sequence, a context of 1,024 */
    enum dtype compute, kv, recurrent;
    enum test_device device;
    const struct cuda_driver *driver;    /* of a card; NULL: the real one. See emulator.h */
    const struct model_offload *offload; /* or NULL */
    enum cpu_isa isa;                    /* of the CPU */
    enum cpu_activations activations;
    enum dense_quant dense_quant;
    size_t n_threads; /* 0: two */
    size_t rows_max, n_live, n_snapshots, context_max, gdn_chunk_min;
    const struct log *log;
    struct test_backends
        *shared; /* or NULL; with the same device, isa, activations and threads always */
};

struct test_model {
    struct checkpoint *ck;
    struct backend *cpu; /* loads */
    struct backend *be;  /* runs; may be cpu */
    bool is_shared;      /* the two are */
    struct model *m;
};

void test_model_open(struct test_model *t, const char *dir, const struct test_setup *s);
/* The same, expecting a refusal: returns its code, text in err. */
enum status test_model_refused(const char *dir, const struct test_setup *s, struct error *err);
void test_model_close(struct test_model *t);

/* ---- recorded outputs ---- */

/* An array of file, or NULL. Errors in type or size fail. */
const float *recorded_f32(struct safetensors *file, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const int32_t *recorded_i32(struct safetensors *file, size_t *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Norm of the difference over norm of b; NaN anywhere gives NaN. */
double relative_error(const float *a, const float *b, size_t n);

/* ---- changed checkpoints ---- */

struct edit_tensor {
    char *name;
    struct tensor tensor;
    void *owned; /* data, when it was replaced */
};

/* A checkpoint in memory that can be changed and written somewhere else. */
struct checkpoint_edit {
    struct checkpoint *ck;
    struct json_object *config; /* a copy */
    struct edit_tensor *tensors;
    size_t n, cap;
};

void edit_open(struct checkpoint_edit *e, const char *dir);
struct edit_tensor *edit_find(struct checkpoint_edit *e, const char *name); /* must be there */
void edit_rename(struct edit_tensor *t, const char *name);
void edit_drop(struct checkpoint_edit *e, const char *name);
void *edit_own(struct edit_tensor *t); /* a writable copy of its data */
/* A new tensor of zeros; the caller fills the returned memory. */
void *edit_add(struct checkpoint_edit *e, const char *name, enum dtype dtype, size_t n_dims,
               const size_t *shape);
void edit_write(struct checkpoint_edit *e, const char *dir); /* model.safetensors, config.json */
void edit_close(struct checkpoint_edit *e);

#endif
