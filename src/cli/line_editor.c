/* line_editor.c - the terminal side of the line editor. See line_editor.h. */
#include "cli/line_editor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/line_buffer.h"
#include "cli/line_history.h"
#include "cli/line_keys.h"
#include "cli/line_view.h"
#include "cli/terminal_mode.h"

enum { READ_BYTES = 4096, COLUMNS_DEFAULT = 80, ROWS_DEFAULT = 24, AHEAD_BYTES_MAX = 1 << 20 };

struct line_editor {
    int in_fd, out_fd;
    struct terminal_mode mode;
    struct line_buffer line;
    struct line_history history;
    size_t history_at; /* history.n: the text being written */
    struct buf draft;  /* that text, while older ones are shown */
    struct key_decoder keys;
    struct line_view view;
    struct buf ahead; /* bytes read but not yet decoded */
};

/* ---- the terminal --------------------------------------------------------------------------- */

static void look_at_size(struct line_editor *e)
{
    struct winsize size = {0};
    if (ioctl(e->out_fd, TIOCGWINSZ, &size) != 0) {
        size = (struct winsize){0};
    }
    e->view.columns = size.ws_col ? size.ws_col : COLUMNS_DEFAULT;
    e->view.rows = size.ws_row ? size.ws_row : ROWS_DEFAULT;
}

static struct str text_of(const struct line_editor *e)
{
    return (struct str){e->line.text.data ? e->line.text.data : "", e->line.text.len};
}

static void redraw(struct line_editor *e)
{
    struct buf out;
    buf_init(&out);
    look_at_size(e);
    line_view_draw(&e->view, &out, text_of(e), e->line.cursor);
    terminal_write(e->out_fd, buf_cstr(&out), out.len);
    buf_release(&out);
}

static void leave_line(struct line_editor *e)
{
    struct buf out;
    buf_init(&out);
    line_view_leave(&e->view, &out, text_of(e));
    terminal_write(e->out_fd, buf_cstr(&out), out.len);
    buf_release(&out);
}

