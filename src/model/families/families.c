/* families.c - the list of family readers, and nothing else. */
#include "model/families/families.h"

const struct model_family_reader *const model_families[] = {
    &family_qwen3_5,
    &family_qwen3_5_moe,
    &family_qwen3_next,
};
const size_t model_families_count = sizeof model_families / sizeof model_families[0];
