/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The messages between the source and the destination (docs/protocol.md, "ib-migrate").
 *
 * The source connects. Its first connection is the *control* connection and begins with HELLO; the
 * others are *page* connections and begin with JOIN. The destination READs pages over page
 * connections; everything else uses the control connection. A message is a u8 type and its fields,
 * little-endian.
 *
 *      source                                   destination
 *        HELLO move, DESCRIPTION... ------------->  refuses, or
 *        <-------------------------------- ANSWER   accepts
 *        JOIN, REGION... on each page connection ->
 *        (a VM that returns)
 *        <-------------------- HAVE... HAVE_END     what is left here of its memory
 *        <--------------------------------- READY   userfaultfd in place, QEMU waits for the state
 *        (send --warm: any number of times)
 *        ROUND... ROUND_END --------------------->  these pages are fetched while the VM runs
 *        <---------------------------- ROUND_DONE   and after the last time: QEMU may stop the VM
 *        STATE... ------------------------------->  the VM runs on meanwhile
 *        (the VM stops) MAP... MAP_END ---------->  faults are served from here on
 *        (between hosts) PAGES... --------------->  those that QEMU is about to need
 *        (on one host, of a VM that returns, they come before the MAP)
 *        (send --warm: ROUND... ROUND_END before that MAP_END name what was written since)
 *        STATE... STATE_END --------------------->  into QEMU, but for its end
 *        <-------------------------------- LOADED
 *        COMMIT (the point of no return) -------->  the end: QEMU resumes the VM
 *        (DECIDED) ------------------------------>  libvirt has ended QEMU there: the VM stays here
 *        <------------------------------- RUNNING   or it is paused, as QEMU reports
 *        <-------- PROGRESS, DIGEST ... COMPLETE    every page is there
 *        (a borrowed VM) COMPARED --------------->  the pages of the DIGESTs so far are right
 *        (or <--------------------------- ENDED)    none is needed: shut down, or it has returned
 *        CONFIRM -------------------------------->  the source keeps nothing for it
 *        <------------------------------ CONFIRMED  the destination has written that down
 *
 * A side that finds that pages are not the same at both ends sends BROKEN, which ends both. Before
 * the commit either side may send ABORT. After it the destination may: before RUNNING if the VM
 * certainly never ran there, and after RUNNING if its QEMU has ended (which brings nothing back).
 * Where libvirt drives, the source may, too, if libvirt has continued the VM at the source. If a
 * connection is lost after the commit, the source makes it again: HELLO resume with a higher epoch,
 * ANSWER, JOIN and REGION, MAP and MAP_END; then both continue from the state in the ANSWER. A
 * source that got no CONFIRMED sends HELLO confirm, and the ANSWER is enough.
 */
#ifndef IBX_MIGRATE_CHANNEL_PROTOCOL_H
#define IBX_MIGRATE_CHANNEL_PROTOCOL_H

#include "common/error.h"
#include "migrate/qemu/qemu.h"
#include "transport/transport.h"

#include <stdbool.h>
#include <stdint.h>

#define IBX_MIGRATE_MAGIC    0x6d786269u /* "ibxm" */
#define IBX_MIGRATE_VERSION  7u
#define IBX_MIGRATE_ID_BYTES 16u
#define IBX_MIGRATE_MESSAGE  65536u /* bytes of the longest message (options.message) */
/* ... which a connection must take at least: more than one segment of a page map, as bits */
#define IBX_MIGRATE_MESSAGE_LEAST   9216u
#define IBX_MIGRATE_LINKS_MAX       16u /* page connections */
#define IBX_MIGRATE_REASONS_MAX     16u /* in an ANSWER */
#define IBX_MIGRATE_HASH_BYTES      32u
#define IBX_MIGRATE_STATUS          32u             /* bytes of a status of QEMU's, with the NUL */
#define IBX_MIGRATE_DESCRIPTION_MAX (1024u * 1024u) /* bytes of a VM's description */

