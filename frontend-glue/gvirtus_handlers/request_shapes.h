/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handlers of G5 use a request before CUDA checks anything: they follow pointers that the request
 * does not have, or take a payload to be as long as its copy, and so crash the back end, or read
 * what other clients have left in its heap. This changes such requests.
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REQUEST_SHAPES_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REQUEST_SHAPES_H

#include "frontend-glue/back_end_common/types.h"
#include "frontend-glue/session/frames.h"

/* Bytes of a cudaMallocPitch as in G2, whose pitch comes behind its length. */
#define IBX_PITCH_BEHIND_LENGTH 32u

/* Changes the body of a request that GVirtuS is about to run, if its handler would do so: then the
 * handler or CUDA refuses it. `name` may be cut to 23 characters. */
void ibx_shapes_sanitize(const char *name, uint8_t *body, size_t n);

/* copy_structs.c: the same for the bodies of cuMemcpy2D and cudaMemcpy3D. */
void ibx_copy_rows_sanitize(uint8_t *body, size_t n);
void ibx_copy_planes_sanitize(uint8_t *body, size_t n);
/* How many bytes of device memory such a cudaMemcpy3D reaches, counted from the address that it
 * names. */
uint64_t ibx_copy_planes_bytes(const uint8_t *body, size_t n);

/* library_shapes.c: the same for libraries' handlers. `longest`: the length of the session's
 * longest request; GVirtuS's buffer for requests has room for it, which is memory that some
 * handlers write to. */
void ibx_library_shapes_sanitize(const char *name, uint8_t *body, size_t n, uint64_t longest);

/* library_arrays.c: the same for arrays of libraries and of the driver; `name` is whole. */
void ibx_library_arrays_sanitize(const char *name, uint8_t *body, size_t n);

/* Whether what the handler sends with an error may mean something. All others send variables or
 * memory of theirs that nothing has set then: elements of a copy, results of a search, numbers of a
 * generator for the host, names. */
bool ibx_shapes_answers_errors(const char *name);

/* What a handler sends behind that which its library has set, from its stack or its heap. */
enum ibx_library_rest { IBX_REST_NONE, IBX_REST_OF_RESULTS, IBX_REST_OF_TEXT };

enum ibx_library_rest ibx_library_rest_of(const char *name);
/* Replaces it by zeros in the payload of a reply. */
void ibx_library_clear_rest(enum ibx_library_rest rest, uint8_t *payload, size_t n);

/* fat_binaries.c, load_options.c: whether the handler of cudaRegisterFatBinary, or that of
 * cuModuleLoadDataEx, stays within what it has. A request for which it would not cannot be
 * changed so that it is refused: the session has to end. *kept: the bytes of kernels' names and
 * parameters that the handler keeps. */
bool ibx_fat_binary_fits(const uint8_t *body, size_t n, uint64_t *kept);
bool ibx_load_options_fit(const uint8_t *body, size_t n);
/* Bytes for which the handler makes room, whatever it finds then: twice what the longest compressed
 * image of a fat binary says it becomes, since there may be an image before it that is as long, or
 * names of sections that are as long. ibx_fat_binary_fits() needs no more. 0: none is
 * compressed. */
uint64_t ibx_fat_binary_unpacked(const uint8_t *body, size_t n);

/* fat_binaries.c: whether an image for the driver, of so many bytes, ends where it says: PTX with a
 * NUL. One that has an address in it never does. string(): likewise what a request has as a
 * string. */
bool ibx_image_fits(const uint8_t *bytes, size_t n);
bool ibx_image_string_fits(const uint8_t *body, size_t n);

/* load_options.c: the options of the last cuModuleLoadDataEx as the client sent them, if its front
 * end did; `count` 0: it did not. sanitize() changes options that want a log, so that the handler
 * can have them; answer() changes the payload of the reply to what the front end expects: empty
 * logs.
 */
void ibx_load_options_sanitize(uint8_t *body, size_t n, struct ibx_load_options *options);
void ibx_load_options_answer(const struct ibx_load_options *options, uint8_t *payload, size_t n);

/* request_shapes.c: to be called before `watch` notes the bytes. False: they belong to a name that
 * is longer than any call's, or that is not printable ASCII. GVirtuS keeps a name in memory, which
 * no limit counts, until its NUL comes. It writes an unknown name to its log as it is. */
bool ibx_shapes_is_name(const struct ibx_request_watch *watch, const uint8_t *bytes, size_t n);

/* Why a handler must not get a request. */
#define IBX_BARRED         1u  /* it cannot succeed */
#define IBX_BARRED_BESIDE  2u  /* it reaches what other clients of the process have */
#define IBX_BARRED_LIMITED 4u  /* it takes memory of the GPU that is not counted */
#define IBX_BARRED_PINNED  8u  /* it pins memory that is not counted */
#define IBX_BARRED_TENANTS 16u /* it reaches what other tenants have in other processes */

/* request_shapes.c: to be called before `watch` notes the bytes. Returns why the name that they end
 * or continue is barred, as bits; 0: it is not. *last: the character to change, so that no handler
 * has the name. */
unsigned ibx_shapes_barred(const struct ibx_request_watch *watch, uint8_t *bytes, size_t n,
                           uint8_t **last);

#endif
