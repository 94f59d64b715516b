/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Other users of a VM's disks: block jobs and exports. A QEMU whose VM leaves hands its disks
 * over at the switch. A job that still writes would then end QEMU by an assertion, and a client
 * of an export would read or write a disk that another QEMU uses. */
#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of an image that QEMU locks. */
#define WRITER_LOCK     101 /* it writes to the image */
#define NO_WRITERS_LOCK 201 /* nobody else may write to it */

/* Whether a job is at work; one that has ended stays in the list until it is dismissed. */
static bool is_at_work(const char *status)
{
    return strcmp(status, "concluded") && strcmp(status, "null") && strcmp(status, "undefined");
}

static const char *text_of(const json_t *object, const char *member)
{
    const char *text = json_string_value(json_object_get(object, member));
    return text ? text : "unknown";
}

static void add_jobs(const json_t *jobs, struct ibx_blockers *blockers)
{
    size_t index;
    json_t *job;
    json_array_foreach(jobs, index, job)
    {
        const char *id = text_of(job, "id"), *status = text_of(job, "status");
        if (is_at_work(status))
            ibx_blockers_add(
                blockers,
                "the block job %.64s (%.32s, %.32s) works in this QEMU, which would end by an "
                "assertion when it hands the disks over: wait for its end, or end it (job-cancel "
                "id=%.64s; virsh blockjob --abort)",
                id, text_of(job, "type"), status, id);
    }
}

static void add_exports(const json_t *exports, struct ibx_blockers *blockers)
{
    size_t index;
    json_t *export;
    json_array_foreach(exports, index, export)
    {
        const char *id = text_of(export, "id");
        ibx_blockers_add(
            blockers,
            "the block node %.64s is exported by this QEMU (%.32s export %.64s), whose client "
            "would use a disk that the other QEMU has: end that first (block-export-del id=%.64s)",
            text_of(export, "node-name"), text_of(export, "type"), id, id);
    }
}

/* Asks for a list and adds blockers. A QEMU without the command has no such things. */
static int ask(struct ibx_qmp *qmp, const char *command,
               void (*add)(const json_t *list, struct ibx_blockers *blockers),
               struct ibx_blockers *blockers, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *list;
    int rc = ibx_qmp_execute(qmp, command, NULL, &list, deadline_ns, err);
    if (rc)
        return rc == -EOPNOTSUPP ? 0 : rc;
    add(list, blockers);
    json_decref(list);
    return 0;
}

void ibx_preflight_block_users_ask(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    ibx_qmp_ahead(qmp, "query-jobs", NULL, deadline_ns);
    ibx_qmp_ahead(qmp, "query-block-exports", NULL, deadline_ns);
}

int ibx_preflight_block_users(struct ibx_qmp *qmp, struct ibx_blockers *blockers,
                              uint64_t deadline_ns, struct ibx_error *err)
{
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    ibx_preflight_block_users_ask(qmp, deadline_ns);
    int rc = ask(qmp, "query-jobs", add_jobs, blockers, deadline_ns, err);
    if (!rc)
        rc = ask(qmp, "query-block-exports", add_exports, blockers, deadline_ns, err);
    ibx_qmp_ahead_end(qmp, before);
    return rc;
}

/* One that is only created may be refused yet, as each is that would write to a disk that QEMU has
 * handed over; one that begins is reported as running right afterwards. */
const char *ibx_preflight_block_job(json_t *event)
{
    const char *name = json_string_value(json_object_get(event, "event"));
    const json_t *data = json_object_get(event, "data");
    const char *status = text_of(data, "status");
    const bool changes = name && !strcmp(name, "JOB_STATUS_CHANGE");
    return changes && is_at_work(status) && strcmp(status, "created") != 0 ? text_of(data, "id")
                                                                           : NULL;
}

/* Whether descriptor `number` has locks on both bytes, by /proc/PID/fdinfo/N, which has lines such
 * as "lock: 1: OFDLCK ADVISORY READ -1 fe:00:4711 100 101". An error: that cannot be read. */
static int locks(pid_t pid, int number, unsigned byte, unsigned other)
{
    char path[64], line[256];
    unsigned long long first, last;
    bool one = false, two = false;
    snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", (int)pid, number);
    FILE *info = fopen(path, "re");
    if (!info)
        return errno == ENOENT ? 0 : -errno; /* QEMU has closed it */
    while (errno = 0, fgets(line, sizeof(line), info)) {
        if (sscanf(line, "lock: %*s OFDLCK %*s %*s %*s %*s %llu %llu", &first, &last) != 2)
            continue;
        one |= first <= byte && byte <= last;
        two |= first <= other && other <= last;
    }
    const int code = errno;
    fclose(info);
    return one && two ? 1 : code == ENOENT ? 0 : -code;
}

struct image_search {
    pid_t pid;
    struct ibx_images *images;
    int rc; /* of locks() */
};

/* What a look at QEMU's descriptors has come to. One that may not be read is of another file, such
 * as one on another user's FUSE. */
static int looked(const struct image_search *search, int found, struct ibx_error *err)
{
    const bool none = found >= 0 || found == -ENOENT || found == -EACCES || found == -EPERM;
    const int rc = search->rc < 0 ? search->rc : none ? 0 : found;
    return rc ? ibx_error_set(err, rc, "/proc does not show which images QEMU (process %d) has: %s",
                              (int)search->pid, strerror(-rc))
              : 0;
}

static bool note_image(void *context, int number, const char *path)
{
    struct image_search *search = context;
    struct ibx_images *images = search->images;
    struct stat st;
    if (ibx_proc_stat(path, &st) || (!S_ISREG(st.st_mode) && !images->devices) ||
        images->count == IBX_IMAGES_MAX)
        return false;
    search->rc = locks(search->pid, number, WRITER_LOCK, NO_WRITERS_LOCK);
    if (search->rc > 0) {
        images->files[images->count].dev = st.st_dev;
        images->files[images->count++].ino = st.st_ino;
    }
    return search->rc < 0;
}

int ibx_preflight_find_images(pid_t pid, bool devices, struct ibx_images *images,
                              struct ibx_error *err)
{
    struct image_search search = {.pid = pid, .images = images};
    *images = (struct ibx_images){.devices = devices};
    return looked(&search, ibx_proc_find_descriptor(pid, note_image, &search), err);
}

struct kept_search {
    struct image_search images;
    char *path; /* of the image that is kept */
};

static bool keeps(void *context, int number, const char *path)
{
    struct kept_search *kept = context;
    struct image_search *search = &kept->images;
    const struct ibx_images *images = search->images;
    struct stat st;
    if (ibx_proc_stat(path, &st))
        return false;
    unsigned i = 0;
    while (i < images->count &&
           (images->files[i].dev != st.st_dev || images->files[i].ino != st.st_ino))
        i++;
    if (i == images->count)
        return false;
    search->rc = locks(search->pid, number, NO_WRITERS_LOCK, NO_WRITERS_LOCK);
    const ssize_t n = search->rc > 0 ? readlink(path, kept->path, PATH_MAX - 1) : 0;
    kept->path[n > 0 ? n : 0] = '\0';
    return search->rc != 0;
}

int ibx_preflight_keeps_image(pid_t pid, struct ibx_images *images, char path[PATH_MAX],
                              struct ibx_error *err)
{
    struct kept_search kept = {{.pid = pid, .images = images}, path};
    if (!images->count)
        return 0;
    const int found = ibx_proc_find_descriptor(pid, keeps, &kept);
    const int rc = looked(&kept.images, found, err);
    return rc ? rc : found >= 0;
}
