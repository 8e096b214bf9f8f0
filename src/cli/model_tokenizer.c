/* model_tokenizer.c - a byte-level BPE tokenizer.json of any size.
 *
 * Idea:  ids 0..255 are the single bytes. The words after them are the nodes of a tree with 26
 *        branches: its roots are the space and the letters a to z, and a child is its parent and one
 *        more letter. So a word's text, its id and its merge rule all follow from its number, every
 *        word is printable, and English text comes to about three letters a token.
 * The control tokens keep their distance from the end of the vocabulary, which gives the published
 * ids at the published size. */
#include <assert.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cli/model_texts.h"

enum {
    N_BYTES = 256,
    N_LETTERS = 26,
    N_ROOTS = 1 + N_LETTERS, /* the space, then the letters */
    WORD_BYTES_MAX = 16
};

struct added_token {
    const char *content;
    bool is_special; /* left out of decoded text when that is asked for */
};

/* In order of their ids. */
static const struct added_token added_tokens[] = {
    {"<|endoftext|>", true},
    {"<|im_start|>", true},
    {"<|im_end|>", true},
    {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true},
    {"<|box_start|>", true},
    {"<|box_end|>", true},
    {"<|quad_start|>", true},
    {"<|quad_end|>", true},
    {"<|vision_start|>", true},
    {"<|vision_end|>", true},
    {"<|vision_pad|>", true},
    {"<|image_pad|>", true},
    {"<|video_pad|>", true},
    {"<tool_call>", false},
    {"</tool_call>", false},
    {"<|fim_prefix|>", false},
    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},
    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},
    {"<|file_sep|>", false},
    {"<tool_response>", false},
    {"</tool_response>", false},
    {"<think>", false},
    {"</think>", false},
    {"<|audio_start|>", true}, /* from here on Qwen3.5 only */
    {"<|audio_end|>", true},
    {"<tts_pad>", true},
    {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},
    {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};
enum {
    N_ADDED = sizeof added_tokens / sizeof added_tokens[0],
    N_ADDED_QWEN3_NEXT = 26,
    /* Ids from the first control token to the end of the vocabulary, unused ones included. */
    TAIL_QWEN3_5 = 248320 - 248044,
    TAIL_QWEN3_NEXT = 151936 - 151643
};
_Static_assert((int)SHAPE_VOCAB_MIN >= N_BYTES + (int)TAIL_QWEN3_NEXT,
               "room for the bytes and the tail");
_Static_assert(TAIL_QWEN3_5 >= N_ADDED && TAIL_QWEN3_NEXT >= N_ADDED_QWEN3_NEXT, "the tail");

static bool is_next(const struct model_shape *s)
{
    return s->family == FAMILY_QWEN3_NEXT;
}

static size_t first_added(const struct model_shape *s)
{
    size_t tail = is_next(s) ? TAIL_QWEN3_NEXT : TAIL_QWEN3_5;

    assert(s->vocab >= SHAPE_VOCAB_MIN);
    return s->vocab - tail;
}

size_t model_token_id(const struct model_shape *s, enum made_token t)
{
    return first_added(s) + (size_t)t;
}

static void write_added(struct buf *out, const struct model_shape *s)
{
    size_t n = is_next(s) ? N_ADDED_QWEN3_NEXT : N_ADDED;

    for (size_t i = 0; i < n; i++) {
        buf_appendf(out,
                    "%s\n    {\"id\": %zu, \"content\": \"%s\", \"single_word\": false, "
                    "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %s}",
                    i ? "," : "", first_added(s) + i, added_tokens[i].content,
                    added_tokens[i].is_special ? "true" : "false");
    }
}

/* ---- vocabulary ---- */

/* Printable Latin-1 stands for itself in a byte-level vocabulary, and comes first. */
static bool byte_is_printable(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

static void write_byte(struct buf *out, uint32_t cp, size_t id)
{
    char text[4];
    size_t n = utf8_encode(text, cp);

    buf_append_str(out, id ? ",\n      " : "\n      ");
    json_write_string(out, text, n);
    buf_appendf(out, ": %zu", id);
}

static void write_bytes(struct buf *out)
{
    size_t id = 0;
    uint32_t stand_in = 256; /* the characters for the other bytes */

    for (unsigned b = 0; b < N_BYTES; b++) {
        if (byte_is_printable(b)) {
            write_byte(out, b, id++);
        }
    }
    for (unsigned b = 0; b < N_BYTES; b++) {
        if (!byte_is_printable(b)) {
            write_byte(out, stand_in++, id++);
        }
    }
}

static size_t word_parent(size_t node)
{
    return (node - N_ROOTS) / N_LETTERS;
}

static char word_letter(size_t node)
{
    return (char)('a' + (node - N_ROOTS) % N_LETTERS);
}

/* The text of a node, written from the end of the array; returns where it begins. */
static const char *word_text(char text[WORD_BYTES_MAX], size_t node)
{
    char *p = text + WORD_BYTES_MAX - 1;

    *p = '\0';
    while (node >= N_ROOTS) { /* at most log26 of the vocabulary's limit */
        assert(p > text + 2);
        *--p = word_letter(node);
        node = word_parent(node);
    }
    if (node > 0) {
        *--p = (char)('a' + node - 1);
    } else { /* U+0120 stands for the space */
        *--p = '\xa0';
        *--p = '\xc4';
    }
    return p;
}

static void write_words(struct buf *out, size_t n_words)
{
    char text[WORD_BYTES_MAX];

    for (size_t i = 0; i < n_words; i++) {
        buf_appendf(out, ",\n      \"%s\": %zu", word_text(text, N_ROOTS + i), N_BYTES + i);
    }
}

static void write_merges(struct buf *out, size_t n_words)
{
    char text[WORD_BYTES_MAX];

    for (size_t i = 0; i < n_words; i++) {
        size_t node = N_ROOTS + i;

        buf_appendf(out, "%s\n      [\"%s\", \"%c\"]", i ? "," : "",
                    word_text(text, word_parent(node)), word_letter(node));
    }
}

/* ---- the file ---- */

#define WORDS_AND_MARKS                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}"      \
    "| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*"
#define WORDS_ONLY                                                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}"                \
    "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*"
#define SPACES "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

void model_tokenizer_write(struct buf *out, const struct model_text_input *in)
{
    const struct model_shape *s = in->shape;
    size_t n_words = first_added(s) - N_BYTES;

    buf_append_str(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n"
                        "  \"padding\": null,\n  \"added_tokens\": [");
    write_added(out, s);
    buf_append_str(out, "\n  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n"
                        "  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n"
                        "    {\"type\": \"Split\", \"pattern\": {\"Regex\": \"");
    buf_append_str(out, is_next(s) ? WORDS_ONLY SPACES : WORDS_AND_MARKS SPACES);
    buf_append_str(out, "\"}, \"behavior\": \"Isolated\", \"invert\": false},\n"
                        "    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                        "\"trim_offsets\": false, \"use_regex\": false}]},\n"
                        "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                        "false, \"trim_offsets\": false, \"use_regex\": false},\n"
                        "  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                        "\"trim_offsets\": false, \"use_regex\": false},\n"
                        "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
                        "    \"unk_token\": null,\n    \"continuing_subword_prefix\": \"\",\n"
                        "    \"end_of_word_suffix\": \"\",\n    \"fuse_unk\": false,\n"
                        "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n"
                        "    \"vocab\": {");
    write_bytes(out);
    write_words(out, n_words);
    buf_append_str(out, "\n    },\n    \"merges\": [");
    write_merges(out, n_words);
    buf_append_str(out, "\n    ]\n  }\n}\n");
}
