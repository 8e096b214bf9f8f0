/* flags.h - the flag parser: one table per command.
 *
 * Place: cli. Rules (as users of SGLang know them): --flag value, --flag=value, unique prefixes, last
 *        one wins, booleans take no value, lists are space separated, `--` ends the flags, sizes take
 *        K M G T (decimal) and Ki Mi Gi Ti. A value may begin with '-' when it is a negative number
 *        or holds a space, or in the form --flag=value. An unknown flag is ERR_USAGE with the
 *        nearest name. A flag whose `no_effect` is set is checked, not stored, and noted with one
 *        line.
 * Order: --flag wins over the environment (SPILLWAY_<FLAG_NAME>; an empty one counts as absent), and
 *        that over --config FILE (YAML: keys as flags, with - or _, lists as sequences, `true` means
 *        present). Every command understands --help and --config besides its table. */
#ifndef CLI_FLAGS_H
#define CLI_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/log.h"
#include "base/status.h"
#include "cli/command.h"

enum flag_kind {
    FLAG_STRING, /* const char * */
    FLAG_BOOL,   /* bool, true when present */
    FLAG_SIZE,   /* size_t, suffixes allowed */
    FLAG_INT,    /* int64_t, suffixes allowed */
    FLAG_DOUBLE, /* double */
    FLAG_CHOICE, /* const char *, one of choices */
    FLAG_LIST    /* struct flag_list */
};

enum { FLAGS_MAX = 512, FLAGS_CONFIG_BYTES_MAX = 1 << 20 };

struct flag_list {
    char **items;
    size_t n;
};

struct flag {
    const char *name;    /* "model-path" */
    const char *aliases; /* "model" or "a,b" or NULL */
    enum flag_kind kind;
    size_t offset;         /* of the value in the command's options struct */
    const char *metavar;   /* "PATH" */
    const char *choices;   /* "auto|float16", FLAG_CHOICE only */
    const char *help;      /* one line */
    const char *no_effect; /* why it does nothing here, or NULL */
    double min, max;       /* numbers only, checked when min < max */
};

#define FLAG_OFFSET(type, member) offsetof(type, member)

/* Flags common to all commands that load a model: see model_setup.h. A table is a list of groups. */
struct flag_group {
    const char *title;
    const struct flag *flags;
    size_t n_flags;
    void *options; /* the struct that the offsets point into */
};

enum flag_source { FLAG_FROM_CONFIG, FLAG_FROM_ENV, FLAG_FROM_ARGV };

struct flag_result {
    char **positional; /* into argv, which is permuted */
    size_t n_positional;
    bool help;                          /* --help was given and printed: the command returns 0 */
    const struct flag *seen[FLAGS_MAX]; /* flags given, in order, without repeats */
    size_t n_seen;
    const char *seen_text[FLAGS_MAX]; /* the value as given; "" for booleans */
    enum flag_source source[FLAGS_MAX];
    struct arena memory; /* lists and config texts; see flags_release */
};

/* argv: the arguments after the subcommand's name. Strings in the options borrow argv, the
 * environment, or out->memory. On ERR_USAGE one usage line was printed on stderr; the caller prints
 * the error. Notes about flags without effect go to log (NULL: none, see flags_print_notes). */
enum status flags_parse(struct flag_result *out, const struct command *cmd,
                        const struct flag_group *groups, size_t n_groups, size_t positional_max,
                        int argc, char **argv, const struct log *log, struct error *err);

/* Frees what the option values may point to, so call it last. Accepts a zeroed result. */
void flags_release(struct flag_result *r);

bool flags_given(const struct flag_result *r, const char *name);
bool flags_typed(const struct flag_result *r, const char *name); /* on the command line itself */
const char *flags_text(const struct flag_result *r,
                       const char *name); /* as given; NULL when absent */

/* One warning for each flag given that has no effect. */
void flags_print_notes(const struct flag_result *r, const struct log *log);

/* Numbers as flags write them; the error names `what`. */
enum status flag_read_size(size_t *out, const char *text, const char *what, struct error *err);
enum status flag_read_int(int64_t *out, const char *text, const char *what, struct error *err);
enum status flag_read_double(double *out, const char *text, const char *what, struct error *err);

#endif