enum ibx_migrate_message {
    IBX_MIGRATE_HELLO = 1,
    IBX_MIGRATE_ANSWER,
    IBX_MIGRATE_JOIN,
    IBX_MIGRATE_REGION,
    IBX_MIGRATE_READY,
    IBX_MIGRATE_STATE,
    IBX_MIGRATE_MAP,
    IBX_MIGRATE_MAP_END,
    IBX_MIGRATE_STATE_END,
    IBX_MIGRATE_LOADED,
    IBX_MIGRATE_COMMIT,
    IBX_MIGRATE_RUNNING,
    IBX_MIGRATE_PROGRESS,
    IBX_MIGRATE_COMPLETE,
    IBX_MIGRATE_CONFIRM,
    IBX_MIGRATE_ABORT,
    IBX_MIGRATE_CONFIRMED,
    IBX_MIGRATE_DIGEST,
    IBX_MIGRATE_BROKEN,
    IBX_MIGRATE_DESCRIPTION,
    IBX_MIGRATE_ENDED,
    IBX_MIGRATE_ROUND,
    IBX_MIGRATE_ROUND_END,
    IBX_MIGRATE_ROUND_DONE,
    IBX_MIGRATE_HAVE,
    IBX_MIGRATE_HAVE_END,
    IBX_MIGRATE_DECIDED,
    IBX_MIGRATE_PAGES,
    IBX_MIGRATE_COMPARED,
};

enum ibx_migrate_purpose {
    IBX_PURPOSE_MOVE = 1, /* take this VM */
    IBX_PURPOSE_CHECK,    /* could you take it? the destination answers and keeps waiting */
    IBX_PURPOSE_RESUME,   /* of migration `id`: the connection was lost after the commit */
    IBX_PURPOSE_QUERY,    /* the state of migration `id`? */
    IBX_PURPOSE_CONFIRM,  /* as CONFIRM, which may have been lost; then as QUERY */
};

/* How far the destination is with a migration: in the answer to RESUME and QUERY. */
enum ibx_answer_state {
    IBX_ANSWER_NONE = 1, /* the tool there knows nothing of it, which proves nothing */
    IBX_ANSWER_WAITING,  /* everything but the commit is there: the VM does not run there yet */
    IBX_ANSWER_RUNNING,  /* the VM runs there, or will without any further message */
    IBX_ANSWER_COMPLETE, /* and has all of its pages */
    IBX_ANSWER_GIVEN_UP, /* it ended there without ever running */
    IBX_ANSWER_ENDED,    /* it ran there, and its guest has shut it down before all pages came */
};

struct ibx_migrate_block {
    char id[IBX_GUEST_ID_MAX];
    uint64_t size;      /* bytes, whole pages */
    uint64_t page_size; /* bytes, a power of two, at least 4096; in a CHECK also 0: private RAM */
    uint64_t file;      /* which file it is in, as in struct ibx_guest_block */
};

/* Whether the source keeps the VM's memory as a base to which the VM is to return. */
enum ibx_migrate_borrow {
    IBX_BORROW_NOT,
    IBX_BORROW_LAZY, /* pages are fetched only when the VM needs them */
    IBX_BORROW_FILL, /* and the others in the background */
};

struct ibx_migrate_hello {
    uint8_t purpose;                  /* enum ibx_migrate_purpose */
    uint8_t id[IBX_MIGRATE_ID_BYTES]; /* all zeros only in a CHECK */
    uint64_t epoch; /* 1, one higher with each RESUME or recovery; CHECK, QUERY, CONFIRM: any */
    /* The range of page connections from which the destination chooses, each
     * 1..IBX_MIGRATE_LINKS_MAX. CHECK, QUERY and CONFIRM: 0 too. */
    uint16_t links_least, links;
    struct ibx_qmp_version version;
    char machine[64]; /* a QUERY or CONFIRM may leave these empty */
    char uuid[40];
    char name[128];
    uint16_t block_count; /* 1..IBX_GUEST_BLOCKS_MAX; QUERY, CONFIRM: 0 too */
    struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX];
    char host[128];    /* the source's name for itself, or "" */
    bool verify;       /* it wants pages to be verified, or in a RESUME has the key for that */
    bool disks_differ; /* on purpose: the destination reports differences, and accepts */
    bool runs;         /* MOVE: the VM runs now; RESUME: it ran until the migration stopped it */
    bool warm;         /* MOVE: pages are to be fetched while the VM still runs */
    uint8_t borrow;    /* MOVE: enum ibx_migrate_borrow */
    /* MOVE of a VM that returns: the id of the migration by which it was borrowed. All zeros: it
     * does not return. */
    uint8_t base[IBX_MIGRATE_ID_BYTES];
    /* Bytes in the DESCRIPTION messages that follow at once: of ibx_description_write(), in a MOVE
     * or CHECK; 0: none follows. */
    uint32_t description_length;
    /* Not on the wire in HELLO: the text of the DESCRIPTION messages, with a NUL behind it. In a
     * HELLO that the acceptor has taken it is freed with the message. */
    char *description;
};

