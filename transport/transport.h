/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Connections that move memory by one-sided READs and WRITEs and carry short messages, over the
 * best fabric that both ends have: shared memory, verbs, libfabric or TCP.
 *
 *   server: ibx_listen, ibx_accept, ibx_establish      client: ibx_connect
 *   both:   ibx_mr_register, ibx_read, ibx_write, ibx_send, ibx_wait, ibx_poll, ibx_close
 *
 * tools/examples has a client and a server of 40 lines each. A program outside of this tree is
 * compiled with $(pkg-config --cflags --libs ibx), without --static. A connection begins with a
 * handshake over one stream socket, TCP or unix: both ends prove that they know the key, agree on a
 * provider and set it up (docs/protocol.md). This handshake socket stays open as long as the
 * connection, so that the death of a peer is noticed on every fabric.
 *
 * The folder: core/ has connections, regions, options and the choice of the path; handshake/ sets
 * connections up; shm/, verbs/, ofi/ and tcp/ are the providers behind core/provider.h;
 * fault_injection/ is for tests.
 *
 * Threads: a connection or a listener belongs to the one thread that calls into it; other
 * threads may call ibx_wake(), ibx_hang_up() and ibx_remote_copy() only. Different connections are
 * independent.
 *
 * Errors are negative errno values. Calls that set something up also take a `struct ibx_error`, or
 * NULL, and put one sentence for a person into it. They set their outputs only on success.
 */
#ifndef IBX_TRANSPORT_TRANSPORT_H
#define IBX_TRANSPORT_TRANSPORT_H

#include "common/error.h"
#include "common/span.h"
#include "common/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define IBX_RAILS_MAX     4
#define IBX_PROVIDERS_MAX 4
#define IBX_KEY_MAX       65536 /* bytes of a key file */
#define IBX_NAME_MAX      63    /* characters of a key's name */

struct ibx_conn;
struct ibx_domain;
struct ibx_claim;
struct ibx_keys;
struct ibx_claim_check;
struct ibx_admission;
struct ibx_listener;
struct ibx_mr;
struct ibx_remote;

/* ------------------------------------------------------------------ options */

/* ibx_options_init() sets the defaults in brackets. ibx_options_set() is the one parser behind
 * properties files ("rdma.chunk"), URI queries ("?chunk=1M") and command lines ("--set chunk=1M").
 */
enum ibx_encryption { IBX_ENCRYPTION_OFF, IBX_ENCRYPTION_AUTO, IBX_ENCRYPTION_REQUIRED };

/* For programs that have better memory for long incoming messages than malloc, such as memory that
 * a GPU can read at once. The functions are called from any thread. */
struct ibx_message_memory {
    void *(*take)(size_t bytes); /* NULL: there is none now, and malloc is used */
    void (*give)(void *memory);  /* the message was released */
};

enum { IBX_OPTION_SIZE = 512 }; /* bytes of the longest option as text, its end included */

#ifdef __cplusplus /* which has no _Atomic, and reads none of these */
typedef struct ibx_atomic_bool ibx_atomic_bool;
#else
typedef _Atomic bool ibx_atomic_bool;
#endif

