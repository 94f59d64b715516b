/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The symbol table of a program into which ibx is preloaded, or of a library that it opens. */
#include "frontend-glue/preload/static_runtime/elf_functions.h"
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
        const ElfW(Phdr) *code = ibx_elf_segment(&elf, PT_LOAD, IBX_ELF_ANY);
        require(!code || code->p_type == PT_LOAD);
        ibx_elf_has_kernels(file, &elf);
        const size_t count = ibx_elf_read_symbols(file, &elf) ? ibx_elf_count(&elf) : 0;
        for (size_t i = 0; i < count; i++) {
            const char *name = ibx_elf_function(&elf, i);
            require(!name || strlen(name) <= elf.names.n);
            ibx_elf_segment(&elf, PT_LOAD, ibx_elf_symbol(&elf, i)->st_value);
        }
    }
    ibx_elf_free(&elf);
    close(file);
    return 0;
}
