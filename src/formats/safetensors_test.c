/* safetensors_test.c - tests of reading and writing .safetensors files.
 *
 * Hostile files are made here, byte by byte, and lie against an unmapped page. */
#include "formats/test_dir.h"

#include "base/buf.h"
#include "base/file_map.h"
#include "formats/safetensors.h"

/* A file image: length, header text, n_data bytes of data. */
static void make_image(struct buf *b, const char *header, size_t header_len, size_t n_data)
{
    buf_init(b);
    for (size_t i = 0; i < 8; i++) {
        buf_append_char(b, (char)(header_len >> (8 * i) & 0xff));
    }
    buf_append(b, header, header_len);
    for (size_t i = 0; i < n_data; i++) {
        buf_append_char(b, (char)i);
    }
    assert_true(buf_ok(b));
}

/* Open the image behind a trap; on success all data is read once. */
static enum status open_image(const void *image, size_t n, struct error *err)
{
    struct test_trap trap;
    struct safetensors *st;
    enum status rc;
    unsigned sum = 0;

    memset(err, 0, sizeof *err);
    test_trap_open(&trap, image, n);
    rc = safetensors_open_memory(&st, trap.data, n, "evil.safetensors", err);
    if (rc == OK) {
        for (size_t i = 0; i < safetensors_count(st); i++) {
            const struct safetensors_entry *e = safetensors_at(st, i);
            const unsigned char *p = e->tensor.data;

            assert_ptr_equal(safetensors_find(st, e->name), e);
            for (size_t k = 0; k < e->n_bytes; k++) {
                sum += p[k];
            }
        }
        safetensors_close(st);
    } else {
        assert_null(st);
        assert_int_equal(err->code, rc);
        test_error_has(err, "evil.safetensors");
    }
    test_trap_close(&trap);
    return sum == UINT32_MAX ? ERR_INTERNAL : rc;
}

static const char good_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
    "\"b\\u002ebias\":{\"data_offsets\":[12,16],\"dtype\":\"F32\",\"shape\":[]}} ";

static void test_good_file(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct safetensors *st;
    const struct safetensors_entry *e;
    struct buf b;

    (void)state;
    test_dir_open(&d);
    make_image(&b, good_header, strlen(good_header), 16);
    test_write(&d, "good.safetensors", b.data, b.len);
    assert_int_equal(safetensors_open(&st, test_path(&d, "good.safetensors"), &err), OK);
    assert_int_equal(safetensors_count(st), 2);
    assert_null(safetensors_at(st, 2));
    assert_null(safetensors_find(st, "nothing"));
    e = safetensors_find(st, "a.weight");
    assert_ptr_equal(e, safetensors_at(st, 0));
    assert_int_equal(e->tensor.dtype, DTYPE_BF16);
    assert_int_equal(e->tensor.n_dims, 2);
    assert_int_equal(e->tensor.shape[0], 2);
    assert_int_equal(e->tensor.shape[1], 3);
    assert_int_equal(((const char *)e->tensor.data)[5], 5);
    e = safetensors_find(st, "b.bias"); /* the escape was decoded */
    assert_ptr_equal(e, safetensors_at(st, 1));
    assert_int_equal(e->tensor.n_dims, 0);
    assert_int_equal(e->n_bytes, 4);
    assert_int_equal(((const char *)e->tensor.data)[0], 12);
    safetensors_close(st);
    safetensors_close(NULL);
    buf_release(&b);
    test_dir_close(&d);
}

