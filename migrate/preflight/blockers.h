/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Why a VM cannot be moved, said before anything is touched: each reason is one sentence with its
 * remedy. And the migration capabilities that a move needs, set and put back.
 *
 * The functions that return an int fail only when QEMU could not be asked; what they find goes to
 * `refusals`. A move may begin when refusals->count is 0.
 */
#ifndef IBX_MIGRATE_PREFLIGHT_BLOCKERS_H
#define IBX_MIGRATE_PREFLIGHT_BLOCKERS_H

#include "migrate/qemu/guest_ram.h"

#define IBX_PREFLIGHT_MAX 24u

struct ibx_blockers {
    size_t count; /* more than IBX_PREFLIGHT_MAX are counted, not kept */
    char sentences[IBX_PREFLIGHT_MAX][IBX_ERROR_MAX];
};

enum ibx_migrate_role { IBX_MIGRATE_SOURCE, IBX_MIGRATE_DESTINATION };

/* Everything below for one side: what QEMU, its RAM, its devices and this host allow. */
int ibx_preflight_side(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *refusals,
                       uint64_t deadline_ns, struct ibx_error *err);
/* What the two sides must have in common: machine type, memory backends, sizes, page sizes, UUID.
 * Looks at machine, uuid, count and the blocks' id, size and page_size only. */
void ibx_preflight_pair(const struct ibx_guest_ram *source, const struct ibx_guest_ram *destination,
                        struct ibx_blockers *refusals);

/* RAM that is private, of a kind that QEMU would send itself, or not of whole pages. */
void ibx_preflight_ram(const struct ibx_guest_ram *ram, struct ibx_blockers *refusals);
/* Devices that reach guest RAM past QEMU's page tables: VFIO, vhost-user, vhost-vdpa. */
int ibx_preflight_devices(struct ibx_qmp *qmp, struct ibx_blockers *refusals, uint64_t deadline_ns,
                          struct ibx_error *err);
/* A QEMU that is migrating, has migrated, waits for another source or cannot migrate at all. */
int ibx_preflight_state(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                        enum ibx_migrate_role role, struct ibx_blockers *refusals,
                        uint64_t deadline_ns, struct ibx_error *err);
/* Destination: rights to trace QEMU and to make a userfaultfd. */
void ibx_preflight_permissions(const struct ibx_guest_ram *ram, struct ibx_blockers *refusals);
/* Destination: file systems that cannot hold the RAM. */
void ibx_preflight_space(const struct ibx_guest_ram *ram, struct ibx_blockers *refusals);

/* Bytes that the source pins for page connections on a fabric that pins: pieces that hold data. */
int ibx_preflight_locked_bytes(const struct ibx_guest_ram *ram, uint64_t *bytes,
                               struct ibx_error *err);
/* When `who`, the fabric, is to pin so many bytes in all, and this process may not lock them. */
void ibx_preflight_locked(const char *who, uint64_t bytes, struct ibx_blockers *refusals);

/* Adds a sentence. */
void ibx_preflight(struct ibx_blockers *refusals, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets x-ignore-shared and events, and unsets what does not go with them or costs time. `before`
 * gets what ibx_capabilities_restore needs (a reference). -EOPNOTSUPP: this QEMU lacks one of them.
 */
int ibx_capabilities_set(struct ibx_qmp *qmp, enum ibx_migrate_role role, json_t **before,
                         uint64_t deadline_ns, struct ibx_error *err);
/* Puts back what was changed; does not consume `before`. */
int ibx_capabilities_restore(struct ibx_qmp *qmp, json_t *before, uint64_t deadline_ns,
                             struct ibx_error *err);

#endif
