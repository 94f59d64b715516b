/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/second_context.h"

#include "common/log.h"
#include "common/state_machine.h"

#include <pthread.h>
#include <stdatomic.h>

#define DEVICES       32
#define OUT_OF_MEMORY 2 /* CUresult */
#define NOT_SUPPORTED 801
#define NON_BLOCKING  1u /* CU_STREAM_NON_BLOCKING */
#define BLOCKS        8u /* of the kernel, which fill a PCIe link */
#define THREADS       256u
#define WORD          16u /* bytes that a thread of the kernel for aligned copies moves at once */
#define STACK_SIZE    0   /* CU_LIMIT_STACK_SIZE */
#define FOR_WORDS     "ibx_copy_words"
#define FOR_BYTES     "ibx_copy_bytes"

/* A kernel with the arguments: where to, where from, the number of elements. `load` and `store`
 * move one element of 1 << `shift` bytes between the registers and [%from], [%to]. */
#define KERNEL(name, shift, load, store)                                                           \
    ".visible .entry " name "(.param .u64 a, .param .u64 b, .param .u64 c)\n"                      \
    "{\n"                                                                                          \
    "    .reg .pred %over;\n"                                                                      \
    "    .reg .b32 %t, %n, %c, %k, %first, %all, %v0, %v1, %v2, %v3;\n"                            \
    "    .reg .b64 %i, %step, %count, %at, %to, %from, %tos, %froms;\n"                            \
    "    ld.param.u64 %tos, [a];\n"                                                                \
    "    ld.param.u64 %froms, [b];\n"                                                              \
    "    ld.param.u64 %count, [c];\n"                                                              \
    "    mov.u32 %t, %tid.x;\n"                                                                    \
    "    mov.u32 %n, %ntid.x;\n"                                                                   \
    "    mov.u32 %c, %ctaid.x;\n"                                                                  \
    "    mov.u32 %k, %nctaid.x;\n"                                                                 \
    "    mad.lo.u32 %first, %c, %n, %t;\n"                                                         \
    "    mul.lo.u32 %all, %k, %n;\n"                                                               \
    "    cvt.u64.u32 %i, %first;\n"                                                                \
    "    cvt.u64.u32 %step, %all;\n"                                                               \
    "next:\n"                                                                                      \
    "    setp.ge.u64 %over, %i, %count;\n"                                                         \
    "    @%over bra done;\n"                                                                       \
    "    shl.b64 %at, %i, " shift ";\n"                                                            \
    "    add.u64 %from, %froms, %at;\n"                                                            \
    "    add.u64 %to, %tos, %at;\n"                                                                \
    "    " load "\n"                                                                               \
    "    " store "\n"                                                                              \
    "    add.u64 %i, %i, %step;\n"                                                                 \
    "    bra next;\n"                                                                              \
    "done:\n"                                                                                      \
    "    ret;\n"                                                                                   \
    "}\n"

static const char program[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n" KERNEL(FOR_WORDS, "4", "ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%from];",
                                "st.global.v4.u32 [%to], {%v0, %v1, %v2, %v3};")
        KERNEL(FOR_BYTES, "0", "ld.global.u8 %v0, [%from];", "st.global.u8 [%to], %v0;");

/* Functions of the driver that only this file calls. */
static struct {
    int (*ctx_create)(void **context, unsigned flags, int device);
    int (*ctx_set_limit)(int limit, size_t value);
    int (*stream_create)(void **stream, unsigned flags);
    int (*module_load_data)(void **module, const void *image);
    int (*module_get_function)(void **function, void *module, const char *name);
    int (*launch)(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                  void **arguments, void **extra);
} driver;
static pthread_once_t looked = PTHREAD_ONCE_INIT;

/*
 * The second context of a device. It is made only once, and never destroyed: the driver would wait
 * for all work of the device, and streams wait for the caller (driver 580, H200).
 *
 * state machine: second context
 *   [*] -> NONE -> READY | REFUSED -> [*]
 *   READY -> FAILED -> [*]                a copy there has failed
 *   NONE -> [*]
 */
enum second_state { SECOND_NONE, SECOND_READY, SECOND_REFUSED, SECOND_FAILED };

