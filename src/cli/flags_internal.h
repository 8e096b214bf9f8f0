/* flags_internal.h - what the files of the flag parser share.
 *
 * Place: cli; included by flags*.c only. */
#ifndef CLI_FLAGS_INTERNAL_H
#define CLI_FLAGS_INTERNAL_H

#include "base/buf.h"
#include "cli/flags.h"

enum { FLAG_NAME_BYTES_MAX = 64, FLAG_GROUPS_MAX = 16 };

/* A flag with the struct that its value goes into. */
struct flag_place {
    const struct flag *flag;
    void *options;
};

struct flags_ctx {
    const struct command *cmd;
    struct flag_group groups[FLAG_GROUPS_MAX]; /* the command's, then the built-in ones */
    size_t n_groups, n_own;
    size_t positional_max;
    struct flag_result *result;
};

/* Exact name or alias. */
bool flags_find(struct flag_place *out, const struct flags_ctx *ctx, const char *name, size_t len);

/* The flag that arg names; `len` bytes after the dashes count. Exact, or a unique prefix. */
enum status flags_resolve(struct flag_place *out, const struct flags_ctx *ctx, const char *arg,
                          size_t len, struct error *err);

/* The known name nearest to `name`, or NULL when nothing is near. */
const char *flags_nearest(const struct flags_ctx *ctx, const char *name);

/* One use of a flag: text is NULL for a boolean, items for a list. */
enum status flags_apply(struct flags_ctx *ctx, const struct flag_place *place, const char *text,
                        char **items, size_t n_items, enum flag_source source, struct error *err);

/* Whether text means yes or no ("true", "1", "on", ...). */
bool flags_read_bool(bool *out, const char *text);

enum status flags_read_env(struct flags_ctx *ctx, struct error *err);

/* err must not be NULL. The groups end with the built-in one, at index n_own. */
enum status flags_read_config(struct flags_ctx *ctx, const char *path, struct error *err);
enum status flags_read_config_text(struct flags_ctx *ctx, const char *text, size_t len,
                                   struct error *err);

/* Call fn for every name of a flag: its own, then the aliases; stops when fn returns false. */
typedef bool flag_name_fn(void *ctx, const char *name, size_t len);
void flag_each_name(const struct flag *flag, flag_name_fn *fn, void *ctx);

void flags_print_help(const struct flags_ctx *ctx);
void flags_print_man(const struct flags_ctx *ctx);
void flags_usage_line(struct buf *out, const struct flags_ctx *ctx);

#endif
