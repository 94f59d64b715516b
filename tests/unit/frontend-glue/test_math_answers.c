/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Answers that are kept: if a process forks while another thread keeps one, and if one arrives
 * after all have been dropped. */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

void __real_free(void *memory);
void __wrap_free(void *memory);

static const uint8_t body[9] = "a search", answer[6] = "found";
static atomic_int keeping, gone, went_on;

/* The thread stops here, when an older answer was removed, until another thread has forked or
 * waits for it. */
void __wrap_free(void *memory)
{
    __real_free(memory);
    if (!memory || !atomic_exchange(&keeping, 0))
        return;
    atomic_store(&gone, 1);
    for (int ms = 0; ms < 200 && !atomic_load(&went_on); ms++)
        usleep(1000);
}

static void *keep_another(void *unused)
{
    uint64_t since;
    uint8_t out[sizeof(answer)];
    (void)unused;
    (void)ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &since);
    atomic_store(&keeping, 1);
    ibx_math_answer_keep(body, sizeof(body), answer, sizeof(answer), since);
    return NULL;
}

static void child_has_complete_answers(void **state)
{
    pthread_t thread;
    uint8_t out[sizeof(answer)];
    uint64_t since;
    int status = 0;
    (void)state;
    assert_false(ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &since));
    ibx_math_answer_keep(body, sizeof(body), answer, sizeof(answer), since);
    assert_int_equal(pthread_create(&thread, NULL, keep_another, NULL), 0);
    while (!atomic_load(&gone))
        usleep(100);
    const pid_t child = fork();
    if (!child) {
        const bool known = ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &since);
        const bool same = known && !memcmp(out, answer, sizeof(out));
        ibx_math_answers_forget(); /* no answer is freed twice */
        _exit(same ? 0 : 1);
    }
    atomic_store(&went_on, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    ibx_math_answers_forget();
    assert_false(ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &since));
}

/* The handle in the answer existed when the back end was asked, and may be another one now. */
static void late_answer_is_not_kept(void **state)
{
    uint8_t out[sizeof(answer)];
    uint64_t since, later;
    (void)state;
    assert_false(ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &since));
    ibx_math_answers_forget(); /* as another thread would */
    ibx_math_answer_keep(body, sizeof(body), answer, sizeof(answer), since);
    assert_false(ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &later));
    ibx_math_answer_keep(body, sizeof(body), answer, sizeof(answer), later);
    assert_true(ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &later));
    ibx_math_answer_keep(body, sizeof(body), answer, sizeof(answer), since); /* this one is kept */
    assert_true(ibx_math_answer_known(body, sizeof(body), out, sizeof(out), &later));
    ibx_math_answers_forget();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(child_has_complete_answers),
        cmocka_unit_test(late_answer_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
