/* tokenizer_bench.c - how fast a tokenizer loads, encodes and decodes, and how time grows.
 *
 * Usage: tokenizer_bench TOKENIZER.JSON [TEXT...]. A text is cut into documents of about 4 KB, each
 *        encoded by a call of its own, as requests would be. Then ten shapes of text that have been
 *        slow somewhere, at 1 and 2 MB. CPU time of one thread, best of several runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/file_map.h"
#include "text/detok.h"

enum { RUNS = 5, DOCUMENT_BYTES = 4096, TEXT_BYTES_MAX = 1 << 30, SHAPE_BYTES = 1 << 20 };

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void die(const struct error *err)
{
    fprintf(stderr, "tokenizer_bench: %s\n", err->text);
    exit(1);
}

/* The next document: about DOCUMENT_BYTES, up to a line end if there is one nearby. */
static struct str next_document(struct str *text)
{
    struct str document = *text;
    const char *end;

    if (document.len > DOCUMENT_BYTES) {
        end = memchr(text->ptr + DOCUMENT_BYTES, '\n', text->len - DOCUMENT_BYTES);
        document.len = end ? (size_t)(end + 1 - text->ptr) : text->len;
    }
    text->ptr += document.len;
    text->len -= document.len;
    return document;
}

static void encode_all(struct token_ids *ids, const struct tokenizer *t, struct str text)
{
    struct error err = {0};

    ids->n = 0;
    while (text.len > 0) {
        if (tokenizer_encode_text(ids, t, next_document(&text), &err) != OK) {
            die(&err);
        }
    }
}

static void decode_all(struct buf *out, const struct token_ids *ids, const struct tokenizer *t)
{
    struct detok d;

    buf_clear(out);
    detok_init(&d, t, false);
    for (size_t i = 0; i < ids->n; i++) {
        detok_push(&d, ids->ids[i], out);
    }
    detok_finish(&d, out);
}

static void bench_text(const struct tokenizer *t, const char *path)
{
    struct token_ids ids = {0};
    struct buf out = {0};
    struct error err = {0};
    double encode = 1e9, decode = 1e9;
    char *text;
    size_t len;

    if (file_read(&text, &len, path, TEXT_BYTES_MAX, &err) != OK) {
        die(&err);
    }
    for (int i = 0; i < RUNS; i++) {
        double a = cpu_seconds(), b, c;
        encode_all(&ids, t, (struct str){text, len});
        b = cpu_seconds();
        decode_all(&out, &ids, t);
        c = cpu_seconds();
        encode = b - a < encode ? b - a : encode;
        decode = c - b < decode ? c - b : decode;
    }
    printf("%-32s %8zu tokens  encode %6.2f Mtok/s %6.1f MB/s  decode %6.1f Mtok/s\n", path, ids.n,
           (double)ids.n / encode * 1e-6, (double)len / encode * 1e-6,
           (double)ids.n / decode * 1e-6);
    token_ids_release(&ids);
    buf_release(&out);
    free(text);
}

static void bench_load(const char *path)
{
    struct error err = {0};
    double best = 1e9;

    for (int i = 0; i < RUNS; i++) {
        struct tokenizer *t;
        double start = cpu_seconds(), seconds;
        if (tokenizer_load(&t, path, &err) != OK) {
            die(&err);
        }
        seconds = cpu_seconds() - start;
        best = seconds < best ? seconds : best;
        tokenizer_free(t);
    }
    printf("load %.1f ms\n", best * 1e3);
}

static double shape_seconds(const struct tokenizer *t, const char *unit, size_t n_bytes)
{
    struct buf text = {0};
    struct error err = {0};
    double best = 1e9;

    while (text.len < n_bytes) {
        buf_append_str(&text, unit);
    }
    for (int i = 0; i < 3; i++) {
        struct token_ids ids = {0};
        double start = cpu_seconds(), seconds;
        if (tokenizer_encode_text(&ids, t, (struct str){buf_cstr(&text), text.len}, &err) != OK) {
            die(&err);
        }
        seconds = cpu_seconds() - start;
        best = seconds < best ? seconds : best;
        token_ids_release(&ids);
    }
    buf_release(&text);
    return best;
}

static void bench_shapes(const struct tokenizer *t)
{
    static const struct {
        const char *name, *unit;
    } shapes[] = {{"one letter", "a"},
                  {"blanks", " "},
                  {"line ends", "\n"},
                  {"blank and line end", " \n"},
                  {"digits", "7"},
                  {"symbols", "-="},
                  {"two letters", "abaab"},
                  {"marks in two orders", "\xcc\x81\xcc\xa3"},
                  {"ideographs", "\xe4\xb8\xad\xe6\x96\x87"},
                  {"nearly a control token", "<|im_start"}};

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        double one = shape_seconds(t, shapes[i].unit, SHAPE_BYTES);
        double two = shape_seconds(t, shapes[i].unit, 2 * (size_t)SHAPE_BYTES);
        printf("%-24s 1 MB %7.1f ms  2 MB %7.1f ms  x %.2f\n", shapes[i].name, one * 1e3, two * 1e3,
               two / one);
    }
}

int main(int argc, char **argv)
{
    struct tokenizer *t;
    struct error err = {0};

    if (argc < 2) {
        fprintf(stderr, "usage: tokenizer_bench TOKENIZER.JSON [TEXT...]\n");
        return 2;
    }
    bench_load(argv[1]);
    if (tokenizer_load(&t, argv[1], &err) != OK) {
        die(&err);
    }
    for (int i = 2; i < argc; i++) {
        bench_text(t, argv[i]);
    }
    bench_shapes(t);
    tokenizer_free(t);
    return 0;
}
