/* line_editor_test.c - text, keys, drawing and history apart, then all of it through a
 * pseudo-terminal.
 *
 * Drawing is judged by a small terminal in here, which obeys the few sequences that the view uses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/line_buffer.h"
#include "cli/line_editor.h"
#include "cli/line_history.h"
#include "cli/line_keys.h"
#include "cli/line_view.h"

/* ---- the text ------------------------------------------------------------------------------- */

static struct line_buffer with(const char *text)
{
    struct line_buffer b;
    line_buffer_init(&b);
    line_buffer_set(&b, str_of(text));
    return b;
}

static void expect(struct line_buffer *b, const char *text, size_t cursor)
{
    assert_string_equal(buf_cstr(&b->text), text);
    assert_int_equal(b->cursor, cursor);
}

static void test_moves(void **state)
{
    (void)state;
    struct line_buffer b = with("h\xc3\xa9llo w\xc3\xb6rld");
    expect(&b, "h\xc3\xa9llo w\xc3\xb6rld", 13);
    line_buffer_word_left(&b);
    assert_int_equal(b.cursor, 7);
    line_buffer_word_left(&b);
    assert_int_equal(b.cursor, 0);
    assert_false(line_buffer_left(&b));
    assert_true(line_buffer_right(&b) && line_buffer_right(&b));
    assert_int_equal(b.cursor, 3);
    line_buffer_word_right(&b);
    assert_int_equal(b.cursor, 6);
    line_buffer_end(&b);
    assert_false(line_buffer_right(&b));
    line_buffer_home(&b);
    assert_int_equal(b.cursor, 0);
    line_buffer_release(&b);
}

static void test_clusters(void **state)
{
    (void)state;
    size_t width;
    /* e + combining acute; a family of three joined; a flag; a wide ideograph */
    static const char family[] = "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d"
                                 "\xf0\x9f\x91\xa7";
    assert_int_equal(cluster_next("e\xcc\x81x", 4, &width), 3);
    assert_int_equal(width, 1);
    assert_int_equal(cluster_next(family, sizeof family - 1, &width), sizeof family - 1);
    assert_int_equal(width, 2);
    assert_int_equal(cluster_next("\xe6\xb0\xb4", 3, &width), 3);
    assert_int_equal(width, 2);
    struct line_buffer b = with("ae\xcc\x81");
    line_buffer_delete_back(&b); /* the letter goes with its accent */
    expect(&b, "a", 1);
    line_buffer_insert(&b, (struct str){family, sizeof family - 1});
    assert_true(line_buffer_left(&b));
    assert_int_equal(b.cursor, 1);
    line_buffer_delete_forward(&b);
    expect(&b, "a", 1);
    line_buffer_release(&b);
}

static void test_changes(void **state)
{
    (void)state;
    struct line_buffer b = with("one two three");
    line_buffer_kill_word_back(&b);
    expect(&b, "one two ", 8);
    line_buffer_home(&b);
    line_buffer_yank(&b);
    expect(&b, "threeone two ", 5);
    line_buffer_kill_to_end(&b);
    expect(&b, "three", 5);
    line_buffer_insert(&b, STR("\nx"));
    line_buffer_kill_to_start(&b);
    expect(&b, "three\n", 6);
    assert_true(line_buffer_up(&b));
    line_buffer_end(&b);
    line_buffer_kill_to_end(&b); /* at the line's end: the newline itself */
    expect(&b, "three", 5);
    line_buffer_insert(&b, STR("\xff")); /* no UTF-8: dropped */
    expect(&b, "three", 5);
    line_buffer_delete_forward(&b);
    expect(&b, "three", 5);
    line_buffer_release(&b);

    line_buffer_init(&b); /* everything on an empty text */
    line_buffer_delete_back(&b);
    line_buffer_kill_to_end(&b);
    line_buffer_kill_word_back(&b);
    line_buffer_yank(&b);
    assert_false(line_buffer_up(&b) || line_buffer_down(&b));
    expect(&b, "", 0);
    line_buffer_release(&b);
}

static void test_lines(void **state)
{
    (void)state;
    struct line_buffer b = with("\xe6\xb0\xb4z\nab\n\ncdef");
    assert_true(line_buffer_up(&b)); /* the empty line */
    assert_int_equal(b.cursor, 8);
    assert_true(line_buffer_up(&b));
    assert_int_equal(b.cursor, 5);
    line_buffer_end(&b);
    assert_true(line_buffer_up(&b)); /* two cells: behind the wide character */
    assert_int_equal(b.cursor, 3);
    assert_false(line_buffer_up(&b));
    assert_true(line_buffer_down(&b));
    assert_int_equal(b.cursor, 7);
    line_buffer_release(&b);
}

