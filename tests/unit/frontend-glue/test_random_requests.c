/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Extension requests with random contents, with simulated libraries that abort at an invalid
 * handle. They harm neither other tenants nor the back end. */
#include "frontend-glue/session/session_internal.h"
#include "tests/fixtures/request_forms.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define REQUESTS 15000u
#define RENEWED  100u /* after this many requests the client gets new objects of all kinds */

/* One request in eight is truncated or too long. */
static void request_anything(struct client *c)
{
    uint8_t bytes[1024] = {0};
    const unsigned number = (unsigned)(ext_random() % (IBX_EXT_REQUESTS + 1));
    struct ibx_writer w = ext_body(bytes, sizeof(bytes), number);
    uint64_t answer;
    if (!form_put(&w, number))
        return;
    assert_false(w.failed);
    if (ext_random() % 8 == 0)
        w.length = ext_random() % (w.length + 9);
    if (ext_run(c, &w, &answer) || !answer)
        return;
    if (number == IBX_EXT_GRAPH_CREATE || number == IBX_EXT_GRAPH_CLONE ||
        number == IBX_EXT_GET_CHILD)
        form_note(FORM_GRAPH, answer);
    if (number >= IBX_EXT_NODE_KERNEL && number <= IBX_EXT_NODE_FREE)
        form_note(FORM_NODE, answer);
    if (number == IBX_EXT_GRAPH_INSTANTIATE)
        form_note(FORM_EXEC, answer);
}

static void test_anything(void **state)
{
    (void)state;
    uint8_t before[MEMORY], after[MEMORY];
    uint64_t answer;
    memset(before, 'b', sizeof(before));
    assert_int_equal(app->to_device(bob.memory, before, MEMORY), 0);
    form_note_others(&bob);
    for (unsigned i = 0; i < REQUESTS; i++) {
        if (i % RENEWED == 0) {
            ext_make_all(&alice);
            form_note_all_of(&alice);
        }
        request_anything(&alice);
    }
    /* The other tenant's objects and memory are unchanged. */
    assert_int_equal(app->ctx_synchronize(), 0);
    assert_int_equal(app->from_device(after, bob.memory, MEMORY), 0);
    assert_memory_equal(after, before, MEMORY);
    assert_int_equal(ext_nodes_count(&bob, bob.graph), 1);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_NODE_TYPE, bob.node, &answer), 0);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_CHANNEL_DESC, bob.array, &answer), 0);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_FREE_ARRAY, bob.array, &answer), 0);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_FREE_MIPMAP, bob.mipmap, &answer), 0);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_EXEC_DESTROY, bob.exec, &answer), 0);
    assert_int_equal(ext_call_one(&bob, IBX_EXT_GRAPH_DESTROY, bob.graph, &answer), 0);
    assert_int_equal(ext_call(&bob, IBX_EXT_FREE_ASYNC, 2, (uint64_t[]){bob.memory, 0}, &answer),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_anything)};
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
