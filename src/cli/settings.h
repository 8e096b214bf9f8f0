/* settings.h - what was asked for and what was done, side by side.
 *
 * Place: cli. Filled while values are resolved, printed once at start, and handed to /server_info. So
 *        no value is changed silently: whoever changes one adds a row with the reason. */
#ifndef CLI_SETTINGS_H
#define CLI_SETTINGS_H

#include "base/json.h"
#include "base/log.h"

enum { SETTINGS_MAX = 64, SETTING_TEXT_BYTES = 128 };

struct setting {
    const char *name; /* the flag, static */
    char asked[SETTING_TEXT_BYTES];
    char done[SETTING_TEXT_BYTES];
    const char *why; /* static, or NULL */
    bool is_warning; /* something asked for was not done */
};

struct settings {
    struct setting rows[SETTINGS_MAX];
    size_t n;
};

/* asked NULL or "": not given. Rows past SETTINGS_MAX are dropped (a test counts them). */
void settings_add(struct settings *s, const char *name, const char *asked, const char *why,
                  const char *done_fmt, ...) __attribute__((format(printf, 5, 6)));
void settings_add_size(struct settings *s, const char *name, size_t asked, const char *why,
                       size_t done); /* asked 0: not given */
/* The last row is not what the user asked for: print it as a warning, also when quiet. */
void settings_warn(struct settings *s);

/* The table, as log lines. quiet: only the warnings. */
void settings_print(const struct settings *s, const struct log *log, bool quiet);

/* {"context_length": 8192, ...}: what was done; numbers as numbers. NULL when out of memory. */
struct json_object *settings_json(const struct settings *s);

#endif
