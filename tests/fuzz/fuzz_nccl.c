/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* NCCL's requests (session/math_nccl.h) from two clients that send anything. What the back end
 * makes of them reaches a simulated library, which ends the process if it gets a communicator that
 * it has not made, and reads and writes the device memory that operations name. The clients are
 * gone as soon as the back end has waited for them, so that ranks that never come cost little.
 *
 * Input, request after request: whose it is and the function, a byte; its communicator, one; how
 * many bytes of the body are cut off, one; then a byte for each choice of its arguments. */
#include "common/log.h"
#include "frontend-glue/session/hooks.h"
#include "frontend-glue/session/math_calls.h"
#include "frontend-glue/session/math_nccl.h"
#include "tests/fuzz/require.h"
#include "tests/fixtures/extensions.h"

#include <stdlib.h>

#define REQUESTS 24u
#define KEPT     4u /* communicators to choose from, of each client */
#define BODY     8192u

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

bool __wrap_ibx_session_client_gone(struct ibx_session *s, uint64_t *since);
bool __wrap_ibx_session_client_gone(struct ibx_session *s, uint64_t *since)
{
    (void)s, (void)since;
    return true;
}

static struct ibx_reader input;
static struct client *const clients[] = {&alice, &bob};
static uint64_t kept[2][KEPT];
static uint8_t ids[2][IBX_NCCL_ID_BYTES];

static uint8_t choice(void)
{
    return ibx_reader_left(&input) ? ibx_get_u8(&input) : 1;
}

static uint64_t address(void)
{
    const uint64_t made_up[] = {
        0,          0x1234, alice.memory, alice.memory + 64, bob.memory, bob.memory + MEMORY - 4,
        UINT64_MAX, 0};
    return made_up[choice() % 8];
}

static int number(void)
{
    static const int numbers[] = {0, 1, 2, 3, 5, 7, 8, -1, 64, IBX_NCCL_UNSET, INT32_MAX};
    const uint8_t which = choice();
    return which < 128 ? which % 4 : numbers[which % (sizeof(numbers) / sizeof(numbers[0]))];
}

static uint64_t communicator(void)
{
    const uint8_t which = choice();
    return which < 2 * KEPT ? kept[which / KEPT][which % KEPT] : which & 1 ? alice.memory : 0;
}

static void put_operation(struct ibx_writer *w, uint64_t first)
{
    static const uint64_t counts[] = {1, 0, 16, MEMORY / 4, MEMORY, UINT64_MAX / 2, UINT64_MAX};
    const uint8_t other = choice();
    ibx_put_u32(w, other < 240 ? other % IBX_NCCL_CALLS : other);
    ibx_put_u32(w, (uint32_t)(choice() % 15 - 1));
    ibx_put_u32(w, (uint32_t)number());
    ibx_put_u32(w, (uint32_t)number());
    ibx_put_u64(w, address());
    ibx_put_u64(w, address());
    ibx_put_u64(w, counts[choice() % (sizeof(counts) / sizeof(counts[0]))]);
    ibx_put_u64(w, choice() % 4 ? first : communicator());
    ibx_put_u64(w, choice() % 8 ? 0 : address());
}

static void put_plain(struct ibx_writer *w, const struct ibx_math_argument *a,
                      union ibx_math_value *v, uint64_t handle)
{
    switch (a->kind) {
    case IBX_MATH_INT:
        v->i = number();
        ibx_put_u32(w, (uint32_t)v->i);
        break;
    case IBX_MATH_OTHER:
        ibx_put_u64(w, handle);
        break;
    case IBX_MATH_DEVICE:
        ibx_put_u64(w, address());
        break;
    default:
        break;
    }
}

static void put_sized(struct ibx_writer *w, const struct ibx_math_argument *a,
                      const union ibx_math_value *values, uint64_t handle)
{
    const size_t n = ibx_math_bytes(a, values);
    if (a->kind == IBX_MATH_LAST_STREAM)
        ibx_put_u64(w, choice() % 8 ? 0 : address());
    if (a->kind < IBX_MATH_MAKES || a->kind == IBX_MATH_LAST_STREAM)
        return;
    const bool output = a->kind == IBX_MATH_MAKES || a->kind == IBX_MATH_OUTPUT;
    const uint8_t how = choice() % 16;
    const bool there = how != 3 && (output || n || how == 5); /* no array is NULL, mostly */
    ibx_put_u8(w, there);
    if (output || !there || n > BODY)
        return;
    if (n == IBX_NCCL_ID_BYTES) {
        ibx_put_bytes(w, ids[choice() % 2], n);
        return;
    }
    if (a->n == IBX_NCCL_OPERATION_BYTES) {
        for (size_t i = 0; i < n / IBX_NCCL_OPERATION_BYTES; i++)
            put_operation(w, handle);
        return;
    }
    for (size_t i = 0; i < n / 4; i++)
        ibx_put_u32(w, (uint32_t)number());
}

