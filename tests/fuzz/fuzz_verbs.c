/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The verbs provider receives anything from a peer: offers and answers, private data of requests
 * and replies of the connection manager in any order, and messages. Neither end connects a queue
 * pair without a proof; each receive buffer is posted once at a time; credits are counted
 * correctly.
 *
 * cm.c and message.c are linked with this file's connection manager and queue pairs. First byte:
 *
 *   0, 1   client, server: u8 length and bytes of the offer or answer, then events: u8 type, u8
 *          which queue pair (bit 7: the listener is wrong), u8 how (bit 0: the proof is right; bit
 *          1: the head of a request too), u8 length, private data
 *   else   messages: u8 which of the posted receives, u8 how (bit 0: the header is right except for
 *          its credits; 1: a message is sent first; 2: the oldest one is released first; 3: all
 *          sends have completed), u8 credits, u8 length, bytes */
#include "tests/fuzz/require.h"
#include "tests/fuzz/quiet.h"
#include "transport/verbs/verbs.h"

#include "common/address.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#define SLOTS   4u
#define MESSAGE 120u
#define IDS     64u
#define PROOF   0x5a /* each byte of it */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ibx_reader input;
static struct ibx_options options;
static enum ibx_role role;
static struct verbs *v;
/* whether the connection has ended; whether the proof of the current event was checked */
static bool is_over, is_checked;

/* ------------------------------------------------------------------- the core */

const struct ibx_options *ibx_link_options(const struct ibx_link *link)
{
    (void)link;
    return &options;
}

enum ibx_role ibx_link_role(const struct ibx_link *link)
{
    (void)link;
    return role;
}

int ibx_link_socket(const struct ibx_link *link)
{
    (void)link;
    return -1;
}

void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    (void)link;
    require(strlen(label) < 159);
    memset(proof, PROOF, IBX_PROOF_BYTES);
}

int ibx_link_wait(struct ibx_link *link, int fd, short events, uint64_t deadline_ns)
{
    (void)link, (void)fd, (void)events, (void)deadline_ns;
    return ibx_reader_left(&input) ? 0 : -ETIMEDOUT;
}

int ibx_link_watch(struct ibx_link *link, int fd)
{
    (void)link, (void)fd;
    return 0;
}

/* ------------------------------------------------- the provider's other files */

int ibx_verbs_device_check(const struct ibx_options *o, unsigned rail, const struct rdma_cm_id *id,
                           struct ibx_error *err)
{
    (void)o, (void)err;
    require(rail < IBX_RAILS_MAX && id);
    return 0;
}

bool ibx_verbs_device_name(const struct ibx_options *o, unsigned n, char *name, size_t size)
{
    (void)o, (void)n, (void)size;
    *name = 0;
    return false;
}

int ibx_verbs_device_address(const struct ibx_options *o, const char *device,
                             const struct sockaddr *prefer, struct verbs_port *ports,
                             unsigned count, struct sockaddr_storage *address,
                             struct ibx_error *err)
{
    (void)o, (void)device, (void)prefer, (void)ports, (void)count, (void)err;
    ibx_address_make(address, "\x0a\0\0\x07", 4, 0);
    return 0;
}

void ibx_verbs_address_print(const struct sockaddr *address, char *out, size_t size)
{
    (void)address;
    snprintf(out, size, "10.0.0.7");
}

unsigned ibx_verbs_mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

int ibx_verbs_mr_error(int code, const void *address, size_t length, const char *device,
                       struct ibx_error *err)
{
    (void)address, (void)length, (void)device;
    return ibx_error_set(err, -code, "not here");
}

int ibx_verbs_rail_open(struct verbs *of, struct verbs_rail *rail, struct rdma_cm_id *id,
                        struct ibx_error *err)
{
    static struct ibv_pd pd;
    (void)err;
    require(of == v && rail >= v->rails && rail < v->rails + v->rail_count && id);
    rail->pd = &pd;
    return 0;
}

