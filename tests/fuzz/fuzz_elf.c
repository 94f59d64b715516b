/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The symbol table of a program that is preloaded into. */
#include "frontend-glue/preload/elf_functions.h"
#include "tests/fuzz/require.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_elf elf;
    const int file = memfd_create("program", MFD_CLOEXEC);
    require(file >= 0 && write(file, data, size) == (ssize_t)size);
    if (ibx_elf_read(file, &elf)) {
        require(!elf.count || elf.names);
        for (size_t i = 0; i < elf.count; i++) {
            const char *name = ibx_elf_function(&elf, i);
            require(!name || strlen(name) <= elf.names_size);
        }
    }
    ibx_elf_free(&elf);
    close(file);
    return 0;
}
