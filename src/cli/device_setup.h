/* device_setup.h - where a model runs: on a card or on the CPU, decided from the flags and what is there.
 *
 * Place: cli; used by model_setup.c, before the model's types are resolved. */
#ifndef CLI_DEVICE_SETUP_H
#define CLI_DEVICE_SETUP_H

#include <stdbool.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/status.h"
#include "cli/model_setup.h"
#include "cli/placement.h"
#include "cli/settings.h"

/* The card's backend in *out, or NULL: the model runs on the CPU. Rows of settings say what was decided, and
 * for each flag of the card that it has no effect when there is none. ERR_DEVICE: --device cuda, and no card
 * can be used. */
enum status device_open(struct backend **out, const struct model_flags *f, struct settings *s,
                        struct error *err);

/* The CPU's backend: kernels where the model runs there, threads for loading in any case. */
enum status cpu_open(struct backend **out, const struct model_flags *f,
                     enum cpu_activations activations, bool is_used, struct settings *s,
                     struct error *err);

/* Bytes of the card that this process may use: what was free at the start, at most --gpu-memory-gb. */
size_t device_memory_base(const struct backend *card, const struct model_flags *f);

/* The card as a placement sees it; before anything was loaded. */
struct placement_target device_target(struct backend *card, const struct model_flags *f);

#endif