/* Every type and awkward shapes, written and read back. */
static void test_round_trip(void **state)
{
    enum { N = DTYPE_COUNT - 1 };
    struct test_dir d;
    struct error err = {0};
    struct safetensors_writer *w;
    struct safetensors *st;
    unsigned char data[N][64];
    char names[N][24];
    struct tensor t[N], empty = {.dtype = DTYPE_F16, .n_dims = 3, .shape = {4, 0, 2}};
    size_t begin = 0;

    (void)state;
    test_dir_open(&d);
    assert_int_equal(safetensors_writer_new(&w, &err), OK);
    for (size_t i = 0; i < N; i++) {
        memset(data[i], (int)(i + 1), sizeof data[i]);
        snprintf(names[i], sizeof names[i], "t\"\\\xc3\xa9.%zu", N - i);
        t[i] = (struct tensor){data[i], (enum dtype)(i + 1), 3, {1, 2 + i % 3, 2}};
        assert_int_equal(safetensors_writer_add(w, names[i], &t[i], &err), OK);
    }
    assert_int_equal(safetensors_writer_add(w, "empty", &empty, &err), OK);
    assert_int_equal(safetensors_writer_finish(w, test_path(&d, "x.safetensors"), &err), OK);
    safetensors_writer_free(w);

    assert_int_equal(safetensors_open(&st, test_path(&d, "x.safetensors"), &err), OK);
    assert_int_equal(safetensors_count(st), N + 1);
    for (size_t i = 0; i < N; i++) {
        const struct safetensors_entry *e = safetensors_find(st, names[i]);

        assert_non_null(e);
        assert_int_equal(e->tensor.dtype, t[i].dtype);
        assert_int_equal(e->tensor.n_dims, 3);
        assert_memory_equal(e->tensor.shape, t[i].shape, 3 * sizeof(size_t));
        assert_memory_equal(e->tensor.data, data[i], e->n_bytes);
        assert_int_equal((uintptr_t)e->tensor.data % dtype_bytes(e->tensor.dtype), 0);
    }
    assert_int_equal(safetensors_find(st, "empty")->n_bytes, 0);
    for (size_t i = 0; i < safetensors_count(st); i++) { /* widest elements first */
        size_t width = dtype_bytes(safetensors_at(st, i)->tensor.dtype);

        assert_true(i == 0 || width <= begin);
        begin = width;
    }
    safetensors_close(st);
    test_dir_close(&d);
}

/* The tensor's description is copied, so one on the stack will do; the data is read by finish(). */
static void test_writer_copies_tensor(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct safetensors_writer *w;
    struct safetensors *st;
    const struct safetensors_entry *e;
    float values[2] = {1, 2}, got[2];
    struct tensor t = {values, DTYPE_F32, 1, {2}};

    (void)state;
    test_dir_open(&d);
    assert_int_equal(safetensors_writer_new(&w, &err), OK);
    assert_int_equal(safetensors_writer_add(w, "a", &t, &err), OK);
    t = (struct tensor){NULL, DTYPE_U8, 3, {9, 9, 9}};
    values[1] = 5;
    assert_int_equal(safetensors_writer_finish(w, test_path(&d, "copied"), &err), OK);
    safetensors_writer_free(w);
    assert_int_equal(safetensors_open(&st, test_path(&d, "copied"), &err), OK);
    e = safetensors_find(st, "a");
    assert_non_null(e);
    assert_int_equal(e->tensor.dtype, DTYPE_F32);
    assert_int_equal(e->tensor.n_dims, 1);
    assert_int_equal(e->tensor.shape[0], 2);
    memcpy(got, e->tensor.data, sizeof got);
    assert_true(got[0] == 1 && got[1] == 5);
    safetensors_close(st);
    test_dir_close(&d);
}

