/* hub_cache.c - where downloaded models lie. See model_setup.h.
 *
 * The order is that of the tools that fill the cache: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE,
 * $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/model_setup.h"

static const struct {
    const char *variable, *below;
} places[] = {
    {"HF_HUB_CACHE", ""},
    {"HUGGINGFACE_HUB_CACHE", ""},
    {"HF_HOME", "/hub"},
    {"XDG_CACHE_HOME", "/huggingface/hub"},
    {"HOME", "/.cache/huggingface/hub"},
};
enum { N_PLACES = sizeof places / sizeof places[0] };

const char *const *hub_cache_dirs(void)
{
    /* The environment does not change while the program runs; writing the same again is harmless. */
    static char paths[N_PLACES][PATH_MAX];
    static const char *list[N_PLACES + 1];
    size_t n = 0;
    for (size_t i = 0; i < N_PLACES; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !value[0]) {
            continue;
        }
        int len = snprintf(paths[n], PATH_MAX, "%s%s", value, places[i].below);
        if (len > 0 && len < PATH_MAX) {
            list[n] = paths[n];
            n++;
        }
    }
    list[n] = NULL;
    return list;
}
