/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Where the unix socket of a connection is: a name in the network namespace, or a file in shm_dir.
 *
 * A file is made, opened to others, connected to and removed through descriptors of its directory,
 * so nothing changes for us when somebody swaps a part of the path. Only we and root may change
 * that directory. In a directory like /dev/shm, where others may make files but not touch ours (the
 * sticky bit), the socket gets a directory of its own for as long as it exists. A client needs
 * nothing but the right to search these directories (0711). It need not trust them either, because
 * identity.c finds out who answers.
 */
#include "transport/shm/shm.h"

#include "common/descriptor.h"
#include "common/shell_word.h"
#include "common/unix_connect.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME_PREFIX "ibx-"
#define BACKLOG     128 /* room for many unauthenticated clients */
#define BY_OTHERS   (S_IWGRP | S_IWOTH)

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

static int name_make(char name[IBX_SHM_NAME + 1], struct ibx_error *err)
{
    uint8_t random[(IBX_SHM_NAME - (sizeof(NAME_PREFIX) - 1)) / 2];
    int rc = ibx_random(random, sizeof(random), err);
    if (rc)
        return rc;
    strcpy(name, NAME_PREFIX);
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(name + sizeof(NAME_PREFIX) - 1 + 2 * i, 3, "%02x", random[i]);
    return 0;
}

/* Whether the peer's name is one of name_make()'s: then no path with it leads to another folder. */
static bool name_valid(const char *name)
{
    size_t prefix = sizeof(NAME_PREFIX) - 1;
    return strlen(name) == IBX_SHM_NAME && !memcmp(name, NAME_PREFIX, prefix) &&
           strspn(name + prefix, "0123456789abcdef") == IBX_SHM_NAME - prefix;
}

static socklen_t abstract_address(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, IBX_SHM_NAME);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + IBX_SHM_NAME);
}

/* Names a file by its own descriptor (`name` is ""), or by that of its folder and its name. */
static socklen_t file_address(int fd, const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address->sun_path, sizeof(address->sun_path), "/proc/thread-self/fd/%d%s%s", fd,
             *name ? "/" : "", name);
    return sizeof(*address);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void ibx_shm_place_init(struct shm_place *place)
{
    *place = (struct shm_place){.directory = -1, .folder = -1};
}

void ibx_shm_place_leave(struct shm_place *place)
{
    if (place->made_socket)
        unlinkat(place->folder, place->name, 0);
    if (place->made_folder)
        unlinkat(place->directory, place->name, AT_REMOVEDIR);
    close_fd(&place->folder);
    close_fd(&place->directory);
    place->made_socket = place->made_folder = false;
}

int ibx_shm_nonblocking_socket(void)
{
    int fd =
        ibx_descriptor_apart(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return fd < 0 ? -errno : fd;
}

void ibx_shm_pass_descriptors(int socket, bool pass)
{
    int value = pass;
    setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof(value));
}

/* ----------------------------------------------------------------- the server */

int ibx_shm_directory_open(const char *path, bool *shared, struct ibx_error *err)
{
    struct stat status;
    const uid_t own = geteuid();
    int rc = 0, fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ibx_error_set(err, -errno, "rdma.shm_dir %s is not usable: %s", path,
                             strerror(errno));
    if (fstat(fd, &status))
        rc = ibx_error_set(err, -errno, "rdma.shm_dir %s: %s", path, strerror(errno));
    else if (status.st_uid != own && status.st_uid != 0)
        rc = ibx_error_set(
            err, -EPERM,
            "rdma.shm_dir %s belongs to user %u, who can exchange what is in it: name "
            "a directory of user %u or root",
            path, (unsigned)status.st_uid, (unsigned)own);
    else if (status.st_mode & BY_OTHERS && !(status.st_mode & S_ISVTX))
        rc = ibx_error_set(
            err, -EPERM,
            "rdma.shm_dir %s has mode %04o, so that others can exchange what is in it: "
            "chmod go-w %s, or name another directory",
            path, (unsigned)status.st_mode & 07777, ibx_shell_word(path).text);
    *shared = status.st_mode & BY_OTHERS;
    if (rc)
        close_fd(&fd);
    return rc ? rc : fd;
}

