/* route.h - which handler answers which request, and who may ask.
 *
 * Place: server; called by the connections. The table is the whole of it: a path that is not in it
 *        does not exist, and whatever is not marked open needs the key, before anything else is told
 *        about it. */
#ifndef SERVER_ROUTE_H
#define SERVER_ROUTE_H

#include <stdbool.h>

#include "server/conn.h"

/* The head is complete. False: it was refused, and the answer is in the queue. */
bool route_admit(struct server *s, struct conn *c);
/* The request is complete and was admitted: answer it, or attach a job to c. */
void route_dispatch(struct server *s, struct conn *c);

#endif
