/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Pages by multicast: one sender, any number of receivers, each page once on the wire.
 *
 *   group.c     groups and interfaces as texts and addresses
 *   datagrams.c sends datagrams to a group and receives them, by one of
 *   udp.c       sockets
 *   verbs.c     queue pairs for datagrams (UD)
 *   packet.c    one datagram: a page, or a part of one
 *   batch.c     pages as datagrams that are sent by one call
 *   rate.c      the rate of sending, by what members report as received
 *   sender.c    a thread that sends what members want, at that rate
 *   receiver.c  makes pages of datagrams
 *
 * Nothing is sent again; a member that misses a page gets it another way. Members report how much
 * has come. This folder knows no snapshot: pages are numbered, have 4 KiB, and are grouped in
 * chunks of 2 MiB. The caller (migrate/snapshot/) decides who may join and gives members the key.
 *
 * Each datagram is encrypted and authenticated (AES-128-GCM) with a key of the sender that all
 * members have. So others can read nothing, and a datagram that they send costs a receiver one
 * check. But a member can forge datagrams: the receiver's caller has to check the pages.
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
#define IBX_MULTICAST_CHUNK_PAGES 512u /* pages in a chunk */
#define IBX_MULTICAST_ID          8u
#define IBX_MULTICAST_KEY         16u
#define IBX_MULTICAST_SEALED_KEY  32u
#define IBX_MULTICAST_PORT        18602u
#define IBX_MULTICAST_RATE        (32ull << 20) /* bytes a second */
#define IBX_MULTICAST_RATE_MIN    (64ull << 10)
#define IBX_MULTICAST_HOPS        1u

/* ------------------------------------------------------------ group.c */

struct ibx_multicast_group {
    struct sockaddr_storage address; /* with the port; port 0: over verbs, which has no ports */
    uint8_t id[IBX_MULTICAST_ID];    /* of the sender, random */
    uint8_t key[IBX_MULTICAST_KEY];
    uint64_t rate; /* of the sender, bytes a second */
};

/* Parses "239.1.2.3", "239.1.2.3:7000", "ff15::1", "[ff15::1]:7000" or "verbs://239.1.2.3". NULL
 * and "verbs://" choose a random group that nobody else is likely to use, in 239.192.0.0/14; NULL
 * with `six` in ff15::/16. -EINVAL: `text` is no group; -EIO: no random numbers. */
int ibx_multicast_group_choose(const char *text, bool six, struct sockaddr_storage *address,
                               struct ibx_error *err);
bool ibx_multicast_is_group(const struct sockaddr_storage *address);
bool ibx_multicast_by_verbs(const struct sockaddr_storage *address);
/* "239.1.2.3:7000", "verbs://239.1.2.3". */
void ibx_multicast_group_print(const struct sockaddr_storage *address, char *out, size_t size);
/* "nothing can be sent to the multicast group 239.1.2.3:7000 over eth0: why". */
int ibx_multicast_failed(const char *what, const struct sockaddr_storage *group, unsigned interface,
                         int code, struct ibx_error *err);
/* The index of the interface `name`, or if that is NULL, of the one by which this host reaches
 * `host`, a name or an address, perhaps in brackets. -ENODEV, -ENETUNREACH and others. */
int ibx_multicast_interface(const char *name, const char *host, unsigned *index,
                            struct ibx_error *err);
/* ------------------------------------------------------------ datagrams.c */

/* Sends to a group; receives as a member of one (datagrams.h). */
struct ibx_multicast_out;
struct ibx_multicast_in;

int ibx_multicast_out_open(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                           struct ibx_multicast_out **out, struct ibx_error *err);
int ibx_multicast_in_open(const struct sockaddr_storage *group, unsigned interface,
                          struct ibx_multicast_in **in, struct ibx_error *err);
/* Whether this host can send to such a group by this interface (0: it is not known yet). 0, or an
 * error. */
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

/* The head of a datagram. */
struct ibx_multicast_packet {
    uint64_t number; /* counts all datagrams of the sender */
    uint64_t page;
    unsigned part, parts; /* of the page */
};

