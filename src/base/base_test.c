/* base_test.c - errors, buffers, UTF-8, half floats, arena, files. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/cpu.h"
#include "base/file_map.h"
#include "base/half.h"
#include "base/log.h"
#include "base/size.h"
#include "base/status.h"
#include "base/str.h"
#include "base/tensor.h"

static void test_error_text(void **state)
{
    struct error err;
    char longest[2 * ERROR_TEXT_BYTES];

    (void)state;
    assert_int_equal(error_set_param(&err, ERR_BAD_REQUEST, "top_p", "'top_p' is %d", 7),
                     ERR_BAD_REQUEST);
    assert_string_equal(err.param, "top_p");
    error_prefix(&err, "request %d", 3);
    assert_string_equal(err.text, "request 3: 'top_p' is 7");
    assert_int_equal(error_set(NULL, ERR_IO, "nobody listens"), ERR_IO);
    error_prefix(NULL, "nor here");

    /* A cut never splits a character: two-byte characters, an odd number of bytes of room. */
    for (size_t i = 0; i + 2 < sizeof longest; i += 2) {
        memcpy(longest + i, "\xc3\xa9", 2);
        longest[i + 2] = '\0';
    }
    error_set(&err, ERR_IO, "%s", longest);
    assert_int_equal(utf8_valid_prefix(err.text, strlen(err.text)), strlen(err.text));
    error_prefix(&err, "x");
    assert_int_equal(utf8_valid_prefix(err.text, strlen(err.text)), strlen(err.text));
    for (int i = 0; i < STATUS_COUNT; i++) {
        assert_string_not_equal(status_name((enum status)i), "unknown");
    }
}

static void test_buf(void **state)
{
    struct buf b;
    char *taken;

    (void)state;
    buf_init(&b);
    assert_string_equal(buf_cstr(&b), "");
    for (int i = 0; i < 1000; i++) {
        buf_appendf(&b, "%d,", i);
    }
    assert_true(buf_ok(&b));
    assert_int_equal(b.len, 2 * 10 + 3 * 90 + 4 * 900);
    buf_consume(&b, 4);
    assert_memory_equal(b.data, "2,3,", 4);
    buf_consume(&b, SIZE_MAX);
    assert_int_equal(b.len, 0);
    buf_append(&b, "a\0b", 3);
    taken = buf_take(&b);
    assert_memory_equal(taken, "a\0b", 4);
    free(taken);
    taken = buf_take(&b);
    assert_string_equal(taken, "");
    free(taken);

    buf_init_limited(&b, 5);
    buf_append_str(&b, "hello");
    assert_true(buf_ok(&b));
    buf_append_char(&b, '!');
    assert_false(buf_ok(&b));
    assert_int_equal(b.len, 5);
    buf_append_str(&b, "more"); /* still failed: nothing happens */
    assert_int_equal(b.len, 5);
    assert_null(buf_take(&b));
    buf_release(&b);
}

static void test_sizes(void **state)
{
    size_t n = 1;

    (void)state;
    assert_true(size_mul(&n, 3, 4));
    assert_int_equal(n, 12);
    assert_false(size_mul(&n, SIZE_MAX / 2, 3));
    assert_false(size_add(&n, SIZE_MAX, 1));
    assert_false(size_align(&n, SIZE_MAX - 3, 64));
    assert_int_equal(n, 12);
    assert_true(size_align(&n, 65, 64));
    assert_int_equal(n, 128);
}

/* Slow second opinion: is text one well-formed character? By decoding and encoding again. */
static bool is_scalar(const unsigned char *s, size_t n)
{
    uint32_t cp;
    char again[4];

    if (n == 1) {
        return s[0] < 0x80;
    }
    if ((n == 2 && (s[0] & 0xe0) != 0xc0) || (n == 3 && (s[0] & 0xf0) != 0xe0) ||
        (n == 4 && (s[0] & 0xf8) != 0xf0)) {
        return false;
    }
    cp = n == 2 ? s[0] & 0x1fu : n == 3 ? s[0] & 0x0fu : s[0] & 0x07u;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return false;
        }
        cp = cp << 6 | (s[i] & 0x3fu);
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff)) {
        return false;
    }
    return utf8_encode(again, cp) == n && memcmp(again, s, n) == 0;
}

