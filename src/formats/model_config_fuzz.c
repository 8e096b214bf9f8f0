/* model_config_fuzz.c - fuzz target: config.json and generation_config.json. A member "override" of the
 * input is laid over the rest. What is accepted must keep the promises that later code relies on. */
#include <stdlib.h>

#include "formats/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct model_config *c)
{
    size_t n_full = 0;

    if (c->n_kv_heads == 0 || c->n_heads % c->n_kv_heads != 0 || c->rope.n_dims % 2 != 0 ||
        c->rope.n_dims > c->head_dim || c->linear_n_value_heads % c->linear_n_key_heads != 0 ||
        c->n_experts_per_token > c->n_experts || c->n_layers > CONFIG_LAYERS_MAX ||
        c->n_heads * c->head_dim > CONFIG_DIM_MAX || !(c->rope.theta >= 1.0)) {
        abort();
    }
    for (size_t i = 0; i < c->n_layers; i++) {
        n_full += c->layer_is_full[i];
    }
    if (n_full > c->n_layers) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_object *o;
    struct model_config c;
    struct generation_config g;
    struct error err;

    if (json_parse(&o, (const char *)data, size, &err) != OK) {
        return 0;
    }
    if (model_config_read(&c, o, json_get(o, "override"), &err) == OK) {
        check(&c);
        model_config_release(&c);
    }
    (void)generation_config_read(&g, o, &err);
    json_object_put(o);
    return 0;
}
