/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What only the verbs provider promises, over the guest's two soft-RoCE devices (README.md). The
 * contract tests check everything else. Runs as root in the guest. */
#include "tests/vm/verbs_scene.h"
#include "tests/vm/wire.h"

#include "common/locked.h"

#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* -------------------------------------------------------------------- choices */

/* The settings of both sides after each has set its own options. */
static void test_settings(void **state)
{
    (void)state;
    static const struct {
        const char *server, *client;         /* options */
        const char *server_has, *client_has; /* in the description of the path */
    } rows[] = {
        {"", "", "rxe0 port 1 gid 1 mtu 4096", "rxe1 port 1 gid 1 mtu 4096"},
        {"mtu=2048", "mtu=1024", "mtu 1024", "mtu 1024"},
        {"port_num=1 gid_index=1", "device=rxe1 port_num=1 gid_index=1", "", "rxe1 port 1 gid 1 "},
    };
    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct session s;
        open_pair(&s, rows[i].server, rows[i].client);
        if (!strstr(s.server.description, rows[i].server_has) ||
            !strstr(s.client.description, rows[i].client_has))
            fail_msg("\"%s\", \"%s\": %s; %s", rows[i].server, rows[i].client, s.server.description,
                     s.client.description);
        check_read(&s);
        session_end(&s);
    }
}

static void check_both(const struct session *s)
{
    assert_true(strstr(s->server.description, "rxe0") && strstr(s->server.description, "rxe1"));
    assert_true(strstr(s->client.description, "rxe0") && strstr(s->client.description, "rxe1"));
}

static void test_two_rails(void **state)
{
    (void)state;
    struct session s;
    open_pair(&s, "rails=2 lanes=2", "rails=4 lanes=3");
    check_both(&s);
    assert_non_null(strstr(s.server.description, "5 queue pairs"));
    assert_int_equal(ibx_conn_caps(s.conn)->lanes, 4);
    check_read(&s);
    session_end(&s);
    /* Options that fit both devices, and a second address of one. Each side still uses its own
     * device. */
    shell("ip address add 10.77.0.3/32 dev veth0");
    open_pair(&s, "rails=2", "rails=2 gid_index=1 port_num=1");
    check_both(&s);
    session_end(&s);
    shell("ip address del 10.77.0.3/32 dev veth0");
    open_pair(&s, "device=rxe1,rxe0 rails=2", "rails=1");
    assert_int_equal(ibx_conn_caps(s.conn)->lanes, 4);
    check_read(&s);
    session_end(&s);
}

/* Addresses of this host without RDMA lead to any of its devices. */
static void test_local_addresses(void **state)
{
    (void)state;
    struct session s;
    open_at(&s, "verbs://127.0.0.1:0", "", "", NULL);
    check_read(&s);
    session_end(&s);
    open_at(&s, "rdma:///tmp/test_verbs.sock", "provider=verbs device=rxe1", "provider=verbs",
            NULL);
    assert_non_null(strstr(s.server.description, "rxe1"));
    check_read(&s);
    session_end(&s);
    unlink("/tmp/test_verbs.sock");
}

/* The handshake uses IPv6 and another link-local network than the device's. A link-local address
 * without its interface would lead there, so another address of the device is offered. */
static void test_no_link_local_address(void **state)
{
    (void)state;
    struct session s;
    shell("ip link set dummy0 up && ip -6 address add fe80::d/64 dev dummy0 nodad && "
          "for d in veth0 veth1; do echo 0 >/proc/sys/net/ipv6/conf/$d/accept_dad && "
          "echo 0 >/proc/sys/net/ipv6/conf/$d/disable_ipv6; done");
    open_at(&s, "verbs://[::1]:0", "", "", NULL);
    assert_non_null(strstr(s.client.description, "gid 1"));
    check_read(&s);
    session_end(&s);
    shell("ip link set dummy0 down && for d in veth0 veth1; do "
          "echo 1 >/proc/sys/net/ipv6/conf/$d/disable_ipv6; done");
}

/* The client's device has addresses of both kinds. The server's has only one, which is not of
 * the handshake's kind. */
