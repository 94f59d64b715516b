/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The guest RAM of a running QEMU, seen from outside: which memory backends it has (QMP), where
 * they lie in its address space and in which file (/proc), and which of their pages were ever
 * written.
 *
 * Every memory-backend object counts, hot-plugged ones too. Small RAM blocks of devices and
 * firmware are no backends: QEMU sends them itself, with the device state.
 */
#ifndef IBX_MIGRATE_QEMU_GUEST_RAM_H
#define IBX_MIGRATE_QEMU_GUEST_RAM_H

#include "migrate/qemu/qmp.h"

#include <limits.h>
#include <stddef.h>

#define IBX_GUEST_BLOCKS_MAX 64u
#define IBX_GUEST_ID_MAX     128u

struct ibx_guest_block {
    char id[IBX_GUEST_ID_MAX]; /* of the memory backend: the same on both sides of a move */
    char type[48];       /* memory-backend-file, memory-backend-memfd, memory-backend-ram, ... */
    char path[PATH_MAX]; /* mem-path as QEMU knows it; "" for other types than file */
    bool shared;         /* share=on; what follows is set for shared blocks only */
    bool named;          /* `path` leads to this very file */
    bool discards;       /* discard-data=on: QEMU empties the file when it ends */
    uint64_t size;       /* bytes */
    uint64_t page_size;  /* bytes: 4096, or the huge page's */
    uint64_t offset;     /* of the block in its file, bytes */
    uint64_t address;    /* in QEMU's address space */
    uint64_t dev, ino;   /* of the file */
    uint64_t file;       /* the same for this file only, among those of all hosts; 0: not known */
    int fd;              /* the file, opened for us; -1 when not shared */
};

struct ibx_guest_ram {
    pid_t pid;
    struct ibx_qmp_version version;
    char machine[64];               /* type, such as pc-q35-7.2 */
    char uuid[40];                  /* all zeros when QEMU was not given one */
    char name[128];                 /* -name, "" without */
    char status[32];                /* run state: running, paused, inmigrate, ... */
    uint64_t machine_bytes;         /* what the machine says it has: base and plugged memory */
    uint64_t bytes;                 /* sum of all blocks */
    struct ibx_guest_block *blocks; /* by id */
    size_t count;
};

/* Finds all of it. `pid` 0: the process at the other end of the QMP socket. `writable` opens the
 * files for writing too, as the destination needs it (and RDMA registration of the source on some
 * kernels). Private blocks are listed, not opened: ibx_preflight says why they cannot be moved.
 * -EACCES, -EPERM: missing permission on the process; -ENOENT, -ESRCH: not the process that holds
 * this RAM. `ram` is set on success only and ended by fini. */
int ibx_guest_ram_find(struct ibx_qmp *qmp, pid_t pid, bool writable, struct ibx_guest_ram *ram,
                       uint64_t deadline_ns, struct ibx_error *err);
/* The same without QMP, for who knows the layout: pid and of each block id, size, page_size,
 * offset, address, dev and ino are given, and the files are opened (fd -1 before, to be ended by
 * fini also after a failure). -ESTALE: the process has something else there. */
int ibx_guest_ram_again(struct ibx_guest_ram *ram, bool writable, struct ibx_error *err);
/* Closes the files. */
void ibx_guest_ram_fini(struct ibx_guest_ram *ram);

const struct ibx_guest_block *ibx_guest_ram_block(const struct ibx_guest_ram *ram, const char *id);

/* Sets a bit in `bits` (one a page of the block, lowest first, (pages + 63) / 64 words) for every
 * page that may hold something else than zeros, clears the others and counts the set ones. Reads no
 * page, so it allocates none. Exact for the moment of the call: while the VM runs, it is a hint. */
int ibx_guest_block_written(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                            uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* The same for every page that QEMU itself has mapped or that was swapped out from there. Pages
 * that others have put in the file do not count, nor those that were only unmapped. */
int ibx_guest_block_mapped(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                           uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* ibx_guest_block_written(), given an earlier answer in `bits` and `count`: looks only into what
 * were holes then, since walking through written memory takes the kernel 15 ms a GiB. What has been
 * discarded since keeps its bit. */
int ibx_guest_block_written_since(const struct ibx_guest_ram *ram,
                                  const struct ibx_guest_block *block, uint64_t *bits,
                                  uint64_t *count, struct ibx_error *err);

#endif
