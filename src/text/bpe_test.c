/* bpe_test.c - merging against a plain model of the rule, over both code paths, and the guard. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "text/bpe.h"

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Texts of the tokens of a random vocabulary over a, b and c, in order of their ids. Byte tokens have
 * the id of their byte, results follow from 256. */
enum { N_RULES = 80, TEXT_MAX = 32 };

struct world {
    struct bpe bpe;
    char text[256 + N_RULES][TEXT_MAX];
    int32_t left[N_RULES], right[N_RULES];
    size_t n_rules;
};

static void add_bytes(struct bpe *b, struct buf *scratch)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t cp = byte;
        char text[4];
        if (byte <= 0x20) {
            cp = 0x100 + byte;
        } else if (byte >= 0x7f && byte <= 0xa0) {
            cp = 0x121 + byte - 0x7f;
        } else if (byte == 0xad) {
            cp = 0x143;
        }
        assert_int_equal(
            vocab_add(&b->vocab, (struct str){text, utf8_encode(text, cp)}, byte, scratch, NULL),
            OK);
    }
}

static bool is_new_text(const struct world *w, const char *text)
{
    for (size_t i = 0; i < w->n_rules; i++) {
        if (strcmp(w->text[256 + i], text) == 0) {
            return false;
        }
    }
    return true;
}

static void world_init(struct world *w, uint32_t seed)
{
    struct buf scratch = {0};
    struct bpe_loader loader = {0};

    *w = (struct world){0};
    bpe_init(&w->bpe);
    add_bytes(&w->bpe, &scratch);
    for (int byte = 0; byte < 256; byte++) {
        w->text[byte][0] = (char)byte;
    }
    while (w->n_rules < N_RULES) {
        size_t n = w->n_rules;
        int32_t sides[2];
        for (int i = 0; i < 2; i++) {
            uint32_t pick = next_random(&seed) % (3 + (uint32_t)n);
            sides[i] = pick < 3 ? 'a' + (int32_t)pick : 256 + (int32_t)pick - 3;
        }
        struct str left = str_of(w->text[sides[0]]), right = str_of(w->text[sides[1]]);
        if (left.len + right.len >= TEXT_MAX) {
            continue;
        }
        memset(w->text[256 + n], 0, TEXT_MAX);
        memcpy(w->text[256 + n], left.ptr, left.len);
        memcpy(w->text[256 + n] + left.len, right.ptr, right.len);
        if (!is_new_text(w, w->text[256 + n])) {
            continue;
        }
        assert_int_equal(
            vocab_add(&w->bpe.vocab, str_of(w->text[256 + n]), (uint32_t)(256 + n), &scratch, NULL),
            OK);
        assert_int_equal(bpe_add_rule(&w->bpe, &loader, left, right, NULL), OK);
        w->left[n] = sides[0];
        w->right[n] = sides[1];
        w->n_rules++;
    }
    assert_int_equal(bpe_finish(&w->bpe, NULL), OK);
    bpe_loader_release(&loader);
    buf_release(&scratch);
}

/* The rule as it is defined: the lowest rank first, leftmost of equals, until none applies. */
static size_t merge_plainly(int32_t *ids, size_t n, const struct world *w)
{
    for (;;) {
        size_t best = SIZE_MAX, at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t rank = 0; rank < w->n_rules && rank < best; rank++) {
                if (w->left[rank] == ids[i] && w->right[rank] == ids[i + 1]) {
                    best = rank;
                    at = i;
                }
            }
        }
        if (best == SIZE_MAX) {
            return n;
        }
        ids[at] = (int32_t)(256 + best);
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void test_equals_the_plain_rule(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 4; seed++) {
        struct world *w = malloc(sizeof *w);
        struct bpe_scratch *scratch = bpe_scratch_new(1000);
        struct token_ids out = {0};
        uint32_t random = seed * 77;
        assert_non_null(w);
        world_init(w, seed);
        for (int i = 0; i < 1500; i++) {
            char text[160];
            int32_t plain[160];
            size_t n = 1 + next_random(&random) % sizeof text, n_plain;
            if (i % 3 == 0) {
                n = 40 + n % 20; /* around the border between the two ways */
            }
            for (size_t k = 0; k < n; k++) {
                plain[k] = text[k] = (char)('a' + next_random(&random) % (i % 2 ? 2 : 3));
            }
            n_plain = merge_plainly(plain, n, w);
            for (int again = 0; again < 2; again++) { /* the second time from the cache */
                size_t from = out.n;
                assert_true(bpe_encode(&w->bpe, scratch, (struct str){text, n}, true, &out));
                assert_int_equal(out.n - from, n_plain);
                assert_memory_equal(out.ids + from, plain, n_plain * sizeof *plain);
            }
        }
        token_ids_release(&out);
        bpe_scratch_free(scratch);
        bpe_release(&w->bpe);
        free(w);
    }
}