static void test_an_address_of_the_servers_kind(void **state)
{
    (void)state;
    struct session s;
    shell("echo 0 >/proc/sys/net/ipv6/conf/veth1/disable_ipv6 && "
          "ip -6 address add fd77::2/128 dev veth1 nodad");
    open_at(&s, "verbs://[::1]:0", "device=rxe0", "device=rxe1", NULL);
    assert_non_null(strstr(s.client.description, "rxe1"));
    check_read(&s);
    session_end(&s);
    shell("echo 1 >/proc/sys/net/ipv6/conf/veth1/disable_ipv6");
}

/* Both sides get a message that contains `value` and `told`. */
static void check_refused(const char *server_settings, const char *client_settings,
                          const char *value, const char *told)
{
    struct session s;
    session_start(&s, uri_a(), server_settings, client_settings, NULL, NULL);
    assert_int_not_equal(s.server.rc, 0);
    assert_int_not_equal(s.client.rc, 0);
    if (!strstr(s.client.err.message, value) || !strstr(s.client.err.message, told))
        fail_msg("\"%s\" says neither %s nor %s", s.client.err.message, value, told);
    session_end(&s);
}

static void test_options_refused(void **state)
{
    (void)state;
    check_refused("", "device=nosuch", "nosuch", "no address");
    check_refused("device=nosuch", "", "nosuch", "no address");
    check_refused("", "gid_index=99", "GID index 99", "no address");
    check_refused("gid_index=99", "", "GID index 99", "no address");
    check_refused("port_num=2", "", "no address", "an RDMA device");
    /* It is link-local, so the route does not lead to it. */
    check_refused("", "gid_index=0", "GID index 0", "no address");
}

static void test_mtu_beyond_the_path(void **state)
{
    (void)state;
    shell("ip link set veth0 mtu 1500 && ip link set veth1 mtu 1500");
    check_refused("mtu=4096", "", "mtu 4096", "1024");
    shell("ip link set veth0 mtu 9000 && ip link set veth1 mtu 9000");
    struct session s;
    open_pair(&s, "mtu=4096", "");
    session_end(&s);
}

static void check_mtu(const char *mtus, const char *agreed)
{
    struct session s;
    shell(mtus);
    open_pair(&s, "", "");
    if (!strstr(s.client.description, agreed) || !strstr(s.server.description, agreed))
        fail_msg("%s, %s", s.client.description, s.server.description);
    check_read(&s);
    session_end(&s);
}

/* Networks with and without long packets: rdma_cm knows only the client's port, and packets that
 * are longer than the server's port accepts are lost. */
static void test_mtu_of_both_ports(void **state)
{
    (void)state;
    check_mtu("ip link set veth0 mtu 1500", "mtu 1024");
    check_mtu("ip link set veth0 mtu 2200 && ip link set veth1 mtu 1500", "mtu 1024");
    check_mtu("ip link set veth0 mtu 9000", "mtu 1024");
    check_mtu("ip link set veth1 mtu 9000", "mtu 4096");
}

static void drop_locked_memory(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {0};
    struct rlimit little = {16384, 16384};
    syscall(SYS_capget, &head, data);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    syscall(SYS_capset, &head, data);
    setrlimit(RLIMIT_MEMLOCK, &little);
}

static void test_locked_memory(void **state)
{
    (void)state;
    struct session s;
    session_start(&s, uri_a(), "", "", drop_locked_memory, NULL);
    assert_true(s.client.rc < 0 && strstr(s.client.err.message, "RLIMIT_MEMLOCK"));
    assert_non_null(strstr(s.client.err.message, "16384"));
    session_end(&s);
}

/* ------------------------------------------------------------------ permissions */

