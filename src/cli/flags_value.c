/* flags_value.c - the text of a flag's value as a number. See flags.h.
 *
 * Idea: read the digits exactly (128 bits hold any digits times any suffix that still fits), so that
 *       "1.5K" is 1500 and "16777217" is not rounded through a double. A decimal suffix may follow a
 *       fraction when the product is whole; the binary ones take whole numbers only. Suffixes are
 *       case-sensitive, since "m" could be meant as milli. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/flags_internal.h"

struct suffix {
    const char *text;
    uint64_t factor;
    bool is_binary;
};

static const struct suffix suffixes[] = {
    {"", 1, false},
    {"k", 1000, false},
    {"K", 1000, false},
    {"M", 1000 * 1000, false},
    {"G", 1000 * 1000 * 1000, false},
    {"T", 1000ull * 1000 * 1000 * 1000, false},
    {"Ki", 1ull << 10, true},
    {"Mi", 1ull << 20, true},
    {"Gi", 1ull << 30, true},
    {"Ti", 1ull << 40, true},
};

static const struct suffix *find_suffix(const char *text)
{
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (strcmp(suffixes[i].text, text) == 0) {
            return &suffixes[i];
        }
    }
    return NULL;
}

/* The outcome of reading [digits][.digits][suffix]. */
enum number_fault { NUMBER_OK, NUMBER_BAD, NUMBER_NOT_WHOLE, NUMBER_TOO_LARGE };

static enum number_fault read_magnitude(uint64_t *out, const char *text)
{
    unsigned __int128 value = 0;
    uint64_t scale = 1; /* 10^fraction digits */
    bool any = false, in_fraction = false;

    for (;; text++) {
        if (*text >= '0' && *text <= '9') {
            any = true;
            value = value * 10 + (unsigned)(*text - '0');
            if (value > UINT64_MAX || (in_fraction && scale > UINT64_MAX / 10)) {
                return NUMBER_TOO_LARGE;
            }
            scale = in_fraction ? scale * 10 : scale;
        } else if (*text == '.' && !in_fraction) {
            in_fraction = true;
        } else {
            break;
        }
    }
    const struct suffix *suffix = find_suffix(text);
    if (!any || !suffix || (in_fraction && suffix->is_binary)) {
        return NUMBER_BAD;
    }
    value *= suffix->factor; /* < 2^64 * 2^40 */
    if (value % scale != 0) {
        return NUMBER_NOT_WHOLE;
    }
    value /= scale;
    if (value > UINT64_MAX) {
        return NUMBER_TOO_LARGE;
    }
    *out = (uint64_t)value;
    return NUMBER_OK;
}

static enum status number_error(enum number_fault fault, const char *text, const char *what,
                                struct error *err)
{
    switch (fault) {
    case NUMBER_NOT_WHOLE:
        return error_set_param(err, ERR_USAGE, what, "%s: '%s' is not a whole number", what, text);
    case NUMBER_TOO_LARGE:
        return error_set_param(err, ERR_USAGE, what, "%s: '%s' is too large", what, text);
    default:
        return error_set_param(err, ERR_USAGE, what,
                               "%s: '%s' is not a number (digits, then none of or one of k K M G T "
                               "Ki Mi Gi Ti)",
                               what, text);
    }
}

enum status flag_read_size(size_t *out, const char *text, const char *what, struct error *err)
{
    uint64_t magnitude = 0;
    if (text[0] == '-') {
        return error_set_param(err, ERR_USAGE, what, "%s: '%s' is negative", what, text);
    }
    enum number_fault fault = read_magnitude(&magnitude, text[0] == '+' ? text + 1 : text);
    if (fault == NUMBER_OK && magnitude > SIZE_MAX) {
        fault = NUMBER_TOO_LARGE;
    }
    if (fault != NUMBER_OK) {
        return number_error(fault, text, what, err);
    }
    *out = (size_t)magnitude;
    return OK;
}

enum status flag_read_int(int64_t *out, const char *text, const char *what, struct error *err)
{
    uint64_t magnitude = 0;
    bool is_negative = text[0] == '-';
    enum number_fault fault =
        read_magnitude(&magnitude, text[0] == '-' || text[0] == '+' ? text + 1 : text);
    if (fault == NUMBER_OK && magnitude > INT64_MAX) {
        fault = NUMBER_TOO_LARGE;
    }
    if (fault != NUMBER_OK) {
        return number_error(fault, text, what, err);
    }
    *out = is_negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return OK;
}

enum status flag_read_double(double *out, const char *text, const char *what, struct error *err)
{
    char *end = NULL;
    /* strtod also takes hexadecimal, "inf" and leading blanks, which nobody means here. */
    bool plain = text[0] != '\0' && text[strspn(text, "0123456789+-.eE")] == '\0';
    double value = plain ? strtod(text, &end) : 0;
    if (!plain || end == text || *end != '\0' || !isfinite(value)) {
        return error_set_param(err, ERR_USAGE, what, "%s: '%s' is not a number", what, text);
    }
    *out = value;
    return OK;
}

bool flags_read_bool(bool *out, const char *text)
{
    static const char *const yes[] = {"1", "true", "True", "TRUE", "yes", "on"};
    static const char *const no[] = {"0", "false", "False", "FALSE", "no", "off"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}
