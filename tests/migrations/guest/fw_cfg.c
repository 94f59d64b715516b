/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "fw_cfg.h"
#include "ports.h"

#define SELECTOR  0x510
#define DATA      0x511
#define DIRECTORY 0x19
#define NAME_MAX  56 /* bytes of a name in the directory */

/* Of what is selected, big-endian. */
static uint32_t take(unsigned bytes)
{
    uint32_t value = 0;
    while (bytes--)
        value = value << 8 | inb(DATA);
    return value;
}

static int take_name(const char *wanted)
{
    int same = 1, ended = 0;
    for (unsigned i = 0; i < NAME_MAX; i++) {
        const uint8_t c = inb(DATA);
        same = same && (ended || c == (uint8_t)wanted[i]);
        ended = ended || !wanted[i];
    }
    return same;
}

int fw_cfg_text(const char *wanted, char *out, uint32_t size)
{
    uint32_t length = 0, file = 0, n = 0;
    outw(SELECTOR, DIRECTORY);
    for (uint32_t count = take(4); count; count--) {
        const uint32_t bytes = take(4), key = take(2);
        take(2);
        if (take_name(wanted)) {
            length = bytes;
            file = key;
        }
    }
    if (!file)
        return 0;
    outw(SELECTOR, (uint16_t)file);
    while (n < length && n + 1 < size)
        out[n++] = (char)inb(DATA);
    out[n] = '\0';
    return 1;
}
