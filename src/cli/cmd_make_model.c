/* cmd_make_model.c - `spillway make-model`: a checkpoint of random weights, with the layout of a real one.
 *
 * Place: cli. So that speed and memory can be measured at true size on any machine, without a
 *        download. The work is model_maker.c. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/model_inventory.h"
#include "cli/model_maker.h"
#include "cli/signals.h"

static const double SHARD_GB = 4, SHARD_GB_MIN = 0.001, SHARD_GB_MAX = 1000;

struct make_flags {
    const char *out, *shape, *format, *scales;
    size_t layers, experts, vocab, seed, threads;
    double shard_gb;
    bool mtp, no_mtp, vision, no_vision, force, list;
};

#define AT(member) .offset = FLAG_OFFSET(struct make_flags, member)

static const struct flag make_flag_table[] = {
    {.name = "out",
     .kind = FLAG_STRING,
     AT(out),
     .metavar = "DIR",
     .help = "folder to write; made when it is not there"},
    {.name = "shape",
     .kind = FLAG_STRING,
     AT(shape),
     .metavar = "NAME",
     .help = "the model whose sizes are taken; --list shows the names"},
    {.name = "list", .kind = FLAG_BOOL, AT(list), .help = "print the shapes and their file sizes"},
    {.name = "layers",
     .kind = FLAG_SIZE,
     AT(layers),
     .metavar = "N",
     .help = "another number of layers; every 4th has full attention"},
    {.name = "experts",
     .kind = FLAG_SIZE,
     AT(experts),
     .metavar = "N",
     .help = "another number of experts per layer"},
    {.name = "vocab",
     .kind = FLAG_SIZE,
     AT(vocab),
     .metavar = "N",
     .help = "another vocabulary size, at least 1024"},
    {.name = "seed", .kind = FLAG_SIZE, AT(seed), .metavar = "S", .help = "other weights"},
    {.name = "format",
     .kind = FLAG_CHOICE,
     AT(format),
     .choices = "auto|gptq-int4|bf16",
     .help = "of routed experts and dense MLPs; auto: gptq-int4 for models with experts"},
    {.name = "scales",
     .kind = FLAG_CHOICE,
     AT(scales),
     .choices = "f16|bf16",
     .help = "type of the scales of gptq-int4"},
    {.name = "mtp", .kind = FLAG_BOOL, AT(mtp), .help = "with the draft head (mtp.*)"},
    {.name = "no-mtp", .kind = FLAG_BOOL, AT(no_mtp), .help = "without it, the default"},
    {.name = "vision",
     .kind = FLAG_BOOL,
     AT(vision),
     .help = "with the vision tower (model.visual.*)"},
    {.name = "no-vision", .kind = FLAG_BOOL, AT(no_vision), .help = "without it, the default"},
    {.name = "shard-gb",
     .kind = FLAG_DOUBLE,
     AT(shard_gb),
     .metavar = "G",
     .help = "largest size of one file, in GB"},
    {.name = "threads",
     .kind = FLAG_SIZE,
     AT(threads),
     .metavar = "N",
     .help = "worker threads (default: one per physical core); the files do not depend on it"},
    {.name = "force",
     .kind = FLAG_BOOL,
     AT(force),
     .help = "replace the model that the folder holds: its safetensors, index, configuration and "
             "tokenizer files are removed"},
};

static double gigabytes(uint64_t n_bytes)
{
    return (double)n_bytes * 1e-9;
}

/* ---- --list ---- */

static enum status print_shape(const struct model_shape *s, struct error *err)
{
    struct model_variant v = {.scale_dtype = DTYPE_F16};
    size_t n_bytes[2] = {0, 0}; /* bf16, gptq-int4 */
    uint64_t parameters = 0;
    enum status rc = OK;

    for (int i = 0; i < 2 && rc == OK; i++) {
        struct model_inventory inv;

        v.is_int4 = i == 1;
        rc = model_inventory_new(&inv, s, &v, err);
        n_bytes[i] = inv.n_bytes;
        parameters = inv.parameters;
        model_inventory_release(&inv);
    }
    if (rc == OK) {
        printf("%-20s %7zu %7zu %8zu %15.2f %10.1f %10.1f%s\n", s->name, s->n_layers, s->hidden,
               s->n_experts, gigabytes(parameters), gigabytes(n_bytes[0]), gigabytes(n_bytes[1]),
               model_variant_default(s).is_int4 ? "  (default)" : "");
    }
    return rc;
}

static enum status print_list(struct error *err)
{
    enum status rc = OK;

    printf("%-20s %7s %7s %8s %15s %10s %10s\n", "shape", "layers", "hidden", "experts",
           "parameters, 1e9", "bf16, GB", "int4, GB");
    for (size_t i = 0; i < model_shapes_count && rc == OK; i++) {
        rc = print_shape(&model_shapes[i], err);
    }
    printf("\ntext model alone; the default format is bf16 unless int4 is marked\n");
    return rc;
}

