/* jinja_lex.h - template text to tokens, one at a time.
 *
 * Place:  text, inside the Jinja engine; used by the parser only. White space control (-, +),
 *         trim_blocks, lstrip_blocks, raw blocks and comments are done here: the parser sees data,
 *         tags and expression tokens. */
#ifndef TEXT_JINJA_LEX_H
#define TEXT_JINJA_LEX_H

#include "text/jinja.h"
#include "text/jinja_value.h"

enum jinja_token_kind {
    TOKEN_EOF,
    TOKEN_DATA,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_NUMBER,
    TOKEN_OPERATOR
};

/* Operators of one character are that character. */
enum jinja_operator { TOKEN_EQ = 256, TOKEN_NE, TOKEN_LE, TOKEN_GE, TOKEN_POW, TOKEN_FLOORDIV };

struct jinja_token {
    enum jinja_token_kind kind;
    int line;
    int op;                   /* TOKEN_OPERATOR */
    struct str text;          /* DATA, NAME: the characters; else what was written, for messages */
    struct jinja_value value; /* STRING, NUMBER; lives in the arena */
};

enum jinja_lex_state { LEX_ROOT, LEX_VARIABLE, LEX_BLOCK };

struct jinja_lexer {
    struct arena *arena;
    const char *text; /* valid UTF-8 with "\n" line ends, borrowed */
    size_t len, pos;
    int line;
    enum jinja_lex_state state;
    bool line_starting; /* the last token ended a line */
    size_t n_open;      /* brackets inside a tag */
    char open[JINJA_NESTING_MAX];
    struct error *err;
};

/* text is what jinja_lex_normalise gave. */
void jinja_lex_init(struct jinja_lexer *l, struct arena *arena, struct str text, struct error *err);
/* ERR_FORMAT with "line N: ...", ERR_LIMIT. */
enum status jinja_lex_next(struct jinja_lexer *l, struct jinja_token *out);

/* A copy in the arena with "\r\n" and "\r" as "\n" and without one line end at the very end. */
enum status jinja_lex_normalise(struct str *out, struct arena *arena, struct str source,
                                struct error *err);

/* A trusted string in the arena that borrows text; NULL when the arena is full. */
struct jinja_string *jinja_lex_string(struct arena *arena, struct str text);

#endif
