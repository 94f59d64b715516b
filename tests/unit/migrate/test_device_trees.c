/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The devices of a VM, from QEMU's "info qtree". */
#include "migrate/preflight/description.h"
#include "tests/fixtures/unit.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The output of "info qtree", shortened. It contains properties that are ignored. */
static const char tree[] =
    "bus: main-system-bus\r\n"
    "  type System\r\n"
    "  dev: kvm-ioapic, id \"\"\r\n"
    "    gsi_base = 0 (0x0)\r\n"
    "    mmio 00000000fec00000/0000000000001000\r\n"
    "  dev: virtio-mmio, id \"\"\r\n"
    "    gpio-out \"sysbus-irq\" 1\r\n"
    "    mmio 00000000feb02e00/0000000000000200\r\n"
    "    bus: virtio-mmio-bus.23\r\n"
    "      type virtio-mmio-bus\r\n"
    "      dev: virtio-balloon-device, id \"\"\r\n"
    "        deflate-on-oom = false\r\n"
    "  dev: q35-pcihost, id \"\"\r\n"
    "    MCFG = 2952790016 (0xb0000000)\r\n"
    "    mmio ffffffffffffffff/0000000010000000\r\n"
    "    bus: pcie.0\r\n"
    "      type PCIE\r\n"
    "      dev: virtio-scsi-pci, id \"\"\r\n"
    "        class SCSI controller, addr 00:07.0, pci id 1af4:1004 (sub 1af4:0008)\r\n"
    "        addr = 07.0\r\n"
    "        busnr = 2 (0x2)\r\n"
    "        bus: virtio-bus\r\n"
    "          type virtio-pci-bus\r\n"
    "          dev: virtio-scsi-device, id \"\"\r\n"
    "            seg_max_adjust = true\r\n"
    "            num_queues = 4 (0x4)\r\n"
    "            bus: scsi.0\r\n"
    "              type SCSI\r\n"
    "              dev: scsi-hd, id \"\"\r\n"
    "                drive = \"d0\"\r\n"
    "                channel = 0 (0x0)\r\n"
    "                scsi-id = 3 (0x3)\r\n"
    "                lun = 1 (0x1)\r\n"
    "      dev: pcie-root-port, id \"rp1\"\r\n"
    "        port = 0 (0x0)\r\n"
    "        addr = 06.0\r\n"
    "        bus: rp1\r\n"
    "          type PCIE\r\n"
    "          dev: e1000e, id \"net0\"\r\n"
    "            netdev = \"tap7\"\r\n"
    "            addr = 00.0\r\n"
    "      dev: qemu-xhci, id \"\"\r\n"
    "        addr = 04.0\r\n"
    "        bus: usb-bus.0\r\n"
    "          type usb-bus\r\n"
    "          dev: usb-kbd, id \"\"\r\n"
    "            port = \"\"\r\n"
    "            addr 0.0, port 1, speed 480, name QEMU USB Keyboard, attached\r\n"
    "          dev: usb-tablet, id \"\"\r\n"
    "            port = \"2\"\r\n"
    "            addr 0.0, port 2, speed 480, name QEMU USB Tablet, attached\r\n"
    "      dev: ich9-ahci, id \"\"\r\n"
    "        addr = 1f.2\r\n"
    "        bus: ide.1\r\n"
    "          type IDE\r\n"
    "          dev: ide-cd, id \"\"\r\n"
    "            drive = \"cd\"\r\n"
    "            unit = 0 (0x0)\r\n"
    "  dev: cfi.pflash01, id \"\"\r\n"
    "    drive = \"pflash1\"\r\n"
    "    num-blocks = 64 (0x40)\r\n"
    "    width = 4 (0x4)\r\n"
    "    name = \"system.flash1\"\r\n"
    "  dev: kvmclock, id \"\"\r\n"
    "    x = 1\r\n";

