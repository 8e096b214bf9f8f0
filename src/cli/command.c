/* command.c - from an error to an exit code. See command.h. */
#include "cli/command.h"

#include <stdio.h>

int exit_code_of(enum status code)
{
    switch (code) {
    case OK:
        return EXIT_CODE_OK;
    case ERR_USAGE:
        return EXIT_CODE_USAGE;
    case ERR_NOT_FOUND:
    case ERR_FORMAT:
    case ERR_UNSUPPORTED:
    case ERR_LIMIT:
        return EXIT_CODE_MODEL;
    case ERR_NO_MEMORY:
    case ERR_DEVICE:
        return EXIT_CODE_MEMORY;
    default:
        return EXIT_CODE_RUNTIME;
    }
}

int command_fail(const struct error *err)
{
    fprintf(stderr, "spillway: error: %s\n", err->text[0] ? err->text : status_name(err->code));
    return exit_code_of(err->code);
}
