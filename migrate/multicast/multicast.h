/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages by multicast: one sender, any number of receivers, each page once on the wire.
 *
 *   group.c     groups and interfaces as texts and addresses
 *   datagrams.c the way for datagrams to a group, which is one of
 *   udp.c       sockets
 *   verbs.c     queue pairs for datagrams (UD)
 *   packet.c    one datagram: a page, or a part of one
 *   batch.c     pages as datagrams that are sent at once
 *   rate.c      how fast, by what members say that they have heard
 *   sender.c    a thread that sends what members want, at that rate
 *   receiver.c  pages out of datagrams
 *
 * Nothing is repeated, and who misses a page gets it another way. Members say how much has come. It
 * knows no snapshot: pages are numbered, have 4 KiB, and are grouped in chunks of 2 MiB. Who joins,
 * and how members get the key, is for the caller (migrate/snapshot/).
 *
 * Each datagram is sealed (AES-128-GCM) with a key of the sender's own that all members have. So
 * others read nothing, and what they send costs a receiver one tag. A member can send what it
 * likes: the receiver's caller has to know what is right.
 */
#ifndef IBX_MIGRATE_MULTICAST_MULTICAST_H
#define IBX_MIGRATE_MULTICAST_MULTICAST_H

#include "common/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define IBX_MULTICAST_PAGE        4096u
#define IBX_MULTICAST_CHUNK_PAGES 512u /* of a chunk */
#define IBX_MULTICAST_ID          8u
#define IBX_MULTICAST_KEY         16u
#define IBX_MULTICAST_SEALED_KEY  32u
#define IBX_MULTICAST_PORT        18602u
#define IBX_MULTICAST_RATE        (32ull << 20) /* bytes a second */
#define IBX_MULTICAST_RATE_MIN    (64ull << 10)
#define IBX_MULTICAST_HOPS        1u

/* ------------------------------------------------------------ group.c */

struct ibx_multicast_group {
    struct sockaddr_storage address; /* and port; 0: by verbs, which know no ports */
    uint8_t id[IBX_MULTICAST_ID];    /* of the sender, random */
    uint8_t key[IBX_MULTICAST_KEY];
    uint64_t rate; /* of the sender, bytes a second */
};

/* "239.1.2.3", "239.1.2.3:7000", "ff15::1" or "[ff15::1]:7000"; "verbs://239.1.2.3". NULL and
 * "verbs://" are random ones that nobody else is likely to use: of 239.192.0.0/14, and NULL with
 * `six` of ff15::/16. -EINVAL, -EIO. */
int ibx_multicast_group_choose(const char *text, bool six, struct sockaddr_storage *address,
                               struct ibx_error *err);
bool ibx_multicast_is_group(const struct sockaddr_storage *address);
bool ibx_multicast_by_verbs(const struct sockaddr_storage *address);
/* "239.1.2.3:7000", "verbs://239.1.2.3". */
void ibx_multicast_group_print(const struct sockaddr_storage *address, char *out, size_t size);
/* The number of an interface: of this name, or, with NULL, of the one by which this host reaches
 * another. `host` is a name or an address, perhaps in brackets. -ENODEV, -ENETUNREACH and others.
 */
int ibx_multicast_interface(const char *name, const char *host, unsigned *index,
                            struct ibx_error *err);
/* ------------------------------------------------------------ datagrams.c */

/* A way for datagrams to a group (datagrams.h). */
struct ibx_multicast_out;
struct ibx_multicast_in;

int ibx_multicast_out_open(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                           struct ibx_multicast_out **out, struct ibx_error *err);
int ibx_multicast_in_open(const struct sockaddr_storage *group, unsigned interface,
                          struct ibx_multicast_in **in, struct ibx_error *err);
/* Whether this host can send to such a group at all, and by this interface; 0: whichever leads to a
 * member. */
int ibx_multicast_out_check(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                            struct ibx_error *err);
/* Both accept NULL. */
void ibx_multicast_out_close(struct ibx_multicast_out *out);
void ibx_multicast_in_close(struct ibx_multicast_in *in);

/* ------------------------------------------------------------ packet.c */

/* docs/protocol.md, "Multicast". */
#define IBX_MULTICAST_HEAD      32u
#define IBX_MULTICAST_TAG       16u
#define IBX_MULTICAST_PARTS_MAX 16u
#define IBX_MULTICAST_PACKET    (IBX_MULTICAST_HEAD + IBX_MULTICAST_PAGE + IBX_MULTICAST_TAG)

/* What a datagram says that it is. */
struct ibx_multicast_packet {
    uint64_t number; /* of all that its sender has sent */
    uint64_t page;
    unsigned part, parts; /* of the page */
};