struct ibx_options {
    char provider[64];     /* "auto" or names in order of preference: "shm,tcp" ["auto"] */
    char device[128];      /* verbs devices, one per rail, comma separated; "" by route [""] */
    char ofi_provider[64]; /* libfabric provider name, "" the best native one [""] */
    char shm_dir[256];     /* directory for shm sockets shared by containers, "" abstract [""] */
    bool shm_direct; /* shm may use process_vm_readv and _writev, if both ends allow it [true] */
    char tcp_engine[64];         /* of bulk data: "syscalls", "uring" or "uring-zc" ["syscalls"] */
    char key_file[256];          /* "" none [""] */
    char name[IBX_NAME_MAX + 1]; /* of the key in key_file that a client uses, "" the first [""] */
    char allow[IBX_OPTION_SIZE]; /* names that a server serves, comma separated; "" all in key_file
                                    [""] */
    unsigned unauthenticated; /* clients that may be authenticating with a listener at once [256] */
    enum ibx_encryption encryption; /* TLS; auto: with a key, to another host [auto] */
    bool ktls;           /* where TLS is used, the kernel seals what is sent, if it can [false] */
    bool insecure;       /* serve other hosts without a key, and connect to them [false] */
    unsigned port_num;   /* verbs port on the device, 0 by route [0] */
    int gid_index;       /* -1 by route [-1] */
    unsigned mtu;        /* verbs path MTU in bytes, 0 the ports' [0] */
    unsigned rails;      /* devices used by one connection, at most IBX_RAILS_MAX [1] */
    unsigned lanes;      /* bulk queue pairs or sockets per rail; 0 the provider's default [0] */
    size_t chunk;        /* bytes of one bulk work request; 0 the provider's default [0] */
    unsigned depth;      /* bulk chunks in flight a connection; 0 the provider's default [0] */
    unsigned slots;      /* messages in flight each way per connection [16] */
    size_t message;      /* bytes of the longest message [16 KiB] */
    unsigned spin_us;    /* busy polling before sleeping, microseconds [50] */
    unsigned timeout_ms; /* for setting up, and after which a silent host is dead [10000] */
    char purpose[32];    /* what the program does. A server whose purposes are set, separated by
                            commas, refuses clients with another one. Only programs set this option
                            and those below; text cannot [""] */
    bool small_reads;    /* many READs are of a page or a few: by default more of them are then in
                            flight over tcp [false] */
    unsigned unsent_max; /* bytes that the kernel takes for a socket of tcp ahead of those that it
                            sends, about: a peer that does not read can make it hold so many; 0: as
                            it chooses, net.ipv4.tcp_wmem [0] */
    unsigned silence_ms; /* client of tcp: after which the connection ends if a server with `signs`
                            gives no sign of life while this side waits for it, though its host
                            answers: it is stopped, or something between the hosts swallows
                            everything; 0: never [0] */
    unsigned answer_ms;  /* server of tcp: after which a connection with READs or WRITEs under way
                            ends if nothing comes from the client, not even an answer to a CHECK,
                            though its host answers; 0: never [0] */
    bool signs;          /* server: another thread tells clients of tcp that this process lives
                            while a connection's own thread polls nothing [false] */
    bool messages_only;  /* client: no READs and WRITEs, for which tcp then opens no sockets
                            [false] */
    const struct ibx_message_memory
        *long_messages;        /* of tcp; must live as long as the connection; NULL: none [NULL] */
    struct ibx_domain *domain; /* of connections that share registrations; NULL: none [NULL] */
    struct ibx_claim *claim;   /* client: which session the connection continues [NULL] */
    struct ibx_keys **keys;    /* client: where a connection leaves the keys with which it was made,
                                  and where one with a claim finds them [NULL] */
    bool (*ends)(void); /* client: whether this process is to end. ibx_connect() asks it ten times a
                           second, and then gives up with -EINTR. It does not ask while a name is
                           resolved, since nothing ends getaddrinfo(3) before it has an answer
                           [NULL] */
    bool follow_address; /* client: it can connect again. So the connection ends when this host
                            loses the address by which it was made, and when a new connection would
                            be answered and this one is not, without waiting for timeout_ms
                            [false] */
    const struct ibx_claim_check
        *claim_check;                      /* server: of such clients; NULL: refuse all [NULL] */
    const struct ibx_admission *admission; /* server: of all clients; NULL: it has room [NULL] */
    const ibx_atomic_bool *shm_not_direct; /* as long as it is true, connections are set up as with
                                              shm_direct : no, whatever text says; must live as long
                                              as they do [NULL] */
};

void ibx_options_init(struct ibx_options *options);

/* Sets one option from text; sizes take K, M, G (powers of 1024). The error names the value and
 * what is accepted. -ENOENT: no such key; -EINVAL: bad value. */
int ibx_options_set(struct ibx_options *options, const char *key, const char *value,
                    struct ibx_error *err);

/* The same for a value that a person has given. -EINVAL also: it is empty, as an unset variable of
 * a script is, and would mean no key, or every name of a key file. */
int ibx_options_set_given(struct ibx_options *options, const char *key, const char *value,
                          struct ibx_error *err);

/* Parses "64K", "1M", "300" into bytes. -EINVAL. */
int ibx_size_parse(const char *text, size_t *bytes, struct ibx_error *err);
/* Parses yes, true, on or 1, and no, false, off or 0. -EINVAL: it is none of them. */
int ibx_yes_no_parse(const char *text, bool *yes);

/* The keys in their order, NULL after the last. */
const char *ibx_options_key(unsigned index);
/* What the key sets, with its unit and what a 0 or an empty value means. NULL: no such key. */
const char *ibx_options_meaning(const char *key);
/* Writes an option's value as ibx_options_set() takes it, cut to `size`: IBX_OPTION_SIZE cuts none.
 * -ENOENT: no such key. */
int ibx_options_get(const struct ibx_options *options, const char *key, char *value, size_t size);

/* The most bytes of message buffers that an idle connection with these options holds, on any of the
 * providers in options->provider. */
