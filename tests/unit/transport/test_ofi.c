/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The libfabric provider without the core: two ends in one process over libfabric's tcp,
 * outsiders on the same fabric, and a peer that breaks the protocol. */
#include "tests/fixtures/ofi_pair.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

/* Checks that the server has received exactly these messages. */
static void assert_received(const struct pair *pair, const char *const *texts, unsigned count)
{
    assert_int_equal(pair->server.count, count);
    for (unsigned i = 0; i < count; i++) {
        const struct note *note = &pair->server.notes[i];
        assert_int_equal(note->kind, NOTE_MESSAGE);
        assert_int_equal(note->length, strlen(texts[i]));
        assert_memory_equal(note->data, texts[i], note->length);
    }
}

/* ------------------------------------------------------------------- offers and answers */

static struct ofi_side some_side(void)
{
    struct ofi_side side = {
        .provider = "tcp",
        .fabric = "net0",
        .version = FI_VERSION(1, 17),
        .addr_format = FI_SOCKADDR_IN,
        .host = 0x1122334455667788,
        .slots = 16,
        .message = 16384,
        .lanes = 2,
    };
    for (unsigned i = 0; i < side.lanes; i++) {
        side.address[i].length = 3;
        memset(side.address[i].bytes, (int)(0xa0 + i), 3);
    }
    return side;
}

static void test_golden_offer(void **state)
{
    static const uint8_t golden[] = {
        1, 3,    0, 't', 'c',  'p',  4,    0,    'n',  'e',  't',  '0',  17,   0,    1,    0,
        2, 0,    0, 0,   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 16,   0,    0,    0,
        0, 0x40, 0, 0,   2,    3,    0,    0xa0, 0xa0, 0xa0, 3,    0,    0xa1, 0xa1, 0xa1,
    };
    (void)state;
    uint8_t bytes[256];
    struct ofi_side side = some_side(), back = {0};
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_ofi_side_put(&w, &side);
    assert_int_equal(w.length, sizeof(golden));
    assert_memory_equal(bytes, golden, sizeof(golden));
    struct ibx_reader r = ibx_reader_of(bytes, w.length);
    assert_int_equal(ibx_ofi_side_get(&r, &back, NULL), 0);
    assert_memory_equal(&back, &side, sizeof(side));
    for (size_t n = 0; n < w.length; n++) {
        struct ibx_reader cut = ibx_reader_of(bytes, n);
        assert_int_equal(ibx_ofi_side_get(&cut, &back, NULL), -EPROTO);
    }
    for (bytes[0] = 0; bytes[0] <= 2; bytes[0] += 2) { /* other versions */
        struct ibx_error err = {0};
        r = ibx_reader_of(bytes, w.length);
        assert_int_equal(ibx_ofi_side_get(&r, &back, &err), -EPROTO);
        assert_non_null(strstr(err.message, "libfabric offer has version"));
    }
}

static int read_back(const struct ofi_side *side)
{
    uint8_t bytes[8192];
    struct ofi_side back = {0};
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_ofi_side_put(&w, side);
    assert_false(w.failed);
    struct ibx_reader r = ibx_reader_of(bytes, w.length);
    return ibx_ofi_side_get(&r, &back, NULL);
}

static void test_malformed_offers(void **state)
{
    (void)state;
    struct ofi_side bad[6];
    for (int i = 0; i < 6; i++)
        bad[i] = some_side();
    bad[0].slots = 0;
    bad[1].slots = UINT32_MAX;
    bad[2].message = UINT32_MAX;
    bad[3].message = 64; /* smaller than the communicator's messages */
    bad[4].lanes = 0;
    bad[5].address[1].length = 0;
    for (int i = 0; i < 6; i++)
        assert_int_equal(read_back(&bad[i]), -EPROTO);

    /* libfabric is not given an address's length, so ibx must check it. */
    struct ofi_side own = some_side(), peer = some_side();
    assert_true(ibx_ofi_side_fits(&own, &peer));
    peer.address[1].length = 2;
    assert_false(ibx_ofi_side_fits(&own, &peer));
    own.addr_format = peer.addr_format = FI_ADDR_STR;
    assert_false(ibx_ofi_side_fits(&own, &peer));
    peer.address[0].bytes[2] = peer.address[1].bytes[1] = '\0';
    assert_true(ibx_ofi_side_fits(&own, &peer));
    peer.addr_format = FI_SOCKADDR_IN;
    assert_false(ibx_ofi_side_fits(&own, &peer));
}

