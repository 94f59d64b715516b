/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the compiler of PTX says (CUjit_option): logs, and the time it took. The back end compiles a
 * module when one of its kernels is first used, by the runtime, which writes no logs. If this
 * fails, or if the program asks for verbose logs, the back end compiles the PTX once more, by its
 * driver. PTX and logs go through memory of the device, since they do not fit into a request. Logs
 * of a back end that does not know this request stay empty.
 */
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/streams/streams.h"

/* CUjit_option */
enum { WALL_TIME = 2, INFO_LOG, INFO_BYTES, ERROR_LOG, ERROR_BYTES, VERBOSE = 12 };
#define OPTIONS 36 /* CUDA 13's */

static bool lacks_buffer(const struct ibx_compiler_log *log)
{
    return !log->to && log->room;
}

bool ibx_frontend_compiler_is_wrong(const struct ibx_compiler *c, unsigned count,
                                    const int *options, void *const *values)
{
    if (count && (!options || !values))
        return true;
    for (unsigned i = 0; i < count; i++)
        if (options[i] < 0 || options[i] >= OPTIONS)
            return true;
    return lacks_buffer(&c->info) || lacks_buffer(&c->error);
}

struct ibx_compiler ibx_frontend_compiler_of(unsigned count, const int *options, void **values)
{
    struct ibx_compiler c = {.time = NULL};
    unsigned times = 0;
    for (unsigned i = 0; i < count && options && values; i++) {
        struct ibx_compiler_log *log =
            options[i] == INFO_LOG || options[i] == INFO_BYTES ? &c.info : &c.error;
        switch (options[i]) {
        case WALL_TIME:
            c.time = times++ ? NULL : &values[i]; /* who asks twice is told nothing */
            break;
        case INFO_LOG:
        case ERROR_LOG:
            log->to = values[i];
            break;
        case INFO_BYTES:
        case ERROR_BYTES: /* the value itself is the number, and the answer replaces it */
            log->room = (uint32_t)(uintptr_t)values[i];
            log->filled = &values[i];
            break;
        case VERBOSE:
            c.is_verbose = values[i];
            break;
        default:
            break;
        }
    }
    return c;
}

static bool is_log(const struct ibx_compiler_log *log)
{
    return log->to && log->room;
}

/* Ends the log with a NUL after n bytes, for which there is room, and tells the program a length.
 */
static void fill(const struct ibx_compiler_log *log, size_t n, size_t length)
{
    if (is_log(log))
        log->to[n] = 0;
    if (log->filled)
        *log->filled = (void *)(uintptr_t)length;
}

static void say(const struct ibx_compiler *c, float ms)
{
    if (c->time)
        memcpy(c->time, &ms, sizeof(ms));
}

void ibx_frontend_compiler_is_silent(const struct ibx_compiler *c)
{
    fill(&c->info, 0, 0);
    fill(&c->error, 0, 0);
    say(c, 0);
}

void ibx_frontend_compiler_took(const struct ibx_compiler *c, const void *code, uint64_t ns)
{
    size_t n;
    if (c->time && ibx_image_measure(&code, SIZE_MAX, &n) == IBX_IMAGE_PTX)
        say(c, (float)ns / 1e6f);
}

void ibx_frontend_compiler_no_error(const struct ibx_compiler *c)
{
    fill(&c->error, 0, 0);
}

bool ibx_frontend_compiler_is_asked(const struct ibx_compiler *c)
{
    return is_log(&c->info) || is_log(&c->error);
}

static size_t room_of(const struct ibx_compiler_log *log)
{
    const size_t room = log->room < IBX_EXT_LOG_MOST ? log->room : IBX_EXT_LOG_MOST;
    return log->to ? room : 0;
}

/* Copies a log of n bytes from this address of the device, as far as there is room. The length of a
 * log that is cut is the room. */
static void take(const struct ibx_compiler_log *log, uintptr_t from, size_t n)
{
    const size_t room = room_of(log);
    const size_t most = room && n >= room ? room - 1 : n;
    const bool good =
        room && (!most || !cudaMemcpy(log->to, (const void *)from, most, CUDA_MEMCPY_FROM_DEVICE));
    fill(log, good ? most : 0, good ? (n < room ? n : room) : 0);
}

/* Returns what the driver returned, or 0 if this is not known. */
static int ask(const struct ibx_compiler *c, uintptr_t memory, size_t n, bool adds)
{
    struct extension_request e;
    uint8_t bytes[16] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    const size_t info = room_of(&c->info), error = room_of(&c->error);
    int rc = CUDA_SUCCESS;
    ibx_frontend_request_begin(&e, IBX_EXT_COMPILE, "cuModuleLoadDataEx");
    ibx_put_u64(&e.body, memory);
    ibx_put_u64(&e.body, n);
    ibx_put_u32(&e.body, (uint32_t)info);
    ibx_put_u32(&e.body, (uint32_t)error);
    ibx_put_u8(&e.body, (uint8_t)((c->is_verbose ? IBX_COMPILE_VERBOSE : 0) |
                                  (adds ? IBX_COMPILE_ADDS : 0)));
    if (!ibx_frontend_request_known(&e, bytes, sizeof(bytes), &rc) || rc)
        return CUDA_SUCCESS;
    const int result = (int)ibx_get_u32(&r);
    const uint32_t time = ibx_get_u32(&r), info_n = ibx_get_u32(&r), error_n = ibx_get_u32(&r);
    float ms;
    memcpy(&ms, &time, sizeof(ms));
    say(c, ms);
    take(&c->info, memory + n, info_n);
    take(&c->error, memory + n + info, error_n);
    return result;
}

int ibx_frontend_compile(const struct ibx_compiler *c, const void *code, bool adds)
{
    void *memory = NULL;
    size_t n = 0;
    if (!code || ibx_image_measure(&code, SIZE_MAX, &n) != IBX_IMAGE_PTX || !n ||
        n > IBX_EXT_PTX_MOST || ibx_frontend_capturing() ||
        cudaMalloc(&memory, n + room_of(&c->info) + room_of(&c->error)))
        return CUDA_SUCCESS;
    const int rc = cudaMemcpy(memory, code, n, CUDA_MEMCPY_TO_DEVICE)
                       ? CUDA_SUCCESS
                       : ask(c, (uintptr_t)memory, n, adds);
    const int mode = ibx_frontend_relax(); /* another thread may have begun a capture meanwhile */
    cudaFree(memory);
    ibx_frontend_relax_end(mode);
    return rc;
}

int ibx_frontend_compile_module(const struct ibx_compiler *c, const void *code)
{
    const int result = ibx_frontend_compile(c, code, false);
    return result == CUDA_UNKNOWN ? CUDA_INVALID_PTX : result;
}
