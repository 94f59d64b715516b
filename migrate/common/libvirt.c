/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/libvirt.h"

#include "common/log.h"
#include "common/own_user.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PAUSE         "pause-before-switchover"
#define IGNORE_SHARED "x-ignore-shared"

static const struct ibx_state gate_states[] = {
    [IBX_GATE_CLOSED] = {"closed", IBX_TO(IBX_GATE_SHUT), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [IBX_GATE_SHUT] = {"shut", IBX_TO(IBX_GATE_OPEN) | IBX_TO(IBX_GATE_CLOSED), 0},
    [IBX_GATE_OPEN] = {"open",
                       IBX_TO(IBX_GATE_TRIED) | IBX_TO(IBX_GATE_PASSED) | IBX_TO(IBX_GATE_CLOSED),
                       0},
    [IBX_GATE_TRIED] = {"tried", IBX_TO(IBX_GATE_PASSED) | IBX_TO(IBX_GATE_CLOSED), 0},
    [IBX_GATE_PASSED] = {"passed", IBX_TO(IBX_GATE_CLOSED), 0},
};
static const struct ibx_state_table gate_table = IBX_STATE_TABLE("libvirt gate", gate_states);

static int address_of(const char *path, struct sockaddr_un *address, struct ibx_error *err)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (path[0] != '/' || strlen(path) >= sizeof(address->sun_path))
        return ibx_error_set(err, -EINVAL,
                             "\"%.128s\" is not an absolute path of at most %zu bytes, which a "
                             "unix socket needs",
                             path, sizeof(address->sun_path) - 1);
    memcpy(address->sun_path, path, strlen(path));
    return 0;
}

/* Opens the folder of a socket, and makes an address by its descriptor (/proc/self/fd). So the
 * socket is made or removed in this folder, even if somebody replaces a folder above it. */
static int open_folder(const char *path, int *folder, struct sockaddr_un *address,
                       struct ibx_error *err)
{
    char above[sizeof(address->sun_path)];
    int rc = address_of(path, address, err);
    if (rc)
        return rc;
    const char *name = strrchr(path, '/') + 1;
    snprintf(above, sizeof(above), "%.*s", (int)(name - path), path);
    int fd = open(above, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ibx_error_set(err, -errno, "no socket can be created at %s: %s: %s", path, above,
                             strerror(errno));
    const int length =
        snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d/%s", fd, name);
    if (!*name || length >= (int)sizeof(address->sun_path)) {
        close(fd);
        return ibx_error_set(err, -EINVAL,
                             "\"%.128s\" is no name for a socket: use one of 1 to 80 bytes", path);
    }
    *folder = fd;
    return 0;
}

static const char *name_of(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* The process at the other end of a connection; for the side that connects, the one that listens.
 * 0: not known. */
static pid_t peer_of(int fd)
{
    struct ucred peer = {.pid = 0};
    socklen_t size = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) ? 0 : peer.pid;
}

/* A connection, non-blocking. -ECONNREFUSED: nobody listens; -ENOENT: there is no such socket. */
static int connect_to(const struct sockaddr_un *address, int *fd)
{
    int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0)
        return -errno;
    if (connect(made, (const struct sockaddr *)address, sizeof(*address))) {
        int rc = -errno;
        close(made);
        return rc;
    }
    *fd = made;
    return 0;
}

/* ---------------------------------------------------------------- the gate */

void ibx_gate_init(struct ibx_gate *gate, const char *path)
{
    *gate = (struct ibx_gate){.path = path, .folder = -1, .listener = -1, .place = -1};
    ibx_state_begin(&gate->state, &gate_table, IBX_GATE_CLOSED);
}

/* Removes a socket, but nothing else of this name. */
static void remove_socket(int folder, const char *name)
{
    struct stat st;
    if (!fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISSOCK(st.st_mode))
        unlinkat(folder, name, 0);
}

/* Removes a socket that a killed tool has left behind. -EADDRINUSE: a process listens there.
 * Anything else is left alone. */
