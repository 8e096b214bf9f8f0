/* command.h - one subcommand of the program.
 *
 * Place: cli. Each cmd_<name>.c defines one `const struct command command_<name>`; main.c lists them.
 *        run() gets the arguments after the subcommand's name and returns the exit code. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "base/log.h"
#include "base/status.h"

enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_RUNTIME = 1,
    EXIT_CODE_USAGE = 2,
    EXIT_CODE_MODEL = 3,  /* not found or bad */
    EXIT_CODE_MEMORY = 4, /* memory or device at start */
    EXIT_CODE_FILE_LOST = 70,
    EXIT_CODE_DEVICE_LOST = 71,
    EXIT_CODE_WATCHDOG = 72
};

struct command {
    const char *name;
    const char *summary;  /* one line for --help of the program */
    const char *examples; /* lines, shown at the end of `spillway NAME --help` */
    int (*run)(int argc, char **argv, struct log *log);
    const char *arguments; /* "PROMPT...", for the usage line; NULL: none, or shown as ARG */
};

extern const struct command command_serve, command_run, command_chat, command_tokenize,
    command_render, command_eval, command_bench, command_inspect, command_plan, command_make_model;

/* The exit code that belongs to a start-up failure. */
int exit_code_of(enum status code);

/* Print "spillway: error: <text>" on stderr and return exit_code_of(err->code). */
int command_fail(const struct error *err);

#endif
