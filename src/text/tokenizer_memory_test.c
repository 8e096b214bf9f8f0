/* tokenizer_memory_test.c - each allocation of loading, encoding and decoding fails once.
 *
 * Idea:   this program brings its own malloc family, on top of the C library's, which counts and
 *         fails on demand and knows how many blocks are alive. A sanitizer brings one of its own, so
 *         the test is skipped there.
 * Limits: only calls from our own code fail; json-c crashes when an allocation of its own fails,
 *         which a test of ours cannot mend. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>

#include "text/detok.h"
#include "text/tokenizer_testing.h"

#ifdef __has_feature /* clang */
#define HAS_SANITIZER __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#else
#define HAS_SANITIZER 0
#endif

#if HAS_SANITIZER || !defined(__GLIBC__)
int main(void)
{
    print_message("skipped: allocations belong to the sanitizer\n");
    return 77;
}
#else

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);

static struct {
    bool is_counting;
    size_t n_calls, fail_at; /* the call of this number fails; SIZE_MAX: none */
    long n_alive;
} heap;

extern char __executable_start, etext; /* of this program, from the linker */

static bool fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;

    if (!heap.is_counting || at < (uintptr_t)&__executable_start || at >= (uintptr_t)&etext ||
        heap.n_calls++ != heap.fail_at) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

static void *counted(void *p)
{
    heap.n_alive += heap.is_counting && p;
    return p;
}

void *malloc(size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t each)
{
    return fails(__builtin_return_address(0)) ? NULL : counted(__libc_calloc(n, each));
}

void *realloc(void *p, size_t n)
{
    if (fails(__builtin_return_address(0))) {
        return NULL;
    }
    return p ? __libc_realloc(p, n) : counted(__libc_malloc(n));
}

void free(void *p)
{
    heap.n_alive -= heap.is_counting && p;
    __libc_free(p);
}

/* Run `step` with the first allocation failing, then the second, until none does. Each failure must
 * be reported as such and leave nothing behind. */
typedef enum status step_fn(void *ctx, struct error *err);

static void fail_each(step_fn *step, void *ctx)
{
    size_t fail_at = 0;
    enum status rc;

    do {
        struct error err = {0};
        long alive;
        heap.n_calls = 0;
        heap.n_alive = 0;
        heap.fail_at = fail_at++;
        heap.is_counting = true;
        rc = step(ctx, &err);
        heap.is_counting = false;
        alive = heap.n_alive;
        assert_int_equal(alive, 0);
        if (rc != OK && rc != ERR_NO_MEMORY) {
            fail_msg("allocation %zu: %s '%s'", heap.fail_at, status_name(rc), err.text);
        }
        assert_true(rc == OK || err.text[0]);
    } while (heap.n_calls > heap.fail_at);
    assert_int_equal(rc, OK);
    assert_true(fail_at > 3);
}

static enum status load_step(void *ctx, struct error *err)
{
    const struct buf *text = ctx;
    struct tokenizer *t = NULL;
    enum status rc = tokenizer_load_memory(&t, text->data, text->len, err);

    assert_true((rc == OK) == (t != NULL));
    tokenizer_free(t);
    return rc;
}

static const struct fixture fixture = {
    .merges = {{"a", "b"}, {"ab", "c"}},
    .added = {"{\"id\":256,\"content\":\"ab\",\"special\":true}",
              "{\"id\":258,\"content\":\"cafe\\u0301\",\"normalized\":true}"},
    .pattern = "[^ ]+| "};

static void test_loading(void **state)
{
    struct buf text = {0};

    (void)state;
    fixture_append(&text, &fixture);
    fail_each(load_step, &text);
    buf_release(&text);
}

static enum status encode_step(void *ctx, struct error *err)
{
    static const char long_piece[] = "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc";
    const struct text_run runs[] = {{STR(long_piece), true}, {STR("abc e\xcc\x81 ab"), false}};
    struct token_ids ids = {0};
    enum status rc = tokenizer_encode(&ids, ctx, runs, 2, err);

    assert_true(rc == OK ? ids.n > 0 : ids.n == 0);
    token_ids_release(&ids);
    return rc;
}

static void test_encoding(void **state)
{
    struct error err;
    struct tokenizer *t = fixture_load(&fixture, &err);

    (void)state;
    assert_non_null(t);
    fail_each(encode_step, t);
    tokenizer_free(t);
}

/* The buffer remembers that an append failed; its reader asks once at the end. */
static void test_decoding(void **state)
{
    struct error err;
    struct tokenizer *t = fixture_load(&fixture, &err);
    struct detok d;
    struct buf out = {0};

    (void)state;
    assert_non_null(t);
    detok_init(&d, t, false);
    heap.fail_at = heap.n_calls = 0;
    heap.is_counting = true;
    detok_push(&d, 257, &out);
    heap.is_counting = false;
    assert_false(buf_ok(&out));
    buf_release(&out);
    tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_encoding),
        cmocka_unit_test(test_decoding),
    };

    heap.fail_at = SIZE_MAX;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