static bool makes(const struct ibx_math_function *f)
{
    bool any = false;
    for (unsigned i = 0; i < f->count; i++)
        any = any || f->arguments[i].kind == IBX_MATH_MAKES;
    return any;
}

static int send(struct client *c, const uint8_t *bytes, size_t n, struct ibx_reader *answer)
{
    static uint8_t room[IBX_MATH_OUT];
    struct ibx_writer out = ibx_writer_of(room, sizeof(room));
    const struct ibx_request q = {.length = n, .body = bytes};
    const int status = ibx_device_math(&c->x, &q, &out);
    require(!out.failed);
    *answer = ibx_reader_of(out.data, out.length);
    return status;
}

static const struct ibx_math_function *function_of(uint8_t which)
{
    static const unsigned numbers[] = {
        IBX_MATH_ncclCommInitRankConfig,
        IBX_MATH_ncclGroupEnd,
        IBX_MATH_ncclCommSplit,
        IBX_MATH_ncclCommGetAsyncError,
        IBX_MATH_ncclRedOpCreatePreMulSum,
        IBX_MATH_ncclRedOpDestroy,
        IBX_MATH_ncclCommFinalize,
        IBX_MATH_ncclCommDestroy,
        IBX_MATH_ncclCommAbort,
        IBX_MATH_ncclGroupStart,
        IBX_MATH_ncclCommCount,
        IBX_MATH_ncclGetLastError,
        IBX_MATH_ncclGetUniqueId,
        IBX_MATH_ncclCommUserRank,
        IBX_MATH_ncclCommCuDevice,
        IBX_MATH_ncclGetVersion,
    };
    return ibx_math_find(numbers[which % (sizeof(numbers) / sizeof(numbers[0]))]);
}

static void request_anything(void)
{
    static uint8_t bytes[BODY + 1024];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    union ibx_math_value values[IBX_MATH_ARGUMENTS] = {{0}};
    const uint8_t which = choice(), who = which >> 7;
    const struct ibx_math_function *f = function_of(which);
    const uint64_t handle = communicator();
    const uint8_t cut = choice();
    struct ibx_reader answer;
    ibx_put_u64(&w, handle);
    ibx_put_u16(&w, f->number);
    ibx_put_u8(&w, cut >> 7);
    for (unsigned i = 0; i < f->count; i++)
        put_plain(&w, &f->arguments[i], &values[i], handle);
    for (unsigned i = 0; i < f->count; i++)
        put_sized(&w, &f->arguments[i], values, handle);
    if (w.failed || send(clients[who], bytes, w.length - cut % 4 * (cut % 16 == 3), &answer))
        return;
    const uint64_t made = makes(f) ? ibx_get_u64(&answer) : 0;
    if (made)
        kept[who][cut % KEPT] = made;
}

/* A unique id counts until its communicator is made, so two are enough for all inputs. */
static void get_id(uint8_t id[IBX_NCCL_ID_BYTES])
{
    uint8_t bytes[16];
    struct ibx_reader answer;
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u64(&w, 0);
    ibx_put_u16(&w, IBX_MATH_ncclGetUniqueId);
    ibx_put_u8(&w, 0);
    ibx_put_u8(&w, 1);
    require(!send(&alice, bytes, w.length, &answer));
    const uint8_t *at = ibx_get_bytes(&answer, IBX_NCCL_ID_BYTES);
    require(at);
    memcpy(id, at, IBX_NCCL_ID_BYTES);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    ibx_log_set_level(IBX_LOG_ERROR);
    setenv("IBX_LIBCUDA", LIBCUDA_DOUBLE, 1);
    setenv("IBX_TEST_CUDART", LIBCUDART_DOUBLE, 1);
    setenv("IBX_LIBNCCL", LIBNCCL_DOUBLE, 1);
    require(!ext_set_up(NULL));
    for (unsigned i = 0; i < 2; i++) {
        clients[i]->x.options.nccl = true;
        ibx_clients_join(&clients[i]->x);
    }
    get_id(ids[0]);
    get_id(ids[1]);
    return 0;
}

/* As if the client had ended. */
static void end(struct client *c)
{
    struct ibx_taken *taken = NULL;
    const size_t count = ibx_handles_take(&c->x, &taken);
    for (size_t i = 0; i < count; i++)
        if (taken[i].kind == IBX_HANDLE_MATH + IBX_MATH_COMM)
            ibx_math_end(IBX_MATH_COMM, taken[i].value);
    free(taken);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = ibx_reader_of(data, size);
    for (unsigned i = 0; i < REQUESTS && ibx_reader_left(&input); i++)
        request_anything();
    for (unsigned i = 0; i < 2; i++)
        end(clients[i]);
    memset(kept, 0, sizeof(kept));
    return 0;
}