static int post_receives(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static struct ibv_context context = {.ops = {.post_recv = post_receives, .post_send = post_send}};
static struct ibv_qp pairs[1 + IBX_RAILS_MAX * VERBS_LANES_MAX];

int ibx_verbs_qp_create(struct verbs *of, struct verbs_lane *lane, struct ibx_error *err)
{
    (void)err;
    require(of == v && lane->index < v->lane_count && !lane->qp);
    lane->qp = &pairs[lane->index];
    *lane->qp = (struct ibv_qp){.context = &context, .qp_num = 100 + lane->index};
    return 0;
}

int ibx_verbs_qp_connect(struct verbs *of, struct verbs_lane *lane, struct ibx_error *err)
{
    (void)err;
    require(of == v && lane->qp && is_checked);
    is_checked = false;
    return 0;
}

bool ibx_verbs_move(struct verbs *of, struct ibx_state_machine *machine, unsigned to)
{
    (void)of;
    require(!ibx_state_move(machine, to));
    return true;
}

void ibx_verbs_lost(struct verbs *of, int status, const char *format, ...)
{
    (void)of;
    require(status < 0 && format[0]);
    is_over = true;
}

/* ----------------------------------------------------------------- libibverbs */

static struct {
    bool posted;
    uint8_t *at;
    size_t room;
} receives[SLOTS + 8];
static unsigned outstanding; /* sends */
static uint64_t last_send;

static int post_receives(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)bad;
    require(qp == &pairs[0]);
    for (unsigned n = 0; wr; wr = wr->next) {
        const uint64_t slot = wr->wr_id >> 2;
        require(slot < v->messages.receives && slot < SLOTS + 8 && !receives[slot].posted);
        require(++n <= v->messages.receives && wr->num_sge == 1);
        receives[slot].posted = true;
        receives[slot].at = (uint8_t *)(uintptr_t)wr->sg_list->addr;
        receives[slot].room = wr->sg_list->length;
    }
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    (void)bad;
    require(qp == &pairs[0] && !wr->next && wr->sg_list->length <= 8 + MESSAGE);
    require(++outstanding <= v->messages.buffers);
    last_send = wr->wr_id >> 2;
    return 0;
}

/* The header's macro calls it if nothing is optimized. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
                                unsigned access)
{
    (void)iova;
    return (ibv_reg_mr)(pd, address, length, (int)access);
}

struct ibv_mr *(ibv_reg_mr)(struct ibv_pd *pd, void *address, size_t length, int access)
{
    static struct ibv_mr mr;
    (void)pd, (void)access;
    require(address && length);
    return &mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    require(mr);
    return 0;
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    (void)device;
    return "fuzz0";
}

int(ibv_query_port)(struct ibv_context *of, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    (void)of, (void)port;
    ((struct ibv_port_attr *)(void *)attr)->active_mtu = IBV_MTU_4096;
    return 0;
}

/* ------------------------------------------------------------------ librdmacm */

static struct rdma_cm_id *ids[IDS]; /* that are not destroyed */
static unsigned id_count;
static struct rdma_cm_event event;
static uint8_t private_data[256];
static bool is_taken;

static struct rdma_cm_id *id_new(void *of)
{
    struct rdma_cm_id *id = id_count < IDS ? calloc(1, sizeof(*id)) : NULL;
    if (!id)
        return NULL;
    id->context = of;
    id->verbs = &context;
    ids[id_count++] = id;
    return id;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *of,
                   enum rdma_port_space space)
{
    (void)channel, (void)space;
    *id = id_new(of);
    errno = ENOMEM;
    return *id ? 0 : -1;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
    unsigned i = 0;
    while (i < id_count && ids[i] != id)
        i++;
    require(i < id_count && !is_taken); /* it would wait until the event is acknowledged */
    ids[i] = ids[--id_count];
    free(id);
    return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
    return id && address ? 0 : -1;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
    (void)backlog;
    return id ? 0 : -1;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int ms)
{
    (void)from, (void)ms;
    require(id && (to->sa_family == AF_INET || to->sa_family == AF_INET6));
    return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int ms)
{
    (void)ms;
    return id ? 0 : -1;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    require(id && param->private_data_len <= 56); /* what RDMA_PS_TCP leaves */
    return 0;
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    require(id && param->private_data_len == IBX_PROOF_BYTES);
    return 0;
}

int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
    (void)data, (void)length;
    return id ? 0 : -1;
}

int rdma_establish(struct rdma_cm_id *id)
{
    return id ? 0 : -1;
}

const char *rdma_event_str(enum rdma_cm_event_type type)
{
    (void)type;
    return "an event";
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
    (void)id;
    return htobe16(4791);
}

