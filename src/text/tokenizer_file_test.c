/* tokenizer_file_test.c - what a tokenizer.json may hold, what is refused, and with which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "text/tokenizer_testing.h"

static enum status load_text(struct str text, struct error *err)
{
    struct tokenizer *t = NULL;
    enum status rc;

    *err = (struct error){0};
    rc = tokenizer_load_memory(&t, text.ptr, text.len, err);
    assert_int_equal(rc == OK, t != NULL);
    tokenizer_free(t);
    return rc;
}

static struct buf base_text(void)
{
    const struct fixture f = {
        .merges = {{"a", "b"}, {"ab", "c"}},
        .added = {"{\"id\":258,\"content\":\"<x>\",\"special\":true}",
                  "{\"id\":259,\"content\":\"<y>\",\"special\":false,\"note\":[{}]}"}};
    struct buf text = {0};

    fixture_append(&text, &f);
    return text;
}

/* The base text with one part replaced. */
static struct buf changed(const char *from, const char *to)
{
    struct buf base = base_text(), out = {0};
    size_t at = str_find((struct str){base.data, base.len}, str_of(from));

    if (at == SIZE_MAX) {
        fail_msg("the fixture has no %s", from);
    }
    buf_append(&out, base.data, at);
    buf_append_str(&out, to);
    buf_append(&out, base.data + at + strlen(from), base.len - at - strlen(from));
    buf_release(&base);
    return out;
}

static const char normalizer[] = "\"normalizer\":{\"type\":\"NFC\"}";
static const char bytes_step[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                 "\"trim_offsets\":false,\"use_regex\":false}";
static const char type[] = "\"type\":\"BPE\",";
static const char decoder[] = "\"decoder\":{\"type\":\"ByteLevel\"}";
static const char post[] = "\"post_processor\":null";
static const char token[] = "{\"id\":258,\"content\":\"<x>\",\"special\":true}";
#define TOKEN_X      "{\"id\":258,\"content\":\"<x>\"}"
#define TOKEN_AB     "{\"id\":256,\"content\":\"ab\"}"
#define TWICE        TOKEN_X "," TOKEN_AB "," TOKEN_AB
#define SPECIAL_BYTE TOKEN_X ",{\"id\":33,\"content\":\"!\",\"special\":true}"
static const char merges[] = "\"merges\":[[\"a\",\"b\"],[\"ab\",\"c\"]]";
static const char entry[] = "\"ab\":256";
static const char split_end[] = "\"behavior\":\"Isolated\",\"invert\":false";

static void test_accepted(void **state)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {type, type},
        {normalizer, "\"normalizer\":null"},
        {normalizer, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"},
        {type, "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"fuse_unk\":false,"
               "\"byte_fallback\":false,\"continuing_subword_prefix\":\"\","
               "\"end_of_word_suffix\":null,\"ignore_merges\":false,\"other\":{\"a\":[]},"},
        {post, "\"post_processor\":{\"type\":\"ByteLevel\"}"},
        {post, "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},"
               "{\"type\":\"TemplateProcessing\"}]}"},
        {merges, "\"merges\":[\"#version: 0.2\",\"a b\",\"ab c\"]"},
        {merges, "\"merges\":[[\"a\",\"b\"],[\"ab\",\"c\"],[\"a\",\"b\"]]"}, /* again: later wins */
        {merges, "\"merges\":[]"},
        {bytes_step, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"},
        {split_end, "\"behavior\":\"Removed\",\"invert\":true"},
        {"\"version\"", "\"truncation\":{\"max_length\":5},\"padding\":null,\"version\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf text = changed(cases[i].from, cases[i].to);
        struct error err;
        if (load_text((struct str){text.data, text.len}, &err) != OK) {
            fail_msg("%s: %s", cases[i].to, err.text);
        }
        buf_release(&text);
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *from, *to;
        enum status code;
        const char *text; /* part of the message */
    } cases[] = {
        {type, "\"type\":\"Unigram\",", ERR_UNSUPPORTED, "model type \"Unigram\" is not supported"},
        {type, "", ERR_UNSUPPORTED, "model type (none) is not supported"},
        {type, "\"type\":\"BPE\",\"dropout\":0.1,", ERR_UNSUPPORTED, "dropout 0.1"},
        {type, "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",", ERR_UNSUPPORTED,
         "end_of_word_suffix \"</w>\""},
        {type, "\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\",", ERR_UNSUPPORTED,
         "continuing_subword_prefix \"##\""},
        {type, "\"type\":\"BPE\",\"ignore_merges\":1,", ERR_UNSUPPORTED, "ignore_merges 1"},
        {normalizer, "\"normalizer\":{\"type\":\"Lowercase\"}", ERR_UNSUPPORTED,
         "normalizer 'Lowercase'"},
        {normalizer, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}]}",
         ERR_UNSUPPORTED, "normalizer 'NFKC'"},
        {normalizer, "\"normalizer\":[]", ERR_UNSUPPORTED, "normalizer ''"},
        {bytes_step, "{\"type\":\"Metaspace\"}", ERR_UNSUPPORTED, "pre_tokenizer 'Metaspace'"},
        {bytes_step, "{\"type\":\"ByteLevel\"}", ERR_UNSUPPORTED, "add_prefix_space"},
        {bytes_step, "{\"type\":\"Sequence\",\"pretokenizers\":[]}", ERR_UNSUPPORTED,
         "without 'ByteLevel'"},
        {split_end, "\"behavior\":\"MergedWithNext\",\"invert\":false", ERR_UNSUPPORTED,
         "behavior 'MergedWithNext' and invert false"},
        {split_end, "\"behavior\":\"Isolated\",\"invert\":\"no\"", ERR_FORMAT, "invert"},
        {"\"Regex\"", "\"String\"", ERR_UNSUPPORTED, "without a 'Regex' pattern"},
        {decoder, "\"decoder\":null", ERR_UNSUPPORTED, "decoder ''"},
        {decoder, "\"decoder\":{\"type\":\"Metaspace\"}", ERR_UNSUPPORTED, "decoder 'Metaspace'"},
        {post, "\"post_processor\":{\"type\":\"BertProcessing\"}", ERR_UNSUPPORTED,
         "post_processor 'BertProcessing'"},
        {merges, "\"merge\":[]", ERR_FORMAT, "the model has no 'merges'"},
        {merges, "\"merges\":{}", ERR_FORMAT, "expected '['"},
        {merges, "\"merges\":[[\"a\"]]", ERR_FORMAT, "merge rule 0 has 1 parts"},
        {merges, "\"merges\":[[\"a\",\"b\",\"c\"]]", ERR_FORMAT, "merge rule 0 has more than two"},
        {merges, "\"merges\":[\"a b\",\"ab\"]", ERR_FORMAT, "merge rule 1 has no space"},
        {merges, "\"merges\":[\"a b c\"]", ERR_FORMAT, "merge rule 0 has two spaces"},
        {merges, "\"merges\":[\"a bc\"]", ERR_FORMAT, "'bc' is not in the vocabulary"},
        {merges, "\"merges\":[\"b c\"]", ERR_FORMAT,
         "the result of 'b' and 'c' is not in the vocabulary"},
        {entry, "\"ab\":257", ERR_FORMAT, "token id 257 is there twice"},
        {entry, "\"ab\":256,\"ab\":300", ERR_FORMAT, "tokens 256 and 300 have the same text"},
        {entry, "\"ab\":-1", ERR_FORMAT, "expected a whole number"},
        {entry, "\"ab\":4194304", ERR_FORMAT, "number over 4194303"},
        {entry, "\"ab\":2.5", ERR_FORMAT, "expected a whole number"},
        {"\"!\":33,", "", ERR_FORMAT, "the vocabulary has no entry for byte 0x21"},
        {token, "{\"id\":300,\"content\":\"<x>\"}", ERR_FORMAT,
         "added token '<x>' has id 300, but by the vocabulary it must be 258"},
        {token, "{\"id\":258,\"content\":\"ab\"}", ERR_FORMAT, "it must be 256"},
        {token, TWICE, ERR_FORMAT, "added token 256 is there twice"},
        {entry, "\"ab\":256,\"a b\":300", ERR_FORMAT,
         "'<x>' has id 258, but by the vocabulary it must be 259"},
        {token, SPECIAL_BYTE, ERR_UNSUPPORTED,
         "special token 33 is also the entry of a single byte"},
        {token, "{\"id\":258,\"content\":\"\"}", ERR_FORMAT, "added token 0 has no content"},
        {token, "{\"content\":\"<x>\"}", ERR_FORMAT, "added token 0 has no id"},
        {token, "{\"id\":258,\"content\":\"<x>\",\"special\":1}", ERR_FORMAT,
         "expected true or false"},
        {token, "7", ERR_FORMAT, "expected '{'"},
        {"\"model\"", "\"modem\"", ERR_FORMAT, "the file has no 'model'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf text = changed(cases[i].from, cases[i].to);
        struct error err;
        enum status rc = load_text((struct str){text.data, text.len}, &err);
        if (rc != cases[i].code || !strstr(err.text, cases[i].text)) {
            fail_msg("%s -> %s: %s '%s', not '%s'", cases[i].from, cases[i].to, status_name(rc),
                     err.text, cases[i].text);
        }
        buf_release(&text);
    }
}