static void test_limit(void **state)
{
    (void)state;
    size_t n = LINE_BYTES_MAX + 10;
    char *big = malloc(n);
    assert_non_null(big);
    memset(big, 'x', n);
    struct line_buffer b;
    line_buffer_init(&b);
    line_buffer_insert(&b, (struct str){big, n});
    assert_true(b.text.len > 0 && b.text.len < LINE_BYTES_MAX);
    size_t had = b.text.len;
    line_buffer_insert(&b, STR("yyyyyyyyyyyyyyyyyy"));
    assert_true(b.text.len >= had && b.text.len < LINE_BYTES_MAX);
    line_buffer_delete_back(&b);
    assert_true(buf_ok(&b.text));
    line_buffer_release(&b);
    free(big);
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* Feeds bytes; the kinds that came out, text as itself. */
static void keys_of(char *out, size_t n, const char *bytes, size_t len)
{
    static const char names[] = ".?\r\nLRUDHEwWbdkuKYc!$z\t";
    struct key_decoder d;
    struct buf b;
    key_decoder_init(&d);
    buf_init(&b);
    for (size_t i = 0; i < len; i++) {
        struct key k = key_decoder_feed(&d, (unsigned char)bytes[i]);
        if (k.kind == KEY_TEXT) {
            buf_appendf(&b, "%s", k.text);
        } else if (k.kind != KEY_NONE) {
            buf_appendf(&b, "<%c>", names[k.kind]);
        }
    }
    snprintf(out, n, "%s", buf_cstr(&b));
    buf_release(&b);
}

static void test_keys(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *keys;
    } cases[] = {
        {"ab\r", "ab<\r>"},
        {"\x01\x05\x0b\x15\x17\x19\x0c\x03\x04\x1a\x7f\x08",
         "<H><E><k><u><K><Y><c><!><$><z><b><b>"},
        {"\x1b[D\x1b[C\x1b[A\x1b[B\x1bOD\x1bOA", "<L><R><U><D><L><U>"},
        {"\x1b[H\x1b[F\x1b[1~\x1b[4~\x1b[3~", "<H><E><H><E><d>"},
        {"\x1b[1;5D\x1b[1;5C\x1b"
         "b\x1b"
         "f",
         "<w><W><w><W>"},
        {"\x1b\r\n", "<\n><\n>"},                         /* Alt-Enter, Ctrl-J */
        {"\x1b[99;99Rx\x1b[?1;2cy\x1bZz", "xyz"},         /* unknown ones are swallowed */
        {"\x1b\x1b[Dx", "<L>x"},                          /* a lone Escape before */
        {"\xc3\xa9\xe6\xb0\xb4", "\xc3\xa9\xe6\xb0\xb4"}, /* characters over several bytes */
        {"\xc3x\xffy\xc3\xc3\xa9", "xy\xc3\xa9"},         /* cut and bad bytes are dropped */
        {"\xc2\x9b", ""},                                 /* a C1 control */
        {"\x1b[200~a\r\nb\rc\n\x03\x1b[Ad\x1b[201~\r", "a\nb\nc\nd<\r>"}, /* a paste */
        {"\x1b[200~\tx\x1b[201~\t", "\tx<\t>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[256];
        keys_of(out, sizeof out, cases[i].bytes, strlen(cases[i].bytes));
        assert_string_equal(out, cases[i].keys);
    }
}

/* Any bytes at all: no overrun, and what comes out as text is UTF-8. */
static void test_keys_noise(void **state)
{
    (void)state;
    struct key_decoder d;
    uint32_t seed = 1;
    key_decoder_init(&d);
    for (int i = 0; i < 200000; i++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned char byte = (seed >> 28) < 5 ? 0x1b : (unsigned char)(seed >> 16);
        struct key k = key_decoder_feed(&d, byte);
        if (k.kind == KEY_TEXT) {
            assert_true(k.text_len > 0 && k.text_len <= 4);
            assert_int_equal(utf8_valid_prefix(k.text, k.text_len), k.text_len);
        }
        assert_true(d.n_held <= sizeof d.held);
    }
}

/* ---- drawing -------------------------------------------------------------------------------- */

enum { SCREEN_ROWS = 12, SCREEN_COLUMNS = 40 };

struct screen {
    size_t columns, row, column;
    char cells[SCREEN_ROWS][SCREEN_COLUMNS][16]; /* one cluster each; "" behind a wide one */
};

static void screen_clear_from(struct screen *s, size_t row, size_t column)
{
    for (size_t r = row; r < SCREEN_ROWS; r++) {
        for (size_t c = r == row ? column : 0; c < SCREEN_COLUMNS; c++) {
            snprintf(s->cells[r][c], sizeof s->cells[r][c], " ");
        }
    }
}

static void screen_obey(struct screen *s, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        if (text[i] == '\r') {
            s->column = 0;
            i++;
        } else if (text[i] == '\n') {
            s->row++;
            assert_true(s->row < SCREEN_ROWS);
            i++;
        } else if (text[i] == 0x1b) {
            assert_int_equal(text[i + 1], '[');
            char *end = NULL;
            size_t n = strtoul(text + i + 2, &end, 10);
            switch (*end) {
            case 'A':
                assert_true(n <= s->row);
                s->row -= n;
                break;
            case 'C':
                s->column += n;
                assert_true(s->column < s->columns);
                break;
            case 'J':
                screen_clear_from(s, s->row, s->column);
                break;
            default:
                fail_msg("sequence ending in %c", *end);
            }
            i = (size_t)(end - text) + 1;
        } else {
            size_t width, n = cluster_next(text + i, len - i, &width);
            assert_true(s->column + width <= s->columns); /* never rely on the right margin */
            snprintf(s->cells[s->row][s->column], 16, "%.*s", (int)n, text + i);
            if (width == 2) {
                s->cells[s->row][s->column + 1][0] = '\0';
            }
            s->column += width;
            i += n;
        }
    }
}

