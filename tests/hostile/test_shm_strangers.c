/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Users of the host who have no key, against the unix socket of shm: they change files and links
 * under its feet, stand in the middle, or come in crowds. Where it takes another user, that is
 * nobody, and the test runs as root.
 */
#include "tests/scenes/shm_pair.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534u
#define OFFERS 4000u /* against a process that races with them */

static struct end *const server = &both.server, *const client = &both.client;
static char base[64]; /* of this test */

/* What the kernel does not say in some containers: the linker's --wrap leads here first. */
static bool no_netlink, no_namespace;

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __real_stat64(const char *path, struct stat *status);
int __wrap_stat64(const char *path, struct stat *status);

int __wrap_socket(int domain, int type, int protocol)
{
    if (domain != AF_NETLINK || !no_netlink)
        return __real_socket(domain, type, protocol);
    errno = EAFNOSUPPORT;
    return -1;
}

int __wrap_stat64(const char *path, struct stat *status)
{
    if (!no_namespace || strncmp(path, "/proc/self/ns/", 14))
        return __real_stat64(path, status);
    errno = ENOENT;
    return -1;
}

static int set_up(void **state)
{
    no_netlink = no_namespace = false;
    strcpy(base, "/tmp/ibx-strangers-XXXXXX");
    return mkdtemp(base) && !chmod(base, 0711) ? both_apart(state) : -1;
}

static int tear_down(void **state)
{
    char command[128];
    int rc = both_close(state);
    snprintf(command, sizeof(command), "rm -rf %s", base);
    return system(command) ? -1 : rc;
}

static void directory_of(struct end *end, const char *name, mode_t mode, uid_t owner)
{
    char *path = end->options.shm_dir;
    snprintf(path, sizeof(end->options.shm_dir), "%s/%s", base, name);
    if (mkdir(path, 0700))
        assert_int_equal(errno, EEXIST);
    assert_int_equal(chown(path, owner, owner), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static unsigned entries(const char *directory)
{
    unsigned n = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static uint64_t in_time(void)
{
    return ibx_deadline_in_ms(END_PATIENCE_MS);
}

static void said(const struct ibx_error *err, const char *words)
{
    if (!strstr(err->message, words))
        fail_msg("\"%s\" does not say \"%s\"", err->message, words);
}

static int join(const uint8_t *bytes, size_t length)
{
    struct ibx_reader offer = ibx_reader_of(bytes, length);
    struct ibx_writer answer = {0};
    return ibx_provider_shm.join(client->shm, &offer, &answer, &client->err);
}

static bool is_root(void)
{
    if (geteuid() == 0)
        return true;
    print_message("needs root\n");
    return false;
}

static pid_t start(void (*run)(void))
{
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run();
        _exit(0);
    }
    return pid;
}

static void become_nobody(void)
{
    MUST(!setresgid(NOBODY, NOBODY, NOBODY) && !setresuid(NOBODY, NOBODY, NOBODY));
}

/* ---------------------------------------------------------------- directories */

static void test_directories_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        mode_t mode;
        uid_t owner;
        const char *why;
    } cases[] = {
        {0777, 0, "chmod go-w"},
        {0770, 0, "chmod go-w"},
        {0702, 0, "chmod go-w"},
        {0700, NOBODY, "belongs to user 65534"},
        {01777, NOBODY, "belongs to user"},
        {0755, NOBODY, "belongs to user 65534"},
    };
    if (!is_root())
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[512];
        char description[128];
        struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
        directory_of(server, "sock", cases[i].mode, cases[i].owner);
        assert_int_equal(ibx_provider_shm.offer(server->shm, &w, &server->err), -EPERM);
        said(&server->err, cases[i].why);
        said(&server->err, base);
        assert_int_equal(ibx_provider_shm.probe(&server->options, description, sizeof(description),
                                                &server->err),
                         -EPERM);
        assert_int_equal(entries(server->options.shm_dir), 0);
    }
}