static int make_way(const char *path, int folder, const struct sockaddr_un *address,
                    struct ibx_error *err)
{
    int fd = -1, rc = connect_to(address, &fd);
    if (!rc)
        close(fd);
    if (!rc || rc == -EAGAIN)
        return ibx_error_set(err, -EADDRINUSE,
                             "another process listens at %s: end it (ib-migrate status lists those "
                             "that wait), or use another path",
                             path);
    if (rc == -ECONNREFUSED)
        remove_socket(folder, name_of(path));
    return 0;
}

void ibx_gate_sweep(const char *path)
{
    struct sockaddr_un address;
    int folder;
    if (open_folder(path, &folder, &address, NULL))
        return;
    make_way(path, folder, &address, NULL);
    close(folder);
}

/* Lets QEMU's user connect, and nobody else; libvirt does the same if it changes owners. Somebody
 * who may write to the folder may have put something else there meanwhile: only a socket of this
 * user is given away, and none that has another name, as another service's would have. */
static void give_to(struct ibx_gate *gate, const char *name, pid_t qemu)
{
    char process[32];
    struct stat process_st, st;
    snprintf(process, sizeof(process), "/proc/%d", (int)qemu);
    int fd = openat(gate->folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return; /* QEMU's connect will fail, with its reason */
    if (!stat(process, &process_st) && !fstat(fd, &st) && S_ISSOCK(st.st_mode) &&
        st.st_uid == geteuid() && st.st_nlink == 1) {
        gate->dev = st.st_dev;
        gate->ino = st.st_ino;
        if (fchownat(fd, "", process_st.st_uid, (gid_t)-1, AT_EMPTY_PATH))
            ibx_log(IBX_LOG_INFO, "migration: %s cannot be given to QEMU's user: %s", gate->path,
                    strerror(errno));
    }
    close(fd);
}

/* The temporary name of the socket, until it may be found. */
static int early_address(const struct ibx_gate *gate, struct sockaddr_un *address)
{
    const int length = snprintf(address->sun_path, sizeof(address->sun_path),
                                "/proc/self/fd/%d/.ibx-%d", gate->folder, (int)getpid());
    address->sun_family = AF_UNIX;
    return length < (int)sizeof(address->sun_path) ? 0 : -ENAMETOOLONG;
}

/* bind(2) gives the file the mode of the socket (fchmod); umask(2) would change the whole process.
 */
static int listen_at(struct ibx_gate *gate, const struct sockaddr_un *address)
{
    gate->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (gate->listener < 0 || fchmod(gate->listener, 0600) ||
        bind(gate->listener, (const struct sockaddr *)address, sizeof(*address)) ||
        listen(gate->listener, 0))
        return -errno;
    return connect_to(address, &gate->place);
}

/* Never replaces a file. A file system without RENAME_NOREPLACE fails with EINVAL: there the name
 * is checked before. */
static int name_it(const struct ibx_gate *gate, const char *early)
{
    const char *name = name_of(gate->path);
    if (!renameat2(gate->folder, early, gate->folder, name, RENAME_NOREPLACE) ||
        (errno == EINVAL && faccessat(gate->folder, name, F_OK, AT_SYMLINK_NOFOLLOW) &&
         !renameat(gate->folder, early, gate->folder, name)))
        return 0;
    return errno == EINVAL ? -EEXIST : -errno;
}

/* The socket gets its name when it listens and its queue is full: so whoever finds it can connect,
 * and waits. */
static int appear(struct ibx_gate *gate, pid_t qemu)
{
    struct sockaddr_un early;
    int rc = early_address(gate, &early);
    const char *name = name_of(early.sun_path);
    if (rc)
        return rc;
    remove_socket(gate->folder, name); /* of a killed process that had this number */
    rc = listen_at(gate, &early);
    if (!rc)
        give_to(gate, name, qemu);
    if (!rc)
        rc = name_it(gate, name);
    if (rc)
        remove_socket(gate->folder, name);
    return rc;
}

int ibx_gate_shut(struct ibx_gate *gate, pid_t qemu, struct ibx_error *err)
{
    struct sockaddr_un address;
    int rc = open_folder(gate->path, &gate->folder, &address, err);
    if (!rc)
        rc = ibx_state_move(&gate->state, IBX_GATE_SHUT);
    if (!rc)
        rc = make_way(gate->path, gate->folder, &address, err);
    if (rc) {
        ibx_gate_close(gate);
        return rc;
    }
    rc = appear(gate, qemu);
    if (!rc)
        return 0;
    ibx_gate_close(gate);
    if (rc == -EEXIST)
        return ibx_error_set(err, rc,
                             "%s is there, and is nothing that this ib-migrate may replace: remove "
                             "it, or use another path",
                             gate->path);
    return ibx_error_set(err, rc, "no socket at %s for QEMU: %s", gate->path, strerror(-rc));
}

int ibx_gate_let(struct ibx_gate *gate, struct ibx_error *err)
{
    int mine = accept4(gate->listener, NULL, NULL, SOCK_CLOEXEC);
    if (mine < 0)
        return ibx_error_set(err, -errno, "no connection can be taken at %s: %s", gate->path,
                             strerror(errno));
    close(mine);
    close(gate->place);
    gate->place = -1;
    return ibx_state_move(&gate->state, IBX_GATE_OPEN);
}

/* Who may connect: libvirt, as root or in a session of this tool's user, which hands the descriptor
 * to QEMU; or QEMU itself. */
static bool may_pass(struct ibx_gate *gate, int fd, pid_t qemu)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof(peer);
    if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) &&
        (ibx_is_own_user(peer.uid) || peer.pid == qemu))
        return true;
    if (gate->state.now == IBX_GATE_OPEN)
        ibx_log(IBX_LOG_WARN,
                "process %d of user %d is refused at %s: only QEMU (process %d), root and the user "
                "of this ib-migrate may connect; for a session's libvirtd, start ib-migrate as its "
                "user",
                (int)peer.pid, (int)peer.uid, gate->path, (int)qemu);
    if (gate->state.now == IBX_GATE_OPEN)
        ibx_state_move(&gate->state, IBX_GATE_TRIED);
    return false;
}