static void test_utf8_every_short_sequence(void **state)
{
    static const unsigned char edges[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f,
                                          0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0,
                                          0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff};
    enum { N = sizeof edges };

    (void)state;
    for (unsigned a = 0; a < 256; a++) {
        for (size_t i = 0; i < N * N * N; i++) {
            unsigned char s[4] = {(unsigned char)a, edges[i % N], edges[i / N % N],
                                  edges[i / N / N]};
            size_t whole = 0;
            uint32_t cp;
            size_t used = utf8_decode(&cp, (char *)s, 4);
            for (size_t n = 1; n <= 4 && whole == 0; n++) {
                whole = is_scalar(s, n) ? n : 0;
            }
            if (whole > 0) {
                assert_int_equal(used, whole);
                assert_true(utf8_valid_prefix((char *)s, whole) == whole);
            } else {
                assert_int_equal(cp, 0xfffd);
                assert_true(utf8_valid_prefix((char *)s, 4) == 0);
                assert_in_range(used, 1, 3);
            }
        }
    }
}

static void test_utf8_tail(void **state)
{
    const char *text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
    const size_t tails[] = {0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 0};

    (void)state;
    for (size_t n = 0; n <= strlen(text); n++) {
        assert_int_equal(utf8_incomplete_tail(text, n), tails[n]);
    }
    assert_int_equal(utf8_incomplete_tail("\x80\x80\x80\x80", 4), 0);
    assert_int_equal(utf8_incomplete_tail("\xe0\x80", 2), 0); /* can never be completed */
    assert_int_equal(utf8_incomplete_tail("\xff", 1), 0);
}

static void test_str(void **state)
{
    (void)state;
    assert_int_equal(str_distance("kitten", "sitting"), 3);
    assert_int_equal(str_distance("", "abc"), 3);
    assert_int_equal(str_find(STR("hello"), STR("llo")), 2);
    assert_int_equal(str_find(STR("hello"), STR("x")), SIZE_MAX);
    assert_true(str_ends(STR("a.json"), STR(".json")));
    assert_false(str_starts(STR("a"), STR("ab")));
}

/* Every 16-bit pattern comes back; and rounding agrees with the nearest of two neighbours. */
static void test_f16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = f16_to_f32((uint16_t)h);
        if (isnan(f)) {
            assert_true(isnan(f16_to_f32(f16_from_f32(f))));
            continue;
        }
        assert_int_equal(f16_from_f32(f), h);
        if ((h & 0x7fff) < 0x7bff && !(h & 0x8000)) {
            float next = f16_to_f32((uint16_t)(h + 1));
            float middle = f + (next - f) / 2;
            assert_int_equal(f16_from_f32(middle), h + (h & 1));
            assert_int_equal(f16_from_f32(nextafterf(middle, 0)), h);
            assert_int_equal(f16_from_f32(nextafterf(middle, INFINITY)), h + 1);
        }
    }
    assert_int_equal(f16_from_f32(65519.0f), 0x7bff);
    assert_int_equal(f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(f16_from_f32(-INFINITY), 0xfc00);
}

static void check_f8(float (*decode)(uint8_t), uint8_t (*encode)(float), uint8_t max_code)
{
    for (unsigned v = 0; v < 256; v++) {
        float f = decode((uint8_t)v);
        if (isnan(f)) {
            assert_true(isnan(decode(encode(f))));
        } else if (isfinite(f)) {
            assert_int_equal(encode(f), v);
        }
    }
    for (unsigned v = 0; v < max_code; v++) {
        float f = decode((uint8_t)v), next = decode((uint8_t)(v + 1));
        float middle = f + (next - f) / 2;
        assert_int_equal(encode(middle), v + (v & 1));
        assert_int_equal(encode(nextafterf(middle, 0)), v);
        assert_int_equal(encode(nextafterf(middle, INFINITY)), v + 1);
        assert_int_equal(encode(-nextafterf(middle, INFINITY)), (v + 1) | 0x80);
    }
    assert_int_equal(encode(INFINITY), max_code);
    assert_int_equal(encode(-1e30f), max_code | 0x80);
}

static void test_f8(void **state)
{
    (void)state;
    check_f8(f8e4m3_to_f32, f8e4m3_from_f32, 0x7e);
    check_f8(f8e5m2_to_f32, f8e5m2_from_f32, 0x7b);
    assert_true(f8e4m3_to_f32(0x7e) == 448.0f);
    assert_true(f8e5m2_to_f32(0x7b) == 57344.0f);
}

