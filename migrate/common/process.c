/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The process of a migration tool: its signals, its waiting, and where a test stops it. */
#include "migrate/common/common.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/signals.h"
#include "common/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define BUSY_MS      20    /* in one state: most of them take less than a millisecond */
#define STALL_TIMES  5     /* times the transport's timeout */
#define STALL_MIN_MS 10000 /* guests and disks of QEMU are slow, too */
#define SIGN_MIN_MS  (MIGRATION_QMP_MS + 10000)

uint64_t ibx_migration_busy_until(void)
{
    return ibx_thread_may_spin() ? ibx_deadline_in_ms(BUSY_MS) : 0;
}

uint64_t ibx_migration_stall_ms(const struct ibx_options *transport)
{
    const uint64_t times = (uint64_t)transport->timeout_ms * STALL_TIMES;
    return times > STALL_MIN_MS ? times : STALL_MIN_MS;
}

uint64_t ibx_migration_sign_ms(const struct ibx_options *transport)
{
    const uint64_t stall_ms = ibx_migration_stall_ms(transport);
    return stall_ms > SIGN_MIN_MS ? stall_ms : SIGN_MIN_MS;
}

int ibx_migration_signals_open(struct migration_signals *signals, struct ibx_error *err)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t set;
    ibx_signals_heeded(ends, sizeof(ends) / sizeof(ends[0]), &set);
    pthread_sigmask(SIG_BLOCK, &set, &signals->before);
    signals->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals->fd >= 0)
        return 0;
    int code = errno;
    pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
    return ibx_error_set(err, -code, "no descriptor for signals: %s", strerror(code));
}

bool ibx_migration_signals_pending(void)
{
    sigset_t set;
    return !sigpending(&set) &&
           (sigismember(&set, SIGINT) || sigismember(&set, SIGTERM) || sigismember(&set, SIGHUP));
}

unsigned ibx_migration_signals_take(struct migration_signals *signals, bool hangups)
{
    struct signalfd_siginfo info;
    unsigned n = 0;
    while (signals->fd >= 0 && read(signals->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        n += hangups || info.ssi_signo != SIGHUP;
    return n;
}

void ibx_migration_signals_close(struct migration_signals *signals)
{
    if (signals->fd < 0)
        return;
    close(signals->fd);
    signals->fd = -1;
    pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
}

void ibx_migration_stop_at(const char *side, const char *state)
{
    static size_t used; /* bytes of the variable so far */
    char name[64];
    const char *at = secure_getenv("IBX_MOVE_STOP_AT");
    const size_t length = at && used < strlen(at) ? strcspn(at + used, ",") : 0;
    snprintf(name, sizeof(name), "%s:%s", side, state);
    if (!length || length != strlen(name) || strncmp(at + used, name, length) != 0)
        return;
    used += length + 1;
    raise(SIGSTOP);
}

int ibx_migration_enter(struct ibx_state_machine *state, const char *side, unsigned to,
                        struct ibx_error *err)
{
    const char *from = ibx_state_name(state->table, state->now);
    const char *name = ibx_state_name(state->table, to);
    int rc = ibx_state_move(state, to);
    if (rc)
        return ibx_error_set(err, rc,
                             "the %s of a migration was to go from \"%s\" to \"%s\": this is a "
                             "defect of ib-migrate, and the move was refused",
                             side, from, name);
    ibx_log(IBX_LOG_INFO, "migration: %s -> %s", from, name);
    ibx_migration_stop_at(side, name);
    return 0;
}
