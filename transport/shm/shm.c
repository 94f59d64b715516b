/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The provider's calls, opening and closing. */
#include "transport/shm/shm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* A chunk is copied without interruption, so this bounds how long urgent work waits: about 25 us.
 */
#define CHUNK_DEFAULT (256u << 10)
#define DEPTH_DEFAULT 16u

/* Measured with ib-bw: up to here messages, which stay in cache, are faster than the two copies of
 * a request; from 128 KiB on there is no difference. */
#define RENDEZVOUS_BYTES (64u << 10)

static const struct ibx_state shm_states[] = {
    [SHM_NEW] = {"new", IBX_TO(SHM_LISTENING) | IBX_TO(SHM_JOINING) | IBX_TO(SHM_ABORTED),
                 IBX_STATE_INITIAL},
    [SHM_LISTENING] = {"listening", IBX_TO(SHM_LIVE) | IBX_TO(SHM_ABORTED), 0},
    [SHM_JOINING] = {"joining", IBX_TO(SHM_LIVE) | IBX_TO(SHM_ABORTED), 0},
    [SHM_LIVE] = {"live", IBX_TO(SHM_BROKEN) | IBX_TO(SHM_ABORTED), 0},
    [SHM_BROKEN] = {"broken", IBX_TO(SHM_ABORTED), 0},
    [SHM_ABORTED] = {"aborted", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table shm_table = IBX_STATE_TABLE("shm connection", shm_states);

static int probe(const struct ibx_options *options, char *description, size_t size,
                 struct ibx_error *err)
{
    int fd = ibx_shm_memfd("ibx-probe", 4096);
    if (fd < 0)
        return ibx_error_set(err, fd, "no shared memory on this host: memfd_create: %s",
                             strerror(-fd));
    close(fd);
    bool shared;
    fd = options->shm_dir[0] ? ibx_shm_directory_open(options->shm_dir, &shared, err) : -1;
    if (options->shm_dir[0] && fd < 0)
        return fd;
    if (fd >= 0)
        close(fd);
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    bool direct = process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
    snprintf(description, size, "memfd, %s%s%s", options->shm_dir[0] ? "sockets in " : "",
             options->shm_dir[0] ? options->shm_dir : "abstract sockets",
             direct ? ", process_vm_readv" : "; process_vm_readv is forbidden here");
    return 0;
}

static int open_endpoint(struct ibx_link *link, void **endpoint, struct ibx_error *err)
{
    struct shm *shm = calloc(1, sizeof(*shm));
    if (!shm)
        return ibx_error_set(err, -ENOMEM, "no memory for a shm connection");
    ibx_state_begin(&shm->state, &shm_table, SHM_NEW);
    shm->link = link;
    shm->role = ibx_link_role(link);
    shm->listener = shm->control = -1;
    ibx_shm_place_init(&shm->place);
    for (int i = 0; i < SHM_ARENA_KINDS; i++)
        shm->arenas[i].fd = -1;
    ibx_shm_copy_init(shm);
    *endpoint = shm;
    return 0;
}

/* Cuts the mapped segment into its parts. */
static struct shm_half half_at(const struct shm_geometry *geometry, uint8_t *base)
{
    return (struct shm_half){
        .control = (void *)base,
        .commands = (void *)(base + sizeof(struct shm_control)),
        .regions = (void *)(base + geometry->regions_at),
        .messages = base + geometry->messages_at,
        .bounce = base + geometry->bounce_at,
    };
}

static int finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                  struct ibx_error *err)
{
    (void)answer;
    struct shm *shm = endpoint;
    int rc = ibx_shm_setup(shm, deadline_ns, err);
    if (rc)
        return rc;
    ibx_shm_direct_probe(shm);
    uint8_t *base = shm->segment;
    struct shm_half halves[2] = {half_at(&shm->geometry, base),
                                 half_at(&shm->geometry, base + shm->geometry.half)};
    shm->mine = halves[shm->role == IBX_ROLE_CLIENT];
    shm->theirs = halves[shm->role == IBX_ROLE_SERVER];
    if (ibx_shm_ring_init(shm))
        return ibx_error_set(err, -ENOMEM, "no memory for %u messages of %u bytes",
                             shm->geometry.slots, shm->geometry.message);
    rc = ibx_link_watch(shm->link, shm->control);
    if (rc)
        return ibx_error_set(err, rc, "cannot watch the shm socket: %s", strerror(-rc));
    return ibx_state_move(&shm->state, SHM_LIVE);
}

static void query(void *endpoint, struct ibx_caps *caps, char *description, size_t size)
{
    const struct shm *shm = endpoint;
    const struct ibx_options *options = ibx_link_options(shm->link);
    *caps = (struct ibx_caps){
        .message_max = shm->geometry.message,
        .chunk = options->chunk ? options->chunk : CHUNK_DEFAULT,
        .depth = options->depth ? options->depth : DEPTH_DEFAULT,
        .lanes = 1,
        .rendezvous = RENDEZVOUS_BYTES,
        .register_free = true,
        .shares = true,
        .peer_drives = !shm->direct,
        .remote_copy = shm->direct,
    };
    if (shm->direct)
        snprintf(description, size,
                 "shm, copied by both sides, or by one (process_vm_readv) while the other is busy");
    else
        snprintf(description, size, "shm, copied by both sides (never by one: %s)",
                 shm->direct_reason);
}

static int progress(void *endpoint)
{
    struct shm *shm = endpoint;
    int made = ibx_shm_ring_progress(shm);
    if (shm->state.now != SHM_ABORTED)
        made += ibx_shm_copy_progress(shm);
    if (shm->state.now == SHM_BROKEN) {
        shm->link->up->lost(shm->link, shm->broken, shm->broken_reason);
        made++;
    }
    return made;
}

static void abort_endpoint(void *endpoint)
{
    struct shm *shm = endpoint;
    ibx_state_move(&shm->state, SHM_ABORTED);
    ibx_shm_copy_abort(shm);
}

static void close_endpoint(void *endpoint)
{
    struct shm *shm = endpoint;
    ibx_shm_memory_fini(shm);
    ibx_shm_ring_fini(shm);
    ibx_shm_setup_undo(shm);
    free(shm);
}

const struct ibx_provider ibx_provider_shm = {
    .name = "shm",
    .probe = probe,
    .message_memory = ibx_shm_message_memory,
    .open = open_endpoint,
    .offer = ibx_shm_offer,
    .join = ibx_shm_join,
    .finish = finish,
    .query = query,
    .mr_register = ibx_shm_mr_register,
    .mr_deregister = ibx_shm_mr_deregister,
    .remote_hold = ibx_shm_remote_hold,
    .remote_release = ibx_shm_remote_release,
    .remote_copy = ibx_shm_remote_copy,
    .shared_give = ibx_shm_shared_give,
    .shared_of_peer = ibx_shm_shared_of_peer,
    .rdma = ibx_shm_rdma,
    .send = ibx_shm_send,
    .release = ibx_shm_release,
    .progress = progress,
    .look = ibx_shm_look,
    .arm = ibx_shm_arm,
    .abort = abort_endpoint,
    .close = close_endpoint,
};