static const struct ibx_state second_states[] = {
    [SECOND_NONE] = {"none", IBX_TO(SECOND_READY) | IBX_TO(SECOND_REFUSED),
                     IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [SECOND_READY] = {"ready", IBX_TO(SECOND_FAILED), IBX_STATE_FINAL},
    [SECOND_REFUSED] = {"refused", 0, IBX_STATE_FINAL},
    [SECOND_FAILED] = {"failed", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table second_table = IBX_STATE_TABLE("second context", second_states);

/* Each has its lock, which is held while a copy waits for the GPU: the device may not get on. */
static struct second {
    pthread_mutex_t lock;
    _Atomic unsigned state; /* enum second_state; moved under the lock */
    void *context, *stream, *for_words, *for_bytes;
} seconds[DEVICES];

/* The one place that changes the state. The caller holds the lock. */
static void move(struct second *s, enum second_state to)
{
    if (ibx_state_allows(&second_table, atomic_load(&s->state), to))
        atomic_store(&s->state, to);
}

static void look(void)
{
    for (unsigned i = 0; i < DEVICES; i++)
        pthread_mutex_init(&seconds[i].lock, NULL);
    *(void **)&driver.ctx_create = ibx_cuda_symbol("cuCtxCreate_v2");
    *(void **)&driver.ctx_set_limit = ibx_cuda_symbol("cuCtxSetLimit");
    *(void **)&driver.stream_create = ibx_cuda_symbol("cuStreamCreate");
    *(void **)&driver.module_load_data = ibx_cuda_symbol("cuModuleLoadData");
    *(void **)&driver.module_get_function = ibx_cuda_symbol("cuModuleGetFunction");
    *(void **)&driver.launch = ibx_cuda_symbol("cuLaunchKernel");
}

static bool is_complete(void)
{
    return driver.ctx_create && driver.ctx_set_limit && driver.stream_create &&
           driver.module_load_data && driver.module_get_function && driver.launch;
}

/* That of the current context's device, and the number of this; NULL: there is none. */
static struct second *second_of(const struct ibx_cuda *cuda, int *device)
{
    pthread_once(&looked, look);
    return !cuda->ctx_get_device(device) && *device >= 0 && *device < DEVICES ? &seconds[*device]
                                                                              : NULL;
}

bool ibx_second_context_is_there(const struct ibx_cuda *cuda)
{
    int device;
    const struct second *s = second_of(cuda, &device);
    return s && atomic_load(&s->state) == SECOND_READY;
}

/* In the new context, which is current. Its kernels need no stack, for which the driver has taken
 * half of the context's memory. */
static int fill(struct second *s)
{
    void *module;
    driver.ctx_set_limit(STACK_SIZE, 0);
    int rc = driver.stream_create(&s->stream, NON_BLOCKING);
    if (!rc)
        rc = driver.module_load_data(&module, program);
    if (!rc)
        rc = driver.module_get_function(&s->for_words, module, FOR_WORDS);
    return rc ? rc : driver.module_get_function(&s->for_bytes, module, FOR_BYTES);
}

/* Called under the lock. */
static int make(const struct ibx_cuda *cuda, struct second *s, int device)
{
    void *popped;
    int rc = is_complete() ? driver.ctx_create(&s->context, 0, device) : NOT_SUPPORTED;
    if (rc)
        return rc;
    rc = fill(s);
    cuda->ctx_pop_current(&popped);
    return rc;
}

static void tell(const struct ibx_cuda *cuda, int device, int rc)
{
    if (rc)
        ibx_log(IBX_LOG_WARN,
                "a function of a program, called by a stream of device %d, waits for managed "
                "memory behind streams that wait for it, and may wait for ever: the driver refuses "
                "a second context with a kernel to copy that memory: %s%s",
                device, ibx_cuda_error_name(cuda, rc),
                rc == OUT_OF_MEMORY ? "; it takes some 550 MB of the device's memory, and is not "
                                      "tried again before this process ends"
                                    : "");
    else
        ibx_log(IBX_LOG_INFO,
                "a second context was made on device %d, since streams that wait keep a copy for a "
                "function of a program waiting; it takes memory of the device until this process "
                "ends",
                device);
}

bool ibx_second_context_make(const struct ibx_cuda *cuda)
{
    int device;
    struct second *s = second_of(cuda, &device);
    if (!s)
        return false;
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->state) == SECOND_NONE) {
        const int rc = make(cuda, s, device);
        move(s, rc ? SECOND_REFUSED : SECOND_READY);
        tell(cuda, device, rc);
    }
    pthread_mutex_unlock(&s->lock);
    return atomic_load(&s->state) == SECOND_READY;
}

static int launch(const struct second *s, uint64_t to, uint64_t from, size_t n)
{
    const bool words = !((to | from | n) % WORD);
    uint64_t count = words ? n / WORD : n;
    void *arguments[] = {&to, &from, &count};
    return driver.launch(words ? s->for_words : s->for_bytes, BLOCKS, 1, 1, THREADS, 1, 1, 0,
                         s->stream, arguments, NULL);
}

/* Called under the lock, after an error that may stay. */
static void fail(const struct ibx_cuda *cuda, struct second *s, int device, int rc)
{
    move(s, SECOND_FAILED);
    ibx_log(IBX_LOG_WARN,
            "the second context of device %d does not copy any more: %s; if streams that wait for "
            "a function of a program keep copies of managed memory for it waiting, it may wait for "
            "ever from now on",
            device, ibx_cuda_error_name(cuda, rc));
}

int ibx_second_context_copy(const struct ibx_cuda *cuda, uint64_t to, uint64_t from, size_t n)
{
    int device, rc = NOT_SUPPORTED;
    void *popped;
    struct second *s = second_of(cuda, &device);
    if (!s)
        return rc;
    pthread_mutex_lock(&s->lock);
    if (atomic_load(&s->state) == SECOND_READY && !(rc = cuda->ctx_push_current(s->context))) {
        rc = launch(s, to, from, n);
        rc = rc ? rc : cuda->stream_synchronize(s->stream);
        cuda->ctx_pop_current(&popped);
    }
    if (rc && atomic_load(&s->state) == SECOND_READY)
        fail(cuda, s, device, rc);
    pthread_mutex_unlock(&s->lock);
    return rc;
}
