/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/preload/memory/mappings.h"

#include "common/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 160u /* bytes of a line that matter; paths may be longer */

/* ------------------------------------------------------------------------------- lines of a file
 */

static bool open_file(struct mappings *all, const char *path)
{
    all->at = all->count = 0;
    all->fd = open(path, O_RDONLY | O_CLOEXEC);
    return all->fd >= 0;
}

static bool refill(struct mappings *all)
{
    ssize_t n;
    do
        n = read(all->fd, all->bytes, sizeof(all->bytes));
    while (n < 0 && errno == EINTR);
    all->at = 0;
    all->count = n > 0 ? (size_t)n : 0;
    return all->count;
}

/* The begin of the next line. False: there is none. */
static bool next_line(struct mappings *all, char line[LINE])
{
    size_t n = 0;
    bool any = false;
    while (all->at < all->count || refill(all)) {
        const char c = all->bytes[all->at++];
        any = true;
        if (c == '\n')
            break;
        if (n + 1 < LINE)
            line[n++] = c;
    }
    line[n] = 0;
    return any;
}

static bool parse(const char *line, struct mapping *m)
{
    unsigned long begin, end, offset, inode;
    *m = (struct mapping){.begin = 0};
    if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %15s", &begin, &end, m->access, &offset, &m->major,
               &m->minor, &inode, m->name) < 7)
        return false;
    m->begin = begin;
    m->end = end;
    m->offset = offset;
    m->inode = inode;
    return true;
}

bool ibx_mappings_open(struct mappings *all)
{
    return open_file(all, "/proc/self/maps");
}

bool ibx_mappings_next(struct mappings *all, struct mapping *next)
{
    char line[LINE];
    return next_line(all, line) && parse(line, next);
}

void ibx_mappings_close(const struct mappings *all)
{
    close(all->fd);
}

bool ibx_mapping_of(uintptr_t at, struct mapping *found)
{
    struct mappings all;
    bool is = false;
    const int cancel = ibx_thread_hold_cancel();
    if (ibx_mappings_open(&all)) {
        while (!is && ibx_mappings_next(&all, found))
            is = at - found->begin < found->end - found->begin;
        ibx_mappings_close(&all);
    }
    ibx_thread_release_cancel(cancel);
    return is;
}

/* ------------------------------------------------------------------------------------ mlock(2) */

static bool any_is(const char *field)
{
    struct mappings status;
    char line[LINE];
    const size_t n = strlen(field);
    unsigned long kib = 0;
    if (!open_file(&status, "/proc/self/status"))
        return true;
    while (next_line(&status, line)) {
        if (!strncmp(line, field, n))
            kib = strtoul(line + n, NULL, 10);
    }
    ibx_mappings_close(&status);
    return kib;
}

/* Whether pages of [from, until) are locked. The list that says so takes long, so it is read only
 * if this process has locked any. */
static bool is_locked(uintptr_t from, uintptr_t until)
{
    struct mappings all;
    struct mapping m = {.begin = 0}, head;
    char line[LINE];
    bool locked = false;
    if (!any_is("VmLck:"))
        return false;
    if (!open_file(&all, "/proc/self/smaps"))
        return true;
    while (!locked && m.begin < until && next_line(&all, line)) {
        if (parse(line, &head))
            m = head;
        else if (!strncmp(line, "VmFlags:", 8))
            locked = m.begin < until && m.end > from && strstr(line, " lo");
    }
    ibx_mappings_close(&all);
    return locked;
}

/* ---------------------------------------------------------------------------------- neighbours */

/*
 * The first and the last page may have more than the range: a child could then see a neighbour that
 * another thread was just changing (registered.c), and for malloc's own data that would be fatal.
 * So these pages move only if all the rest of them is known to belong to the same allocation. That
 * is so for
 *
 * - what glibc's malloc(3) has mapped for one allocation, which its header says (struct
 *   malloc_chunk: two words before the memory);
 * - the last page of memory that begins with a page, elsewhere than in glibc's heaps, or among
 *   variables. Allocators give such memory whole pages.
 */
