/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Claiming a VM that the watchdog of a killed tool may still have. */
#include "migrate/common/common.h"
#include "migrate/common/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>

int ibx_vm_claim_when_free(pid_t qemu, int *claim, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_LOCK_MS);
    int rc;
    while ((rc = ibx_vm_claim(qemu, claim, err)) == -EBUSY && ibx_now_ns() < deadline)
        poll(NULL, 0, MIGRATION_LOCK_LOOK_MS);
    return rc;
}

/* That watchdog needs QEMU's monitor, which serves one client, and changes the VM and its record.
 * So this tool lets go of the monitor meanwhile, and then looks again. */
static int find_again(const struct ibx_vm_search *search, pid_t qemu, int *claim,
                      struct ibx_error *claimed, struct ibx_error *err)
{
    pid_t found = 0;
    search->lose(search->context);
    if (!ibx_vm_claim_when_free(qemu, claim, claimed))
        *claimed = (struct ibx_error){0}; /* of an earlier try */
    int rc = search->find(search->context, &found, err);
    return rc || found == qemu
               ? rc
               : ibx_error_set(err, -ESRCH,
                               "the QEMU of process %d has ended meanwhile, and %s is that of "
                               "process %d: begin again",
                               (int)qemu, search->qmp, (int)found);
}

int ibx_vm_find_and_claim(const struct ibx_vm_search *search, int *claim, struct ibx_error *claimed,
                          struct ibx_error *err)
{
    pid_t qemu = 0;
    *claimed = (struct ibx_error){0};
    int rc = search->find(search->context, &qemu, err);
    return rc || !ibx_vm_claim(qemu, claim, claimed)
               ? rc
               : find_again(search, qemu, claim, claimed, err);
}
