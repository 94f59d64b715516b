/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Connections that move memory one-sidedly and carry short messages, over
 * whatever fabric both ends have: shared memory, verbs, libfabric or TCP.
 *
 * Every connection begins at the *door*: one stream socket (TCP, or a unix
 * socket) on which both ends prove that they know the key, agree on a provider
 * and set it up (docs/protocol.md). The door stays open as long as the
 * connection, so the death of a peer is noticed on every fabric.
 *
 * Threads: a connection belongs to the one thread that calls into it; only
 * ibx_wake() may be called from another. Listeners likewise. Different
 * connections are independent.
 *
 * Errors are negative errno values. Calls that set something up also fill a
 * nullable `struct ibx_error` with one sentence for a person.
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

#define IBX_RAILS_MAX     4
#define IBX_PROVIDERS_MAX 4
#define IBX_KEY_MAX       4096 /* bytes of a key file */

struct ibx_conn;
struct ibx_domain;
struct ibx_listener;
struct ibx_mr;

/* ------------------------------------------------------------------ options */

/* All there is to choose. ibx_options_init() gives the defaults in brackets;
 * ibx_options_set() is the one parser behind properties files ("rdma.chunk"),
 * URI queries ("?chunk=1M") and command lines ("--set chunk=1M"). */
struct ibx_options {
    char provider[64];     /* "auto" or names in order of preference: "shm,tcp" ["auto"] */
    char device[128];      /* verbs devices, one a rail, comma separated; "" by route [""] */
    char ofi_provider[64]; /* libfabric provider name, "" the best native one [""] */
    char shm_dir[256];     /* directory for shm sockets shared by containers, "" abstract [""] */
    bool shm_direct;       /* shm may use process_vm_readv and _writev; of both ends [true] */
    char tcp_engine[64];   /* of bulk data: "syscalls", "uring" or "uring-zc" ["syscalls"] */
    char key_file[256];    /* "" none [""] */
    bool insecure;         /* serve other hosts without a key [false] */
    unsigned port_num;     /* verbs port on the device, 0 by route [0] */
    int gid_index;         /* -1 by route [-1] */
    unsigned mtu;          /* verbs path MTU in bytes, 0 the port's [0] */
    unsigned rails;        /* devices used by one connection, at most IBX_RAILS_MAX [1] */
    unsigned lanes;        /* bulk queue pairs or sockets a rail; 0 the provider's default [0] */
    size_t chunk;          /* bytes of one bulk work request; 0 the provider's default [0] */
    unsigned depth;        /* bulk chunks in flight a connection; 0 the provider's default [0] */
    unsigned slots;        /* messages in flight each way a connection [16] */
    size_t message;        /* bytes of the longest message [16 KiB] */
    unsigned spin_us;      /* busy polling before sleeping, microseconds [50] */
    unsigned timeout_ms;   /* for setting up, and after which a silent host is dead [10000] */
    struct ibx_domain *domain; /* of connections that share registrations [NULL: of its own] */
};

void ibx_options_init(struct ibx_options *options);

/* Sets one option from text. -ENOENT: no such key; -EINVAL: bad value; both name the value and what
 * is accepted. Sizes take K, M, G (powers of 1024). */
int ibx_options_set(struct ibx_options *options, const char *key, const char *value,
                    struct ibx_error *err);

/* Parses "64K", "1M", "300" into bytes. */
int ibx_size_parse(const char *text, size_t *bytes, struct ibx_error *err);

/* The keys in their order, NULL after the last. */
const char *ibx_options_key(unsigned index);
/* Writes an option's present value as ibx_options_set() takes it, or as much as fits. -ENOENT. */
int ibx_options_get(const struct ibx_options *options, const char *key, char *value, size_t size);

/* Bytes of message buffers that an idle connection with these options may hold on whichever of the
 * providers in options->provider it comes about; what is behind a URI is not known here. */
size_t ibx_options_message_memory(const struct ibx_options *options);

/* Prints every key with its meaning and accepted values, for help texts. */
void ibx_options_describe(FILE *out, const char *prefix);

/* ---------------------------------------------------------------------- URI */

/* SCHEME://HOST:PORT[?key=value&...] or SCHEME:///PATH (a unix socket as the
 * door, same host only). SCHEME is rdma (choose by itself) or a provider:
 * shm, verbs, ofi, tcp. HOST is a name, an IPv4 address or [IPv6]. */
struct ibx_uri {
    char scheme[16];
    char host[256]; /* "" when there is a path */
    uint16_t port;  /* 0: any free one, for listening only */
    char path[108]; /* unix socket, "" when there is a host */
    char query[512];
};