static const char devices[] = "b ioapic @ ioapic;"
                              "b virtio-mmio @ 00000000feb02e00/0000000000000200;"
                              "p virtio-balloon-device @ 00000000feb02e00/0000000000000200/"
                              "virtio-balloon-device;"
                              "b q35-pcihost @ q35-pcihost;"
                              "p virtio-scsi-pci @ q35-pcihost/07.0;"
                              "p scsi-hd @ q35-pcihost/07.0/0:3:1;"
                              "p pcie-root-port @ q35-pcihost/06.0;"
                              "p e1000e @ q35-pcihost/06.0/00.0;"
                              "p qemu-xhci @ q35-pcihost/04.0;"
                              "p usb-kbd @ q35-pcihost/04.0/1;"
                              "p usb-tablet @ q35-pcihost/04.0/2;"
                              "b ich9-ahci @ q35-pcihost/1f.2;"
                              "b ide-cd @ q35-pcihost/1f.2/1:0;"
                              "b cfi.pflash01 @ system.flash1;";

/* Writes "p TYPE @ PLACE;" for each device. */
static void list(const json_t *all, char *out, size_t size)
{
    size_t index, used = 0;
    json_t *device;
    *out = '\0';
    json_array_foreach(all, index, device)
    {
        used += (size_t)snprintf(out + used, size - used, "%c %s @ %s;",
                                 json_is_true(json_object_get(device, "plugged")) ? 'p' : 'b',
                                 ibx_member(device, "type"), ibx_member(device, "at"));
    }
}

static void devices_have_their_places(NO_STATE)
{
    char text[8192];
    json_t *all = ibx_devices_of_qtree(tree);
    list(all, text, sizeof(text));
    /* ich9-ahci is on PCI, to which devices can be hot-plugged. */
    char wanted[sizeof(devices)];
    memcpy(wanted, devices, sizeof(devices));
    memcpy(strstr(wanted, "b ich9"), "p", 1);
    assert_string_equal(text, wanted);
    json_decref(all);
    all = ibx_devices_of_qtree("");
    assert_int_equal(json_array_size(all), 0);
    json_decref(all);
}

/* Both halves of a virtio device contribute properties, except those that only the host sees. */
static void devices_have_their_properties(NO_STATE)
{
    json_t *all = ibx_devices_of_qtree(tree);
    const json_t *scsi = json_object_get(json_array_get(all, 4), "properties");
    assert_string_equal(ibx_member(scsi, "num_queues"), "4");
    assert_string_equal(ibx_member(scsi, "seg_max_adjust"), "true");
    assert_int_equal(json_object_size(scsi), 2);
    const json_t *disk = json_array_get(all, 5);
    assert_string_equal(ibx_member(disk, "drive"), "d0");
    assert_int_equal(json_object_size(json_object_get(disk, "properties")), 0);
    const json_t *flash = json_array_get(all, 13);
    assert_string_equal(ibx_member(flash, "drive"), "pflash1");
    assert_string_equal(ibx_member(json_object_get(flash, "properties"), "width"), "4");
    /* this one and `name` */
    assert_int_equal(json_object_size(json_object_get(flash, "properties")), 2);
    json_decref(all);
}

/* Texts of a QEMU with another format, or of another program. */
static void odd_trees_do_no_harm(NO_STATE)
{
    static const char *const odd[] = {
        "dev: x, id",
        "type y",
        "bus: a\nbus: b\n",
        "                    dev: deep, id\n",
        "bus: a\n  type PCI\n  dev: d",
        "  dev: , id \"\"\n    addr = ",
        "\n\n \n",
        "  dev: a, id\n     = \n    x = \n    y = \"\n    z = \"\"\n    \xff\xfe = \xff\n",
        "                                                                    bus: deeper\n"};
    for (unsigned i = 0; i < COUNT(odd); i++)
        json_decref(ibx_devices_of_qtree(odd[i]));
    for (size_t n = 0; n < sizeof(tree); n++) {
        char *cut = strndup(tree, n);
        json_t *all = ibx_devices_of_qtree(cut);
        assert_true(json_is_array(all));
        json_decref(all);
        free(cut);
    }
}

