/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Children with a MAC of their own: no frame of theirs has their parent's. */
#include "tests/fixtures/clones.h"

#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PARENT_MAC "52:54:00:11:22:01"
#define CHILD_MAC  "52:54:00:11:22:02"
#define NET        MIB " net=1"
#define CARD       "virtio-net-pci,disable-modern=on,id=net0,addr=6,romfile=,"
#define NOWHERE    "socket,udp=127.0.0.1:9,localaddr=127.0.0.1:0"

/* The other end of a network back end: a datagram is a frame. */
static int wires[CHILDREN + 1] = {-1, -1, -1, -1};

static void path_of(char path[108], unsigned wire, const char *end)
{
    snprintf(path, 108, "%s/net-%u.%s", mover_folder, wire, end);
}

static void wire_open(unsigned wire)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    path_of(address.sun_path, wire, "test");
    wires[wire] = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(wires[wire], (struct sockaddr *)&address, sizeof(address)), 0);
}

static int end(void **state)
{
    for (unsigned i = 0; i < CHILDREN + 1; i++) {
        if (wires[i] >= 0)
            close(wires[i]);
        wires[i] = -1;
    }
    return clones_end(state);
}

/* The sender of the next frame; false: there is none. After each load of a device state QEMU
 * announces the MAC of -device by RARP: that says nothing about the guest. */
static bool frame_take(unsigned wire, char mac[18])
{
    uint8_t frame[2048];
    ssize_t n;
    do
        n = recv(wires[wire], frame, sizeof(frame), 0);
    while (n >= 14 && frame[12] == 0x80 && frame[13] == 0x35);
    if (n < 0)
        return false;
    assert_true(n >= 14);
    snprintf(mac, 18, "%02x:%02x:%02x:%02x:%02x:%02x", frame[6], frame[7], frame[8], frame[9],
             frame[10], frame[11]);
    return true;
}

static void frame_await(unsigned wire, const char *mac)
{
    const uint64_t until = vm_soon();
    char from[18];
    while (!frame_take(wire, from)) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 5);
    }
    assert_string_equal(from, mac);
}

/* The VM runs on, and all its frames have this MAC. They are taken from the wire: a full one stops
 * the guest. */
static void runs_with(struct vm *vm, unsigned wire, const char *mac)
{
    const unsigned long wanted = vm_beats(vm) + 4;
    const uint64_t until = vm_soon();
    unsigned frames = 0;
    char from[18];
    while (vm_beats(vm) < wanted || !frames) {
        assert_true(ibx_now_ns() < until);
        if (frame_take(wire, from)) {
            assert_string_equal(from, mac);
            frames++;
        } else {
            poll(NULL, 0, 5);
        }
    }
    mover_heartbeats((const struct vm *[]){&vms[0], vm, NULL}, MIB);
}

static void back_end(char network[400], unsigned wire)
{
    char ours[108], theirs[108];
    wire_open(wire);
    path_of(ours, wire, "qemu");
    path_of(theirs, wire, "test");
    snprintf(network, 400,
             "dgram,id=n0,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", ours,
             theirs);
}

/* A QEMU with a network card; `told`: the MAC that the guest is told to have. */
static void start(struct vm *vm, unsigned wire, const char *model, const char *mac,
                  const char *told)
{
    char network[400], card[200], text[64];
    back_end(network, wire);
    snprintf(card, sizeof(card), "%s,id=net0,netdev=n0,addr=6,romfile=,mac=%s", model, mac);
    snprintf(text, sizeof(text), "name=opt/ibx/mac,string=%s", told);
    struct vm_options options = {.append = NET,
                                 .extra = {"-netdev", network, "-device", card, "-fw_cfg", text}};
    if (vm != &vms[0]) {
        options.ram = PRIVATE;
        options.incoming = true;
    }
    vm_start(vm, &options);
}

static void freeze_with_network(void)
{
    mover_begin();
    start(&vms[0], 0, "virtio-net-pci,disable-modern=on", PARENT_MAC, PARENT_MAC);
    frame_await(0, PARENT_MAC);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool);
}

static void child_with(unsigned i, const char *model, const char *mac, const char *told)
{
    start(&children[i], i + 1, model, mac, told);
}

static void has_mac(struct vm *vm, const char *mac)
{
    json_t *filters = vm_run(vm, "query-rx-filter", json_pack("{s:s}", "name", "net0"));
    assert_string_equal(json_string_value(json_object_get(json_array_get(filters, 0), "main-mac")),
                        mac);
    json_decref(filters);
}

