/* model_maker_test.c - made-up checkpoints: their content, files, failures, and a run of each family. */
#include "formats/test_dir.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

#include "backend/cpu/cpu_backend.h"
#include "base/file_map.h"
#include "base/half.h"
#include "cli/model_inventory.h"
#include "cli/model_maker.h"
#include "cli/model_texts.h"
#include "formats/checkpoint.h"
#include "model/eval_run.h"
#include "text/tokenizer.h"

/* ---- helpers ---- */

/* A few megabytes: the sizes of a shape, made small where the family allows it. */
static struct model_shape small_shape(const char *name)
{
    struct model_shape s;
    struct error err = {0};

    assert_int_equal(model_shape_find(&s, name, &err), OK);
    s.hidden = 256;
    s.n_layers = 4;
    s.n_heads = 2;
    s.n_kv_heads = 1;
    s.n_value_heads = 16;
    s.vocab = SHAPE_VOCAB_MIN;
    if (s.n_experts > 0) {
        s.n_experts = 4;
        s.n_active = 2;
        s.expert_width = s.shared_width = 128;
    } else {
        s.intermediate = 256;
    }
    return s;
}

enum { DIR_BYTES = 128 };

/* dir becomes the folder NAME in d, which is not made. */
static struct make_options small_options(char dir[DIR_BYTES], const struct test_dir *d,
                                         const char *name, const char *shape)
{
    struct make_options o = {.dir = dir, .shape = small_shape(shape), .seed = 7};

    snprintf(dir, DIR_BYTES, "%s/%s", d->path, name);
    o.variant = model_variant_default(&o.shape);
    o.shard_bytes = 8 * 1000 * 1000;
    return o;
}

static void make_ok(const struct make_options *o, size_t n_threads)
{
    struct make_result r;
    struct error err = {0};
    struct pool *pool = NULL;

    if (n_threads > 0) {
        assert_int_equal(pool_new(&pool, n_threads, &err), OK);
    }
    if (model_make(&r, o, pool, NULL, &err) != OK) {
        fail_msg("%s", err.text);
    }
    pool_free(pool);
}

static enum status make_fails(const struct make_options *o, struct error *err)
{
    struct make_result r;

    memset(err, 0, sizeof *err);
    return model_make(&r, o, NULL, NULL, err);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum { FILES_MAX = 64 };

/* Sorted names of a folder's entries; the caller frees each. */
static size_t list_files(char *names[FILES_MAX], const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    size_t n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] != '.') {
            assert_true(n < FILES_MAX);
            names[n++] = strdup(e->d_name);
        }
    }
    closedir(d);
    qsort(names, n, sizeof names[0], compare_names);
    return n;
}

static size_t count_files(const char *dir)
{
    char *names[FILES_MAX];
    size_t n = list_files(names, dir);

    for (size_t i = 0; i < n; i++) {
        free(names[i]);
    }
    return n;
}

static bool same_file(const char *a_dir, const char *b_dir, const char *name)
{
    char a_path[512], b_path[512];
    struct file_map a, b;
    struct error err = {0};
    bool same;

    snprintf(a_path, sizeof a_path, "%s/%s", a_dir, name);
    snprintf(b_path, sizeof b_path, "%s/%s", b_dir, name);
    assert_int_equal(file_map_open(&a, a_path, &err), OK);
    assert_int_equal(file_map_open(&b, b_path, &err), OK);
    same = a.n_bytes == b.n_bytes && memcmp(a.data, b.data, a.n_bytes) == 0;
    file_map_close(&a);
    file_map_close(&b);
    return same;
}

/* ---- content ---- */

