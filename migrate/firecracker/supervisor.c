/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The process that keeps Firecracker's descriptors, and starts a handler whenever there is none. It
 * does nothing else, so that little can go wrong in it. A microVM whose handler is gone waits at
 * its next missing page, without an end and without an error.
 */
#include "migrate/firecracker/internal.h"

#include "common/clock.h"
#include "common/file_check.h"
#include "common/log.h"
#include "common/signals.h"
#include "common/state_machine.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAUSE_MIN_MS 1u /* before a handler is started again, doubled each time */
#define PAUSE_MAX_MS 1000u
#define LIVED_MS     50u    /* a handler that lived longer is started again without a pause */
#define END_MS       30000u /* in which a handler has to write the file of --record and end */

/*
 * state machine: firecracker supervisor
 *   [*] -> STARTING -> LISTENING       the handler can read the snapshot
 *   [*] -> STARTING -> SERVING         descriptors that systemd kept
 *   LISTENING -> SERVING               Firecracker has connected
 *   LISTENING | SERVING -> PAUSING     the handler has died
 *   PAUSING -> STARTING
 *   STARTING -> PAUSING
 *   STARTING | LISTENING | SERVING | PAUSING -> ENDED -> [*]
 */
enum supervisor_state { STARTING, LISTENING, SERVING, PAUSING, ENDED };

