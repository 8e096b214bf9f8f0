/* loop.h - the epoll loop: listener, connections, engine events, time, drain.
 *
 * Place: server, private to it. */
#ifndef SERVER_LOOP_H
#define SERVER_LOOP_H

#include "base/status.h"

struct server;

/* Register listener and wake-up with a new epoll set. */
enum status loop_open(struct server *s, struct error *err);
enum status loop_run(struct server *s, struct error *err);
/* Close everything that is still open. */
void loop_close(struct server *s);

#endif
