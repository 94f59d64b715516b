/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shows the progress of a migration, from a thread of its own: see ib-migrate.h. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "tools/options.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define QUEUE   32u
#define LEAVE_S 1   /* in which the rest has to be shown at the end */
#define COLUMNS 80u /* of a terminal that does not report them */

struct entry {
    bool line; /* `text`; else `status` */
    char text[IBX_ERROR_MAX];
    struct ibx_migrate_status status;
};

struct migrate_progress {
    void (*on_leaving)(void);
    bool json, quiet, terminal;
    bool drawn;     /* the bar is in the terminal's last line */
    int last_phase; /* the last phase printed without a terminal; -1 none */
    pthread_t thread;
    sigset_t before; /* the signals that were blocked when the migration began */
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool end;              /* under the lock, like all below */
    unsigned first, count; /* of the queue */
    struct entry queue[QUEUE];
    struct entry now; /* the thread's */
    char last_line[IBX_ERROR_MAX];
};

/* ------------------------------------------------------------ showing */

static unsigned columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col < 2)
        return COLUMNS;
    return size.ws_col;
}

static void draw_bar(struct migrate_progress *p, const struct ibx_migrate_status *status)
{
    char line[1024];
    unsigned width = columns() - 1u; /* the last column would break the line */
    ibx_cli_bar(status, width < sizeof(line) ? width : sizeof(line) - 1u, line, sizeof(line));
    fprintf(stderr, "\r%s\033[K", line);
    p->drawn = true;
}

static void clear_bar(struct migrate_progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

/* Whether a status needs a line in a log. The end is printed by the caller; where a receiver waits,
 * and mostly why a link is broken, by the migration itself. */
static bool worth_a_line(const struct migrate_progress *p, const struct ibx_migrate_status *status)
{
    size_t n = strlen(status->message);
    if (status->phase == IBX_PHASE_RECONNECTING && n && !strncmp(p->last_line, status->message, n))
        return false;
    return status->phase < IBX_PHASE_DONE && (status->source || status->phase != IBX_PHASE_WAITING);
}

static void show_status(struct migrate_progress *p, const struct ibx_migrate_status *status)
{
    if (p->json && isatty(STDOUT_FILENO))
        clear_bar(p);
    if (p->json)
        ibx_cli_print_json(json_pack("{s:o}", "status", ibx_migrate_status_json(status)));
    if (p->quiet)
        return;
    if (p->terminal) {
        draw_bar(p, status);
    } else if (p->last_phase != (int)status->phase && worth_a_line(p, status)) {
        char line[IBX_ERROR_MAX + 128];
        ibx_cli_phase_line(status, line, sizeof(line));
        ibx_cli_message(line);
    }
    p->last_phase = (int)status->phase;
}

static void show_line(struct migrate_progress *p, const char *text)
{
    clear_bar(p);
    snprintf(p->last_line, sizeof(p->last_line), "%s", text);
    if (p->json)
        ibx_cli_print_json(json_pack("{s:o}", "say", ibx_json_text(text)));
    if (p->quiet)
        return;
    ibx_cli_message(text);
}

static void *run(void *arg)
{
    struct migrate_progress *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->count && !p->end)
            ibx_thread_wait(&p->more, &p->lock);
        if (!p->count)
            break;
        p->now = p->queue[p->first];
        p->first = (p->first + 1) % QUEUE;
        p->count--;
        pthread_mutex_unlock(&p->lock);
        if (p->now.line)
            show_line(p, p->now.text);
        else
            show_status(p, &p->now.status);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    clear_bar(p);
    return NULL;
}

/* ------------------------------------------------------------ the migration's thread */

/* Where to put the next status: it replaces the last entry if that is an older status of the same
 * phase, or if the queue is full. */
static struct entry *queue_entry(struct migrate_progress *p,
                                 const struct ibx_migrate_status *status)
{
    struct entry *last = &p->queue[(p->first + p->count - 1) % QUEUE];
    if (p->count &&
        (p->count == QUEUE || (status && !last->line && last->status.phase == status->phase)))
        return last;
    p->count++;
    return &p->queue[(p->first + p->count - 1) % QUEUE];
}

static void on_status(void *context, const struct ibx_migrate_status *status)
{
    struct migrate_progress *p = context;
    if (status->phase >=
        IBX_PHASE_DONE) /* the migration handles signals no more, and our sentence is out of date */
        ibx_cli_result_late_signals();
    pthread_mutex_lock(&p->lock);
    struct entry *entry = queue_entry(p, status);
    entry->line = false;
    entry->status = *status;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
}

static void on_notify(void *context, const char *line)
{
    struct migrate_progress *p = context;
    pthread_mutex_lock(&p->lock);
    struct entry *entry = queue_entry(p, NULL);
    entry->line = true;
    snprintf(entry->text, sizeof(entry->text), "%s", line);
    ibx_text_sanitize(entry->text);
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
}

/* Called by another thread, which then ends the process at once. It does not wait for the showing
 * thread, which may hang on a stopped terminal. */
static void on_leaving(void *context, const struct ibx_migrate_status *last, const char *why)
{
    struct migrate_progress *p = context;
    struct ibx_error err = {0};
    ibx_cli_result_late_signals();
    pthread_sigmask(SIG_SETMASK, &p->before, NULL);
    if (p->on_leaving)
        p->on_leaving();
    pthread_mutex_lock(&p->lock);
    p->end = true;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(LEAVE_S * 1000));
    if (pthread_clockjoin_np(p->thread, NULL, CLOCK_MONOTONIC, &until))
        return;
    ibx_error_set(&err, -ECANCELED, "%s", why);
    if (p->json)
        ibx_cli_print_summary(err.code, MIGRATE_FAILED, last, &err);
    ibx_cli_message(why);
}

int ibx_cli_progress_start(const struct migrate_args *args, struct migrate_progress **out,
                           struct ibx_migrate_observer *observer, struct ibx_error *err)
{
    struct migrate_progress *p = calloc(1, sizeof(*p));
    if (!p)
        return ibx_error_set(err, -ENOMEM, "no memory to show the progress");
    p->on_leaving = args->on_leaving;
    p->json = args->json;
    p->quiet = args->quiet;
    p->terminal = ibx_tool_terminal(STDERR_FILENO);
    p->last_phase = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    /* Signals are for the thread of the migration. */
    pthread_sigmask(SIG_BLOCK, NULL, &p->before);
    const int rc = ibx_thread_begin(&p->thread, run, p);
    if (rc) {
        free(p);
        return ibx_error_set_task(err, rc, "no thread to show the progress");
    }
    ibx_log_over_bar(p->terminal && !p->quiet);
    *observer = (struct ibx_migrate_observer){on_status, on_notify, on_leaving, p};
    *out = p;
    return 0;
}

void ibx_cli_progress_end(struct migrate_progress *p)
{
    pthread_mutex_lock(&p->lock);
    p->end = true;
    pthread_cond_signal(&p->more);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    ibx_log_over_bar(false);
    pthread_cond_destroy(&p->more);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
