/* status.c - filling and prefixing error texts. See status.h. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/str.h"

static void cut_at_character(char *text)
{
    size_t len = strlen(text);
    text[len - utf8_incomplete_tail(text, len)] = '\0';
}

static void format_text(struct error *err, enum status code, const char *param, const char *fmt,
                        va_list args)
{
    err->code = code;
    snprintf(err->param, sizeof err->param, "%s", param);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    cut_at_character(err->param);
    cut_at_character(err->text);
}

enum status error_set(struct error *err, enum status code, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        format_text(err, code, "", fmt, args);
        va_end(args);
    }
    return code;
}

enum status error_set_param(struct error *err, enum status code, const char *param, const char *fmt,
                            ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        format_text(err, code, param ? param : "", fmt, args);
        va_end(args);
    }
    return code;
}

void error_prefix(struct error *err, const char *fmt, ...)
{
    char prefix[ERROR_TEXT_BYTES];
    char whole[2 * ERROR_TEXT_BYTES + 4];
    va_list args;

    if (!err) {
        return;
    }
    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    snprintf(whole, sizeof whole, "%s: %s", prefix, err->text);
    whole[sizeof err->text - 1] = '\0';
    memcpy(err->text, whole, sizeof err->text);
    cut_at_character(err->text);
}

const char *status_name(enum status code)
{
    static const char *const names[STATUS_COUNT] = {
        [OK] = "ok",
        [ERR_BAD_REQUEST] = "bad_request",
        [ERR_BUSY] = "busy",
        [ERR_CANCELLED] = "cancelled",
        [ERR_NOT_FOUND] = "not_found",
        [ERR_FORMAT] = "format",
        [ERR_IO] = "io",
        [ERR_NO_MEMORY] = "no_memory",
        [ERR_LIMIT] = "limit",
        [ERR_UNSUPPORTED] = "unsupported",
        [ERR_USAGE] = "usage",
        [ERR_DEVICE] = "device",
        [ERR_INTERNAL] = "internal",
    };
    return (unsigned)code < STATUS_COUNT ? names[code] : "unknown";
}
