/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a tool that stands still has not read from QEMU's monitor: the stand-in looks there for the
 * answer to its question, takes only an answer to that for one, and leaves every byte to the tool.
 *
 * The first byte says how many of the others have come before the question. Of the rest, each byte
 * 0 ends what comes before the next look. */
#include "migrate/common/stand_in.h"
#include "migrate/qemu/qemu.h"
#include "tests/fuzz/quiet.h"
#include "tests/fuzz/require.h"

#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ibx_stand_in stand_in;
static uint8_t came[2 * IBX_STAND_IN_UNREAD];
static size_t there; /* bytes of `came`; nobody has read them */
static json_t *before;

static void come(int qemu, const uint8_t *data, size_t size)
{
    const size_t room = sizeof(came) - there, most = size < room ? size : room;
    const ssize_t n = most ? send(qemu, data, most, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (n > 0) {
        memcpy(came + there, data, (size_t)n);
        there += (size_t)n;
    }
}

static void look(void)
{
    int unread = 0;
    ibx_stand_in_look(&stand_in, before);
    require(!ioctl(stand_in.monitor, FIONREAD, &unread) && (size_t)unread == there);
}

/* Whether an answer of the wanted kind may be there. JSON has other ways to write these words. */
static bool may_have(const char *word)
{
    return memmem(came, there, word, strlen(word)) || memmem(came, there, "\\u", 2);
}

static void speak(int qemu, const uint8_t *data, size_t size)
{
    const uint8_t *at = data, *end = data + size;
    while (at < end) {
        const uint8_t *zero = memchr(at, 0, (size_t)(end - at));
        come(qemu, at, (size_t)((zero ? zero : end) - at));
        at = zero ? zero + 1 : end;
        look();
    }
    const unsigned is = stand_in.state.now;
    require(is != STAND_IN_IDLE);
    if (is == STAND_IN_DONE)
        require(may_have(IBX_QMP_STAND_IN) && may_have("return"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static atomic_uint beats = 1;
    int ends[2];
    if (!before)
        before = json_pack("{s:{s:b}}", "capabilities", "x-ignore-shared", 0);
    if (!size)
        return 0;
    require(before && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    ibx_stand_in_init(&stand_in, ends[0], &beats);
    stand_in.beat = beats; /* long ago: the tool stands still */
    there = 0;
    const size_t first = data[0] < size - 1 ? data[0] : size - 1;
    come(ends[1], data + 1, first);
    look();
    speak(ends[1], data + 1 + first, size - 1 - first);
    ibx_stand_in_end(&stand_in);
    close(ends[1]);
    return 0;
}