/* Any cut into pieces gives the same content, and names and seeds give others. */
static void test_fill_pieces(void **state)
{
    static const struct fill_spec specs[] = {
        {FILL_NORMAL, DTYPE_BF16, 0, 1, 0},           {FILL_UNIFORM, DTYPE_F16, 0.5, 1.5, 0},
        {FILL_DECAY_RATE, DTYPE_F32, 1, 16, 0},       {FILL_INT4, DTYPE_I32, 0, 0, 0},
        {FILL_CONSTANT, DTYPE_I32, 0, 0, 0x77777777}, {FILL_GROUPS, DTYPE_I32, 0, 0, 128},
    };
    enum { N = 1001 };

    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        uint32_t whole[N], pieces[N];
        size_t each = dtype_bytes(specs[i].dtype);
        uint64_t key = fill_key(3, "name");
        struct fill f;

        fill_init(&f, &specs[i]);
        fill_range(whole, &f, key, 0, N);
        for (size_t first = 0, n = 1; first < N; first += n, n = n % 13 + 1) {
            n = n < N - first ? n : N - first;
            fill_range((char *)pieces + first * each, &f, key, first, n);
        }
        assert_memory_equal(whole, pieces, N * each);
        fill_range(pieces, &f, key, 0, 0);
        assert_memory_equal(whole, pieces, N * each);
        if (specs[i].kind < FILL_CONSTANT) {
            fill_range(pieces, &f, fill_key(4, "name"), 0, N);
            assert_memory_not_equal(whole, pieces, N * each);
            fill_range(pieces, &f, fill_key(3, "names"), 0, N);
            assert_memory_not_equal(whole, pieces, N * each);
        }
    }
}

static void moments(double *mean, double *deviation, double *least, double *most,
                    const struct fill_spec *spec)
{
    enum { N = 20000 };
    static float values[N];
    double sum = 0, squares = 0;
    struct fill f;

    fill_init(&f, spec);
    fill_range(values, &f, fill_key(1, "x"), 0, N);
    *least = *most = (double)values[0];
    for (size_t i = 0; i < N; i++) {
        double v = (double)values[i];

        sum += v;
        squares += v * v;
        *least = fmin(*least, v);
        *most = fmax(*most, v);
    }
    *mean = sum / N;
    *deviation = sqrt(squares / N - *mean * *mean);
}

static void test_distributions(void **state)
{
    const struct fill_spec normal = {FILL_NORMAL, DTYPE_F32, 2, 0.5, 0};
    const struct fill_spec uniform = {FILL_UNIFORM, DTYPE_F32, -1, 3, 0};
    const struct fill_spec rate = {FILL_DECAY_RATE, DTYPE_F32, 1, 16, 0};
    const struct fill_spec step = {FILL_TIME_STEP, DTYPE_F32, 0.001, 0.1, 0};
    double mean, deviation, least, most;

    (void)state;
    moments(&mean, &deviation, &least, &most, &normal);
    assert_true(fabs(mean - 2) < 0.02 && fabs(deviation - 0.5) < 0.02);
    assert_true(least < 0.6 && most > 3.4);
    moments(&mean, &deviation, &least, &most, &uniform);
    assert_true(fabs(mean - 1) < 0.04 && fabs(deviation - 4 / sqrt(12)) < 0.03);
    assert_true(least >= -1 && most <= 3);
    moments(&mean, &deviation, &least, &most, &rate);
    assert_true(least >= 0 && most <= log(16) && exp(most) > 15.5);
    moments(&mean, &deviation, &least, &most, &step);
    assert_true(log1p(exp(least)) >= 0.00099 && log1p(exp(most)) <= 0.101);
    assert_true(log1p(exp(least)) < 0.0011 && log1p(exp(most)) > 0.09);
}

