/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `self`'s server: a process of its own, so that two processes talk as they do in GVirtuS. */
#include "tools/ib-bw/ib-bw.h"

#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t ibx_bw_fork(const char *what, int *fd, struct ibx_error *err)
{
    int fds[2];
    pid_t parent = getpid();
    if (pipe2(fds, O_CLOEXEC))
        return ibx_error_set(err, -errno, "no pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        int rc = -errno;
        close(fds[0]);
        close(fds[1]);
        return ibx_error_set(err, rc, "no process for %s: %s", what, strerror(-rc));
    }
    close(fds[pid ? 1 : 0]);
    *fd = fds[pid ? 0 : 1];
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_FAILURE);
    return 0;
}

void ibx_bw_reap(pid_t *pid)
{
    if (!*pid)
        return;
    kill(*pid, SIGKILL);
    while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *pid = 0;
}

/* The child tells, a line each: "uri URI", "stock HOST:PORT", at last "ready"; or "error SENTENCE".
 */
static void tell(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tell(int fd, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vdprintf(fd, format, args);
    va_end(args);
}

static int open_one(struct bw_server *server, const char *scheme, const char *host, int fd,
                    struct ibx_error *err)
{
    char uri[128];
    const char *real;
    snprintf(uri, sizeof(uri), "%s://%s:0", scheme, host);
    int rc = ibx_bw_server_open(server, uri, &real, err);
    if (!rc)
        tell(fd, "uri %s\n", real);
    return rc;
}

/* verbs finds its device by the address, and no device has the loopback's. */
static void open_device_doors(struct bw_server *server, int fd)
{
    struct ifaddrs *list;
    char host[INET_ADDRSTRLEN];
    unsigned left = BW_DOORS_MAX - 2;
    if (getifaddrs(&list))
        return;
    for (struct ifaddrs *a = list; a && left; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || !(a->ifa_flags & IFF_UP) ||
            (a->ifa_flags & IFF_LOOPBACK))
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a->ifa_addr;
        if (inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host)) &&
            !open_one(server, "rdma", host, fd, NULL))
            left--;
    }
    freeifaddrs(list);
}

/* Beyond the first, failures only leave ways out. */
static int open_doors(struct bw_server *server, const struct bw_args *args, int fd,
                      struct ibx_error *err)
{
    char description[192];
    uint16_t port;
    int rc = open_one(server, "rdma", "127.0.0.1", fd, err);
    if (rc)
        return rc;
    if (!ibx_provider_probe("verbs", &args->options, description, sizeof(description), NULL))
        open_device_doors(server, fd);
    /* For libfabric's emulations, which rdma:// never takes. */
    open_one(server, "ofi", "127.0.0.1", fd, NULL);
    if (args->raw)
        return 0;
    rc = ibx_bw_server_open_stock(server, "127.0.0.1:0", &port, err);
    if (!rc)
        tell(fd, "stock 127.0.0.1:%u\n", port);
    return rc;
}

static size_t largest(const struct bw_args *args)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < args->size_count; i++)
        bytes = args->sizes[i] > bytes ? args->sizes[i] : bytes;
    return bytes;
}

/* Serves until it is killed. The signals of a terminal go to both; only the parent acts on them. */
static _Noreturn void child_main(const struct bw_args *args, const struct bw_pins *pins, int fd)
{
    struct bw_args own = *args;
    struct bw_server *server;
    struct ibx_error err = {0};
    own.max_bytes = largest(args);
    ibx_bw_pin(pins, BW_SERVER);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    int rc = ibx_bw_server_create(&own, &server, &err);
    if (!rc)
        rc = open_doors(server, &own, fd, &err);
    if (!rc)
        rc = ibx_bw_server_start(server, &err);
    if (rc) {
        tell(fd, "error %s\n", err.message);
        _exit(EXIT_FAILURE);
    }
    tell(fd, "ready\n");
    close(fd);
    for (;;)
        pause();
}

/* 1: it is ready. */
static int take_line(struct bw_child *child, char *line, struct ibx_error *err)
{
    line[strcspn(line, "\n")] = '\0';
    if (!strcmp(line, "ready"))
        return 1;
    if (!strncmp(line, "error ", 6))
        return ibx_error_set(err, -EIO, "the server's end: %s", line + 6);
    if (!strncmp(line, "uri ", 4) && child->uri_count < BW_DOORS_MAX)
        snprintf(child->uris[child->uri_count++], sizeof(child->uris[0]), "%.299s", line + 4);
    if (!strncmp(line, "stock ", 6))
        snprintf(child->stock, sizeof(child->stock), "%.63s", line + 6);
    return 0;
}

static int learn_doors(struct bw_child *child, int fd, struct ibx_error *err)
{
    char line[IBX_ERROR_MAX + 16];
    int rc = 0;
    FILE *in = fdopen(fd, "r");
    if (!in) {
        close(fd);
        return ibx_error_set(err, -ENOMEM, "no memory for a stream");
    }
    while (!rc && fgets(line, sizeof(line), in))
        rc = take_line(child, line, err);
    fclose(in);
    if (!rc)
        rc = ibx_error_set(err, -EIO, "the server's end died at its start");
    return rc < 0 ? rc : 0;
}

int ibx_bw_child_start(const struct bw_args *args, const struct bw_pins *pins,
                       struct bw_child *child, struct ibx_error *err)
{
    int fd;
    pid_t pid = ibx_bw_fork("the server's end", &fd, err);
    if (pid < 0)
        return pid;
    if (!pid)
        child_main(args, pins, fd);
    child->pid = pid;
    return learn_doors(child, fd, err);
}

void ibx_bw_child_stop(struct bw_child *child)
{
    ibx_bw_reap(&child->pid);
}