static struct rdma_cm_id *id_of(unsigned which)
{
    if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST)
        return id_new(NULL);
    for (unsigned i = 0; v->lane_count && i < v->lane_count; i++) {
        struct rdma_cm_id *id = v->lanes[(which + i) % v->lane_count].id;
        if (id)
            return id;
    }
    return NULL;
}

/* Reads the private data of an event. Returns whether it has the proof. */
static bool take_data(unsigned which, unsigned how)
{
    const bool request = event.event == RDMA_CM_EVENT_CONNECT_REQUEST;
    const size_t head = request ? 4 : 0, length = ibx_get_u8(&input);
    const size_t n = length < ibx_reader_left(&input) ? length : ibx_reader_left(&input);
    memset(private_data, 0, sizeof(private_data));
    if (n)
        memcpy(private_data, ibx_get_bytes(&input, n), n);
    if (how & 2 && request)
        memcpy(private_data, (uint8_t[]){1, 0, (uint8_t)which, 0}, 4);
    if (how & 1)
        memset(private_data + head, PROOF, IBX_PROOF_BYTES);
    event.param.conn.private_data_len = (uint8_t)length;
    event.param.conn.private_data = length ? private_data : NULL;
    for (size_t i = 0; i < IBX_PROOF_BYTES; i++) {
        if (private_data[head + i] != PROOF)
            return false;
    }
    return length >= head + IBX_PROOF_BYTES;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **taken)
{
    (void)channel;
    require(!is_taken);
    event = (struct rdma_cm_event){0};
    if (ibx_reader_left(&input) < 4) {
        input = ibx_reader_of(NULL, 0);
        errno = EAGAIN;
        return -1;
    }
    event.event = ibx_get_u8(&input) % (RDMA_CM_EVENT_TIMEWAIT_EXIT + 1);
    const unsigned which = ibx_get_u8(&input), how = ibx_get_u8(&input);
    is_checked = take_data(which & 127, how);
    event.param.conn.qp_num = 7;
    event.param.conn.responder_resources = event.param.conn.initiator_depth = (uint8_t)(how >> 2);
    event.status = -(int)(how >> 4);
    /* A client has no listener, and no requests. */
    const bool none = event.event == RDMA_CM_EVENT_CONNECT_REQUEST && role == IBX_ROLE_CLIENT;
    event.id = none ? NULL : id_of(which & 127);
    if (!event.id) {
        errno = EAGAIN;
        return -1;
    }
    const unsigned lane = which & 127;
    if (event.event == RDMA_CM_EVENT_CONNECT_REQUEST && v->lanes)
        event.listen_id = which & 128 || lane >= v->lane_count ? v->rails[0].listener
                                                               : v->lanes[lane].rail->listener;
    *taken = &event;
    is_taken = true;
    return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *of)
{
    require(of == &event && is_taken);
    memset(private_data, 0xee, sizeof(private_data)); /* freed now */
    is_taken = false;
    return 0;
}

/* ------------------------------------------------------------------- the test */

static struct {
    uint64_t slot;
} held[SLOTS];
static unsigned held_count;

static void on_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    (void)link;
    require(length <= MESSAGE && held_count < SLOTS && slot < SLOTS + 8 && !receives[slot].posted);
    require(data == receives[slot].at + 8);
    held[held_count++].slot = slot;
}

static void on_lost(struct ibx_link *link, int status, const char *reason)
{
    (void)link;
    require(status < 0 && reason[0]);
    is_over = true;
}

static void on_sent(struct ibx_link *link, uint64_t cookie, int status)
{
    (void)link, (void)cookie, (void)status;
}

static const struct ibx_upcalls upcalls = {
    .message = on_message, .lost = on_lost, .send_done = on_sent};

static const struct ibx_state states[] = {
    [VERBS_LIVE] = {"live", 0, IBX_STATE_INITIAL | IBX_STATE_FINAL}};
static const struct ibx_state_table table = IBX_STATE_TABLE("verbs connection", states);

static void begin(struct ibx_link *link)
{
    static struct rdma_event_channel channel = {.fd = -1};
    options = (struct ibx_options){
        .slots = SLOTS, .message = MESSAGE, .rails = 2, .timeout_ms = 1000, .gid_index = -1};
    v = calloc(1, sizeof(*v));
    require(v);
    v->link = link;
    v->events = &channel;
    ibx_state_begin(&v->state, &table, VERBS_LIVE);
    memset(receives, 0, sizeof(receives));
    outstanding = held_count = 0;
    is_over = is_checked = is_taken = false;
}

