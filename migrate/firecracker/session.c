/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What outlives a killed handler: Firecracker's message, the engine's page map, and what was
 * touched. It is a memory file without a name. One handler has it at a time, by a lock that the
 * kernel takes away when its process ends.
 */
#include "migrate/firecracker/internal.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SESSION_MAGIC 0x31636665726962ull /* layout of struct session_header, first version */
#define PAGE          4096u

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t header_bytes(void)
{
    return whole_pages(sizeof(struct session_header));
}

static int map(int fd, size_t bytes, void **at)
{
    *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return *at == MAP_FAILED ? -errno : 0;
}

int ibx_firecracker_session_make(const struct hello *hello, int *out, struct ibx_error *err)
{
    int fd = memfd_create("ibx-firecracker", MFD_CLOEXEC);
    void *at;
    int rc = fd < 0 || ftruncate(fd, (off_t)header_bytes()) ? -errno : 0;
    rc = rc ? rc : map(fd, header_bytes(), &at);
    if (rc) {
        if (fd >= 0)
            close(fd);
        return ibx_error_set(err, rc, "a memory file for the session: %s", strerror(-rc));
    }
    struct session_header *header = at;
    header->began_ns = ibx_now_ns();
    header->pid = hello->pid;
    header->length = hello->length;
    memcpy(header->message, hello->message, hello->length);
    header->magic = SESSION_MAGIC;
    munmap(at, header_bytes());
    *out = fd;
    return 0;
}

static void unmap(struct session *session)
{
    if (session->whole)
        munmap(session->whole, session->bytes);
    *session = (struct session){0};
}

int ibx_firecracker_session_map(int fd, bool waits, struct session *session, struct ibx_error *err)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    *session = (struct session){0};
    /* The previous handler may not have ended completely. */
    if (fcntl(fd, waits ? F_SETLKW : F_SETLK, &lock))
        return ibx_error_set(err, errno == EAGAIN || errno == EACCES ? -EBUSY : -errno,
                             "the session's memory file: %s", strerror(errno));
    int rc = map(fd, header_bytes(), &session->whole);
    if (rc)
        return ibx_error_set(err, rc, "the session's memory file: %s", strerror(-rc));
    session->bytes = header_bytes();
    session->header = session->whole;
    if (session->header->magic == SESSION_MAGIC &&
        session->header->length <= IBX_FIRECRACKER_MESSAGE_MAX)
        return 0;
    unmap(session);
    return ibx_error_set(err, -EPROTO,
                         "the descriptors that systemd kept are of another version of ib-migrate: "
                         "restore this microVM from its snapshot again");
}

int ibx_firecracker_session_extend(int fd, struct session *s, const struct ibx_fault_range *ranges,
                                   unsigned count, struct ibx_error *err)
{
    uint64_t end = 0;
    for (unsigned i = 0; i < count; i++) {
        const uint64_t to = ranges[i].first_page + ranges[i].length / ranges[i].page_size;
        end = to > end ? to : end;
    }
    const size_t map_bytes = whole_pages(ibx_fault_map_bytes(ranges, count));
    const size_t seen_bytes = whole_pages((size_t)(end / 64 + 1) * sizeof(uint64_t));
    const size_t log_bytes = whole_pages((size_t)end * sizeof(uint32_t));
    const size_t bytes = header_bytes() + map_bytes + seen_bytes + log_bytes;
    void *at = NULL;
    if (end > UINT32_MAX)
        return ibx_error_set(err, -E2BIG, "a memory of %llu pages is too large",
                             (unsigned long long)end);
    int rc = ftruncate(fd, (off_t)bytes) ? -errno : map(fd, bytes, &at);
    if (rc)
        return ibx_error_set(err, rc, "the session's memory file: %s", strerror(-rc));
    munmap(s->whole, s->bytes);
    s->header = s->whole = at;
    s->bytes = bytes;
    s->map_memory = (uint8_t *)at + header_bytes();
    s->seen = (void *)((uint8_t *)s->map_memory + map_bytes);
    s->log = (void *)((uint8_t *)s->map_memory + map_bytes + seen_bytes);
    s->log_room = end;
    /* read(2) puts events there; it must not fail because the page is swapped out. */
    mlock(s->map_memory, PAGE);
    return 0;
}

void ibx_firecracker_touched(void *context, uint64_t page)
{
    struct session *s = context;
    const uint64_t bit = 1ull << page % 64;
    if (page >= s->log_room ||
        atomic_fetch_or_explicit(&s->seen[page / 64], bit, memory_order_relaxed) & bit)
        return;
    /* Each page is logged once, so there is room. */
    const uint64_t at = atomic_fetch_add_explicit(&s->header->touched, 1, memory_order_relaxed);
    s->log[at] = (uint32_t)(page + 1); /* an entry of 0 means that a handler was killed just here */
}

int ibx_firecracker_working_set(const struct session *s, uint32_t page_size, uint64_t image_bytes,
                                struct ibx_working_set *set, struct ibx_error *err)
{
    const uint64_t each = page_size / PAGE, count = atomic_load(&s->header->touched);
    struct ibx_working_set out = {.image_pages = (image_bytes + PAGE - 1) / PAGE};
    for (uint64_t i = 0; i < count && i < s->log_room; i++) {
        int rc = s->log[i] ? ibx_working_set_add(&out, (s->log[i] - 1ull) * each, each) : 0;
        if (rc) {
            ibx_working_set_fini(&out);
            return ibx_error_set(err, rc, "no memory for %llu touched pages",
                                 (unsigned long long)count);
        }
    }
    *set = out;
    return 0;
}

static int record(int fd, struct session *s, const char *path, uint64_t *pages,
                  struct ibx_error *err)
{
    struct ibx_fault_range ranges[IBX_FIRECRACKER_REGIONS_MAX];
    struct ibx_firecracker_layout layout;
    struct ibx_working_set set;
    if (!atomic_load(&s->header->known))
        return ibx_error_set(err, -ENODATA, "nothing was served yet");
    int rc = ibx_firecracker_layout_parse(s->header->message, s->header->length, &layout, err);
    for (unsigned i = 0; !rc && i < layout.count; i++)
        ranges[i] =
            (struct ibx_fault_range){.length = layout.regions[i].length,
                                     .page_size = layout.page_size,
                                     .first_page = layout.regions[i].offset / layout.page_size};
    rc = rc ? rc : ibx_firecracker_session_extend(fd, s, ranges, layout.count, err);
    if (!rc)
        rc = ibx_firecracker_working_set(s, layout.page_size, s->header->image[IMAGE_BYTES], &set,
                                         err);
    if (rc)
        return rc;
    rc = ibx_working_set_save(path, &set, err);
    *pages = set.pages;
    if (!rc)
        atomic_store(&s->header->recorded, 1);
    ibx_working_set_fini(&set);
    return rc;
}

int ibx_firecracker_record_left(int fd, const char *path, uint64_t *pages, struct ibx_error *err)
{
    struct session session;
    int rc = ibx_firecracker_session_map(fd, false, &session, err);
    if (rc)
        return rc;
    rc = record(fd, &session, path, pages, err);
    unmap(&session);
    return rc;
}
