/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The choice of choice.h as `ib-bw tune` stores it, in the grammar of
 * gvirtus.properties:
 *
 *   gpu, driver, host     where it was measured; one that is left out is not compared
 *   h2d.inline            up to how many bytes, see choice.h; d2h.inline, too
 *   h2d.in_place          from how many bytes, or "never"; h2d.crew, h2d.direct
 *                         and the same of d2h, too
 *   chunk, threads
 *
 * What is left out is as it is where nothing was measured.
 */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_TUNING_H
#define IBX_FRONTEND_GLUE_PLUGIN_TUNING_H

#include "common/error.h"
#include "gpudirect/choice.h"

#include <stdio.h>

#define IBX_TUNING_NAME_MAX 128

struct ibx_cuda;

/* A GPU of this host, in characters that the file can hold; "": not known. */
struct ibx_tuning_place {
    char gpu[IBX_TUNING_NAME_MAX];
    char driver[16]; /* the CUDA version that it is for: "12.8" */
    char host[IBX_TUNING_NAME_MAX];
};

struct ibx_tuning {
    bool found; /* or else nothing below counts */
    struct ibx_choice choice;
    struct ibx_tuning_place place; /* "": any */
    char file[256];                /* for messages; cut if it is longer */
};

/* Reads `length` bytes of a file called `name`. -EINVAL names file, line, value and what is
 * accepted; -ENOMEM. Set on success only. */
int ibx_tuning_parse(const char *name, const char *text, size_t length, struct ibx_tuning *tuning,
                     struct ibx_error *err);
/* The same of a file; also -ENOENT and other errors of open(2) and read(2). */
int ibx_tuning_load(const char *file, struct ibx_tuning *tuning, struct ibx_error *err);
/* Writes what ibx_tuning_parse() reads as the same; errors are the stream's. */
void ibx_tuning_print(const struct ibx_tuning *tuning, FILE *out);

/* For a person, the ways of copies in one direction: by a crew of so many threads, 0 or 1: there is
 * none, and `direct` where that can be. Cut if `text` is too short. */
void ibx_tuning_describe(const struct ibx_choice *choice, enum ibx_choice_direction direction,
                         unsigned threads, bool direct, char *text, size_t size);

/* Where a device of the driver's is, as far as the driver says. */
void ibx_tuning_place_of(const struct ibx_cuda *cuda, int device, struct ibx_tuning_place *place);
/* Whether what was measured holds there; otherwise -EXDEV and a sentence. */
int ibx_tuning_fits(const struct ibx_tuning *tuning, const struct ibx_tuning_place *place,
                    struct ibx_error *err);

#endif
