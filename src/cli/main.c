/* main.c - the program: picks a subcommand.
 *
 * Place: cli. `spillway --model-path ...` without a subcommand is `spillway serve ...`, since that is
 *        how launch lines of other servers look. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "cli/command.h"
#include "cli/man_page.h"

static const struct command *const commands[] = {
    &command_serve, &command_chat,  &command_run,  &command_tokenize, &command_render,
    &command_eval,  &command_bench, &command_plan, &command_inspect,  &command_make_model,
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static void print_help(FILE *out)
{
    fprintf(out, "usage: spillway COMMAND [FLAGS] [ARGUMENTS]\n\n"
                 "Serves hybrid language models (gated delta net, attention, mixture of experts)\n"
                 "over an OpenAI-compatible HTTP API.\n\nCommands\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    }
    fprintf(out,
            "\n  --help, --version; 'spillway COMMAND --help' lists the flags of one command.\n"
            "  Without a command but with flags: serve.\n\n"
            "Examples\n"
            "  spillway chat\n"
            "  spillway serve --model-path models/rill --port 30000\n"
            "  spillway run --model models/rill 'What is a spillway?'\n");
}

static int unknown_command(const char *name)
{
    const char *nearest = NULL;
    size_t best = 4;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        size_t distance = str_distance(name, commands[i]->name);
        if (distance < best) {
            best = distance;
            nearest = commands[i]->name;
        }
    }
    fprintf(stderr, "usage: spillway COMMAND [FLAGS] [ARGUMENTS]   (--help lists the commands)\n");
    fprintf(stderr, "spillway: error: unknown command '%s'%s%s%s\n", name,
            nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
    return EXIT_CODE_USAGE;
}

static int help_for(const char *name, struct log *log)
{
    const struct command *command = find_command(name);
    char help[] = "--help";
    char *argv[] = {help, NULL};
    return command ? command->run(1, argv, log) : unknown_command(name);
}

int main(int argc, char **argv)
{
    struct log log = {.fd = 2, .level = LOG_INFO};
    const char *first = argc > 1 ? argv[1] : "";

    if (argc < 2) {
        print_help(stderr);
        return EXIT_CODE_USAGE;
    }
    if (strcmp(first, "--version") == 0 || strcmp(first, "version") == 0) {
        printf("spillway %s\n", SPILLWAY_VERSION);
        return EXIT_CODE_OK;
    }
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0 || strcmp(first, "help") == 0) {
        if (argc > 2) {
            return help_for(argv[2], &log);
        }
        print_help(stdout);
        return EXIT_CODE_OK;
    }
    if (strcmp(first, "help-man") == 0) {
        return man_page_print(commands, N_COMMANDS, &log);
    }
    if (strncmp(first, "--", 2) == 0) {
        return command_serve.run(argc - 1, argv + 1, &log);
    }
    const struct command *command = find_command(first);
    return command ? command->run(argc - 2, argv + 2, &log) : unknown_command(first);
}