/* A file that is cut anywhere is refused, and nothing is read past its end. */
static void test_cut_files(void **state)
{
    struct buf text = base_text();

    (void)state;
    for (size_t len = 0; len < text.len; len++) {
        char *exact = malloc(len + !len);
        struct error err;
        memcpy(exact, text.data, len);
        assert_int_equal(load_text((struct str){exact, len}, &err), ERR_FORMAT);
        free(exact);
    }
    buf_release(&text);
}

static void test_limits(void **state)
{
    struct buf text = {0}, added = {0};
    struct error err;

    (void)state;
    assert_int_equal(load_text((struct str){"", (size_t)TOKENIZER_FILE_BYTES_MAX + 1}, &err),
                     ERR_LIMIT);
    buf_append_str(&added, "{\"id\":258,\"content\":\"");
    for (int i = 0; i <= 1024; i++) {
        buf_append_char(&added, 'x');
    }
    buf_append_str(&added, "\"}");
    text = changed(token, buf_cstr(&added));
    assert_int_equal(load_text((struct str){text.data, text.len}, &err), ERR_LIMIT);
    assert_string_equal(err.text, "added token 258 has 1025 bytes, more than 1024");
    buf_release(&text);
    buf_release(&added);
}

static void test_file_errors_name_the_path(void **state)
{
    struct tokenizer *t = NULL;
    struct error err;

    (void)state;
    assert_int_equal(tokenizer_load(&t, "/nonexistent/tokenizer.json", &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/tokenizer.json"));
    assert_int_equal(tokenizer_load(&t, SPILLWAY_SOURCE_DIR "/models/rill/config.json", &err),
                     ERR_FORMAT);
    assert_non_null(strstr(err.text, "models/rill/config.json': the file has no 'model'"));
    assert_null(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_file_errors_name_the_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
