/* gptq_config_fuzz.c - fuzz target: quantization_config with hostile rules, asked about real names. */
#include <stdlib.h>

#include "formats/gptq.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"lm_head", "mtp.layers.0.mlp.experts.3.up_proj",
                                        "model.language_model.layers.0.linear_attn.in_proj_qkv",
                                        ""};
    struct json_object *o;
    struct gptq_config *c;
    struct error err;

    if (json_parse(&o, (const char *)data, size, &err) != OK) {
        return 0;
    }
    if (gptq_config_new(&c, o, &err) == OK && c) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            struct gptq_settings s;

            if (gptq_config_for(&s, c, names[i], &err) == OK &&
                ((s.bits != 4 && s.bits != 8) || s.group_size == 0 || s.group_size < -1)) {
                abort();
            }
        }
        gptq_config_free(c);
    }
    json_object_put(o);
    return 0;
}
