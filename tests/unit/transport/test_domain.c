/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The part that connections of a domain share, in a process that forks while another thread
 * opens it. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"
#include "transport/core/provider.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_S 20 /* generous: opening a part takes no time */

static sem_t opening, go_on; /* posted when the slow part is being opened; lets it continue */
static const char slow[] = "slow", quick[] = "quick";

struct part {
    struct ibx_domain_part part;
    const char *name;
};

static bool fits(const struct ibx_domain_part *part, const void *want)
{
    return ((const struct part *)part)->name == want;
}

static int open_one(void *want, const struct ibx_domain *domain, struct ibx_domain_part **out,
                    struct ibx_error *err)
{
    (void)domain, (void)err;
    struct part *part = calloc(1, sizeof(*part));
    assert_non_null(part);
    part->name = want;
    if (want == slow) {
        sem_post(&opening);
        sem_wait(&go_on);
    }
    *out = &part->part;
    return 0;
}

static void close_one(struct ibx_domain_part *part)
{
    free(part);
}

static const struct ibx_domain_part_ops ops = {fits, open_one, close_one};

static int hold(struct ibx_domain *domain, const char *name, struct ibx_domain_part **part)
{
    return ibx_domain_part_hold(domain, &ops, (void *)(uintptr_t)name, part, NULL);
}

static void *open_slowly(void *domain)
{
    struct ibx_domain_part *part;
    if (!hold(domain, slow, &part))
        ibx_domain_part_release(part);
    return NULL;
}

/* Opening a device may take seconds. A child that is forked meanwhile does not have the thread
 * that opens it, and must not wait for it. */
static void a_child_opens_its_own_part(NO_STATE)
{
    struct ibx_domain *domain;
    struct ibx_domain_part *ours, *again;
    pthread_t thread;
    int status;
    assert_int_equal(ibx_domain_create(&domain, NULL), 0);
    assert_int_equal(sem_init(&opening, 0, 0) || sem_init(&go_on, 0, 0), 0);
    assert_int_equal(hold(domain, quick, &ours), 0);
    assert_int_equal(pthread_create(&thread, NULL, open_slowly, domain), 0);
    sem_wait(&opening);
    const pid_t pid = fork();
    if (!pid) {
        struct ibx_domain_part *part;
        alarm(CHILD_S * patience_times());
        const int rc = hold(domain, quick, &part);
        const bool own = !rc && part != ours;
        ibx_domain_part_release(rc ? NULL : part);
        ibx_domain_part_release(ours);
        _exit(own ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    sem_post(&go_on);
    pthread_join(thread, NULL);
    assert_int_equal(hold(domain, quick, &again), 0);
    assert_ptr_equal(again, ours);
    ibx_domain_part_release(again);
    ibx_domain_part_release(ours);
    ibx_domain_release(domain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_child_opens_its_own_part)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
