/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Guest RAM as the source has it mapped, to serve its pages and to compare them. It has several
 * holders, in any threads: a verifier may compare pages while their page server closes. */
#ifndef IBX_MIGRATE_PAGES_RAM_VIEW_H
#define IBX_MIGRATE_PAGES_RAM_VIEW_H

#include "common/error.h"
#include "migrate/qemu/qemu.h"

struct ibx_ram_view;

/* Maps all blocks; the caller is the first holder. `pins`: the pages will be pinned, for which some
 * kernels want a writable mapping (EFAULT otherwise). -EINVAL: a block is not shared. */
int ibx_ram_view_open(const struct ibx_guest_ram *ram, bool pins, struct ibx_ram_view **view,
                      struct ibx_error *err);
/* One more holder. NULL stays NULL. */
struct ibx_ram_view *ibx_ram_view_hold(struct ibx_ram_view *view);
/* The last one unmaps it. Accepts NULL. */
void ibx_ram_view_drop(struct ibx_ram_view *view);
/* The byte at `offset` of a block; its page may be a hole, which a touch would fill. */
uint8_t *ibx_ram_view_bytes(const struct ibx_ram_view *view, unsigned block, uint64_t offset);
/* Finds bytes of a block, `from`, that hold data: in the view, as soon as the kernel says that they
 * can be read there without a signal. Else, or without a view, copies them to `buffer` by pread(2),
 * which fills no hole, and says why it cannot. A file that is cut short right after the kernel has
 * been asked still means SIGBUS. */
int ibx_ram_view_find(const struct ibx_ram_view *view, const struct ibx_guest_block *from,
                      unsigned block, uint64_t at, size_t length, uint8_t *buffer,
                      const uint8_t **found, struct ibx_error *err);

#endif