int ibx_gate_take(struct ibx_gate *gate, pid_t qemu, int *stream, struct ibx_error *err)
{
    if (!ibx_gate_is_open(gate))
        return -EAGAIN;
    int fd = accept4(gate->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
                   ? -EAGAIN
                   : ibx_error_set(err, -errno, "no connection can be taken at %s: %s", gate->path,
                                   strerror(errno));
    if (!may_pass(gate, fd, qemu)) {
        close(fd);
        return -EAGAIN;
    }
    int rc = ibx_state_move(&gate->state, IBX_GATE_PASSED);
    if (rc)
        close(fd);
    else
        *stream = fd;
    return rc;
}

/* Removes only the socket that this gate has made: whoever may write to the folder may have
 * replaced it. */
static void remove_own(const struct ibx_gate *gate)
{
    struct stat st;
    if (gate->ino && !fstatat(gate->folder, name_of(gate->path), &st, AT_SYMLINK_NOFOLLOW) &&
        st.st_dev == gate->dev && st.st_ino == gate->ino)
        unlinkat(gate->folder, name_of(gate->path), 0);
}

void ibx_gate_close(struct ibx_gate *gate)
{
    if (!gate->path)
        return;
    if (gate->listener >= 0) {
        close(gate->listener);
        remove_own(gate);
    }
    if (gate->place >= 0)
        close(gate->place);
    if (gate->folder >= 0)
        close(gate->folder);
    gate->listener = gate->place = gate->folder = -1;
    if (gate->state.now != IBX_GATE_CLOSED)
        ibx_state_move(&gate->state, IBX_GATE_CLOSED);
}

/* ---------------------------------------------------------------- the destination's QEMU */

int ibx_libvirt_connect(const char *path, pid_t qemu, int *stream, struct ibx_error *err)
{
    struct sockaddr_un address;
    int fd = -1, rc = address_of(path, &address, err);
    if (rc)
        return rc;
    rc = connect_to(&address, &fd);
    if (rc == -ENOENT || rc == -ECONNREFUSED)
        return -EAGAIN;
    if (rc)
        return ibx_error_set(err, rc, "cannot connect to QEMU at %s: %s", path, strerror(-rc));
    const pid_t peer = peer_of(fd);
    if (peer != qemu) {
        close(fd);
        return ibx_error_set(err, -ESRCH,
                             "process %d listens at %s, and not the QEMU of this VM (process %d): "
                             "give each VM a migrateuri of its own",
                             (int)peer, path, (int)qemu);
    }
    *stream = fd;
    return 0;
}

/* ---------------------------------------------------------------- settings */

static bool is_on(json_t *list, const char *name, bool *known)
{
    json_t *item;
    size_t index;
    *known = false;
    json_array_foreach(list, index, item)
    {
        const char *is = json_string_value(json_object_get(item, "capability"));
        if (!is || strcmp(is, name))
            continue;
        *known = true;
        return json_is_true(json_object_get(item, "state"));
    }
    return false;
}

/* Whether QEMU has this capability on. */
static int is_set(struct ibx_qmp *qmp, const char *name, bool *on, uint64_t deadline_ns,
                  struct ibx_error *err)
{
    json_t *list;
    bool known;
    int rc = ibx_qmp_execute(qmp, "query-migrate-capabilities", NULL, &list, deadline_ns, err);
    if (rc)
        return rc;
    *on = is_on(list, name, &known);
    json_decref(list);
    return 0;
}

int ibx_libvirt_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                     struct ibx_error *err)
{
    static const char name[] = IGNORE_SHARED;
    json_t *list;
    bool known;
    int rc = ibx_qmp_execute(qmp, "query-migrate-capabilities", NULL, &list, deadline_ns, err);
    if (rc)
        return rc;
    const bool on = is_on(list, name, &known);
    json_decref(list);
    if (!known)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "this QEMU lacks the migration capability %s: use QEMU 4.0 or later",
                             name);
    /* If x-ignore-shared was left on, it would leave RAM out of every state that QEMU saves: it is
     * off afterwards. */
    *settings = (struct ibx_settings){
        .change = on ? json_pack("{s:{}, s:{}}", "capabilities", "parameters")
                     : json_pack("{s:{s:b}, s:{}}", "capabilities", name, 1, "parameters"),
        .before = json_pack("{s:{s:b}, s:{}}", "capabilities", name, 0, "parameters"),
    };
    return 0;
}

