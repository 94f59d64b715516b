/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end of a connection over libfabric, and what it leaves untouched. */
#include "tests/fixtures/ofi_pair.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static struct fi_ops *usual;

static int close_later(struct fid *fid)
{
    fid->ops = usual;
    return -FI_EBUSY;
}

/* On fabrics such as Slingshot a region belongs to an endpoint and is closed before it. It must
 * be closed only once, even if the endpoint cannot be closed at the first attempt. */
static void test_endpoint_that_closes_later(void **state)
{
    (void)state;
    static char memory[4096];
    struct pair *pair = pair_connect();
    struct ofi_endpoint *server = pair->server.ofi;
    struct fid *first = &server->lanes[0].ep->fid;
    struct ibx_mr *mr = end_register(&pair->server, memory, sizeof(memory), IBX_ACCESS_REMOTE_READ);
    server->choice.info->domain_attr->mr_mode |= FI_MR_ENDPOINT;
    usual = first->ops;
    struct fi_ops busy = *usual;
    busy.close = close_later;
    first->ops = &busy;
    ibx_provider_ofi.abort(server);
    assert_ptr_equal(first->ops, usual);
    AWAIT(pair, server->state.now == OFI_CLOSED);
    end_deregister(&pair->server, mr);
    pair_close(pair);
}

/* An endpoint that is closed already may report its receives as cancelled, while another one is not
 * yet closed. They are not posted again. */
static void test_receives_of_a_closed_endpoint(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *server = pair->server.ofi;
    struct fid *second = &server->lanes[1].ep->fid;
    struct ofi_request *receive = server->recvs;
    usual = second->ops;
    struct fi_ops busy = *usual;
    busy.close = close_later;
    second->ops = &busy;
    ibx_provider_ofi.abort(server);
    assert_int_equal(server->state.now, OFI_STOPPED);
    assert_null(server->lanes[0].ep);
    assert_int_equal(receive->lane, 0);
    assert_int_equal(receive->state.now, OFI_RECV_POSTED);
    ibx_ofi_msg_repost(server, receive);
    assert_int_equal(receive->state.now, OFI_RECV_IDLE);
    pair_close(pair);
}

/* A region that libfabric does not close must not be reached by the peer any more, so the
 * connection ends with the deregistration. The region is closed after that. */
static void test_region_that_does_not_close(void **state)
{
    (void)state;
    static char memory[4096];
    struct pair *pair = pair_connect();
    struct ofi_endpoint *server = pair->server.ofi;
    struct ibx_mr *mr =
        end_register(&pair->server, memory, sizeof(memory), IBX_ACCESS_REMOTE_WRITE);
    struct fid *region = &((struct ofi_region *)mr->provider_data)->made->mr->fid;
    usual = region->ops;
    struct fi_ops busy = *usual;
    busy.close = close_later;
    region->ops = &busy;
    end_deregister(&pair->server, mr);
    assert_int_equal(server->state.now, OFI_CLOSED);
    assert_int_equal(pair->server.count, 1);
    assert_int_equal(pair->server.notes[0].kind, NOTE_LOST);
    assert_int_equal(pair->server.notes[0].status, -EBUSY);
    pair_close(pair);
}

/* A deregistration may end a connection, which its user notices later. Where a region belongs to an
 * endpoint, there is none any more to which a new one could belong. */
static void test_registration_after_the_end(void **state)
{
    (void)state;
    static char memory[4096];
    struct pair *pair = pair_connect();
    struct ofi_endpoint *server = pair->server.ofi;
    struct ibx_mr mr = {.span = ibx_span_host(memory, sizeof(memory)),
                        .access = IBX_ACCESS_REMOTE_READ};
    struct ibx_error err = {0};
    server->choice.info->domain_attr->mr_mode |= FI_MR_ENDPOINT;
    ibx_ofi_fail(server, -ETIMEDOUT, "a FENCE is not answered");
    ibx_ofi_io_end(server);
    assert_int_equal(server->state.now, OFI_CLOSED);
    assert_int_equal(ibx_provider_ofi.mr_register(server, &mr, &err), -ENOTCONN);
    assert_non_null(strstr(err.message, "is over"));
    pair_close(pair);
}

static unsigned busy_times;
static bool is_closed;

static int close_in_the_end(struct fid *fid)
{
    if (busy_times) {
        busy_times--;
        return -FI_EBUSY;
    }
    is_closed = true;
    fid->ops = usual;
    return usual->close(fid);
}

/* Until the endpoint is closed libfabric may use its memory. */
static void test_endpoint_that_closes_at_the_end(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct fid *first = &pair->server.ofi->lanes[0].ep->fid;
    usual = first->ops;
    struct fi_ops busy = *usual;
    busy.close = close_in_the_end;
    first->ops = &busy;
    busy_times = 5;
    is_closed = false;
    pair_close(pair);
    assert_true(is_closed);
}

static int close_never(struct fid *fid)
{
    (void)fid;
    return -FI_EBUSY;
}