/* ---- making ---- */

static enum status check_pair(bool with, bool without, const char *name, struct error *err)
{
    if (with && without) {
        return error_set_param(err, ERR_USAGE, name, "--%s and --no-%s exclude each other", name,
                               name);
    }
    return OK;
}

static enum status read_variant(struct model_variant *v, const struct make_flags *f,
                                const struct model_shape *s, struct error *err)
{
    enum status rc = check_pair(f->mtp, f->no_mtp, "mtp", err);

    if (rc == OK) {
        rc = check_pair(f->vision, f->no_vision, "vision", err);
    }
    *v = model_variant_default(s);
    if (strcmp(f->format, "auto") != 0) {
        v->is_int4 = strcmp(f->format, "gptq-int4") == 0;
    }
    v->scale_dtype = strcmp(f->scales, "bf16") == 0 ? DTYPE_BF16 : DTYPE_F16;
    v->with_mtp = f->mtp;
    v->with_vision = f->vision;
    return rc == OK ? model_variant_check(v, s, err) : rc;
}

static enum status read_options(struct make_options *o, const struct make_flags *f,
                                struct error *err)
{
    const struct shape_change change = {f->layers, f->experts, f->vocab};
    enum status rc;

    if (!f->shape || !f->out) {
        return error_set_param(err, ERR_USAGE, f->shape ? "out" : "shape",
                               "no %s: give --shape NAME --out DIR (--list shows the shapes)",
                               f->shape ? "folder" : "shape");
    }
    rc = model_shape_find(&o->shape, f->shape, err);
    if (rc == OK) {
        rc = model_shape_change(&o->shape, &change, err);
    }
    if (rc == OK) {
        rc = read_variant(&o->variant, f, &o->shape, err);
    }
    o->dir = f->out;
    o->seed = f->seed;
    o->replace = f->force;
    o->shard_bytes = (size_t)(f->shard_gb * 1e9);
    return rc;
}

/* Stop signals are blocked, so that a half-written model is removed and not left. */
static bool stop_is_pending(void *ctx)
{
    sigset_t pending;

    (void)ctx;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1);
}

static void print_result(const struct make_options *o, const struct make_result *r, double seconds)
{
    printf("%s: %zu tensors, %.2f GB in %zu file%s, %.2f s (%.2f GB/s)\n", o->dir, r->n_tensors,
           gigabytes(r->file_bytes), r->n_shards, r->n_shards == 1 ? "" : "s", seconds,
           gigabytes(r->file_bytes) / seconds);
}

static enum status make(const struct make_flags *f, struct error *err)
{
    struct make_options o = {.should_stop = stop_is_pending};
    struct make_result result;
    struct pool *pool = NULL;
    struct progress progress;
    uint64_t start = clock_now_ns();
    enum status rc = read_options(&o, f, err);

    if (rc != OK) {
        return rc;
    }
    signals_block();
    rc = pool_new(&pool, f->threads, err);
    if (rc == OK) {
        progress_init(&progress, STDERR_FILENO);
        rc = model_make(&result, &o, pool, &progress, err);
    }
    pool_free(pool);
    if (rc == OK) {
        print_result(&o, &result, clock_seconds_since(start));
    }
    return rc;
}

static int run(int argc, char **argv, struct log *log)
{
    struct make_flags f = {.format = "auto", .scales = "f16", .shard_gb = SHARD_GB};
    const struct flag_group group = {"Flags", make_flag_table,
                                     sizeof make_flag_table / sizeof make_flag_table[0], &f};
    struct flag_result parsed = {0};
    struct error err = {0};
    enum status rc = flags_parse(&parsed, &command_make_model, &group, 1, 0, argc, argv, log, &err);

    if (rc == OK && !(f.shard_gb >= SHARD_GB_MIN && f.shard_gb <= SHARD_GB_MAX)) {
        rc = error_set_param(&err, ERR_USAGE, "shard-gb", "--shard-gb %g is not in %g..%g",
                             f.shard_gb, SHARD_GB_MIN, SHARD_GB_MAX);
    }
    if (rc == OK && !parsed.help) {
        rc = f.list ? print_list(&err) : make(&f, &err);
    }
    flags_release(&parsed);
    return rc == OK ? EXIT_CODE_OK : command_fail(&err);
}

const struct command command_make_model = {
    .name = "make-model",
    .summary = "write random weights in the layout of a real model, to measure speed",
    .examples = "  spillway make-model --list\n"
                "  spillway make-model --shape qwen3.5-35b-a3b --out /data/random-35b\n"
                "  spillway make-model --shape qwen3.5-35b-a3b --layers 4 --experts 8 --vocab 2048 "
                "--out small\n",
    .run = run,
};