/* Packed weights are 1..15 and balanced around the zero point. */
static void test_int4(void **state)
{
    enum { N = 10000 };
    const struct fill_spec spec = {.kind = FILL_INT4, .dtype = DTYPE_I32};
    static uint32_t words[N];
    size_t counts[16] = {0};
    double sum = 0;
    struct fill f;

    (void)state;
    fill_init(&f, &spec);
    fill_range(words, &f, fill_key(1, "x"), 1, N);
    for (size_t i = 0; i < N; i++) {
        for (unsigned k = 0; k < 8; k++) {
            unsigned q = words[i] >> (4 * k) & 15;

            counts[q]++;
            sum += (double)q - 8;
        }
    }
    assert_int_equal(counts[0], 0);
    assert_true(fabs(sum / (8 * N)) < 0.05);
    for (size_t q = 1; q < 16; q++) {
        size_t expected = 8 * N / 16 * (q == 8 ? 2 : 1);

        assert_in_range(counts[q], expected * 9 / 10, expected * 11 / 10);
    }
}

/* ---- small files ---- */

/* Every shape's configuration reads back as the shape. */
static void test_configs(void **state)
{
    (void)state;
    for (size_t i = 0; i < model_shapes_count; i++) {
        const struct model_shape *s = &model_shapes[i];
        struct model_variant v = model_variant_default(s);
        struct model_text_input in = {s, &v, 1};
        const struct model_text *config = &model_texts[model_texts_count - 1];
        struct json_object *o = NULL;
        struct model_config c;
        struct error err = {0};
        struct buf b;
        bool is_next = s->family == FAMILY_QWEN3_NEXT;

        assert_string_equal(config->name, "config.json");
        buf_init(&b);
        config->write(&b, &in);
        assert_int_equal(json_parse(&o, b.data, b.len, &err), OK);
        if (model_config_read(&c, o, NULL, &err) != OK) {
            fail_msg("%s: %s", s->name, err.text);
        }
        assert_int_equal(c.family, s->family);
        assert_int_equal(c.hidden_size, s->hidden);
        assert_int_equal(c.n_layers, s->n_layers);
        assert_int_equal(c.n_heads, s->n_heads);
        assert_int_equal(c.n_kv_heads, s->n_kv_heads);
        assert_int_equal(c.linear_n_value_heads, s->n_value_heads);
        assert_int_equal(c.n_experts, s->n_experts);
        assert_int_equal(c.n_experts_per_token, s->n_active);
        assert_int_equal(c.expert_intermediate_size, s->expert_width);
        assert_int_equal(c.vocab_size, s->vocab);
        assert_int_equal(c.tie_embeddings, s->is_tied);
        assert_int_equal(c.max_positions, 262144);
        assert_int_equal(c.rope.n_dims, 64);
        assert_int_equal(c.mtp_layers, 0);
        assert_int_equal(c.eos_ids[0], is_next ? 151645 : 248044);
        assert_false(c.layer_is_full[2]);
        assert_true(c.layer_is_full[3]);
        assert_int_equal(c.is_nested, !is_next);
        assert_int_equal(json_has(o, "quantization_config"), v.is_int4);
        model_config_release(&c);
        json_object_put(o);
        buf_release(&b);
    }
}

