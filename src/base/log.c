/* log.c - one write() per line. See log.h. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"

enum { LOG_LINE_BYTES_MAX = 8192 };

/* Escape what could move the cursor or start a new line; other bytes pass. */
static void append_escaped(struct buf *line, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool is_c1 = *p == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f; /* U+0080 .. U+009F */
        if (*p < 0x20 || *p == 0x7f || is_c1) {
            p += is_c1;
            buf_appendf(line, "\\x%02x", *p);
        } else {
            buf_append_char(line, (char)*p);
        }
    }
}

void log_line(const struct log *log, enum log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    char text[LOG_LINE_BYTES_MAX];
    char stamp[40];
    struct timespec now;
    struct tm tm;
    struct buf line;
    va_list args;
    size_t sent = 0;

    if (!log || level < log->level) {
        return;
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);

    buf_init(&line);
    if (log->is_json) {
        buf_appendf(&line, "{\"time\":\"%s.%03ldZ\",\"level\":\"%s\",\"msg\":", stamp,
                    now.tv_nsec / 1000000, names[level]);
        json_write_string(&line, text, strlen(text));
        buf_append_str(&line, "}\n");
    } else {
        buf_appendf(&line, "%s.%03ldZ ", stamp, now.tv_nsec / 1000000);
        if (level != LOG_INFO) {
            buf_appendf(&line, "%s: ", names[level]);
        }
        append_escaped(&line, text);
        buf_append_char(&line, '\n');
    }
    while (buf_ok(&line) && sent < line.len) {
        ssize_t n = write(log->fd, line.data + sent, line.len - sent);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break; /* nowhere to complain to */
        }
        sent += (size_t)n;
    }
    buf_release(&line);
}
