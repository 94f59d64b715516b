/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A file system of one file (FUSE), whose reads take as long as a test wants. Past the page cache
 * (O_DIRECT) the kernel pins the reader's pages when a read begins, and fills them when it ends:
 * as a disk does, but slowly. The words of the file are those of tests/moves/guest/disk.h.
 */
#ifndef IBX_TESTS_SLOW_DISK_H
#define IBX_TESTS_SLOW_DISK_H

#include <stdbool.h>

struct slow_disk {
    char path[64]; /* the file */
};

/* Made in /tmp. False: this machine or this user cannot mount it. */
bool slow_disk_start(struct slow_disk *disk);
/* How long each read takes from now on. */
void slow_disk_delay(unsigned ms);
/* Its users have ended. */
void slow_disk_end(struct slow_disk *disk);

#endif