static const char *screen_row(const struct screen *s, size_t row)
{
    static char text[SCREEN_COLUMNS * 16];
    size_t at = 0, last = 0;
    for (size_t c = 0; c < s->columns; c++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s", s->cells[row][c]);
        last = strcmp(s->cells[row][c], " ") == 0 ? last : at;
    }
    text[last] = '\0';
    return text;
}

static struct screen screen_new(size_t columns)
{
    struct screen s = {.columns = columns};
    screen_clear_from(&s, 0, 0);
    return s;
}

static void draw(struct screen *s, struct line_view *v, const char *text, size_t cursor)
{
    struct buf out;
    buf_init(&out);
    line_view_draw(v, &out, str_of(text), cursor);
    screen_obey(s, buf_cstr(&out), out.len);
    buf_release(&out);
}

static struct line_view view_of(size_t columns, size_t rows)
{
    return (struct line_view){
        .columns = columns, .rows = rows, .prompt = "> ", .more = ". ", .style = "", .normal = ""};
}

static void test_view(void **state)
{
    (void)state;
    struct screen s = screen_new(10);
    struct line_view v = view_of(10, 12);
    draw(&s, &v, "", 0);
    assert_string_equal(screen_row(&s, 0), ">");
    assert_true(s.row == 0 && s.column == 2);
    draw(&s, &v, "12345678", 8); /* full: the cursor waits on the next row */
    assert_string_equal(screen_row(&s, 0), "> 12345678");
    assert_true(s.row == 1 && s.column == 0);
    draw(&s, &v, "123456789", 4);
    assert_string_equal(screen_row(&s, 1), "9");
    assert_true(s.row == 0 && s.column == 6);
    draw(&s, &v, "ab\ncd\n", 6);
    assert_string_equal(screen_row(&s, 0), "> ab");
    assert_string_equal(screen_row(&s, 1), ". cd");
    assert_string_equal(screen_row(&s, 2), ".");
    assert_true(s.row == 2 && s.column == 2);
    draw(&s, &v, "ab\ncd\n", 1);
    assert_true(s.row == 0 && s.column == 3);
    draw(&s, &v, "1234567\xe6\xb0\xb4", 10); /* a wide character does not fit: next row */
    assert_string_equal(screen_row(&s, 0), "> 1234567");
    assert_string_equal(screen_row(&s, 1), "\xe6\xb0\xb4");
    assert_string_equal(screen_row(&s, 2), "");
    assert_true(s.row == 1 && s.column == 2);
    draw(&s, &v, "\tx", 1);
    assert_string_equal(screen_row(&s, 0), ">     x");
    assert_int_equal(s.column, 6);
    struct buf out;
    buf_init(&out);
    line_view_leave(&v, &out, STR("ab\ncd"));
    screen_obey(&s, buf_cstr(&out), out.len);
    buf_release(&out);
    assert_true(s.row == 2 && s.column == 0);
}

