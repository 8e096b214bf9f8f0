/* request_fuzz.c - bodies through JSON and the field table of both endpoints.
 *
 * Checks what later code relies on: ranges hold, counts fit, an error names what failed. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "runtime/engine.h"
#include "server/params.h"

enum { VOCAB = 4096 };

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check(const struct params *p)
{
    require(p->n >= 1 && p->n <= CHOICES_MAX);
    require(p->n_stop <= STOP_STRINGS_MAX && p->n_stop_ids <= STOP_IDS_MAX);
    for (size_t i = 0; i < p->n_stop; i++) {
        require(p->stop[i].len > 0 && p->stop[i].len <= STOP_STRING_BYTES_MAX);
    }
    for (size_t i = 0; i < p->n_stop_ids; i++) {
        require(p->stop_ids[i] >= 0 && p->stop_ids[i] < VOCAB);
    }
    for (size_t i = 0; i < p->sampling.n_bias; i++) {
        require(p->sampling.bias[i].id >= 0 && p->sampling.bias[i].id < VOCAB);
        require(fabsf(p->sampling.bias[i].bias) <= 100.0f);
    }
    require(p->sampling.temperature >= 0 && isfinite(p->sampling.temperature));
    require(p->sampling.top_p > 0 && p->sampling.top_p <= 1);
    require(p->sampling.top_k == -1 || p->sampling.top_k >= 1);
    require(p->sampling.n_top_logprobs <= TOP_LOGPROBS_MAX);
    require(p->api == API_CHAT || p->prompt);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct params_context context = {.vocab_size = VOCAB};
    static const enum api apis[] = {API_CHAT, API_COMPLETIONS};
    struct json_object *body = NULL;

    if (json_parse(&body, (const char *)data, size, NULL) != OK) {
        return 0;
    }
    for (size_t i = 0; i < 2; i++) {
        struct params p;
        struct error err = {0};
        if (params_parse(&p, apis[i], body, &context, &err) == OK) {
            check(&p);
            params_release(&p);
        } else {
            require(err.text[0] != '\0' && err.code != OK);
        }
    }
    json_object_put(body);
    return 0;
}