int ibx_libvirt_is_without_ram(struct ibx_qmp *qmp, bool *without, uint64_t deadline_ns,
                               struct ibx_error *err)
{
    return is_set(qmp, IGNORE_SHARED, without, deadline_ns, err);
}

int ibx_libvirt_waits(struct ibx_qmp *qmp, bool *waits, uint64_t deadline_ns, struct ibx_error *err)
{
    return is_set(qmp, PAUSE, waits, deadline_ns, err);
}

int ibx_libvirt_skip_pause(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    bool waits;
    int rc = ibx_libvirt_waits(qmp, &waits, deadline_ns, err);
    if (rc || !waits)
        return rc ? rc : -EAGAIN;
    return ibx_qmp_execute(
        qmp, "migrate-set-capabilities",
        json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", PAUSE, "state", 0), NULL,
        deadline_ns, err);
}

/* -EPERM: virsh was given an option by which QEMU's stream is not one that these tools know. */
static int check_options(json_t *list, struct ibx_error *err)
{
    static const struct {
        const char *name, *option;
    } wrong[] = {{"multifd", "--parallel"},
                 {"postcopy-ram", "--postcopy"},
                 {"block", "--copy-storage-all"},
                 {"x-colo", "COLO"}};
    bool known;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (is_on(list, wrong[i].name, &known))
            return ibx_error_set(err, -EPERM,
                                 "virsh migrate was given %s (QEMU's %s): leave it out",
                                 wrong[i].option, wrong[i].name);
    return 0;
}

int ibx_libvirt_check_settings(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *list;
    int rc = ibx_qmp_execute(qmp, "query-migrate-capabilities", NULL, &list, deadline_ns, err);
    if (rc)
        return rc;
    rc = check_options(list, err);
    json_decref(list);
    return rc;
}

int ibx_libvirt_migrates_already(struct ibx_qmp *qmp, const char *path, uint64_t deadline_ns,
                                 struct ibx_error *err)
{
    const int rc = ibx_libvirt_check_settings(qmp, deadline_ns, err);
    return rc ? rc : ibx_libvirt_past(path, err);
}

int ibx_libvirt_past(const char *path, struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY,
                         "libvirt has begun a migration of the VM that is not this ib-migrate's: "
                         "give virsh migrate --migrateuri unix://%.108s",
                         path);
}