static void test_writer_refuses(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct safetensors_writer *w;
    float one = 1.0f;
    struct tensor good = {&one, DTYPE_F32, 1, {1}}, none = {&one, DTYPE_NONE, 1, {1}},
                  huge = {&one, DTYPE_F32, 2, {SIZE_MAX / 2, 4}}, null = {NULL, DTYPE_F32, 1, {1}},
                  deep = {&one, DTYPE_F32, TENSOR_DIMS_MAX + 1, {1}},
                  deepest = {&one, DTYPE_F32, TENSOR_DIMS_MAX, {1, 1, 1, 1, 1, 1, 1, 1}};

    (void)state;
    test_dir_open(&d);
    assert_int_equal(safetensors_writer_new(&w, &err), OK);
    assert_int_equal(safetensors_writer_add(w, "", &good, &err), ERR_FORMAT);
    assert_int_equal(safetensors_writer_add(w, "__metadata__", &good, &err), ERR_FORMAT);
    assert_int_equal(safetensors_writer_add(w, "a\x1b", &good, &err), ERR_FORMAT);
    assert_int_equal(safetensors_writer_add(w, "a\xff", &good, &err), ERR_FORMAT);
    assert_int_equal(safetensors_writer_add(w, "none", &none, &err), ERR_FORMAT);
    test_error_has(&err, "none");
    assert_int_equal(safetensors_writer_add(w, "huge", &huge, &err), ERR_FORMAT);
    assert_int_equal(safetensors_writer_add(w, "null", &null, &err), ERR_FORMAT);
    assert_int_equal(safetensors_writer_add(w, "deep", &deep, &err), ERR_LIMIT);
    assert_int_equal(safetensors_writer_add(w, "deepest", &deepest, &err), OK);
    assert_int_equal(safetensors_writer_add(w, "a", &good, &err), OK);
    assert_int_equal(safetensors_writer_finish(w, test_path(&d, "no/such/x"), &err), ERR_IO);
    assert_int_equal(safetensors_writer_add(w, "a", &good, &err), OK);
    assert_int_equal(safetensors_writer_finish(w, test_path(&d, "x"), &err), ERR_FORMAT);
    test_error_has(&err, "twice");
    assert_int_equal(access(test_path(&d, "x"), F_OK), -1); /* nothing half-written stays */
    safetensors_writer_free(w);
    safetensors_writer_free(NULL);
    test_dir_close(&d);
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t n_data;
    const char *says; /* part of the error's text; NULL: must be accepted */
} headers[] = {
    {"{}", 0, NULL},
    {"{ }  \n", 0, NULL},
    {"{" T("a", "U8", "[2,0]", "[0,0]") "," T("b", "U8", "[2]", "[0,2]") "}", 2, NULL},
    {"{" T("b", "U8", "[2]", "[1,3]") "," T("a", "U8", "[1]", "[0,1]") "}", 3, NULL},
    {"{" T("\\ud83d\\ude00", "U8", "[ 1 , 1 ]", "[ 0, 1]") "}", 1, NULL},
    /* grammar */
    {" {}", 0, "does not begin with '{'"},
    {"\xef\xbb\xbf{}", 0, "does not begin with '{'"},
    {"[]", 0, "does not begin with '{'"},
    {"{", 0, "header byte 1"},
    {"{}x", 0, "text after"},
    {"{\"a\"}", 0, "expected ':'"},
    {"{\"a\":1}", 0, "tensor 'a'"},
    {"{\"a\":[]}", 0, "not an object"},
    {"{\"a\":{}}", 0, "expected a string"},
    {"{," T("a", "U8", "[1]", "[0,1]") "}", 1, "expected a string"},
    {"{" T("a", "U8", "[1]", "[0,1]") ",}", 1, "expected a string"},
    {"{" T("a", "U8", "[1]", "[0,1]"), 1, "expected ',' or '}'"},
    {"{" T("a", "U8", "[1,]", "[0,1]") "}", 1, "non-negative integer"},
    {"{" T("a", "U8", "[1 1]", "[0,1]") "}", 1, "expected ',' or ']'"},
    {"{" T("a", "U8", "[-1]", "[0,1]") "}", 1, "non-negative integer"},
    {"{" T("a", "U8", "[1.0]", "[0,1]") "}", 1, "non-negative integer"},
    {"{" T("a", "U8", "[1e0]", "[0,1]") "}", 1, "non-negative integer"},
    {"{" T("a", "U8", "[01]", "[0,1]") "}", 1, "leading zero"},
    {"{" T("a", "U8", "[\"1\"]", "[0,1]") "}", 1, "non-negative integer"},
    {"{" T("a", "U8", "null", "[0,1]") "}", 1, "expected '['"},
    {"{" T("a", "U8", "[18446744073709551616]", "[0,1]") "}", 1, "does not fit"},
    {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "too many dimensions"},
    {"{" T("a", "U8", "[1]", "[0]") "}", 1, "fewer than 2"},
    {"{" T("a", "U8", "[1]", "[0,1,2]") "}", 1, "more than 2"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "'data_offsets' is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "'shape' is missing"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'dtype' is missing"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 1, "stands twice"},
    {"{\"a\":{\"dtyqe\":\"U8\"}}", 1, "unknown field 'dtyqe'"},
    {"{\"a\":{\"a_very_long_field_name\":\"U8\"}}", 1, "too long"},
    {"{" T("a", "F4", "[1]", "[0,1]") "}", 1, "dtype 'F4'"},
    {"{" T("a", "bf16", "[1]", "[0,2]") "}", 2, "dtype 'bf16'"},
    {"{" T("a", "U8\\u0000", "[1]", "[0,1]") "}", 1, "NUL"},
    /* names */
    {"{" T("", "U8", "[1]", "[0,1]") "}", 1, "empty name"},
    {"{" T("a\\u0000b", "U8", "[1]", "[0,1]") "}", 1, "control character"},
    {"{" T("a\\u001b[2J", "U8", "[1]", "[0,1]") "}", 1, "control character"},
    {"{" T("a\nb", "U8", "[1]", "[0,1]") "}", 1, "control character"},
    {"{" T("a\xff", "U8", "[1]", "[0,1]") "}", 1, "not valid UTF-8"},
    {"{" T("a\xed\xa0\x80", "U8", "[1]", "[0,1]") "}", 1, "not valid UTF-8"},
    {"{" T("\\ud83d", "U8", "[1]", "[0,1]") "}", 1, "lone surrogate"},
    {"{" T("\\ude00", "U8", "[1]", "[0,1]") "}", 1, "lone surrogate"},
    {"{" T("\\ud83d\\u0041", "U8", "[1]", "[0,1]") "}", 1, "lone surrogate"},
    {"{" T("\\u12g4", "U8", "[1]", "[0,1]") "}", 1, "bad \\u escape"},
    {"{" T("\\x", "U8", "[1]", "[0,1]") "}", 1, "unknown escape"},
    {"{\"a\\", 1, "unfinished escape"},
    {"{\"a\\u00", 1, "unfinished \\u escape"},
    {"{\"abc", 1, "unfinished string"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2, "'a' stands twice"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("\\u0061", "U8", "[1]", "[1,2]") "}", 2,
     "'a' stands twice"},
    /* __metadata__ */
    {"{\"__metadata__\":{}," T("a", "U8", "[1]", "[0,1]") "}", 1, NULL},
    {"{\"__metadata__\":{\"a\":\"b\\n\",\"c\":\"\"}}", 0, NULL},
    {"{\"__metadata__\":[]}", 0, "not an object"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "not a string"},
    {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "not a string"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "stands twice"},
    /* sizes and places */
    {"{" T("a", "U8", "[2]", "[0,1]") "}", 1, "make 2 bytes, data_offsets 1"},
    {"{" T("a", "F32", "[]", "[0,1]") "}", 1, "make 4 bytes, data_offsets 1"},
    {"{" T("a", "U8", "[1]", "[1,0]") "}", 1, "run backwards"},
    {"{" T("q_proj", "U8", "[812]", "[0,812]") "}", 640, "tensor 'q_proj': end 812 is past"},
    {"{" T("a", "U8", "[1]", "[1,2]") "}", 2, "after a gap"},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, "inside the tensor"},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[0,2]") "}", 2, "inside the tensor"},
    {"{" T("a", "U8", "[1]", "[0,1]") "}", 2, "end at 1, the file's data at 2"},
    {"{}", 1, "end at 0, the file's data at 1"},
    {"{" T("a", "F64", "[2305843009213693952]", "[0,0]") "}", 0, "overflows"},
    {"{" T("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflows"},
    {"{" T("a", "U8", "[18446744073709551615]", "[0,18446744073709551615]") "}", 8,
     "past the file"},
    {"{" T("a", "U8", "[2147483648,2147483648,4]", "[0,0]") "}", 0, "overflows"},
};

