/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A message that has left and cannot be kept: it must not leave twice. */
#include "tests/fixtures/session_pair.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static bool no_memory;

int __real_ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt, bool sent);
int __wrap_ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt, bool sent);

int __wrap_ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt, bool sent)
{
    return no_memory ? -ENOMEM : __real_ibx_kept_add(kept, iov, iovcnt, sent);
}

/* "Nothing was sent" would have the caller send it again. */
static void test_no_memory_ends_the_session(void **state)
{
    static const uint8_t request[] = "cudaLaunchKernel";
    struct session_pair pair;
    (void)state;
    session_keeps = 30;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    assert_true(ibx_session_send_now(pair.client, request, sizeof(request)));
    no_memory = true;
    assert_false(ibx_session_send_now(pair.client, request, sizeof(request)));
    no_memory = false;
    assert_false(ibx_session_live(pair.client));
    session_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory_ends_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
