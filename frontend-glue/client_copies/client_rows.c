/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cudaMemcpy2D. GVirtuS's frames have whole pitches, also after the last row, where the memory need
 * not be the application's. A reply overwrites the gaps between rows. Here no byte after the last
 * row is read, and none outside of the rows is written:
 *
 *   without gaps       the rows, as they are
 *   to the device      few bytes: the rows alone, in the message
 *                      gaps shorter than rows: up to the last row with gaps, then the last row
 *                      otherwise: the rows alone, packed in bands
 *   from the device    the rows alone; this side puts each into its place
 */
#include "frontend-glue/client_copies/client_frame.h"

#include <stdlib.h>
#include <string.h>

#define BAND (1u << 20) /* bytes packed at a time, unless one row has more */

/* One frame with only the rows, each from or to its own place. */
static int copy_packed(struct ibx_session *s, const struct ibx_frontend_copy *copy, int *exit_code)
{
    struct client_rows rows = {copy->host, copy->host_pitch, copy->rows};
    struct ibx_frontend_copy packed = *copy;
    packed.host_pitch = copy->n;
    return ibx_client_exchange(s, &packed, &rows, exit_code);
}

/* With the gaps: no byte has to be copied on this side. */
static int copy_but_last(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                         int *exit_code)
{
    struct ibx_frontend_copy first = *copy, last = *copy;
    first.rows--;
    last.rows = last.host_pitch = last.device_pitch = 0;
    last.host = (uint8_t *)copy->host + first.rows * copy->host_pitch;
    last.device += first.rows * copy->device_pitch;
    int rc = ibx_client_exchange(s, &first, NULL, exit_code);
    return rc || *exit_code ? rc : ibx_client_exchange(s, &last, NULL, exit_code);
}

static void pack(uint8_t *to, const struct ibx_frontend_copy *copy, size_t from, size_t rows)
{
    const uint8_t *at = (const uint8_t *)copy->host + from * copy->host_pitch;
    for (size_t i = 0; i < rows; i++)
        memcpy(to + i * copy->n, at + i * copy->host_pitch, copy->n);
}

static int copy_bands(struct ibx_session *s, const struct ibx_frontend_copy *copy, int *exit_code)
{
    size_t each = copy->n < BAND ? BAND / copy->n : 1;
    struct ibx_frontend_copy band = *copy;
    band.host_pitch = copy->n;
    band.host = malloc(each * copy->n);
    if (!band.host) {
        *exit_code = IBX_CUDA_ERROR_UNKNOWN;
        return 0;
    }
    int rc = 0;
    *exit_code = 0;
    for (size_t i = 0; i < copy->rows && !rc && !*exit_code; i += each) {
        band.rows = copy->rows - i < each ? copy->rows - i : each;
        band.device = copy->device + i * copy->device_pitch;
        pack(band.host, copy, i, band.rows);
        rc = ibx_client_exchange(s, &band, NULL, exit_code);
    }
    ssize_t flushed = rc ? rc : ibx_session_write(s, NULL, 0); /* the band is free after it */
    free(band.host);
    return flushed < 0 ? (int)flushed : 0;
}

int ibx_client_copy_rows(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                         int *exit_code)
{
    if (copy->host_pitch == copy->n)
        return ibx_client_exchange(s, copy, NULL, exit_code);
    if (!copy->to_device || copy->n * copy->rows < ibx_session_caps(s)->rendezvous)
        return copy_packed(s, copy, exit_code);
    return copy->rows > 1 && copy->host_pitch / 2 < copy->n ? copy_but_last(s, copy, exit_code)
                                                            : copy_bands(s, copy, exit_code);
}
