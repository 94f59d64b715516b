/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the processes of a back end know of each other's sessions, when one of them has gone wrong
 * and has written to the memory that all of them share. */
#include "frontend-glue/session/records.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct ibx_record *taken(struct ibx_records *records, uint8_t id)
{
    ibx_records_lock(records);
    struct ibx_record *r = ibx_records_take(records);
    assert_non_null(r);
    memset(r->id, id, sizeof(r->id));
    ibx_records_unlock(records);
    return r;
}

/* How many are used stands right before the first. */
static void more_than_there_are(void **state)
{
    (void)state;
    const uint8_t other[IBX_CLAIM_ID_BYTES] = {7};
    struct ibx_records *records = ibx_records_create();
    assert_non_null(records);
    struct ibx_record *first = taken(records, 1), *second = taken(records, 2);
    memset((uint8_t *)first - 8, 0xff, 8);
    ibx_records_lock(records);
    assert_ptr_equal(ibx_records_find(records, second->id), second);
    assert_null(ibx_records_find(records, other));
    ibx_records_forget(records, getpid());
    assert_null(ibx_records_next(records, NULL));
    ibx_records_unlock(records);
    assert_ptr_equal(taken(records, 3), first);
    ibx_records_destroy(records);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_than_there_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
