/* status.h - result codes and error texts.
 *
 * Place:  base; every fallible function of the project returns an enum status.
 * Idea:   the code says what the caller can do, the text tells a person where it went wrong.
 *         Texts say what failed first, quote the subject, start in lower case, have no full stop. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stddef.h>

enum status {
    OK = 0,
    ERR_BAD_REQUEST, /* the request is wrong: answer 400, name the field (error.param) */
    ERR_BUSY,        /* a bounded queue or pool is full: answer 429, try later */
    ERR_CANCELLED,   /* the caller asked for the end */
    ERR_NOT_FOUND,   /* file, model, tensor, route */
    ERR_FORMAT,      /* a file's content is wrong: refuse the model */
    ERR_IO,          /* the operating system said no */
    ERR_NO_MEMORY,   /* allocation failed or a budget is too small */
    ERR_LIMIT,       /* a named limit was passed */
    ERR_UNSUPPORTED, /* understood, but not built or not possible here */
    ERR_USAGE,       /* a wrong flag or combination of flags */
    ERR_DEVICE,      /* device error: drain */
    ERR_INTERNAL,    /* a fault of ours, contained */
    STATUS_COUNT
};

enum { ERROR_TEXT_BYTES = 1024, ERROR_PARAM_BYTES = 128 };

struct error {
    enum status code;
    char param[ERROR_PARAM_BYTES]; /* request field or flag at fault, "" when none */
    char text[ERROR_TEXT_BYTES];   /* always NUL-terminated, valid UTF-8 if the arguments were */
};

/* Fill *err (may be NULL) and return code, so that callers can `return error_set(...)`. A text that
 * is too long is cut at a character border. */
enum status error_set(struct error *err, enum status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with the name of the request field or flag at fault. */
enum status error_set_param(struct error *err, enum status code, const char *param, const char *fmt,
                            ...) __attribute__((format(printf, 4, 5)));

/* Put "<formatted>: " before the text already in *err. err may be NULL. */
void error_prefix(struct error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A short lower-case name, for logs: "format", "no_memory". Never NULL. */
const char *status_name(enum status code);

#endif
