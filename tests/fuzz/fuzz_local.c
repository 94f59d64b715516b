/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What arrives at the unix sockets of ib-migrate's own tools. The first byte says which:
 *
 *   0   a running migration gets requests
 *   1   the other end of that socket gets an answer
 *   2   a cache of a snapshot gets a child
 *   3   a child gets the cache's reply
 *
 * The sockets are real. The program is linked with --wrap=send: when the asking end has sent its
 * request, the input is there as the answer. */
#include "migrate/operator/control_socket.h"
#include "migrate/snapshot/cache.h"
#include "tests/fuzz/require.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BLOCKS  2u
#define SIZE    (4ull << 20)
#define LONGEST 70000u /* of an answer; fits into a socket's buffer */
#define LINE    4096u  /* the longest request */
#define LINES   64u    /* requests whose answers fit into the socket's buffer, unread */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char place[64];                 /* a folder */
static struct sockaddr_un address;     /* of a socket in it */
static struct ibx_control_socket *own; /* there */
static int answering = -1;             /* a listener; -1: nobody is asked */
static const uint8_t *answer;
static size_t answer_size;
static unsigned called;

ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags);
ssize_t __real_send(int fd, const void *bytes, size_t size, int flags);

ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags)
{
    const ssize_t n = __real_send(fd, bytes, size, flags);
    const int asked = answering < 0 ? -1 : accept4(answering, NULL, NULL, SOCK_CLOEXEC);
    if (asked < 0)
        return n;
    answering = -1;
    require(__real_send(asked, answer, answer_size, MSG_NOSIGNAL) == (ssize_t)answer_size);
    close(asked);
    return n;
}

/* ------------------------------------------------------------ requests */

static void status(void *context, struct ibx_migrate_status *status)
{
    (void)context;
    (void)status;
    called++;
}

static int refuse(void *context, struct ibx_error *err)
{
    (void)context;
    called++;
    return ibx_error_set(err, -ENOTCONN, "away");
}

static int agree(void *context, struct ibx_error *err)
{
    (void)context;
    (void)err;
    called++;
    return 0;
}

static int set_bandwidth(void *context, uint64_t bytes, struct ibx_error *err)
{
    (void)context;
    (void)err;
    called++;
    require(bytes <= INT64_MAX);
    return 0;
}

static const struct ibx_control_socket_ops ops = {.status = status,
                                                  .cancel = refuse,
                                                  .set_bandwidth = set_bandwidth,
                                                  .lend = agree,
                                                  .reconnect = agree};

/* Each answer is a line, an object, and says one thing. Returns how many say more than an error. */
static unsigned check_answers(char *text, size_t length, unsigned *count)
{
    unsigned good = 0;
    char *end;
    for (; (end = memchr(text, '\n', length)); (*count)++) {
        json_t *json = json_loadb(text, (size_t)(end - text), JSON_REJECT_DUPLICATES, NULL);
        const char *error = json_string_value(json_object_get(json, "error"));
        require(json_is_object(json));
        require(error ? *error && !strpbrk(error, "\n\r\x1b")
                      : json_is_true(json_object_get(json, "ok")) ||
                            json_is_object(json_object_get(json, "status")));
        good += !error || json_is_true(json_object_get(json, "away"));
        json_decref(json);
        length -= (size_t)(end + 1 - text);
        text = end + 1;
    }
    require(!length || *count > LINES); /* no part of one */
    return good;
}

static void take_requests(const uint8_t *data, size_t size)
{
    static char answers[1u << 20];
    size_t have = 0, lines = 0;
    unsigned count = 0;
    ssize_t n;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(fd >= 0 && !connect(fd, (const struct sockaddr *)&address, sizeof(address)));
    ibx_control_socket_serve(own);
    require(__real_send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size);
    shutdown(fd, SHUT_WR);
    called = 0;
    for (size_t i = 0; i <= size / LINE + 1; i++)
        ibx_control_socket_serve(own);
    while ((n = recv(fd, answers + have, sizeof(answers) - have, MSG_DONTWAIT)) > 0)
        have += (size_t)n;
    require(!n || errno == ECONNRESET); /* it has noticed our end */
    close(fd);
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    const unsigned good = check_answers(answers, have, &count);
    require(good <= called);
    require(size >= LINE || lines > LINES || (good == called && count == lines));
}

