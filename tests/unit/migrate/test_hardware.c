/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Hardware as QEMU's text describes it, and which differences keep a VM from migrating. */
#include "migrate/preflight/preflight.h"
#include "tests/scenes/unit.h"

#include <stdlib.h>

/* As "info qtree" has it, shortened: properties that are not looked at are some of many. */
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
    "        bus: virtio-bus\r\n"
    "          type virtio-pci-bus\r\n"
    "          dev: virtio-scsi-device, id \"\"\r\n"
    "            seg_max_adjust = true\r\n"
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
    "          dev: usb-tablet, id \"\"\r\n"
    "            port = \"2\"\r\n"
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
                              "p usb-kbd @ q35-pcihost/04.0/usb-kbd;"
                              "p usb-tablet @ q35-pcihost/04.0/2;";

static void devices_have_their_places(NO_STATE)
{
    char text[IBX_HARDWARE_MAX];
    assert_true(ibx_hardware_devices(tree, text, sizeof(text)));
    assert_string_equal(text, devices);
    assert_true(ibx_hardware_devices("", text, sizeof(text)));
    assert_string_equal(text, "");
    for (size_t room = 1; room < sizeof(devices); room++) {
        char *tight = malloc(room);
        assert_false(ibx_hardware_devices(tree, tight, room));
        assert_true(strlen(tight) < room);
        free(tight);
    }
}

/* A QEMU that answers something else, or another program. */
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
        "                                                                    bus: deeper\n"};
    char text[256];
    for (unsigned i = 0; i < COUNT(odd); i++)
        assert_true(ibx_hardware_devices(odd[i], text, sizeof(text)));
    for (size_t n = 0; n < sizeof(tree); n++) {
        char *cut = strndup(tree, n), whole[IBX_HARDWARE_MAX];
        assert_true(ibx_hardware_devices(cut, whole, sizeof(whole)));
        free(cut);
    }
}

static struct ibx_blockers refused;

static void compare(const char *source, const char *destination, bool same_version)
{
    memset(&refused, 0, sizeof(refused));
    ibx_preflight_hardware(source, destination, same_version, &refused);
}

static void only(const char *source, const char *destination, const char *words)
{
    compare(source, destination, true);
    if (refused.count != 1 || !strstr(refused.reasons[0], words))
        fail_msg("%zu: %s", refused.count, refused.reasons[0]);
}

static void differences_have_a_sentence_each(NO_STATE)
{
    only("cpus=2;", "cpus=4;", "2 vCPUs here and 4");
    only("cpu=Nehalem;", "cpu=EPYC;", "Nehalem here and EPYC");
    only("cpuid 7.0 EBX=ff;cpuid 1.0 EDX=3;", "cpuid 7.0 EBX=f7;cpuid 1.0 EDX=7;",
         "cpuid 7.0 EBX, bits 0x8");
    only("cpuid 7.0 EBX=1;", "cpus=1;", "bits 0x1");
    only("disk=100;disk=100;", "disk=100;disk=200;", "a disk of 100 bytes");
    only("p vga @ 02.0;p nic @ 03.0;", "p vga @ 02.0;", "lacks nic @ 03.0:");
    only("p vga @ 02.0;", "p vga @ 02.0;p nic @ 03.0;", "has nic @ 03.0, which");
    only("b hpet @ hpet;b a @ a;", "b a @ a;", "lacks hpet @ hpet:");
    only("b i @ i;b i @ i;", "b i @ i;", "lacks i @ i:");
    only("p a @ 1;p b @ 2;p c @ 3;p d @ 4;p e @ 5;", "cpus=1;", "a @ 1, b @ 2, c @ 3 and 2 more");
    compare("p nic @ 03.0;", "p nic @ 04.0;", true); /* elsewhere: one is missing, one too many */
    assert_int_equal(refused.count, 2);
}

static void what_does_not_matter_is_not_refused(NO_STATE)
{
    static const char *const fine[][2] = {
        {"cpus=2;p a @ 1;p b @ 2;", "p b @ 2;cpus=2;p a @ 1;"},
        {"cpuid 1.0 EDX=3;", "cpuid 1.0 EDX=7;cpuid 7.0 EBX=1;"},
        {"disk=1;", "disk=1;disk=2;"}, /* its device is what would be one too many */
        {"", "cpus=2;p a @ 1;"},
        {"cpus=2;", ""},
    };
    for (unsigned i = 0; i < COUNT(fine); i++) {
        compare(fine[i][0], fine[i][1], true);
        if (refused.count)
            fail_msg("%u: %s", i, refused.reasons[0]);
    }
    compare("b hpet @ hpet;p a @ 1;", "b other @ other;p a @ 1;", false);
    assert_int_equal(refused.count, 0);
    compare("p a @ 1;", "p b @ 1;", false);
    assert_int_equal(refused.count, 2);
}

/* The source's text is a peer's. */
static void odd_texts_do_no_harm(NO_STATE)
{
    static char longest[IBX_HARDWARE_MAX];
    static const char *const begin[] = {
        "cpus=", "cpu=", "cpuid ", "disk=", "p ", "b ", "", "cpuid 1=zz"};
    for (unsigned i = 0; i < COUNT(begin); i++) {
        memset(longest, 'x', sizeof(longest) - 1);
        memcpy(longest, begin[i], strlen(begin[i]));
        compare(longest, devices, true);
        compare(devices, longest, true);
        compare(begin[i], devices, true);
        memset(longest + 7, ';', 4000);
        compare(longest, devices, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_have_their_places),
        cmocka_unit_test(odd_trees_do_no_harm),
        cmocka_unit_test(differences_have_a_sentence_each),
        cmocka_unit_test(what_does_not_matter_is_not_refused),
        cmocka_unit_test(odd_texts_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