static void test_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        struct error err;
        struct buf b;
        enum status rc;

        make_image(&b, headers[i].header, strlen(headers[i].header), headers[i].n_data);
        rc = open_image(b.data, b.len, &err);
        if (!headers[i].says) {
            if (rc != OK) {
                fail_msg("header %zu '%s' was refused: %s", i, headers[i].header, err.text);
            }
        } else if (rc == OK) {
            fail_msg("header %zu '%s' was accepted", i, headers[i].header);
        } else {
            test_error_has(&err, headers[i].says);
        }
        buf_release(&b);
    }
}

static void test_name_length(void **state)
{
    char name[SAFETENSORS_NAME_BYTES_MAX + 2], header[sizeof name + 128];
    struct error err;
    struct buf b;

    (void)state;
    memset(name, 'n', sizeof name);
    for (int longer = 0; longer < 2; longer++) {
        int n = snprintf(header, sizeof header,
                         "{\"%.*s\":{\"dtype\":\"U8\",\"shape\":[1],"
                         "\"data_offsets\":[0,1]}}",
                         SAFETENSORS_NAME_BYTES_MAX + longer, name);

        make_image(&b, header, (size_t)n, 1);
        assert_int_equal(open_image(b.data, b.len, &err), longer ? ERR_FORMAT : OK);
        buf_release(&b);
    }
    test_error_has(&err, "longer than");
}