/* Untrusted text never gives a guarded id, and still spells the same. */
static void test_guard(void **state)
{
    const struct bpe_guard guards[] = {
        {256 + 5, true}, {256 + 17, false}, {256 + 40, true}, {'a', false}};
    struct world *w = malloc(sizeof *w);
    struct bpe_scratch *scratch = bpe_scratch_new(1000);
    struct token_ids out = {0};
    uint32_t random = 99;
    size_t n_seen = 0;

    (void)state;
    assert_non_null(w);
    world_init(w, 3);
    w->bpe.ignore_merges = true;
    assert_int_equal(bpe_guard_ids(&w->bpe, guards, 4, NULL), OK);
    for (int i = 0; i < 3000; i++) {
        char text[80], spelled[80];
        size_t n = 1 + next_random(&random) % (i % 2 ? 12 : sizeof text), n_spelled = 0;
        for (size_t k = 0; k < n; k++) {
            text[k] = (char)('a' + next_random(&random) % 3);
        }
        for (int is_trusted = 0; is_trusted < 2; is_trusted++) {
            size_t from = out.n;
            n_spelled = 0;
            assert_true(bpe_encode(&w->bpe, scratch, (struct str){text, n}, is_trusted, &out));
            for (size_t k = from; k < out.n; k++) {
                struct str bytes = vocab_bytes(&w->bpe.vocab, out.ids[k]);
                bool is_guarded =
                    out.ids[k] == 256 + 5 || out.ids[k] == 256 + 17 || out.ids[k] == 256 + 40;
                assert_true(is_trusted || !is_guarded);
                n_seen += is_guarded;
                assert_true(n_spelled + bytes.len <= n);
                memcpy(spelled + n_spelled, bytes.ptr, bytes.len);
                n_spelled += bytes.len;
            }
            assert_int_equal(n_spelled, n);
            assert_memory_equal(spelled, text, n);
        }
    }
    assert_true(n_seen > 0);
    token_ids_release(&out);
    bpe_scratch_free(scratch);
    bpe_release(&w->bpe);
    free(w);
}

static void test_guard_of_a_byte(void **state)
{
    const struct bpe_guard special = {'a', true};
    struct world *w = malloc(sizeof *w);
    struct error err;

    (void)state;
    assert_non_null(w);
    world_init(w, 1);
    assert_int_equal(bpe_guard_ids(&w->bpe, &special, 1, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.text, "special token 97 is also the entry of a single byte");
    bpe_release(&w->bpe);
    free(w);
}

static void test_vocab(void **state)
{
    struct vocab v;
    struct buf scratch = {0};
    struct error err;

    (void)state;
    vocab_init(&v);
    assert_int_equal(vocab_find(&v, STR("a"), false), VOCAB_NONE);
    assert_int_equal(vocab_add(&v,
                               STR("\xc4\xa0"
                                   "a"),
                               7, &scratch, &err),
                     OK);
    assert_true(str_eq(vocab_bytes(&v, 7), STR(" a")));
    assert_int_equal(vocab_find(&v, STR(" a"), false), 7);
    /* A real blank is not of the alphabet: the text stays as it is and is another entry. */
    assert_int_equal(vocab_add(&v, STR(" a"), 9, &scratch, &err), OK);
    assert_int_equal(vocab_find(&v, STR(" a"), true), 9);
    assert_int_equal(vocab_find(&v, STR(" a"), false), 7);
    assert_int_equal(v.n_ids, 10);
    assert_null(vocab_bytes(&v, 8).ptr);
    assert_null(vocab_bytes(&v, 10).ptr);
    assert_null(vocab_bytes(&v, -1).ptr);

    assert_int_equal(vocab_add(&v, STR("b"), 7, &scratch, &err), ERR_FORMAT);
    assert_string_equal(err.text, "token id 7 is there twice");
    assert_int_equal(vocab_add(&v,
                               STR("\xc4\xa0"
                                   "a"),
                               8, &scratch, &err),
                     ERR_FORMAT);
    assert_string_equal(err.text, "tokens 7 and 8 have the same text");
    assert_int_equal(vocab_add(&v, STR("c"), VOCAB_IDS_MAX, &scratch, &err), ERR_LIMIT);
    assert_int_equal(vocab_add_hidden(&v, STR("<x>"), 20, &scratch, &err), OK);
    assert_true(str_eq(vocab_bytes(&v, 20), STR("<x>")));
    assert_int_equal(vocab_find(&v, STR("<x>"), false), VOCAB_NONE);
    vocab_release(&v);
    buf_release(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_plain_rule),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_guard_of_a_byte),
        cmocka_unit_test(test_vocab),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
