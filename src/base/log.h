/* log.h - one line per event, on stderr.
 *
 * Place: base. A struct log is made once in cli/ and handed down; there is no global. A NULL log is
 *        silent. Thread-safe: each line is one write(). Control characters in the text are escaped
 *        as \xNN, so that a client cannot forge lines. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR };

struct log {
    int fd;               /* 2 as a rule */
    enum log_level level; /* lines below it are dropped */
    bool is_json;         /* {"time":...,"level":...,"msg":...} */
};

void log_line(const struct log *log, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_debug(log, ...)   log_line(log, LOG_DEBUG, __VA_ARGS__)
#define log_info(log, ...)    log_line(log, LOG_INFO, __VA_ARGS__)
#define log_warning(log, ...) log_line(log, LOG_WARNING, __VA_ARGS__)
#define log_error(log, ...)   log_line(log, LOG_ERROR, __VA_ARGS__)

#endif
