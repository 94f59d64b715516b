/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/textures.h"

/* CUarray_format, the bits of its channels, and their cudaChannelFormatKind */
static const struct {
    unsigned format;
    int bits, kind;
} formats[] = {{0x01, 8, 1},  {0x02, 16, 1}, {0x03, 32, 1}, {0x08, 8, 0},
               {0x09, 16, 0}, {0x0a, 32, 0}, {0x10, 16, 2}, {0x20, 32, 2}};

#define FORMATS (sizeof(formats) / sizeof(formats[0]))

bool ibx_driver_channel(struct ibx_cuda_channel *channel, unsigned format, unsigned channels)
{
    size_t i = 0;
    while (i < FORMATS && formats[i].format != format)
        i++;
    if (i == FORMATS || (channels != 1 && channels != 2 && channels != 4))
        return false;
    const int bits = formats[i].bits;
    *channel = (struct ibx_cuda_channel){bits, channels > 1 ? bits : 0, channels > 2 ? bits : 0,
                                         channels > 2 ? bits : 0, formats[i].kind};
    return true;
}

bool ibx_driver_format(const struct ibx_cuda_channel *channel, unsigned *format, unsigned *channels)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].bits == channel->x && formats[i].kind == channel->kind) {
            *format = formats[i].format;
            *channels = channel->w ? 4 : channel->y ? 2 : 1;
            return true;
        }
    return false;
}