/* The length field at all powers that wrap something somewhere. */
static void test_header_length(void **state)
{
    static const uint64_t lengths[] = {
        0,          1,           2,           3,         0x7fffffff, 0x80000000, 0x80000001,
        0xffffffff, 0x100000000, 0x100000001, INT64_MAX, 1ull << 63, UINT64_MAX, UINT64_MAX - 8};
    struct error err;
    struct buf b;

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        make_image(&b, "{}", 2, 0);
        memcpy(b.data, &lengths[i], 8);
        assert_int_equal(open_image(b.data, b.len, &err), lengths[i] == 2 ? OK : ERR_FORMAT);
        buf_release(&b);
    }
    make_image(&b, "{}", 2, 0);
    for (size_t n = 0; n < 10; n++) {
        assert_int_equal(open_image(b.data, n, &err), ERR_FORMAT);
    }
    buf_release(&b);
    assert_int_equal(open_image(NULL, 0, &err), ERR_FORMAT);
}

/* The limit itself, on a sparse file: one byte more is refused from the length alone, the limit is
 * looked at (and refused for its content, NUL bytes). */
static void test_header_length_limit(void **state)
{
    struct test_dir d;
    struct error err = {0};
    struct safetensors *st;

    (void)state;
    test_dir_open(&d);
    for (uint64_t more = 0; more < 2; more++) {
        uint64_t n = (uint64_t)SAFETENSORS_HEADER_BYTES_MAX + more;

        test_write(&d, "big.safetensors", &n, 8);
        assert_int_equal(truncate(test_path(&d, "big.safetensors"), (off_t)(8 + n)), 0);
        assert_int_equal(safetensors_open(&st, test_path(&d, "big.safetensors"), &err), ERR_FORMAT);
        test_error_has(&err, more ? "not in 1..100000000" : "does not begin with '{'");
        test_error_has(&err, "big.safetensors");
    }
    test_dir_close(&d);
}

static void test_cut_everywhere(void **state)
{
    struct error err;
    struct buf b;

    (void)state;
    make_image(&b, good_header, strlen(good_header), 16);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(open_image(b.data, n, &err), ERR_FORMAT);
    }
    assert_int_equal(open_image(b.data, b.len, &err), OK);
    buf_release(&b);
}

/* Each byte of length and header replaced by each of the 255 other values. What is still accepted must
 * hold the same types, shapes and bytes: only a name (or the metadata) can have changed. */
