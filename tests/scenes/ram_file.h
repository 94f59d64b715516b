/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The guest RAM of a test's VM, read in its file: byte by byte, and which pages are there. */
#ifndef IBX_TESTS_MIGRATE_RAM_FILE_H
#define IBX_TESTS_MIGRATE_RAM_FILE_H

#include "tests/scenes/vm.h"

#define RAM_BYTES ((size_t)VM_RAM_MIB << 20)
#define RAM_PAGE  ((size_t)4096)
#define RAM_PAGES (RAM_BYTES / RAM_PAGE)

/* Pages of data, 2 MiB at 60 MiB, that the guest never touches. */
void ram_leave_data(const char *path);
/* Its bytes, to be given back by ram_free; holes stay holes. */
uint8_t *ram_copy(const char *path);
void ram_free(uint8_t *copy);
/* Every byte is as in this copy. */
void ram_is(const char *path, const uint8_t *wanted);
/* Into a copy, the pages of another file that are there; how many of them were others. */
unsigned ram_overlay(uint8_t *copy, const char *path);
/* Which pages are there, and how many they are. */
unsigned ram_pages(const char *path, bool there[RAM_PAGES]);

#endif
