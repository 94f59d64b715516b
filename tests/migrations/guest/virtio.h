/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a driver of any legacy virtio device on PCI needs: to find the device by its identity, and
 * queues with one request at a time, which is waited for. */
#ifndef TESTS_GUEST_VIRTIO_H
#define TESTS_GUEST_VIRTIO_H

#include <stdint.h>

#define PAGE            4096u
#define VIRTIO_QUEUES   3u
#define VIRTIO_CONFIG   20u /* bytes from `port`: the device's own registers */
#define VIRTIO_WRITABLE 2u  /* of a descriptor: the device writes there */

/* Descriptors and the available ring, then the used ring on a page of its own. */
struct virtio_queue {
    uint8_t bytes[4 * PAGE];
} __attribute__((aligned(4096)));

struct virtio {
    struct virtio_queue *queues; /* the driver's, as many as it begins with */
    uint16_t port;               /* of the first BAR; 0: there is no such device */
    uint16_t sizes[VIRTIO_QUEUES], turns[VIRTIO_QUEUES];
};

/* Sets up the queues from `first` to before `end`; takes those of the features that are offered. */
void virtio_begin(struct virtio *v, uint32_t identity, uint32_t features, uint16_t first,
                  uint16_t end);

/* Descriptor i of the next request in that queue. */
void virtio_put(struct virtio *v, uint16_t which, uint32_t i, void *memory, uint32_t length,
                uint16_t flags);

/* Makes a request of so many descriptors, which were put, and waits for its end. */
void virtio_request(struct virtio *v, uint16_t which, uint16_t count);

#endif
