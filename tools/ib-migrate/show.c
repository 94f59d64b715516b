/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A move's progress, from a thread of its own; why is said in ib-migrate.h. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define QUEUE   32u
#define COLUMNS 80u /* of a terminal that does not know */

struct entry {
    bool line; /* `text`; else `status` */
    char text[IBX_ERROR_MAX];
    struct ibx_migrate_status status;
};

struct migrate_show {
    bool json, quiet, terminal;
    bool drawn;     /* the bar stands in the terminal's line */
    int last_phase; /* told, on what is no terminal; -1 none */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool end;              /* under the lock, like all below */
    unsigned first, count; /* of the queue */
    struct entry queue[QUEUE];
    struct entry now;         /* the thread's */
    char said[IBX_ERROR_MAX]; /* its last line */
};

/* ------------------------------------------------------------ showing */

static unsigned columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 2)
        return COLUMNS;
    return size.ws_col;
}

static void draw(struct migrate_show *show, const struct ibx_migrate_status *status)
{
    char line[1024];
    unsigned width = columns() - 1u; /* the last column would break the line */
    ibx_cli_bar(status, width < sizeof(line) ? width : sizeof(line) - 1u, line, sizeof(line));
    fprintf(stderr, "\r%s\033[K", line);
    show->drawn = true;
}

static void wipe(struct migrate_show *show)
{
    if (show->drawn)
        fputs("\r\033[K", stderr);
    show->drawn = false;
}

/* Phases worth a line of a log: the end is told by who waits for it, where a receiver waits by the
 * move itself, and why a link is broken mostly, too. */
static bool worth_a_line(const struct migrate_show *show, const struct ibx_migrate_status *status)
{
    size_t n = strlen(status->message);
    if (status->phase == IBX_PHASE_BROKEN && n && !strncmp(show->said, status->message, n))
        return false;
    return status->phase < IBX_PHASE_DONE && (status->source || status->phase != IBX_PHASE_WAITING);
}

static void show_status(struct migrate_show *show, const struct ibx_migrate_status *status)
{
    if (show->json && isatty(STDOUT_FILENO))
        wipe(show);
    if (show->json)
        ibx_cli_print_json(json_pack("{s:o}", "status", ibx_migrate_status_json(status)));
    if (show->quiet)
        return;
    if (show->terminal) {
        draw(show, status);
    } else if (show->last_phase != (int)status->phase && worth_a_line(show, status)) {
        char line[IBX_ERROR_MAX + 128];
        ibx_cli_phase_line(status, line, sizeof(line));
        ibx_cli_complain(line);
    }
    show->last_phase = (int)status->phase;
}

static void show_line(struct migrate_show *show, const char *text)
{
    wipe(show);
    snprintf(show->said, sizeof(show->said), "%s", text);
    if (show->json)
        ibx_cli_print_json(json_pack("{s:o}", "say", ibx_json_text(text)));
    if (show->quiet)
        return;
    ibx_cli_complain(text);
}

static void *run(void *arg)
{
    struct migrate_show *show = arg;
    pthread_mutex_lock(&show->lock);
    for (;;) {
        while (!show->count && !show->end)
            pthread_cond_wait(&show->more, &show->lock);
        if (!show->count)
            break;
        show->now = show->queue[show->first];
        show->first = (show->first + 1) % QUEUE;
        show->count--;
        pthread_mutex_unlock(&show->lock);
        if (show->now.line)
            show_line(show, show->now.text);
        else
            show_status(show, &show->now.status);
        pthread_mutex_lock(&show->lock);
    }
    pthread_mutex_unlock(&show->lock);
    wipe(show);
    return NULL;
}

/* ------------------------------------------------------------ the move's side */

/* Where the next entry goes: on top of the last one when that is an older status of the same
 * phase, or when the queue is full. */
static struct entry *place(struct migrate_show *show, const struct ibx_migrate_status *status)
{
    struct entry *last = &show->queue[(show->first + show->count - 1) % QUEUE];
    if (show->count &&
        (show->count == QUEUE || (status && !last->line && last->status.phase == status->phase)))
        return last;
    show->count++;
    return &show->queue[(show->first + show->count - 1) % QUEUE];
}

static void tell_status(void *context, const struct ibx_migrate_status *status)
{
    struct migrate_show *show = context;
    pthread_mutex_lock(&show->lock);
    struct entry *entry = place(show, status);
    entry->line = false;
    entry->status = *status;
    pthread_cond_signal(&show->more);
    pthread_mutex_unlock(&show->lock);
}

static void tell_line(void *context, const char *line)
{
    struct migrate_show *show = context;
    pthread_mutex_lock(&show->lock);
    struct entry *entry = place(show, NULL);
    entry->line = true;
    snprintf(entry->text, sizeof(entry->text), "%s", line);
    ibx_text_sanitize(entry->text);
    pthread_cond_signal(&show->more);
    pthread_mutex_unlock(&show->lock);
}

int ibx_cli_show_start(const struct migrate_args *args, struct migrate_show **out,
                       struct ibx_migrate_observer *observer, struct ibx_error *err)
{
    struct migrate_show *show = calloc(1, sizeof(*show));
    if (!show)
        return ibx_error_set(err, -ENOMEM, "no memory to show the move");
    show->json = args->json;
    show->quiet = args->quiet;
    show->terminal = isatty(STDERR_FILENO);
    show->last_phase = -1;
    pthread_mutex_init(&show->lock, NULL);
    pthread_cond_init(&show->more, NULL);
    /* Signals are for the thread that moves. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = -pthread_create(&show->thread, NULL, run, show);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        free(show);
        return ibx_error_set(err, rc, "no thread to show the move: %s", strerror(-rc));
    }
    ibx_log_over_bar(show->terminal && !show->quiet);
    *observer = (struct ibx_migrate_observer){tell_status, tell_line, show};
    *out = show;
    return 0;
}

void ibx_cli_show_end(struct migrate_show *show)
{
    pthread_mutex_lock(&show->lock);
    show->end = true;
    pthread_cond_signal(&show->more);
    pthread_mutex_unlock(&show->lock);
    pthread_join(show->thread, NULL);
    ibx_log_over_bar(false);
    pthread_cond_destroy(&show->more);
    pthread_mutex_destroy(&show->lock);
    free(show);
}