static uint8_t offered[512];
static size_t offered_length;

/* The other end of a connection, as another user, who says hello and hears it. */
static void client_as_nobody(void)
{
    become_nobody();
    MUST(!join(offered, offered_length));
    if (ibx_provider_shm.finish(client->shm, NULL, in_time(), &client->err)) {
        fprintf(stderr, "%s\n", client->err.message);
        _exit(1);
    }
    MUST(!client->shm->direct && !end_send(client, "hello", 5, 0));
    _exit(end_await(client, NULL, 1) ? 0 : 1);
}

static void test_a_client_of_another_user(void **state)
{
    static const mode_t modes[] = {0711, 0755, 01777, 01733};
    if (!is_root())
        skip();
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        struct ibx_reader none = {0};
        int status;
        directory_of(server, "sock", modes[i], 0);
        mode_t mask = umask(0077); /* does not shut the client out */
        offered_length = pair_offer(&both, offered, sizeof(offered));
        umask(mask);
        pid_t pid = start(client_as_nobody);
        int rc = ibx_provider_shm.finish(server->shm, &none, in_time(), &server->err);
        if (rc)
            fail_msg("%s", server->err.message);
        assert_int_equal(entries(server->options.shm_dir), 0); /* the name has served */
        await_notes(server, NULL, 1);
        assert_int_equal(end_send(server, "hello", 5, 0), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        both_close(state);
        both_apart(state);
    }
}

/* In a sticky directory of root's the socket lies in a folder that only the server can change. */
static void test_a_sticky_directory(void **state)
{
    (void)state;
    char path[160];
    struct stat status;
    uint8_t bytes[512];
    if (!is_root())
        skip();
    directory_of(server, "sock", 01777, 0);
    size_t length = pair_offer(&both, bytes, sizeof(bytes));
    const char *name = server->shm->place.name;
    snprintf(path, sizeof(path), "%s/%s", server->options.shm_dir, name);
    assert_int_equal(lstat(path, &status), 0);
    assert_true(S_ISDIR(status.st_mode) && (status.st_mode & 07777) == 0711);
    /* Neither moved nor entered by others. */
    assert_int_equal(seteuid(NOBODY), 0);
    assert_int_equal(rename(path, "/tmp/ibx-strangers-elsewhere"), -1);
    assert_int_equal(rmdir(path), -1);
    snprintf(path, sizeof(path), "%s/%s/x", server->options.shm_dir, name);
    assert_int_equal(mkdir(path, 0700), -1);
    assert_int_equal(errno, EACCES);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(join(bytes, length), 0);
    both_close(state);
    both_apart(state);
    snprintf(path, sizeof(path), "%s/sock", base);
    assert_int_equal(entries(path), 0); /* an attempt given up leaves nothing */
}

/* ---------------------------------------------------------------- a racing user */

/* Whatever appears in DIR appears in EVIL as a link to the victim, and the two change names. */
static void swap_for_ever(void)
{
    char victim[160], dir[160], evil[160], link[512];
    snprintf(victim, sizeof(victim), "%s/victim", base);
    snprintf(dir, sizeof(dir), "%s/theirs/sock", base);
    snprintf(evil, sizeof(evil), "%s/theirs/evil", base);
    become_nobody();
    for (;;) {
        DIR *list = opendir(dir);
        for (struct dirent *e; list && (e = readdir(list));) {
            if (strncmp(e->d_name, "ibx-", 4))
                continue;
            snprintf(link, sizeof(link), "%s/%s", evil, e->d_name);
            if (!symlink(victim, link) &&
                !renameat2(AT_FDCWD, dir, AT_FDCWD, evil, RENAME_EXCHANGE)) {
                renameat2(AT_FDCWD, dir, AT_FDCWD, evil, RENAME_EXCHANGE);
                unlink(link);
            }
        }
        if (list)
            closedir(list);
    }
}

