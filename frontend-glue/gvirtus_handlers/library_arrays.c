/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Arrays that handlers pass on to cuDNN, cuFFT or CUDA with a number of elements of the client's,
 * while they have only one element, or as many as came.
 */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"

#include <stdlib.h>
#include <string.h>

#define DIMENSIONS      3u /* of a plan of cuFFT */
#define PADDINGS        8u /* more than a convolution has */
#define DEVICES         64u
#define DEVICE_NAME     1024u /* bytes that GVirtuS's buffer has behind the head of a request */
#define PARAMETER       8u    /* bytes of a parameter that the handler of cuParamSetv has */
#define P2P_TOKENS      5u    /* CUpointer_attribute: 16 bytes, for which the handler has 8 */
#define RESULT_LEAST    44u   /* of a cudnnConvolution...AlgoPerf_t, without what pads it ... */
#define RESULT_BYTES    48u   /* ... and with that */
#define HEURISTIC_BYTES 96u   /* of a cublasLtMatmulHeuristicResult_t */
#define ONE_RESULT      1u

/* ------------------------------------------------------- as many elements as came */

/* `last`: handlers take one element of each array (G3), or as many as they should. cuDNN reads all
 * of them. So behind the beginning of the last array, where G3 has it, there must be that many
 * ints. `most`: a library reads or writes so many elements behind one, and is still within the
 * request, or within GVirtuS's buffer. */
static const struct {
    const char *name;
    unsigned count; /* where the number of elements is, an i32 */
    unsigned last;  /* where the last array begins, if each has one element; 0: `most` counts */
    unsigned most;
} arrays[] = {
    {"cudnnGetConvolutionNdDescriptor", 8, 0, PADDINGS},
    {"cudnnSetConvolutionNdDescriptor", 8, 44, 0},
    {"cudnnSetFilterNdDescriptor", 16, 28, 0},
    {"cudnnSetPoolingNdDescriptor", 16, 52, 0},
    {"cudnnSetRNNDataDescriptor", 20, 36, 0},
    {"cudnnSetSpatialTransformerNdDescriptor", 16, 28, 0},
    {"cudnnSetTensorNdDescriptor", 12, 36, 0},
    {"cudnnSetTensorNdDescriptorEx", 8, 20, 0},
    {"cufftEstimateMany", 0, 0, DIMENSIONS},
    {"cufftGetSizeMany", 4, 0, DIMENSIONS},
    {"cufftGetSizeMany64", 4, 0, DIMENSIONS},
    {"cufftMakePlanMany", 4, 0, DIMENSIONS},
    {"cufftMakePlanMany64", 4, 0, DIMENSIONS},
    {"cufftXtMakePlanMany", 4, 0, DIMENSIONS},
    {"cufftXtSetGPUs", 4, 0, DEVICES},
};

static void sanitize_counts(const char *name, uint8_t *body, size_t n)
{
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        const size_t last = arrays[i].last;
        const size_t come = n > last ? (n - last) / 4 : 0, most = last ? come : arrays[i].most;
        if (!strcmp(arrays[i].name, name) && ibx_body_number(body, n, arrays[i].count, 4) > most)
            ibx_body_set_number(body, n, arrays[i].count, 4, 0);
    }
}

/* ------------------------------------------------------------------ cuDNN's algorithms */

static const struct {
    const char *name;
    unsigned count; /* where the number of results is that are asked for */
    bool one;       /* every handler has memory for one */
} searches[] = {
    {"cudnnFindConvolutionBackwardDataAlgorithm", 40, false},
    {"cudnnFindConvolutionBackwardDataAlgorithmEx", 64, false},
    {"cudnnFindConvolutionBackwardFilterAlgorithm", 40, false},
    {"cudnnFindConvolutionBackwardFilterAlgorithmEx", 64, false},
    {"cudnnFindConvolutionForwardAlgorithm", 40, true},
    {"cudnnFindConvolutionForwardAlgorithmEx", 64, false},
    {"cudnnGetConvolutionBackwardDataAlgorithm_v7", 40, false},
    {"cudnnGetConvolutionBackwardFilterAlgorithm_v7", 40, false},
    {"cudnnGetConvolutionForwardAlgorithm_v7", 40, false},
};
#define SEARCHES (sizeof(searches) / sizeof(searches[0]))