static void end(void)
{
    ibx_verbs_messages_close(v);
    for (unsigned i = 0; i < v->lane_count && v->lanes; i++) {
        if (v->lanes[i].id)
            rdma_destroy_id(v->lanes[i].id);
    }
    for (unsigned i = 0; i < IBX_RAILS_MAX; i++) {
        if (v->rails[i].listener)
            rdma_destroy_id(v->rails[i].listener);
    }
    require(!id_count); /* nothing of the peer's is left */
    free(v->lanes);
    free(v);
}

static void connect_it(void)
{
    static uint8_t bytes[512];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    struct ibx_error err = {.code = 0};
    const size_t length = ibx_get_u8(&input);
    const uint8_t *from = ibx_get_bytes(&input, length);
    struct ibx_reader r = ibx_reader_of(from, from ? length : 0);
    int rc = 0;
    if (role == IBX_ROLE_CLIENT)
        rc = ibx_verbs_join(v, &r, &w, &err);
    else
        rc = ibx_verbs_offer(v, &w, &err);
    require(!w.failed);
    if (!rc)
        rc = ibx_verbs_finish(v, role == IBX_ROLE_CLIENT ? NULL : &r, UINT64_MAX, &err);
    require(rc ? err.code == rc && err.message[0] : v->lane_count > 1);
    require(!rc || !strstr(err.message, "internal error"));
    for (unsigned i = 0; i < v->lane_count && !rc; i++)
        require(v->lanes[i].state.now == VERBS_LANE_UP);
    if (!rc)
        ibx_verbs_cm_progress(v);
}

static void release_oldest(void)
{
    if (!held_count)
        return;
    const uint64_t slot = held[0].slot;
    memmove(held, held + 1, --held_count * sizeof(held[0]));
    ibx_verbs_release(v, slot);
}

/* A message arrives in the buffer that was posted first after that one. */
static void hear(void)
{
    const uint8_t which = ibx_get_u8(&input), how = ibx_get_u8(&input),
                  credits = ibx_get_u8(&input);
    if (how & 4)
        release_oldest();
    if (how & 2)
        ibx_verbs_send(v, &(struct iovec){"hello", 5}, 1, 5, 1, how & 16 ? IBX_SIGNALED : 0);
    if (how & 8) {
        ibx_verbs_sends_retire(v, last_send, 0);
        outstanding = 0;
    }
    unsigned slot = 0, n = v->messages.receives;
    while (slot < n && !receives[(which + slot) % n].posted)
        slot++;
    require(slot < n); /* otherwise the peer would get "receiver not ready" */
    slot = (which + slot) % n;
    size_t length = ibx_get_u8(&input);
    length = length < receives[slot].room ? length : receives[slot].room;
    length = length < ibx_reader_left(&input) ? length : ibx_reader_left(&input);
    if (length)
        memcpy(receives[slot].at, ibx_get_bytes(&input, length), length);
    if (how & 1 && length >= 8)
        memcpy(receives[slot].at, (uint8_t[]){length > 8 ? 1 : 2, 0, credits, 0, 0, 0, 0, 0}, 8);
    receives[slot].posted = false;
    ibx_verbs_message_received(v, slot, length);
}

static void messages(void)
{
    struct ibx_error err;
    v->rail_count = 1;
    v->lane_count = 1;
    v->lanes = calloc(1, sizeof(*v->lanes));
    require(v->lanes);
    v->lanes[0].rail = &v->rails[0];
    require(!ibx_verbs_qp_create(v, &v->lanes[0], NULL));
    require(!ibx_verbs_messages_open(v, &err) && !ibx_verbs_messages_prepost(v, &err));
    while (ibx_reader_left(&input) && !is_over) {
        hear();
        require(v->messages.credits <= SLOTS && v->messages.held <= SLOTS);
        require(held_count <= v->messages.held && v->messages.owed <= v->messages.held);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_link link = {.up = &upcalls};
    input = ibx_reader_of(data, size);
    const uint8_t mode = ibx_get_u8(&input);
    begin(&link);
    role = mode ? IBX_ROLE_SERVER : IBX_ROLE_CLIENT;
    if (mode > 1)
        messages();
    else
        connect_it();
    end();
    return 0;
}