/* Makes a directory that others can search and nobody else can change, whatever the umask. */
static int folder_make(struct shm_place *place)
{
    struct stat status;
    if (mkdirat(place->directory, place->name, 0700))
        return -errno;
    place->made_folder = true;
    place->folder =
        openat(place->directory, place->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (place->folder < 0 || fstat(place->folder, &status))
        return -errno;
    if (status.st_uid != geteuid())
        return -EPERM;
    return fchmod(place->folder, 0711) ? -errno : 0;
}

/* Where the socket is to be: in shm_dir, or in a folder there that is ours alone. */
static int place_make(struct shm_place *place, const char *directory, struct ibx_error *err)
{
    bool shared;
    int rc = ibx_shm_directory_open(directory, &shared, err);
    if (rc < 0)
        return rc;
    place->directory = rc;
    if (!shared) {
        place->folder = fcntl(place->directory, F_DUPFD_CLOEXEC, 0);
        rc = place->folder < 0 ? -errno : 0;
    } else {
        rc = folder_make(place);
    }
    return rc < 0 ? ibx_error_set(err, rc, "cannot make a folder in rdma.shm_dir %s: %s", directory,
                                  strerror(-rc))
                  : 0;
}

/* The client may be another user; the proof decides. */
static int open_to_others(const struct shm_place *place)
{
    struct stat status;
    char self[40];
    int rc = 0, fd = openat(place->folder, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    snprintf(self, sizeof(self), "/proc/thread-self/fd/%d", fd);
    if (fstat(fd, &status))
        rc = -errno;
    else if (!S_ISSOCK(status.st_mode) || status.st_uid != geteuid())
        rc = -EPERM;
    else if (chmod(self, 0666))
        rc = -errno;
    close(fd);
    return rc;
}

int ibx_shm_socket_listen(struct shm_place *place, const char *directory, int *listener,
                          struct ibx_error *err)
{
    struct sockaddr_un address;
    int rc = name_make(place->name, err);
    if (!rc && directory[0])
        rc = place_make(place, directory, err);
    if (rc)
        return rc;
    socklen_t length = directory[0] ? file_address(place->folder, place->name, &address)
                                    : abstract_address(place->name, &address);
    int fd = ibx_shm_nonblocking_socket();
    rc = fd < 0 ? fd : bind(fd, (struct sockaddr *)&address, length) ? -errno : 0;
    if (!rc && directory[0]) {
        place->made_socket = true;
        rc = open_to_others(place);
    }
    if (!rc) {
        ibx_shm_pass_descriptors(fd, false);
        rc = listen(fd, BACKLOG) ? -errno : 0;
    }
    if (rc) {
        close_fd(&fd);
        return ibx_error_set(err, rc, "cannot make a socket in rdma.shm_dir %s: %s",
                             directory[0] ? directory : "\"\"", strerror(-rc));
    }
    *listener = fd;
    return 0;
}

/* ----------------------------------------------------------------- the client */

/* Why the client cannot reach the server's socket, and what to do. */
static int unreachable(const char *directory, const char *name, int code, struct ibx_error *err)
{
    if (!directory[0] && code == -ECONNREFUSED)
        return ibx_error_set(err, code,
                             "the server is on this host but in another network namespace: give "
                             "both containers one directory and name it with rdma.shm_dir");
    if (directory[0] && code == -ENOENT)
        return ibx_error_set(err, code,
                             "%s/%s is not there: the server's rdma.shm_dir has to be mounted here "
                             "too, and rdma.shm_dir on this side has to name it",
                             directory, name);
    if (code == -EINTR)
        return ibx_error_set(err, code, "this process was told to end");
    if (code == -ETIMEDOUT)
        return ibx_error_set(err, code, "the queue of the server's socket %s stayed full", name);
    return ibx_error_set(err, code, "cannot reach the server's socket %s%s%s: %s",
                         directory[0] ? directory : "@", directory[0] ? "/" : "", name,
                         strerror(-code));
}

/* A descriptor of the server's socket file. Links in shm_dir are not followed. */
static int socket_find(const struct shm_place *place, const char *directory)
{
    struct stat status;
    int folder = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0 && place->nested) {
        int inner = openat(folder, place->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int code = errno;
        close(folder);
        folder = inner;
        errno = code;
    }
    if (folder < 0)
        return -errno;
    int fd = openat(folder, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int rc = fd < 0 || fstat(fd, &status) ? -errno : !S_ISSOCK(status.st_mode) ? -ENOTSOCK : 0;
    close(folder);
    if (rc)
        close_fd(&fd);
    return rc ? rc : fd;
}

int ibx_shm_socket_connect(const struct shm_place *place, const char *directory, int fd,
                           bool (*ends)(void), uint64_t deadline, struct ibx_error *err)
{
    struct sockaddr_un address;
    int file = directory[0] ? socket_find(place, directory) : -1;
    if (directory[0] && file < 0)
        return unreachable(directory, place->name, file, err);
    socklen_t length =
        directory[0] ? file_address(file, "", &address) : abstract_address(place->name, &address);
    int rc = connect(fd, (struct sockaddr *)&address, length) ? -errno : 0;
    if (rc == -EAGAIN && deadline)
        rc = ibx_unix_connect_in_turn(fd, &address, length, ends, deadline);
    close_fd(&file);
    if (!rc || rc == -EAGAIN)
        return rc;
    return unreachable(directory, place->name, rc, err);
}

/* ------------------------------------------------------------------- the offer */

void ibx_shm_place_put(const struct shm_place *place, const char *directory, struct ibx_writer *w)
{
    ibx_put_string(w, place->name);
    ibx_put_string(w, directory);
    ibx_put_u8(w, place->made_folder);
}

int ibx_shm_place_get(struct shm_place *place, char directory[IBX_SHM_DIRECTORY],
                      struct ibx_reader *r)
{
    char name[IBX_SHM_NAME + 1];
    ibx_get_string(r, name, sizeof(name));
    ibx_get_string(r, directory, IBX_SHM_DIRECTORY);
    unsigned nested = ibx_get_u8(r);
    if (r->failed || !name_valid(name) || nested > 1)
        return -EPROTO;
    ibx_text_sanitize(directory);
    strcpy(place->name, name);
    place->nested = nested;
    return 0;
}
