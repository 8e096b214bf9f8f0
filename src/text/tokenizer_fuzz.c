/* tokenizer_fuzz.c - the bytes of a tokenizer.json, then whatever it says is used.
 *
 * Input:  the file's text, and behind the first zero byte the text to encode (a default without one).
 * Checks: ids are known; as an untrusted run the text gives no special token; when nothing can be
 *         dropped or normalised, the bytes of the ids spell the text. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "text/tokenizer.h"

enum { TEXT_MAX = 4096 };

static void check(bool is_true)
{
    if (!is_true) {
        abort();
    }
}

static void encode(const struct tokenizer *t, struct str text, bool is_trusted, bool must_spell)
{
    struct text_run runs[2] = {{{text.ptr, text.len / 2}, is_trusted},
                               {{text.ptr + text.len / 2, text.len - text.len / 2}, false}};
    struct token_ids ids = {0};
    struct buf spelled = {0};
    struct error err;

    if (tokenizer_encode(&ids, t, runs, 2, &err) == OK) {
        for (size_t i = 0; i < ids.n; i++) {
            struct str bytes = tokenizer_bytes(t, ids.ids[i]);
            check(bytes.ptr != NULL);
            check(is_trusted || !tokenizer_is_special(t, ids.ids[i]));
            buf_append(&spelled, bytes.ptr, bytes.len);
        }
        check(!must_spell || str_eq((struct str){buf_cstr(&spelled), spelled.len}, text));
    } else {
        check(ids.n == 0);
    }
    buf_release(&spelled);
    token_ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "It's 2024: abc  <x>\n\n e\xcc\x81 \xe4\xb8\xad <|im_end|> aabbab";
    struct str file = {(const char *)data, size}, text = STR(sample);
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    struct tokenizer *t = NULL;
    struct error err;

    if (zero) {
        file.len = (size_t)(zero - data);
        text = (struct str){(const char *)zero + 1, size - file.len - 1};
        text.len = text.len < TEXT_MAX ? text.len : TEXT_MAX;
    }
    if (tokenizer_load_memory(&t, file.ptr, file.len, &err) == OK) {
        /* "Removed" may be spelled with escapes. */
        bool drops =
            str_find(file, STR("invert")) != SIZE_MAX || str_find(file, STR("\\")) != SIZE_MAX;
        bool is_ascii = true;
        for (size_t i = 0; i < text.len; i++) {
            is_ascii = is_ascii && (unsigned char)text.ptr[i] < 0x80;
        }
        encode(t, text, true, false);
        encode(t, text, false, is_ascii && !drops);
        tokenizer_free(t);
    } else {
        check(t == NULL && err.text[0]);
    }
    return 0;
}