/* The bytes of an address are checked before they reach the endpoint. */
static void test_malformed_addresses(void **state)
{
    (void)state;
    struct sockaddr_storage local;
    struct ofi_side side = some_side();
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(9)};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memcpy(side.address[0].bytes, &here, sizeof(here));
    side.address[0].length = sizeof(here);
    ibx_ofi_side_local_towards(&side, &local);
    assert_int_equal(local.ss_family, AF_INET);
    for (size_t length = 1; length <= OFI_ADDRESS_MAX; length++) {
        side.address[0].length = length;
        ibx_ofi_side_local_towards(&side, &local);
        assert_int_equal(local.ss_family, length == sizeof(here) ? AF_INET : 0);
    }
    side.address[0].length = sizeof(here);
    side.address[0].bytes[0] = AF_UNIX;
    ibx_ofi_side_local_towards(&side, &local);
    assert_int_equal(local.ss_family, 0);
}

static void test_names(void **state)
{
    (void)state;
    assert_true(ibx_ofi_name_matches("tcp;ofi_rxm", "tcp"));
    assert_true(ibx_ofi_name_matches("tcp;ofi_rxm", "tcp;ofi_rxm"));
    assert_true(ibx_ofi_name_matches("efa", "efa"));
    assert_false(ibx_ofi_name_matches("tcp;ofi_rxm", "tc"));
    assert_false(ibx_ofi_name_matches("tcp;ofi_rxm", "tcpx"));
    assert_false(ibx_ofi_name_matches("psm3", "psm"));
    assert_false(ibx_ofi_name_matches("efa", "efa;ofi_rxm"));
}

static void test_probing(void **state)
{
    (void)state;
    char text[200];
    struct ibx_error err = {0};
    struct ibx_options options = {.provider = "auto"};
    if (access("/sys/class/infiniband", F_OK) && access("/sys/class/cxi", F_OK)) {
        assert_int_equal(ibx_provider_ofi.probe(&options, text, sizeof(text), &err), -ENODEV);
        assert_non_null(strstr(err.message, "no fabric device"));
    }
    snprintf(options.ofi_provider, sizeof(options.ofi_provider), "warp");
    assert_int_equal(ibx_provider_ofi.probe(&options, text, sizeof(text), &err), -ENODEV);
    assert_non_null(strstr(err.message, "\"warp\""));
    assert_non_null(strstr(err.message, "tcp"));
    snprintf(options.ofi_provider, sizeof(options.ofi_provider), "tcp");
    assert_int_equal(ibx_provider_ofi.probe(&options, text, sizeof(text), &err), 0);
    assert_non_null(strstr(text, "(an emulation)"));
}

static void test_refused_offers(void **state)
{
    (void)state;
    struct pair *pair = pair_open("shm");
    struct ofi_side side = some_side();
    snprintf(side.provider, sizeof(side.provider), "shm");
    ibx_ofi_side_put(&pair->offer_out, &side);
    assert_int_equal(join(pair), -EHOSTUNREACH);
    assert_non_null(strstr(pair->client.err.message, "another host"));
    pair_close(pair);

    pair = pair_open("sockets");
    side = some_side();
    ibx_ofi_side_put(&pair->offer_out, &side);
    assert_int_equal(join(pair), -EOPNOTSUPP);
    assert_non_null(strstr(pair->client.err.message, "offers libfabric's tcp"));
    pair_close(pair);
}

/* Everything derived from the session's key is wrong, or only the proof. */
static void test_wrong_proofs(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pair *pair = pair_open("tcp");
        struct end *server = &pair->server;
        struct finishing one, other;
        assert_int_equal(ibx_provider_ofi.offer(server->endpoint, &pair->offer_out, &server->err),
                         0);
        assert_int_equal(join(pair), 0);
        pair->client.wrong_proofs = true;
        pair->client.right_proofs = i ? "messages" : NULL;
        struct ibx_reader answer = ibx_reader_of(pair->answer, pair->answer_out.length);
        uint64_t deadline = ibx_deadline_in_ms(500);
        finish_start(&one, server, &answer, deadline);
        finish_start(&other, &pair->client, NULL, deadline);
        assert_int_equal(finish_join(&one), -ETIMEDOUT);
        assert_int_equal(finish_join(&other), -ETIMEDOUT);
        assert_non_null(strstr(pair->server.err.message, "no proof"));
        pair_close(pair);
    }
}

/* ---------------------------------------------------------------------- outsiders */

struct outsider {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t victim;
};

