/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A program into which nvcc has linked CUDA's runtime, as it does by default, calls no libcudart:
 * neither GVirtuS nor this library sees any of its calls. Of the driver's it finds this library's,
 * which has not what it wants (cuGetExportTable), and fails: so it is told why before it begins.
 */
#include "frontend-glue/preload/internal.h"

#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KERNELS      ".nv_fatbin" /* the section where nvcc puts a program's */
#define SECTIONS_MAX 4096u
#define NAMES_MAX    (1u << 20)
#define PROGRAM      "/proc/self/exe"

static void *read_part(int file, size_t at, size_t n)
{
    void *bytes = malloc(n + 1);
    if (bytes && pread(file, bytes, n, (off_t)at) != (ssize_t)n) {
        free(bytes);
        return NULL;
    }
    if (bytes)
        ((char *)bytes)[n] = 0;
    return bytes;
}

static bool has_kernels(int file)
{
    ElfW(Ehdr) head;
    if (pread(file, &head, sizeof(head), 0) != sizeof(head) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_shentsize != sizeof(ElfW(Shdr)) ||
        head.e_shnum > SECTIONS_MAX || head.e_shstrndx >= head.e_shnum)
        return false;
    ElfW(Shdr) *sections = read_part(file, head.e_shoff, head.e_shnum * sizeof(*sections));
    const ElfW(Shdr) *names = sections ? &sections[head.e_shstrndx] : NULL;
    char *text = names && names->sh_size <= NAMES_MAX
                     ? read_part(file, names->sh_offset, names->sh_size)
                     : NULL;
    bool found = false;
    for (size_t i = 0; text && i < head.e_shnum && !found; i++)
        found =
            sections[i].sh_name < names->sh_size && !strcmp(text + sections[i].sh_name, KERNELS);
    free(text);
    free(sections);
    return found;
}

static bool is_runtime(const char *path, ElfW(Dyn) * dynamic, void *argument)
{
    const char *slash = strrchr(path, '/');
    (void)dynamic, (void)argument;
    return !strncmp(slash ? slash + 1 : path, "libcudart.so", strlen("libcudart.so"));
}

/* errno is the program's, which may not have begun to look at it. */
__attribute__((constructor)) static void begin(void)
{
    const int before = errno;
    char path[PATH_MAX];
    const int file =
        ibx_frontend_each_library(is_runtime, NULL) ? -1 : open(PROGRAM, O_RDONLY | O_CLOEXEC);
    const bool alone = file >= 0 && has_kernels(file);
    const ssize_t n = alone ? readlink(PROGRAM, path, sizeof(path)) : 0;
    if (alone)
        ibx_log(IBX_LOG_WARN,
                "%.*s has kernels, and is not linked with libcudart.so: the runtime that nvcc puts "
                "into a program by default does not reach the remote GPU, and its calls fail; link "
                "it with nvcc -cudart shared",
                (int)(n > 0 ? n : 0), path);
    if (file >= 0)
        close(file);
    errno = before;
}
