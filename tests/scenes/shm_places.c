/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/shm_places.h"

#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

char base[64];
uint8_t offered[512];
size_t offered_length;

int places_make(void **state)
{
    strcpy(base, "/tmp/ibx-strangers-XXXXXX");
    return mkdtemp(base) && !chmod(base, 0711) ? both_apart(state) : -1;
}

int places_remove(void **state)
{
    char command[128];
    int rc = both_close(state);
    snprintf(command, sizeof(command), "rm -rf %s", base);
    return system(command) ? -1 : rc;
}

void directory_of(struct end *end, const char *name, mode_t mode, uid_t owner)
{
    char *path = end->options.shm_dir;
    snprintf(path, sizeof(end->options.shm_dir), "%s/%s", base, name);
    if (mkdir(path, 0700))
        assert_int_equal(errno, EEXIST);
    assert_int_equal(chown(path, owner, owner), 0);
    assert_int_equal(chmod(path, mode), 0);
}

int join(const uint8_t *bytes, size_t length)
{
    struct ibx_reader offer = ibx_reader_of(bytes, length);
    struct ibx_writer answer = {0};
    return ibx_provider_shm.join(both.client.shm, &offer, &answer, &both.client.err);
}

uint64_t in_time(void)
{
    return ibx_deadline_in_ms(END_PATIENCE_MS);
}

void said(const struct ibx_error *err, const char *words)
{
    if (!strstr(err->message, words))
        fail_msg("\"%s\" does not say \"%s\"", err->message, words);
}

pid_t start(void (*run)(void))
{
    pid_t pid = fork();
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run();
        _exit(0);
    }
    return pid;
}

int unix_at(const char *path, bool bound)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    MUST(fd >= 0);
    if (bound)
        MUST(!bind(fd, (struct sockaddr *)&address, sizeof(address)) && !listen(fd, 8));
    else
        MUST(!connect(fd, (struct sockaddr *)&address, sizeof(address)));
    return fd;
}
