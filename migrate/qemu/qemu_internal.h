/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Between the files of this folder. */
#ifndef IBX_MIGRATE_QEMU_QEMU_INTERNAL_H
#define IBX_MIGRATE_QEMU_QEMU_INTERNAL_H

#include "migrate/qemu/qemu.h"

/* Reads a number in /proc/PID/status, in base `base`; `key` is for instance "Seccomp:". */
int ibx_process_status(pid_t pid, const char *key, int base, unsigned long long *value,
                       struct ibx_error *err);

/* Consecutive pages of one file in QEMU's address space. The kernel may have several mappings for
 * them; the first one, up to `part_end`, names the file in map_files. */
struct guest_mapping {
    uint64_t start, end, part_end, offset;
    uint64_t dev, ino;
    char *path; /* at most PATH_MAX - 1 bytes of it */
};

struct guest_mappings {
    struct guest_mapping *items;
    size_t count;
};

/* Reads all shared writable file mappings of the process. */
int ibx_guest_mappings_read(pid_t pid, struct guest_mappings *mappings, struct ibx_error *err);
void ibx_guest_mappings_fini(struct guest_mappings *mappings);

/* Finds the mapping of a shared block and sets the block's address and file. -ENOTUNIQ: several
 * mappings fit; pass the block's `address` to decide (0: it is not known). */
int ibx_guest_block_locate(pid_t pid, const struct guest_mappings *mappings, uint64_t address,
                           struct ibx_guest_block *block, const struct guest_mapping **where,
                           struct ibx_error *err);
/* struct ibx_guest_block's `file`: a hash of the file's numbers and of this host's boot. */
uint64_t ibx_guest_file_hash(uint64_t dev, uint64_t ino);
/* The page size of an open file. */
int ibx_guest_file_page_size(int fd, uint64_t *bytes);

/* Finds the mapping of a block whose address, offset and file are known. -ESTALE: it is not there.
 */
int ibx_guest_block_relocate(pid_t pid, const struct guest_mappings *mappings,
                             struct ibx_guest_block *block, const struct guest_mapping **where,
                             struct ibx_error *err);
int ibx_guest_block_open(pid_t pid, const struct guest_mapping *where, bool writable,
                         struct ibx_guest_block *block, struct ibx_error *err);

#endif