static void test_bf16_and_dtypes(void **state)
{
    float values[5] = {0.0f, -1.5f, 3.14159f, 1e-30f, 65504.0f}, back[5];
    unsigned char store[5 * 8];

    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = bf16_to_f32((uint16_t)h);
        if (!isnan(f)) {
            assert_int_equal(bf16_from_f32(f), h);
        }
    }
    assert_true(isnan(bf16_to_f32(bf16_from_f32(f32_from_bits(0x7f800001)))));
    for (int t = DTYPE_F64; t <= DTYPE_F8_E5M2; t++) {
        enum dtype dtype = (enum dtype)t;
        dtype_from_f32(dtype, store, values, 5);
        dtype_to_f32(back, dtype, store, 5);
        for (int i = 0; i < 5; i++) {
            assert_true(back[i] == dtype_round(dtype, values[i]));
            assert_true(dtype_load(dtype, store, (size_t)i) == back[i]);
        }
    }
    for (int t = 1; t < DTYPE_COUNT; t++) {
        assert_true(dtype_bytes((enum dtype)t) > 0);
    }
}

static void test_arena(void **state)
{
    struct arena a;
    size_t n = 0;

    (void)state;
    arena_init(&a, 100000);
    for (;;) {
        unsigned char *p = arena_alloc(&a, n + 1);
        if (!p) {
            break;
        }
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i <= n; i++) {
            assert_int_equal(p[i], 0);
        }
        memset(p, 0xff, n + 1);
        n += 7;
    }
    assert_true(a.used_bytes <= 100000 && a.used_bytes > 90000);
    assert_false(a.is_starved); /* it was the limit, not the machine */
    assert_null(arena_array(&a, SIZE_MAX / 2, 3));
    arena_release(&a);
    arena_init(&a, 0);
    assert_string_equal(arena_copy(&a, "abc", 2), "ab");
    arena_release(&a);
}

static void test_files(void **state)
{
    char path[] = "/tmp/spillway_base_test_XXXXXX";
    int fd = mkstemp(path);
    struct file_map map;
    struct error err;
    char *text;
    size_t n;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(file_map_open(&map, path, &err), OK); /* empty */
    assert_null(map.data);
    file_map_close(&map);
    assert_int_equal(write(fd, "hello", 5), 5);
    close(fd);
    assert_int_equal(file_map_open(&map, path, &err), OK);
    assert_int_equal(map.n_bytes, 5);
    assert_memory_equal(map.data, "hello", 5);
    file_map_close(&map);
    for (size_t limit = 5; limit <= 6; limit++) {
        assert_int_equal(file_read(&text, &n, path, limit, &err), OK);
        assert_string_equal(text, "hello");
        free(text);
    }
    assert_int_equal(file_read(&text, &n, path, 4, &err), ERR_LIMIT);
    assert_non_null(strstr(err.text, path));
    unlink(path);
    assert_int_equal(file_map_open(&map, path, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(file_map_open(&map, path, NULL), ERR_NOT_FOUND);
    assert_int_equal(file_map_open(&map, "/tmp", &err), ERR_IO);
}

static void test_log_escapes(void **state)
{
    int fds[2];
    char line[512];
    ssize_t n;
    struct log log;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    log = (struct log){.fd = fds[1], .level = LOG_INFO};
    log_debug(&log, "dropped");
    log_warning(&log, "evil\nline\x1b[2J");
    log_error(NULL, "silent");
    n = read(fds[0], line, sizeof line - 1);
    assert_true(n > 0);
    line[n] = '\0';
    assert_non_null(strstr(line, "warning: evil\\x0aline\\x1b[2J\n"));
    assert_null(strstr(line, "dropped"));
    log_warning(&log, "\xc2\x9b"
                      "2J caf\xc3\xa9 \xc2\xa0"); /* a terminal takes U+009B for ESC [ */
    n = read(fds[0], line, sizeof line - 1);
    assert_true(n > 0);
    line[n] = '\0';
    assert_non_null(strstr(line, "warning: \\x9b"
                                 "2J caf\xc3\xa9 \xc2\xa0\n"));
    log.is_json = true;
    log_info(&log, "say \"%s\"", "hi");
    n = read(fds[0], line, sizeof line - 1);
    assert_true(n > 0);
    line[n] = '\0';
    assert_non_null(strstr(line, "\"msg\":\"say \\\"hi\\\"\"}\n"));
    close(fds[0]);
    close(fds[1]);
}

static void test_cpu(void **state)
{
    struct cpu_features f = cpu_detect();
    char text[128];

    (void)state;
    assert_in_range(cpu_count_physical(), 1, cpu_count_logical());
    assert_true(!f.avx512 || f.avx2);
    cpu_features_text(text, sizeof text, &f);
    assert_true(strlen(text) > 0 && text[strlen(text) - 1] != ' ');
    cpu_model_name(text, sizeof text);
    assert_true(strlen(text) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_text),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_utf8_every_short_sequence),
        cmocka_unit_test(test_utf8_tail),
        cmocka_unit_test(test_str),
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_f8),
        cmocka_unit_test(test_bf16_and_dtypes),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_log_escapes),
        cmocka_unit_test(test_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
