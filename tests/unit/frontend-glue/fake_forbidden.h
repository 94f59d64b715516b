/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What captures of other threads forbid, as a test sets it in `beside`. */
#ifndef TESTS_UNIT_FAKE_FORBIDDEN_H
#define TESTS_UNIT_FAKE_FORBIDDEN_H

#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/unit.h"

static struct {
    int unsafe;                   /* the error of waits and questions */
    int device_wait, legacy_wait; /* ... of those for the device, the legacy stream */
    bool held;                    /* no capture begins, or gets a stream */
    bool request_held;            /* ... while the latest request was made */
} beside;

int ibx_frontend_unsafe_beside(void)
{
    return beside.unsafe;
}
int ibx_frontend_device_wait_refused(void)
{
    return beside.device_wait;
}
int ibx_frontend_legacy_wait_refused(const void *stream)
{
    return stream ? 0 : beside.legacy_wait;
}
int ibx_frontend_captures_hold(void)
{
    beside.held = true;
    return 2;
}
void ibx_frontend_captures_let_go(int cancel)
{
    assert_true(beside.held && cancel == 2);
    beside.held = false;
}

#endif
