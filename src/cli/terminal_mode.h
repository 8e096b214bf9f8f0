/* terminal_mode.h - raw mode that does not outlive the program.
 *
 * Place:  cli; under line_editor.
 * Idea:   a shell that gets its terminal back raw is of no use to anybody. So while the terminal is raw,
 *         signals that end the program (HUP, INT, QUIT, TERM; ABRT and BUS of a fault) first put it
 *         back, and then do what they would have done. A signal that was ignored stays ignored.
 * Global: a signal handler gets no context, so what it needs is the one mutable global of this room.
 *         Hence one terminal at a time. */
#ifndef CLI_TERMINAL_MODE_H
#define CLI_TERMINAL_MODE_H

#include <stddef.h>
#include <termios.h>

#include "base/status.h"

struct terminal_mode {
    int in_fd, out_fd;
    struct termios saved, raw;
};

/* Reads the present mode, which is the one to go back to. ERR_IO when in_fd is no terminal. */
enum status terminal_mode_init(struct terminal_mode *m, int in_fd, int out_fd, struct error *err);

/* Keys come one by one and unseen, pasted text comes marked; output stays as it is. */
void terminal_mode_enter(const struct terminal_mode *m);
void terminal_mode_leave(const struct terminal_mode *m);

/* write() until all is out; gives up when the terminal is gone, which the next read tells. */
void terminal_write(int fd, const char *data, size_t len);

#endif
