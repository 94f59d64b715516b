/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What --json prints last: one object that says how the command ended, on every exit. Migrations
 * have a summary; this is for all other commands, and for what ends before a migration begins. */
#include "tools/ib-migrate/ib-migrate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    bool json, always, told;
    const char *command; /* NULL: the command line was wrong before it */
    char sentence[IBX_ERROR_MAX];
} result;

const char *ibx_cli_outcome(int status)
{
    switch (status) {
    case MIGRATE_DONE:
        return "done";
    case MIGRATE_USAGE:
        return "wrong-usage";
    case MIGRATE_UNFINISHED:
        return "unfinished";
    case MIGRATE_ENDED:
        return "ended";
    case MIGRATE_STOPPED:
        return "stopped";
    default:
        return "failed";
    }
}

static void on_end(int status, void *context)
{
    (void)context;
    if (!result.json || result.told || (!status && !result.always))
        return;
    if (status && !*result.sentence)
        snprintf(result.sentence, sizeof(result.sentence), "%s: standard error has the reason",
                 status == MIGRATE_USAGE ? "the command line is wrong" : "it failed");
    ibx_cli_print_json(json_pack("{s:{s:s?, s:s, s:i, s:o}}", "result", "command", result.command,
                                 "outcome", ibx_cli_outcome(status), "exit_status", status, "error",
                                 status ? ibx_json_text(result.sentence) : json_null()));
}

void ibx_cli_result_leave(int status)
{
    on_end(status, NULL);
    fflush(NULL);
    _exit(status);
}

/* Options may be shortened: --j is enough. */
static bool has_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (strlen(argv[i]) > 2 && !strncmp(argv[i], "--json", strlen(argv[i])))
            return true;
    return false;
}

void ibx_cli_result_begin(int argc, char **argv)
{
    result.json = has_json(argc, argv);
    if (result.json && on_exit(on_end, NULL))
        ibx_cli_message("no memory to print the result as JSON");
}

void ibx_cli_result_command(const char *name, bool always)
{
    result.command = name;
    result.always = always;
}

void ibx_cli_result_failed(const char *sentence)
{
    snprintf(result.sentence, sizeof(result.sentence), "%s", sentence);
}

void ibx_cli_result_told(void)
{
    result.told = true;
}