/* How many datagrams of so many bytes at most a page needs; 0: they are too small. */
unsigned ibx_multicast_parts(size_t room);
/* Where a part begins in its page, and how long it is. */
size_t ibx_multicast_part_at(unsigned parts, unsigned part, size_t *length);
/* Reads the head of a datagram. False: it is none of this group, or has not the right length. */
bool ibx_multicast_peek(const void *datagram, size_t length, const uint8_t id[IBX_MULTICAST_ID],
                        struct ibx_multicast_packet *packet);

/* One thread at a time. */
struct ibx_multicast_cipher;
struct ibx_multicast_cipher *ibx_multicast_cipher_create(const struct ibx_multicast_group *group,
                                                         bool seals);
/* Accepts NULL. */
void ibx_multicast_cipher_destroy(struct ibx_multicast_cipher *cipher);
/* A datagram of that part of the page's bytes. A number is used once for a key. Its length into
 * `out`, which has room for IBX_MULTICAST_PACKET bytes; 0: OpenSSL failed. */
size_t ibx_multicast_seal(struct ibx_multicast_cipher *cipher,
                          const struct ibx_multicast_packet *packet, const uint8_t *page,
                          uint8_t *out);
/* The part's bytes out of a datagram that was peeked at. False: nobody with the key has made it. */
bool ibx_multicast_open(struct ibx_multicast_cipher *cipher, const void *datagram, size_t length,
                        uint8_t *part);

/* The group's key for one member, under a secret of 32 bytes that only both ends of one connection
 * know, and that is used for this once. */
bool ibx_multicast_key_seal(const uint8_t secret[32], const struct ibx_multicast_group *group,
                            uint8_t sealed[IBX_MULTICAST_SEALED_KEY]);
/* Sets group->key; its id is there. False: it was not sealed with this secret. */
bool ibx_multicast_key_open(const uint8_t secret[32], struct ibx_multicast_group *group,
                            const uint8_t sealed[IBX_MULTICAST_SEALED_KEY]);

/* ------------------------------------------------------------ batch.c */

/* Pages that are sent together, by one thread. */
struct ibx_multicast_batch {
    struct ibx_multicast_out *out;
    unsigned parts; /* of each page */
    unsigned most;  /* pages */
    unsigned pages; /* now */
    size_t bytes;   /* of them on the wire, with all heads */
};
/* Of pages of so many parts, and as many of them as make so many datagrams; at least one. */
void ibx_multicast_batch_begin(struct ibx_multicast_batch *batch, struct ibx_multicast_out *out,
                               unsigned parts, unsigned datagrams);
/* One that is not full. -EIO: OpenSSL failed. */
int ibx_multicast_batch_add(struct ibx_multicast_batch *batch, struct ibx_multicast_cipher *cipher,
                            uint64_t *number, uint64_t page, const uint8_t *bytes);
bool ibx_multicast_batch_full(const struct ibx_multicast_batch *batch);
/* Sends what was added, and is empty again; *datagrams were sent, or lost. */
int ibx_multicast_batch_send(struct ibx_multicast_batch *batch, unsigned *datagrams,
                             struct ibx_error *err);

/* ------------------------------------------------------------ rate.c */

struct ibx_multicast_rate {
    uint64_t most, least, now; /* bytes a second */
    uint64_t settled;          /* the number behind the last datagram of the rate before */
    uint64_t lowered_ns, raised_ns;
    uint64_t lowered; /* so often */
};

/* What one member has said. */
struct ibx_multicast_hearing {
    bool begun;             /* the rest is valid */
    uint64_t through, came; /* in its last report */
    uint64_t sent;          /* at that time */
    unsigned loss;          /* thousandths */
    unsigned deaf;          /* reports in a row that most was lost at the lowest rate */
};

void ibx_multicast_rate_init(struct ibx_multicast_rate *rate, uint64_t most);
/* A member says that the datagrams before number `through` can have come, and that `came` different
 * ones have; `sent` is the number behind the last that was sent. Lowers the rate if it loses too
 * many. False: that cannot be. */
bool ibx_multicast_rate_heard(struct ibx_multicast_rate *rate,
                              struct ibx_multicast_hearing *hearing, uint64_t through,
                              uint64_t came, uint64_t sent, uint64_t now_ns);
/* Whether a member has a say: not if it hears little however slow it is. */
bool ibx_multicast_counts(const struct ibx_multicast_hearing *hearing);
/* Whether it loses little, or has no say. */
bool ibx_multicast_hears_well(const struct ibx_multicast_hearing *hearing);
/* All hear well. */
void ibx_multicast_rate_raise(struct ibx_multicast_rate *rate, uint64_t now_ns);