#define MMAPPED 2u /* of the three low bits of a chunk's size; the other two are 0 then */
#define HEAP    ((uintptr_t)64 << 20) /* glibc's other heaps begin at a multiple of it, ... */
#define HEAD    256u                  /* ... with the address of a struct not far behind one */

struct pages {
    uintptr_t at, end;     /* the range */
    uintptr_t from, until; /* its pages */
    uintptr_t whole_from;  /* from here on everything can be read, without a gap */
    bool in_heap;
    uintptr_t heap; /* where one of glibc's other heaps would begin that has the range */
    bool heap_is_there;
};

/* Sanitizers take it for memory that nobody may read. */
__attribute__((no_sanitize("address"))) static size_t word_at(uintptr_t at)
{
    return *(const volatile size_t *)at;
}

static bool is_own_chunk(const struct pages *p, uintptr_t chunk, uintptr_t page)
{
    const size_t word = sizeof(size_t);
    if (chunk % word || chunk < p->whole_from || chunk + 2 * word > p->until)
        return false;
    const size_t before = word_at(chunk);
    size_t n = word_at(chunk + word);
    if ((n & 7) != MMAPPED || before > chunk || n > UINTPTR_MAX - chunk)
        return false;
    n -= MMAPPED;
    return !((chunk - before) % page) && !((before + n) % page) && chunk - before <= p->from &&
           chunk + n >= p->until;
}

static bool is_in_other_heap(const struct pages *p)
{
    const uintptr_t arena = p->heap_is_there ? word_at(p->heap) : 0;
    return arena && arena % HEAP < HEAD;
}

static bool is_variable(uintptr_t at)
{
    Dl_info info;
    return dladdr((void *)at, &info);
}

static bool has_neighbours(const struct pages *p, uintptr_t page)
{
    if (p->at == p->from && p->end == p->until)
        return false;
    if (is_own_chunk(p, p->at - 2 * sizeof(size_t), page) || is_own_chunk(p, p->from, page))
        return false;
    return p->at != p->from || p->in_heap || is_in_other_heap(p) || is_variable(p->at);
}

/* --------------------------------------------------------------------------------------- all */

static bool is_plain(const struct mapping *m)
{
    return !strcmp(m->access, "rw-p") && !m->inode && !m->major && !m->minor;
}

static enum mappings_refusal look_at(struct mappings *all, struct pages *p)
{
    const uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    struct mapping m;
    uintptr_t reached = p->from, readable_to = 0;
    while (reached < p->until && ibx_mappings_next(all, &m)) {
        const bool reads = m.access[0] == 'r';
        if (!reads || m.begin != readable_to)
            p->whole_from = m.begin;
        readable_to = reads ? m.end : 0;
        p->heap_is_there = p->heap_is_there || (m.begin <= p->heap && m.end > p->heap && reads);
        if (m.end <= p->from)
            continue;
        if (m.begin > reached || !is_plain(&m))
            return MAPPINGS_OTHER;
        if (!strncmp(m.name, "[stack", 6) || (here >= m.begin && here < m.end))
            return MAPPINGS_STACK;
        p->in_heap = p->in_heap || !strcmp(m.name, "[heap]");
        reached = m.end;
    }
    return reached < p->until ? MAPPINGS_OTHER : MAPPINGS_MOVABLE;
}

enum mappings_refusal ibx_mappings_movable(uintptr_t at, size_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    struct pages p = {.at = at, .end = at + n, .from = at / page * page, .heap = at / HEAP * HEAP};
    struct mappings all;
    p.until = (p.end + page - 1) / page * page;
    const int cancel = ibx_thread_hold_cancel();
    enum mappings_refusal why = MAPPINGS_UNKNOWN;
    if (p.until > p.from && ibx_mappings_open(&all)) {
        why = look_at(&all, &p);
        ibx_mappings_close(&all);
    }
    if (!why && has_neighbours(&p, page))
        why = MAPPINGS_NEIGHBOURS;
    if (!why && is_locked(p.from, p.until))
        why = MAPPINGS_LOCKED;
    if (!why && any_is("VmPin:"))
        why = MAPPINGS_PINNED;
    ibx_thread_release_cancel(cancel);
    return why;
}
