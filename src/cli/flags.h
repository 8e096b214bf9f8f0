/* flags.h - the flag parser: one table per command.
 *
 * Place: cli. Rules (as users of SGLang know them): --flag value, --flag=value, unique prefixes, last
 *        one wins, booleans take no value, lists are space separated, sizes take K M G T and Ki Mi
 *        Gi Ti. An unknown flag is ERR_USAGE with the nearest name. --help prints the table and the
 *        command's examples. A flag whose `no_effect` is set is accepted and noted with one line. */
#ifndef CLI_FLAGS_H
#define CLI_FLAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

struct flag_result {
    char **positional; /* into argv */
    size_t n_positional;
    bool help;                  /* --help was given and printed: the command returns 0 */
    const struct flag *seen[512]; /* flags given, in order, without repeats */
    size_t n_seen;
};

/* argv: the arguments after the subcommand's name. Strings borrow argv (or the config file's memory,
 * kept for the process). */
enum status flags_parse(struct flag_result *out, const struct command *cmd,
                        const struct flag_group *groups, size_t n_groups, size_t positional_max,
                        int argc, char **argv, const struct log *log, struct error *err);
bool flags_given(const struct flag_result *r, const char *name);

#endif