static void test_tokenizer(void **state)
{
    static const struct {
        const char *shape;
        size_t vocab; /* 0: the model's own */
        int32_t end, think;
        size_t n_ids;
    } cases[] = {
        {"qwen3.5-0.8b", 0, 248046, 248068, 248077},
        {"qwen3-next-80b-a3b", 0, 151645, 151667, 151669},
        {"qwen3.5-35b-a3b", 2048, 2048 - 276 + 2, 2048 - 276 + 24, 2048 - 276 + 33},
        {"qwen3-next-80b-a3b", SHAPE_VOCAB_MIN, 1024 - 293 + 2, 1024 - 293 + 24, 1024 - 293 + 26},
    };
    static const char text[] = "<|im_start|>user\nSome words, 123 and \xe6\xb0\xb4!<|im_end|>";

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_shape s;
        struct shape_change change = {.vocab = cases[i].vocab};
        struct model_variant v = {0};
        struct model_text_input in = {&s, &v, 1};
        struct tokenizer *t;
        struct token_ids ids = {0};
        struct error err = {0};
        struct buf file, back;

        assert_int_equal(model_shape_find(&s, cases[i].shape, &err), OK);
        assert_int_equal(model_shape_change(&s, &change, &err), OK);
        buf_init(&file);
        buf_init(&back);
        model_tokenizer_write(&file, &in);
        if (tokenizer_load_memory(&t, file.data, file.len, &err) != OK) {
            fail_msg("%s: %s", s.name, err.text);
        }
        assert_int_equal(tokenizer_vocab_size(t), cases[i].n_ids);
        assert_true(tokenizer_vocab_size(t) <= s.vocab);
        assert_int_equal(tokenizer_id_of(t, STR("<|im_end|>")), cases[i].end);
        assert_int_equal(tokenizer_id_of(t, STR("<think>")), cases[i].think);
        assert_true(tokenizer_is_special(t, cases[i].end));
        assert_false(tokenizer_is_special(t, cases[i].think));
        assert_int_equal(tokenizer_encode_text(&ids, t, STR(text), &err), OK);
        assert_int_equal(ids.ids[0], cases[i].end - 1);
        assert_int_equal(ids.ids[ids.n - 1], cases[i].end);
        for (size_t k = 0; k < ids.n; k++) {
            struct str piece = tokenizer_bytes(t, ids.ids[k]);
            buf_append(&back, piece.ptr, piece.len);
        }
        assert_string_equal(buf_cstr(&back), text);
        for (int32_t id = 0; id < (int32_t)cases[i].n_ids; id += 97) {
            assert_non_null(tokenizer_bytes(t, id).ptr);
        }
        token_ids_release(&ids);
        tokenizer_free(t);
        buf_release(&file);
        buf_release(&back);
    }
}

/* ---- files ---- */

/* The same bytes with one thread, with three and with none; others for another seed. */
static void test_same_bytes(void **state)
{
    struct test_dir d;
    char dirs[4][DIR_BYTES];
    char *names[FILES_MAX];
    size_t n, n_different = 0;

    (void)state;
    test_dir_open(&d);
    for (size_t i = 0; i < 4; i++) {
        static const size_t threads[] = {0, 1, 3, 2};
        static const char *const names_of[] = {"a", "b", "c", "d"};
        struct make_options o = small_options(dirs[i], &d, names_of[i], "qwen3.5-35b-a3b");

        o.seed = i == 3 ? 8 : 7;
        o.shape.vision.depth = 1;
        o.variant.with_mtp = o.variant.with_vision = i == 0; /* every kind of tensor once */
        if (i == 0) {
            make_ok(&o, 2);
            assert_true(count_files(dirs[i]) > 8);
            o.variant.with_mtp = o.variant.with_vision = false;
            o.replace = true;
        }
        make_ok(&o, threads[i]);
    }
    n = list_files(names, dirs[0]);
    assert_true(n > 7); /* at least two shards */
    assert_int_equal(count_files(dirs[1]), n);
    for (size_t i = 0; i < n; i++) {
        assert_true(same_file(dirs[0], dirs[1], names[i]));
        assert_true(same_file(dirs[0], dirs[2], names[i]));
        n_different += !same_file(dirs[0], dirs[3], names[i]);
        free(names[i]);
    }
    assert_int_equal(n_different, n - 5); /* shards and config.json, which names the seed */
    test_dir_close(&d);
}