static bool is_dnn(const char *name)
{
    return !strncmp(name, "cudnn", 5);
}

static size_t find_search(const char *name)
{
    size_t i = is_dnn(name) ? 0 : SEARCHES;
    while (i < SEARCHES && strcmp(searches[i].name, name) != 0)
        i++;
    return i;
}

enum ibx_library_rest ibx_library_rest_of(const char *name)
{
    if (!strcmp(name, "cublasLtMatmulAlgoGetHeuristic"))
        return IBX_REST_OF_RESULTS;
    return strcmp(name, "nvmlDeviceGetName") && strcmp(name, "nvmlSystemGetDriverVersion")
               ? IBX_REST_NONE
               : IBX_REST_OF_TEXT;
}

/* The results behind their length in bytes, and then how many there are; or a text with a NUL. */
void ibx_library_clear_rest(enum ibx_library_rest rest, uint8_t *payload, size_t n)
{
    const size_t bytes = n < 8 ? 0 : (size_t)ibx_body_number(payload, n, 0, 8);
    size_t set = bytes;
    if (bytes > n || n - bytes < 8)
        return;
    if (rest == IBX_REST_OF_RESULTS && n - bytes == 12) {
        const uint64_t results = ibx_body_number(payload, n, 8 + bytes, 4);
        set = results > bytes / HEURISTIC_BYTES ? 0 : (size_t)results * HEURISTIC_BYTES;
    } else if (rest == IBX_REST_OF_TEXT) {
        set = strnlen((const char *)payload + 8, bytes);
    }
    memset(payload + 8 + set, 0, bytes - set);
}

/* A handler takes as many results out of the request, behind their length, as are asked for. If it
 * does not find them there, it has one, on its stack. */
static void sanitize_search(size_t i, uint8_t *body, size_t n)
{
    const size_t at = searches[i].count, behind = at + 4 + 8;
    const uint64_t asked = ibx_body_number(body, n, at, 4), left = n > behind ? n - behind : 0;
    const uint64_t fit = (left + RESULT_BYTES - RESULT_LEAST) / RESULT_BYTES;
    if (asked > ONE_RESULT && (searches[i].one || asked > fit))
        ibx_body_set_number(body, n, at, 4, ONE_RESULT);
}

/* -------------------------------------------------------------- memory that has to be there */

/* What libraries do not look at before they use it. -n: n bytes; pn: n bytes behind their length,
 * which must not be 0 (NULL); an: likewise, but they may be NULL. */
static const struct {
    const char *name, *layout;
} present[] = {
    {"cublasCrot_v2", "-36p4p8"},
    {"cublasCrotg_v2", "-8p8p8p4p8"},
    {"cublasCsrot_v2", "-36p4p4"},
    {"cublasDrot_v2", "-36p8p8"},
    {"cublasDrotg_v2", "-8p8p8p8p8"},
    {"cublasDrotm_v2", "-36p8"},
    {"cublasDrotmg_v2", "-8p8p8p8p8p8"},
    {"cublasSrot_v2", "-36p4p4"},
    {"cublasSrotg_v2", "-8p4p4p4p4"},
    {"cublasSrotm_v2", "-36p4"},
    {"cublasSrotmg_v2", "-8p4p4p4p4p4"},
    {"cublasZdrot_v2", "-36p8p8"},
    {"cublasZrot_v2", "-36p8p16"},
    {"cublasZrotg_v2", "-8p16p16p8p16"},
    {"cufftEstimate1d", "-12p8"},
    {"cufftEstimate2d", "-12p8"},
    {"cufftEstimate3d", "-16p8"},
    {"cufftEstimateMany", "-4p4a4-8a4-16p8"},
    {"cufftGetSize", "-4p8"},
    {"cufftGetSize1d", "-16p8"},
    {"cufftGetSize2d", "-16p8"},
    {"cufftGetSize3d", "-20p8"},
    {"cufftGetSizeMany", "-8p4a4-8a4-16p8"},
    {"cufftGetSizeMany64", "-8p8a8-16a8-28p8"},
    {"cufftMakePlan1d", "-16p8"},
    {"cufftMakePlan2d", "-16p8"},
    {"cufftMakePlan3d", "-20p8"},
    {"cufftMakePlanMany", "-8p4a4-8a4-16p8"},
    {"cufftMakePlanMany64", "-8p8a8-16a8-28p8"},
    {"cufftPlan1d", "p4"},
    {"cufftPlan3d", "p4"},
    {"cufftPlanMany", "p4-4p4"},
    {"cufftXtMakePlanMany", "-8p8a8-20a8-28p8"},
};