size_t ibx_options_message_memory(const struct ibx_options *options);

/* Prints every key with its meaning and accepted values, for help texts. */
void ibx_options_describe(FILE *out);

/* ---------------------------------------------------------------------- URI */

/* SCHEME://HOST:PORT[?key=value&...], or SCHEME:///PATH for a unix socket on the same host. SCHEME
 * is a provider (shm, verbs, ofi, tcp) or rdma, which chooses the best one that both ends have.
 * HOST is a name, an IPv4 address or [IPv6], which may have an interface: [fe80::1%eth0] or, as in
 * RFC 6874, [fe80::1%25eth0]. */
#define IBX_URI_MAX 900 /* characters of a whole one */
struct ibx_uri {
    char scheme[16];
    char host[256]; /* "" when there is a path */
    uint16_t port;  /* 0: any free one, for listening only */
    char path[108]; /* unix socket, "" when there is a host */
    char query[512];
};

/* -EINVAL. */
int ibx_uri_parse(const char *text, struct ibx_uri *uri, struct ibx_error *err);
/* Writes the URI without its query; always terminates `out`. */
void ibx_uri_print(const struct ibx_uri *uri, char *out, size_t size);
/* Applies the scheme and the query of a URI to options. -EINVAL, -ENOENT: see ibx_options_set(). */
int ibx_uri_options(const struct ibx_uri *uri, struct ibx_options *options, struct ibx_error *err);

/* Whether the key file of these options is valid for a server or a client, and has the names that
 * they want: what ibx_listen() and ibx_connect() would find. `uri`: its query overrides `options`;
 * NULL: none. */
int ibx_options_check_key(const struct ibx_options *options, const char *uri, bool server,
                          struct ibx_error *err);

/* -------------------------------------------------------------- connections */

/* Listens at `uri`. Its scheme and query override `options`. Without a key, clients on other hosts
 * are refused unless options->insecure. Opens no device and starts no thread. -EINVAL, -ENOENT: the
 * URI, an option or the key file is bad; -EPERM: others can read the key file; -EADDRNOTAVAIL: the
 * host has no such address; -EADDRINUSE (a port is tried for a second); -ENOMEM; other errors of
 * open(2) and sockets. */
int ibx_listen(const char *uri, const struct ibx_options *options, struct ibx_listener **listener,
               struct ibx_error *err);
/* Readable (level-triggered) when ibx_accept() has something to do. Constant for the listener's
 * life; survives fork(2). */
int ibx_listener_fd(const struct ibx_listener *listener);
/* The URI for clients, with the real port. Valid for the listener's life. */
const char *ibx_listener_uri(const struct ibx_listener *listener);
/* Continues the handshakes of all clients that have connected, without blocking, and returns a
 * client that has authenticated. So call it whenever ibx_listener_fd() is readable. No client needs
 * a thread or a process before that. At most options->unauthenticated clients have a place
 * meanwhile, each for 10 seconds at most, and for 2 while more than half of the places are taken;
 * when no place is free, the client that has been silent for the longest time is dropped. More than
 * eight of them leave the last 64 descriptors of the process (a quarter of a lower limit). Clients
 * of one address (or user, over a unix socket) that have sent nothing have at most an eighth of the
 * places. The connection is not established yet; it may be carried across fork(2) and to another
 * thread. -EAGAIN: there is none yet; if a client was refused, `err` and the log say why; -ENOMEM;
 * other errors of accept4(2), such as -EMFILE. */
int ibx_accept(struct ibx_listener *listener, struct ibx_conn **conn, struct ibx_error *err);
/* The same with waiting, for `timeout_ms` (-1: no limit). -ETIMEDOUT. */
int ibx_accept_wait(struct ibx_listener *listener, int timeout_ms, struct ibx_conn **conn,
                    struct ibx_error *err);
/* The rest of the server's handshake: agrees with the client on a provider and sets it up. Blocks
 * for at most timeout_ms in each step of each provider tried. After a failure only ibx_close() is
 * left to call. -EPROTO: the client does not speak this protocol; -EBADMSG: a frame was changed on
 * its way; -ETIMEDOUT, -ECONNRESET: it is silent or gone; -ENOTSUP: no provider works on both ends,
 * with all the reasons; -EINVAL: the connection does not come fresh from ibx_accept(); -ENOMEM,
 * -EMFILE. */
int ibx_establish(struct ibx_conn *conn, struct ibx_error *err);
/* Accepts NULL. */
void ibx_listener_close(struct ibx_listener *listener);