/* As deep as is read, with names as long as are kept. Buses without a type have an index. */
static void deep_tree_of_long_names_does_no_harm(NO_STATE)
{
    enum { DEPTH = 12, LONG = 63 };
    char name[LONG + 1], text[DEPTH * 256];
    size_t used = 0;
    memset(name, 'n', LONG);
    name[LONG] = '\0';
    for (int i = 0; i < DEPTH; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "%*sbus: a.%s\n%*sdev: %s, id \"\"\n", 4 * i, "", name, 4 * i + 2,
                                 "", name);
    json_t *all = ibx_devices_of_qtree(text);
    assert_int_equal(json_array_size(all), DEPTH);
    assert_int_equal(strlen(ibx_member(json_array_get(all, DEPTH - 1), "at")),
                     DEPTH * (2 * LONG + 2) - 1);
    json_decref(all);
}

/* Each device takes 9 bytes of text, and a hundred times that in memory. */
static void tree_of_too_many_devices_is_refused(NO_STATE)
{
    static const char one[] = "  dev: e\n";
    static char text[(IBX_DESCRIBED_MAX + 1) * (sizeof(one) - 1) + 1];
    for (size_t i = 0; i <= IBX_DESCRIBED_MAX; i++)
        memcpy(text + i * (sizeof(one) - 1), one, sizeof(one) - 1);
    assert_null(ibx_devices_of_qtree(text));
    text[IBX_DESCRIBED_MAX * (sizeof(one) - 1)] = '\0';
    json_t *all = ibx_devices_of_qtree(text);
    assert_int_equal(json_array_size(all), IBX_DESCRIBED_MAX);
    json_decref(all);
}

static unsigned allocations, fails_at;

static void *allocate_or_fail(size_t n)
{
    return ++allocations == fails_at ? NULL : malloc(n);
}

/* What was freed stays as it is until the end, which shows what wrote to it. */
static struct {
    void *at, *was;
    size_t n;
} freed[512];
static unsigned freed_count;

static void free_later(void *at)
{
    const size_t n = malloc_usable_size(at);
    if (!at)
        return;
    assert_true(freed_count < sizeof(freed) / sizeof(freed[0]));
    freed[freed_count].at = at;
    freed[freed_count].n = n;
    freed[freed_count].was = malloc(n);
    memcpy(freed[freed_count++].was, at, n);
}

static void free_now(void)
{
    while (freed_count--) {
        assert_memory_equal(freed[freed_count].at, freed[freed_count].was, freed[freed_count].n);
        free(freed[freed_count].at);
        free(freed[freed_count].was);
    }
    freed_count = 0;
}

/* Whichever allocation fails, there is the whole list or none, and nothing that was freed is
 * changed. */
static void no_memory_for_a_tree(void **state)
{
    (void)state;
    json_t *whole = ibx_devices_of_qtree(tree);
    fails_at = 0;
    do {
        allocations = 0;
        fails_at++;
        json_set_alloc_funcs(allocate_or_fail, free_later);
        json_t *made = ibx_devices_of_qtree(tree);
        json_set_alloc_funcs(malloc, free);
        free_now();
        if (made && !json_equal(made, whole))
            fail_msg("a tree without what allocation %u is for", fails_at);
        json_decref(made);
    } while (allocations >= fails_at);
    assert_true(fails_at > 100);
    json_decref(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_have_their_places),
        cmocka_unit_test(devices_have_their_properties),
        cmocka_unit_test(odd_trees_do_no_harm),
        cmocka_unit_test(deep_tree_of_long_names_does_no_harm),
        cmocka_unit_test(tree_of_too_many_devices_is_refused),
        cmocka_unit_test(no_memory_for_a_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
