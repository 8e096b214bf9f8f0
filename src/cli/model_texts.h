/* model_texts.h - the small files of a made-up checkpoint: configuration, tokenizer, chat template.
 *
 * Place: cli; written by model_maker.c. The configuration has the fields and the nesting of the
 *        published files; the tokenizer has the family's vocabulary size and control tokens, over
 *        made-up words. */
#ifndef CLI_MODEL_TEXTS_H
#define CLI_MODEL_TEXTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "cli/model_shapes.h"

struct model_text_input {
    const struct model_shape *shape;
    const struct model_variant *variant;
    uint64_t seed;
};

/* One file; write appends its content. Out of memory shows in buf_ok(). */
struct model_text {
    const char *name;
    void (*write)(struct buf *out, const struct model_text_input *in);
};

/* config.json is the last: a folder without it is no model yet. */
extern const struct model_text model_texts[];
extern const size_t model_texts_count;

/* The control tokens that other files name, as ids of the shape's vocabulary. */
enum made_token {
    MADE_ENDOFTEXT,
    MADE_IM_START,
    MADE_IM_END,
    MADE_VISION_START = 9,
    MADE_VISION_END = 10,
    MADE_IMAGE_PAD = 12,
    MADE_VIDEO_PAD = 13
};
size_t model_token_id(const struct model_shape *s, enum made_token t);

/* tokenizer.json (model_tokenizer.c). */
void model_tokenizer_write(struct buf *out, const struct model_text_input *in);

#endif