/* All tensors of all variants are in the folder, each with the type and shape of the inventory. */
static void test_reopens(void **state)
{
    static const char *const shapes[] = {"qwen3.5-0.8b", "qwen3.5-35b-a3b", "qwen3-next-80b-a3b"};
    struct test_dir d;

    (void)state;
    test_dir_open(&d);
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        char dir[DIR_BYTES];
        struct make_options o = small_options(dir, &d, "model", shapes[i / 2]);
        struct model_inventory inv;
        struct checkpoint *ck;
        struct error err = {0};

        o.replace = i > 0;
        o.variant.is_int4 = i % 2 == 1;
        o.variant.scale_dtype = DTYPE_BF16;
        o.variant.with_mtp = true;
        o.variant.with_vision = o.shape.vision.depth > 0;
        o.shape.vision.depth = o.variant.with_vision ? 1 : 0;
        make_ok(&o, 2);
        assert_int_equal(model_inventory_new(&inv, &o.shape, &o.variant, &err), OK);
        if (checkpoint_open(&ck, dir, NULL, &d.log, &err) != OK) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(checkpoint_count(ck), inv.n);
        assert_int_equal(checkpoint_bytes(ck), inv.n_bytes);
        for (size_t k = 0; k < inv.n; k++) {
            const struct checkpoint_tensor *t = checkpoint_find(ck, inv.tensors[k].name);

            assert_non_null(t);
            assert_int_equal(t->tensor.dtype, inv.tensors[k].tensor.dtype);
            assert_memory_equal(t->tensor.shape, inv.tensors[k].tensor.shape,
                                t->tensor.n_dims * sizeof(size_t));
        }
        checkpoint_close(ck);
        model_inventory_release(&inv);
    }
    test_dir_close(&d);
}

static void test_replaces_only_when_asked(void **state)
{
    struct test_dir d;
    char dir[DIR_BYTES];
    struct make_options o;
    struct error err;
    struct checkpoint *ck;

    (void)state;
    test_dir_open(&d);
    o = small_options(dir, &d, "model", "qwen3.5-35b-a3b");
    test_mkdir(&d, "model");
    test_write_text(&d, "model/notes.txt", "mine");
    test_write_text(&d, "model/model-00007-of-00009.safetensors", "old");
    test_write_text(&d, "model/model-00008-of-00009.safetensors.tmp-1", "older");
    assert_int_equal(make_fails(&o, &err), ERR_USAGE);
    test_error_has(&err, "--force");
    assert_int_equal(count_files(dir), 3);

    o.replace = true;
    make_ok(&o, 2);
    assert_int_equal(access(test_path(&d, "model/notes.txt"), F_OK), 0);
    assert_int_equal(access(test_path(&d, "model/model-00007-of-00009.safetensors"), F_OK), -1);
    assert_int_equal(access(test_path(&d, "model/model-00008-of-00009.safetensors.tmp-1"), F_OK),
                     -1);
    assert_int_equal(checkpoint_open(&ck, dir, NULL, &d.log, &err), OK);
    checkpoint_close(ck);

    /* No room for the new one: the old one stays. */
    o.shape.n_layers = CONFIG_LAYERS_MAX;
    o.shape.n_experts = CONFIG_EXPERTS_MAX;
    o.shape.hidden = o.shape.expert_width = 1 << 16;
    o.variant.is_int4 = false;
    o.shard_bytes = SIZE_MAX / 2;
    assert_int_equal(make_fails(&o, &err), ERR_IO);
    test_error_has(&err, "are free");
    assert_int_equal(checkpoint_open(&ck, dir, NULL, &d.log, &err), OK);
    checkpoint_close(ck);
    test_dir_close(&d);
}

