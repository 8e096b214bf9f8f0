/* man_page.h - the manual page, from the flag tables.
 *
 * Place: cli; behind the hidden command `spillway help-man`, whose output is docs/spillway.1. A test
 *        compares the two, so that the page cannot drift from the program. */
#ifndef CLI_MAN_PAGE_H
#define CLI_MAN_PAGE_H

#include <stddef.h>

#include "cli/command.h"

/* Prints the page on standard output; the commands print their own sections. */
int man_page_print(const struct command *const *commands, size_t n_commands, struct log *log);

#endif