/* ------------------------------------------------------------ sender.c */

/*
 * Goes round through the chunks and sends each that a member wants. A member gets each chunk that
 * it wants once after it has joined. The socket is there while there are members.
 */
struct ibx_multicast_sender;
struct ibx_multicast_member;

struct ibx_multicast_sender_config {
    struct sockaddr_storage group;
    uint64_t rate; /* bytes a second at most, with the heads of UDP and IP */
    unsigned hops;
    uint64_t pages;
    const uint64_t *data; /* a bit a page, lowest first: it is sent */
    /* Of a page; from the sender's thread. NULL: it is not there, and left out. */
    const uint8_t *(*memory)(void *context, uint64_t page);
    /* Whether it is worth while to send these pages of a chunk now; else it is tried again. */
    bool (*ready)(void *context, uint64_t first, uint64_t pages);
    void *context;
};

struct ibx_multicast_sender_stats {
    unsigned members; /* now */
    uint64_t joined;  /* so far */
    uint64_t chunks, packets, bytes;
    uint64_t rate; /* now */
};

int ibx_multicast_sender_create(const struct ibx_multicast_sender_config *config,
                                struct ibx_multicast_sender **sender, struct ibx_error *err);
/* With its own id and key. */
const struct ibx_multicast_group *
ibx_multicast_sender_group(const struct ibx_multicast_sender *sender);
uint64_t ibx_multicast_chunks(uint64_t pages);
void ibx_multicast_sender_stats(struct ibx_multicast_sender *sender,
                                struct ibx_multicast_sender_stats *stats);
/* All members have left. Accepts NULL. */
void ibx_multicast_sender_destroy(struct ibx_multicast_sender *sender);

/* From any thread. `wanted` has a bit a chunk, and is copied; `wake` is called when the member's
 * state changes, under a lock: it calls nothing here. -EXDEV: other members are reached by another
 * interface; errors of sockets. */
int ibx_multicast_join(struct ibx_multicast_sender *sender, unsigned interface,
                       const uint64_t *wanted, void (*wake)(void *context), void *context,
                       struct ibx_multicast_member **member, struct ibx_error *err);
/* 0: it is being fed; 1: it was sent all that it wants, in *packets datagrams of this group since
 * it joined; negative: it will get no more, and why. */
int ibx_multicast_member_state(struct ibx_multicast_member *member, uint64_t *packets,
                               struct ibx_error *err);
/* It has heard so many of the datagrams before this number, each counted once; once in a while.
 * False: that cannot be. */
bool ibx_multicast_member_heard(struct ibx_multicast_member *member, uint64_t through,
                                uint64_t came);
/* Accepts NULL. */
void ibx_multicast_leave(struct ibx_multicast_member *member);

/* ------------------------------------------------------------ receiver.c */

/* A page whose parts have all come is offered; one of which a part is lost is not. One thread. */
struct ibx_multicast_receiver;

struct ibx_multicast_receiver_config {
    struct ibx_multicast_group group;
    unsigned interface;
    /* Whether it is missing: others are only counted. */
    bool (*wanted)(void *context, uint64_t page);
    /* False: these are not its bytes. */
    bool (*take)(void *context, uint64_t page, const uint8_t *bytes);
    void *context;
    unsigned drop_every; /* every n-th datagram is lost, for tests; 0: none */
};

struct ibx_multicast_receiver_stats {
    uint64_t packets; /* different ones that somebody with the key has made */
    uint64_t proven;  /* of these, that overtook none: a sign of life */
    uint64_t through; /* the number behind the highest of them */
    uint64_t pages;   /* taken */
    uint64_t wrong;   /* pages that take() refused */
    uint64_t strange; /* datagrams that are not the group's, or nobody with its key has made */
};

int ibx_multicast_receiver_open(const struct ibx_multicast_receiver_config *config,
                                struct ibx_multicast_receiver **receiver, struct ibx_error *err);
int ibx_multicast_receiver_fd(const struct ibx_multicast_receiver *receiver);
/* Takes some of the datagrams that have come, without waiting: how many. Negative: none will come
 * any more, and why. After 0 the descriptor is readable when there is more. */
int ibx_multicast_receive(struct ibx_multicast_receiver *receiver, struct ibx_error *err);
void ibx_multicast_receiver_stats(const struct ibx_multicast_receiver *receiver,
                                  struct ibx_multicast_receiver_stats *stats);
/* Accepts NULL. */
void ibx_multicast_receiver_close(struct ibx_multicast_receiver *receiver);

#endif
