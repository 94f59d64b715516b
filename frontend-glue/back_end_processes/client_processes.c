/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/back_end_processes/client_processes.h"

#include "common/clock.h"
#include "common/descriptor.h"
#include "common/log.h"
#include "common/own_user.h"
#include "common/quota.h"
#include "frontend-glue/back_end_processes/process_owners.h"
#include "frontend-glue/back_end_processes/supervisor.h"
#include "frontend-glue/session/client_process.h"
#include "frontend-glue/session/hooks.h"
#include "frontend-glue/session/records.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES    IBX_PROCESSES_MOST
#define HANDED_BYTES (1 << 20) /* of connections in a socket, 1.3 KB each */
#define HEARD_MOST   64u       /* messages read from one process at a time, since others wait */
#define LOOK_MS      1000      /* how often to look, if nothing reports the end of a process */

/*
 * state machine: process of clients
 *   [*] -> SPARE             forked before there is a client for it
 *   [*] -> SERVES            forked for clients
 *   SPARE -> SERVES          they have come
 *   SERVES -> RETIRES        its contexts are broken: it gets only connections of its own programs
 *   SERVES | RETIRES -> LET_GO  it asked, or accepts nothing: it gets no more, and ends
 *   SPARE | SERVES | RETIRES | LET_GO -> [*]  it has ended
 */
enum process_state { PROCESS_SPARE, PROCESS_SERVES, PROCESS_RETIRES, PROCESS_LET_GO };