/* The handler takes what follows for it, and finds too few bytes. */
static void sanitize_absent(const char *name, uint8_t *body, size_t n)
{
    const char *layout = "";
    size_t at = 0;
    for (size_t i = 0; i < sizeof(present) / sizeof(present[0]); i++)
        layout = strcmp(present[i].name, name) ? layout : present[i].layout;
    while (*layout) {
        char *next;
        const char kind = *layout;
        const size_t bytes = strtoul(layout + 1, &next, 10);
        if (kind == 'p' && !ibx_body_number(body, n, at, 8))
            ibx_body_set_number(body, n, at, 8, bytes);
        at += kind == '-' ? bytes : 8 + (ibx_body_number(body, n, at, 8) ? bytes : 0);
        layout = next;
    }
}

/* -------------------------------------------------------------------------- CUDA's driver */

/* The string is as long as its length says, unless a second length is 0. */
static size_t behind_string(const uint8_t *body, size_t n)
{
    return 16 + (size_t)(ibx_body_number(body, n, 8, 8) ? ibx_body_number(body, n, 0, 8) : 0);
}

/* The name is written over the string that came. */
static void sanitize_device_name(uint8_t *body, size_t n)
{
    const size_t at = behind_string(body, n);
    if (ibx_body_number(body, n, at, 4) > DEVICE_NAME)
        ibx_body_set_number(body, n, at, 4, DEVICE_NAME);
}

/* CUDA refuses a parameter of no function. */
static void sanitize_parameter(uint8_t *body, size_t n)
{
    if (ibx_body_number(body, n, 4, 4) <= PARAMETER && ibx_body_number(body, n, 8, 8))
        return;
    ibx_body_set_number(body, n, 4, 4, 0);
    ibx_body_set_number(body, n, ibx_body_number(body, n, 8, 8) ? 24 : 16, 8, 0);
}

void ibx_library_arrays_sanitize(const char *name, uint8_t *body, size_t n)
{
    const size_t search = find_search(name);
    if (!strncmp(name, "cublas", 6) || !strncmp(name, "cufft", 5))
        sanitize_absent(name, body, n);
    if (search < SEARCHES)
        sanitize_search(search, body, n);
    else if (is_dnn(name) || !strncmp(name, "cufft", 5))
        sanitize_counts(name, body, n);
    if (!strcmp(name, "cufftPlanMany")) {
        const size_t at =
            ibx_body_number(body, n, 0, 8) ? 12 : 8; /* behind the place of the plan */
        if (ibx_body_number(body, n, at, 4) > DIMENSIONS)
            ibx_body_set_number(body, n, at, 4, 0);
    }
    if (!strcmp(name, "cuDeviceGetName"))
        sanitize_device_name(body, n);
    if (!strcmp(name, "cuParamSetv"))
        sanitize_parameter(body, n);
    if (!strcmp(name, "cuPointerGetAttribute") && ibx_body_number(body, n, 0, 4) == P2P_TOKENS)
        ibx_body_set_number(body, n, 0, 4, 0);
    /* The handler has one node, and a number of them that nobody has set. It returns only how many
     * there are, which CUDA tells it without nodes. */
    if (!strcmp(name, "cudaGraphGetNodes"))
        ibx_body_set_number(body, n, 8, 8, 0);
}