int ibx_uri_parse(const char *text, struct ibx_uri *uri, struct ibx_error *err);
/* Writes the URI without its query; always terminates `out`. */
void ibx_uri_print(const struct ibx_uri *uri, char *out, size_t size);
/* Applies the scheme (a provider) and the query of a URI to options; errors of ibx_options_set().
 */
int ibx_uri_options(const struct ibx_uri *uri, struct ibx_options *options, struct ibx_error *err);

/* -------------------------------------------------------------- connections */

/* Opens the door at `uri`. Options from the URI's query override `options`, a scheme other than
 * rdma overrides the provider. Without a key only this host is served unless options->insecure.
 * No thread, device or provider is touched before ibx_establish(). */
int ibx_listen(const char *uri, const struct ibx_options *options, struct ibx_listener **listener,
               struct ibx_error *err);
/* Level-triggered readable when ibx_accept() has something to take. Stable for the listener's life;
 * survives fork(2). */
int ibx_listener_fd(const struct ibx_listener *listener);
/* The URI a client would use, with the real port. Valid for the listener's life. */
const char *ibx_listener_uri(const struct ibx_listener *listener);
/* Takes one knock from the door without blocking: -EAGAIN when there is none. The connection is not
 * yet authenticated nor established; it may be carried across fork(2) and to another thread. */
int ibx_accept(struct ibx_listener *listener, struct ibx_conn **conn, struct ibx_error *err);
/* Server side: proves, agrees and sets up. Blocks for at most timeout_ms until the client has
 * proven itself, and then for as long in each step of each provider tried. On failure the
 * connection is dead and only ibx_close() is left. */
int ibx_establish(struct ibx_conn *conn, struct ibx_error *err);
void ibx_listener_close(struct ibx_listener *listener);

/* Client side: knock, prove, agree, set up; blocks for at most timeout_ms in each of these steps.
 */
int ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                struct ibx_error *err);

/* Ends the connection but leaves it open for ibx_poll(): outstanding posts complete, most with an
 * error, and IBX_EVENT_CLOSED follows. For who must take back memory before ibx_close(). */
void ibx_abort(struct ibx_conn *conn);

/* Ends the connection at once: outstanding work is flushed without events, registrations are
 * dropped, the peer sees the close. Accepts NULL. In a child forked after establishment it only
 * gives back what the child has of it: the connection stays the parent's. */
void ibx_close(struct ibx_conn *conn);

/* What an established connection can do. */
struct ibx_caps {
    size_t message_max; /* bytes of the longest message */
    size_t chunk;       /* bytes of one bulk work request */
    unsigned depth;     /* bulk chunks in flight */
    unsigned lanes;     /* bulk lanes */
    size_t rendezvous;  /* bodies of at least so many bytes are better moved one-sidedly */
    bool register_free; /* registration pins nothing and costs nothing: do not cache it */
    bool shares;        /* within a domain ibx_mr_share() pins nothing and costs nothing */
    bool peer_drives;   /* one-sided work proceeds only while the peer polls its connection */
    bool dmabuf;        /* spans of GPU memory with a dma-buf can be registered ... */
    bool gpu_pointers;  /* ... and without one, by nvidia-peermem or libfabric's own means */
    bool direct;        /* ibx_remote_copy() reaches the peer's memory, unless that changes */
};
const struct ibx_caps *ibx_conn_caps(const struct ibx_conn *conn);

/* Which path was taken and why each better one was not. */
struct ibx_path {
    char provider[16];     /* "shm", "verbs", "ofi", "tcp" */
    char description[192]; /* "verbs mlx5_0 port 1 gid 3 mtu 4096, 4 queue pairs" */
    char peer[128];        /* the peer's address as the door saw it */
    struct {
        char provider[16];
        char reason[256];
    } refused[IBX_PROVIDERS_MAX * 2];
    unsigned refused_count;
};
const struct ibx_path *ibx_conn_path(const struct ibx_conn *conn);

/* ------------------------------------------------------------------- memory */

enum ibx_access {
    IBX_ACCESS_LOCAL = 0,        /* as the local side of READ and WRITE only */
    IBX_ACCESS_REMOTE_READ = 1,  /* the peer may READ it */
    IBX_ACCESS_REMOTE_WRITE = 2, /* the peer may WRITE it */
};

/* Registers memory with one connection: of a GPU only with local access, so that no key to it
 * exists. The memory must stay mapped until ibx_mr_deregister(), after which no byte of it is
 * touched any more by either side. -ENOMEM with a locked-memory limit is explained in `err`. */
int ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                    struct ibx_mr **mr, struct ibx_error *err);
/* Makes what another connection has registered usable by this one as well, with the same access.
 * Nothing is registered anew where both are of one domain, on one device and caps->shares; else it
 * is, at the same price as ibx_mr_register(). From the thread of `conn`, at any time at which
 * nobody deregisters `mr`. Afterwards the two are independent, but the memory has to stay mapped
 * until both are deregistered: the key of one is good until then. Host memory that
 * ibx_mr_register() was given, or ibx_mr_share() has made; -EINVAL for other. */
int ibx_mr_share(struct ibx_conn *conn, const struct ibx_mr *mr, struct ibx_mr **shared,
                 struct ibx_error *err);
/* Allocates and registers memory where the fabric reaches it best (shm: the region both ends map),
 * zeroed and page aligned; freed by ibx_mr_deregister(). A part of it that ibx_mr_register() of the
 * same connection registers is reached in the same way. */
int ibx_mr_allocate(struct ibx_conn *conn, size_t length, unsigned access, struct ibx_mr **mr,
                    struct ibx_error *err);
void *ibx_mr_address(const struct ibx_mr *mr);
size_t ibx_mr_length(const struct ibx_mr *mr);
/* Accepts NULL. There must be no outstanding work of this side on it. */
void ibx_mr_deregister(struct ibx_mr *mr);

/* Connections with the same domain in their options can share registrations, so that memory which
 * many of them expose is pinned, counted against RLIMIT_MEMLOCK and set up once a device. They are
 * not protected from each other: over a fabric the peer of any can use a key that the peer of
 * another was given. So only connections to one peer, or to peers that may all reach the same
 * memory with the same access, belong into one domain; it is never entered before the peer has
 * proven itself. Other than that they are as independent as ever. From any thread; in a child
 * forked later a domain is good for nothing. */
int ibx_domain_create(struct ibx_domain **domain, struct ibx_error *err);
/* Lets go of it; what has it in its options keeps it as long as it needs it. Accepts NULL. */
void ibx_domain_release(struct ibx_domain *domain);

/* Memory of this process, page aligned and resident, which is bound to no connection; any of them
 * can register it, and whom it reaches over shm maps it too. So copies there need one memcpy of the
 * peer's and nothing of this side, which lends all such memory with the first piece of it. The
 * pages at an address stay the same as long as the process lives, also when they are freed and
 * allocated again, so that a peer may pin them; new ones are zeroed, others are not. From any
 * thread. NULL: there is no more, or none in a forked child, whose parent's it still is. */
void *ibx_shared_allocate(size_t length, struct ibx_error *err);
/* Whether all of these bytes lie where such memory is. */
bool ibx_shared_holds(const void *address, size_t length);
/* False when no such memory begins there. No registration may be left on it. */
bool ibx_shared_free(void *address);

/* What a peer needs to READ or WRITE a piece of registered memory; travels in messages. */
struct ibx_remote {
    uint64_t address;
    uint64_t length;              /* bytes */
    uint64_t keys[IBX_RAILS_MAX]; /* one a rail, unused ones 0 */
};
#define IBX_REMOTE_BYTES (16 + 8 * IBX_RAILS_MAX)

/* Names bytes [offset, offset+length) of `mr`; -ERANGE outside of it, -EACCES without remote
 * access. */
int ibx_mr_remote(const struct ibx_mr *mr, size_t offset, size_t length, struct ibx_remote *remote);
void ibx_remote_put(struct ibx_writer *writer, const struct ibx_remote *remote);
void ibx_remote_get(struct ibx_reader *reader, struct ibx_remote *remote);

/* Where the peer's memory is mapped in this process (shm's shared region), or NULL. Valid until the
 * connection ends; the peer may change its contents at any time. */
const void *ibx_remote_pointer(struct ibx_conn *conn, const struct ibx_remote *remote);

/* The peer's memory within this process's own reach, without posts. */
struct ibx_reach {
    void *address; /* where this process has its first byte mapped, or NULL */
    void *base;    /* with `address`: where the peer's whole allocation is that it belongs to ... */
    size_t length; /* ... of so many bytes ... */
    uint64_t id;   /* ... with an id that no other one of the connection's ever has; 0: unknown */
    bool writable; /* the mapping is */
    bool lasting;  /* with `id`: the pages stay what they are when they are let go, as long as the
                      connection lives; what is under way to or from them by then may go on */
    bool copies;   /* without `address`: ibx_remote_copy() reaches it */
};