/* How many datagrams of at most `room` bytes a page needs; 0: they are too small for any part. */
unsigned ibx_multicast_parts(size_t room);
/* Where a part begins in its page, and how long it is. */
size_t ibx_multicast_part_at(unsigned parts, unsigned part, size_t *length);
/* The length of part `part` as a datagram, if a page has `parts`; the last one may be shorter. */
size_t ibx_multicast_datagram(unsigned parts, unsigned part);
/* Reads the head of a datagram. False: it is not of this group, or has a wrong length. */
bool ibx_multicast_peek(const void *datagram, size_t length, const uint8_t id[IBX_MULTICAST_ID],
                        struct ibx_multicast_packet *packet);

/* Encrypts (`seals`) or decrypts datagrams of a group. One thread at a time. NULL: no memory, or
 * OpenSSL lacks AES-128-GCM. */
struct ibx_multicast_cipher;
struct ibx_multicast_cipher *ibx_multicast_cipher_create(const struct ibx_multicast_group *group,
                                                         bool seals);
/* Accepts NULL. */
void ibx_multicast_cipher_destroy(struct ibx_multicast_cipher *cipher);
/* Makes the datagram of a part of `page` in `out`, which has room for IBX_MULTICAST_PACKET bytes.
 * packet->number must not be used twice with one key. Returns the length; 0: OpenSSL failed. */
size_t ibx_multicast_seal(struct ibx_multicast_cipher *cipher,
                          const struct ibx_multicast_packet *packet, const uint8_t *page,
                          uint8_t *out);
/* Decrypts the part of a page in a datagram for which ibx_multicast_peek() was true. False: its
 * sender does not have the key. */
bool ibx_multicast_open(struct ibx_multicast_cipher *cipher, const void *datagram, size_t length,
                        uint8_t *part);

/* Encrypts the group's key for one member, with a secret that only both ends of their connection
 * know, and that is used for nothing else. */
bool ibx_multicast_key_seal(const uint8_t secret[32], const struct ibx_multicast_group *group,
                            uint8_t sealed[IBX_MULTICAST_SEALED_KEY]);
/* Decrypts it: sets group->key; group->id must be set. False: it was sealed with another secret. */
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
/* Begins a batch for pages of `parts` parts, and as many of them as make up to `datagrams`
 * datagrams, but at least one. */
void ibx_multicast_batch_begin(struct ibx_multicast_batch *batch, struct ibx_multicast_out *out,
                               unsigned parts, unsigned datagrams);
/* Adds a page to a batch that is not full; counts `*number` on. -EIO: OpenSSL failed. */
int ibx_multicast_batch_add(struct ibx_multicast_batch *batch, struct ibx_multicast_cipher *cipher,
                            uint64_t *number, uint64_t page, const uint8_t *bytes);
bool ibx_multicast_batch_full(const struct ibx_multicast_batch *batch);
/* Sends the pages that were added, and empties the batch. Sets `*datagrams` to how many datagrams
 * these were; some may be lost. */
int ibx_multicast_batch_send(struct ibx_multicast_batch *batch, unsigned *datagrams,
                             struct ibx_error *err);

/* ------------------------------------------------------------ rate.c */

struct ibx_multicast_rate {
    uint64_t most, least, now; /* bytes a second */
    uint64_t settled;          /* datagrams from this number on were sent at the present rate */
    uint64_t lowered_ns, raised_ns;
    uint64_t lowered; /* how often */
};

/* What one member has reported. */
struct ibx_multicast_hearing {
    bool begun;             /* the rest is valid */
    uint64_t through, came; /* in its last report */
    uint64_t sent;          /* the sender's count at that time */
    unsigned loss;          /* thousandths */
    unsigned deaf;          /* reports in a row of a loss of half or more at the lowest rate */
};

void ibx_multicast_rate_init(struct ibx_multicast_rate *rate, uint64_t most);
/* A member reports that of the datagrams before number `through`, `came` different ones have come;
 * `sent` is the number of the next datagram. Lowers the rate if the member loses too many. False:
 * the report is impossible. */
bool ibx_multicast_rate_heard(struct ibx_multicast_rate *rate,
                              struct ibx_multicast_hearing *hearing, uint64_t through,
                              uint64_t came, uint64_t sent, uint64_t now_ns);
/* Whether a member counts for the rate: not if it loses most even at the lowest rate. */
bool ibx_multicast_counts(const struct ibx_multicast_hearing *hearing);
/* Whether it loses little, or does not count. */
bool ibx_multicast_hears_well(const struct ibx_multicast_hearing *hearing);
/* To be called when all members hear well: raises the rate, in steps. */
void ibx_multicast_rate_raise(struct ibx_multicast_rate *rate, uint64_t now_ns);