static const struct ibx_state states[] = {
    [STARTING] = {"starting", IBX_TO(LISTENING) | IBX_TO(SERVING) | IBX_TO(PAUSING) | IBX_TO(ENDED),
                  IBX_STATE_INITIAL},
    [LISTENING] = {"listening", IBX_TO(SERVING) | IBX_TO(PAUSING) | IBX_TO(ENDED), 0},
    [SERVING] = {"serving", IBX_TO(PAUSING) | IBX_TO(ENDED), 0},
    [PAUSING] = {"pausing", IBX_TO(STARTING) | IBX_TO(ENDED), 0},
    [ENDED] = {"ended", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table table = IBX_STATE_TABLE("firecracker supervisor", states);

struct supervisor {
    const struct ibx_firecracker_config *config;
    struct ibx_state_machine state;
    struct kept kept;
    struct session_header *header; /* of the session, or NULL */
    sigset_t blocked, before;
    int signals, listener, handler_socket;
    pid_t handler; /* 0: none */
    uint64_t started_ns, resume_ns;
    unsigned pause_ms;
    bool announced;   /* LISTENING has been reported */
    bool asked;       /* a signal has asked this process to end */
    bool left_to_it;  /* ... and the handler writes the file of --record */
    bool lacks;       /* at the end: the file of --record is missing */
    uint64_t kill_ns; /* when a handler that was asked to end is killed; 0: never */
    int rc;
    struct ibx_error *err;
};

static void tell(const struct supervisor *s, struct ibx_firecracker_event event)
{
    event.handler = s->handler;
    event.pid = s->header ? (pid_t)s->header->pid : 0;
    event.restarts = s->header ? atomic_load(&s->header->restarts) : 0;
    if (s->config->event)
        s->config->event(s->config->context, &event);
}

static void finish(struct supervisor *s, int rc)
{
    s->rc = rc;
    ibx_state_move(&s->state, ENDED);
}

/* ------------------------------------------------------------ the handler's process */

static void handler_main(struct supervisor *s, int socket)
{
    sigset_t terminate;
    sigemptyset(&terminate);
    sigaddset(&terminate, SIGTERM);
    sigaddset(&terminate, SIGINT); /* from a terminal: the supervisor gets it, and sends SIGTERM */
    sigprocmask(SIG_SETMASK, &s->before, NULL);
    sigprocmask(SIG_BLOCK, &terminate, NULL);
    ibx_firecracker_kept_close(&s->kept);
    if (s->listener >= 0)
        close(s->listener);
    close(s->signals);
    const int status = ibx_firecracker_handler(s->config, socket);
    fflush(NULL);
    _exit(status);
}

static int handler_start(struct supervisor *s)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return ibx_error_set(s->err, -errno, "a socket for the handler: %s", strerror(errno));
    fflush(NULL); /* otherwise both processes would write what is buffered */
    const pid_t child = fork();
    if (!child) {
        close(ends[0]);
        handler_main(s, ends[1]);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return ibx_error_set_task(s->err, -errno, "a process for the handler");
    }
    s->handler = child;
    s->handler_socket = ends[0];
    s->started_ns = ibx_now_ns();
    return 0;
}

/* The handler can read the snapshot: gives it the descriptors, or listens for Firecracker. */
static void handler_is_ready(struct supervisor *s)
{
    if (kept_any(&s->kept)) {
        ibx_firecracker_hand_over(s->handler_socket, &s->kept); /* if it dies, SIGCHLD comes */
        ibx_state_move(&s->state, SERVING);
        return;
    }
    if (s->listener < 0 && (s->rc = ibx_firecracker_listen(s->config, &s->listener, s->err))) {
        finish(s, s->rc);
        return;
    }
    ibx_state_move(&s->state, LISTENING);
    if (s->announced)
        return;
    s->announced = true;
    ibx_firecracker_ready();
    tell(s, (struct ibx_firecracker_event){.kind = IBX_FIRECRACKER_LISTENING});
}

static void handler_told(struct supervisor *s)
{
    char message[1 + IBX_ERROR_MAX + 1];
    const ssize_t n = recv(s->handler_socket, message, sizeof(message) - 1, MSG_DONTWAIT);
    if (n > 0 && *message == TOLD_READY && s->state.now == STARTING) {
        handler_is_ready(s);
    } else if (n > 0 && *message == TOLD_FAILED) {
        message[n] = '\0';
        s->rc = ibx_error_set(s->err, -EIO, "%s", message + 1);
    } else if (n > 0 && *message == TOLD_UNRECORDED) {
        message[n] = '\0';
        s->rc = ibx_error_set(s->err, -ENODATA, "%s", message + 1);
    } else if (!n || (n < 0 && errno != EAGAIN)) { /* SIGCHLD tells when the process has ended */
        close(s->handler_socket);
        s->handler_socket = -1;
    }
}

/* Makes the error that says what the operator has to do about a microVM that cannot be served. */
static void blame(struct supervisor *s)
{
    const struct ibx_error why = *s->err;
    if (s->rc == -EIO && s->header && s->header->pid > 0)
        ibx_error_set(s->err, -EIO,
                      "%s; Firecracker (process %d) waits for its memory for ever: end it",
                      why.message, (int)s->header->pid);
}

static bool firecracker_has_ended(const struct supervisor *s)
{
    const bool process = s->kept.fds[KEPT_PEER] >= 0;
    struct pollfd look = {.fd = s->kept.fds[process ? KEPT_PEER : KEPT_SOCKET],
                          .events = process ? POLLIN : POLLRDHUP};
    return poll(&look, 1, 0) > 0;
}

/* After HANDLER_AGAIN: another handler asks the server again, as long as there is a microVM. */
static void handler_asks_again(struct supervisor *s)
{
    if (!kept_any(&s->kept)) {
        s->handler = 0;
        finish(s, s->rc ? s->rc : -EIO);
        return;
    }
    tell(s,
         (struct ibx_firecracker_event){.kind = IBX_FIRECRACKER_LOST, .reason = s->err->message});
    s->handler = 0;
    s->rc = 0;
    if (firecracker_has_ended(s)) {
        finish(s, 0);
        return;
    }
    s->resume_ns = ibx_deadline_in_ms(PAUSE_MAX_MS);
    ibx_state_move(&s->state, PAUSING);
}

static void handler_died(struct supervisor *s, int status)
{
    const bool exited = WIFEXITED(status);
    const int code = exited ? WEXITSTATUS(status) : -1;
    while (s->handler_socket >= 0) /* its last messages */
        handler_told(s);
    /* If it was killed, or ended with AGAIN, it has not written the file of --record. */
    s->left_to_it = s->left_to_it && exited && code != HANDLER_AGAIN;
    if (s->state.now == ENDED) {
        s->handler = 0;
        return;
    }
    if (code == HANDLER_DONE || code == HANDLER_REFUSED || s->asked) {
        s->handler = 0;
        if (code == HANDLER_REFUSED)
            blame(s);
        finish(s, code == HANDLER_DONE ? 0 : code == HANDLER_REFUSED && s->rc ? s->rc : -EINTR);
        return;
    }
    if (code == HANDLER_AGAIN) {
        handler_asks_again(s);
        return;
    }
    if (s->header)
        atomic_fetch_add(&s->header->restarts, 1);
    tell(s, (struct ibx_firecracker_event){.kind = IBX_FIRECRACKER_RESTARTED,
                                           .signal = exited ? 0 : WTERMSIG(status),
                                           .status = exited ? code : 0});
    s->handler = 0;
    if (ibx_now_ns() - s->started_ns > LIVED_MS * IBX_NS_PER_MS)
        s->pause_ms = 0;
    s->resume_ns = ibx_deadline_in_ms(s->pause_ms);
    s->pause_ms = s->pause_ms ? s->pause_ms * 2 : PAUSE_MIN_MS;
    s->pause_ms = s->pause_ms < PAUSE_MAX_MS ? s->pause_ms : PAUSE_MAX_MS;
    ibx_state_move(&s->state, PAUSING);
}

/* ------------------------------------------------------------ Firecracker */

static int header_map(struct supervisor *s)
{
    void *at = mmap(NULL, sizeof(*s->header), PROT_READ | PROT_WRITE, MAP_SHARED,
                    s->kept.fds[KEPT_SESSION], 0);
    if (at == MAP_FAILED)
        return ibx_error_set(s->err, -errno, "the session's memory file: %s", strerror(errno));
    s->header = at;
    return 0;
}

static void firecracker_came(struct supervisor *s)
{
    struct hello hello;
    int rc = ibx_firecracker_accept(s->config, s->listener, &s->kept, &hello, s->err);
    if (rc == -EAGAIN)
        return;
    if (!rc)
        rc = ibx_firecracker_session_make(&hello, &s->kept.fds[KEPT_SESSION], s->err);
    rc = rc ? rc : header_map(s);
    if (rc) {
        finish(s, rc);
        return;
    }
    ibx_firecracker_hand_over(s->handler_socket, &s->kept);
    ibx_state_move(&s->state, SERVING);
    ibx_firecracker_store(&s->kept); /* only now: Firecracker is waiting for the handler */
    ibx_firecracker_unlisten(s->config, s->listener);
    s->listener = -1;
}

/* ------------------------------------------------------------ the loop */

/* Ends the handler after a signal. One that serves gets time to write the file of --record. One
 * that does not serve yet may be connecting for a while, so it is killed; record_left() writes the
 * file for its predecessor. A second signal kills any handler. */
static void end_handler(struct supervisor *s)
{
    static const char word = SAID_END;
    if (!s->handler) {
        finish(s, -EINTR);
    } else if (s->state.now != SERVING || s->asked) {
        kill(s->handler, SIGKILL);
    } else {
        send(s->handler_socket, &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        kill(s->handler, SIGTERM);
        s->kill_ns = ibx_deadline_in_ms(END_MS);
        s->left_to_it = true;
    }
    s->asked = true;
}

static void signal_came(struct supervisor *s)
{
    struct signalfd_siginfo info;
    int status;
    if (read(s->signals, &info, sizeof(info)) != sizeof(info))
        return;
    if (info.ssi_signo == SIGCHLD) {
        if (s->handler && waitpid(s->handler, &status, WNOHANG) == s->handler)
            handler_died(s, status);
        return;
    }
    end_handler(s); /* this process ends when the handler has */
}

static int wait_ms(const struct supervisor *s)
{
    return s->state.now == PAUSING ? ibx_ms_until(s->resume_ns)
           : s->kill_ns            ? ibx_ms_until(s->kill_ns)
                                   : -1;
}

static void turn(struct supervisor *s)
{
    struct pollfd looks[] = {
        {.fd = s->signals, .events = POLLIN},
        {.fd = s->handler_socket, .events = POLLIN},
        {.fd = s->state.now == LISTENING ? s->listener : -1, .events = POLLIN}};
    if (poll(looks, 3, wait_ms(s)) < 0)
        return;
    if (looks[1].revents)
        handler_told(s);
    if (looks[0].revents && s->state.now != ENDED)
        signal_came(s);
    if (looks[2].revents && s->state.now == LISTENING)
        firecracker_came(s);
    if (s->kill_ns && s->handler && ibx_now_ns() >= s->kill_ns) {
        kill(s->handler, SIGKILL);
        s->kill_ns = 0;
    }
    if (s->state.now == PAUSING && ibx_now_ns() >= s->resume_ns) {
        ibx_state_move(&s->state, STARTING);
        int rc = handler_start(s);
        if (rc && !kept_any(&s->kept)) {
            finish(s, rc);
        } else if (rc) { /* tried again, since nobody else can serve this microVM */
            ibx_log(IBX_LOG_ERROR, "%s; trying again", s->err->message);
            s->resume_ns = ibx_deadline_in_ms(PAUSE_MAX_MS);
            ibx_state_move(&s->state, PAUSING);
        }
    }
}

/* Writes the file of --record if the handlers have not, by the session's log of touched pages. */
static void record_left(struct supervisor *s)
{
    struct ibx_firecracker_event event = {.kind = IBX_FIRECRACKER_RECORDED};
    struct ibx_error why = {0};
    if (!s->config->record || !s->header || atomic_load(&s->header->recorded) || s->left_to_it ||
        (s->rc && s->rc != -EINTR))
        return;
    if (!ibx_firecracker_record_left(s->kept.fds[KEPT_SESSION], s->config->record, &event.pages,
                                     &why))
        tell(s, event);
    else if (!s->rc)
        s->rc = ibx_error_set(s->err, -ENODATA, "%s", why.message);
    else
        ibx_log(IBX_LOG_ERROR, "%s", why.message);
}

static void end(struct supervisor *s)
{
    int status;
    if (s->handler) { /* it serves no microVM any more */
        kill(s->handler, SIGKILL);
        while (waitpid(s->handler, &status, 0) < 0 && errno == EINTR)
            ;
        s->handler = 0;
    }
    record_left(s);
    s->lacks = s->config->record && s->header && !atomic_load(&s->header->recorded);
    if (s->listener >= 0)
        ibx_firecracker_unlisten(s->config, s->listener);
    if (s->handler_socket >= 0)
        close(s->handler_socket);
    if (s->header)
        munmap(s->header, sizeof(*s->header));
    if (kept_any(&s->kept) && s->rc != -EINTR) /* after a signal, systemd keeps the descriptors */
        ibx_firecracker_forget();
    ibx_firecracker_kept_close(&s->kept);
    close(s->signals);
    sigprocmask(SIG_SETMASK, &s->before, NULL);
}

/* Checks at the start that the file of --record can be written, so that no recording is lost. */
static int check_record(const char *path, struct ibx_error *err)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    int rc = path ? ibx_file_check_replace(path, err) : 0;
    if (rc)
        return ibx_error_prefix(err, rc, "--record");
    if (path && (rc = ibx_working_set_check_way(path, err)))
        return rc;
    return path && access(folder, W_OK | X_OK)
               ? ibx_error_set(err, -errno, "--record %s: its folder: %s; make it, or name another",
                               path, strerror(errno))
               : 0;
}

int ibx_firecracker_run(const struct ibx_firecracker_config *config, struct ibx_error *err)
{
    struct ibx_error own;
    struct supervisor s = {
        .config = config, .listener = -1, .handler_socket = -1, .err = err ? err : &own};
    ibx_signals_heeded((const int[]){SIGTERM, SIGINT}, 2, &s.blocked);
    sigaddset(&s.blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &s.blocked, &s.before);
    s.signals = signalfd(-1, &s.blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    ibx_firecracker_stored(&s.kept);
    ibx_state_begin(&s.state, &table, STARTING);
    int rc = s.signals < 0 ? ibx_error_set(s.err, -errno, "signalfd: %s", strerror(errno)) : 0;
    rc = rc || !kept_any(&s.kept) ? rc : header_map(&s);
    rc = rc || kept_any(&s.kept) ? rc : check_record(config->record, s.err);
    rc = rc ? rc : handler_start(&s);
    if (rc)
        finish(&s, rc);
    else if (kept_any(&s.kept)) /* a server may be away for longer than systemd waits for a start */
        ibx_firecracker_ready();
    while (s.state.now != ENDED)
        turn(&s);
    const bool served = kept_any(&s.kept);
    end(&s);
    if (s.rc == -EINTR)
        ibx_error_set(s.err, -EINTR, "ended by a signal; %s%s%s",
                      served ? "the microVM waits at its next missing page for ever: end it"
                             : "no microVM had connected",
                      s.lacks ? ", and there is no --record " : "", s.lacks ? config->record : "");
    return s.rc;
}
