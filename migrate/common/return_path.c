/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/return_path.h"
#include "migrate/common/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOLD_NAME  "ibx-hold"                 /* of the copy that QEMU keeps for us */
#define LOOK_US    200                        /* between two checks of a migration that ends */
#define FIGURES_MS 1000                       /* for QEMU to compute them, which is soon */
#define MARK_BYTES (IBX_JOURNAL_FIGURES + 16) /* of a name that contains the figures */

/* The message of QEMU's return path that ends a migration, big-endian: u16 type 1 (SHUT), u16
 * length 4, u32 0 (no error). */
static const uint8_t shut[] = {0, 1, 0, 4, 0, 0, 0, 0};

static const char return_path[] = IBX_RETURN_PATH_CAPABILITY;
static const char suppress[] = "suppress-vmdesc";

uint64_t ibx_return_path_name(int fd)
{
    struct stat st;
    return fstat(fd, &st) ? 0 : (uint64_t)st.st_ino;
}

int ibx_return_path_disable(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    return ibx_qmp_execute(
        qmp, "migrate-set-capabilities",
        json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", return_path, "state", 0), NULL,
        deadline_ns, err);
}

static int ask_suppressed(struct ibx_qmp *qmp, bool *is, uint64_t deadline_ns,
                          struct ibx_error *err)
{
    json_t *value;
    int rc = ibx_qmp_execute(
        qmp, "qom-get", json_pack("{s:s, s:s}", "path", IBX_SETTINGS_MACHINE, "property", suppress),
        &value, deadline_ns, err);
    if (rc)
        return rc;
    *is = json_is_true(value);
    json_decref(value);
    return 0;
}

int ibx_return_path_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    json_t *change = json_object_get(settings->change, "capabilities"),
           *before = json_object_get(settings->before, "capabilities");
    bool suppressed = false;
    int rc = ask_suppressed(qmp, &suppressed, deadline_ns, err);
    if (rc)
        return rc;
    if (!json_object_get(before, return_path))
        rc = json_object_set_new(before, return_path, json_false());
    if (!rc && suppressed)
        rc = json_object_set_new(settings->before, IBX_SETTINGS_OF_MACHINE,
                                 json_pack("{s:b}", suppress, 1));
    if (rc || json_object_set_new(change, return_path, json_true()))
        return ibx_error_set(err, -ENOMEM, "out of memory");
    return 0;
}

bool ibx_return_path_planned(const json_t *before)
{
    return json_object_get(json_object_get(before, "capabilities"), return_path) != NULL;
}

int ibx_return_path_describe(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                             struct ibx_error *err)
{
    if (!json_object_get(json_object_get(before, IBX_SETTINGS_OF_MACHINE), suppress))
        return 0;
    return ibx_qmp_execute(qmp, "qom-set",
                           json_pack("{s:s, s:s, s:b}", "path", IBX_SETTINGS_MACHINE, "property",
                                     suppress, "value", 0),
                           NULL, deadline_ns, err);
}

int ibx_return_path_keep(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns, struct ibx_error *err)
{
    return ibx_qmp_getfd(qmp, HOLD_NAME, fd, deadline_ns, err);
}

/* The number of a descriptor of `pid` that is this socket; -ENOENT. */
static int find(pid_t pid, uint64_t name)
{
    const int found = ibx_proc_find_socket(pid, name);
    return found == -ESRCH ? -ENOENT : found;
}

int ibx_return_path_find(pid_t pid, uint64_t name, bool *has, struct ibx_error *err)
{
    const int found = find(pid, name);
    *has = found >= 0;
    if (found >= 0 || found == -ENOENT)
        return 0;
    return ibx_error_set(err, found, "the descriptors of QEMU (process %d) cannot be seen: %s%s",
                         (int)pid, strerror(-found), ibx_proc_remedy(found));
}

int ibx_return_path_take(pid_t pid, uint64_t name, int *fd, struct ibx_error *err)
{
    const int remote = name ? find(pid, name) : -ENOENT;
    if (remote == -ENOENT)
        return -ENOENT;
    const int taken = remote < 0 ? remote : ibx_proc_take(pid, remote);
    if (taken >= 0 && ibx_return_path_name(taken) == name) {
        *fd = taken;
        return 0;
    }
    if (taken >= 0) { /* meanwhile QEMU has closed it, or the process is another one */
        close(taken);
        return -ENOENT;
    }
    return ibx_error_set(err, taken,
                         "QEMU (process %d) holds its migration open, and the descriptor for that "
                         "cannot be taken from it: %s; run this tool as root or with "
                         "CAP_SYS_PTRACE",
                         (int)pid, strerror(-taken));
}