/* What a user without permissions is told about verbs. */
static void probe_as_nobody(char *told, size_t size)
{
    int status, ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (!child) {
        struct ibx_options options;
        struct ibx_error err = {0};
        char text[512] = "";
        ibx_options_init(&options);
        if (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
            _exit(1);
        const char *says =
            ibx_provider_probe("verbs", &options, text, sizeof(text), &err) ? err.message : text;
        _exit(write(ends[1], says, strlen(says) + 1) < 0);
    }
    close(ends[1]);
    assert_true(read(ends[0], told, size) > 0);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void expect_told(const char *told, const char *file, const char *why, const char *remedy)
{
    if (!strstr(told, file) || !strstr(told, why) || !strstr(told, remedy))
        fail_msg("\"%s\" says not: %s, %s, %s", told, file, why, remedy);
}

/* A device that may not be used, or that a container has by name only, is reported as neither
 * down nor missing; and what rdma_cm lacks is reported before anybody connects. */
static void test_without_rights(void **state)
{
    (void)state;
    char told[512];
    probe_as_nobody(told, sizeof(told));
    expect_told(told, "rxe0", "active", "");
    shell("chmod 600 /dev/infiniband/uverbs*");
    probe_as_nobody(told, sizeof(told));
    shell("chmod 666 /dev/infiniband/uverbs*");
    expect_told(told, "/dev/infiniband/uverbs0", "Permission denied", "give this user access");
    shell("chmod 600 /dev/infiniband/rdma_cm");
    probe_as_nobody(told, sizeof(told));
    shell("chmod 666 /dev/infiniband/rdma_cm");
    expect_told(told, "/dev/infiniband/rdma_cm", "Permission denied", "give this user access");
    shell("mkdir /run/devices && mv /dev/infiniband/rdma_cm /run/devices/");
    probe_as_nobody(told, sizeof(told));
    expect_told(told, "/dev/infiniband/rdma_cm", "No such file", "modprobe rdma_ucm");
    shell("mv /dev/infiniband/uverbs* /run/devices/");
    probe_as_nobody(told, sizeof(told));
    shell("mv /run/devices/* /dev/infiniband/ && rmdir /run/devices");
    expect_told(told, "rxe0", "/dev/infiniband", "container");
}

/* ---------------------------------------------------------------- shared regions */

#define SHARED_BYTES (32u << 20)

/* Two connections of one domain pin memory once, those of two domains twice. It is unpinned when
 * the last one ends, not the first one. */
static void test_pinned_once(void **state)
{
    (void)state;
    for (unsigned domains = 1; domains <= 2; domains++) {
        struct session s[2];
        struct ibx_error err;
        struct ibx_mr *mr, *shared;
        struct ibx_span span = ibx_span_host(NULL, SHARED_BYTES);
        for (unsigned i = 0; i < 2; i++) {
            if (i < domains) {
                ibx_domain_release(server_domain); /* the connections keep the domain */
                assert_int_equal(ibx_domain_create(&server_domain, &err), 0);
            }
            open_pair(&s[i], "", "");
        }
        ibx_domain_release(server_domain);
        server_domain = NULL;
        span.address =
            mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(span.address != MAP_FAILED);
        uint64_t before = ibx_locked_now();
        assert_int_equal(ibx_mr_register(s[0].conn, &span, IBX_ACCESS_REMOTE_READ, &mr, &err), 0);
        assert_int_equal(ibx_locked_now() - before, SHARED_BYTES);
        assert_int_equal(ibx_mr_share(s[1].conn, mr, &shared, &err), 0);
        assert_int_equal(ibx_locked_now() - before, domains * SHARED_BYTES);
        ibx_mr_deregister(mr);
        assert_int_equal(ibx_locked_now() - before, SHARED_BYTES);
        session_end(&s[0]);
        check_read(&s[1]);
        ibx_mr_deregister(shared);
        uint64_t messages = before - ibx_locked_now(); /* of the session that has ended */
        assert_true(messages > 0 && messages < SHARED_BYTES / 2);
        session_end(&s[1]);
        munmap(span.address, SHARED_BYTES);
    }
}

/* A child has a copy of registered memory (Linux 5.12), and of what else is in its pages. */
static void test_a_forked_child(void **state)
{
    (void)state;
    struct session s;
    struct ibx_mr *mr;
    struct ibx_error err;
    char *heap = malloc(BYTES);
    const struct ibx_span span = ibx_span_host(heap, BYTES);
    int status;
    open_pair(&s, "", "");
    memset(heap, 7, BYTES);
    assert_int_equal(ibx_mr_register(s.conn, &span, IBX_ACCESS_REMOTE_READ, &mr, &err), 0);
    const pid_t child = fork();
    if (!child)
        _exit(heap[0] + heap[BYTES - 1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 14);
    ibx_mr_deregister(mr);
    session_end(&s);
    free(heap);
}

/* libfabric's verbs keeps devices open that a child cannot use: the child would wait for
 * timeout_ms, and be told of firewalls. */
static void test_a_forked_child_by_libfabric(void **state)
{
    static const char *const settings = "provider=ofi ofi_provider=verbs timeout_ms=60000";
    (void)state;
    struct session s;
    struct ibx_options options;
    struct ibx_error err = {0};
    char text[512], uri[64];
    setenv("FI_UNIVERSE_SIZE", "8", 1);
    set_options(&options, settings);
    if (ibx_provider_probe("ofi", &options, text, sizeof(text), &err))
        fail_msg("%s", err.message);
    snprintf(uri, sizeof(uri), "ofi://%s:0", address_a);
    const uint64_t begin = ibx_now_ns();
    session_start(&s, uri, settings, settings, NULL, NULL);
    assert_true(ibx_now_ns() - begin < 50000 * IBX_NS_PER_MS);
    if (!strstr(s.client.err.message, "was forked from has used libfabric"))
        fail_msg("%s", s.client.err.message);
    session_end(&s);
}

/* -------------------------------------------------------------------- the wire */

/* A silence shorter than timeout_ms costs only time. */
static void test_short_silence(void **state)
{
    (void)state;
    struct session s;
    open_pair(&s, "timeout_ms=30000", "timeout_ms=30000");
    wire_cut();
    pthread_t mender = wire_mend_in(2000);
    check_read(&s);
    pthread_join(mender, NULL);
    session_end(&s);
}

/* Like open_pair(). A busy emulator may sometimes be too slow for so short a time limit. */
static void open_quick_pair(struct session *s, const char *settings)
{
    for (unsigned tries = 0; tries < 20; tries++) {
        session_start(s, uri_a(), settings, settings, NULL, NULL);
        if (!s->server.rc && !s->client.rc)
            return;
        session_end(s);
    }
    fail_msg("%s, %s", s->server.err.message, s->client.err.message);
}

static void test_long_silence(void **state)
{
    (void)state;
    struct session s;
    struct ibx_mr *mr;
    struct ibx_error err;
    open_quick_pair(&s, "timeout_ms=1000");
    struct ibx_remote remote = receive_remote(s.conn);
    assert_int_equal(ibx_mr_allocate(s.conn, BYTES, IBX_ACCESS_LOCAL, &mr, &err), 0);
    wire_cut();
    assert_int_equal(ibx_read(s.conn, mr, ibx_mr_address(mr), &remote, 0, BYTES, 7, 0), 0);
    uint64_t start = ibx_now_ns();
    assert_int_not_equal(next_event(s.conn, IBX_EVENT_READ).status, 0);
    next_event(s.conn, IBX_EVENT_CLOSED);
    /* Each side notices by itself, since nobody can tell it. The factor allows for retries and a
     * busy guest. */
    assert_true(ibx_now_ns() - start < 20000 * IBX_NS_PER_MS);
    int status;
    assert_int_equal(waitpid(s.child, &status, 0), s.child);
    wire_mend();
    ibx_close(s.conn);
    ibx_listener_close(s.listener);
}

/* Nobody answers at the device's address, which takes longer to notice than the server waits;
 * tcp is used. */
static void test_no_route_in_time(void **state)
{
    static const char *const settings = "provider=verbs,tcp timeout_ms=2000";
    (void)state;
    struct session s;
    wire_cut();
    shell("ip neighbour del $IBX_VM_ADDR_A dev veth1 && ip neighbour del $IBX_VM_ADDR_B dev veth0");
    for (unsigned tries = 0; tries < 5; tries++) {
        session_start(&s, "rdma://127.0.0.1:0", settings, settings, NULL, NULL);
        if (!s.server.rc && !s.client.rc)
            break;
        session_end(&s);
    }
    wire_mend();
    links_up();
    if (s.client.rc)
        fail_msg("%s", s.client.err.message);
    assert_non_null(strstr(s.client.description, "tcp"));
    session_end(&s);
}

/* ------------------------------------------------------------------- intruders */

/* For threads other than cmocka's, which must not use its assertions. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("line %d: not true: %s (%s)\n", __LINE__, #condition, strerror(errno));    \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* The port of an rdma_cm listener on A; 0: there is none. */
static uint16_t rdma_listener(void)
{
    char line[512], pattern[64];
    uint16_t port = 0;
    snprintf(pattern, sizeof(pattern), "src-addr %s:", address_a);
    FILE *list = popen("rdma resource show cm_id", "re");
    while (list && fgets(line, sizeof(line), list)) {
        const char *at = strstr(line, "LISTEN") ? strstr(line, pattern) : NULL;
        if (at)
            port = (uint16_t)atoi(at + strlen(pattern));
    }
    if (list)
        pclose(list);
    return port;
}

static struct intruder {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *id;
} intruders[4];

static void cm_expect(struct intruder *intruder, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;
    MUST(rdma_get_cm_event(intruder->channel, &event) == 0);
    if (event->event != type)
        print_error("%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(type));
    MUST(event->event == type);
    rdma_ack_cm_event(event);
}

/* Requests a lane with an invalid proof. */
static void intruder_request(struct intruder *intruder, uint16_t port, unsigned version,
                             unsigned lane)
{
    /* of nobody; otherwise the kernel takes the request for a repetition */
    static uint32_t queue_pair = 0xf00077;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address_a, &to.sin_addr);
    intruder->channel = rdma_create_event_channel();
    MUST(intruder->channel && !rdma_create_id(intruder->channel, &intruder->id, NULL, RDMA_PS_TCP));
    MUST(!rdma_resolve_addr(intruder->id, NULL, (struct sockaddr *)&to, 5000));
    cm_expect(intruder, RDMA_CM_EVENT_ADDR_RESOLVED);
    MUST(!rdma_resolve_route(intruder->id, 5000));
    cm_expect(intruder, RDMA_CM_EVENT_ROUTE_RESOLVED);
    uint8_t data[36] = {(uint8_t)version, 0, (uint8_t)lane, (uint8_t)(lane >> 8), 0xaa};
    struct rdma_conn_param param = {.private_data = data,
                                    .private_data_len = version ? sizeof(data) : 0,
                                    .responder_resources = 1,
                                    .initiator_depth = 1,
                                    .qp_num = queue_pair++};
    MUST(!rdma_connect(intruder->id, &param));
}

static void intruder_is_rejected(struct intruder *intruder)
{
    cm_expect(intruder, RDMA_CM_EVENT_REJECTED);
    rdma_destroy_id(intruder->id);
    rdma_destroy_event_channel(intruder->channel);
}

/* Stands between client and server. When the server listens on its device and tells the client
 * where, four intruders connect before the client. */
struct proxy {
    int listen_fd;
    uint16_t server_port;
};

/* Forwards bytes. Returns false at the end of the stream. */
static bool pass_on(int from, int to)
{
    char bytes[4096];
    ssize_t n = recv(from, bytes, sizeof(bytes), 0);
    return n > 0 && send(to, bytes, (size_t)n, MSG_NOSIGNAL) == n;
}

static bool pass_offer(int server, int client, uint16_t port)
{
    intruder_request(&intruders[0], port, 0, 0);     /* sends nothing */
    intruder_request(&intruders[1], port, 1, 0);     /* wrong proof */
    intruder_request(&intruders[2], port, 1, 65535); /* no such lane */
    intruder_request(&intruders[3], port, 9, 1);     /* another protocol */
    return pass_on(server, client);
}

static void *proxy_run(void *argument)
{
    const struct proxy *proxy = argument;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(proxy->server_port)};
    inet_pton(AF_INET, address_a, &to.sin_addr);
    int client = accept(proxy->listen_fd, NULL, NULL);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(client >= 0 && connect(server, (struct sockaddr *)&to, sizeof(to)) == 0);
    struct pollfd wait[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    bool more = true, told = false;
    while (more && poll(wait, 2, -1) > 0) {
        uint16_t port = wait[1].revents && !told ? rdma_listener() : 0;
        if (port)
            more = told = pass_offer(server, client, port);
        else if (wait[1].revents)
            more = pass_on(server, client);
        if (more && wait[0].revents)
            more = pass_on(client, server);
    }
    MUST(told);
    for (int i = 0; i < 4; i++)
        intruder_is_rejected(&intruders[i]);
    close(client);
    close(server);
    return NULL;
}

static void test_requests_without_proof(void **state)
{
    (void)state;
    struct sockaddr_in sin = {.sin_family = AF_INET};
    socklen_t length = sizeof(sin);
    char through[64], at[64];
    struct proxy proxy = {.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                          .server_port = 17777};
    inet_pton(AF_INET, address_a, &sin.sin_addr);
    assert_int_equal(bind(proxy.listen_fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
    assert_int_equal(listen(proxy.listen_fd, 1), 0);
    getsockname(proxy.listen_fd, (struct sockaddr *)&sin, &length);
    snprintf(at, sizeof(at), "verbs://%s:%u", address_a, proxy.server_port);
    snprintf(through, sizeof(through), "verbs://%s:%u", address_a, ntohs(sin.sin_port));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, proxy_run, &proxy), 0);
    struct session s;
    open_at(&s, at, "timeout_ms=30000", "timeout_ms=30000", through);
    check_read(&s);
    session_end(&s);
    pthread_join(thread, NULL);
    close(proxy.listen_fd);
}

/* A process that answers in the server's place does not have its proof. */
static bool impostor;
__typeof__(rdma_accept) __real_rdma_accept, __wrap_rdma_accept;
int __wrap_rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    uint8_t proof[32];
    memcpy(proof, param->private_data, sizeof(proof));
    proof[31] ^= impostor;
    param->private_data = proof;
    return __real_rdma_accept(id, param);
}

static void test_an_impostor(void **state)
{
    (void)state;
    impostor = true;
    check_refused("", "", "the server's proof on queue pair", "another process answers");
    impostor = false;
}

/* -------------------------------------------------------------- receivers ready */

/* How often a device had no receive buffer for a message. (If the kernel lacks packets, READs
 * count here too.) */
static unsigned long not_ready(void)
{
    static const char *const names[] = {
        "rxe0/ports/1/hw_counters/rcvd_rnr_err", "rxe0/ports/1/hw_counters/send_rnr_err",
        "rxe1/ports/1/hw_counters/rcvd_rnr_err", "rxe1/ports/1/hw_counters/send_rnr_err"};
    unsigned long sum = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[128];
        unsigned long count = 0;
        snprintf(path, sizeof(path), "/sys/class/infiniband/%s", names[i]);
        FILE *file = fopen(path, "re");
        if (!file || fscanf(file, "%lu", &count) != 1)
            fail_msg("%s cannot be read", path);
        fclose(file);
        sum += count;
    }
    return sum;
}

/* As many messages as credits allow, in both directions at once, with echoes held back in odd
 * numbers: there is always a receive buffer. */
static void test_receivers_are_always_ready(void **state)
{
    (void)state;
    struct session s;
    struct ibx_event held[3];
    unsigned sent = 0, received = 0, holding = 0;
    uint64_t deadline = ibx_deadline_in_ms(WAIT_MS);
    open_pair(&s, "", "");
    receive_remote(s.conn);
    unsigned long before = not_ready();
    while (received < 3000) {
        struct iovec iov = {&sent, sizeof(sent)};
        while (sent < 3000 && ibx_send(s.conn, &iov, 1, 0, 0) == 0)
            sent++;
        while (received < sent && ibx_poll(s.conn, &held[holding], 1) == 1) {
            unsigned number;
            assert_int_equal(held[holding].type, IBX_EVENT_MESSAGE);
            memcpy(&number, held[holding].data, sizeof(number));
            assert_int_equal(number, received++);
            if (++holding == sizeof(held) / sizeof(held[0])) {
                while (holding)
                    ibx_message_release(s.conn, &held[--holding]);
            }
        }
        assert_true(ibx_now_ns() < deadline);
    }
    assert_int_equal(not_ready(), before);
    session_end(&s);
}

/* The argument is a pattern of test names. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_two_rails),
        cmocka_unit_test(test_local_addresses),
        cmocka_unit_test(test_no_link_local_address),
        cmocka_unit_test(test_an_address_of_the_servers_kind),
        cmocka_unit_test(test_options_refused),
        cmocka_unit_test(test_mtu_beyond_the_path),
        cmocka_unit_test(test_mtu_of_both_ports),
        cmocka_unit_test(test_locked_memory),
        cmocka_unit_test(test_without_rights),
        cmocka_unit_test(test_pinned_once),
        cmocka_unit_test(test_a_forked_child),
        cmocka_unit_test(test_a_forked_child_by_libfabric),
        cmocka_unit_test(test_short_silence),
        cmocka_unit_test(test_long_silence),
        cmocka_unit_test(test_no_route_in_time),
        cmocka_unit_test(test_requests_without_proof),
        cmocka_unit_test(test_an_impostor),
        cmocka_unit_test(test_receivers_are_always_ready),
    };
    const char *a = getenv("IBX_VM_ADDR_A");
    if (!a) {
        print_message("SKIPPED: run it by tests/vm/verbs\n");
        return 77;
    }
    snprintf(address_a, sizeof(address_a), "%s", a);
    alarm(10 * WAIT_MS / 1000);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