/* A disk that is full after some shards: the text names the file, and nothing is left. */
static void test_full_disk(void **state)
{
    struct test_dir d;
    char dir[DIR_BYTES];
    struct make_options o;
    struct rlimit old, small = {.rlim_cur = 3 << 20};
    struct error err;

    (void)state;
    test_dir_open(&d);
    o = small_options(dir, &d, "model", "qwen3.5-35b-a3b");
    o.shard_bytes = 2 << 20;
    o.shape.n_layers = 3;
    o.shape.vocab = 8192; /* embedding and head: 4 MiB each, the head at the end */
    o.shape.is_tied = false;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(make_fails(&o, &err), ERR_IO);
    test_error_has(&err, "of-0");
    assert_int_equal(access(dir, F_OK), -1);

    o.shape.vocab = SHAPE_VOCAB_MIN; /* now only the first tensors of a layer are too large */
    test_mkdir(&d, "model");
    test_write_text(&d, "model/notes.txt", "mine");
    assert_int_equal(make_fails(&o, &err), ERR_IO);
    assert_int_equal(count_files(dir), 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    test_dir_close(&d);
}

struct stopper {
    size_t calls_left;
};

static bool stop_later(void *ctx)
{
    struct stopper *s = ctx;

    return s->calls_left-- == 0;
}

static void test_stops(void **state)
{
    struct test_dir d;
    char dir[DIR_BYTES];
    struct make_options o;
    struct error err;

    (void)state;
    test_dir_open(&d);
    o = small_options(dir, &d, "model", "qwen3.5-35b-a3b");
    for (size_t calls = 0; calls < 12; calls += 5) {
        struct stopper s = {calls};

        o.should_stop = stop_later;
        o.stop_ctx = &s;
        assert_int_equal(make_fails(&o, &err), ERR_CANCELLED);
        test_error_has(&err, dir);
        assert_int_equal(access(dir, F_OK), -1);
    }
    test_dir_close(&d);
}

static void test_refusals(void **state)
{
    struct test_dir d;
    char dir[DIR_BYTES], long_dir[5000];
    struct make_options o;
    struct error err;

    (void)state;
    test_dir_open(&d);
    o = small_options(dir, &d, "no/such", "qwen3.5-35b-a3b");
    assert_int_equal(make_fails(&o, &err), ERR_IO);
    test_error_has(&err, "no/such");
    test_write_text(&d, "file", "x");
    snprintf(dir, sizeof dir, "%s/file", d.path);
    assert_int_equal(make_fails(&o, &err), ERR_USAGE);
    test_error_has(&err, "is not a folder");
    memset(long_dir, 'a', sizeof long_dir - 1);
    long_dir[sizeof long_dir - 1] = '\0';
    o.dir = long_dir;
    assert_int_equal(make_fails(&o, &err), ERR_IO);
    o.dir = dir;
    snprintf(dir, sizeof dir, "%s/model", d.path);
    o.shape.n_experts = 512; /* over 4,096 tensors, each with a shard of its own */
    o.shard_bytes = 1;
    assert_int_equal(make_fails(&o, &err), ERR_USAGE);
    test_error_has(&err, "4096");
    assert_int_equal(access(dir, F_OK), -1);
    test_dir_close(&d);
}

/* ---- running ---- */

enum { N_PROMPT = 48, N_GREEDY = 16 };

/* Logits neither flat nor one peak, and not the same for every token. */
static void check_logits(const struct eval_result *r)
{
    size_t n_changes = 0;
    double deviation = 0;

    for (size_t i = 0; i < r->n_tokens; i++) {
        const float *row = r->logits + i * r->vocab;
        double sum = 0, squares = 0;

        for (size_t k = 0; k < r->vocab; k++) {
            assert_true(isfinite(row[k]));
            sum += (double)row[k];
            squares += (double)row[k] * (double)row[k];
        }
        sum /= (double)r->vocab;
        deviation += sqrt(squares / (double)r->vocab - sum * sum) / (double)r->n_tokens;
        n_changes += i > 0 && eval_argmax(row, r->vocab) != eval_argmax(row - r->vocab, r->vocab);
    }
    assert_true(deviation > 1 && deviation < 8);
    assert_true(n_changes > r->n_tokens / 2);
}

/* The rows between the layers keep their size: a bias that all weights share would add up. */
static void check_hidden(const struct eval_result *r)
{
    size_t n = r->n_tokens * r->hidden_size;

    for (size_t layer = 1; layer < r->n_layers; layer++) {
        const float *rows = r->hidden + layer * n;
        double squares = 0;

        for (size_t i = 0; i < n; i++) {
            squares += (double)rows[i] * (double)rows[i];
        }
        assert_true(sqrt(squares / (double)n) > 0.2 && sqrt(squares / (double)n) < 3);
    }
}

static void run_model(const char *dir, enum dtype compute, const struct log *log)
{
    struct cpu_backend_options cpu = {.n_threads = 2};
    struct model_options mo = {.compute_dtype = compute, .rows_max = 64, .out_rows_max = 64};
    struct eval_options eo = {.n_greedy = N_GREEDY, .want_logits = true, .want_hidden = true};
    struct eval_result r = {0};
    struct checkpoint *ck = NULL;
    struct backend *be = NULL;
    struct model *m = NULL;
    struct error err = {0};
    int32_t tokens[N_PROMPT];
    enum status rc = checkpoint_open(&ck, dir, NULL, log, &err);

    if (rc == OK) {
        rc = cpu_backend_new(&be, &cpu, &err);
    }
    if (rc == OK) {
        mo.pool = cpu_backend_pool(be);
        mo.budget = (struct state_budget){.n_live = 1, .n_tokens = 256, .context_max = 256};
        rc = model_open(&m, ck, be, &mo, log, NULL, &err);
    }
    for (size_t i = 0; i < N_PROMPT; i++) {
        tokens[i] = (int32_t)(i * 37 % 700);
    }
    if (rc == OK) {
        rc = eval_run(&r, m, tokens, N_PROMPT, &eo, &err);
    }
    if (rc != OK) {
        fail_msg("%s: %s", dir, err.text);
    }
    assert_int_equal(r.bad_layer, -1);
    assert_int_equal(r.n_greedy, N_GREEDY);
    check_logits(&r);
    check_hidden(&r);
    for (size_t i = 0; i < N_GREEDY * r.vocab; i++) {
        assert_true(isfinite(r.greedy_logits[i]));
    }
    eval_result_release(&r);
    model_free(m);
    be->ops->free(be);
    checkpoint_close(ck);
}

/* True widths, few layers, experts and words. */
static void test_runs(void **state)
{
    static const struct {
        const char *shape;
        enum dtype compute;
    } cases[] = {
        {"qwen3.5-0.8b", DTYPE_F32},
        {"qwen3.5-35b-a3b", DTYPE_F16},
        {"qwen3-next-80b-a3b", DTYPE_F32},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shape_change change = {.n_layers = 4, .vocab = 2048};
        struct make_options o = {.shard_bytes = 100 * 1000 * 1000};
        struct test_dir d;
        char dir[DIR_BYTES];
        struct error err = {0};

        test_dir_open(&d);
        snprintf(dir, sizeof dir, "%s/model", d.path);
        o.dir = dir;
        assert_int_equal(model_shape_find(&o.shape, cases[i].shape, &err), OK);
        change.n_experts = o.shape.n_experts > 0 ? 8 : 0;
        assert_int_equal(model_shape_change(&o.shape, &change, &err), OK);
        o.variant = model_variant_default(&o.shape);
        make_ok(&o, 2);
        run_model(dir, cases[i].compute, &d.log);
        test_dir_close(&d);
    }
}

/* Small sizes: each family, in both formats, in each type of activations. */
static void test_runs_all_formats(void **state)
{
    static const char *const shapes[] = {"qwen3.5-9b", "qwen3.5-122b-a10b", "qwen3-next-80b-a3b"};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct test_dir d;

    (void)state;
    test_dir_open(&d);
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        char dir[DIR_BYTES];
        struct make_options o = small_options(dir, &d, "model", shapes[i / 2]);

        o.replace = i > 0;
        o.variant.is_int4 = i % 2 == 1;
        o.variant.scale_dtype = DTYPE_BF16;
        o.variant.with_mtp = true;
        make_ok(&o, 1);
        for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
            run_model(dir, types[k], &d.log);
        }
    }
    test_dir_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill_pieces),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_int4),
        cmocka_unit_test(test_configs),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_reopens),
        cmocka_unit_test(test_replaces_only_when_asked),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_runs_all_formats),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
