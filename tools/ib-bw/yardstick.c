/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What else this machine does with bytes, for comparison: one iperf3 stream, one memcpy. */
#include "tools/ib-bw/ib-bw.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define COPY_BYTES  ((size_t)64 << 20) /* more than a cache */
#define COPY_ROUNDS 5

/* Starts a program that does not outlive this process, its standard output in `*out`. */
static int start(char *const argv[], const struct bw_pins *pins, enum bw_end end, pid_t *pid,
                 FILE **out)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC))
        return -errno;
    *pid = fork();
    if (*pid < 0) {
        int rc = -errno;
        close(fds[0]);
        close(fds[1]);
        return rc;
    }
    if (!*pid) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ibx_bw_pin(pins, end);
        dup2(fds[1], STDOUT_FILENO);
        dup2(fds[1], STDERR_FILENO);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(fds[1]);
    *out = fdopen(fds[0], "r");
    return 0;
}

/* The exit status; 127: there is no such program. */
static int finish(pid_t pid, FILE *out)
{
    int status;
    if (out)
        fclose(out);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    if (bind(fd, (struct sockaddr *)&address, length) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        address.sin_port = 0;
    close(fd);
    return ntohs(address.sin_port);
}

static bool await_listening(FILE *out)
{
    char line[256];
    while (out && fgets(line, sizeof(line), out)) {
        if (strstr(line, "listening"))
            return true;
    }
    return false;
}

static double received_gbps(FILE *out)
{
    json_t *root = out ? json_loadf(out, 0, NULL) : NULL;
    json_t *end = json_object_get(root, "end");
    json_t *received = json_object_get(end, "sum_received");
    double bits = json_number_value(json_object_get(received, "bits_per_second"));
    json_decref(root);
    return bits / 8e9;
}

static double run_client(char *port, double seconds, const struct bw_pins *pins)
{
    char time[32];
    pid_t pid;
    FILE *out;
    snprintf(time, sizeof(time), "%.0f", seconds);
    char *argv[] = {"iperf3", "-c", "127.0.0.1", "-p", port, "-t", time, "-J", NULL};
    if (start(argv, pins, BW_CLIENT, &pid, &out))
        return 0;
    double gbps = received_gbps(out);
    finish(pid, out);
    return gbps;
}

int ibx_bw_iperf_run(double seconds, const struct bw_pins *pins, double *gbps,
                     struct ibx_error *err)
{
    char port[16];
    pid_t pid;
    FILE *out;
    snprintf(port, sizeof(port), "%u", free_port());
    char *argv[] = {"iperf3", "-s", "-1", "--forceflush", "-B", "127.0.0.1", "-p", port, NULL};
    int rc = start(argv, pins, BW_SERVER, &pid, &out);
    if (rc)
        return ibx_error_set(err, rc, "iperf3 cannot be started: %s", strerror(-rc));
    bool listening = await_listening(out);
    double measured = listening ? run_client(port, seconds, pins) : 0;
    if (measured <= 0)
        kill(pid, SIGKILL);
    int status = finish(pid, out);
    if (status == 127)
        return ibx_error_set(err, -ENOENT, "--iperf: iperf3 is not installed");
    if (measured <= 0)
        return ibx_error_set(err, -EIO, "--iperf: iperf3 gave no result");
    *gbps = measured;
    return 0;
}

double ibx_bw_memcpy_rate(void)
{
    uint8_t *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    uint64_t best = UINT64_MAX;
    if (from && to) {
        ibx_bw_payload_fill(from, COPY_BYTES, 1);
        memset(to, 1, COPY_BYTES);
    }
    for (unsigned i = 0; from && to && i < COPY_ROUNDS; i++) {
        uint64_t start_ns = ibx_now_ns();
        memcpy(to, from, COPY_BYTES);
        __asm__ volatile("" : : "r"(to) : "memory"); /* it is wanted */
        uint64_t ns = ibx_now_ns() - start_ns;
        best = ns < best ? ns : best;
    }
    free(from);
    free(to);
    return best == UINT64_MAX ? 0 : (double)COPY_BYTES / (double)best;
}