struct ibx_migrate_answer {
    bool accepted;
    uint8_t state;  /* enum ibx_answer_state, for RESUME and QUERY; else NONE */
    uint16_t links; /* page connections, within what a MOVE, CHECK or RESUME offers; else 0 */
    char host[128]; /* the destination's name for itself */
    uint16_t count; /* why not: 0 when, and only when, it accepts */
    char reasons[IBX_MIGRATE_REASONS_MAX][IBX_ERROR_MAX];
    bool verify;         /* pages are verified: when either side wants it */
    bool warm;           /* it fetches pages while the VM runs, as it was asked to */
    uint16_t note_count; /* what the source's operator should know, whether it accepts or not */
    char notes[IBX_MIGRATE_REASONS_MAX][IBX_ERROR_MAX];
};

struct ibx_migrate_join {
    uint8_t id[IBX_MIGRATE_ID_BYTES];
    uint64_t epoch;
    uint16_t link; /* which page connection, from 0 */
};

/* On a page connection: the destination may READ this part of a block. Parts do not overlap and
 * begin and end with pages. */
struct ibx_migrate_region {
    uint16_t block;
    uint64_t offset, length;  /* bytes in the block */
    struct ibx_remote remote; /* of this length */
};

struct ibx_migrate_map_end {
    uint64_t pages;                       /* of all blocks */
    uint64_t data_pages;                  /* of them, those that have to be fetched */
    uint32_t regions;                     /* REGION messages on each page connection */
    uint8_t hash[IBX_MIGRATE_HASH_BYTES]; /* ibx_page_map_hash */
};

/* What the destination does with the pages that the ROUND messages before it have named. */
enum ibx_round_kind {
    IBX_ROUND_FETCH = 1, /* drops those that it has, and fetches all */
    IBX_ROUND_DROP,      /* drops those that it has: the VM is about to stop */
    IBX_ROUND_LAST,      /* as the next kind: the VM has stopped */
    IBX_ROUND_STALE,     /* those that it has come again, or are zero: the VM is about to stop */
};

struct ibx_migrate_round {
    uint32_t number;  /* from 1 on */
    uint8_t kind;     /* enum ibx_round_kind */
    uint64_t pages;   /* pages that were named */
    uint32_t regions; /* REGION messages on each page connection, so far */
};

struct ibx_migrate_round_done {
    uint32_t number;
    uint64_t bytes; /* bytes that were fetched */
    uint64_t ns;    /* time that this took */
};

struct ibx_migrate_commit {
    uint64_t epoch;
    bool runs; /* the VM ran until the migration stopped it: it is to run there */
};

struct ibx_migrate_progress {
    char status[IBX_MIGRATE_STATUS]; /* as in RUNNING, lately; "": not known */
    uint64_t pages, present;         /* all; those at the destination */
    uint64_t bytes;                  /* fetched */
    uint64_t faults, fault_p50_ns, fault_p99_ns, fault_max_ns;
};

/* The totals on which both sides agree before the source may forget the VM. */
struct ibx_migrate_totals {
    uint64_t pages, zero_pages, fetched_pages, discarded_pages; /* the last three make the first */
    uint8_t hash[IBX_MIGRATE_HASH_BYTES]; /* of the map by which pages were fetched */
    struct ibx_migrate_progress progress; /* at the end */
};

struct ibx_bytes {
    const uint8_t *bytes; /* decoded: they point into what was decoded */
    size_t length;
};

