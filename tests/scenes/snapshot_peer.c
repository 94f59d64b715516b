/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/snapshot_peer.h"

#include "common/clock.h"

#include <string.h>

unsigned answer_ms = 1500;
unsigned patience;
struct ibx_error error;
const char manifest[] =
    "{\"format\":\"ibx snapshot\",\"version\":3,\"id\":\"00112233445566778899aabbccddeeff\","
    "\"complete\":true,\"ran\":false,\"qemu\":[7,2,17],\"machine\":\"q35\",\"uuid\":\"u\","
    "\"name\":\"web\",\"page_size\":4096,\"ram\":[{\"id\":\"a\",\"size\":32768}],"
    "\"state_bytes\":100,\"hashes\":false,\"digest\":"
    "\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\",\"description\":{}}";

struct ibx_options options(void)
{
    struct ibx_options o;
    ibx_options_init(&o);
    o.message = IBX_MIGRATE_MESSAGE;
    o.timeout_ms = answer_ms;
    snprintf(o.purpose, sizeof(o.purpose), IBX_SNAPSHOT_PURPOSE);
    return o;
}

void put(struct ibx_conn *conn, const void *bytes, size_t length)
{
    uint8_t copy[4096];
    memcpy(copy, bytes, length);
    ibx_snapshot_send_bytes(conn, copy, length, NULL, ibx_deadline_in_ms(patience), NULL);
}

void linger_until(struct ibx_conn *conn, uint64_t until)
{
    struct ibx_event event;
    int n = 0;
    while (n >= 0 && ibx_now_ns() < until) {
        n = ibx_poll(conn, &event, 1);
        if (n == 1 && event.type == IBX_EVENT_CLOSED)
            return;
        if (n == 1 && event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(conn, &event);
        if (!n)
            ibx_wait(conn, ibx_ms_until(until) < 100 ? ibx_ms_until(until) : 100);
    }
}

void linger(struct ibx_conn *conn)
{
    linger_until(conn, ibx_deadline_in_ms(patience));
}
