/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptions of textures by CUDA's runtime and by its driver. The client's library of the driver
 * makes the former of the latter; the back end does the opposite for a texture that only the driver
 * makes (IBX_TEXTURE_BY_DRIVER).
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_TEXTURES_H
#define IBX_FRONTEND_GLUE_SESSION_TEXTURES_H

#include "frontend-glue/session/extensions.h"

/* Bits behind the texture's description in a CREATE_TEXTURE. Back ends before the second bit take
 * any that is set for the first one, and refuse the request. */
#define IBX_TEXTURE_HAS_VIEW  1u
#define IBX_TEXTURE_BY_DRIVER 2u /* the driver makes it, not the runtime */

/* Words of cudaTextureDesc */
enum {
    IBX_WORD_ADDRESS,
    IBX_WORD_FILTER = 3,
    IBX_WORD_READ,
    IBX_WORD_SRGB,
    IBX_WORD_BORDER,
    IBX_WORD_NORMALIZED = 10,
    IBX_WORD_ANISOTROPY,
    IBX_WORD_MIPMAP_FILTER,
    IBX_WORD_BIAS,
    IBX_WORD_LEAST_LEVEL,
    IBX_WORD_GREATEST_LEVEL,
    IBX_WORD_NO_TRILINEAR,
    IBX_WORD_SEAMLESS
};
enum ibx_texture_read { IBX_READ_ELEMENTS, IBX_READ_NORMALIZED };
enum ibx_texture_filter { IBX_FILTER_POINT, IBX_FILTER_LINEAR };

/* CU_TRSF_* */
#define IBX_DRIVER_AS_INTEGERS      0x01u
#define IBX_DRIVER_NORMALIZED       0x02u
#define IBX_DRIVER_SRGB             0x10u
#define IBX_DRIVER_NO_TRILINEAR     0x20u
#define IBX_DRIVER_SEAMLESS_CUBEMAP 0x40u

/* CUDA_RESOURCE_DESC; its kinds are the runtime's. */
struct ibx_driver_resource {
    int kind;
    union {
        void *array;
        struct {
            uint64_t at;
            unsigned format, channels;
            size_t sizes[3];
        } memory;
        int reserved[32];
    } of;
    unsigned flags;
};

/* CUDA_TEXTURE_DESC */
struct ibx_driver_texture {
    int address[3], filter;
    unsigned flags, anisotropy;
    int mipmap_filter, bias, least_level, greatest_level; /* floats, as they are */
    int border[4], reserved[12];
};

/* Converts CUarray_format to cudaChannelFormatDesc, and back. False: there is no such format. */
bool ibx_driver_channel(struct ibx_cuda_channel *channel, unsigned format, unsigned channels);
bool ibx_driver_format(const struct ibx_cuda_channel *channel, unsigned *format,
                       unsigned *channels);

#endif
