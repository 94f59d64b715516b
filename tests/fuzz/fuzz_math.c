/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests for functions of cuBLAS and other libraries (session/math_calls.h) from a client that
 * sends anything. What the back end makes of them reaches simulated libraries, which check each
 * handle, and memory of the host if the pointer mode says so.
 *
 * Input, request after request: the function's number, two bytes; its handle, one; the pointer
 * mode, one; how many bytes of the body are cut off, one; then a byte for each choice of its
 * arguments. */
#include "common/log.h"
#include "frontend-glue/session/hooks.h"
#include "frontend-glue/session/math_calls.h"
#include "frontend-glue/session/math_descriptors.h"
#include "tests/fuzz/require.h"
#include "tests/fixtures/extensions.h"

#include <dlfcn.h>
#include <stdlib.h>

#define REQUESTS 32u
#define ALONG    5u /* handles to choose from */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct ibx_reader input;
static uint64_t handles[ALONG];

static uint8_t choice(void)
{
    return ibx_reader_left(&input) ? ibx_get_u8(&input) : 1;
}

static uint64_t address(void)
{
    const uint64_t made_up[] = {0, 0x1234, alice.memory, alice.memory + 64, bob.memory};
    return made_up[choice() % 5];
}

/* Attributes of cuDNN's graphs have numbers from 900 on. */
static bool is_attribute(const struct ibx_math_function *f, unsigned argument)
{
    return argument == 1 && (f->number == IBX_MATH_cudnnBackendSetAttribute ||
                             f->number == IBX_MATH_cudnnBackendGetAttribute);
}

static void put_plain(struct ibx_writer *w, const struct ibx_math_function *f, unsigned argument,
                      union ibx_math_value *v)
{
    const struct ibx_math_argument *a = &f->arguments[argument];
    switch (a->kind) {
    case IBX_MATH_INT:
    case IBX_MATH_FLOAT:
        v->i = is_attribute(f, argument) ? 900 + choice() : (int8_t)choice();
        ibx_put_u32(w, (uint32_t)v->i);
        break;
    case IBX_MATH_LONG:
    case IBX_MATH_DOUBLE:
        v->l = choice();
        ibx_put_u64(w, v->l);
        break;
    case IBX_MATH_OTHER:
        ibx_put_u64(w, handles[choice() % ALONG]);
        break;
    case IBX_MATH_STREAM:
    case IBX_MATH_DEVICE:
        ibx_put_u64(w, address());
        break;
    default:
        break;
    }
}

/* A descriptor of few attributes, most of them valid for its type. */
static void put_descriptor(struct ibx_writer *w, enum ibx_descriptor_type type)
{
    uint8_t bytes[IBX_DESCRIPTOR_MAX];
    size_t n = 0;
    for (unsigned number = 0; number < 64; number++) {
        const struct ibx_attribute *a = ibx_attribute_find(type, number);
        const bool needed = a && a->use == IBX_ATTRIBUTE_MADE_OF;
        if (!a || !(needed || choice() % 8 == 2))
            continue;
        const uint64_t value = a->size == 8 ? address() : choice() % 4;
        ibx_descriptor_set(bytes, sizeof(bytes), &n, a, number > 1 && needed ? 2 : value);
    }
    const uint8_t spoilt = choice();
    if (n && spoilt % 8 == 5)
        bytes[choice() % n] ^= (uint8_t)(1u << spoilt / 32);
    n -= spoilt % 16 == 7 && n;
    ibx_put_u8(w, spoilt % 16 == 9 ? 0 : (uint8_t)n);
    if (spoilt % 16 != 9)
        ibx_put_bytes(w, bytes, n);
}

/* The descriptor says where the scalar is; here the input may contradict it. */
static void put_scalar(struct ibx_writer *w)
{
    const uint8_t kind = choice() % 4;
    if (kind == 1) {
        ibx_put_u64(w, address());
    } else if (kind) {
        ibx_put_u8(w, 1);
        ibx_put_u64(w, choice());
        w->length -= kind == 2 ? 4 : 0;
    }
}

/* Returns false if it is another kind. */
static bool put_of_lt(struct ibx_writer *w, const struct ibx_math_argument *a)
{
    switch (a->kind) {
    case IBX_MATH_DESCRIPTOR:
        put_descriptor(w, (enum ibx_descriptor_type)a->n);
        return true;
    case IBX_MATH_ALPHA:
    case IBX_MATH_BETA:
        put_scalar(w);
        return true;
    case IBX_MATH_LAST_STREAM:
        ibx_put_u64(w, address());
        return true;
    default:
        return false;
    }
}

