/* http_fuzz.c - bytes through parser, router and request fields, without sockets or engine.
 *
 * The input is cut in two at a place that its first byte chooses; the requests that come out of it
 * must be those that come out of the whole. Bodies of chat and completion requests go on to the
 * field table. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/http.h"
#include "server/params.h"

enum { BODY_MAX = 4096 };

/* What a run saw, as one number. */
static uint64_t mix(uint64_t hash, const void *data, size_t n)
{
    const unsigned char *bytes = data;

    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash ^ n;
}

static uint64_t read_body(uint64_t hash, const struct http_request *r)
{
    static const struct params_context context = {.vocab_size = 1000};
    const enum api api = r->path.len % 2 == 0 ? API_CHAT : API_COMPLETIONS;
    struct json_object *body = NULL;
    struct params p;
    struct error err = {0};

    if (json_parse(&body, r->body.len > 0 ? r->body.data : "", r->body.len, &err) != OK) {
        return mix(hash, err.text, strlen(err.text));
    }
    if (params_parse(&p, api, body, &context, &err) == OK) {
        hash = mix(hash, &p.max_tokens, sizeof p.max_tokens);
        params_release(&p);
    } else {
        hash = mix(hash, err.text, strlen(err.text));
    }
    json_object_put(body);
    return hash;
}

static uint64_t run(const char *data, size_t size, size_t cut)
{
    struct http_parser p;
    uint64_t hash = 14695981039346656037u;
    enum http_event event = HTTP_MORE;
    size_t at = 0;

    http_init(&p, BODY_MAX);
    while (event != HTTP_FAILED) {
        size_t end = at < cut ? cut : size, used;
        event = http_push(&p, data + at, end - at, &used);
        if (used > end - at) {
            abort();
        }
        at += used;
        if (event == HTTP_COMPLETE) {
            hash = mix(hash, p.request.path.ptr, p.request.path.len);
            hash = read_body(mix(hash, p.request.body.data, p.request.body.len), &p.request);
            http_reset(&p);
        } else if (event == HTTP_MORE && at == size) {
            break;
        }
    }
    hash = event == HTTP_FAILED ? mix(hash, &p.status, sizeof p.status) : hash;
    http_release(&p);
    return hash;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;
    size_t cut;

    if (size < 1) {
        return 0;
    }
    cut = (size - 1) * data[0] / 256;
    text = malloc(size); /* a block of its own, so that an overread is seen */
    if (!text) {
        return 0;
    }
    memcpy(text, data + 1, size - 1);
    if (run(text, size - 1, size - 1) != run(text, size - 1, cut)) {
        abort();
    }
    free(text);
    return 0;
}
