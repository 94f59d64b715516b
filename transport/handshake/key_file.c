/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int check_key_file(int fd, const char *path, struct ibx_error *err)
{
    struct stat st;
    if (fstat(fd, &st))
        return ibx_error_set(err, -errno, "key file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ibx_error_set(err, -EINVAL, "key file %s is not a regular file", path);
    if (st.st_mode & 077)
        return ibx_error_set(err, -EPERM,
                             "key file %s has mode %04o, so others can read it: chmod 600 it", path,
                             (unsigned)(st.st_mode & 07777));
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return ibx_error_set(err, -EPERM, "key file %s belongs to user %u, not to user %u or root",
                             path, (unsigned)st.st_uid, (unsigned)geteuid());
    return 0;
}

int ibx_key_load(const char *path, struct ibx_key *key, struct ibx_error *err)
{
    memset(key, 0, sizeof(*key));
    if (!*path)
        return 0;
    /* O_NONBLOCK: a FIFO must not hold up the caller; check_key_file() then refuses it. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return ibx_error_set(
            err, -errno, "key file %s cannot be read: %s%s", path, strerror(errno),
            errno == EACCES ? "; it must belong to the user of this process"
            : errno == ENOENT
                ? "; copy the other end's there, or make one by \"openssl rand -hex 32\""
                : "");
    int rc = check_key_file(fd, path, err);
    /* Room for a final newline, and for one byte more that tells a longer file from a whole one. */
    uint8_t content[IBX_KEY_MAX + 2];
    ssize_t n = rc ? 0 : read(fd, content, sizeof(content));
    int read_errno = errno;
    close(fd);
    if (rc)
        return rc;
    if (n < 0)
        return ibx_error_set(err, -read_errno, "key file %s cannot be read: %s", path,
                             strerror(read_errno));
    if (n > 0 && content[n - 1] == '\n')
        n--;
    if (n < 16 || n > IBX_KEY_MAX)
        return ibx_error_set(err, -EINVAL,
                             "key file %s holds %zd bytes: give it 16 to %d, such as "
                             "the output of \"openssl rand -hex 32\"",
                             path, n, IBX_KEY_MAX);
    struct ibx_piece whole = {content, (size_t)n};
    ibx_hash(&whole, 1, key->bytes);
    OPENSSL_cleanse(content, sizeof(content));
    key->present = true;
    return 0;
}