static struct outsider outsider_open(struct end *victim)
{
    struct ofi_endpoint *e = victim->ofi;
    struct outsider s = {.info = fi_dupinfo(e->choice.info)};
    struct fi_av_attr av = {.type = s.info->domain_attr->av_type, .count = 1};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
    assert_int_equal(fi_fabric(s.info->fabric_attr, &s.fabric, NULL), 0);
    assert_int_equal(fi_domain(s.fabric, s.info, &s.domain, NULL), 0);
    assert_int_equal(fi_av_open(s.domain, &av, &s.av, NULL), 0);
    assert_int_equal(fi_cq_open(s.domain, &cq, &s.cq, NULL), 0);
    assert_int_equal(fi_endpoint(s.domain, s.info, &s.ep, NULL), 0);
    assert_int_equal(fi_ep_bind(s.ep, &s.av->fid, 0), 0);
    assert_int_equal(fi_ep_bind(s.ep, &s.cq->fid, FI_TRANSMIT | FI_RECV), 0);
    assert_int_equal(fi_enable(s.ep), 0);
    assert_int_equal(fi_av_insert(s.av, e->own.address[0].bytes, 1, &s.victim, 0, NULL), 1);
    return s;
}

static void outsider_close(struct outsider *s)
{
    fi_close(&s->ep->fid);
    fi_close(&s->cq->fid);
    fi_close(&s->av->fid);
    fi_close(&s->domain->fid);
    fi_close(&s->fabric->fid);
    fi_freeinfo(s->info);
}

/* Sends, and drives the pair until the message has left. */
static void outsider_send(struct outsider *s, struct pair *pair, const void *bytes, size_t length)
{
    struct fi_context2 context;
    struct fi_cq_msg_entry entry;
    ssize_t rc;
    AWAIT(pair, (fi_cq_read(s->cq, &entry, 1),
                 rc = fi_send(s->ep, bytes, length, NULL, s->victim, &context)) != -FI_EAGAIN);
    assert_int_equal(rc, 0);
    AWAIT(pair, (rc = fi_cq_read(s->cq, &entry, 1)) != -FI_EAGAIN);
    assert_int_equal(rc, 1);
}

static void test_unauthenticated_senders(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct outsider outsider = outsider_open(&pair->server);
    static uint8_t bytes[8192];
    send_text(pair, &pair->client, "one");
    /* More messages of each kind than there are receive buffers. */
    for (unsigned i = 0; i < 40; i++) {
        static const uint8_t kinds[] = {OFI_DATA, OFI_HELLO, OFI_CREDIT, OFI_FENCE};
        memset(bytes, 0x77, sizeof(bytes));
        bytes[18] = kinds[i % 4];
        outsider_send(&outsider, pair, bytes, 5);
        outsider_send(&outsider, pair, bytes, OFI_HEADER_BYTES + 32);
        outsider_send(&outsider, pair, bytes, pair->server.ofi->buffer_bytes + 64);
    }
    send_text(pair, &pair->client, "two");
    AWAIT(pair, pair->server.count >= 2);
    outsider_close(&outsider);
    send_text(pair, &pair->client, "three");
    AWAIT(pair, pair->server.count >= 3);
    assert_received(pair, (const char *const[]){"one", "two", "three"}, 3);
    pair_close(pair);
}

static atomic_bool outsiders_without_end;

int __real_ibx_ofi_io_take(struct ofi_endpoint *e);
int __wrap_ibx_ofi_io_take(struct ofi_endpoint *e);

int __wrap_ibx_ofi_io_take(struct ofi_endpoint *e)
{
    return __real_ibx_ofi_io_take(e) + outsiders_without_end;
}

/* Messages arrive as fast as they are dropped, and none is from the client. */
static void test_outsiders_delay_no_deadline(void **state)
{
    (void)state;
    struct pair *pair = pair_open("tcp");
    struct end *server = &pair->server;
    struct finishing finishing;
    assert_int_equal(ibx_provider_ofi.offer(server->endpoint, &pair->offer_out, &server->err), 0);
    assert_int_equal(join(pair), 0);
    struct ibx_reader answer = ibx_reader_of(pair->answer, pair->answer_out.length);
    const uint64_t give_up = ibx_deadline_in_ms(patience_ms(20000));
    outsiders_without_end = true;
    finish_start(&finishing, server, &answer, ibx_deadline_in_ms(300));
    while (outsiders_without_end && pthread_tryjoin_np(finishing.thread, NULL) == EBUSY) {
        outsiders_without_end = ibx_now_ns() < give_up;
        poll(NULL, 0, 1);
    }
    assert_true(outsiders_without_end);
    outsiders_without_end = false;
    assert_non_null(strstr(server->err.message, "no proof"));
    pair_close(pair);
}

/* ---------------------------------------------------------------- a peer that lies */

static void test_order_is_restored(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *client = pair->client.ofi;
    static const uint32_t sent[] = {2, 1, 3, 0};
    static const char *const texts[] = {"a", "b", "c", "d"};
    for (unsigned i = 0; i < 4; i++) {
        client->next_send = sent[i];
        send_text(pair, &pair->client, texts[sent[i]]);
    }
    AWAIT(pair, pair->server.count == 4);
    assert_received(pair, texts, 4);
    pair_close(pair);
}