static void test_every_byte_changed(void **state)
{
    struct error err;
    struct buf b;
    size_t n_accepted = 0;

    (void)state;
    make_image(&b, good_header, strlen(good_header), 16);
    for (size_t at = 0; at < 8 + strlen(good_header); at++) {
        char kept = b.data[at];

        for (int v = 1; v < 256; v++) {
            struct safetensors *st;

            b.data[at] = (char)(kept ^ v);
            if (safetensors_open_memory(&st, b.data, b.len, "x", &err) != OK) {
                continue;
            }
            n_accepted++;
            assert_int_equal(safetensors_count(st), 2);
            assert_int_equal(safetensors_at(st, 0)->tensor.dtype, DTYPE_BF16);
            assert_int_equal(safetensors_at(st, 0)->n_bytes, 12);
            assert_int_equal(safetensors_at(st, 1)->n_bytes, 4);
            assert_ptr_equal((const char *)safetensors_at(st, 1)->tensor.data, b.data + b.len - 4);
            safetensors_close(st);
        }
        b.data[at] = kept;
    }
    assert_true(n_accepted > 0); /* "pt" became something else, for one */
    buf_release(&b);
}

static void test_deep_nesting(void **state)
{
    enum { DEPTH = 1000 * 1000 };
    static const char *const starts[] = {"{\"a\":", "{\"__metadata__\":", "{\"a\":{\"shape\":", ""};
    struct error err;

    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof starts[0]; s++) {
        for (int brace = 0; brace < 2; brace++) {
            struct buf header, b;

            buf_init(&header);
            buf_append_str(&header, starts[s]);
            for (size_t i = 0; i < DEPTH; i++) {
                buf_append_str(&header, brace ? "{\"a\":" : "[");
            }
            make_image(&b, header.data, header.len, 0);
            assert_int_equal(open_image(b.data, b.len, &err), ERR_FORMAT);
            buf_release(&header);
            buf_release(&b);
        }
    }
}

static void assert_same_but_names(const struct safetensors *a, const struct safetensors *b)
{
    size_t n_renamed = 0;

    assert_int_equal(safetensors_count(a), safetensors_count(b));
    for (size_t i = 0; i < safetensors_count(a); i++) {
        const struct safetensors_entry *x = safetensors_at(a, i), *y = safetensors_at(b, i);

        assert_memory_equal(&x->tensor, &y->tensor, sizeof x->tensor);
        assert_int_equal(x->n_bytes, y->n_bytes);
        n_renamed += strcmp(x->name, y->name) != 0;
    }
    assert_true(n_renamed <= 1);
}

/* A real file: 200 random cuts are refused, 1,000 flipped bits of the header are refused or change
 * nothing but a name (which the checkpoint's index, or the model's list of tensors, catches). */
static void test_random_damage(void **state)
{
    static const char path[] =
        SPILLWAY_SOURCE_DIR "/tests/golden/tiny-qwen3_5-dense/model.safetensors";
    struct error err = {0};
    struct safetensors *good, *st;
    uint64_t seed = 1;
    size_t n, header_bytes;
    char *image;

    (void)state;
    assert_int_equal(file_read(&image, &n, path, 1 << 26, &err), OK);
    memcpy(&header_bytes, image, 8);
    assert_int_equal(safetensors_open_memory(&good, image, n, "good", &err), OK);
    assert_int_equal(safetensors_count(good), 55);
    for (int round = 0; round < 200; round++) {
        size_t cut = (size_t)(test_random(&seed) % n);

        assert_int_equal(safetensors_open_memory(&st, image, cut, "cut", &err), ERR_FORMAT);
        test_error_has(&err, "cut");
    }
    for (int round = 0; round < 1000; round++) {
        size_t at = (size_t)(test_random(&seed) % (header_bytes + 8));
        char bit = (char)(1 << test_random(&seed) % 8);

        image[at] = (char)(image[at] ^ bit);
        if (safetensors_open_memory(&st, image, n, "flipped", &err) == OK) {
            assert_same_but_names(good, st);
            safetensors_close(st);
        } else {
            test_error_has(&err, "flipped");
        }
        image[at] = (char)(image[at] ^ bit);
    }
    safetensors_close(good);
    free(image);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_file),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_writer_copies_tensor),
        cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_name_length),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_header_length_limit),
        cmocka_unit_test(test_cut_everywhere),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_random_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