/* A text taller than the terminal: a window around the cursor. */
static void test_view_window(void **state)
{
    (void)state;
    struct screen s = screen_new(10);
    struct line_view v = view_of(10, 4);
    draw(&s, &v, "a\nb\nc\nd\ne", 9);
    assert_string_equal(screen_row(&s, 0), ". c");
    assert_string_equal(screen_row(&s, 2), ". e");
    assert_true(s.row == 2 && s.column == 3);
    draw(&s, &v, "a\nb\nc\nd\ne", 0);
    assert_string_equal(screen_row(&s, 0), "> a");
    assert_string_equal(screen_row(&s, 2), ". c");
    assert_string_equal(screen_row(&s, 3), "");
    assert_true(s.row == 0 && s.column == 2);
}

/* ---- history -------------------------------------------------------------------------------- */

static void test_history(void **state)
{
    (void)state;
    struct line_history h;
    char path[] = "/tmp/spillway-history-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char content[] = "old\nbad\x1b[2J\n\nover\\nlines\\\\\n\xff\n";
    assert_int_equal(write(fd, content, sizeof content - 1), (ssize_t)sizeof content - 1);
    close(fd);
    line_history_init(&h, path);
    assert_int_equal(h.n, 2); /* damaged and empty lines are left out */
    assert_string_equal(h.entries[1], "over\nlines\\");
    line_history_add(&h, STR("new\\n\nx"));
    line_history_add(&h, STR("new\\n\nx")); /* twice the same */
    line_history_add(&h, STR(""));
    assert_int_equal(h.n, 3);
    line_history_release(&h);
    line_history_init(&h, path);
    assert_int_equal(h.n, 3);
    assert_string_equal(h.entries[2], "new\\n\nx");
    line_history_release(&h);
    unlink(path);

    line_history_init(&h, NULL);
    for (int i = 0; i < HISTORY_ENTRIES_MAX + 5; i++) {
        char text[16];
        int n = snprintf(text, sizeof text, "%d", i);
        line_history_add(&h, (struct str){text, (size_t)n});
    }
    assert_int_equal(h.n, HISTORY_ENTRIES_MAX);
    assert_string_equal(h.entries[0], "5");
    line_history_release(&h);
}

/* ---- a pseudo-terminal ---------------------------------------------------------------------- */

struct terminal {
    int master, slave;
    struct line_editor *editor;
    pthread_t reader; /* plays the screen: without it the editor's output would fill the pipe */
    char shown[1 << 16];
    size_t n_shown; /* the reader's until it is joined */
};

static void *read_screen(void *arg)
{
    struct terminal *t = arg;
    ssize_t n;
    while ((n = read(t->master, t->shown + t->n_shown, sizeof t->shown - 1 - t->n_shown)) > 0) {
        t->n_shown += (size_t)n;
    }
    return NULL;
}

static struct terminal *terminal_open(void)
{
    struct terminal *t = calloc(1, sizeof *t);
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    struct error err = {0};
    assert_non_null(t);
    assert_int_equal(openpty(&t->master, &t->slave, NULL, NULL, &size), 0);
    const struct line_editor_options o = {.in_fd = t->slave,
                                          .out_fd = t->slave,
                                          .prompt = "> ",
                                          .more = ". ",
                                          .style = "",
                                          .normal = ""};
    assert_int_equal(line_editor_open(&t->editor, &o, &err), OK);
    assert_int_equal(pthread_create(&t->reader, NULL, read_screen, t), 0);
    return t;
}

/* shown holds everything written afterwards. */
static void terminal_finish(struct terminal *t)
{
    line_editor_close(t->editor);
    close(t->slave); /* the reader's end of file */
    pthread_join(t->reader, NULL);
    close(t->master);
}

static void type(struct terminal *t, const char *bytes)
{
    assert_int_equal(write(t->master, bytes, strlen(bytes)), (ssize_t)strlen(bytes));
}

static void expect_line(struct terminal *t, const char *bytes, enum line_outcome outcome,
                        const char *text)
{
    struct buf out;
    buf_init(&out);
    type(t, bytes);
    assert_int_equal(line_editor_read(t->editor, &out), outcome);
    assert_string_equal(buf_cstr(&out), text);
    buf_release(&out);
}

static void test_terminal(void **state)
{
    (void)state;
    struct terminal *t = terminal_open();
    expect_line(t, "hello\r", LINE_ACCEPTED, "hello");
    expect_line(t, "wrld\x1b[D\x1b[D\x1b[Do\r", LINE_ACCEPTED, "world");
    expect_line(t, "\x1b[A\x1b[A!\r", LINE_ACCEPTED, "hello!");
    expect_line(t, "draft\x1b[A\x1b[B more\r", LINE_ACCEPTED, "draft more");
    expect_line(t, "a b c\x17\x17x\r", LINE_ACCEPTED, "a x");
    expect_line(t, "\x1b[200~line 1\nline 2\r\nline 3\x1b[201~ end\r", LINE_ACCEPTED,
                "line 1\nline 2\nline 3 end");
    expect_line(t, "one\x1b\rtwo\x1b[A\x01zero \r", LINE_ACCEPTED, "zero one\ntwo");
    expect_line(t, "typed\x03other\r", LINE_ACCEPTED, "other"); /* Ctrl-C clears the text */
    expect_line(t, "\x03", LINE_INTERRUPTED, "");
    expect_line(t, "ab\x02\x04\r", LINE_ACCEPTED, "a"); /* Ctrl-D on a text deletes */
    expect_line(t, "\x04", LINE_ENDED, "");
    terminal_finish(t);
    assert_non_null(strstr(t->shown, "\x1b[?2004h"));
    assert_non_null(strstr(t->shown, "\x1b[?2004l")); /* paste marks are off again */
    assert_non_null(strstr(t->shown, "> hello"));
    free(t);
}

/* What is typed while an answer is printed waits; Ctrl-C is seen at once and empties it. */
static void test_type_ahead(void **state)
{
    (void)state;
    struct terminal *t = terminal_open();
    struct pollfd p = {.fd = t->slave, .events = POLLIN};
    assert_false(line_editor_interrupted(t->editor));
    type(t, "next");
    assert_int_equal(poll(&p, 1, 5000), 1);
    assert_false(line_editor_interrupted(t->editor));
    expect_line(t, " one\r", LINE_ACCEPTED, "next one");
    type(t, "gone\x03");
    assert_int_equal(poll(&p, 1, 5000), 1);
    bool seen = false;
    for (int i = 0; i < 1000 && !seen; i++) { /* the five bytes may come in two reads */
        seen = line_editor_interrupted(t->editor);
    }
    assert_true(seen);
    expect_line(t, "kept\r", LINE_ACCEPTED, "kept");
    terminal_finish(t);
    free(t);
}

static void test_restores(void **state)
{
    (void)state;
    struct termios before, during, after;
    int master, slave;
    struct error err = {0};
    struct line_editor *e = NULL;
    char drain[64];
    assert_int_equal(openpty(&master, &slave, NULL, NULL, NULL), 0);
    const struct line_editor_options o = {
        .in_fd = slave, .out_fd = slave, .prompt = "> ", .more = ". ", .style = "", .normal = ""};
    assert_int_equal(tcgetattr(slave, &before), 0);
    assert_int_equal(line_editor_open(&e, &o, &err), OK);
    assert_int_equal(tcgetattr(slave, &during), 0);
    assert_int_equal(during.c_lflag & (ICANON | ECHO | ISIG), 0);
    assert_true(read(master, drain, sizeof drain) > 0); /* TCSADRAIN waits for this */
    struct buf out;
    buf_init(&out);
    assert_int_equal(write(master, "x", 1), 1);
    close(master); /* the terminal goes away: end of input, no endless loop */
    assert_int_equal(line_editor_read(e, &out), LINE_ENDED);
    buf_release(&out);
    line_editor_close(e);
    if (tcgetattr(slave, &after) == 0) {
        assert_int_equal(after.c_lflag, before.c_lflag);
    }
    close(slave);
    int file = open("/dev/null", O_RDWR);
    const struct line_editor_options none = {
        .in_fd = file, .out_fd = file, .prompt = "", .more = "", .style = "", .normal = ""};
    assert_int_equal(line_editor_open(&e, &none, &err), ERR_IO);
    assert_null(e);
    close(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),       cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_changes),     cmocka_unit_test(test_lines),
        cmocka_unit_test(test_limit),       cmocka_unit_test(test_keys),
        cmocka_unit_test(test_keys_noise),  cmocka_unit_test(test_view),
        cmocka_unit_test(test_view_window), cmocka_unit_test(test_history),
        cmocka_unit_test(test_terminal),    cmocka_unit_test(test_type_ahead),
        cmocka_unit_test(test_restores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
