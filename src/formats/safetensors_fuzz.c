/* safetensors_fuzz.c - fuzz target: a .safetensors file from memory. What is accepted must be readable
 * to its last byte and found by its name. */
#include <stdlib.h>
#include <string.h>

#include "formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors *st;
    struct error err;
    size_t covered = 0;

    if (safetensors_open_memory(&st, data, size, "fuzz", &err) != OK) {
        return 0;
    }
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const struct safetensors_entry *e = safetensors_at(st, i);
        volatile uint8_t sink = 0;

        for (size_t k = 0; k < e->n_bytes; k++) {
            sink = (uint8_t)(sink + ((const uint8_t *)e->tensor.data)[k]);
        }
        if (tensor_count(&e->tensor) * dtype_bytes(e->tensor.dtype) != e->n_bytes ||
            safetensors_find(st, e->name) != e) {
            abort();
        }
        covered += e->n_bytes;
    }
    if (covered > size) {
        abort(); /* tensors overlap */
    }
    safetensors_close(st);
    return 0;
}