/* ------------------------------------------------------------ answers */

static void check_error(int rc, const struct ibx_error *err)
{
    require(rc < 0 && rc == err->code && err->message[0] && !strpbrk(err->message, "\n\r\x1b"));
}

static int listen_at(const char *name, int type)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/%s", place, name);
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    require(fd >= 0 && !bind(fd, (const struct sockaddr *)&at, sizeof(at)) && !listen(fd, 4));
    return fd;
}

static void take_answer(const uint8_t *data, size_t size)
{
    static int listener = -1;
    struct ibx_error err = {0};
    json_t *json = NULL;
    char path[sizeof(address.sun_path)];
    if (listener < 0)
        listener = listen_at("asked", SOCK_STREAM);
    answering = listener;
    answer = data;
    answer_size = size;
    snprintf(path, sizeof(path), "%s/asked", place);
    const int rc = ibx_control_socket_ask(path, json_pack("{s:s}", "command", "status"), &json,
                                          ibx_deadline_in_ms(10000), &err);
    if (rc)
        check_error(rc, &err);
    else
        require(json_is_object(json) && !json_is_string(json_object_get(json, "error")));
    json_decref(json);
}

/* ------------------------------------------------------------ children */

static void take_child(const uint8_t *data, size_t size)
{
    struct snapshot_child child = {.pid = 0}, again;
    struct ibx_error err = {0};
    const int rc = ibx_snapshot_child_read((const char *)data, size, BLOCKS, &child, &err);
    if (rc) {
        check_error(rc, &err);
        return;
    }
    require(child.pid > 0 && child.started && child.remote >= 0 && child.count == BLOCKS);
    json_t *json = ibx_snapshot_child_json(&child);
    char *text = json_dumps(json, JSON_COMPACT);
    require(!ibx_snapshot_child_read(text, strlen(text), BLOCKS, &again, NULL));
    require(again.pid == child.pid && again.started == child.started &&
            again.remote == child.remote &&
            !memcmp(again.addresses, child.addresses, BLOCKS * sizeof(child.addresses[0])));
    free(text);
    json_decref(json);
}

static void take_reply(const uint8_t *data, size_t size)
{
    static int listener = -1, folder_fd = -1;
    static struct ibx_snapshot_folder folder;
    const struct snapshot_child child = {
        .pid = 1, .started = 1, .count = BLOCKS, .addresses = {1u << 20, 2u << 20}};
    struct snapshot_holes holes = {.count = 0};
    struct ibx_error err = {0};
    bool whole = false;
    if (listener < 0) {
        listener = listen_at(SNAPSHOT_SOCKET, SOCK_SEQPACKET);
        folder_fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        folder.manifest.ram_count = BLOCKS;
        folder.sizes[0] = folder.sizes[1] = SIZE;
        folder.at = folder_fd;
    }
    answering = listener;
    answer = data;
    answer_size = size;
    const int rc = ibx_snapshot_child_hand_over(&folder, &child, &whole, &holes, &err);
    if (rc)
        check_error(rc, &err);
    require(holes.count <= SNAPSHOT_HOLES);
    for (unsigned i = 0; i < holes.count; i++)
        require(holes.at[i].block < BLOCKS && holes.at[i].length && holes.at[i].length <= SIZE &&
                holes.at[i].offset <= SIZE - holes.at[i].length &&
                (holes.at[i].offset | holes.at[i].length) % IBX_SNAPSHOT_PAGE == 0);
}

static void clean(void)
{
    static const char *const names[] = {"asked", SNAPSHOT_SOCKET};
    char path[sizeof(place) + 16];
    ibx_control_socket_close(own);
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", place, names[i]);
        unlink(path);
    }
    rmdir(place);
}

static void prepare(void)
{
    static bool done;
    if (done)
        return;
    done = true;
    snprintf(place, sizeof(place), "/tmp/ibx-fuzz-local-XXXXXX");
    require(mkdtemp(place));
    atexit(clean);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/own", place);
    require(!ibx_control_socket_open(address.sun_path, &ops, NULL, "", &own, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const takes[])(const uint8_t *data, size_t size) = {take_requests, take_answer,
                                                                      take_child, take_reply};
    prepare();
    if (size && size <= LONGEST)
        takes[data[0] % 4](data + 1, size - 1);
    answering = -1;
    return 0;
}