/* ------------------------------------------------------------ sender.c */

/*
 * A thread that goes round through the chunks and sends each that a member wants. A member gets
 * each chunk that it wants once after it has joined. The socket is open while there are members.
 */
struct ibx_multicast_sender;
struct ibx_multicast_member;

struct ibx_multicast_sender_config {
    struct sockaddr_storage group;
    uint64_t rate; /* bytes a second at most, with the heads of UDP and IP */
    unsigned hops;
    uint64_t pages;
    const uint64_t *data; /* a bit for each page that is to be sent, lowest first */
    /* The bytes of a page; called by the sender's thread. NULL: the page is missing, and skipped.
     */
    const uint8_t *(*memory)(void *context, uint64_t page);
    /* Whether enough of these pages, a chunk, are there to send it now; if not, it is asked again.
     */
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
/* The group, with the sender's id and key. Valid until destroy. */
const struct ibx_multicast_group *
ibx_multicast_sender_group(const struct ibx_multicast_sender *sender);
uint64_t ibx_multicast_chunks(uint64_t pages);
void ibx_multicast_sender_stats(struct ibx_multicast_sender *sender,
                                struct ibx_multicast_sender_stats *stats);
/* To be called when all members have left. Accepts NULL. */
void ibx_multicast_sender_destroy(struct ibx_multicast_sender *sender);

/* Adds a member; from any thread. `wanted` has a bit for each chunk, and is copied. `wake` is
 * called when the member's state changes; under a lock, so it must call no function of this header.
 * -EXDEV: the other members are reached by another interface; others: errors of sockets. */
int ibx_multicast_join(struct ibx_multicast_sender *sender, unsigned interface,
                       const uint64_t *wanted, void (*wake)(void *context), void *context,
                       struct ibx_multicast_member **member, struct ibx_error *err);
/* 0: the member is being sent chunks; 1: it was sent all that it wants, and since it joined,
 * `*packets` datagrams were sent to the group; negative: it will get no more, and why. */
int ibx_multicast_member_state(struct ibx_multicast_member *member, uint64_t *packets,
                               struct ibx_error *err);
/* To be called from time to time: the member has received `came` different datagrams of those
 * before number `through`. False: that is impossible. */
bool ibx_multicast_member_heard(struct ibx_multicast_member *member, uint64_t through,
                                uint64_t came);
/* Accepts NULL. */
void ibx_multicast_leave(struct ibx_multicast_member *member);

/* ------------------------------------------------------------ receiver.c */

/* Passes pages whose parts have all come to take(). Used by one thread. */
struct ibx_multicast_receiver;

struct ibx_multicast_receiver_config {
    struct ibx_multicast_group group;
    unsigned interface;
    /* Whether the page is missing; datagrams of others are only counted. */
    bool (*wanted)(void *context, uint64_t page);
    /* Takes a page. False: these are not the page's bytes. */
    bool (*take)(void *context, uint64_t page, const uint8_t *bytes);
    void *context;
    unsigned drop_every; /* drop every n-th datagram, for tests; 0: none */
};

struct ibx_multicast_receiver_stats {
    uint64_t packets; /* different authentic datagrams */
    uint64_t proven;  /* of these, those with a number higher than all before: not repeated ones */
    uint64_t through; /* the highest number of them, plus one */
    uint64_t pages;   /* taken */
    uint64_t wrong;   /* pages that take() refused */
    uint64_t strange; /* datagrams that are not of the group, or not authentic */
};

int ibx_multicast_receiver_open(const struct ibx_multicast_receiver_config *config,
                                struct ibx_multicast_receiver **receiver, struct ibx_error *err);
int ibx_multicast_receiver_fd(const struct ibx_multicast_receiver *receiver);
/* Handles some of the datagrams that have come, without waiting, and returns how many; negative: no
 * more will come, and why. After it has returned 0, the descriptor becomes readable when one comes.
 */
int ibx_multicast_receive(struct ibx_multicast_receiver *receiver, struct ibx_error *err);
void ibx_multicast_receiver_stats(const struct ibx_multicast_receiver *receiver,
                                  struct ibx_multicast_receiver_stats *stats);
/* Accepts NULL. */
void ibx_multicast_receiver_close(struct ibx_multicast_receiver *receiver);

#endif
