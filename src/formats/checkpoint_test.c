/* checkpoint_test.c - tests of finding and opening model folders.
 *
 * The folders are made here, with two small tensors a shard; one real folder of the repository is
 * opened too. */
#include "formats/test_dir.h"

#include "base/buf.h"
#include "base/file_map.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"

#define A "model-00001-of-00002.safetensors"
#define B "model-00002-of-00002.safetensors"

/* A shard with the named f32 tensors of one element each (names end with NULL). */
static void write_shard(const struct test_dir *d, const char *file, const char *const *names)
{
    static float values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct tensor t[8];
    struct safetensors_writer *w;

    assert_int_equal(safetensors_writer_new(&w, NULL), OK);
    for (size_t i = 0; names[i]; i++) {
        t[i] = (struct tensor){&values[i], DTYPE_F32, 1, {1}};
        assert_int_equal(safetensors_writer_add(w, names[i], &t[i], NULL), OK);
    }
    assert_int_equal(safetensors_writer_finish(w, test_path(d, file), NULL), OK);
    safetensors_writer_free(w);
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char good_index[] = "{\"metadata\":{\"total_size\":16},\"weight_map\":{"
                                 "\"w.a\":\"" A "\",\"w.b\":\"" A "\","
                                 "\"w.c\":\"" B "\",\"w.d\":\"" B "\"}}";

/* config.json, two shards and their index. */
static void make_sharded(struct test_dir *d)
{
    test_dir_open(d);
    test_write_text(d, "config.json", "{\"model_type\":\"x\"}");
    write_shard(d, A, NAMES("w.b", "w.a"));
    write_shard(d, B, NAMES("w.d", "w.c"));
    test_write_text(d, "model.safetensors.index.json", good_index);
}

static void expect_failure(struct test_dir *d, enum status rc, const char *a, const char *b)
{
    struct error err = {0};
    struct checkpoint *c;

    assert_int_equal(checkpoint_open(&c, d->path, NULL, &d->log, &err), rc);
    assert_null(c);
    assert_int_equal(err.code, rc);
    test_error_has(&err, a);
    test_error_has(&err, b);
    test_dir_close(d);
}

static void test_single_file(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct checkpoint *c;

    (void)state;
    test_dir_open(&d);
    test_write_text(&d, "config.json", "{\"quantization_config\":{\"bits\":4}}");
    test_write_text(&d, "generation_config.json", "{\"top_k\":20}");
    test_write_text(&d, "quantize_config.json", "{\"bits\":8}");
    write_shard(&d, "model.safetensors", NAMES("b", "c", "a"));
    assert_int_equal(checkpoint_open(&c, d.path, NULL, &d.log, &err), OK);
    assert_string_equal(checkpoint_dir(c), d.path);
    assert_int_equal(checkpoint_count(c), 3);
    assert_int_equal(checkpoint_n_files(c), 1);
    assert_int_equal(checkpoint_bytes(c), 12);
    assert_string_equal(checkpoint_at(c, 0)->name, "a");
    assert_string_equal(checkpoint_at(c, 2)->name, "c");
    assert_null(checkpoint_at(c, 3));
    assert_string_equal(checkpoint_find(c, "c")->file, "model.safetensors");
    assert_float_equal(dtype_load(DTYPE_F32, checkpoint_find(c, "c")->tensor.data, 0), 1.0f, 0);
    assert_null(checkpoint_find(c, "d"));
    assert_int_equal(json_object_get_int(json_get(checkpoint_generation_config(c), "top_k")), 20);
    /* config.json goes before quantize_config.json */
    assert_int_equal(json_object_get_int(json_get(checkpoint_quantization(c), "bits")), 4);
    assert_false(test_log_has(&d, "warning"));
    checkpoint_close(c);
    checkpoint_close(NULL);
    test_dir_close(&d);
}

static void test_places_of_quantisation(void **state)
{
    static const struct {
        const char *config, *quantize, *quant;
        int bits; /* 0: none */
    } cases[] = {
        {"{}", NULL, NULL, 0},
        {"{\"quantization_config\":null}", NULL, "{\"bits\":3}", 3},
        {"{}", "{\"bits\":2}", "{\"bits\":3}", 2},
        {"{\"text_config\":{\"quantization_config\":{\"bits\":5}}}", "{\"bits\":2}", NULL, 5},
        {"{\"quantization_config\":{\"bits\":4},\"text_config\":{\"quantization_config\":{}}}",
         NULL, NULL, 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct test_dir d;
        struct error err = {0};
        struct checkpoint *c;
        struct json_object *q;

        test_dir_open(&d);
        test_write_text(&d, "config.json", cases[i].config);
        if (cases[i].quantize) {
            test_write_text(&d, "quantize_config.json", cases[i].quantize);
        }
        if (cases[i].quant) {
            test_write_text(&d, "quant_config.json", cases[i].quant);
        }
        assert_int_equal(checkpoint_open_config(&c, d.path, &err), OK);
        q = checkpoint_quantization(c);
        assert_int_equal(q ? json_object_get_int(json_get(q, "bits")) : 0, cases[i].bits);
        assert_null(checkpoint_generation_config(c));
        assert_int_equal(checkpoint_count(c), 0);
        assert_null(checkpoint_find(c, "a"));
        checkpoint_close(c);
        test_dir_close(&d);
    }
}

static void test_sharded(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct checkpoint *c;

    (void)state;
    make_sharded(&d);
    assert_int_equal(checkpoint_open(&c, d.path, NULL, &d.log, &err), OK);
    assert_int_equal(checkpoint_count(c), 4);
    assert_int_equal(checkpoint_n_files(c), 2);
    assert_string_equal(checkpoint_find(c, "w.c")->file, B);
    for (size_t i = 1; i < 4; i++) {
        assert_true(strcmp(checkpoint_at(c, i - 1)->name, checkpoint_at(c, i)->name) < 0);
    }
    checkpoint_close(c);
    test_dir_close(&d);
}

/* An index and its shards must agree; each disagreement names the file and the tensor. */
static void test_shards_that_disagree(void **state)
{
    struct test_dir d;

    (void)state;
    make_sharded(&d);
    unlink(test_path(&d, B));
    expect_failure(&d, ERR_NOT_FOUND, "1 of the 2 shards", B);

    make_sharded(&d);
    unlink(test_path(&d, A));
    unlink(test_path(&d, B));
    expect_failure(&d, ERR_NOT_FOUND, "2 of the 2 shards", A ", " B);

    make_sharded(&d); /* a renamed shard is a missing one */
    assert_int_equal(rename(test_path(&d, B), test_path(&d, "model-2.safetensors")), 0);
    expect_failure(&d, ERR_NOT_FOUND, "missing", B);

    make_sharded(&d); /* listed in the wrong shard */
    write_shard(&d, A, NAMES("w.a"));
    write_shard(&d, B, NAMES("w.b", "w.c", "w.d"));
    expect_failure(&d, ERR_FORMAT, "tensor 'w.b' is in '" B "'", "says '" A "'");

    make_sharded(&d); /* listed, but nowhere */
    write_shard(&d, A, NAMES("w.a"));
    expect_failure(&d, ERR_FORMAT, "tensor 'w.b' is listed", A);

    make_sharded(&d); /* there, but not listed */
    write_shard(&d, A, NAMES("w.a", "w.b", "w.x"));
    expect_failure(&d, ERR_FORMAT, "tensor 'w.x' is in '" A "'", "does not list it");

    make_sharded(&d); /* in two shards */
    write_shard(&d, B, NAMES("w.b", "w.c", "w.d"));
    expect_failure(&d, ERR_FORMAT, "tensor 'w.b' is in both", A "' and '" B);

    make_sharded(&d); /* a shard that is cut off */
    assert_int_equal(truncate(test_path(&d, B), 40), 0);
    expect_failure(&d, ERR_FORMAT, B, "cut off");

    make_sharded(&d); /* a folder in place of a shard */
    unlink(test_path(&d, B));
    test_mkdir(&d, B);
    expect_failure(&d, ERR_IO, B, "not a regular file");
}

static void test_extra_files_are_reported(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct checkpoint *c;

    (void)state;
    make_sharded(&d);
    write_shard(&d, "model-00003-of-00003.safetensors", NAMES("w.e"));
    test_write_text(&d, "modeling_evil.py", "raise SystemExit\n");
    assert_int_equal(checkpoint_open(&c, d.path, NULL, &d.log, &err), OK);
    assert_int_equal(checkpoint_count(c), 4);
    assert_true(test_log_has(&d, "model-00003-of-00003.safetensors"));
    checkpoint_close(c);
    test_write_text(&d, "config.json", "{\"auto_map\":{\"AutoModel\":\"modeling_evil.X\"}}");
    assert_int_equal(checkpoint_open(&c, d.path, NULL, &d.log, &err), OK);
    assert_true(test_log_has(&d, "auto_map"));
    checkpoint_close(c);
    test_dir_close(&d);
}

static void test_hostile_indices(void **state)
{
    static const struct {
        const char *index, *says;
    } cases[] = {
        {"", "index.json"},
        {"[]", "does not hold a JSON object"},
        {"null", "does not hold a JSON object"},
        {"{}", "weight_map is missing"},
        {"{\"weight_map\":[]}", "weight_map is missing"},
        {"{\"weight_map\":{}}", "weight_map is empty"},
        {"{\"weight_map\":{\"w.a\":1}}", "'w.a'"},
        {"{\"weight_map\":{\"w.a\":null}}", "'w.a'"},
        {"{\"weight_map\":{\"w.a\":\"\"}}", "empty"},
        {"{\"weight_map\":{\"w.a\":\"../x.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.a\":\"/etc/x.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.a\":\"a/b.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.a\":\"a\\\\b.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.a\":\"a\\u0000.safetensors\"}}", "NUL"},
        {"{\"weight_map\":{\"w.a\":\"a\\n.safetensors\"}}", "not a plain file name"},
        {"{\"weight_map\":{\"w.a\":\".safetensors\"}}", "not the name of a .safetensors file"},
        {"{\"weight_map\":{\"w.a\":\"passwd\"}}", "not the name of a .safetensors file"},
        {"{\"weight_map\":{\"w.a\":\"config.json\"}}", "not the name of a .safetensors file"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct test_dir d;

        make_sharded(&d);
        test_write_text(&d, "model.safetensors.index.json", cases[i].index);
        expect_failure(&d, ERR_FORMAT, cases[i].says, "index.json");
    }
}

static void test_shard_limit(void **state)
{
    struct test_dir d;
    struct buf index;

    (void)state;
    buf_init(&index);
    buf_append_str(&index, "{\"weight_map\":{\"x\":\"x.safetensors\"");
    for (size_t i = 0; i < CHECKPOINT_SHARDS_MAX; i++) {
        buf_appendf(&index, ",\"w%zu\":\"s%zu.safetensors\"", i, i);
    }
    buf_append_str(&index, "}}");
    make_sharded(&d);
    test_write(&d, "model.safetensors.index.json", index.data, index.len);
    buf_release(&index);
    expect_failure(&d, ERR_LIMIT, "more than 4096 shards", "index.json");
}

static void test_incomplete_folders(void **state)
{
    struct test_dir d;

    (void)state;
    test_dir_open(&d);
    expect_failure(&d, ERR_NOT_FOUND, d.path, "no config.json");

    test_dir_open(&d);
    test_write_text(&d, "config.json", "{}");
    expect_failure(&d, ERR_NOT_FOUND, "neither model.safetensors nor", d.path);

    test_dir_open(&d);
    test_write_text(&d, "config.json", "{}");
    test_write_text(&d, "model-q4.gguf", "GGUF");
    expect_failure(&d, ERR_NOT_FOUND, "neither model.safetensors nor", "GGUF");

    test_dir_open(&d);
    test_write_text(&d, "config.json", "{}");
    test_write_text(&d, "pytorch_model.bin", "");
    expect_failure(&d, ERR_NOT_FOUND, "neither model.safetensors nor", "pickled");

    test_dir_open(&d);
    test_write_text(&d, "config.json", "{\"a\":}");
    expect_failure(&d, ERR_FORMAT, "config.json", "byte");

    test_dir_open(&d);
    test_write_text(&d, "config.json", "[]");
    expect_failure(&d, ERR_FORMAT, "config.json", "does not hold a JSON object");

    test_dir_open(&d);
    test_write_text(&d, "config.json", "{}");
    test_write_text(&d, "generation_config.json", "{]");
    expect_failure(&d, ERR_FORMAT, "generation_config.json", "byte");

    test_dir_open(&d); /* no tensors at all */
    test_write_text(&d, "config.json", "{}");
    test_write(&d, "model.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
    expect_failure(&d, ERR_FORMAT, "no tensors", d.path);
}

/* ---- hub caches ---- */

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static void make_cache(struct test_dir *d)
{
    test_dir_open(d);
    test_mkdir(d, "models--Org--Some.Model-1B");
    test_mkdir(d, "models--Org--Some.Model-1B/refs");
    test_mkdir(d, "models--Org--Some.Model-1B/refs/refs");
    test_mkdir(d, "models--Org--Some.Model-1B/refs/refs/pr");
    test_mkdir(d, "models--Org--Some.Model-1B/snapshots");
    test_mkdir(d, "models--Org--Some.Model-1B/snapshots/" COMMIT);
    test_mkdir(d, "models--Org--Some.Model-1B/snapshots/fedc");
    test_write_text(d, "models--Org--Some.Model-1B/refs/main", COMMIT "\n");
    test_write_text(d, "models--Org--Some.Model-1B/refs/refs/pr/7", "fedc");
    test_write_text(d, "models--Org--Some.Model-1B/refs/evil", "../../..");
    test_write_text(d, "models--Org--Some.Model-1B/refs/gone", "abcd");
}

static void test_hub_names(void **state)
{
    static const struct {
        const char *name, *snapshot; /* NULL: not found */
    } cases[] = {
        {"Org/Some.Model-1B", COMMIT},
        {"Org/Some.Model-1B@main", COMMIT},
        {"Org/Some.Model-1B@" COMMIT, COMMIT},
        {"Org/Some.Model-1B@refs/pr/7", "fedc"},
        {"Org/Some.Model-1B@fedc", "fedc"},
        {"Org/Some.Model-1B@gone", NULL},
        {"Org/Some.Model-1B@evil", NULL},
        {"Org/Some.Model-1B@..", NULL},
        {"Org/Some.Model-1B@", NULL},
        {"Org/Other", NULL},
        {"Other", NULL},
        {"Org/../Some.Model-1B", NULL},
        {"Org//Some.Model-1B", NULL},
        {"a/b/c", NULL},
        {"", NULL},
    };
    struct test_dir empty, d;

    (void)state;
    test_dir_open(&empty);
    make_cache(&d);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *caches[] = {"/nonexistent/cache", empty.path, d.path, NULL};
        char dir[CHECKPOINT_PATH_BYTES], expected[512];
        struct error err = {0};
        enum status rc = checkpoint_locate(dir, sizeof dir, cases[i].name, caches, &err);

        assert_int_equal(rc, cases[i].snapshot ? OK : ERR_NOT_FOUND);
        if (rc == OK) {
            snprintf(expected, sizeof expected, "%s/models--Org--Some.Model-1B/snapshots/%s",
                     d.path, cases[i].snapshot);
            assert_string_equal(dir, expected);
        } else {
            snprintf(expected, sizeof expected, "%.*s", (int)strcspn(cases[i].name, "@"),
                     cases[i].name);
            test_error_has(&err, expected);
        }
    }
    test_dir_close(&d);
    test_dir_close(&empty);
}

/* A miss says where was looked and what to type. */
static void test_messages_of_a_miss(void **state)
{
    const char *caches[] = {"/cache/one", "/cache/two", NULL};
    char dir[CHECKPOINT_PATH_BYTES];
    struct error err = {0};

    (void)state;
    assert_int_equal(checkpoint_locate(dir, sizeof dir, "Qwen/Q-GPTQ", caches, &err),
                     ERR_NOT_FOUND);
    test_error_has(&err, "/cache/one/models--Qwen--Q-GPTQ, /cache/two/models--Qwen--Q-GPTQ");
    test_error_has(&err, "huggingface-cli download Qwen/Q-GPTQ");
    assert_null(strstr(err.text, "--revision"));
    assert_int_equal(checkpoint_locate(dir, sizeof dir, "Qwen/Q@v2", NULL, &err), ERR_NOT_FOUND);
    test_error_has(&err, "huggingface-cli download Qwen/Q --revision v2");
    assert_int_equal(checkpoint_locate(dir, sizeof dir, "/no/such/folder", caches, &err),
                     ERR_NOT_FOUND);
    test_error_has(&err, "there is no folder '/no/such/folder'");
}

static void test_paths(void **state)
{
    struct test_dir d;
    char dir[CHECKPOINT_PATH_BYTES], small[8], path[CHECKPOINT_PATH_BYTES + 100];
    struct error err = {0};

    (void)state;
    test_dir_open(&d);
    test_write_text(&d, "model.gguf", "");
    assert_int_equal(checkpoint_locate(dir, sizeof dir, d.path, NULL, &err), OK);
    assert_string_equal(dir, d.path);
    assert_int_equal(checkpoint_locate(small, sizeof small, d.path, NULL, &err), ERR_LIMIT);
    assert_int_equal(checkpoint_locate(dir, sizeof dir, test_path(&d, "model.gguf"), NULL, &err),
                     ERR_NOT_FOUND);
    test_error_has(&err, "is a file; give the model's folder");
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    assert_int_equal(checkpoint_locate(dir, sizeof dir, path, NULL, &err), ERR_IO);
    test_dir_close(&d);
}

/* ---- damage ---- */

/* 1,000 flipped bits in the header of a shard: the index catches what the shard alone cannot, so the
 * checkpoint is refused or identical. */
static void test_flipped_headers(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct checkpoint *c;
    uint64_t seed = 7;
    char *image;
    size_t n, n_read = 0;

    (void)state;
    make_sharded(&d);
    assert_int_equal(file_read(&image, &n, test_path(&d, B), 4096, &err), OK);
    for (int round = 0; round < 1000; round++) {
        size_t at = (size_t)(test_random(&seed) % (n - 8));
        char bit = (char)(1 << test_random(&seed) % 8);

        image[at] = (char)(image[at] ^ bit);
        test_write(&d, B, image, n);
        if (checkpoint_open(&c, d.path, NULL, NULL, &err) == OK) {
            n_read++;
            assert_int_equal(checkpoint_count(c), 4);
            for (size_t i = 0; i < 4; i++) {
                static const char *const names[] = {"w.a", "w.b", "w.c", "w.d"};
                static const float values[] = {1, 0, 1, 0};
                const struct checkpoint_tensor *t = checkpoint_at(c, i);

                assert_string_equal(t->name, names[i]);
                assert_int_equal(t->tensor.dtype, DTYPE_F32);
                assert_float_equal(dtype_load(DTYPE_F32, t->tensor.data, 0), values[i], 0);
            }
            checkpoint_close(c);
        } else {
            assert_true(err.code == ERR_FORMAT || err.code == ERR_UNSUPPORTED);
            test_error_has(&err, d.path);
        }
        image[at] = (char)(image[at] ^ bit);
    }
    assert_true(n_read > 0); /* flips in __metadata__ and padding change nothing */
    free(image);
    test_dir_close(&d);
}

static void test_real_folder(void **state)
{
    struct error err = {0};
    struct checkpoint *c;

    (void)state;
    assert_int_equal(checkpoint_open(&c,
                                     SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-moe-gptq-int4",
                                     NULL, NULL, &err),
                     OK);
    assert_int_equal(checkpoint_count(c), 522);
    assert_int_equal(checkpoint_n_files(c), 2);
    assert_non_null(checkpoint_quantization(c));
    checkpoint_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_places_of_quantisation),
        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_shards_that_disagree),
        cmocka_unit_test(test_extra_files_are_reported),
        cmocka_unit_test(test_hostile_indices),
        cmocka_unit_test(test_shard_limit),
        cmocka_unit_test(test_incomplete_folders),
        cmocka_unit_test(test_hub_names),
        cmocka_unit_test(test_messages_of_a_miss),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_flipped_headers),
        cmocka_unit_test(test_real_folder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