static const struct ibx_state process_states[] = {
    [PROCESS_SPARE] = {"spare", IBX_TO(PROCESS_SERVES), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [PROCESS_SERVES] = {"serves", IBX_TO(PROCESS_RETIRES) | IBX_TO(PROCESS_LET_GO),
                        IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [PROCESS_RETIRES] = {"retires", IBX_TO(PROCESS_LET_GO), IBX_STATE_FINAL},
    [PROCESS_LET_GO] = {"let go", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table process_table =
    IBX_STATE_TABLE("process of clients", process_states);

struct process {
    struct ibx_state_machine state; /* enum process_state */
    pid_t process;
    int process_fd, socket; /* socket -1: it was let go */
    uint64_t began_ns;
    struct ibx_process_clients of;    /* zeros in a spare process */
    uint64_t given;                   /* connections that were sent to it */
    int charge;                       /* bytes of the socket's buffer that each takes; 0: unknown */
    unsigned place;                   /* its number for the hooks */
    const struct pollfd *asks, *ends; /* NULL: not polled */
};

struct processes {
    struct ibx_session_listening of;
    struct rlimit files; /* the original limit, for the children */
    struct process *all[PROCESSES];
    bool placed[PROCESSES];
    unsigned count;
};

static bool takes(const struct process *p)
{
    return p->state.now == PROCESS_SERVES || p->state.now == PROCESS_RETIRES;
}

static struct process *find_tenant(const struct processes *processes,
                                   const struct ibx_process_client *like)
{
    struct process *found = NULL;
    for (unsigned i = 0; i < processes->count; i++) {
        struct process *p = processes->all[i];
        if (takes(p) && ibx_process_clients_have(&p->of, like))
            return p;
        if (p->state.now == PROCESS_SERVES && ibx_process_same_tenant(&p->of.first, like))
            found = p;
    }
    return found;
}

static struct process *find(const struct processes *processes,
                            const struct ibx_process_client *like)
{
    if (processes->of.processes->each == IBX_PROCESSES_TENANT)
        return find_tenant(processes, like);
    for (unsigned i = 0; i < processes->count; i++) {
        struct process *p = processes->all[i];
        if (takes(p) && ibx_process_same_program(&p->of.first, like))
            return p;
    }
    return NULL;
}

/* The oldest spare process: its context is the most likely to be ready. */
static struct process *find_spare(const struct processes *processes)
{
    struct process *found = NULL;
    for (unsigned i = 0; i < processes->count; i++) {
        struct process *p = processes->all[i];
        if (p->state.now == PROCESS_SPARE && p->socket >= 0 &&
            (!found || p->began_ns < found->began_ns))
            found = p;
    }
    return found;
}

/* The process of the session that the connection continues. NULL: the session has just ended. The
 * records are shared with other processes, so they do not decide to whom a client may come. */
static struct process *find_session(const struct processes *processes, const uint8_t *id,
                                    const struct ibx_process_client *like)
{
    struct ibx_record record;
    const pid_t process =
        processes->of.records ? ibx_records_find(processes->of.records, id, &record) : 0;
    explicit_bzero(&record, sizeof(record));
    for (unsigned i = 0; process && i < processes->count; i++) {
        struct process *p = processes->all[i];
        if (p->process == process)
            return takes(p) && ibx_process_one_owner(&p->of.first, like) ? p : NULL;
    }
    return NULL;
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void drop(struct processes *processes, unsigned index)
{
    struct process *p = processes->all[index];
    close_fd(&p->socket);
    close_fd(&p->process_fd);
    processes->placed[p->place] = false;
    ibx_process_clients_forget(&p->of);
    free(p);
    processes->all[index] = processes->all[--processes->count];
}

/* In the child: closes all that belongs to the listening process. */
static void become(struct processes *processes, const struct process *p, int socket, int event)
{
    if (processes->of.hooks->process_begins)
        processes->of.hooks->process_begins(p->place);
    while (processes->count)
        drop(processes, processes->count - 1);
    setrlimit(RLIMIT_NOFILE, &processes->files);
    ibx_listener_take_from(processes->of.listener, socket);
    const bool stays = processes->of.processes->each == IBX_PROCESSES_TENANT;
    ibx_client_process_begin(socket, event,
                             stays ? processes->of.processes->idle_seconds * 1000 : 0);
    if (p->state.now == PROCESS_SPARE && processes->of.hooks->make_ready)
        processes->of.hooks->make_ready(processes->of.context);
}

/* Each process needs two descriptors here, and some are left for clients that were not
 * authenticated yet. */
static unsigned most_of_all(const struct processes *processes)
{
    struct rlimit limit;
    const unsigned most = processes->of.processes->most;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur / 8 >= most / 3 + 1)
        return most;
    return 3 * (unsigned)(limit.rlim_cur / 8);
}

/* Whether the process counts for the client's share. Spare ones belong to nobody. */
static bool shares(const struct process *p, const struct ibx_process_client *like)
{
    return *like->name ? !strcmp(p->of.first.name, like->name)
                       : ibx_process_same_tenant(&p->of.first, like);
}

static unsigned share_of(const struct processes *processes, const struct ibx_process_client *like)
{
    const bool own = !*like->name && like->has_user && ibx_is_own_user(like->user);
    return own ? processes->of.processes->own_share : processes->of.processes->share;
}

/* Clients with neither a name nor a user have no separate share. */
static bool too_many(const struct processes *processes, const struct ibx_process_client *like)
{
    const unsigned all = most_of_all(processes);
    const uint64_t most = ibx_quota_share(all, share_of(processes, like));
    unsigned n = 0;
    for (unsigned i = 0; i < processes->count; i++)
        n += shares(processes->all[i], like);
    return (processes->count >= all && !find_spare(processes)) ||
           ((*like->name || like->has_user) && n >= (most ? most : 1));
}

static const char crowded[] =
    "no process is left for another client: those of this key's name (without keys: this user) "
    "have as many as rdma.tenant_share of the back end allows, or all are taken "
    "(rdma.most_processes, fewer where it may open few files): end one of them";

/* Called before the client learns that the server was authenticated: after that no frame can carry
 * a reason. */
static const char *refuses(void *context, const struct ibx_conn *conn, const char *name)
{
    const struct processes *processes = context;
    if (!processes->of.listener || ibx_conn_claimed(conn))
        return NULL;
    const struct ibx_process_client like = ibx_process_client_of(conn, name);
    return !too_many(processes, &like) || find(processes, &like) ? NULL : crowded;
}

static unsigned place_of(struct processes *processes)
{
    unsigned place = 0;
    while (processes->placed[place])
        place++;
    processes->placed[place] = true;
    return place;
}

/* Forks a process. NULL: it failed (errno), or this is the child. */
static struct process *begin(struct processes *processes, enum process_state first)
{
    const int room = HANDED_BYTES;
    int sockets[2] = {-1, -1}, event = -1;
    struct process *p = calloc(1, sizeof(*p));
    if (!p || ibx_state_begin(&p->state, &process_table, first) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets))
        goto failed;
    setsockopt(sockets[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->socket = sockets[0];
    p->place = place_of(processes);
    p->began_ns = ibx_now_ns();
    p->process = event < 0 ? -1 : ibx_supervised_fork();
    if (p->process < 0) {
        processes->placed[p->place] = false;
        goto failed;
    }
    if (!p->process) {
        close(sockets[0]);
        become(processes, p, sockets[1], event);
        free(p);
        return NULL;
    }
    close(event);
    close(sockets[1]);
    p->process_fd = (int)syscall(SYS_pidfd_open, p->process, 0);
    processes->all[processes->count++] = p;
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

/* Forks one for clients that have none yet. */
static struct process *begin_for(struct processes *processes, const struct ibx_process_client *like)
{
    struct process *p = find_spare(processes);
    if (p)
        ibx_state_move(&p->state, PROCESS_SERVES);
    else
        p = begin(processes, PROCESS_SERVES);
    if (!p)
        return NULL;
    p->of.first = *like;
    if (processes->of.hooks->process_serves)
        processes->of.hooks->process_serves(p->place, like->name,
                                            like->has_user ? &like->user : NULL);
    return p;
}

static const char *remedy(int code)
{
    return code == EMFILE ? IBX_ERROR_MORE_FILES : code == EAGAIN ? "; " IBX_ERROR_RAISE_TASKS : "";
}

/* Forks spare processes at the start, and after clients have taken one. One that ends by itself is
 * not replaced at once, because the next may end, too. False: this is a child. */
static bool begin_spares(struct processes *processes)
{
    unsigned n = 0;
    for (unsigned i = 0; i < processes->count; i++)
        n += processes->all[i]->state.now == PROCESS_SPARE;
    for (; n < processes->of.processes->spares && processes->count < most_of_all(processes); n++) {
        if (begin(processes, PROCESS_SPARE))
            continue;
        if (ibx_client_process())
            return false;
        ibx_log(IBX_LOG_WARN, "there is no spare process for the next client: %s%s",
                strerror(errno), remedy(errno));
        break;
    }
    return true;
}

static void let_go(struct process *p)
{
    close_fd(&p->socket);
    ibx_state_move(&p->state, PROCESS_LET_GO);
}

static void turn_away(struct ibx_conn *conn, const char *why)
{
    ibx_log(IBX_LOG_ERROR, "%s is turned away: there is no process for it: %s",
            ibx_conn_path(conn)->peer, why);
    ibx_close(conn);
}

/* Connections that were sent to the process and that it has not accepted. */
static unsigned waiting(const struct process *p)
{
    int bytes = 0;
    if (p->socket < 0 || ioctl(p->socket, SIOCOUTQ, &bytes) || bytes <= 0)
        return 0;
    return p->charge ? (unsigned)(bytes / p->charge) : 1;
}

/* A stopped process accepts none. A user other than root may not have more descriptors in transit
 * than each of his processes may open, so some are reserved for other processes. */
static bool too_many_wait(const struct processes *processes, const struct ibx_process_client *like)
{
    const rlim_t most = processes->files.rlim_cur;
    rlim_t n = 0;
    if (most == RLIM_INFINITY)
        return false;
    for (unsigned i = 0; i < processes->count; i++) {
        if (shares(processes->all[i], like))
            n += waiting(processes->all[i]);
    }
    return n && n >= ibx_quota_share(most, processes->of.processes->share);
}

static const char too_slow[] =
    "as many connections of this key's name (without keys: of this user) have come to no process "
    "yet as rdma.tenant_share of the limit on open files (ulimit -n) allows";

static int hand_over(struct process *p, struct ibx_conn *conn)
{
    const bool first = !waiting(p);
    const int rc = ibx_conn_hand_over(conn, p->socket);
    int bytes = 0;
    p->given += !rc;
    if (!rc && first && !ioctl(p->socket, SIOCOUTQ, &bytes) && bytes > 0)
        p->charge = bytes;
    return rc;
}

/* False: this is the child. */
static bool route(struct processes *processes, struct ibx_conn *conn)
{
    const uint8_t *claimed = ibx_conn_claimed(conn);
    const struct ibx_process_client like = ibx_process_client_of(conn, ibx_conn_path(conn)->name);
    struct process *p = claimed ? find_session(processes, claimed, &like) : find(processes, &like);
    if (!p && claimed) {
        ibx_close(conn);
        return true;
    }
    if (!p && too_many(processes, &like)) {
        turn_away(conn, crowded); /* another client has come meanwhile */
        return true;
    }
    if (p && waiting(p) && too_many_wait(processes, &like)) {
        turn_away(conn, too_slow);
        return true;
    }
    const bool begins = !p;
    if (begins)
        p = begin_for(processes, &like);
    if (!p && ibx_client_process()) { /* this is the child; the listening process sends it the
                                         connection */
        ibx_close(conn);
        return false;
    }
    if (!p) {
        char why[160];
        snprintf(why, sizeof(why), "%s%s", strerror(errno), remedy(errno));
        turn_away(conn, why);
        return true;
    }
    const int rc = hand_over(p, conn);
    if (!rc && processes->of.processes->each == IBX_PROCESSES_TENANT)
        ibx_process_clients_note(&p->of, &like);
    if (rc)
        ibx_log(IBX_LOG_ERROR, "%s is turned away: its process %d takes no connection: %s",
                like.peer, (int)p->process,
                rc == -ETOOMANYREFS ? IBX_DESCRIPTOR_TOO_MANY : strerror(-rc));
    if (!p->given) /* no other client is on its way */
        let_go(p);
    return !begins || begin_spares(processes);
}

/* The process asks to be let go, or has closed the socket. Only its last request counts. */
static void heard(struct process *p)
{
    uint64_t taken = 0;
    ssize_t n = 1;
    bool asks = false;
    for (unsigned i = 0; n > 0 && i < HEARD_MOST; i++) {
        n = recv(p->socket, &taken, sizeof(taken), MSG_DONTWAIT);
        asks = n > 0 ? taken == p->given : asks;
        if (n > 0 && taken == IBX_CLIENT_PROCESS_RETIRES && p->state.now == PROCESS_SERVES)
            ibx_state_move(&p->state, PROCESS_RETIRES);
    }
    if ((asks || n == 0) && takes(p))
        let_go(p);
    else if (n == 0) /* a spare process that has ended */
        close_fd(&p->socket);
}

static void tell(const struct process *p, const siginfo_t *end)
{
    const bool spare = p->state.now == PROCESS_SPARE;
    char of[160] = "waited for clients";
    if (!spare)
        snprintf(of, sizeof(of), "served clients of %s", p->of.first.peer);
    const char *const lost = spare ? "" : ": what they had is lost, others go on";
    const int status = end->si_status;
    if (end->si_code != CLD_EXITED)
        ibx_log(IBX_LOG_ERROR,
                "process %d of the back end, which %s, has ended by signal %d (%s)%s",
                (int)p->process, of, status, strsignal(status), lost);
    else if (status) /* a library of CUDA's, or GVirtuS, has called exit(3) */
        ibx_log(IBX_LOG_ERROR, "process %d of the back end, which %s, has ended with status %d%s",
                (int)p->process, of, status, lost);
    else
        ibx_log(IBX_LOG_INFO, "process %d, which %s, has ended", (int)p->process, of);
}

/* Reaps the process; returns whether it has ended. Once its number is gone, the log has the line
 * about it: whoever ends the back end then loses nothing. */
static bool reap(const struct processes *processes, const struct process *p)
{
    siginfo_t end = {0};
    if (waitid(P_PID, (id_t)p->process, &end, WEXITED | WNOHANG | WNOWAIT) || !end.si_pid)
        return false;
    tell(p, &end);
    waitpid(p->process, NULL, 0);
    if (processes->of.records)
        ibx_records_forget(processes->of.records, p->process);
    if (processes->of.hooks->process_ended)
        processes->of.hooks->process_ended(p->place);
    return true;
}

static void look_at(struct processes *processes)
{
    for (unsigned i = processes->count; i-- > 0;) {
        struct process *p = processes->all[i];
        if (p->asks && p->asks->revents)
            heard(p);
        if ((!p->ends || p->ends->revents) && reap(processes, p))
            drop(processes, i);
    }
}

/* False: this is a child. */
static bool take(struct processes *processes)
{
    struct ibx_error why = {0};
    struct ibx_conn *conn;
    const int rc = ibx_accept(processes->of.listener, &conn, &why);
    if (!rc)
        return route(processes, conn);
    if (rc != -EAGAIN) { /* mostly a lack of descriptors */
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

/* Each entry is an open descriptor: poll(2) accepts no more than the limit. */
static int wait_for_any(struct processes *processes, struct pollfd *waits)
{
    nfds_t n = 0;
    int timeout_ms = -1;
    watch(waits, &n, ibx_listener_fd(processes->of.listener));
    for (unsigned i = 0; i < processes->count; i++) {
        struct process *p = processes->all[i];
        p->asks = watch(waits, &n, p->socket);
        p->ends = watch(waits, &n, p->process_fd);
        if (!p->ends) /* pidfd_open(2) is missing or forbidden */
            timeout_ms = LOOK_MS;
    }
    return poll(waits, n, timeout_ms);
}

/* The listening process needs two descriptors for each process, which are limited by the soft
 * limit. */
static void raise_limit(struct processes *processes)
{
    struct rlimit *files = &processes->files;
    if (getrlimit(RLIMIT_NOFILE, files))
        *files = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
    const struct rlimit raised = {files->rlim_max, files->rlim_max};
    setrlimit(RLIMIT_NOFILE, &raised);
}

static struct processes served; /* in the listening process */
const struct ibx_admission ibx_client_processes_admission = {refuses, &served};

int ibx_client_processes_serve(struct ibx_session *listening)
{
    static struct pollfd waits[2 * PROCESSES + 1];
    struct processes *const processes = &served;
    *processes = (struct processes){.of = ibx_session_listening(listening)};
    if (processes->of.hooks->processes && !processes->of.hooks->processes(PROCESSES))
        return -ENOMEM;
    ibx_log_bound_together();
    raise_limit(processes);
    if (!begin_spares(processes))
        return 0;
    for (;;) {
        if (wait_for_any(processes, waits) < 0) {
            if (errno != EINTR) {
                ibx_log(IBX_LOG_ERROR, "waiting for clients: %s", strerror(errno));
                poll(NULL, 0, LOOK_MS);
            }
            continue;
        }
        look_at(processes);
        if (waits[0].revents && !take(processes))
            return 0;
    }
}
