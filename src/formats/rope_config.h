/* rope_config.h - the rotary embedding's part of config.json.
 *
 * Place: formats; called by model_config.c. */
#ifndef FORMATS_ROPE_CONFIG_H
#define FORMATS_ROPE_CONFIG_H

#include "formats/model_config.h"

/* text: the object with the text model's fields; outer: the top of a nested file, or NULL when flat.
 * c->head_dim, family and max_positions are set already; fills c->rope, and raises max_positions
 * when yarn stretches the context. */
enum status rope_config_read(struct model_config *c, struct json_object *text,
                             struct json_object *outer, struct error *err);

#endif
