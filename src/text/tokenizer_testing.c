/* tokenizer_testing.c - see tokenizer_testing.h. */
#include "text/tokenizer_testing.h"

#include "base/json.h"
#include "base/str.h"
#include "text/split.h"

/* The character that stands for a byte, as UTF-8. */
static void append_byte(struct buf *b, unsigned byte)
{
    static const unsigned first[] = {0x00, 0x7f, 0xad}, last[] = {0x20, 0xa0, 0xad},
                          code[] = {0x100, 0x121, 0x143};
    uint32_t cp = byte;
    char bytes[4];

    for (size_t i = 0; i < 3; i++) {
        if (byte >= first[i] && byte <= last[i]) {
            cp = code[i] + byte - first[i];
        }
    }
    buf_append(b, bytes, utf8_encode(bytes, cp));
}

static void append_string(struct buf *out, const char *a, const char *b)
{
    struct buf text = {0};

    buf_append_str(&text, a);
    buf_append_str(&text, b);
    json_write_string(out, buf_cstr(&text), text.len);
    buf_release(&text);
}

static void append_vocab(struct buf *out, const struct fixture *f)
{
    struct buf text = {0};

    buf_append_str(out, "\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++) {
        buf_clear(&text);
        append_byte(&text, byte);
        json_write_string(out, text.data, text.len);
        buf_appendf(out, ":%u%s", byte, byte < 255 || f->merges[0][0] ? "," : "");
    }
    for (size_t i = 0; f->merges[i][0]; i++) {
        append_string(out, f->merges[i][0], f->merges[i][1]);
        buf_appendf(out, ":%zu%s", 256 + i, f->merges[i + 1][0] ? "," : "");
    }
    buf_append_str(out, "}");
    buf_release(&text);
}

static void append_merges(struct buf *out, const struct fixture *f)
{
    buf_append_str(out, "\"merges\":[");
    for (size_t i = 0; f->merges[i][0]; i++) {
        buf_append_str(out, i ? "," : "");
        if (f->joined_merges) {
            buf_appendf(out, "\"%s %s\"", f->merges[i][0], f->merges[i][1]);
        } else {
            buf_append_char(out, '[');
            append_string(out, f->merges[i][0], "");
            buf_append_char(out, ',');
            append_string(out, f->merges[i][1], "");
            buf_append_char(out, ']');
        }
    }
    buf_append_str(out, "]");
}

void fixture_append(struct buf *out, const struct fixture *f)
{
    struct str pattern = f->pattern ? str_of(f->pattern) : split_known_pattern(SPLIT_QWEN3_5);

    buf_append_str(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (size_t i = 0; f->added[i]; i++) {
        buf_appendf(out, "%s%s", i ? "," : "", f->added[i]);
    }
    buf_appendf(out, "],\"normalizer\":%s,", f->normalizer ? f->normalizer : "{\"type\":\"NFC\"}");
    buf_append_str(out, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                        "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_write_string(out, pattern.ptr, pattern.len);
    buf_append_str(out, "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
                        "\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}]},"
                        "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
                        "\"model\":{\"type\":\"BPE\",");
    buf_append_str(out, f->model_more ? f->model_more : "");
    if (f->merges_first) {
        append_merges(out, f);
        buf_append_char(out, ',');
        append_vocab(out, f);
    } else {
        append_vocab(out, f);
        buf_append_char(out, ',');
        append_merges(out, f);
    }
    buf_append_str(out, "}}");
}

struct tokenizer *fixture_load(const struct fixture *f, struct error *err)
{
    struct buf text = {0};
    struct tokenizer *t = NULL;

    fixture_append(&text, f);
    tokenizer_load_memory(&t, buf_cstr(&text), text.len, err);
    buf_release(&text);
    return t;
}
