/* signals.h - what SIGTERM, SIGINT and SIGBUS mean while serving.
 *
 * Place: cli.
 * Idea:  stop signals are blocked in every thread and taken by one thread that waits for them, so no
 *        code of ours runs in a signal handler and no global is needed. The first one drains, the
 *        second stops at once; the time that this may take is bounded even when a step of the
 *        model does not end. SIGBUS cannot be waited for: it comes from a mapped weight file that was
 *        cut, in the middle of a kernel. Its handler writes one line and ends with code 70; clients
 *        see their connection close. An error event for them would need the queues and the output
 *        buffers, which the interrupted thread or another may be changing under a lock. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include "base/log.h"
#include "base/status.h"

struct server;
struct signal_watch;

/* Before any other thread is made. */
void signals_block(void);

/* Starts the thread. Until signal_watch_serving() a stop signal ends the process with code 0: nothing is
 * in flight. */
enum status signal_watch_new(struct signal_watch **out, struct server *server,
                             double drain_timeout_s, const struct log *log, struct error *err);
void signal_watch_serving(struct signal_watch *w);

/* The server is about to be freed: only the time limit of a stop still counts. Accepts NULL. */
void signal_watch_detach(struct signal_watch *w);

/* Ends the thread. Accepts NULL. Call when nothing can hang any more. */
void signal_watch_free(struct signal_watch *w);

#endif
