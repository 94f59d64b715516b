/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A child's network cards. With the device state each gets the MAC that the parent's guest used,
 * and only the child's guest can change it: until it has, the child's frames would have the MAC of
 * its parent and of all other children. So a card whose -device has another MAC than the parent's
 * is cut off before QEMU loads the state: the link of its back end is set down, which is no part of
 * the state, and QEMU drops what the guest sends, what comes, and QEMU's own announcements. Once
 * the state is loaded, the guest loses its carrier, too, which it can notice and act on. When the
 * card has the child's MAC, the link is set up.
 */
#include "migrate/snapshot/cache.h"

#include "common/clock.h"
#include "migrate/common/common.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LOOK_US 2000

/* ------------------------------------------------------------ which */

/* The next device with this MAC, from index `*from` on, which is advanced; NULL: none. */
static const json_t *card_with(const json_t *description, const char *mac, size_t *from)
{
    const json_t *devices = json_object_get(description, "devices");
    while (*from < json_array_size(devices)) {
        const json_t *device = json_array_get(devices, (*from)++);
        const char *has =
            json_string_value(json_object_get(json_object_get(device, "properties"), "mac"));
        if (has && !strcasecmp(has, mac))
            return device;
    }
    return NULL;
}

/* Whether the parent's card in the same place has this MAC. Two cards may have swapped their MACs,
 * so the place counts. */
static bool parent_has(const json_t *parent, const json_t *child, const char *mac)
{
    size_t next = 0, first = 0;
    const json_t *own = card_with(child, mac, &first), *theirs;
    while ((theirs = card_with(parent, mac, &next)))
        if (!own || json_equal(json_object_get(own, "at"), json_object_get(theirs, "at")))
            return true;
    return false;
}

/* The name at the beginning of a line of "info network". */
static bool name_of(const char *line, char name[SNAPSHOT_CARD_NAME])
{
    const size_t length = strcspn(line, ":\r\n");
    if (!length || length >= SNAPSHOT_CARD_NAME || line[length] != ':')
        return false;
    memcpy(name, line, length);
    name[length] = '\0';
    return true;
}

/* The MAC in a line such as "net0:
 * index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:56";
 * "": it has none. */
static void mac_of(const char *line, size_t length, char mac[SNAPSHOT_CARD_MAC])
{
    static const char before[] = "macaddr=";
    const char *at = memmem(line, length, before, sizeof(before) - 1);
    at = at ? at + sizeof(before) - 1 : line + length;
    snprintf(mac, SNAPSHOT_CARD_MAC, "%.*s", (int)strcspn(at, ",\r\n"), at);
}

static bool is_known(const struct snapshot_network *network, const char *card)
{
    for (unsigned i = 0; i < network->count; i++)
        if (!strcmp(network->cards[i].name, card))
            return true;
    return false;
}

/* Takes a card from its line and the next one, which has its back end; further queues of a card
 * have the same name. A card behind a hub is one of several ports, in a line that begins like that
 * of a back end. */
static void take_card(struct snapshot_network *network, const char *line, const char *next,
                      const json_t *parent, const json_t *child, struct ibx_blockers *blockers)
{
    static const char nic[] = "type=nic,model=", peer[] = " \\ ";
    const size_t length = strcspn(line, "\r\n"), mark = sizeof(peer) - 1;
    struct snapshot_card card = {.name = ""};
    const char *model = memmem(line, length, nic, sizeof(nic) - 1);
    const bool port = !strncmp(line, peer, mark), peered = !strncmp(next, peer, mark);
    mac_of(line, length, card.mac);
    if (!model || !(port || peered) || !*card.mac || parent_has(parent, child, card.mac))
        return;
    if (port || !name_of(line, card.name) || !name_of(next + mark, card.back_end)) {
        ibx_blockers_add(blockers,
                         "network card with MAC %s is behind a hub, or its name or its back end's "
                         "has more than %u bytes: give it a short-named -netdev of its own, or "
                         "give --parent-mac",
                         card.mac, SNAPSHOT_CARD_NAME - 1);
        return;
    }
    if (is_known(network, card.name))
        return;
    model += sizeof(nic) - 1;
    if (strncmp(model, "virtio-net", 10))
        ibx_blockers_add(
            blockers,
            "network card %.60s is of model %.*s, for which QEMU does not tell whether the guest "
            "has set its MAC %s: use virtio-net-pci, or give --parent-mac",
            card.name, (int)strcspn(model, ",\r\n"), model, card.mac);
    else if (network->count == SNAPSHOT_CARDS)
        ibx_blockers_add(blockers, "it has more than %u network cards with a MAC of their own",
                         SNAPSHOT_CARDS);
    else
        network->cards[network->count++] = card;
}