/* All deregistrations together wait for an endpoint that stays busy no longer than one of them. */
static void test_many_regions_and_an_endpoint_that_stays_busy(void **state)
{
    (void)state;
    enum { REGIONS = 80 }; /* a tenth of a second each would be 8 s */
    static char memory[REGIONS][64];
    struct ibx_mr *mrs[REGIONS];
    struct pair *pair = pair_connect();
    struct fid *first = &pair->server.ofi->lanes[0].ep->fid;
    for (unsigned i = 0; i < REGIONS; i++)
        mrs[i] = end_register(&pair->server, memory[i], 64, IBX_ACCESS_REMOTE_READ);
    usual = first->ops;
    struct fi_ops busy = *usual;
    busy.close = close_never;
    first->ops = &busy;
    ibx_provider_ofi.abort(pair->server.endpoint);
    const uint64_t before = ibx_now_ns();
    for (unsigned i = 0; i < REGIONS; i++)
        end_deregister(&pair->server, mrs[i]);
    assert_true(ibx_now_ns() - before < 6000 * IBX_NS_PER_MS);
    assert_int_equal(pair->server.ofi->state.now, OFI_STOPPED);
    first->ops = usual;
    pair_close(pair);
}

/* A connection that has been aborted goes on until its own transfers are over, and with it what the
 * peer has begun. Nevertheless nothing arrives in memory after it was deregistered. */
static void test_deregistration_after_the_end(void **state)
{
    (void)state;
    enum { LENGTH = 16 << 20 };
    struct pair *pair = pair_connect();
    uint8_t *target = calloc(1, LENGTH), *source = malloc(LENGTH), *kept = malloc(LENGTH);
    memset(source, 1, LENGTH);
    struct ibx_mr *to = end_register(&pair->server, target, LENGTH, IBX_ACCESS_REMOTE_WRITE),
                  *from = end_register(&pair->client, source, LENGTH, IBX_ACCESS_REMOTE_READ),
                  *local = end_register(&pair->server, kept, LENGTH, IBX_ACCESS_LOCAL);
    struct ibx_chunk written = {.kind = IBX_RDMA_WRITE,
                                .lane = 1,
                                .local = source,
                                .mr = from,
                                .remote_address = (uintptr_t)target,
                                .remote_keys = to->keys,
                                .length = LENGTH};
    struct ibx_chunk read = {.kind = IBX_RDMA_READ,
                             .lane = 1,
                             .local = kept,
                             .mr = local,
                             .remote_address = (uintptr_t)source,
                             .remote_keys = from->keys,
                             .length = 1};
    /* The WRITE is longer than the kernel's buffers, and the answer to the READ is behind it. */
    assert_int_equal(ibx_provider_ofi.rdma(pair->client.endpoint, &written), 0);
    AWAIT(pair, target[0]);
    assert_int_equal(target[LENGTH - 1], 0);
    assert_int_equal(ibx_provider_ofi.rdma(pair->server.endpoint, &read), 0);
    ibx_provider_ofi.abort(pair->server.endpoint);
    assert_int_equal(pair->server.ofi->state.now, OFI_STOPPED);
    end_deregister(&pair->server, to);
    memset(target, 2, LENGTH);
    AWAIT(pair, pair->server.count);
    for (int i = 0; i < 1000; i++)
        turn(pair);
    for (size_t i = 0; i < LENGTH; i++)
        assert_int_equal(target[i], 2);
    end_deregister(&pair->server, local);
    ibx_provider_ofi.abort(pair->client.endpoint);
    end_deregister(&pair->client, from);
    pair_close(pair);
    free(target);
    free(source);
    free(kept);
}

static atomic_bool fenced;

static void *turn_until_fenced(void *end)
{
    while (!fenced)
        end_turn(end);
    return NULL;
}

/* Credit that comes during a deregistration, which takes completions, too, keeps a sender that had
 * none from sleeping. */
static void test_credit_that_comes_during_a_deregistration(void **state)
{
    (void)state;
    static char memory[4096];
    struct pair *pair = pair_connect();
    struct ibx_mr *mr = end_register(&pair->client, memory, sizeof(memory), IBX_ACCESS_REMOTE_READ);
    pthread_t thread;
    for (unsigned i = 0; i < 16; i++)
        send_text(pair, &pair->client, "mine");
    AWAIT(pair, pair->server.count == 16);
    for (int i = 0; i < 100; i++)
        turn(pair);
    assert_int_equal(end_send(&pair->client, "more", 4, 0), -EAGAIN);
    for (unsigned i = 0; i < 16; i++)
        ibx_provider_ofi.release(pair->server.endpoint, pair->server.notes[i].token);
    fenced = false;
    assert_int_equal(pthread_create(&thread, NULL, turn_until_fenced, &pair->server), 0);
    end_deregister(&pair->client, mr);
    fenced = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pair->client.ofi->credits, 16);
    assert_int_equal(end_turn(&pair->client), 0);
    assert_int_equal(ibx_provider_ofi.arm(pair->client.endpoint), 1);
    pair_close(pair);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_endpoint_that_closes_later),
        cmocka_unit_test(test_receives_of_a_closed_endpoint),
        cmocka_unit_test(test_endpoint_that_closes_at_the_end),
        cmocka_unit_test(test_many_regions_and_an_endpoint_that_stays_busy),
        cmocka_unit_test(test_region_that_does_not_close),
        cmocka_unit_test(test_registration_after_the_end),
        cmocka_unit_test(test_deregistration_after_the_end),
        cmocka_unit_test(test_credit_that_comes_during_a_deregistration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