/* Connects and does the client's handshake; blocks for at most timeout_ms in each step. Errors of
 * ibx_listen() for the URI, the options and the key file; of connect(2), such as -ECONNREFUSED,
 * also where there is no such unix socket; and of ibx_establish(), where a refusal has the server's
 * code: -EACCES for a wrong key, -EPROTONOSUPPORT for another version. */
int ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                struct ibx_error *err);

/* The peer is about to send more at once than messages usually are, such as a VM's state: over tcp
 * between hosts it need not wait until this side has taken the first of it. The kernel may then
 * hold 8 MiB for the connection, so call this only for peers that are known to need it. A hint. */
void ibx_receive_ahead(struct ibx_conn *conn);
/* Much is about to be sent from here, over a long wire on which nothing else is to be sent for
 * some round trips. Over tcp between hosts, `bytes` of padding are sent ahead over each bulk socket
 * (or, if there is none, over the socket of messages), as fast as TCP's congestion windows allow:
 * this makes the windows grow. It stops when packets begin to wait in a queue on their way. Most of
 * it is sent while the connection is polled. 0 ends it: what is sent next then waits for less than
 * 512 KiB of padding. A hint. */
void ibx_pad(struct ibx_conn *conn, size_t bytes);

/* Ends the connection but leaves it to ibx_poll(): outstanding posts complete, most with an error,
 * and IBX_EVENT_CLOSED follows. Use it to get memory back before ibx_close(). */
void ibx_abort(struct ibx_conn *conn);

/* After ibx_abort() or the end of the connection: lets the peer notice now what it would notice at
 * ibx_close(). From any thread: ends ibx_establish(), in which another one is, with an error. */
void ibx_hang_up(struct ibx_conn *conn);

/* Ends the connection at once and frees it: outstanding work is flushed without events, regions are
 * deregistered, the peer sees the close, also while a forked child lives. Accepts NULL. In a child
 * that was forked after establishment it frees the child's part only; the connection stays the
 * parent's. */
void ibx_close(struct ibx_conn *conn);

/* What an established connection can do. */
struct ibx_caps {
    size_t message_max; /* bytes of the longest message */
    size_t chunk;       /* bytes of one bulk work request */
    unsigned depth;     /* bulk chunks in flight */
    unsigned lanes;     /* bulk lanes */
    size_t rendezvous;  /* payloads from this size on are better moved by READ or WRITE */
    bool register_free; /* registration pins nothing and costs nothing: do not cache it */
    bool shares;        /* ibx_mr_share() within a domain pins nothing and costs nothing */
    bool peer_drives;   /* one-sided work proceeds only while the peer polls its connection */
    bool dmabuf;        /* GPU memory with a dma-buf can be registered */
    bool gpu_pointers;  /* GPU memory without one can: nvidia-peermem, or libfabric's own means */
    bool remote_copy;   /* ibx_remote_copy() reaches the peer's memory at present */
};
const struct ibx_caps *ibx_conn_caps(const struct ibx_conn *conn);

/* The path that was taken, and why each better one was not. */
struct ibx_path {
    char provider[16];           /* "shm", "verbs", "ofi", "tcp" */
    char description[192];       /* "verbs mlx5_0 port 1 gid 3 mtu 4096, 4 queue pairs" */
    char peer[128];              /* the peer's address on the handshake socket */
    char name[IBX_NAME_MAX + 1]; /* of the client's key, "" if it has none; at both ends */
    bool encrypted;              /* everything goes in TLS; false for shm, which stays in a host */
    bool remote;                 /* the ends do not both see that they are on one host */
    uint64_t round_trip_ns;      /* the least so far when it was made; 0: not known */
    unsigned hosts;              /* client: how many the URI's host may have been; 1 as a rule */
    struct {
        char provider[16];
        char reason[256];
    } refused[IBX_PROVIDERS_MAX * 2];
    unsigned refused_count;
};
const struct ibx_path *ibx_conn_path(const struct ibx_conn *conn);

/* A secret for this label that both ends of an established connection have and, if there is a key,
 * nobody else has. Each connection has its own. */
#define IBX_SECRET_BYTES 32u
void ibx_conn_secret(const struct ibx_conn *conn, const char *label,
                     uint8_t secret[IBX_SECRET_BYTES]);

/* Programs whose connections may break can continue over another one. The first connection gives
 * both ends an id and a secret (ibx_conn_secret()); a later one claims the id in its handshake and
 * proves that it knows the secret. transport/handshake/claim.c. */
