/* offload_flags_fuzz.c - arbitrary text as --cpu-offload-gb and --gpu-expert-slots. */
#include <stdlib.h>
#include <string.h>

#include "cli/offload_flags.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[256];
    enum budget_offload offload;
    enum budget_slots slots;
    size_t n_bytes;
    double n;

    if (size >= sizeof text) {
        return 0;
    }
    memcpy(text, data, size);
    text[size] = '\0';
    if (offload_limit_read(&offload, &n_bytes, text, NULL) == OK &&
        n_bytes > (size_t)1 << 46) { /* 65,536 GiB */
        abort();
    }
    if (offload_slots_read(&slots, &n, text, NULL) == OK &&
        (!(n >= 0) || (slots == BUDGET_SLOTS_PERCENT && n > 100))) {
        abort();
    }
    return 0;
}