/* Digests of ranges of pages that have arrived (pages/digest.h). */
struct ibx_migrate_digest {
    uint64_t first; /* page of the first range */
    struct ibx_bytes entries;
};
/* The bytes of pages that follow each other. */
struct ibx_migrate_pages {
    uint64_t first;
    struct ibx_bytes bytes;
};
/* The reason of a BROKEN begins with this if it answers a BROKEN and the VM could not be paused;
 * why follows. */
#define IBX_MIGRATE_NOT_PAUSED "not paused: "
/* ... and with this if it says that the VM runs at the source again: by whom follows. */
#define IBX_MIGRATE_TAKEN_BACK "the VM was taken back at the source"

#define IBX_MIGRATE_DIGEST_PAGES 512u /* a range */
#define IBX_MIGRATE_DIGEST_BYTES 16u
#define IBX_MIGRATE_DIGEST_ENTRY (IBX_MIGRATE_DIGEST_PAGES / 8 + IBX_MIGRATE_DIGEST_BYTES)

/* Any message. A decoded HELLO or ANSWER is on the heap and the message's own, for
 * ibx_migrate_message_free(); an encoder only reads it. */
struct ibx_migrate_any {
    enum ibx_migrate_message type;
    union {
        const struct ibx_migrate_hello *hello;
        const struct ibx_migrate_answer *answer;
        struct ibx_migrate_join join;
        struct ibx_migrate_region region;
        struct ibx_bytes state, map; /* map, ROUND and HAVE: of ibx_page_map_decode */
        struct ibx_migrate_round round;
        struct ibx_migrate_round_done round_done;
        struct ibx_bytes description;
        struct ibx_migrate_map_end map_end; /* and HAVE_END */
        uint64_t state_bytes;               /* STATE_END: of all STATE messages */
        struct ibx_migrate_commit commit;
        uint64_t epoch;    /* CONFIRM, DECIDED */
        uint64_t compared; /* COMPARED: how many DIGESTs of this link have been compared */
        /* RUNNING: QEMU's status there, "running", "paused" or another. ENDED: QEMU's reason for
         * its end, "guest-shutdown". */
        char status[IBX_MIGRATE_STATUS];
        struct ibx_migrate_progress progress;
        struct ibx_migrate_totals totals;
        struct ibx_migrate_digest digest;
        struct ibx_migrate_pages pages;
        char reason[IBX_ERROR_MAX]; /* ABORT, BROKEN */
    } is;
};

/* Decodes one whole message: every field within its range, nothing left over, text sanitized.
 * -EPROTO names what is wrong; -EPROTONOSUPPORT: HELLO or JOIN of another version; -ENOMEM. */
int ibx_migrate_decode(const void *data, size_t length, struct ibx_migrate_any *message,
                       struct ibx_error *err);
/* Frees what a decoded message of any type owns. May be repeated. */
void ibx_migrate_message_free(struct ibx_migrate_any *message);
/* Encodes into `out`; returns the length, -EMSGSIZE, or -EINVAL for what the other side would not
 * decode. STATE, MAP and DESCRIPTION are the u8 type and the bytes, of which there must be at least
 * one. */
ssize_t ibx_migrate_encode(const struct ibx_migrate_any *message, void *out, size_t size);
const char *ibx_migrate_message_name(enum ibx_migrate_message type);
const char *ibx_answer_state_name(enum ibx_answer_state state);

/* This host's name for itself; never empty. */
void ibx_migrate_host(char *host, size_t size);
/* Fill in what HELLO says of a VM: ibx_migrate_describe_blocks() only its blocks, and returns how
 * many there are. */
uint16_t ibx_migrate_describe_blocks(struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX],
                                     const struct ibx_guest_ram *ram);
void ibx_migrate_hello_describe(struct ibx_migrate_hello *hello, const struct ibx_guest_ram *ram);
/* The reverse: fills in what ibx_preflight_pair() compares. The caller calls ibx_guest_ram_fini().
 * -ENOMEM. */
int ibx_migrate_hello_ram(const struct ibx_migrate_hello *hello, struct ibx_guest_ram *ram);

#endif