#define IBX_CLAIM_ID_BYTES 16u
struct ibx_claim {
    uint8_t id[IBX_CLAIM_ID_BYTES];
    const uint8_t *secret;           /* IBX_SECRET_BYTES */
    unsigned connect_ms;             /* for the socket's connection alone; 0: timeout_ms */
    const struct ibx_lookup *lookup; /* that has the addresses of the URI's host, or NULL */
    /* Set by ibx_connect(). reached: the server has proven itself, and took the claim. refused: the
     * server has proven itself, and refuses the client (-ESTALE: the claim). Any other error may
     * come from somebody else who answers in its place. Without a key a server counts as proven if
     * it is one that the client accepts. */
    bool reached, refused;
};

/* Client: the keys that ibx_connect() has left in options.keys for later connections of the same
 * session, which must use them even if the key file has changed. Accepts NULL. */
void ibx_keys_release(struct ibx_keys *keys);

/* For waiting until the server can be reached: a descriptor that is readable when an address, a
 * route or a link of this host has changed. -errno: the kernel does not report changes. */
int ibx_network_changes(void);
/* Marks the changes as seen: the descriptor is readable again after the next one. */
void ibx_network_changes_seen(int fd);

/* The addresses of a URI's host, which is looked up by a thread, because a resolver may not answer
 * for long. begin(): -ENOMEM, -EAGAIN: no thread. wait(): 0: it has them; -EAGAIN: not yet, after
 * so many milliseconds; -EADDRNOTAVAIL: there are none. end(): also before there is an answer;
 * accepts NULL. */
struct ibx_lookup;
int ibx_lookup_begin(const struct ibx_uri *uri, struct ibx_lookup **lookup, struct ibx_error *err);
int ibx_lookup_wait(struct ibx_lookup *lookup, unsigned ms, struct ibx_error *err);
/* After a wait() that returned 0: how many hosts these may be (struct ibx_path's `hosts`). */
unsigned ibx_lookup_hosts(const struct ibx_lookup *lookup);
void ibx_lookup_end(struct ibx_lookup *lookup);

/* Server: what a client with this claim must be; the rest of its handshake is done. */
struct ibx_claimed {
    uint8_t secret[IBX_SECRET_BYTES];
    char name[IBX_NAME_MAX + 1]; /* of its key */
    bool has_user;
    unsigned user; /* where both are on one host */
};
struct ibx_claim_check {
    /* False: nobody has this id. In the thread that calls ibx_accept(). */
    bool (*find)(void *context, const uint8_t id[IBX_CLAIM_ID_BYTES], struct ibx_claimed *claimed);
    void *context;
};
/* Server: whether it has room for a client that has authenticated. */
struct ibx_admission {
    /* NULL: it has. Otherwise the reason why not, which the client is told. Called in the thread
     * that calls ibx_accept(). The three functions below, and the path except its name, say what is
     * known of the client; `name` is that of its key. */
    const char *(*refuses)(void *context, const struct ibx_conn *conn, const char *name);
    void *context;
};
/* The id that the client of a connection from ibx_accept() has claimed and proven; NULL: none. */
const uint8_t *ibx_conn_claimed(const struct ibx_conn *conn);
/* Which user the other end belongs to, where it is on this host. -ENOENT: nobody knows. */
int ibx_conn_user(const struct ibx_conn *conn, unsigned *user);

/* A random number that a client's program has made; the processes that it forks have the same. Of a
 * connection from ibx_accept(); NULL: an earlier client's, which has none. It proves nothing. */
#define IBX_PROGRAM_BYTES 16u
const uint8_t *ibx_conn_program(const struct ibx_conn *conn);

/* A process that listens can leave each connection to a child that it has forked: it hands over
 * what ibx_accept() returned through a SOCK_SEQPACKET socket between the two. The child receives it
 * by ibx_accept(), too, and establishes it. Closes `conn`, also on failure. -EAGAIN: the child does
 * not take connections; other errors of sendmsg(2). */
int ibx_conn_hand_over(struct ibx_conn *conn, int socket);
/* In the child: the listener no longer listens and has no keys; ibx_accept() returns what comes
 * through the socket, which belongs to the listener from now on; -ENOTCONN when its other end is
 * closed. */
void ibx_listener_take_from(struct ibx_listener *listener, int socket);
/* How many connections have come through it, including those for which ibx_accept() failed. */
uint64_t ibx_listener_taken(const struct ibx_listener *listener);

/* ------------------------------------------------------------------- memory */

enum ibx_access {
    IBX_ACCESS_LOCAL = 0,        /* as the local side of READ and WRITE only */
    IBX_ACCESS_REMOTE_READ = 1,  /* the peer may READ it */
    IBX_ACCESS_REMOTE_WRITE = 2, /* the peer may WRITE it */
};

