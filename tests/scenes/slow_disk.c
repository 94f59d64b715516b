/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/slow_disk.h"

#include "tests/moves/guest/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SIZE (DISK_PARTS * DISK_BYTES)
#define ROOM ((1u << 20) + 4096u) /* of a request or an answer */

static pthread_t thread;
static int device = -1;
static atomic_uint delay_ms;

static void attributes(struct fuse_attr *attr)
{
    *attr = (struct fuse_attr){.ino = FUSE_ROOT_ID,
                               .size = SIZE,
                               .blocks = SIZE / 512,
                               .mode = S_IFREG | 0600,
                               .nlink = 1,
                               .blksize = 4096};
}

/* The answer's body; its length, or a negative errno. */
static int answer(const struct fuse_in_header *in, void *body)
{
    const void *with = in + 1;
    memset(body, 0, 256);
    switch (in->opcode) {
    case FUSE_INIT: {
        const struct fuse_init_in *init = with;
        *(struct fuse_init_out *)body = (struct fuse_init_out){
            .major = FUSE_KERNEL_VERSION,
            .minor =
                init->minor < FUSE_KERNEL_MINOR_VERSION ? init->minor : FUSE_KERNEL_MINOR_VERSION,
            .max_readahead = init->max_readahead,
            .max_write = 4096,
            .max_background = 16,
            .time_gran = 1};
        return (int)sizeof(struct fuse_init_out);
    }
    case FUSE_GETATTR:
        attributes(&((struct fuse_attr_out *)body)->attr);
        return (int)sizeof(struct fuse_attr_out);
    case FUSE_OPEN:
        return (int)sizeof(struct fuse_open_out);
    case FUSE_STATFS:
        return (int)sizeof(struct fuse_statfs_out);
    case FUSE_RELEASE:
    case FUSE_FLUSH:
    case FUSE_FSYNC:
        return 0;
    case FUSE_READ: {
        const struct fuse_read_in *read = with;
        const unsigned ms = delay_ms;
        const uint64_t end = read->offset + read->size < SIZE ? read->offset + read->size : SIZE;
        if (ms && read->size >= DISK_BYTES) /* that of the guest, not of QEMU or a firmware */
            nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
        uint32_t *words = body;
        for (uint64_t at = read->offset; at < end; at += 4)
            *words++ = disk_word((uint32_t)(at / 4));
        return end > read->offset ? (int)(end - read->offset) : 0;
    }
    default:
        return -ENOSYS;
    }
}

static void *serve(void *unused)
{
    char *request = malloc(ROOM), *reply = malloc(ROOM);
    (void)unused;
    while (request && reply) {
        const ssize_t n = read(device, request, ROOM);
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (n < (ssize_t)sizeof(struct fuse_in_header))
            break; /* unmounted */
        const struct fuse_in_header *in = (const void *)request;
        struct fuse_out_header *out = (void *)reply;
        if (in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET ||
            in->opcode == FUSE_INTERRUPT)
            continue;
        const int rc = answer(in, out + 1);
        *out = (struct fuse_out_header){.len = (uint32_t)(sizeof(*out) + (rc > 0 ? (size_t)rc : 0)),
                                        .error = rc < 0 ? rc : 0,
                                        .unique = in->unique};
        if (write(device, reply, out->len) < 0 && errno != ENOENT)
            break;
    }
    free(request);
    free(reply);
    return NULL;
}

bool slow_disk_start(struct slow_disk *disk)
{
    char options[128];
    snprintf(disk->path, sizeof(disk->path), "/tmp/ibx-disk-%d-XXXXXX", (int)getpid());
    const int file = mkstemp(disk->path);
    if (file < 0)
        return false;
    close(file);
    delay_ms = 0;
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof(options), "fd=%d,rootmode=100600,user_id=0,group_id=0,allow_other",
             device);
    if (device >= 0 && !mount("ibx", disk->path, "fuse", MS_NOSUID | MS_NODEV, options) &&
        !pthread_create(&thread, NULL, serve, NULL))
        return true;
    umount2(disk->path, MNT_DETACH);
    unlink(disk->path);
    close(device);
    device = -1;
    return false;
}

void slow_disk_delay(unsigned ms)
{
    delay_ms = ms;
}

void slow_disk_end(struct slow_disk *disk)
{
    if (device < 0)
        return;
    umount2(disk->path, MNT_FORCE);
    umount2(disk->path, MNT_DETACH);
    pthread_join(thread, NULL);
    close(device);
    device = -1;
    unlink(disk->path);
}
