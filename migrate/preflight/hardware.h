/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What QEMU shows of a VM's hardware, as far as both sides of a move must have the same: as a text,
 * so that one side can send it to the other. What only the host sees (which tap, file or monitor a
 * device has behind it) is not in it.
 *
 * One piece behind the other, each ended by ';', in any order:
 *
 *   cpus=N   cpu=TYPE   cpuid LEAF.SUB REG=HEX   disk=BYTES
 *   p TYPE @ PLACE   a device on a bus where devices are plugged in (PCI, USB, SCSI, ...)
 *   b TYPE @ PLACE   any other, of the board: only QEMUs of one version have the same
 */
#ifndef IBX_MIGRATE_PREFLIGHT_HARDWARE_H
#define IBX_MIGRATE_PREFLIGHT_HARDWARE_H

#include "migrate/channel/protocol.h"
#include "migrate/preflight/blockers.h"

#define IBX_HARDWARE_MAX IBX_MIGRATE_HARDWARE /* bytes with the NUL */

/* "" when there is more than fits; what this QEMU does not tell is left out. */
int ibx_hardware_describe(struct ibx_qmp *qmp, char text[IBX_HARDWARE_MAX], uint64_t deadline_ns,
                          struct ibx_error *err);
/* The devices of QEMU's "info qtree", for the above: false when they do not fit. */
bool ibx_hardware_devices(const char *qtree, char *text, size_t size);

/* What is not the same in a way that QEMU's device state would stumble on, or the guest: a sentence
 * each, and one for all missing and one for all surplus devices. `same_version`: of both QEMUs.
 * Nothing when either text is "". The source's is of a peer: any text. */
void ibx_preflight_hardware(const char *source, const char *destination, bool same_version,
                            struct ibx_blockers *refusals);

#endif
