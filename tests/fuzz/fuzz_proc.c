/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What /proc reports about a process's memory. The kernel writes it, but a program chooses the
 * names of its files. The input is the contents of /proc/PID/maps and /proc/PID/smaps. The
 * program is linked with --wrap=fopen64. */
#include "migrate/qemu/qemu_internal.h"
#include "tests/fuzz/require.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

static const char *said;
static size_t length;

FILE *__wrap_fopen64(const char *path, const char *mode)
{
    if (strncmp(path, "/proc/7/", 8) != 0)
        return __real_fopen64(path, mode);
    return fmemopen((void *)(uintptr_t)said, length, "r");
}

/* A mapping to look for in the input: its addresses, and what its line VmFlags starts with. */
struct search {
    uint64_t start, end;
    const char *flags;
};

static bool is_said(const struct search *s)
{
    unsigned long long from = 0, to = 0, a, b;
    char line[4096];
    const char *stop;
    for (const char *at = said; at < said + length; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(said + length - at));
        stop = stop ? stop : said + length;
        const size_t n =
            (size_t)(stop - at) < sizeof(line) ? (size_t)(stop - at) : sizeof(line) - 1;
        memcpy(line, at, n);
        line[n] = '\0';
        if (sscanf(line, "%llx-%llx ", &a, &b) == 2) {
            from = a;
            to = b;
        } else if (!strncmp(line, "VmFlags:", 8) && from == s->start && to == s->end &&
                   !strncmp(line + 8, s->flags, strcspn(s->flags, "\n"))) {
            return true;
        }
    }
    return false;
}

static bool look(void *context, uint64_t start, uint64_t end, const char *flags)
{
    unsigned *looks = context;
    require(is_said(&(struct search){start, end, flags}));
    return ++*looks > 100;
}

static bool look_mapping(void *context, const struct ibx_proc_mapping *m)
{
    unsigned *looks = context;
    require(strlen(m->permissions) <= 4 && !strchr(m->path, '\n'));
    require(memmem(said, length, m->path, strlen(m->path)));
    return ++*looks > 100;
}

static bool ends_after(const struct guest_mapping *m, const struct guest_mapping *last)
{
    return last->end != m->start || last->dev != m->dev || last->ino != m->ino ||
           last->offset + (last->end - last->start) != m->offset;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct guest_mappings mappings;
    struct ibx_error err = {0};
    unsigned looks = 0;
    said = (const char *)data;
    length = size;
    if (!size || memchr(data, '\0', size)) /* the kernel writes no NUL */
        return 0;
    ibx_proc_find_flags(7, look, &looks);
    looks = 0;
    ibx_proc_find_mapping(7, look_mapping, &looks);
    if (ibx_guest_mappings_read(7, &mappings, &err)) {
        require(err.code && err.message[0]);
        return 0;
    }
    for (size_t i = 0; i < mappings.count; i++) {
        const struct guest_mapping *m = &mappings.items[i];
        require(m->ino && !strchr(m->path, '\n'));
        require(!i || ends_after(m, &mappings.items[i - 1]));
        require(memmem(data, size, m->path, strlen(m->path)));
    }
    ibx_guest_mappings_fini(&mappings);
    return 0;
}