static bool input_waits(const struct line_editor *e)
{
    struct pollfd p = {.fd = e->in_fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* Reads what is there into `ahead`, waiting when asked to. False: the terminal is gone. */
static bool read_more(struct line_editor *e, bool wait)
{
    struct pollfd p = {.fd = e->in_fd, .events = POLLIN};
    char bytes[READ_BYTES];
    int ready;
    do {
        ready = poll(&p, 1, wait ? -1 : 0);
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) {
        return ready == 0;
    }
    ssize_t n = read(e->in_fd, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return true;
    }
    if (n <= 0) {
        return false;
    }
    if (e->ahead.len < AHEAD_BYTES_MAX) { /* beyond that nobody typed it */
        buf_append(&e->ahead, bytes, (size_t)n);
    }
    return true;
}

/* ---- opening and closing -------------------------------------------------------------------- */

enum status line_editor_open(struct line_editor **out, const struct line_editor_options *o,
                             struct error *err)
{
    *out = NULL;
    struct line_editor *e = calloc(1, sizeof *e);
    if (!e) {
        return error_set(err, ERR_NO_MEMORY, "cannot allocate the line editor");
    }
    e->in_fd = o->in_fd;
    e->out_fd = o->out_fd;
    enum status rc = terminal_mode_init(&e->mode, e->in_fd, e->out_fd, err);
    if (rc != OK) {
        free(e);
        return rc;
    }
    e->view = (struct line_view){
        .prompt = o->prompt, .more = o->more, .style = o->style, .normal = o->normal};
    line_buffer_init(&e->line);
    line_history_init(&e->history, o->history_path);
    key_decoder_init(&e->keys);
    buf_init(&e->draft);
    buf_init(&e->ahead);
    terminal_mode_enter(&e->mode);
    *out = e;
    return OK;
}

void line_editor_close(struct line_editor *e)
{
    if (!e) {
        return;
    }
    terminal_mode_leave(&e->mode);
    line_buffer_release(&e->line);
    line_history_release(&e->history);
    buf_release(&e->draft);
    buf_release(&e->ahead);
    free(e);
}

/* ---- history -------------------------------------------------------------------------------- */

static void show_history(struct line_editor *e, size_t at)
{
    if (e->history_at == e->history.n) {
        buf_clear(&e->draft);
        buf_append(&e->draft, text_of(e).ptr, text_of(e).len);
    }
    e->history_at = at;
    if (at == e->history.n) {
        line_buffer_set(&e->line, (struct str){buf_cstr(&e->draft), e->draft.len});
    } else {
        line_buffer_set(&e->line, str_of(e->history.entries[at]));
    }
}

static void move_up(struct line_editor *e)
{
    if (!line_buffer_up(&e->line) && e->history_at > 0) {
        show_history(e, e->history_at - 1);
    }
}

static void move_down(struct line_editor *e)
{
    if (!line_buffer_down(&e->line) && e->history_at < e->history.n) {
        show_history(e, e->history_at + 1);
    }
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void suspend(struct line_editor *e)
{
    leave_line(e);
    terminal_mode_leave(&e->mode);
    kill(0, SIGTSTP); /* the whole job, as the terminal itself would */
    terminal_mode_enter(&e->mode);
}

static void edit(struct line_editor *e, const struct key *k)
{
    struct line_buffer *b = &e->line;
    switch (k->kind) {
    case KEY_TEXT:
        line_buffer_insert(b, (struct str){k->text, k->text_len});
        break;
    case KEY_NEWLINE:
        line_buffer_insert(b, STR("\n"));
        break;
    case KEY_LEFT:
        line_buffer_left(b);
        break;
    case KEY_RIGHT:
        line_buffer_right(b);
        break;
    case KEY_UP:
        move_up(e);
        break;
    case KEY_DOWN:
        move_down(e);
        break;
    case KEY_HOME:
        line_buffer_home(b);
        break;
    case KEY_END:
        line_buffer_end(b);
        break;
    case KEY_WORD_LEFT:
        line_buffer_word_left(b);
        break;
    case KEY_WORD_RIGHT:
        line_buffer_word_right(b);
        break;
    case KEY_BACKSPACE:
        line_buffer_delete_back(b);
        break;
    case KEY_DELETE:
        line_buffer_delete_forward(b);
        break;
    case KEY_KILL_TO_END:
        line_buffer_kill_to_end(b);
        break;
    case KEY_KILL_TO_START:
        line_buffer_kill_to_start(b);
        break;
    case KEY_KILL_WORD:
        line_buffer_kill_word_back(b);
        break;
    case KEY_YANK:
        line_buffer_yank(b);
        break;
    default:
        break;
    }
}

/* One key; true when the reading is over, with *outcome. */
static bool handle_key(struct line_editor *e, const struct key *k, enum line_outcome *outcome)
{
    switch (k->kind) {
    case KEY_ENTER:
        *outcome = LINE_ACCEPTED;
        return true;
    case KEY_INTERRUPT:
        if (e->line.text.len == 0) {
            *outcome = LINE_INTERRUPTED;
            return true;
        }
        leave_line(e); /* keeps what stands there, and starts a new line */
        line_buffer_set(&e->line, STR(""));
        e->history_at = e->history.n;
        return false;
    case KEY_END_OF_FILE:
        if (e->line.text.len == 0) {
            *outcome = LINE_ENDED;
            return true;
        }
        line_buffer_delete_forward(&e->line);
        return false;
    case KEY_CLEAR_SCREEN:
        terminal_write(e->out_fd, "\x1b[H\x1b[2J", 7);
        e->view.cursor_row = 0;
        return false;
    case KEY_SUSPEND:
        suspend(e);
        return false;
    default:
        edit(e, k);
        return false;
    }
}

/* Decodes what was read; true when the reading is over. */
static bool decode_ahead(struct line_editor *e, enum line_outcome *outcome)
{
    size_t used = 0;
    bool is_over = false;
    while (!is_over && used < e->ahead.len) {
        struct key k = key_decoder_feed(&e->keys, (unsigned char)e->ahead.data[used++]);
        is_over = handle_key(e, &k, outcome);
    }
    buf_consume(&e->ahead, used);
    return is_over;
}

enum line_outcome line_editor_read(struct line_editor *e, struct buf *out)
{
    enum line_outcome outcome = LINE_ENDED;
    line_buffer_set(&e->line, STR(""));
    e->history_at = e->history.n;
    e->view.cursor_row = 0;
    while (!decode_ahead(e, &outcome)) {
        if (!input_waits(e)) { /* in the middle of a long paste there is nothing to look at */
            redraw(e);
        }
        if (!read_more(e, true)) {
            outcome = LINE_ENDED;
            break;
        }
    }
    leave_line(e);
    buf_clear(out);
    buf_append(out, text_of(e).ptr, text_of(e).len);
    if (outcome == LINE_ACCEPTED) {
        line_history_add(&e->history, text_of(e));
    }
    return outcome;
}

bool line_editor_interrupted(struct line_editor *e)
{
    (void)read_more(e, false);
    const char *at = e->ahead.len ? memchr(e->ahead.data, 'C' & 31, e->ahead.len) : NULL;
    if (!at) {
        return false;
    }
    buf_consume(&e->ahead,
                (size_t)(at - e->ahead.data) + 1); /* what was typed before it goes too */
    key_decoder_init(&e->keys);
    return true;
}