/* A breach of the protocol ends the connection with this sentence. */
static void expect_lost(struct pair *pair, const char *sentence)
{
    AWAIT(pair, end_lost(&pair->server));
    const struct note *lost = end_lost(&pair->server);
    assert_int_equal(lost->status, -EPROTO);
    if (!strstr(lost->reason, sentence))
        fail_msg("\"%s\" instead of \"%s\"", lost->reason, sentence);
    pair_close(pair);
}

static void test_sequence_number_outside_the_window(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    pair->client.ofi->next_send = 16;
    send_text(pair, &pair->client, "far");
    expect_lost(pair, "message 16");

    pair = pair_connect();
    send_text(pair, &pair->client, "first");
    AWAIT(pair, pair->server.count == 1);
    pair->client.ofi->next_send = 0;
    send_text(pair, &pair->client, "again");
    expect_lost(pair, "message 0");
}

static void test_credits_that_were_never_given(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    pair->client.ofi->returned = 1;
    pair->client.ofi->missing = 1;
    send_text(pair, &pair->client, "here you are");
    expect_lost(pair, "returned 1 credits");
}

/* None of its messages was released, so the peer has no credit. */
static void test_message_without_credit(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    for (unsigned i = 0; i < 16; i++)
        send_text(pair, &pair->client, "mine");
    AWAIT(pair, pair->server.count == 16);
    pair->client.ofi->credits = 1;
    send_text(pair, &pair->client, "more");
    expect_lost(pair, "message 16");
}

static void test_too_many_fences(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *client = pair->client.ofi;
    /* The answer to a FENCE waits for older chunks. If one stays in flight for ever, the second
     * FENCE is refused. */
    pair->server.ofi->chunks_in_flight++;
    assert_int_equal(ibx_ofi_msg_control(client, OFI_FENCE, 1), 0);
    assert_int_equal(ibx_ofi_msg_control(client, OFI_FENCE, 2), 0);
    expect_lost(pair, "FENCE");
}

static void test_keys(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    static char memory[2][4096];
    struct ibx_mr *mr[2];
    for (int i = 0; i < 2; i++)
        mr[i] = end_register(&pair->server, memory[i], sizeof(memory[i]), IBX_ACCESS_REMOTE_READ);
    /* Keys are random: neither small nor consecutive. */
    uint64_t a = mr[0]->keys[0], b = mr[1]->keys[0];
    assert_true(a > UINT32_MAX && b > UINT32_MAX && a - b > 1000 && b - a > 1000);

    struct ibx_mr *local =
        end_register(&pair->client, memory[1], sizeof(memory[1]), IBX_ACCESS_LOCAL);
    struct ibx_chunk chunk = {
        .kind = IBX_RDMA_READ,
        .lane = 1,
        .local = memory[1] + 100,
        .mr = local,
        .remote_address = (uintptr_t)memory[0] + 1000,
        .remote_keys = mr[0]->keys,
        .length = 5,
    };
    memcpy(memory[0] + 1000, "there", 5);
    assert_int_equal(ibx_provider_ofi.rdma(pair->client.endpoint, &chunk), 0);
    AWAIT(pair, pair->client.count);
    assert_ptr_equal(pair->client.notes[0].chunk, &chunk);
    assert_int_equal(pair->client.notes[0].status, 0);
    assert_memory_equal(memory[1] + 100, "there", 5);

    end_deregister(&pair->client, local);
    ibx_provider_ofi.abort(pair->server.endpoint);
    for (int i = 0; i < 2; i++)
        end_deregister(&pair->server, mr[i]);
    pair_close(pair);
}

/* Before libfabric is loaded: a temporary lack of descriptors must not disable it for ever. */
static void test_without_descriptors_for_a_while(void **state)
{
    (void)state;
    struct rlimit before, few;
    struct ibx_error err = {0};
    const int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(ibx_ofi_library(&err), -ENOSYS);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_non_null(strstr(err.message, strerror(EMFILE)));
    assert_int_equal(ibx_ofi_library(&err), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_descriptors_for_a_while),
        cmocka_unit_test(test_golden_offer),
        cmocka_unit_test(test_malformed_offers),
        cmocka_unit_test(test_malformed_addresses),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_probing),
        cmocka_unit_test(test_refused_offers),
        cmocka_unit_test(test_wrong_proofs),
        cmocka_unit_test(test_unauthenticated_senders),
        cmocka_unit_test(test_outsiders_delay_no_deadline),
        cmocka_unit_test(test_order_is_restored),
        cmocka_unit_test(test_sequence_number_outside_the_window),
        cmocka_unit_test(test_credits_that_were_never_given),
        cmocka_unit_test(test_message_without_credit),
        cmocka_unit_test(test_too_many_fences),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