/* The directory is root's, but its parent is not: a stranger can exchange it at any moment. */
static void test_links_swapped_in_a_race(void **state)
{
    char victim[160], theirs[160];
    struct stat status;
    if (!is_root())
        skip();
    snprintf(victim, sizeof(victim), "%s/victim", base);
    snprintf(theirs, sizeof(theirs), "%s/theirs", base);
    close(open(victim, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(mkdir(theirs, 0755), 0);
    directory_of(server, "theirs/evil", 0755, NOBODY);
    directory_of(server, "theirs/sock", 0755, 0);
    assert_int_equal(chown(theirs, NOBODY, NOBODY), 0);
    const struct ibx_options options = server->options;
    pid_t pid = start(swap_for_ever);
    unsigned made = 0;
    for (unsigned i = 0; i < OFFERS; i++) {
        uint8_t bytes[512];
        struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
        made += !ibx_provider_shm.offer(server->shm, &w, &server->err);
        both_close(state);
        both_apart(state);
        server->options = options;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_true(made > 0);
    assert_int_equal(stat(victim, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
}

/* -------------------------------------------------------------- in the middle */

static struct middleman {
    char name[IBX_SHM_NAME + 1];
    char here[108], there[108]; /* where the client looks, and where the server is */
    int listener;
    bool in_process;
    pthread_t thread;
    pid_t pid;
    int told[2]; /* a byte when it has got hold of a descriptor */
} middle;

static int unix_at(const char *path, bool bound)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    MUST(fd >= 0);
    if (bound)
        MUST(!bind(fd, (struct sockaddr *)&address, sizeof(address)) && !listen(fd, 8));
    else
        MUST(!connect(fd, (struct sockaddr *)&address, sizeof(address)));
    return fd;
}

/* Passes one packet on, and keeps what comes with it: whether there was one. */
static bool pass_on(int from, int to)
{
    uint8_t packet[256];
    int fd;
    ssize_t n = ibx_shm_packet_receive(from, packet, sizeof(packet), &fd);
    if (n <= 0)
        return false;
    if (fd >= 0)
        MUST(write(middle.told[1], "!", 1) == 1);
    ibx_shm_packet_send(to, packet, (size_t)n, fd);
    return true;
}

static void *relay(void *unused)
{
    (void)unused;
    int near = accept4(middle.listener, NULL, NULL, SOCK_CLOEXEC);
    int far = unix_at(middle.there, false);
    struct pollfd wait[2] = {{.fd = near, .events = POLLIN}, {.fd = far, .events = POLLIN}};
    bool open = true;
    while (open && poll(wait, 2, END_PATIENCE_MS) > 0) {
        if (wait[0].revents)
            open = pass_on(near, far);
        if (open && wait[1].revents)
            open = pass_on(far, near);
    }
    close(near);
    close(far);
    return NULL;
}

/* The client is given another directory than the server's, where somebody else listens. */
static void stand_between(bool in_process)
{
    uint8_t bytes[512];
    directory_of(server, "sock", 0711, geteuid());
    directory_of(client, "false", 0711, geteuid());
    size_t length = pair_offer(&both, bytes, sizeof(bytes));
    middle.in_process = in_process;
    snprintf(middle.here, sizeof(middle.here), "%s/%s", client->options.shm_dir,
             server->shm->place.name);
    snprintf(middle.there, sizeof(middle.there), "%s/%s", server->options.shm_dir,
             server->shm->place.name);
    assert_int_equal(pipe2(middle.told, O_CLOEXEC | O_NONBLOCK), 0);
    if (in_process)
        middle.listener = unix_at(middle.here, true);
    if (in_process)
        assert_int_equal(pthread_create(&middle.thread, NULL, relay, NULL), 0);
    assert_true(length > 0);
    memcpy(offered, bytes, length);
    offered_length = length;
}

static void relay_listening(void)
{
    middle.listener = unix_at(middle.here, true);
    MUST(write(middle.told[1], "L", 1) == 1);
    relay(NULL);
}

static void assert_kept_out(int expected, const char *words)
{
    struct finishing one;
    struct ibx_reader none = {0};
    char byte;
    assert_int_equal(join(offered, offered_length), 0);
    finish_start(&one, server, &none, ibx_deadline_in_ms(500));
    int rc = ibx_provider_shm.finish(client->shm, NULL, in_time(), &client->err);
    assert_int_equal(rc, expected);
    said(&client->err, words);
    assert_int_equal(finish_join(&one), -ETIMEDOUT);
    assert_null(client->shm->segment);
    assert_null(server->shm->segment);
    assert_int_equal(read(middle.told[0], &byte, 1), -1); /* nor did anybody else get it */
    ibx_provider_shm.close(client->shm);                  /* so that the relay ends */
    assert_int_equal(ibx_provider_shm.open(&client->link, &client->endpoint, &client->err), 0);
    if (middle.in_process)
        pthread_join(middle.thread, NULL);
    else
        waitpid(middle.pid, NULL, 0);
    close(middle.told[0]);
    close(middle.told[1]);
}

/* The sockets tell it, even where it is one process. */
static void test_a_relay(void **state)
{
    (void)state;
    stand_between(true);
    assert_kept_out(-EPERM, "stands between");
}

static void relay_elsewhere(void)
{
    struct pollfd told = {.events = POLLIN};
    char byte;
    stand_between(false);
    middle.pid = start(relay_listening);
    told.fd = middle.told[0];
    assert_int_equal(poll(&told, 1, END_PATIENCE_MS), 1);
    assert_int_equal(read(middle.told[0], &byte, 1), 1);
}

/* The process tells it, where the kernel does not tell sockets. */
static void test_a_relay_without_unix_diag(void **state)
{
    (void)state;
    relay_elsewhere();
    no_netlink = true;
    assert_kept_out(-EPERM, "stands between");
}

static void test_a_relay_that_nobody_sees(void **state)
{
    (void)state;
    relay_elsewhere();
    no_netlink = no_namespace = true;
    assert_kept_out(-EOPNOTSUPP, "unix_diag");
}

/* Either fact is enough for an honest connection. */
static void test_one_fact_is_enough(void **state)
{
    for (int i = 0; i < 2; i++) {
        no_netlink = i == 0;
        no_namespace = i == 1;
        ends_connect(&both.server, &both.client);
        both_close(state);
        both_apart(state);
    }
}

/* An answer to the server's hello is good on that socket only. */
static void test_an_answer_on_another_socket(void **state)
{
    (void)state;
    uint8_t hello[128], answer[IBX_PROOF_BYTES];
    directory_of(server, "sock", 0711, geteuid());
    pair_offer(&both, offered, sizeof(offered));
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", server->options.shm_dir, server->shm->place.name);
    int one = unix_at(path, false), other = unix_at(path, false);
    struct finishing f;
    struct ibx_reader none = {0};
    finish_start(&f, server, &none, ibx_deadline_in_ms(500));
    ssize_t n = recv(one, hello, sizeof(hello), 0);
    assert_true(n > 0);
    struct ibx_reader r = ibx_reader_of(hello, (size_t)n);
    assert_int_equal(ibx_shm_hello_check(client->shm, one, &r, answer), 0);
    r = ibx_reader_of(hello, (size_t)n);
    assert_int_equal(ibx_shm_hello_check(client->shm, other, &r, answer), -EPERM);
    assert_int_equal(send(other, answer, sizeof(answer), MSG_NOSIGNAL), sizeof(answer));
    assert_int_equal(finish_join(&f), -ETIMEDOUT);
    assert_null(server->shm->segment);
    close(one);
    close(other);
}

/* ------------------------------------------------------------------- at the name */

static void test_files_that_are_no_sockets(void **state)
{
    (void)state;
    char path[160];
    size_t length;
    directory_of(server, "sock", 0711, geteuid());
    directory_of(client, "false", 0711, geteuid());
    length = pair_offer(&both, offered, sizeof(offered));
    snprintf(path, sizeof(path), "%s/%s", client->options.shm_dir, server->shm->place.name);
    char target[160];
    snprintf(target, sizeof(target), "%s/%s", server->options.shm_dir, server->shm->place.name);
    assert_int_equal(symlink(target, path), 0); /* even to the right one */
    assert_int_equal(join(offered, length), -ENOTSOCK);
    both.client.provider->close(client->shm);
    assert_int_equal(ibx_provider_shm.open(&client->link, &client->endpoint, &client->err), 0);
    unlink(path);
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(join(offered, length), -ENOTSOCK);
}

/* Who sits where the client looks, or fills the server's queue, and then neither proves nor says
 * anything: the client's user is to hear of it, as with a wrong proof. */

enum sitting { SAYS_NOTHING, CLOSES, SITTINGS };

static void *sit(void *argument)
{
    const enum sitting how = *(const enum sitting *)argument;
    struct pollfd wait = {.events = POLLIN};
    wait.fd = accept4(middle.listener, NULL, NULL, SOCK_CLOEXEC);
    MUST(wait.fd >= 0);
    if (how == SAYS_NOTHING)
        poll(&wait, 1, END_PATIENCE_MS);
    close(wait.fd);
    close(middle.listener);
    return NULL;
}

static void test_somebody_sits_on_the_socket(void **state)
{
    for (enum sitting how = 0; how < SITTINGS; how++) {
        directory_of(server, "sock", 0711, geteuid());
        directory_of(client, "false", 0711, geteuid());
        size_t length = pair_offer(&both, offered, sizeof(offered));
        snprintf(middle.here, sizeof(middle.here), "%s/%s", client->options.shm_dir,
                 server->shm->place.name);
        middle.listener = unix_at(middle.here, true);
        assert_int_equal(pthread_create(&middle.thread, NULL, sit, &how), 0);
        assert_int_equal(join(offered, length), 0);
        int rc = ibx_provider_shm.finish(client->shm, NULL, ibx_deadline_in_ms(200), &client->err);
        assert_int_equal(rc, how == SAYS_NOTHING ? -ETIMEDOUT : -EACCES);
        said(&client->err, "at the shm socket and does not answer");
        ibx_provider_shm.close(client->shm);
        assert_int_equal(ibx_provider_shm.open(&client->link, &client->endpoint, &client->err), 0);
        pthread_join(middle.thread, NULL);
        both_close(state);
        both_apart(state);
    }
}

/* ----------------------------------------------------------------------- crowds */

static int stranger(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, server->shm->place.name, IBX_SHM_NAME);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    MUST(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + IBX_SHM_NAME))) {
        close(fd);
        return -1;
    }
    return fd;
}

/* More than the queue holds: the client waits for its turn. */
static void test_a_crowd_in_the_queue(void **state)
{
    (void)state;
    int fds[300];
    unsigned in = 0;
    size_t length = pair_offer(&both, offered, sizeof(offered));
    for (unsigned i = 0; i < 300; i++) {
        fds[i] = stranger();
        in += fds[i] >= 0;
    }
    assert_true(in < 300); /* it is full */
    assert_int_equal(join(offered, length), 0);
    struct finishing one, other;
    struct ibx_reader none = {0};
    finish_start(&other, client, NULL, in_time());
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec++;
    assert_int_equal(pthread_timedjoin_np(other.thread, NULL, &soon), ETIMEDOUT);
    finish_start(&one, server, &none, in_time());
    assert_int_equal(finish_join(&one), 0);
    assert_int_equal(finish_join(&other), 0);
    for (unsigned i = 0; i < 300; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    assert_int_equal(end_send(client, "hello", 5, 0), 0);
    await_notes(server, NULL, 1);
}

static void test_the_queue_stays_full(void **state)
{
    (void)state;
    int fds[300];
    size_t length = pair_offer(&both, offered, sizeof(offered));
    for (unsigned i = 0; i < 300; i++)
        fds[i] = stranger();
    assert_int_equal(join(offered, length), 0);
    int rc = ibx_provider_shm.finish(client->shm, NULL, ibx_deadline_in_ms(200), &client->err);
    assert_int_equal(rc, -ETIMEDOUT);
    said(&client->err, "stayed full");
    for (unsigned i = 0; i < 300; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

/* The server closes its end, as if others had taken the client's place, before it has read the
 * client's answer. */
static void test_a_client_that_is_pushed_out(void **state)
{
    (void)state;
    uint8_t hello[128];
    struct ibx_writer w = ibx_writer_of(hello, sizeof(hello));
    size_t length = pair_offer(&both, offered, sizeof(offered));
    assert_int_equal(join(offered, length), 0);
    struct finishing f;
    finish_start(&f, client, NULL, in_time());
    struct pollfd wait = {.fd = server->shm->listener, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, END_PATIENCE_MS), 1);
    wait.fd = accept4(server->shm->listener, NULL, NULL, SOCK_CLOEXEC);
    assert_int_equal(ibx_shm_hello_put(server->shm, wait.fd, &w), 0);
    assert_int_equal(ibx_shm_packet_send(wait.fd, hello, w.length, -1), 0);
    assert_int_equal(poll(&wait, 1, END_PATIENCE_MS), 1);
    close(wait.fd);
    assert_int_equal(finish_join(&f), -EACCES);
    said(&client->err, "at the shm socket and does not answer");
}

/* A stranger's descriptors are not even taken, so nothing is to be closed; the client's are. */
static void test_descriptors_of_strangers(void **state)
{
    (void)state;
    int ends[2], one = 1;
    char byte;
    size_t length = pair_offer(&both, offered, sizeof(offered));
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    int fd = stranger();
    bool can_refuse = !setsockopt(fd, SOL_SOCKET, 83 /* SO_PASSRIGHTS */, &one, sizeof(one));
    int rc = ibx_shm_packet_send(fd, "let me in", 9, ends[1]);
    assert_int_equal(rc, can_refuse ? -EPERM : 0);
    if (can_refuse)
        assert_int_equal(ibx_shm_packet_send(fd, "let me in", 9, -1), 0);
    assert_int_equal(join(offered, length), 0);
    struct finishing f, other;
    struct ibx_reader none = {0};
    finish_start(&other, client, NULL, in_time());
    finish_start(&f, server, &none, in_time());
    assert_int_equal(finish_join(&f), 0);
    assert_int_equal(finish_join(&other), 0);
    close(fd);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 0); /* nobody else holds it */
    close(ends[0]);
    struct ibx_mr *mr = end_register(client, NULL, 4096, IBX_ACCESS_REMOTE_READ);
    memset(mr->span.address, 1, 4096);
    assert_non_null(pointer(server, mr, 4096));
    end_deregister(client, mr);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_directories_that_are_refused),
        TEST(test_a_client_of_another_user),
        TEST(test_a_sticky_directory),
        TEST(test_links_swapped_in_a_race),
        TEST(test_a_relay),
        TEST(test_a_relay_without_unix_diag),
        TEST(test_a_relay_that_nobody_sees),
        TEST(test_one_fact_is_enough),
        TEST(test_an_answer_on_another_socket),
        TEST(test_files_that_are_no_sockets),
        TEST(test_somebody_sits_on_the_socket),
        TEST(test_a_crowd_in_the_queue),
        TEST(test_the_queue_stays_full),
        TEST(test_a_client_that_is_pushed_out),
        TEST(test_descriptors_of_strangers),
    };
    alarm(120);
    return cmocka_run_group_tests_name("shm_strangers", tests, NULL, NULL);
}
