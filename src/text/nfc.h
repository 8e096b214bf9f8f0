/* nfc.h - normalisation form C as the reference tokenizer applies it.
 *
 * Place:  text, under tokenizer.c; on utf8proc.
 * Idea:   nearly all text is normalised already. Only stretches around a character that the tables
 *         call active are handed to utf8proc: the character before it, and the active ones that
 *         follow. Ordering the marks of a stretch is done here, as utf8proc needs quadratic time for
 *         a long run of marks. */
#ifndef TEXT_NFC_H
#define TEXT_NFC_H

#include "base/buf.h"
#include "base/status.h"
#include "base/str.h"

/* Quick: false means that the text is unchanged by nfc_append(). Text is valid UTF-8. */
bool nfc_needed(struct str text);

/* Append the normalised text. trust (may be NULL): one byte for each byte of the text, 1 or 0; then
 * trust_out gets one for each byte appended, 0 for characters that came from any byte with 0. */
enum status nfc_append(struct buf *out, struct buf *trust_out, struct str text, const char *trust,
                       struct error *err);

#endif
