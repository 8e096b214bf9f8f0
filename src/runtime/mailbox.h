/* mailbox.h - the only memory that other threads share with the engine thread.
 *
 * Place:  runtime, inside of the engine.
 * Idea:   a table of all unfinished requests (so that cancel finds them and the bound is one number), the
 *         list of those the engine has not seen yet, a copy of its figures, and the wish to stop. One
 *         lock guards all of it and is never held during work. */
#ifndef RUNTIME_MAILBOX_H
#define RUNTIME_MAILBOX_H

#include "runtime/engine.h"
#include "runtime/sequence.h"

struct mailbox;

enum status mailbox_new(struct mailbox **out, size_t unfinished_max, struct error *err);
void mailbox_free(struct mailbox *m); /* no unfinished requests left; accepts NULL */

/* Any thread. Takes over q, gives it its id and a seed if it has none. ERR_BUSY: unfinished_max. */
enum status mailbox_submit(struct mailbox *m, struct sequence *q, uint64_t random_seed,
                           uint64_t *id, struct error *err);
void mailbox_cancel(struct mailbox *m, uint64_t id);
void mailbox_stop(struct mailbox *m); /* mailbox_take will return false */
void mailbox_get_stats(struct mailbox *m, struct engine_stats *out);

/* Engine thread. The new sequences in order of submission, linked by next. With may_wait it sleeps
 * until there is one or the mailbox is stopped. False: stopped (the list is still handed over). */
bool mailbox_take(struct mailbox *m, bool may_wait, struct sequence **list);
/* Engine thread. Takes q out of the table and frees it: nobody else can reach it afterwards. */
void mailbox_retire(struct mailbox *m, struct sequence *q);
/* Engine thread. Publishes figures; n_requests stays as mailbox_submit counted it. */
void mailbox_set_stats(struct mailbox *m, const struct engine_stats *stats);

#endif
