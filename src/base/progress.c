/* progress.c - see progress.h. */
#include "base/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"

enum { BAR_CELLS = 24 };
static const uint64_t TTY_INTERVAL_NS = 100 * 1000 * 1000;
static const uint64_t PLAIN_INTERVAL_NS = UINT64_C(5000) * 1000 * 1000;

void progress_init(struct progress *p, int fd)
{
    *p = (struct progress){.fd = fd, .is_tty = isatty(fd) == 1};
}

static void amount(struct buf *line, enum progress_unit unit, double v)
{
    if (unit == PROGRESS_BYTES) {
        if (v >= 0x1p30) {
            buf_appendf(line, "%.2f GiB", v / 0x1p30);
        } else {
            buf_appendf(line, "%.1f MiB", v / 0x1p20);
        }
    } else {
        buf_appendf(line, "%.0f%s", v, unit == PROGRESS_TOKENS ? " tok" : "");
    }
}

static void bar(struct buf *line, const struct progress *p)
{
    /* More may be done than was announced. */
    double part = p->done < p->total ? (double)p->done / (double)p->total : 1;
    size_t full = (size_t)(BAR_CELLS * part);

    buf_append_char(line, '[');
    for (size_t i = 0; i < BAR_CELLS; i++) {
        buf_append_char(line, i < full ? '#' : '.');
    }
    buf_append_str(line, "] ");
}

static void show(struct progress *p, bool is_last)
{
    struct buf line;
    double seconds = clock_seconds_since(p->start_ns);
    double rate = seconds > 0 ? (double)p->done / seconds : 0;
    ssize_t ignored;

    buf_init(&line);
    buf_appendf(&line, "%s%s ", p->is_tty ? "\r" : "", p->label);
    if (p->total > 0 && p->is_tty) {
        bar(&line, p);
    }
    amount(&line, p->unit, (double)p->done);
    if (p->total > 0) {
        buf_append_str(&line, " / ");
        amount(&line, p->unit, (double)p->total);
    }
    if (p->done > 0 || is_last) { /* at the start there is no rate yet */
        buf_append_str(&line, ", ");
        amount(&line, p->unit, rate);
        buf_append_str(&line, "/s");
    }
    if (is_last) {
        buf_appendf(&line, ", %.2f s", seconds);
    } else if (p->total > p->done && rate > 0) {
        buf_appendf(&line, ", %.0f s left", ceil((double)(p->total - p->done) / rate));
    }
    buf_append_str(&line, p->is_tty ? "\x1b[K" : "");
    if (is_last || !p->is_tty) {
        buf_append_char(&line, '\n');
    }
    if (buf_ok(&line)) {
        ignored = write(p->fd, line.data, line.len);
        (void)ignored;
    }
    buf_release(&line);
    p->shown_ns = clock_now_ns();
}

void progress_start(struct progress *p, const char *label, enum progress_unit unit, uint64_t total)
{
    if (!p) {
        return;
    }
    snprintf(p->label, sizeof p->label, "%s", label);
    p->unit = unit;
    p->total = total;
    p->done = 0;
    p->start_ns = p->shown_ns = clock_now_ns();
    show(p, false);
}

void progress_update(struct progress *p, uint64_t done)
{
    uint64_t interval;

    if (!p) {
        return;
    }
    p->done = done;
    interval = p->is_tty ? TTY_INTERVAL_NS : PLAIN_INTERVAL_NS;
    if (clock_now_ns() - p->shown_ns >= interval) {
        show(p, false);
    }
}

void progress_finish(struct progress *p)
{
    if (p) {
        show(p, true);
    }
}
