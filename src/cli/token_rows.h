/* token_rows.h - rows of token ids to measure loss on: from a file of rows, a recording, or a text.
 *
 * Place: cli; each row is one sequence, which starts from nothing. */
#ifndef CLI_TOKEN_ROWS_H
#define CLI_TOKEN_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "text/tokenizer.h"

enum { TOKEN_ROWS_TOKENS_MAX = 1 << 24, TOKEN_ROWS_TEXT_MAX = 64 << 20 };

struct token_row {
    const int32_t *ids; /* within the rows' memory */
    size_t n;           /* at least 2 */
};

struct token_rows {
    int32_t *ids;
    struct token_row *rows;
    size_t n_rows, n_ids;
};

/* Every integer tensor of a safetensors file; its last dimension is the length of its rows. */
enum status token_rows_of_file(struct token_rows *out, const char *path, struct error *err);

/* loss_text_tokens of a golden.json: loss_rows rows of loss_row_tokens. recorded may be NULL. */
enum status token_rows_of_golden(struct token_rows *out, double *recorded, const char *path,
                                 struct error *err);

/* A text, cut into rows of row_tokens and a shorter last one. */
enum status token_rows_of_text(struct token_rows *out, const struct tokenizer *t, const char *path,
                               size_t row_tokens, struct error *err);

/* Keep the first rows, so that n_predicted tokens (all but each row's first) or fewer remain; the last
 * row is shortened. */
void token_rows_limit(struct token_rows *r, size_t n_predicted);
size_t token_rows_predicted(const struct token_rows *r);

void token_rows_release(struct token_rows *r); /* also after a failure; accepts a zeroed one */

#endif
