/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "hostname.h"
#include "ports.h"

#define SELECTOR  0x510
#define DATA      0x511
#define DIRECTORY 0x19
#define FILE_NAME "opt/ibx/host"
#define NAME_MAX  56 /* bytes of a name in the directory */

/* Of what is selected, big-endian. */
static uint32_t take(unsigned bytes)
{
    uint32_t value = 0;
    while (bytes--)
        value = value << 8 | inb(DATA);
    return value;
}

static int take_name(void)
{
    static const char wanted[] = FILE_NAME;
    int same = 1;
    for (unsigned i = 0; i < NAME_MAX; i++) {
        const uint8_t c = inb(DATA);
        if (i < sizeof(wanted) && c != (uint8_t)wanted[i])
            same = 0;
    }
    return same;
}

int hostname_read(char *out, uint32_t size)
{
    uint32_t length = 0, file = 0, n = 0;
    outw(SELECTOR, DIRECTORY);
    for (uint32_t count = take(4); count; count--) {
        const uint32_t bytes = take(4), key = take(2);
        take(2);
        if (take_name()) {
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