/* The guest sets the MAC that fw_cfg names, and gets its network. */
static void test_mac_of_its_own(void)
{
    freeze_with_network();
    child_with(0, "virtio-net-pci,disable-modern=on", CHILD_MAC, CHILD_MAC);
    struct mover *done = MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool, "--json");
    mover_must_print(done, "\"own_macs\":1,\"links_down\":0");
    vm_await_words(&children[0], "mac " CHILD_MAC);
    has_mac(&children[0], CHILD_MAC);
    runs_with(&children[0], 1, CHILD_MAC);
}

/* A guest that sets no MAC has lost its carrier, and nothing of it leaves its host. */
static void test_guest_that_does_not_act(void)
{
    char from[18];
    freeze_with_network();
    child_with(0, "virtio-net-pci,disable-modern=on", CHILD_MAC, PARENT_MAC);
    struct mover *done =
        MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool, "--mac-wait", "1");
    mover_must_print(done, "is a child and runs");
    mover_must_print(done, "the guest has not set the MAC " CHILD_MAC
                           " of network card net0 (it has " PARENT_MAC ")");
    vm_await_words(&children[0], "link 00000000");
    child_is_right(&children[0]);
    assert_false(frame_take(1, from));
    /* What the operator does then. */
    vm_do(&children[0], "set_link", json_pack("{s:s, s:b}", "name", "n0", "up", 1));
    vm_await_words(&children[0], "link 00000001");
    frame_await(1, PARENT_MAC);
}

static pid_t process_in(const char *path)
{
    static const char before[] = "this QEMU (process ";
    char line[1024];
    const char *at = NULL;
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (!at && fgets(line, sizeof(line), file)) /* QEMU prints warnings there, too */
        at = strstr(line, before);
    fclose(file);
    return at ? (pid_t)strtol(at + sizeof(before) - 1, NULL, 10) : 0;
}

/* The QEMU that clone has started is not ended, either: its VM is good. */
static void test_started_and_does_not_act(void)
{
    char network[400], monitor[160], serial[200];
    struct vm child = {.pid = 0};
    freeze_with_network();
    back_end(network, 1);
    snprintf(monitor, sizeof(monitor), "%s/child.qmp", mover_folder);
    snprintf(child.serial, sizeof(child.serial), "%s/serial", mover_folder);
    snprintf(serial, sizeof(serial), "file:%s", child.serial);
    struct mover *done = MOVER_RUN(
        1, "clone", snapshot, "--qmp", monitor, "--mac-wait", "1", "--", getenv("QEMU"), "-M",
        "q35", "-accel", vm_accel(), "-bios", vm_bios(), "-m", "64", "-nodefaults", "-display",
        "none", "-no-reboot", "-smp", "1", "-serial", serial, "-object", PRIVATE, "-machine",
        "memory-backend=mem0", "-kernel", getenv("GUEST_ELF"), "-netdev", network, "-device",
        CARD "netdev=n0,mac=" CHILD_MAC, "-fw_cfg", "name=opt/ibx/mac,string=" PARENT_MAC);
    mover_must_print(done, "is a child and runs");
    started = process_in(done->err);
    assert_true(started > 0);
    assert_int_equal(access(monitor, F_OK), 0);
    vm_await_words(&child, "link 00000000");
    vm_wait_beats(&child, vm_beats(&child) + 2);
    mover_heartbeats((const struct vm *[]){&vms[0], &child, NULL}, MIB);
    assert_int_equal(kill(started, 0), 0);
}

/* Each of two cards names the MAC that the other one has in the parent. */
static void test_two_macs_swapped(void)
{
    static const char *const macs[] = {PARENT_MAC, CHILD_MAC};
    char network[2][2][400], cards[2][2][200];
    mover_begin();
    for (unsigned i = 0; i < 2; i++) {
        struct vm *vm = i ? &children[0] : &vms[0];
        for (unsigned k = 0; k < 2; k++) {
            snprintf(network[i][k], sizeof(network[i][k]), "user,restrict=on,id=n%u", k);
            snprintf(cards[i][k], sizeof(cards[i][k]),
                     "virtio-net-pci,id=net%u,netdev=n%u,addr=%u,romfile=,mac=%s", k, k, 6 + k,
                     macs[i ^ k]);
        }
        vm_start(vm,
                 &(struct vm_options){.append = "",
                                      .ram = i ? PRIVATE : NULL,
                                      .incoming = i,
                                      .extra = {"-netdev", network[i][0], "-device", cards[i][0],
                                                "-netdev", network[i][1], "-device", cards[i][1]}});
        snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
        if (!i)
            MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool);
    }
    struct mover *done =
        MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool, "--mac-wait", "1");
    mover_must_print(done, "is a child and runs: the guest has not set the MAC ");
}

