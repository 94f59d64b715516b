/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Files that are either complete or absent. */
#include "tools/ib-bw/ib-bw.h"

#include "common/file_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int ibx_bw_file_open(struct bw_file *file, const char *name, struct ibx_error *err)
{
    if ((size_t)snprintf(file->name, sizeof(file->name), "%s", name) >= sizeof(file->name))
        return ibx_error_set(err, -ENAMETOOLONG, "the file name \"%.32s...\" is too long", name);
    int rc = ibx_file_check_replace(name, err);
    if (rc)
        return rc;
    snprintf(file->temporary, sizeof(file->temporary), "%s.XXXXXX", file->name);
    int fd = mkostemp(file->temporary, O_CLOEXEC);
    if (fd < 0)
        return ibx_error_set(err, -errno,
                             "%s cannot be made: %s; give a path in a folder that exists and that "
                             "this user may write to",
                             name, strerror(errno));
    mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask); /* mkostemp gives 0600 */
    file->out = fdopen(fd, "w");
    if (file->out)
        return 0;
    close(fd);
    unlink(file->temporary);
    return ibx_error_set(err, -ENOMEM, "no memory to write %s", name);
}

int ibx_bw_file_close(struct bw_file *file, int rc, struct ibx_error *err)
{
    bool failed = ferror(file->out);
    if ((fclose(file->out) || failed) && !rc)
        rc = ibx_error_set(err, -EIO, "%s cannot be written: %s", file->name, strerror(errno));
    if (!rc && rename(file->temporary, file->name))
        rc = ibx_error_set(err, -errno, "%s cannot be put in place: %s", file->name,
                           strerror(errno));
    if (rc)
        unlink(file->temporary);
    return rc;
}

int ibx_bw_file_check(const char *name, struct ibx_error *err)
{
    struct bw_file file;
    int rc = ibx_bw_file_open(&file, name, err);
    if (!rc)
        ibx_bw_file_close(&file, -ECANCELED, NULL);
    return rc;
}
