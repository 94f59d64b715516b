/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* NCCL's functions of an application whose back end answers anything. A function writes only what
 * its caller has named, in memory without a spare byte, and a communicator that could not be made
 * is none. Groups may be left open; the next input begins without one.
 *
 * fake_frontend.c replaces the plugin and GVirtuS's front end. Input, in this order:
 *
 * - u8 n, and n steps of six bytes: the function's number, its communicator, two choices of a
 *   number, one of a count, one of where the result goes;
 * - the answers, see fake_frontend.h. */
#include "frontend-glue/session/math_nccl.h"
#include "tests/fuzz/fake_frontend.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEP  6u
#define COMMS 8u

struct unique_id {
    char bytes[IBX_NCCL_ID_BYTES];
};

/* As in nccl.h. */
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclGetUniqueId(struct unique_id *id);
int ncclGetVersion(int *version);
int ncclCommInitRankConfig(void **made, int ranks, struct unique_id id, int rank,
                           const void *config);
int ncclCommInitAll(void **made, int count, const int *devices);
int ncclCommSplit(void *parent, int color, int key, void **made, const void *config);
int ncclCommFinalize(void *communicator);
int ncclCommDestroy(void *communicator);
int ncclCommAbort(void *communicator);
int ncclCommGetAsyncError(void *communicator, int *state);
int ncclCommCount(void *communicator, int *count);
int ncclRedOpCreatePreMulSum(int *op, const void *scalar, int type, int residence,
                             void *communicator);
int ncclRedOpDestroy(int op, void *communicator);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *communicator,
                  void *stream);
int ncclSend(const void *from, size_t count, int type, int peer, void *communicator, void *stream);
const char *ncclGetLastError(void *communicator);

static void *communicators[COMMS];
static unsigned open_groups; /* as a program counts them */

/* A ncclConfig_t of the version that has so many bytes. */
static void *config_of(uint8_t choice)
{
    static const size_t sizes[] = {0, 12, 16, 20, 32, 48, 64, 128};
    const size_t n = sizes[choice % 8];
    const unsigned magic = choice % 16 < 15 ? 0xcafebeef : 0;
    uint8_t *config = n ? malloc(n < 12 ? 12 : n) : NULL;
    if (!config)
        return NULL;
    memset(config, choice, n);
    memcpy(config, &n, sizeof(n));
    memcpy(config + sizeof(n), &magic, sizeof(magic));
    return config;
}

static void make_one(const uint8_t *step)
{
    static const struct unique_id ids[2] = {{{1}}, {{2}}};
    void *made = NULL, *config = config_of(step[5]);
    const int status =
        ncclCommInitRankConfig(&made, step[2] % 4, ids[step[4] % 2], step[3] % 4, config);
    require(!status || status == NCCL_IN_PROGRESS || !made);
    communicators[step[1] % COMMS] = made;
    free(config);
}

static void make_all(const uint8_t *step)
{
    const int count = step[2] % 6 - 1;
    void **made = calloc(COMMS, sizeof(*made));
    require(made);
    ncclCommInitAll(made, count, NULL);
    for (unsigned i = 0; i < COMMS; i++) {
        require((int)i < count || !made[i]);
        communicators[i] = made[i] ? made[i] : communicators[i];
    }
    free(made);
}

static void split(const uint8_t *step, void *parent)
{
    void *made = NULL, *config = config_of(step[5]);
    const int status = ncclCommSplit(parent, step[2] % 4 - 1, step[3], &made, config);
    require(!status || status == NCCL_IN_PROGRESS || !made);
    communicators[step[4] % COMMS] = made;
    free(config);
}

static void operate(const uint8_t *step, void *of)
{
    void *const from = (void *)(uintptr_t)(step[5] % 4 * 0x1000u);
    for (unsigned i = 0; i < (step[4] == 255 ? IBX_NCCL_OPERATIONS + 1 : step[4] % 4u); i++) {
        if (step[3] % 2)
            ncclSend(from, step[2], step[3] % 16 - 1, i % 2 != 0, of, from);
        else
            ncclAllReduce(from, from, step[2], step[3] % 16 - 1, step[5] % 8, of, NULL);
    }
}

static void make_operator(const uint8_t *step, void *of)
{
    const int type = step[3] % 16 - 1;
    const size_t n = ibx_nccl_bytes(type);
    int op = -1;
    void *scalar = malloc(n ? n : 1);
    require(scalar);
    memset(scalar, step[4], n ? n : 1);
    ncclRedOpCreatePreMulSum(&op, scalar, type, step[2] % 2, of);
    ncclRedOpDestroy(op, of);
    free(scalar);
}

static void ask(const uint8_t *step, void *of)
{
    struct unique_id *id = malloc(sizeof(*id));
    int *n = malloc(sizeof(*n));
    require(id && n);
    switch (step[2] % 5) {
    case 0:
        ncclGetUniqueId(id);
        break;
    case 1:
        ncclGetVersion(n);
        break;
    case 2:
        ncclCommGetAsyncError(of, n);
        break;
    case 3:
        ncclCommCount(of, n);
        break;
    default:
        require(strlen(ncclGetLastError(of)) < 256);
    }
    free(id);
    free(n);
}

static void run_step(const uint8_t *step)
{
    void *of = communicators[step[1] % COMMS];
    switch (step[0] % 11) {
    case 0:
        make_one(step);
        break;
    case 1:
        make_all(step);
        break;
    case 2:
        split(step, of);
        break;
    case 3:
        ncclCommFinalize(of);
        break;
    case 4:
        ncclCommDestroy(of);
        break;
    case 5:
        ncclCommAbort(of);
        break;
    case 6:
        open_groups += !ncclGroupStart();
        break;
    case 7:
        require((ncclGroupEnd() == NCCL_INVALID_USAGE) >= !open_groups);
        open_groups -= open_groups != 0;
        break;
    case 8:
        operate(step, of);
        break;
    case 9:
        make_operator(step, of);
        break;
    default:
        ask(step, of);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned count;
    const uint8_t *steps = fake_frontend_steps(data, size, STEP, &count);
    if (!steps)
        return 0;
    for (unsigned i = 0; i < count; i++)
        run_step(steps + (size_t)STEP * i);
    for (; open_groups; open_groups--)
        ncclGroupEnd();
    require(ncclGroupEnd() == NCCL_INVALID_USAGE); /* none is open */
    memset(communicators, 0, sizeof(communicators));
    return 0;
}
