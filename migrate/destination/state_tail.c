/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/state_tail.h"

#define VM_EOF          0x00
#define VM_DESCRIPTION  0x06
#define HEAD            6           /* EOF, VMDESCRIPTION, length */
#define DESCRIPTION_MAX (64u << 20) /* bytes: no VM comes near it */

/* Whether the stream may end with what begins here: as far as one can see, or for certain. */
static bool may_be_tail(const uint8_t *at, size_t length, bool ended)
{
    if (at[0] != VM_EOF)
        return false;
    if (length == 1)
        return true;
    if (at[1] != VM_DESCRIPTION)
        return false;
    if (length < HEAD)
        return !ended;
    uint32_t size = (uint32_t)at[2] << 24 | (uint32_t)at[3] << 16 | (uint32_t)at[4] << 8 | at[5];
    if (size > DESCRIPTION_MAX || (length > HEAD && at[HEAD] != '{'))
        return false;
    return ended ? length == HEAD + (size_t)size : length <= HEAD + (size_t)size;
}

size_t ibx_state_tail(const uint8_t *bytes, size_t length, bool ended, bool *whole)
{
    *whole = false;
    for (size_t i = 0; i < length; i++) {
        if (may_be_tail(bytes + i, length - i, ended)) {
            *whole = ended;
            return i;
        }
    }
    return length ? length - 1 : 0;
}
