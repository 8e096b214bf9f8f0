/* flags_fuzz.c - a configuration file of arbitrary bytes, against the tables of `serve`. */
#include "cli/flags_internal.h"
#include "cli/model_setup.h"
#include "cli/serve_flags.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct command command = {.name = "fuzz", .summary = "", .examples = ""};
    struct model_flags model = {0};
    struct serve_flags serve = {0};
    struct flag_result result = {0};
    struct error err = {0};
    struct flags_ctx ctx = {
        .cmd = &command,
        .groups = {{"Model", model_flag_table, model_flag_count, &model},
                   {"Server", serve_flag_table, serve_flag_count, &serve},
                   {"General", NULL, 0, NULL}},
        .n_groups = 3,
        .n_own = 2,
        .result = &result,
    };
    if (size > FLAGS_CONFIG_BYTES_MAX) {
        return 0;
    }
    arena_init(&result.memory, 0);
    (void)flags_read_config_text(&ctx, (const char *)data, size, &err);
    flags_release(&result);
    return 0;
}
