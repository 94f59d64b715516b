/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What happens when the peer dies, stops or hangs.
 *
 * If it dies, the core sees its handshake socket close; memory that was mapped from it stays
 * until this side unmaps it. If it stops, this side withdraws its requests and copies alone, if
 * it can (copy.c). If it hangs in the middle of a copy, only a deregistration waits for that. */
#include "transport/shm/shm.h"

#include "common/clock.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#define GRACE_MS 1000u /* for a copy that the kernel has begun: far more than it takes */

void ibx_shm_break(struct shm *shm, int status, const char *reason)
{
    if (shm->broken)
        return;
    shm->broken = status;
    snprintf(shm->broken_reason, sizeof(shm->broken_reason), "%s", reason);
    if (shm->state.now == SHM_LIVE)
        ibx_state_move(&shm->state, SHM_BROKEN);
}

/* Makes the nonce, in a mapping of its own, which the kernel does not merge with its neighbours: so
 * it can be made inaccessible even in a process that has as many mappings as it may have. */
int ibx_shm_nonce_make(struct shm *shm, struct ibx_error *err)
{
    void *page =
        mmap(NULL, ibx_shm_page(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return ibx_error_set(err, -errno, "no memory for a page: %s", strerror(errno));
    shm->nonce = page;
    return ibx_random(shm->nonce, IBX_SHM_NONCE, err);
}

/* A revoked page stays mapped: a copy that was stopped earlier might otherwise succeed in whatever
 * is mapped there next. */
void ibx_shm_nonce_free(struct shm *shm)
{
    if (shm->nonce && !shm->nonce_revoked)
        munmap(shm->nonce, ibx_shm_page());
}

/* Whether the peer stops copying under this key within `ms` milliseconds, or is gone. */
static bool await_copy(struct shm *shm, uint32_t index, unsigned ms)
{
    uint64_t deadline = 0;
    struct pollfd end = {.fd = shm->control, .events = POLLRDHUP};
    for (unsigned i = 1; atomic_load(&shm->theirs.control->copying) == index + 1; i++) {
        if (i % 64)
            continue;
        if (!deadline)
            deadline = ibx_deadline_in_ms(ms);
        if (shm->gone || (poll(&end, 1, 0) > 0 && end.revents & (POLLRDHUP | POLLHUP | POLLERR)))
            return true;
        if (ibx_now_ns() >= deadline)
            return false;
        sched_yield();
    }
    return true;
}

/*
 * Takes the key back and waits until the peer is not in the middle of a copy under it, which lasts
 * for one chunk. A peer that takes longer was stopped, or is hostile, and the connection ends. But
 * it may be continued much later, and then makes the system call before which it was stopped. So
 * first the nonce's page, which that call reads or writes before anything else, is made
 * inaccessible. A copy that has passed it is inside the kernel, where no signal stops it, and gets
 * the time to finish. A copy through the peer's mapping of an arena goes on, into memory that is no
 * longer used (ibx_shm_mr_register()).
 */
void ibx_shm_key_revoke(struct shm *shm, uint32_t index)
{
    atomic_store(&shm->mine.regions[index].key, 0);
    if (shm->nonce_revoked || await_copy(shm, index, ibx_link_options(shm->link)->timeout_ms))
        return;
    mprotect(shm->nonce, ibx_shm_page(), PROT_NONE);
    shm->nonce_revoked = true;
    ibx_shm_break(shm, -ETIMEDOUT, "the peer hangs in the middle of a copy");
    await_copy(shm, index, GRACE_MS);
}