static void test_parent_mac(void)
{
    freeze_with_network();
    child_with(0, "virtio-net-pci,disable-modern=on", CHILD_MAC, PARENT_MAC);
    MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool, "--parent-mac");
    /* Clone does not wait for a child, either, if -device names its parent's MAC. */
    child_with(1, "virtio-net-pci,disable-modern=on", PARENT_MAC, PARENT_MAC);
    mover_must_print(MOVER_RUN(0, "clone", snapshot, "--qmp", children[1].tool, "--json"),
                     "\"own_macs\":0,\"links_down\":0");
    runs_with(&children[0], 1, PARENT_MAC);
    runs_with(&children[1], 2, PARENT_MAC);
    assert_false(vm_printed(&children[0], "link 0"));
    assert_false(vm_printed(&children[1], "link 0"));
    has_mac(&children[0], PARENT_MAC);
}

/* A card for which QEMU does not tell the guest's MAC. */
static void test_other_card(void)
{
    mover_begin();
    start(&vms[0], 0, "e1000", PARENT_MAC, PARENT_MAC);
    vm_wait_beats(&vms[0], 1);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool);
    child_with(0, "e1000", CHILD_MAC, CHILD_MAC);
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "network card net0 is of model e1000");
    MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool, "--parent-mac");
}

/* A card that clone cannot cut off would use its parent's MAC in the network. */
static void test_behind_a_hub(void)
{
    static const char card_port[] = "hubport,hubid=0,id=h0",
                      other[] = "hubport,hubid=0,id=h1,netdev=n0";
    freeze_with_network();
    for (unsigned i = 0; i < 2; i++) { /* QEMU names the last port first */
        struct vm_options options = {
            .append = NET,
            .ram = PRIVATE,
            .incoming = true,
            .extra = {"-netdev", NOWHERE ",id=n0", "-netdev", i ? other : card_port, "-netdev",
                      i ? card_port : other, "-device", CARD "netdev=h0,mac=" CHILD_MAC}};
        vm_start(&children[i], &options);
        mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[i].tool),
                         "network card with MAC " CHILD_MAC " is behind a hub");
        MOVER_RUN(0, "clone", snapshot, "--qmp", children[i].tool, "--parent-mac");
    }
}

/* They have the same MAC: nothing to cut off. */
static void test_hub_of_the_parent_too(void)
{
    struct vm_options options = {.append = NET,
                                 .extra = {"-net", "nic,model=virtio", "-net", NOWHERE}};
    mover_begin();
    vm_start(&vms[0], &options);
    vm_wait_beats(&vms[0], 1);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool);
    options.ram = PRIVATE;
    options.incoming = true;
    vm_start(&children[0], &options);
    mover_must_print(MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool, "--json"),
                     "\"own_macs\":0,\"links_down\":0");
}

#define LONG "a-name-of-a-network-back-end-that-is-as-long-as-those-of-management"

static void test_long_name(void)
{
    freeze_with_network();
    struct vm_options options = {.append = NET,
                                 .ram = PRIVATE,
                                 .incoming = true,
                                 .extra = {"-netdev", NOWHERE ",id=" LONG, "-device",
                                           CARD "netdev=" LONG ",mac=" CHILD_MAC}};
    vm_start(&children[0], &options);
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "network card with MAC " CHILD_MAC " is behind a hub, or its name or its back "
                     "end's has more than 63 bytes");
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_mac_of_its_own),
        VM_TEST(test_guest_that_does_not_act),
        VM_TEST(test_started_and_does_not_act),
        VM_TEST(test_two_macs_swapped),
        VM_TEST(test_parent_mac),
        VM_TEST(test_other_card),
        VM_TEST(test_behind_a_hub),
        VM_TEST(test_hub_of_the_parent_too),
        VM_TEST(test_long_name),
        {0},
    };
    return vm_tests(tests, end);
}
