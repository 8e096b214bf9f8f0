/* line_keys.h - bytes from a terminal to keys.
 *
 * Place: cli; part of the line editor. A state machine fed one byte at a time, so that a key may
 *        come in any number of reads. Text between the bracketed-paste marks comes out as text, newlines
 *        included. Unknown escape sequences are swallowed whole. */
#ifndef CLI_LINE_KEYS_H
#define CLI_LINE_KEYS_H

#include <stdbool.h>
#include <stddef.h>

enum key_kind {
    KEY_NONE, /* more bytes are needed */
    KEY_TEXT, /* `text` */
    KEY_ENTER,
    KEY_NEWLINE, /* Ctrl-J, Alt-Enter: a new line in the text */
    KEY_LEFT,
    KEY_RIGHT,
    KEY_UP,
    KEY_DOWN,
    KEY_HOME,
    KEY_END,
    KEY_WORD_LEFT,
    KEY_WORD_RIGHT,
    KEY_BACKSPACE,
    KEY_DELETE,
    KEY_KILL_TO_END,
    KEY_KILL_TO_START,
    KEY_KILL_WORD,
    KEY_YANK,
    KEY_CLEAR_SCREEN,
    KEY_INTERRUPT,   /* Ctrl-C */
    KEY_END_OF_FILE, /* Ctrl-D */
    KEY_SUSPEND,     /* Ctrl-Z */
    KEY_TAB
};

struct key {
    enum key_kind kind;
    char text[8]; /* one UTF-8 character, NUL-terminated */
    size_t text_len;
};

struct key_decoder {
    char held[32]; /* an unfinished sequence or character */
    size_t n_held;
    bool in_paste;
    bool after_cr; /* in a paste: "\r\n" is one newline */
};

void key_decoder_init(struct key_decoder *d);
struct key key_decoder_feed(struct key_decoder *d, unsigned char byte);

#endif