/* Registers memory with one connection. GPU memory takes local access only, so that no key to it
 * exists. The memory must stay mapped until ibx_mr_deregister(); after that neither side touches a
 * byte of it. -EINVAL: an empty span; -EACCES: GPU memory with remote access; -EOPNOTSUPP: this
 * provider cannot register this GPU memory; -ENOTCONN; -ENOMEM: memory, or the limit on locked
 * memory, is used up; other errors of the fabric's own call. */
int ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                    struct ibx_mr **mr, struct ibx_error *err);
/* Registers the memory of another connection's region with this one, too, with the same access.
 * That costs nothing if both are in one domain, on one device, and caps->shares; otherwise as much
 * as ibx_mr_register(). Call it from the thread of `conn`, while no thread deregisters `mr`.
 * Afterwards the two are independent, but the memory must stay mapped until both are deregistered:
 * the key of one is valid until then. -EINVAL: not host memory that was registered; otherwise as
 * ibx_mr_register(). */
int ibx_mr_share(struct ibx_conn *conn, const struct ibx_mr *mr, struct ibx_mr **shared,
                 struct ibx_error *err);
/* Allocates and registers memory where the fabric reaches it best (shm: in the region that both
 * ends map). It is zeroed, page aligned, and freed by ibx_mr_deregister(). ibx_mr_register() of a
 * part of it on the same connection is as fast. -EINVAL: 0 bytes; else as ibx_mr_register(). */
int ibx_mr_allocate(struct ibx_conn *conn, size_t length, unsigned access, struct ibx_mr **mr,
                    struct ibx_error *err);
void *ibx_mr_address(const struct ibx_mr *mr);
size_t ibx_mr_length(const struct ibx_mr *mr);
/* Accepts NULL. No work that this side has posted on it may be outstanding. */
void ibx_mr_deregister(struct ibx_mr *mr);

/* Moves all regions of `from`, which has ended and has no work outstanding, to `to`: each is
 * registered again, and its owner keeps its pointer. Allocated memory gets another address and
 * keeps its contents. A region that cannot be registered there takes no posts until it is moved to
 * a connection that can register it. Negative: a region of host memory could not be registered. */
int ibx_conn_take_regions(struct ibx_conn *to, struct ibx_conn *from);
/* Whether it takes posts: see above. */
bool ibx_mr_usable(const struct ibx_mr *mr);
/* The region of this connection that contains what `remote` names for the peer; NULL: none. A
 * region that takes no posts has no keys: it is found by its address with keys of zeros. */
struct ibx_mr *ibx_conn_find_region(const struct ibx_conn *conn, const struct ibx_remote *remote);

/* Connections with the same domain in their options can share registrations: memory that many of
 * them expose is pinned, counted against RLIMIT_MEMLOCK and set up once a device. They are not
 * protected from each other: over a fabric the peer of one can use a key that was given to the peer
 * of another. So put only connections into one domain that lead to one peer, or to peers that may
 * all reach the same memory with the same access. A connection enters it after its peer has been
 * authenticated. From any thread; of no use in a child that was forked later. -ENOMEM. */
int ibx_domain_create(struct ibx_domain **domain, struct ibx_error *err);
/* Drops the caller's reference; connections and listeners hold their own. Accepts NULL. */
void ibx_domain_release(struct ibx_domain *domain);

/* Memory of this process that belongs to no connection; any of them can register it. A peer over
 * shm maps it too, so that a copy needs one memcpy of the peer and nothing of this side. The first
 * registered piece shares all such memory with that peer. It is page aligned and resident. The
 * pages at an address stay the same for the life of the process, even when they are freed and
 * allocated again, so that a peer may pin them. New pages are zeroed, others are not. From any
 * thread. NULL, with the reason in `err`: -ENOSPC: there is no more, or this is a forked child; or
 * an error of memfd_create(2), mmap(2) or madvise(2). */
void *ibx_shared_allocate(size_t length, struct ibx_error *err);
/* Whether all of these bytes lie where such memory is. */
bool ibx_shared_holds(const void *address, size_t length);
/* False: no such memory begins there. No copy may be under way. A registration that still exists
 * becomes useless, and the peer cannot use it either. */
bool ibx_shared_free(void *address);
/* The piece that contains all of these bytes. False: there is none. */
bool ibx_shared_piece(const void *address, size_t length, struct ibx_span *piece);
/* How many pieces have been freed. As long as this count is the same, what was found out about a
 * piece is still true. */
uint64_t ibx_shared_freed(void);

