/* families.h - the list of family readers.
 *
 * Place: model. A new family is one file beside this one and its line in families.c. */
#ifndef MODEL_FAMILIES_H
#define MODEL_FAMILIES_H

#include "model/spec.h"

extern const struct model_family_reader family_qwen3_5, family_qwen3_5_moe, family_qwen3_next;

extern const struct model_family_reader *const model_families[];
extern const size_t model_families_count;

#endif