static void put_sized(struct ibx_writer *w, const struct ibx_math_argument *a, bool on_device,
                      const union ibx_math_value *values)
{
    const bool scalar =
        a->kind == IBX_MATH_SCALAR || a->kind == IBX_MATH_RESULT || a->kind == IBX_MATH_CHANGED;
    const bool bytes = a->kind == IBX_MATH_SCALAR || a->kind == IBX_MATH_CHANGED ||
                       a->kind == IBX_MATH_HOST_CHANGED || a->kind == IBX_MATH_ARRAY ||
                       a->kind == IBX_MATH_ARRAY_OR_NULL || a->kind == IBX_MATH_HOST_OR_NULL;
    if (a->kind < IBX_MATH_MAKES || put_of_lt(w, a))
        return;
    if (scalar && on_device) {
        ibx_put_u64(w, address());
        return;
    }
    const bool there = choice() % 8;
    ibx_put_u8(w, there);
    const size_t n = bytes && there ? ibx_math_bytes(a, values) : 0;
    const bool of_handles = a->size == IBX_MATH_OF_ATTRIBUTE && n && !(n % 8) && choice() % 2;
    for (size_t i = 0; i < (of_handles ? n / 8 : 0); i++)
        ibx_put_u64(w, handles[choice() % ALONG]);
    for (size_t i = 0; i < (of_handles ? 0 : n); i++)
        ibx_put_u8(w, choice());
}

static int send(uint8_t *bytes, size_t n, uint64_t *made)
{
    uint8_t answer[IBX_MATH_OUT];
    struct ibx_writer out = ibx_writer_of(answer, sizeof(answer));
    const struct ibx_request q = {.length = n, .body = bytes};
    const int status = ibx_device_math(&alice.x, &q, &out);
    struct ibx_reader r = ibx_reader_of(out.data, out.length);
    require(!out.failed);
    *made = ibx_get_u64(&r);
    return status;
}

static bool makes(const struct ibx_math_function *f)
{
    bool any = false;
    for (unsigned i = 0; i < f->count; i++)
        any = any || f->arguments[i].kind == IBX_MATH_MAKES ||
              f->arguments[i].kind == IBX_MATH_MAKES_PLAN;
    return any;
}

static void request_anything(void)
{
    uint8_t bytes[IBX_MATH_BODY + 64];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    union ibx_math_value values[IBX_MATH_ARGUMENTS] = {{0}};
    const unsigned which = (unsigned)choice() << 8 | choice();
    const struct ibx_math_function *f = ibx_math_find(which);
    if (!f)
        f = ibx_math_each(which % IBX_MATH_FUNCTIONS);
    const uint8_t handle = choice(), on_device = choice() % 2, cut = choice();
    uint64_t made = 0;
    ibx_put_u64(&w, handle % 8 < ALONG ? handles[handle % 8] : handle);
    ibx_put_u16(&w, f->number);
    ibx_put_u8(&w, on_device);
    for (unsigned i = 0; i < f->count; i++)
        put_plain(&w, f, i, &values[i]);
    for (unsigned i = 0; i < f->count; i++)
        put_sized(&w, &f->arguments[i], on_device, values);
    if (w.failed)
        return;
    if (!send(bytes, w.length - cut % 4 * (cut % 16 == 3), &made) && makes(f) && made)
        handles[handle % ALONG] = made;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    ibx_log_set_level(IBX_LOG_ERROR);
    setenv("IBX_LIBCUDA", LIBCUDA_DOUBLE, 1);
    setenv("IBX_TEST_CUDART", LIBCUDART_DOUBLE, 1);
    require(!ext_set_up(NULL));
    ibx_clients_join(&alice.x);
    ibx_clients_join(&bob.x);
    require(dlopen(LIBCUBLAS_DOUBLE, RTLD_LAZY) && dlopen(LIBCURAND_DOUBLE, RTLD_LAZY) &&
            dlopen(LIBCUBLASLT_DOUBLE, RTLD_LAZY) && dlopen(LIBCUFFT_DOUBLE, RTLD_LAZY) &&
            dlopen(LIBCUSPARSE_DOUBLE, RTLD_LAZY) && dlopen(LIBCUSOLVER_DOUBLE, RTLD_LAZY) &&
            dlopen(LIBCUDNN_DOUBLE, RTLD_LAZY));
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_taken *taken = NULL;
    input = ibx_reader_of(data, size);
    for (unsigned i = 0; i < REQUESTS && ibx_reader_left(&input); i++)
        request_anything();
    const size_t count = ibx_handles_take(&alice.x, &taken); /* as if she had ended */
    for (size_t i = 0; i < count; i++) {
        if (taken[i].kind >= IBX_HANDLE_MATH)
            ibx_math_end(taken[i].kind - IBX_HANDLE_MATH, taken[i].value);
    }
    free(taken);
    memset(handles, 0, sizeof(handles));
    return 0;
}