int ibx_snapshot_network_find(struct ibx_qmp *qmp, const json_t *parent, const json_t *child,
                              struct snapshot_network *network, struct ibx_blockers *blockers,
                              struct ibx_error *err)
{
    json_t *text;
    int rc = ibx_qmp_execute(qmp, "human-monitor-command",
                             json_pack("{s:s}", "command-line", "info network"), &text,
                             ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    const char *line = json_string_value(text);
    while (line && *line) {
        const char *next = line + strcspn(line, "\n");
        next += *next == '\n';
        take_card(network, line, next, parent, child, blockers);
        line = next;
    }
    json_decref(text);
    return 0;
}

/* ------------------------------------------------------------ their links */

static int set_link(struct ibx_qmp *qmp, const struct snapshot_card *card, bool up,
                    struct ibx_error *err)
{
    return ibx_qmp_execute(qmp, "set_link",
                           json_pack("{s:s, s:b}", "name", card->back_end, "up", (int)up), NULL,
                           ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
}

int ibx_snapshot_network_down(struct ibx_qmp *qmp, const struct snapshot_network *network,
                              struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < network->count; i++)
        rc = set_link(qmp, &network->cards[i], false, err);
    return rc;
}

/* Sets `*taken` to whether the card has the child's MAC; if not, `now` is the one that it has. */
static int ask_taken(struct ibx_qmp *qmp, const struct snapshot_card *card, bool *taken,
                     char now[SNAPSHOT_CARD_MAC], struct ibx_error *err)
{
    json_t *filters;
    int rc = ibx_qmp_execute(qmp, "query-rx-filter", json_pack("{s:s}", "name", card->name),
                             &filters, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    const char *mac = json_string_value(json_object_get(json_array_get(filters, 0), "main-mac"));
    snprintf(now, SNAPSHOT_CARD_MAC, "%s", mac ? mac : "");
    *taken = mac && !strcasecmp(mac, card->mac);
    json_decref(filters);
    return 0;
}

/* Looks once at the cards that are down, and sets the links up of those that have their MAC.
 * Returns how many are still down, and sets `*waits` to the last of them. */
static int look(struct ibx_qmp *qmp, struct snapshot_network *network,
                const struct snapshot_card **waits, char now[SNAPSHOT_CARD_MAC],
                struct ibx_error *err)
{
    int down = 0;
    for (unsigned i = 0; i < network->count; i++) {
        struct snapshot_card *card = &network->cards[i];
        bool taken = false;
        int rc = card->up ? 0 : ask_taken(qmp, card, &taken, now, err);
        if (!rc && taken)
            rc = set_link(qmp, card, true, err);
        if (rc)
            return rc;
        card->up |= taken;
        if (!card->up)
            *waits = card;
        down += !card->up;
    }
    return down;
}

int ibx_snapshot_network_up(struct ibx_qmp *qmp, struct snapshot_network *network,
                            uint64_t deadline_ns, struct ibx_error *err)
{
    const struct snapshot_card *waits = NULL;
    char now[SNAPSHOT_CARD_MAC] = "";
    int down;
    while ((down = look(qmp, network, &waits, now, err)) > 0) {
        if (ibx_now_ns() >= deadline_ns)
            return ibx_error_set(err, -ETIMEDOUT,
                                 "the guest has not set the MAC %s of network card %.60s (it has "
                                 "%s), and the link of %.60s stays down: let the guest set that "
                                 "MAC, give it more --mac-wait, or give --parent-mac",
                                 waits->mac, waits->name, now, waits->back_end);
        usleep(LOOK_US);
    }
    return down;
}