/* A peer may map such memory at the address that it has here. So it is placed where few programs
 * and no GPU driver have anything. */
#define IBX_SHARED_FROM  0x200000000000u
#define IBX_SHARED_UNTIL 0x500000000000u
/* Shares all of it with the peer. -EOPNOTSUPP: the peer cannot map it. */
int ibx_shared_give(struct ibx_conn *conn);
/* The position of these bytes in the file that the peer gets. False: they are not such memory. */
bool ibx_shared_offset(const void *address, size_t length, uint64_t *offset);
/* The peer's: a file of `bytes` that does not shrink. The descriptor is the connection's.
 * -EOPNOTSUPP: the peer has shared none that can be mapped. */
int ibx_shared_of_peer(struct ibx_conn *conn, uint64_t *bytes);

/* What a peer needs to READ or WRITE a piece of registered memory; it travels in messages. */
struct ibx_remote {
    uint64_t address;
    uint64_t length;              /* bytes */
    uint64_t keys[IBX_RAILS_MAX]; /* one per rail, unused ones 0 */
    uint64_t epoch;               /* the receiver's own note; it travels in no message */
};
#define IBX_REMOTE_BYTES (16 + 8 * IBX_RAILS_MAX)

/* Names bytes [offset, offset+length) of `mr`. -ERANGE: outside of it; -EACCES: it has no remote
 * access. */
int ibx_mr_remote(const struct ibx_mr *mr, size_t offset, size_t length, struct ibx_remote *remote);
void ibx_remote_put(struct ibx_writer *writer, const struct ibx_remote *remote);
void ibx_remote_get(struct ibx_reader *reader, struct ibx_remote *remote);

/* How this process reaches the peer's memory without posts. */
struct ibx_reach {
    void *address; /* where this process has its first byte mapped, or NULL */
    void *base;    /* with `address`: where the peer's whole allocation begins */
    size_t length; /* with `address`: bytes of that allocation */
    uint64_t id;   /* of that allocation, never used again in this connection; 0: unknown */
    bool writable; /* the mapping is */
    bool lasting;  /* with `id`: the pages stay what they are after the release, as long as the
                      connection lives; transfers that are under way then may go on */
    bool copies;   /* without `address`: ibx_remote_copy() reaches it */
};

/* Keeps the peer from taking back what `remote` names until ibx_remote_release(). Meanwhile this
 * thread neither posts nor polls on the connection, and the peer's deregistration waits: hold it
 * for one copy, not longer. The contents may change at any time. After the release the allocation
 * may be empty again: memory that was pinned there is valid only as long as its `id` is seen.
 * -EOPNOTSUPP: only posts reach it on this connection; -EACCES, -ERANGE, -ENOTCONN. */
int ibx_remote_hold(struct ibx_conn *conn, const struct ibx_remote *remote, unsigned access,
                    struct ibx_reach *reach);
void ibx_remote_release(struct ibx_conn *conn);
/* While it is held with `copies`: copies n bytes from (`read`) or to the peer's `offset`. From any
 * thread. 0 or a negative errno. */
int ibx_remote_copy(struct ibx_conn *conn, bool read, void *local, const struct ibx_remote *remote,
                    uint64_t offset, size_t n);

/* --------------------------------------------------------------------- work */

enum ibx_flags {
    IBX_URGENT = 1,   /* goes ahead of bulk work, on a lane of its own */
    IBX_SIGNALED = 2, /* ibx_send only: report an IBX_EVENT_SEND too */
    IBX_SPARING = 4,  /* ibx_send only: leaves the last credit to sends without this flag */
    /* ibx_read, ibx_write only: the caller posts more before it polls, and all of it may be sent
     * together, by the next ibx_poll() at the latest. */
    IBX_MORE = 8,
};

/* READ copies remote to local, WRITE local to remote; any length, which is cut into chunks here. An
 * accepted post (0) completes exactly once, flushed ones too, with an event that carries `cookie`;
 * there is no order between posts. The local bytes belong to the transport until then. `offset`
 * counts from remote->address. A message sent after the completion of a WRITE arrives after the
 * written bytes are visible.
 * -ERANGE: outside the region or the remote; -ENOTCONN; -ENOMEM. Never -EAGAIN. */
int ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
             uint64_t offset, size_t length, uint64_t cookie, unsigned flags);
int ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
              const struct ibx_remote *remote, uint64_t offset, size_t length, uint64_t cookie,
              unsigned flags);

/* Sends one message of at most caps->message_max bytes, gathered from `iov` and copied before the
 * call returns. Messages arrive whole and in the order sent, or the connection ends. If both ends
 * have a key, that holds against attackers, too (docs/security.md), and it ends with -EBADMSG.
 * -EAGAIN: no credit, poll until the peer has released some; -EMSGSIZE; -ENOTCONN. */
int ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
             unsigned flags);

enum ibx_event_type {
    IBX_EVENT_READ,    /* cookie, status */
    IBX_EVENT_WRITE,   /* cookie, status */
    IBX_EVENT_SEND,    /* cookie, status; only for IBX_SIGNALED sends */
    IBX_EVENT_MESSAGE, /* data, length; they are valid until ibx_message_release() */
    IBX_EVENT_CLOSED,  /* status says why; the last event of a connection */
};

struct ibx_event {
    enum ibx_event_type type;
    int status; /* 0 or a negative errno */
    uint64_t cookie;
    const void *data;
    size_t length;
    uint64_t slot; /* of a message, for its release */
};

/* Takes up to `max` events; 0 when nothing happened. After IBX_EVENT_CLOSED was delivered:
 * -ENOTCONN. Never blocks. */
int ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int max);
/* Gives a message's memory back, and with it one credit to the peer. In any order. */
void ibx_message_release(struct ibx_conn *conn, const struct ibx_event *event);
/* Whether a parent process established it: then this process can only close it, and is refused
 * everything else, mostly with -ENOTCONN. */
bool ibx_conn_inherited(const struct ibx_conn *conn);
/* Why the connection ended, in one sentence; "" while it lives. */
const char *ibx_conn_reason(const struct ibx_conn *conn);
/* The same as a negative errno, 0 while it lives. -EFAULT: it was to read or write memory of this
 * process that may not be accessed, which another connection would not change; -EMSGSIZE: long
 * packets do not reach the peer's host, and the next connections there have shorter ones. */
int ibx_conn_status(const struct ibx_conn *conn);
/* Client: the server seems to have ended the connection because its own long packets do not arrive
 * here: the next connections there have shorter ones. */
void ibx_conn_packets_lost(const struct ibx_conn *conn);
/* Whether it has ended: nothing can be registered with it any more, even if ibx_poll() has not
 * reported it yet. */
bool ibx_conn_over(const struct ibx_conn *conn);

/* To sleep: call ibx_arm(); if it returned 0, poll(2) the fd for POLLIN; then call ibx_poll(). 1:
 * there is something to poll now. Credit is no event: a caller whose send found none repeats it
 * after each ibx_poll(). */
int ibx_fd(const struct ibx_conn *conn);
/* ibx_wait() returns -EINTR when that descriptor becomes readable, once. The descriptor stays the
 * caller's. 0 or a negative errno. */
int ibx_wait_watch(struct ibx_conn *conn, int fd);
/* Whether that has happened, in whichever call. */
bool ibx_wait_watched(const struct ibx_conn *conn);
int ibx_arm(struct ibx_conn *conn);
/* The usual loop around these: polls busily for spin_us, unless that found nothing several times in
 * a row or cost it the processor, then sleeps until there may be an event or `timeout_ms` (-1: no
 * limit) is over. 1: call ibx_poll(), or repeat a send that found no credit; 0: time-out; -EINTR:
 * ibx_wake() was called, perhaps just before. */
int ibx_wait(struct ibx_conn *conn, int timeout_ms);
/* Tells the connection that an event is due within `us` microseconds and that a wake-up would take
 * too long. Until then waits poll busily beyond spin_us, if there are four processors or more and
 * while busy polling pays. */
void ibx_expect(struct ibx_conn *conn, unsigned us);
/* Makes a sleeping ibx_wait() return; from any thread or signal handler. */
void ibx_wake(struct ibx_conn *conn);

/* ------------------------------------------------------------------- probing */

/* Whether this host could use a provider at all, and with what; for ib-doctor and `refused` lists.
 * 0 and a description. -ENOSYS: it is not in this build; -ENODEV and other errors of the provider,
 * with the reason. */
int ibx_provider_probe(const char *name, const struct ibx_options *options, char *description,
                       size_t size, struct ibx_error *err);
/* For a program that is about to listen: whether this host could use any provider that the URI or
 * the options name, so that not every client has to find out. With rdma://, tcp always works. */
int ibx_listen_check(const char *uri, const struct ibx_options *options, struct ibx_error *err);
/* The implementation of AES-128-GCM in use here. *remedy: what would make it faster, or NULL. */
const char *ibx_cipher_description(const char **remedy);
/* Names in the order in which rdma:// prefers them, NULL after the last. */
const char *ibx_provider_name(unsigned index);

#ifdef __cplusplus
}
#endif

#endif
