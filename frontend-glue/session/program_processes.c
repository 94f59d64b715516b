/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/program_processes.h"

#include "common/clock.h"
#include "common/log.h"
#include "frontend-glue/session/records.h"
#include "frontend-glue/session/session_internal.h"
#include "frontend-glue/session/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAMS     1024u /* processes: each costs some 100 MB here, and a context on the GPU */
#define HANDED_BYTES (1 << 20) /* of connections that a process has not taken yet: 1.3 KB each */
#define LOOK_MS      1000      /* where nothing shows that one has ended */

/* ------------------------------------------------------------------- in a program's process */

static struct {
    int socket; /* to the process that listens, -1: this is no such process */
    int event;
    atomic_uint sessions;
} own = {.socket = -1, .event = -1};

bool ibx_serves_program(void)
{
    return own.socket >= 0;
}

int ibx_program_event(void)
{
    return own.event;
}

void ibx_program_session_begins(void)
{
    atomic_fetch_add(&own.sessions, 1);
}

void ibx_program_session_ended(void)
{
    atomic_fetch_sub(&own.sessions, 1);
    ibx_program_look_again();
}

void ibx_program_look_again(void)
{
    const uint64_t one = 1;
    if (ibx_serves_program() && write(own.event, &one, sizeof(one)) < 0)
        ibx_log(IBX_LOG_WARN, "a process stays that has no clients: %s", strerror(errno));
}

/* The other process says yes by closing the socket, unless it has sent more than was taken. What
 * changes behind the read is another event. */
