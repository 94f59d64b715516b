/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What --json prints last: one object that says how the command ended, on every exit. Migrations
 * print a summary; this is for all other commands, and for failures before a migration begins. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/signals.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    bool json, always, told;
    const char *command; /* NULL: not known, since the command line is wrong */
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
    case MIGRATE_LOST:
        return "lost";
    default:
        return "failed";
    }
}

static void on_end(int status, void *context)
{
    (void)context;
    if (!result.json || result.told || (!status && !result.always))
        return;
    result.told = true;
    if (status && !*result.sentence)
        snprintf(result.sentence, sizeof(result.sentence), "%s: standard error has the reason",
                 status == MIGRATE_USAGE ? "the command line is wrong" : "it failed");
    ibx_cli_print_json(json_pack("{s:{s:s?, s:s, s:i, s:o}}", "result", "command", result.command,
                                 "outcome", ibx_cli_outcome(status), "exit_status", status, "error",
                                 status ? ibx_json_text(result.sentence) : json_null()));
}

/* ------------------------------------------------------------ signals */

/* What a signal prints, made beforehand, since a signal handler must not. */
static struct {
    char message[IBX_ERROR_MAX], json[2 * IBX_ERROR_MAX];
    void (*leave)(void);
    int status;
} early;

/* Waits until there is room, where a further signal comes in (ppoll(2)), and writes at once: pipes
 * and terminals with room have it for all of a result. */
static void put(int fd, const char *text, const sigset_t *signals)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    ppoll(&room, 1, NULL, signals);
    const ssize_t ignored = write(fd, text, strlen(text));
    (void)ignored; /* a failed write changes nothing */
}

/* A further signal ends what waits for somebody to take its output, and nothing else. */
static void on_signal(int number)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    sigset_t all, before;
    (void)number;
    if (early.leave)
        early.leave();
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    if (atomic_flag_test_and_set(&told))
        _exit(early.status);
    put(STDERR_FILENO, early.message, &before);
    if (result.json && !result.told)
        put(STDOUT_FILENO, early.json, &before);
    _exit(early.status);
}

/* Sets the handler, except for signals that were ignored from the start. It is called once: a
 * further signal ends a process that waits in it, or after it, for its output. */
static void handle(void (*how)(int))
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = how,
                               .sa_flags = SA_RESTART | SA_NODEFER | (int)SA_RESETHAND};
    sigset_t heeded;
    sigemptyset(&action.sa_mask);
    ibx_signals_heeded(numbers, sizeof(numbers) / sizeof(numbers[0]), &heeded);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (sigismember(&heeded, numbers[i]))
            sigaction(numbers[i], &action, NULL);
}

void ibx_cli_result_on_signal(int status, const char *sentence)
{
    json_t *line =
        json_pack("{s:{s:s, s:s, s:i, s:s}}", "result", "command", result.command, "outcome",
                  ibx_cli_outcome(status), "exit_status", status, "error", sentence);
    char *text = json_dumps(line, JSON_COMPACT);
    snprintf(early.json, sizeof(early.json), "%s\n", text ? text : "");
    snprintf(early.message, sizeof(early.message), "ib-migrate: %s\n", sentence);
    early.status = status;
    free(text);
    json_decref(line);
    handle(on_signal);
}

/* SIGBUS: a QEMU can truncate the file of its memory, without which this process cannot continue.
 * The handler raises the signal again, which ends the process. (Returning would not suffice: if the
 * kernel reports broken memory before it is used, no instruction is repeated.) */
static void on_bus_error(int number)
{
    static const char why[] =
        "ib-migrate: a file that is mapped here, of guest RAM, of a snapshot or of what this "
        "migration notes (/dev/shm/ibx-*), was cut short, or this host's memory is broken: this "
        "tool ends; \"ib-migrate status\" tells what it leaves\n";
    const ssize_t ignored = write(STDERR_FILENO, why, sizeof(why) - 1);
    (void)ignored;
    raise(number);
}

void ibx_cli_result_on_bus_error(void)
{
    struct sigaction action = {.sa_handler = on_bus_error, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

void ibx_cli_result_on_leaving(void (*leave)(void))
{
    early.leave = leave;
}

static void on_late_signal(int number)
{
    (void)number;
}

void ibx_cli_result_late_signals(void)
{
    handle(on_late_signal);
}

void ibx_cli_result_off_signals(void)
{
    handle(SIG_DFL);
}

/* ------------------------------------------------------------ exits */

void ibx_cli_result_leave(int status)
{
    on_end(status, NULL);
    fflush(NULL);
    _exit(status);
}

/* Whether the line has --json; options may be abbreviated, as --j. */
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
