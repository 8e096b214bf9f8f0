/* nfc_test.c - normalisation against utf8proc's own, and what is done differently on purpose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <utf8proc.h>

#include "text/nfc.h"
#include "text/unicode_tables.h"

static void assert_nfc(const char *text, const char *expected)
{
    struct buf out = {0};
    struct error err;

    assert_int_equal(nfc_append(&out, NULL, str_of(text), NULL, &err), OK);
    assert_string_equal(buf_cstr(&out), expected);
    buf_release(&out);
}

static void test_known(void **state)
{
    (void)state;
    assert_nfc("", "");
    assert_nfc("plain caf\xc3\xa9", "plain caf\xc3\xa9");
    assert_nfc("cafe\xcc\x81s", "caf\xc3\xa9s");
    assert_nfc("\xcc\x81", "\xcc\x81");                      /* a mark alone */
    assert_nfc("a\xcc\x81\xcc\xa3", "\xe1\xba\xa1\xcc\x81"); /* reordered, then composed */
    assert_nfc("\xe2\x84\xab", "\xc3\x85");                  /* angstrom sign */
    assert_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* jamo */
    assert_nfc("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"); /* a composition exclusion */
    assert_false(nfc_needed(STR("caf\xc3\xa9 \xe4\xb8\xad\xea\xb0\x80")));
    assert_true(nfc_needed(STR("cafe\xcc\x81")));
}

/* U+1ACF is newer than the reference's data: there it is no mark, so nothing moves across it. */
static void test_foreign_marks_stay(void **state)
{
    (void)state;
    assert_true(unicode_flags(0x1ac1) & UNICODE_NFC_FOREIGN);
    assert_nfc("x\xe1\xab\x81\xcc\xb4", "x\xe1\xab\x81\xcc\xb4");
    assert_nfc("x\xcc\x81\xe1\xab\x81\xcc\xb4\xcc\xa3", "x\xcc\x81\xe1\xab\x81\xcc\xb4\xcc\xa3");
    assert_nfc("\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0", "\xf0\x91\xa4\xb5\xf0\x91\xa4\xb0");
}

static const uint32_t alphabet[] = {'a',   'e',    'x',    ' ',   0xe9,   0x1ea1, 0x300,  0x301,
                                    0x323, 0x327,  0x334,  0x345, 0x1100, 0x1161, 0x11a8, 0xac00,
                                    0x9c7, 0x9be,  0x212b, 0x3b9, 0x5b0,  0x651,  0x64b,  0xf71,
                                    0xf72, 0x3099, 0x304b, 0x958, 0x1f82, 0x344,  0x4e2d, 0x1d15e};

static void test_equals_utf8proc(void **state)
{
    uint32_t random = 4711;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct buf text = {0}, out = {0};
        utf8proc_uint8_t *expected = NULL;
        utf8proc_ssize_t n;
        for (uint32_t k = 0; k < 1 + (uint32_t)i % 9; k++) {
            char bytes[4];
            random = random * 1664525u + 1013904223u;
            buf_append(
                &text, bytes,
                utf8_encode(bytes,
                            alphabet[(random >> 16) % (sizeof alphabet / sizeof alphabet[0])]));
        }
        n = utf8proc_map((const utf8proc_uint8_t *)text.data, (utf8proc_ssize_t)text.len, &expected,
                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_int_equal(nfc_append(&out, NULL, (struct str){text.data, text.len}, NULL, NULL), OK);
        assert_int_equal(out.len, n);
        assert_memory_equal(out.data, expected, out.len);
        if (!nfc_needed((struct str){text.data, text.len})) {
            assert_int_equal(out.len, text.len);
            assert_memory_equal(out.data, text.data, text.len);
        }
        free(expected);
        buf_release(&text);
        buf_release(&out);
    }
}

/* A long run of marks is sorted by counting; the sort must be stable. */
static void test_long_run(void **state)
{
    struct buf text = {0}, out = {0};
    const size_t n = 5000;

    (void)state;
    buf_append_char(&text, 'x');
    for (size_t i = 0; i < n; i++) {
        buf_append_str(&text, i % 2 ? "\xcc\x80\xcc\xa3" : "\xcc\x81\xcc\xb4"); /* 230 220, 230 1 */
    }
    assert_int_equal(nfc_append(&out, NULL, (struct str){text.data, text.len}, NULL, NULL), OK);
    assert_int_equal(out.len, text.len);
    for (size_t i = 0; i < n / 2; i++) {
        assert_memory_equal(out.data + 1 + 2 * i, "\xcc\xb4", 2);
        assert_memory_equal(out.data + 1 + n + 2 * i, "\xcc\xa3", 2);
        assert_memory_equal(out.data + 1 + 2 * n + 4 * i, "\xcc\x81\xcc\x80", 4);
    }
    buf_release(&text);
    buf_release(&out);
}

/* A character that came in part from untrusted bytes is untrusted. */
static void test_trust(void **state)
{
    struct buf out = {0}, trust = {0};
    const char marks[] = {1, 1, 0, 0, 0, 1, 1, 1, 1, 1};

    (void)state;
    assert_int_equal(nfc_append(&out, &trust, STR("ae\xcc\x81zze\xcc\x81y"), marks, NULL), OK);
    assert_string_equal(buf_cstr(&out), "a\xc3\xa9zz\xc3\xa9y");
    assert_int_equal(trust.len, out.len);
    assert_memory_equal(trust.data, "\1\0\0\0\1\1\1\1", 8);
    buf_release(&out);
    buf_release(&trust);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),           cmocka_unit_test(test_foreign_marks_stay),
        cmocka_unit_test(test_equals_utf8proc), cmocka_unit_test(test_long_run),
        cmocka_unit_test(test_trust),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
