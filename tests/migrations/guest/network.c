/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "network.h"
#include "ports.h"
#include "virtio.h"

#define LEGACY_ID 0x10001af4u /* of the card: device, vendor */
/* MAC and link in the configuration, a control queue, and a MAC that the driver sets. */
#define WANTED     (1u << 5 | 1u << 16 | 1u << 17 | 1u << 23)
#define ETHERTYPE  0x88b5u /* for experiments */
#define HEAD_BYTES 10u
#define FRAME      60u

/* Registers, bytes from the device's port. */
enum { MAC = VIRTIO_CONFIG, LINK = VIRTIO_CONFIG + 6 };
enum { SEND = 1, CONTROL = 2, QUEUES };

static struct virtio_queue queues[QUEUES];
static struct virtio card = {.queues = queues};
static uint8_t own[6], head[HEAD_BYTES], frame[FRAME], command[2], acknowledged;
static uint32_t last_link = 1;

void network_init(void)
{
    virtio_begin(&card, LEGACY_ID, WANTED, SEND, QUEUES);
    for (uint32_t i = 0; card.port && i < sizeof(own); i++)
        own[i] = inb((uint16_t)(card.port + MAC + i));
}

int network_link(uint32_t *link)
{
    *link = card.port ? inw((uint16_t)(card.port + LINK)) & 1u : last_link;
    const int changed = *link != last_link;
    last_link = *link;
    return changed;
}

static uint8_t digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
}

int network_take(const char *mac)
{
    int same = 1;
    for (uint32_t i = 0; i < sizeof(own); i++) {
        const uint8_t byte = (uint8_t)(digit(mac[3 * i]) << 4 | digit(mac[3 * i + 1]));
        same = same && own[i] == byte;
        own[i] = byte;
    }
    if (same || !card.port)
        return 0;
    command[0] = command[1] = 1; /* the MAC: set it */
    acknowledged = 0xff;
    virtio_put(&card, CONTROL, 0, command, sizeof(command), 0);
    virtio_put(&card, CONTROL, 1, own, sizeof(own), 0);
    virtio_put(&card, CONTROL, 2, &acknowledged, 1, VIRTIO_WRITABLE);
    virtio_request(&card, CONTROL, 3);
    return !acknowledged;
}

void network_send(void)
{
    if (!card.port)
        return;
    for (uint32_t i = 0; i < sizeof(own); i++) {
        frame[i] = 0xff;
        frame[sizeof(own) + i] = own[i];
    }
    frame[12] = ETHERTYPE >> 8;
    frame[13] = ETHERTYPE & 0xff;
    virtio_put(&card, SEND, 0, head, sizeof(head), 0);
    virtio_put(&card, SEND, 1, frame, sizeof(frame), 0);
    virtio_request(&card, SEND, 2);
}
