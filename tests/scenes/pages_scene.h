/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A guest's RAM with data and holes, exposed by this process to itself over a real fabric,
 * and the memory that the fault engine fills from it. */
#ifndef IBX_TESTS_PAGES_SCENE_H
#define IBX_TESTS_PAGES_SCENE_H

#include "migrate/pages/pages.h"
#include "transport/fault_injection/fault_injection.h"

#include <pthread.h>

#define SMALL     4096u
#define BLOCKS    2u
#define LINKS_MAX 4u
#define TOUCHERS  3u

/* ------------------------------------------------------------- connections */

/* Of all scenes from now on: "tcp", "shm", "ofi", "verbs"; and the address of this host to listen
 * at (NULL: 127.0.0.1; verbs needs one that is reached over the wire). */
void pages_use(const char *provider, const char *host);
/* Of the destination's end of a connection made from now on; NULL without. */
extern struct ibx_injected_faults *pages_faults;

/* Accepts, establishes and takes the JOIN of `count` connections, in a thread. */
struct acceptor {
    struct ibx_listener *listener;
    const struct ibx_migrate_block *blocks;
    unsigned count;
    struct ibx_page_reader *readers[LINKS_MAX];
    unsigned joined;
    _Atomic bool over;
    pthread_t thread;
};
struct ibx_listener *pages_listen(void);
void acceptor_start(struct acceptor *a, struct ibx_listener *listener,
                    const struct ibx_migrate_block *blocks, unsigned count);
void acceptor_join(struct acceptor *a);
struct ibx_options pages_options(void);

/* ------------------------------------------------------------------- the RAM */

struct scene {
    uint32_t page_size; /* of the second block */
    struct ibx_guest_block blocks[BLOCKS];
    struct ibx_guest_ram ram;
    struct ibx_migrate_block described[BLOCKS];
    struct ibx_page_map map;
    struct ibx_listener *listener;
    unsigned links;
    struct ibx_page_server *pages;
    struct ibx_page_reader *readers[LINKS_MAX];
    struct ibx_fault_reader as[LINKS_MAX];
    uint32_t regions; /* a connection */

    uint8_t *memory, *last, *alias; /* the destination's; last: second block; alias: minor mode */
    size_t bytes;
    int file, uffd;
    struct ibx_fault_range ranges[BLOCKS];
    struct ibx_fault_config config;
    struct ibx_fault *engine;
};

/* With 2 MiB pages in the second block when `huge`; false: there are none on this host. */
bool scene_make(struct scene *s, unsigned links, bool huge);
/* Connects the two sides. */
void scene_connect(struct scene *s);
/* A source that is played by hand, with a JOIN sent; the other side is readers[0]. */
struct ibx_conn *scene_connect_raw(struct scene *s);
void raw_send(struct ibx_conn *conn, const struct ibx_migrate_any *message);
/* Exposes what the map has, until both sides know of it. */
void scene_expose(struct scene *s);
/* The destination's memory, in place when `minor`; then the engine, in HELD, with zeros marked. */
void scene_fill(struct scene *s, bool minor);
/* Buffers and aliases of new readers. */
void scene_arm(struct scene *s);
void scene_disconnect(struct scene *s);
void scene_end(struct scene *s);
/* Pages of the source's files that exist. */
uint64_t scene_allocated(const struct scene *s);
/* Every byte of data, and some of the zeros. */
void scene_check(const struct scene *s);

/* Whether these are the bytes of a page (of both blocks). */
bool bytes_right(const struct scene *s, uint64_t page, const uint8_t *bytes);
/* Writes to a page of the source and marks it in the map. */
void page_write(struct scene *s, uint64_t page);

/* ------------------------------------------------------------------ touching */

struct toucher {
    pthread_t thread;
    const struct scene *scene;
    uint64_t start, step; /* pages */
    _Atomic unsigned touched, wrong;
};
void touchers_start(struct toucher *t, const struct scene *s);
void touchers_end(struct toucher *t);

/* Waits for COMPLETE or STOPPED (60 s at most), then returns the state. */
enum ibx_fault_state scene_settled(struct scene *s);
/* Waits (60 s at most) until so many bytes were fetched; until so many faults wait. */
bool scene_fetched(struct scene *s, uint64_t bytes);
bool scene_waits(struct scene *s, uint64_t faults);

#endif
