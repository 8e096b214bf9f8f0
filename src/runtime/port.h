/* port.h - the way of events from the engine thread to one receiver (inside of engine.h's ports).
 *
 * Place:   runtime; the engine thread pushes, the receiver pops.
 * Owners:  a port is counted: one owner is the receiver (engine_port_free gives it back), one each
 *          unfinished request. So neither side ever pushes into freed memory, whoever goes first.
 * Bound:   tokens stop at PORT_EVENTS_MAX. The last event of a request was allocated when it was
 *          submitted and always fits: there is one per unfinished request. */
#ifndef RUNTIME_PORT_H
#define RUNTIME_PORT_H

#include "runtime/engine.h"

struct port_event {
    struct port_event *next;
    struct engine_event event;
};

struct engine_port *port_ref(struct engine_port *p);
void port_unref(struct engine_port *p);     /* accepts NULL */
bool port_is_closed(struct engine_port *p); /* its receiver is gone */
bool port_is_full(struct engine_port *p);

/* Takes over event->text, also when it fails. ERR_BUSY: full, or its receiver is gone; ERR_NO_MEMORY. */
enum status port_push(struct engine_port *p, struct engine_event *event);
/* Takes over node; cannot fail. */
void port_push_last(struct engine_port *p, struct port_event *node);

#endif