void ibx_program_look(bool (*anybody)(void), uint64_t taken)
{
    uint64_t times;
    if (read(own.event, &times, sizeof(times)) < 0)
        return;
    if (!(anybody && anybody()) && !atomic_load(&own.sessions))
        send(own.socket, &taken, sizeof(taken), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ------------------------------------------------------------------------- the one that listens */

/*
 * state machine: program's process
 *   [*] -> SPARE             forked before there is a program for it
 *   [*] -> SERVES            forked for a program
 *   SPARE -> SERVES          a program has come
 *   SERVES -> LET_GO         it asked, or takes nothing: it gets no more connections, and ends
 *   SPARE | SERVES | LET_GO -> [*]  it has ended
 */
enum program_state { PROGRAM_SPARE, PROGRAM_SERVES, PROGRAM_LET_GO };

static const struct ibx_state program_states[] = {
    [PROGRAM_SPARE] = {"spare", IBX_TO(PROGRAM_SERVES), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [PROGRAM_SERVES] = {"serves", IBX_TO(PROGRAM_LET_GO), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [PROGRAM_LET_GO] = {"let go", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table program_table =
    IBX_STATE_TABLE("program's process", program_states);

/* What the clients of a program have in common. */
struct client {
    uint8_t number[IBX_PROGRAM_BYTES]; /* zeros: of all whose programs say none */
    char name[IBX_NAME_MAX + 1];       /* of its key */
    bool has_user;                     /* likewise, where that is known */
    unsigned user;
    char peer[128]; /* the first one */
};

struct program {
    struct ibx_state_machine state; /* enum program_state */
    pid_t process;
    int process_fd, socket; /* the latter -1: it was let go */
    uint64_t began_ns;
    struct client of;                 /* zeros: of a spare process */
    uint64_t given;                   /* connections that it will take, or has taken */
    unsigned place;                   /* of those that the hooks know */
    const struct pollfd *asks, *ends; /* NULL: nothing shows it */
};

struct programs {
    struct ibx_listener *listener;
    struct ibx_records *records; /* NULL: no session survives its connection */
    const struct ibx_session_hooks *hooks;
    void *context; /* the hooks' */
    unsigned most_of_a_name, spares;
    struct program *all[PROGRAMS];
    bool placed[PROGRAMS];
    unsigned count;
};

/* What a client has to have in common with those of a program. Its number alone is no proof: others
 * may have seen it. */
static struct client whose(const struct ibx_conn *conn)
{
    struct client like = {0};
    const struct ibx_path *path = ibx_conn_path(conn);
    const uint8_t *number = ibx_conn_program(conn);
    if (number)
        memcpy(like.number, number, sizeof(like.number));
    memcpy(like.name, path->name, sizeof(like.name));
    memcpy(like.peer, path->peer, sizeof(like.peer));
    like.has_user = !path->remote && !ibx_conn_user(conn, &like.user);
    return like;
}

static bool one_owner(const struct client *a, const struct client *b)
{
    return !strcmp(a->name, b->name) && !(a->has_user && b->has_user && a->user != b->user);
}

/* A program that moves between hosts has a user, or none, and its number shows that it is the same
 * one. Who has no number could get into others' process by being on another host, as it says. */
static bool same_program(const struct client *a, const struct client *b)
{
    static const uint8_t none[IBX_PROGRAM_BYTES];
    return !memcmp(a->number, b->number, sizeof(a->number)) && one_owner(a, b) &&
           (a->has_user == b->has_user || memcmp(a->number, none, sizeof(none)) != 0);
}

static struct program *find(const struct programs *programs, const struct client *like)
{
    for (unsigned i = 0; i < programs->count; i++) {
        struct program *p = programs->all[i];
        if (p->state.now == PROGRAM_SERVES && same_program(&p->of, like))
            return p;
    }
    return NULL;
}

/* The one that has waited longest: its context is made, if any is. */
static struct program *find_spare(const struct programs *programs)
{
    struct program *found = NULL;
    for (unsigned i = 0; i < programs->count; i++) {
        struct program *p = programs->all[i];
        if (p->state.now == PROGRAM_SPARE && p->socket >= 0 &&
            (!found || p->began_ns < found->began_ns))
            found = p;
    }
    return found;
}

/* Of the session with which the connection goes on. NULL: it has just ended. The records are other
 * processes' memory, too: they do not say whom a client may come to. */
static struct program *find_session(const struct programs *programs, const uint8_t *id,
                                    const struct client *like)
{
    pid_t process = 0;
    if (!programs->records)
        return NULL;
    ibx_records_lock(programs->records);
    const struct ibx_record *record = ibx_records_find(programs->records, id);
    if (record)
        process = record->process;
    ibx_records_unlock(programs->records);
    for (unsigned i = 0; process && i < programs->count; i++) {
        struct program *p = programs->all[i];
        if (p->process == process)
            return p->state.now == PROGRAM_SERVES && one_owner(&p->of, like) ? p : NULL;
    }
    return NULL;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void drop(struct programs *programs, unsigned index)
{
    struct program *p = programs->all[index];
    close_fd(&p->socket);
    close_fd(&p->process_fd);
    programs->placed[p->place] = false;
    free(p);
    programs->all[index] = programs->all[--programs->count];
}

/* In the child: of the process that listens it keeps nothing. */
static void become(struct programs *programs, const struct program *p, int socket, int event)
{
    if (programs->hooks->program_begins)
        programs->hooks->program_begins(p->place);
    while (programs->count)
        drop(programs, programs->count - 1);
    ibx_listener_take_from(programs->listener, socket);
    own.socket = socket;
    own.event = event;
    atomic_store(&own.sessions, 0);
    ibx_program_look_again(); /* the first client may not be handed over */
    if (p->state.now == PROGRAM_SPARE && programs->hooks->make_ready)
        programs->hooks->make_ready(programs->context);
}

/* Those without a key are one tenant, which has all there are. */
static bool too_many(const struct programs *programs, const char *name)
{
    unsigned n = 0;
    for (unsigned i = 0; i < programs->count; i++) {
        const struct program *p = programs->all[i];
        n += p->state.now != PROGRAM_SPARE && !strcmp(p->of.name, name);
    }
    return (programs->count == PROGRAMS && !find_spare(programs)) ||
           (*name && n >= programs->most_of_a_name);
}

static unsigned place_of(struct programs *programs)
{
    unsigned place = 0;
    while (programs->placed[place])
        place++;
    programs->placed[place] = true;
    return place;
}

/* NULL: it could not be had, and errno says why; or this is the child. */
static struct program *begin(struct programs *programs, enum program_state first)
{
    const int room = HANDED_BYTES;
    int sockets[2] = {-1, -1}, event = -1;
    struct program *p = calloc(1, sizeof(*p));
    if (!p || ibx_state_begin(&p->state, &program_table, first) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets))
        goto failed;
    setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->socket = sockets[0];
    p->place = place_of(programs);
    p->began_ns = ibx_now_ns();
    p->process = event < 0 ? -1 : ibx_supervised_fork();
    if (p->process < 0) {
        programs->placed[p->place] = false;
        goto failed;
    }
    if (!p->process) {
        close(sockets[0]);
        become(programs, p, sockets[1], event);
        free(p);
        return NULL;
    }
    close(event);
    close(sockets[1]);
    p->process_fd = (int)syscall(SYS_pidfd_open, p->process, 0);
    programs->all[programs->count++] = p;
    return p;
failed:;
    const int code = errno;
    free(p);
    close_fd(&event);
    close_fd(&sockets[0]);
    close_fd(&sockets[1]);
    errno = code;
    return NULL;
}

/* The same, for a program that has none yet. */
static struct program *begin_for(struct programs *programs, const struct client *like)
{
    struct program *p = find_spare(programs);
    if (p)
        ibx_state_move(&p->state, PROGRAM_SERVES);
    else
        p = begin(programs, PROGRAM_SERVES);
    if (p)
        p->of = *like;
    return p;
}

static const char *remedy(int code)
{
    return code == EMFILE   ? IBX_ERROR_MORE_FILES
           : code == EAGAIN ? "; raise the limit on processes (ulimit -u)"
                            : "";
}

/* At the beginning, and when a program has taken one. One that ends by itself is not replaced at
 * once: the next may end as well. False: this is a child. */
static bool begin_spares(struct programs *programs)
{
    unsigned n = 0;
    for (unsigned i = 0; i < programs->count; i++)
        n += programs->all[i]->state.now == PROGRAM_SPARE;
    for (; n < programs->spares && programs->count < PROGRAMS; n++) {
        if (begin(programs, PROGRAM_SPARE))
            continue;
        if (ibx_serves_program())
            return false;
        ibx_log(IBX_LOG_WARN, "there is no spare process for the next program: %s%s",
                strerror(errno), remedy(errno));
        break;
    }
    return true;
}

static void let_go(struct program *p)
{
    close_fd(&p->socket);
    ibx_state_move(&p->state, PROGRAM_LET_GO);
}

static void turn_away(struct ibx_conn *conn, const char *why)
{
    ibx_log(IBX_LOG_ERROR, "%s is turned away: there is no process for its program: %s",
            ibx_conn_path(conn)->peer, why);
    ibx_close(conn);
}

/* False: this is the child. */
static bool route(struct programs *programs, struct ibx_conn *conn)
{
    const uint8_t *claimed = ibx_conn_claimed(conn);
    const struct client like = whose(conn);
    struct program *p = claimed ? find_session(programs, claimed, &like) : find(programs, &like);
    if (!p && claimed) {
        ibx_close(conn);
        return true;
    }
    if (!p && too_many(programs, like.name)) {
        turn_away(conn,
                  "the programs of its key's name have as many as rdma.tenant_share allows, or "
                  "all 1024 are taken");
        return true;
    }
    const bool begins = !p;
    if (begins)
        p = begin_for(programs, &like);
    if (!p && ibx_serves_program()) { /* the other process hands it over, too */
        ibx_close(conn);
        return false;
    }
    if (!p) {
        char why[160];
        snprintf(why, sizeof(why), "%s%s", strerror(errno), remedy(errno));
        turn_away(conn, why);
        return true;
    }
    const int rc = ibx_conn_hand_over(conn, p->socket);
    p->given += !rc;
    if (rc)
        ibx_log(IBX_LOG_ERROR,
                "%s is turned away: process %d, which serves its program, takes no "
                "connection: %s",
                like.peer, (int)p->process, strerror(-rc));
    if (!p->given) /* nobody else is on the way */
        let_go(p);
    return !begins || begin_spares(programs);
}

/* It asks to be let go, or its end of the socket is closed. What it has asked last counts. */
static void heard(struct program *p)
{
    uint64_t taken = 0;
    ssize_t n;
    bool asks = false;
    while ((n = recv(p->socket, &taken, sizeof(taken), MSG_DONTWAIT)) > 0)
        asks = taken == p->given;
    if ((asks || n == 0) && p->state.now == PROGRAM_SERVES)
        let_go(p);
    else if (n == 0) /* a spare one that has ended */
        close_fd(&p->socket);
}

static void tell(const struct program *p, int status)
{
    const bool spare = p->state.now == PROGRAM_SPARE;
    char of[160] = "waited for a program";
    if (!spare)
        snprintf(of, sizeof(of), "served a program of %s", p->of.peer);
    if (WIFSIGNALED(status))
        ibx_log(IBX_LOG_ERROR,
                "process %d of the back end, which %s, has ended by signal %d (%s)%s",
                (int)p->process, of, WTERMSIG(status), strsignal(WTERMSIG(status)),
                spare ? "" : ": what that program had is lost, others go on");
    else
        ibx_log(IBX_LOG_INFO, "process %d, which %s, has ended", (int)p->process, of);
}

/* Whether it has ended. */
static bool reap(const struct programs *programs, const struct program *p)
{
    int status = 0;
    if (waitpid(p->process, &status, WNOHANG) != p->process)
        return false;
    if (programs->records) {
        ibx_records_lock(programs->records);
        ibx_records_forget(programs->records, p->process);
        ibx_records_unlock(programs->records);
    }
    if (programs->hooks->program_ended)
        programs->hooks->program_ended(p->place);
    tell(p, status);
    return true;
}

static void look_at(struct programs *programs)
{
    for (unsigned i = programs->count; i-- > 0;) {
        struct program *p = programs->all[i];
        if (p->asks && p->asks->revents)
            heard(p);
        if ((!p->ends || p->ends->revents) && reap(programs, p))
            drop(programs, i);
    }
}

/* False: this is a child. */
static bool take(struct programs *programs)
{
    struct ibx_error why = {0};
    struct ibx_conn *conn;
    const int rc = ibx_accept(programs->listener, &conn, &why);
    if (!rc)
        return route(programs, conn);
    if (rc != -EAGAIN) { /* for want of descriptors, mostly */
        ibx_log(IBX_LOG_ERROR, "%s", why.message);
        poll(NULL, 0, 100);
    }
    return true;
}

static const struct pollfd *watch(struct pollfd *waits, nfds_t *n, int fd)
{
    if (fd < 0)
        return NULL;
    waits[*n] = (struct pollfd){.fd = fd, .events = POLLIN};
    return &waits[(*n)++];
}

/* What takes a place is a descriptor that is open: poll(2) takes no more than there may be. */
static int wait_for_any(struct programs *programs, struct pollfd *waits)
{
    nfds_t n = 0;
    int timeout_ms = -1;
    watch(waits, &n, ibx_listener_fd(programs->listener));
    for (unsigned i = 0; i < programs->count; i++) {
        struct program *p = programs->all[i];
        p->asks = watch(waits, &n, p->socket);
        p->ends = watch(waits, &n, p->process_fd);
        if (!p->ends) /* the system has no pidfd_open(2), or forbids it */
            timeout_ms = LOOK_MS;
    }
    return poll(waits, n, timeout_ms);
}

int ibx_programs_serve(struct ibx_session *listening)
{
    const struct ibx_program_processes *wanted = &listening->programs;
    static struct pollfd waits[2 * PROGRAMS + 1];
    static struct programs programs;
    programs = (struct programs){.listener = listening->listener,
                                 .records = ibx_waiting_records(listening->link.waiting),
                                 .hooks = listening->hooks,
                                 .context = listening->context,
                                 .most_of_a_name = PROGRAMS * wanted->share / 100,
                                 .spares = wanted->spares};
    if (programs.hooks->programs && !programs.hooks->programs(PROGRAMS))
        return -ENOMEM;
    if (!begin_spares(&programs))
        return 0;
    for (;;) {
        if (wait_for_any(&programs, waits) < 0) {
            if (errno != EINTR) {
                ibx_log(IBX_LOG_ERROR, "waiting for clients: %s", strerror(errno));
                poll(NULL, 0, LOOK_MS);
            }
            continue;
        }
        look_at(&programs);
        if (waits[0].revents && !take(&programs))
            return 0;
    }
}
