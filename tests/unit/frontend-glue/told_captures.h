/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Captures of a client that asks for their graph, for the tests of these. */
#ifndef TESTS_UNIT_TOLD_CAPTURES_H
#define TESTS_UNIT_TOLD_CAPTURES_H

#include "frontend-glue/clients/captures_internal.h"
#include "tests/fixtures/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct told {
    uint32_t status, count;
    uint64_t graph, behind[IBX_EXT_TOLD];
};

static inline int ask(struct client *c, void *stream, uint16_t from, struct told *t)
{
    uint8_t bytes[16], out[IBX_EXT_OUT_MAX];
    size_t n = 0;
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_CAPTURE_INFO);
    ibx_put_u64(&w, (uintptr_t)stream);
    ibx_put_u16(&w, from);
    const int rc = ext_answer(c, &w, out, &n);
    if (rc)
        return rc;
    struct ibx_reader r = ibx_reader_of(out, n);
    *t = (struct told){.status = ibx_get_u32(&r)};
    t->count = ibx_get_u32(&r);
    t->graph = ibx_get_u64(&r);
    for (unsigned i = 0; i < IBX_EXT_TOLD; i++) {
        t->behind[i] = ibx_get_u64(&r);
        assert_int_equal(ibx_get_u64(&r), 0); /* a plain edge */
    }
    assert_true(!r.failed && !ibx_reader_left(&r));
    return 0;
}

static inline int come_behind(struct client *c, void *stream, uint32_t flags, uint64_t graph,
                              const uint64_t *nodes, uint16_t count)
{
    uint8_t bytes[8 * IBX_EXT_BEHIND + 64];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_CAPTURE_UPDATE);
    ibx_put_u64(&w, (uintptr_t)stream);
    ibx_put_u32(&w, flags);
    ibx_put_u64(&w, graph);
    ibx_put_u16(&w, count);
    for (unsigned i = 0; i < count; i++)
        ibx_put_u64(&w, nodes[i]);
    return ext_run(c, &w, NULL);
}

static inline int fill(struct client *c, void *stream)
{
    uint8_t bytes[64];
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), IBX_EXT_MEMSET);
    ibx_put_u64(&w, c->memory);
    ibx_put_u32(&w, 1);
    ibx_put_u64(&w, 8);
    ibx_put_u64(&w, (uintptr_t)stream);
    return ext_run(c, &w, NULL);
}

static inline void *begins(struct client *c)
{
    void *stream = ext_stream_make(c);
    ext_capture_begin(c, stream);
    assert_int_equal(fill(c, stream), 0);
    return stream;
}

static inline bool handler(struct client *c, enum captures_use use, void *stream)
{
    struct ibx_writer first = ibx_writer_of(c->x.requests.first, sizeof(c->x.requests.first));
    ibx_put_u64(&first, (uintptr_t)stream);
    c->x.requests.length = 8;
    c->x.handler.captures = use;
    return ibx_captures_run(&c->x);
}

static inline void answers(struct client *c, int rc)
{
    ibx_captures_ran(&c->x);
    ibx_captures_answered(&c->x, rc);
    ibx_handles_let_go(&c->x);
}

static inline bool knows(struct client *c, enum ibx_handle_kind kind, uint64_t value)
{
    const bool is = ibx_handles_has(&c->x, kind, value);
    ibx_handles_let_go(&c->x);
    return is;
}

#endif
