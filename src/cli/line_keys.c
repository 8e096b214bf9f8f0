/* line_keys.c - see line_keys.h. Sequences as xterm and its kin send them. */
#include "cli/line_keys.h"

#include <string.h>

#include "base/str.h"

enum { ESC = 0x1b, DEL = 0x7f };

void key_decoder_init(struct key_decoder *d)
{
    *d = (struct key_decoder){0};
}

static struct key plain(enum key_kind kind)
{
    return (struct key){.kind = kind};
}

static struct key text_key(const char *text, size_t len)
{
    struct key k = {.kind = KEY_TEXT, .text_len = len};
    memcpy(k.text, text, len);
    return k;
}

static const struct {
    const char *sequence; /* after ESC */
    enum key_kind kind;
} sequences[] = {
    {"[D", KEY_LEFT},          {"OD", KEY_LEFT},        {"[C", KEY_RIGHT},
    {"OC", KEY_RIGHT},         {"[A", KEY_UP},          {"OA", KEY_UP},
    {"[B", KEY_DOWN},          {"OB", KEY_DOWN},        {"[H", KEY_HOME},
    {"OH", KEY_HOME},          {"[1~", KEY_HOME},       {"[7~", KEY_HOME},
    {"[F", KEY_END},           {"OF", KEY_END},         {"[4~", KEY_END},
    {"[8~", KEY_END},          {"[3~", KEY_DELETE},     {"[1;5D", KEY_WORD_LEFT},
    {"[1;3D", KEY_WORD_LEFT},  {"b", KEY_WORD_LEFT},    {"[1;5C", KEY_WORD_RIGHT},
    {"[1;3C", KEY_WORD_RIGHT}, {"f", KEY_WORD_RIGHT},   {"\r", KEY_NEWLINE},
    {"\n", KEY_NEWLINE},       {"\x7f", KEY_KILL_WORD},
};

/* A control sequence ends with a byte of 0x40..0x7e after "[", or one byte after "O". */
static bool sequence_is_complete(const char *s, size_t n)
{
    unsigned char last = (unsigned char)s[n - 1];
    if (s[0] == '[') {
        return n > 1 && last >= 0x40 && last <= 0x7e;
    }
    return s[0] != 'O' || n > 1;
}

/* d->held holds ESC and at least one more byte. */
static struct key feed_escape(struct key_decoder *d)
{
    const char *s = d->held + 1;
    size_t n = d->n_held - 1;
    if (s[0] == ESC) { /* a lone Escape, then a new sequence */
        d->n_held = 1;
        return plain(KEY_NONE);
    }
    if (!sequence_is_complete(s, n)) {
        if (d->n_held == sizeof d->held) {
            d->n_held = 0; /* no terminal sends that much */
        }
        return plain(KEY_NONE);
    }
    d->n_held = 0;
    if (n == 5 && memcmp(s, "[200~", 5) == 0) {
        d->in_paste = true;
        return plain(KEY_NONE);
    }
    if (n == 5 && memcmp(s, "[201~", 5) == 0) {
        d->in_paste = d->after_cr = false;
        return plain(KEY_NONE);
    }
    for (size_t i = 0; i < sizeof sequences / sizeof sequences[0]; i++) {
        if (strlen(sequences[i].sequence) == n && memcmp(sequences[i].sequence, s, n) == 0) {
            return d->in_paste ? plain(KEY_NONE) : plain(sequences[i].kind);
        }
    }
    return plain(KEY_NONE);
}

static struct key feed_character(struct key_decoder *d)
{
    uint32_t cp;
    if (utf8_incomplete_tail(d->held, d->n_held) == d->n_held) {
        return plain(KEY_NONE);
    }
    size_t n = d->n_held;
    d->n_held = 0;
    if (utf8_valid_prefix(d->held, n) != n) {
        /* Drop the bad part; a byte that broke it may begin something good. */
        size_t used = utf8_decode(&cp, d->held, n);
        if (used < n) {
            char last = d->held[n - 1];
            return key_decoder_feed(d, (unsigned char)last);
        }
        return plain(KEY_NONE);
    }
    utf8_decode(&cp, d->held, n);
    return cp < 0xa0 ? plain(KEY_NONE) : text_key(d->held, n); /* U+0080..9F are controls */
}

static struct key feed_control(unsigned char byte)
{
    switch (byte) {
    case 'A' & 31:
        return plain(KEY_HOME);
    case 'B' & 31:
        return plain(KEY_LEFT);
    case 'C' & 31:
        return plain(KEY_INTERRUPT);
    case 'D' & 31:
        return plain(KEY_END_OF_FILE);
    case 'E' & 31:
        return plain(KEY_END);
    case 'F' & 31:
        return plain(KEY_RIGHT);
    case 'H' & 31:
    case DEL:
        return plain(KEY_BACKSPACE);
    case '\t':
        return plain(KEY_TAB);
    case '\n':
        return plain(KEY_NEWLINE);
    case '\r':
        return plain(KEY_ENTER);
    case 'K' & 31:
        return plain(KEY_KILL_TO_END);
    case 'L' & 31:
        return plain(KEY_CLEAR_SCREEN);
    case 'N' & 31:
        return plain(KEY_DOWN);
    case 'P' & 31:
        return plain(KEY_UP);
    case 'U' & 31:
        return plain(KEY_KILL_TO_START);
    case 'W' & 31:
        return plain(KEY_KILL_WORD);
    case 'Y' & 31:
        return plain(KEY_YANK);
    case 'Z' & 31:
        return plain(KEY_SUSPEND);
    default:
        return plain(KEY_NONE);
    }
}

/* Within a paste: newlines in any form, tabs, and no other control characters. */
static struct key feed_pasted_control(struct key_decoder *d, unsigned char byte)
{
    bool second = byte == '\n' && d->after_cr;
    d->after_cr = byte == '\r';
    if (byte == '\t') {
        return text_key("\t", 1);
    }
    return (byte == '\n' || byte == '\r') && !second ? text_key("\n", 1) : plain(KEY_NONE);
}

struct key key_decoder_feed(struct key_decoder *d, unsigned char byte)
{
    if (d->n_held > 0 || byte == ESC || byte >= 0x80) {
        bool in_escape = d->n_held > 0 && d->held[0] == ESC;
        if (d->n_held > 0 && !in_escape && byte < 0x80) {
            d->n_held = 0; /* a cut character: the byte stands for itself */
            return key_decoder_feed(d, byte);
        }
        d->held[d->n_held++] = (char)byte;
        if (d->held[0] != ESC) {
            return feed_character(d);
        }
        return d->n_held == 1 ? plain(KEY_NONE) : feed_escape(d);
    }
    if (byte < 0x20 || byte == DEL) {
        return d->in_paste ? feed_pasted_control(d, byte) : feed_control(byte);
    }
    d->after_cr = false;
    char c = (char)byte;
    return text_key(&c, 1);
}