int ibx_return_path_send_shut(int fd, struct ibx_error *err)
{
    if (send(fd, shut, sizeof(shut), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(shut) &&
        errno != EPIPE) /* QEMU does not read any more: its migration has ended */
        return ibx_error_set(err, -errno, "QEMU cannot be told that its migration is complete: %s",
                             strerror(errno));
    return 0;
}

int ibx_return_path_release(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns,
                            struct ibx_error *err)
{
    struct ibx_vm_progress now;
    /* Without a monitor the migration could not be marked after SHUT, and the next tool that
     * reaches QEMU could not tell whose migration has completed. So the monitor has to answer
     * first. */
    int said = ibx_vm_status(qmp, now.status, sizeof(now.status), deadline_ns, err);
    if (!said)
        said = ibx_return_path_send_shut(fd, err);
    if (said)
        return said;
    for (;;) {
        int rc = ibx_vm_migration(qmp, &now, deadline_ns, err);
        if (rc)
            return rc;
        if (ibx_vm_migration_ended(now.status))
            break;
        if (ibx_now_ns() >= deadline_ns)
            return ibx_error_set(err, -ETIMEDOUT,
                                 "QEMU's migration is still \"%s\" after it was told that it is "
                                 "complete",
                                 now.status);
        usleep(LOOK_US);
    }
    return 0;
}

void ibx_return_path_forget(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    ibx_qmp_execute(qmp, "closefd", json_pack("{s:s}", "fdname", HOLD_NAME), NULL, deadline_ns,
                    NULL);
}

/* ---------------------------------------------------------------- whose was the last one */

/* QEMU's last migration. */
struct last {
    char status[32]; /* "": there was none */
    char text[IBX_JOURNAL_FIGURES];
    bool timed; /* no time of it is 0 */
};

/* -ENODATA: QEMU reports no times. */
static int ask_once(struct ibx_qmp *qmp, struct last *last, uint64_t deadline_ns,
                    struct ibx_error *err)
{
    json_t *result;
    json_int_t total = -1, down = -1, setup = -1, pages = -1;
    const char *is = "";
    int rc = ibx_qmp_execute(qmp, "query-migrate", NULL, &result, deadline_ns, err);
    if (rc)
        return rc;
    json_unpack(result, "{s?s, s?I, s?I, s?I, s?{s?I}}", "status", &is, "total-time", &total,
                "downtime", &down, "setup-time", &setup, "ram", "normal", &pages);
    last->timed = total && down;
    snprintf(last->status, sizeof(last->status), "%s", is);
    snprintf(last->text, sizeof(last->text), "%lld-%lld-%lld-%lld", (long long)total,
             (long long)down, (long long)setup, (long long)pages);
    json_decref(result);
    return total < 0 ? ibx_error_set(err, -ENODATA, "QEMU reports no migration") : 0;
}

/* QEMU reports a migration as completed a moment before it computes the times of it, until when
 * they are 0 (QEMU 7.2: in one of 50 migrations, if it is asked all the time). The VM is in the
 * state finish-migrate until they are there. */
static int ask_last(struct ibx_qmp *qmp, struct last *last, uint64_t deadline_ns,
                    struct ibx_error *err)
{
    const uint64_t enough = ibx_deadline_in_ms(FIGURES_MS);
    char vm[32] = "finish-migrate";
    for (;;) {
        int rc = ask_once(qmp, last, deadline_ns, err);
        if (rc || last->timed || strcmp(last->status, "completed") != 0 ||
            strcmp(vm, "finish-migrate") != 0 || ibx_now_ns() >= enough)
            return rc;
        usleep(LOOK_US);
        rc = ibx_vm_status(qmp, vm, sizeof(vm), deadline_ns, err);
        if (rc)
            return rc;
    }
}

int ibx_return_path_last(struct ibx_qmp *qmp, char text[IBX_JOURNAL_FIGURES], uint64_t deadline_ns,
                         struct ibx_error *err)
{
    struct last last;
    int rc = ask_last(qmp, &last, deadline_ns, err);
    if (!rc && strcmp(last.status, "completed") != 0)
        rc = ibx_error_set(err, -ENODATA, "QEMU's last migration is \"%s\"", last.status);
    if (!rc)
        memcpy(text, last.text, sizeof(last.text));
    return rc;
}

/* False: QEMU has made no migration, or does not answer. */
static bool name_mark(struct ibx_qmp *qmp, char name[MARK_BYTES], uint64_t deadline_ns)
{
    struct last last;
    if (ask_last(qmp, &last, deadline_ns, NULL))
        return false;
    snprintf(name, MARK_BYTES, HOLD_NAME "-ended-%s", last.text);
    return true;
}

static bool forget_mark(struct ibx_qmp *qmp, const char *name, uint64_t deadline_ns)
{
    return !ibx_qmp_execute(qmp, "closefd", json_pack("{s:s}", "fdname", name), NULL, deadline_ns,
                            NULL);
}

void ibx_return_path_mark(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns)
{
    char name[MARK_BYTES];
    if (name_mark(qmp, name, deadline_ns))
        ibx_qmp_getfd(qmp, name, fd, deadline_ns, NULL);
}

bool ibx_return_path_marked(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns)
{
    char name[MARK_BYTES];
    if (!name_mark(qmp, name, deadline_ns) || !forget_mark(qmp, name, deadline_ns))
        return false;
    ibx_qmp_getfd(qmp, name, fd, deadline_ns, NULL); /* closefd has removed the mark */
    return true;
}

void ibx_return_path_unmark(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    char name[MARK_BYTES];
    if (name_mark(qmp, name, deadline_ns))
        forget_mark(qmp, name, deadline_ns);
}
