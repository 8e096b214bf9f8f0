/* config_fields.h - range-checked members of a configuration object.
 *
 * Place: formats; shared by model_config.c, rope_config.c and gptq_config.c.
 * Every failure is ERR_FORMAT (or ERR_UNSUPPORTED) with the field's name in text and param. */
#ifndef FORMATS_CONFIG_FIELDS_H
#define FORMATS_CONFIG_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "base/tensor.h"

enum config_need { CONFIG_OPTIONAL, CONFIG_REQUIRED };

/* Absent and optional: *out unchanged. */
enum status config_size(size_t *out, struct json_object *o, const char *key, size_t min, size_t max,
                        enum config_need need, struct error *err);

/* min and max belong to the range; NaN and infinity never do. */
enum status config_double(double *out, struct json_object *o, const char *key, double min,
                          double max, enum config_need need, struct error *err);

/* A token id in [0, limit), or a list of at most max of them. Absent: *n unchanged. */
enum status config_token_ids(int32_t *ids, size_t *n, size_t max, struct json_object *o,
                             const char *key, size_t limit, struct error *err);

/* "bfloat16", "torch.float16", ...; "auto" is DTYPE_NONE. Absent: *out unchanged. */
enum status config_dtype(enum dtype *out, struct json_object *o, const char *key,
                         struct error *err);

enum status config_missing(const char *key, struct error *err);

#endif
