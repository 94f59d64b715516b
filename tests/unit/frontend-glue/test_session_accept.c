/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A thread that accepts sessions and is cancelled meanwhile leaves nothing behind. */
#include "tests/fixtures/session_pair.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>
#include <cmocka.h>

static struct ibx_session *listening;
static _Thread_local bool accepts;
static atomic_uint closed_there;

int __real_close(int fd);
int __wrap_close(int fd);

/* The first accepting thread is cancelled while it closes a connection. */
int __wrap_close(int fd)
{
    if (accepts && !closed_there++)
        pthread_cancel(pthread_self());
    return __real_close(fd);
}

static void *accept_all(void *argument)
{
    struct ibx_session *none;
    accepts = true;
    ibx_session_accept(listening, &none, NULL);
    return argument;
}

/* Connects with a session that this server does not have. */
static void *resume_unknown_session(void *argument)
{
    static const uint8_t secret[IBX_SECRET_BYTES] = {1};
    struct ibx_claim claim = {.id = "gone", .secret = secret};
    struct ibx_options options;
    struct ibx_conn *none;
    ibx_options_init(&options);
    ibx_options_set(&options, "provider", "tcp", NULL);
    options.claim = &claim;
    *(int *)argument = ibx_connect(ibx_session_uri(listening), &options, &none, NULL);
    return NULL;
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Another thread continues with what the cancelled one has not done. */
static void thread_is_cancelled_while_it_refuses_a_client(void **state)
{
    struct ibx_options options;
    pthread_t accepting[2], client;
    void *ended[2];
    int answer = 0;
    (void)state;
    ibx_options_init(&options);
    assert_int_equal(ibx_options_set(&options, "provider", "tcp", NULL), 0);
    const unsigned before = open_descriptors();
    assert_int_equal(ibx_session_create("rdma://127.0.0.1:0", &options, &listening, NULL), 0);
    ibx_session_keep(listening, 30);
    assert_int_equal(ibx_session_serve(listening, NULL), 0);
    pthread_create(&accepting[0], NULL, accept_all, NULL);
    pthread_create(&client, NULL, resume_unknown_session, &answer);
    pthread_join(accepting[0], &ended[0]);
    pthread_create(&accepting[1], NULL, accept_all, NULL);
    pthread_join(client, NULL);
    pthread_cancel(accepting[1]);
    pthread_join(accepting[1], &ended[1]);
    assert_int_equal(answer, -ESTALE);
    for (unsigned i = 0; i < 2; i++)
        assert_ptr_equal(ended[i], PTHREAD_CANCELED);
    ibx_session_destroy(listening);
    assert_int_equal(open_descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thread_is_cancelled_while_it_refuses_a_client)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