/* Keeps the peer from taking back what `remote` names until ibx_remote_release(). In between this
 * thread neither posts nor polls on the connection, and the peer's deregistration waits: so for as
 * long as a copy takes, not for longer. -EOPNOTSUPP: only posts reach it, on this fabric or in this
 * connection; -EACCES, -ERANGE. The contents may change at any time, and an allocation may be
 * empty again once it is let go: what is pinned of it counts only while its `id` is seen. */
int ibx_remote_hold(struct ibx_conn *conn, const struct ibx_remote *remote, unsigned access,
                    struct ibx_reach *reach);
void ibx_remote_release(struct ibx_conn *conn);
/* While it is held with `copies`, and from any thread: copies n bytes from (`read`) or to the
 * peer's `offset`. 0 or a negative errno. */
int ibx_remote_copy(struct ibx_conn *conn, bool read, void *local, const struct ibx_remote *remote,
                    uint64_t offset, size_t n);

/* --------------------------------------------------------------------- work */

enum ibx_flags {
    IBX_URGENT = 1,   /* goes ahead of bulk work, on a lane of its own */
    IBX_SIGNALED = 2, /* ibx_send only: report an IBX_EVENT_SEND too */
    IBX_SPARING = 4,  /* ibx_send only: not with the last credit, which stays for one without it */
};

/* READ: remote -> local. WRITE: local -> remote. Any length, cut into chunks
 * here. An accepted post (0) completes exactly once, flushed ones too, with an
 * event that carries `cookie`; no order between posts is promised. The local
 * bytes belong to the transport until then. `offset` counts from
 * remote->address. -EAGAIN never happens; -ENOMEM, -ERANGE (outside the region
 * or the remote), -ENOTCONN do.
 *
 * A message sent after a WRITE's completion event is received after the
 * written bytes are visible. */
int ibx_read(struct ibx_conn *conn, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
             uint64_t offset, size_t length, uint64_t cookie, unsigned flags);
int ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
              const struct ibx_remote *remote, uint64_t offset, size_t length, uint64_t cookie,
              unsigned flags);

/* Sends one message of at most caps->message_max bytes, gathered from `iov` and copied before the
 * call returns. Messages arrive whole and in the order sent, or the connection ends. -EAGAIN: no
 * credit, poll until the peer has released some; -EMSGSIZE; -ENOTCONN. */
int ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
             unsigned flags);

enum ibx_event_type {
    IBX_EVENT_READ,    /* cookie, status */
    IBX_EVENT_WRITE,   /* cookie, status */
    IBX_EVENT_SEND,    /* cookie, status; only for IBX_SIGNALED sends */
    IBX_EVENT_MESSAGE, /* data, length; hold it until ibx_message_release() */
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
/* Gives a message's memory back, and with it the credit to the peer. In any order. */
void ibx_message_release(struct ibx_conn *conn, const struct ibx_event *event);
/* Whether a parent process made it: here it can only be closed, which leaves the parent's alone. */
bool ibx_conn_inherited(const struct ibx_conn *conn);
/* Why the connection ended, in one sentence; "" while it lives. */
const char *ibx_conn_reason(const struct ibx_conn *conn);

/* To sleep: ibx_arm(); if it returned 0, poll(2) the fd for POLLIN; then ibx_poll(). A return of 1
 * means that there is something to poll now. */
int ibx_fd(const struct ibx_conn *conn);
int ibx_arm(struct ibx_conn *conn);
/* The usual loop round the two: polls busily for spin_us, unless that has found nothing several
 * times in a row or cost it the processor, then sleeps until there may be an event or `timeout_ms`
 * (-1: no limit) is over. Returns 1 when ibx_poll() is worth calling, or a send repeated that found
 * no credit; 0 on time-out, -EINTR when ibx_wake() was called, also just before. Who sleeps by
 * ibx_arm() instead repeats such a send after each ibx_poll(): credit is no event. */
int ibx_wait(struct ibx_conn *conn, int timeout_ms);
/* An event is due within so many microseconds, and being woken for it would take longer than is
 * tolerable: until then waits poll busily beyond spin_us, where there are four processors or more
 * and polling is not left out. */
void ibx_expect(struct ibx_conn *conn, unsigned us);
/* Makes a sleeping ibx_wait() return; from any thread or signal handler. */
void ibx_wake(struct ibx_conn *conn);

/* ------------------------------------------------------------------- probing */

/* Whether this host could use a provider at all, and with what: for ib-doctor and `refused` lists.
 * Returns 0 and a description, or a negative errno and the reason. */
int ibx_provider_probe(const char *name, const struct ibx_options *options, char *description,
                       size_t size, struct ibx_error *err);
/* Names in the order rdma:// prefers them, NULL after the last. */
const char *ibx_provider_name(unsigned index);

#endif
