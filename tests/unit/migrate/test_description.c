/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The description of a VM, made from QEMU's texts, and which differences between two VMs prevent
 * a migration. */
#include "migrate/preflight/description.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void ram_blocks_have_two_sizes(NO_STATE)
{
    json_t *ram = ibx_ram_of_ramblock("              Block Name    PSize              Offset       "
                                      "        Used              Total\r\n"
                                      "                  pc.ram    4 KiB  0x0000000000000000 "
                                      "0x0000000004000000 0x0000000004000000\r\n"
                                      "    /rom@etc/acpi/tables    4 KiB  0x0000000005180000 "
                                      "0x0000000000020000 0x0000000000200000\r\n"
                                      "                            4 KiB  0x0000000005180000 "
                                      "0x0000000000020000 0x0000000000200000\r\n");
    assert_int_equal(json_object_size(ram), 2);
    const json_t *acpi = json_object_get(ram, "/rom@etc/acpi/tables");
    assert_int_equal(json_integer_value(json_array_get(acpi, 0)), 0x20000);
    assert_int_equal(json_integer_value(json_array_get(acpi, 1)), 0x200000);
    json_decref(ram);
}

/* ------------------------------------------------------------ comparisons */

static struct ibx_blockers refused;

/* Parses JSON that is written with ' in place of ". */
static json_t *parsed(const char *text)
{
    char *copy = strdup(text);
    json_error_t why;
    for (char *c = copy; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    json_t *value = json_loads(copy, 0, &why);
    if (!value)
        fail_msg("%s: %s", copy, why.text);
    free(copy);
    return value;
}

static void compare_parsed(const json_t *here, const json_t *there, struct ibx_comparison how)
{
    memset(&refused, 0, sizeof(refused));
    how.source = here, how.destination = there, how.blockers = &refused;
    ibx_compare(&how);
}

static void compare_so(const char *source, const char *destination, struct ibx_comparison how)
{
    json_t *here = parsed(source), *there = parsed(destination);
    compare_parsed(here, there, how);
    json_decref(here);
    json_decref(there);
}

static void compare(const char *source, const char *destination, bool same_version)
{
    compare_so(source, destination, (struct ibx_comparison){.same_version = same_version});
}

static void only(const char *source, const char *destination, const char *words)
{
    compare(source, destination, true);
    if (refused.count != 1 || !strstr(refused.reasons[0], words))
        fail_msg("%zu: %s\nand not: %s", refused.count, refused.reasons[0], words);
}

static void nothing(const char *source, const char *destination)
{
    compare(source, destination, true);
    if (refused.count || refused.note_count)
        fail_msg("%s and %s: %s%s", source, destination, refused.reasons[0], refused.notes[0]);
}

/* A VM with a virtio-mem device in node 1 of which the guest has taken `mib` MiB, and `later`
 * MiB by QEMU's second answer. */
static char *with_virtio_mem(unsigned mib, unsigned later, unsigned most, unsigned block)
{
    char info[256], answer[512];
    snprintf(info, sizeof(info),
             "2 nodes\r\nnode 0 cpus: 0\r\nnode 0 size: 128 MB\r\nnode 0 plugged: 0 MB\r\n"
             "node 1 cpus: 1\r\nnode 1 size: %u MB\r\nnode 1 plugged: %u MB\r\n",
             128 + 64 + mib, 64 + mib);
    snprintf(answer, sizeof(answer),
             "[{'type':'dimm','data':{'addr':4294967296,'size':67108864,'slot':0,'node':1}},"
             "{'type':'virtio-mem','data':{'memaddr':4563402752,'size':%u,'requested-size':0,"
             "'max-size':%u,'block-size':%u,'node':1}}]",
             later << 20, most << 20, block << 20);
    json_t *plugged = parsed(answer);
    json_t *vm = json_pack("{s:o, s:o}", "numa", ibx_numa_of_info(info), "memory",
                           ibx_memory_of_devices(plugged));
    char *text = json_dumps(vm, JSON_COMPACT);
    json_decref(vm);
    json_decref(plugged);
    return text;
}

/* The size that the guest has taken is part of the device state, so a waiting QEMU does not have
 * it yet. */
static void size_taken_of_virtio_mem_does_not_matter(NO_STATE)
{
    char *here = with_virtio_mem(192, 192, 256, 2), *there = with_virtio_mem(0, 0, 256, 2),
         *other = with_virtio_mem(0, 0, 512, 2), *blocks = with_virtio_mem(0, 0, 256, 4),
         *taking = with_virtio_mem(0, 64, 256, 2), *giving = with_virtio_mem(192, 128, 256, 2);
    nothing(here, there);
    nothing(taking, there);
    nothing(giving, there);
    only(here, other,
         "the VM has virtio-mem of 256 MiB (block-size=2048K) at 0x110000000, slot 0, node 1 here "
         "and");
    only(here, blocks, "(block-size=2048K)");
    only(here, blocks, "(block-size=4096K)");
    only(here, blocks, "the same memory devices (addr=, slot=, node=, block-size=)");
    assert_non_null(strstr(here, "node 1 size: 128 MB"));
    assert_non_null(strstr(here, "dimm of 64 MiB at 0x100000000, slot 0, node 1"));
    assert_null(strstr(here, "plugged"));
    char *const all[] = {here, there, other, blocks, taking, giving};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/* QEMU's texts show no other difference between two blocks of one size. */
static void exchanged_backends_are_noticed(NO_STATE)
{
    static const char mtree[] =
        "FlatView #1\r\n AS \"memory\", root: system\r\n Root memory region: system\r\n"
        "  0000000000000000-000000000009ffff (prio 0, ram): mb\r\n"
        "  00000000000a0000-00000000000bffff (prio 1, i/o): vga-lowmem\r\n"
        "  0000000000100000-0000000001ffffff (prio 0, ram): mb @0000000000100000\r\n"
        "  0000000002000000-0000000003ffffff (prio 0, ram): /objects/ma\r\n"
        "  00000000fd000000-00000000fdffffff (prio 0, rom): none\r\n"
        "  0000000100000000-0000000101ffffff (prio 0, ram): mc\r\n"
        "  0000000102000000-0000000102ffffff (prio 0, nv-ram): nz\r\n"
        "  0000000103000000-0000000103ffffff (prio 0, nv-rom): ny\r\n"; /* unarmed=on */
    struct ibx_guest_block blocks[] = {{.id = "ma"}, {.id = "mb"},   {.id = "mc"},
                                       {.id = "ny"}, {.id = "none"}, {.id = "nz"}};
    const struct ibx_guest_ram ram = {.blocks = blocks, .count = 6};
    json_t *order = ibx_order_of_mtree(mtree, &ram), *is = parsed("['mb','ma','mc','nz','ny']");
    assert_true(json_equal(order, is));
    json_decref(order);
    json_decref(is);
    only("{'order':['ma','mb','mc']}", "{'order':['mb','ma','mc']}",
         "guest RAM lies in the order ma, mb here and mb, ma at the destination: give each node");
    nothing("{'order':['ma','mb']}", "{'order':['ma','mb']}");
    nothing("{'order':['ma','mb']}", "{}"); /* from an earlier release */
    nothing("{'order':['ma','mb']}", "{'order':['mb']}");
    nothing("{'order':['ma','mb']}", "{'order':['mb','mx']}");
}

#define P(type, at)   "{'plugged':true,'type':'" type "','at':'" at "'}"
#define B(type)       "{'plugged':false,'type':'" type "','at':'" type "'}"
#define DEVICES(list) "{'devices':[" list "]}"

static void each_difference_has_a_sentence(NO_STATE)
{
    only("{'cpus':['a','b']}", "{'cpus':['a','b','c','d']}", "2 vCPUs here and 4");
    only("{'cpus':['socket-id 0','socket-id 1']}", "{'cpus':['socket-id 0','socket-id 2']}",
         "the VM has socket-id 1 here and socket-id 2 at the destination: plug in the same vCPUs");
    only("{'cpu':'Nehalem'}", "{'cpu':'EPYC'}", "Nehalem here and EPYC");
    only("{'cpuid':{'7.0 EBX':'ff','1.0 EDX':'3'}}", "{'cpuid':{'7.0 EBX':'f7','1.0 EDX':'7'}}",
         "cpuid 0x7, 0, EBX, bits 0x8");
    only("{'cpuid':{'7.0 EBX':'1'}}", "{'cpuid':{}}", "bits 0x1");
    only("{'cpuid':{'1073741825.0 EAX':'1'}}", "{'cpuid':{}}", "cpuid 0x40000001, 0, EAX, bits");
    only("{'kvm':true,'cpuid':{'1.0 ECX':'1'},'devices':[" B("kvmclock") "]}",
         "{'kvm':false,'cpuid':{},'devices':[" B("hpet") "]}", "under KVM here and without KVM at");
    only("{'kvm':false}", "{'kvm':true}", "without KVM here and under KVM at the destination");
    only(DEVICES(P("vga", "02.0") "," P("nic", "03.0")), DEVICES(P("vga", "02.0")),
         "lacks nic @ 03.0:");
    only(DEVICES(P("vga", "02.0")), DEVICES(P("vga", "02.0") "," P("nic", "03.0")),
         "has nic @ 03.0, which");
    only(DEVICES(B("hpet") "," B("a")), DEVICES(B("a")), "lacks hpet @ hpet:");
    only(DEVICES(B("i") "," B("i")), DEVICES(B("i")), "lacks i @ i:");
    only(DEVICES(P("a", "1") "," P("b", "2") "," P("c", "3") "," P("d", "4") "," P("e", "5")),
         DEVICES(""), "a @ 1, b @ 2, c @ 3 and 2 more");
    only("{'numa':['node 0 cpus: 0 1','node 1 cpus: 2']}",
         "{'numa':['node 0 cpus: 0','node 1 cpus: 1 2']}", "the VM has node 0 cpus: 0 1, node 1");
    only("{'memory':['dimm of 64 MiB at 0x100000000, slot 0, node 0']}", "{'memory':[]}",
         "lacks dimm of 64 MiB at 0x100000000");
    only("{'backends':['user-mode network (-netdev user)']}", "{'backends':[]}",
         "the destination lacks user-mode network");
    only("{'ram':{'pc.bios':[262144,262144]}}", "{'ram':{'pc.bios':[131072,131072]}}",
         "pc.bios (262144 bytes here and 131072)");
    only("{'ram':{'vga':[1,1]}}", "{'ram':{}}", "lacks memory of a device or of the firmware: vga");
    only("{'ram':{'acpi':[300,300]}}", "{'ram':{'acpi':[100,200]}}", "acpi (300 bytes here");
    only("{'machine':{'smm':'on','hpet':'true'}}", "{'machine':{'smm':'off','hpet':'true'}}",
         "the machine differs: smm is on here and off at the destination");
    only("{'machine':{'smp':'{\\\"cores\\\":2,\\\"cpus\\\":4,\\\"sockets\\\":2}'}}",
         "{'machine':{'smp':'{\\\"cores\\\":4,\\\"cpus\\\":4,\\\"sockets\\\":1}'}}",
         "the machine differs: smp cores is 2 here and 4, smp sockets is 2 here and 1 at the dest");
    only("{'machine':{'smp':'{}'}}", "{'machine':{'smp':'[1]'}}", "smp is {} here and [1] at the");
    compare(DEVICES(P("nic", "03.0")), DEVICES(P("nic", "04.0")),
            true); /* one is missing, one is extra */
    assert_int_equal(refused.count, 2);
}

#define NIC(properties) "{'plugged':true,'type':'nic','at':'03.0','properties':{" properties "}}"

static void a_property_is_named_with_both_values(NO_STATE)
{
    only(DEVICES(NIC("'num-queues':'4'")), DEVICES(NIC("'num-queues':'1'")),
         "device nic @ 03.0 differs: num-queues is 4 here and 1 at the destination: start its QEMU "
         "with num-queues=4 for it");
    only(DEVICES(NIC("'below-4g-mem-size':'4'")), DEVICES(NIC("'below-4g-mem-size':'8'")),
         "is 4 here and 8 at the destination: start its QEMU with the same -m as here");
    only(DEVICES(NIC("'a':'1','b':'2','c':'3','d':'4'")),
         DEVICES(NIC("'a':'2','b':'3','c':'4',"
                     "'d':'5'")),
         "a is 1 here and 2, b is 2 here and 3, c is 3 here and 4 at the destination and 1 more");
    only(DEVICES(NIC("'serial':'x'")), DEVICES(NIC("'serial':''")), "serial is x here and \"\" at");
    nothing(DEVICES(NIC("'new':'1','both':'2'")), DEVICES(NIC("'both':'2','old':'1'")));
    nothing(DEVICES(NIC("'msi':'auto'")), DEVICES(NIC("'msi':'on'")));
    /* Two devices of the board in one place, in another order. */
#define DMA(base) "{'plugged':false,'type':'i8257','at':'x','properties':{'base':'" base "'}}"
    nothing(DEVICES(DMA("0") "," DMA("192")), DEVICES(DMA("192") "," DMA("0")));
    only(DEVICES(DMA("0") "," DMA("192")), DEVICES(DMA("192") "," DMA("1")),
         "base is 0 here and 1");
    only(DEVICES(NIC("'a':'1','b':'2'")), DEVICES(NIC("'a':'2','b':'3'")), "with a=1, b=2 for it");
    /* Another version may leave to the guest what this one has chosen, or use another type. */
    compare(DEVICES(NIC("'rombar':'1','msi':'true','size':'5','speed':''")),
            DEVICES(NIC("'rombar':'-1','msi':'on','size':'18446744073709551615','speed':'x'")),
            false);
    assert_int_equal(refused.count, 0);
    only(DEVICES(NIC("'rombar':'1'")), DEVICES(NIC("'rombar':'-1'")), "rombar is 1 here and -1");
    compare(DEVICES(NIC("'num-queues':'4'")), DEVICES(NIC("'num-queues':'1'")), false);
    assert_int_equal(refused.count, 1);
    compare(DEVICES(DMA("0")), DEVICES(DMA("1")), false); /* the other version may accept this */
    assert_int_equal(refused.count, 0);
}

static void harmless_differences_are_accepted(NO_STATE)
{
    static const char *const fine[][2] = {
        {DEVICES(P("a", "1") "," P("b", "2")), DEVICES(P("b", "2") "," P("a", "1"))},
        {"{'cpuid':{'1.0 EDX':'3'}}", "{'cpuid':{'1.0 EDX':'7','7.0 EBX':'1'}}"},
        {"{}", "{'cpus':['a'],'devices':[" P("a", "1") "]}"},
        {"{'cpus':['a'],'devices':[" P("a", "1") "]}", "{}"},
        {"{'ram':{'acpi':[100,100]}}", "{'ram':{'acpi':[120,200],'other':[1,1]}}"},
        {"{'kvm':true}", "{}"}, /* from an earlier release */
        {"{'machine':{'smm':'auto'}}", "{'machine':{'smm':'on'}}"},
    };
    for (unsigned i = 0; i < COUNT(fine); i++)
        nothing(fine[i][0], fine[i][1]);
    compare(DEVICES(B("hpet") "," P("a", "1")), DEVICES(B("other") "," P("a", "1")), false);
    assert_int_equal(refused.count, 0);
    compare("{'machine':{'smm':'on'}}", "{'machine':{'smm':'off'}}", false);
    assert_int_equal(refused.count, 0);
    compare(DEVICES(P("a", "1")), DEVICES(P("b", "1")), false);
    assert_int_equal(refused.count, 2);
}

static void negotiated_features_are_needed(NO_STATE)
{
#define NET(addr, used, offered)                                                                   \
    "{'virtio':{'/p':{'name':'virtio-net','addr':" addr ",'used':[" used "],'offered':[" offered   \
    "]}}}"
    nothing(NET("8", "'A'", "'A','B'"), NET("8", "", "'A'"));
    only(NET("8", "'A','B'", "'A','B'"), NET("8", "", "'A'"),
         "virtio-net /p has the feature B here, which the destination cannot offer");
    only(NET("8", "", "'VIRTIO_NET_F_CSUM'"), NET("8", "", "'A'"), "a tap with vnet_hdr=on");
    nothing(NET("8", "", "'A'"), NET("8", "", "'VIRTIO_NET_F_CSUM'"));
    nothing(NET("8", "'B'", "'B'"), NET("16", "", "'A'")); /* without ids it is another device */
    nothing(NET("8", "'B'", "'B'"), "{'virtio':{}}");
#undef NET
}

/* ------------------------------------------------------------ disks */

#define ON(host, disk)                                                                             \
    "{'host':'" host "','disks':[{'at':'05.0','type':'vb','bytes':100," disk "}]}"
#define LAYER(members)   "'layers':[{'role':'','driver':'file'," members "}]"
#define FILE_AT(members) "'read-only':false," LAYER("'file':'/x'," members)
#define ISO(members)     "'read-only':true," LAYER("'file':'/x'," members)
#define NFS(source, path, inode, digest)                                                           \
    FILE_AT("'reach':'cluster','type':'nfs4','source':'" source "','path':'" path                  \
            "','inode':'" inode "','digest':'" digest "','bytes':100")
#define LOCAL(inode)      "'reach':'local','type':'ext4','inode':'" inode "','bytes':100"
#define SAN(name, digest) FILE_AT("'reach':'device'," name "'digest':'" digest "','bytes':100")
#define NET(file)         "'layers':[{'role':'','driver':'nbd','file':'" file "'}]"

static void a_disk_is_the_same_file_on_one_host(NO_STATE)
{
#define HERE(file, id)                                                                             \
    ON("a", "'read-only':false," LAYER("'file':'" file                                             \
                                       "','reach':'local','type':'ext4','shown':'inode " id        \
                                       "','id':'" id "'"))
    nothing(HERE("/x", "5"), HERE("/other/name", "5"));
    only(HERE("/x", "5"), HERE("/x", "6"),
         "the disk of vb @ 05.0 is /x (inode 5) here and /x (inode 6) at the destination");
    compare_so(HERE("/x", "5"), HERE("/x", "6"),
               (struct ibx_comparison){.same_version = true, .disks_differ = true});
    assert_int_equal(refused.count, 0);
    assert_int_equal(refused.note_count, 1);
    assert_non_null(
        strstr(refused.notes[0], "/x (inode 6) at the destination, as is said to be on"));
    nothing(ON("a", NET("nbd+unix:///x?socket=/s")), ON("a", NET("nbd+unix:///x?socket=/s")));
    only(ON("a", NET("nbd://h/x")), ON("a", NET("nbd://h/y")), "nbd://h/x here and nbd://h/y at");
}

static void a_disk_is_the_same_on_two_hosts(NO_STATE)
{
    static const char sn[] = "file system of one host";
    only(ON("a", FILE_AT(LOCAL("5"))), ON("b", FILE_AT(LOCAL("5"))), sn);
    only(ON("a", NFS("s:/e", "/x", "5", "d")), ON("b", FILE_AT(LOCAL("5"))), sn);
    nothing(ON("a", NFS("s:/e", "/x", "5", "d")), ON("b", NFS("s:/e", "/x", "5", "other")));
    only(ON("a", NFS("s:/e", "/x", "5", "d")), ON("b", NFS("s:/e", "/x", "6", "d")),
         "is /x (s:/e on nfs4) here and /x (s:/e on nfs4)");
    only(ON("a", NFS("s:/e", "/x", "5", "d")), ON("b", NFS("t:/e", "/x", "5", "other")),
         "is /x (s:/e on nfs4) here and /x (t:/e on nfs4)");
    nothing(ON("a", NFS("s:/e", "/x", "5", "d")), ON("b", NFS("1.2.3.4:/e", "/x", "5", "d")));
#define SHARE(source, path)                                                                        \
    FILE_AT("'reach':'network','type':'cifs','source':'" source "','path':'" path "','inode':'9'")
    nothing(ON("a", SHARE("//s/e", "/x")), ON("b", SHARE("//s/e", "/x")));
    only(ON("a", SHARE("//s/e", "/x")), ON("b", SHARE("//s/e", "/y")), "on cifs) here");
    only(ON("a", SHARE("//s/e", "/x")), ON("b", SHARE("//t/e", "/x")), "(//t/e on cifs) at");
    only(ON("a", FILE_AT("'unsafe':true,'reach':'cluster','inode':'5','source':'s:/e'")),
         ON("b", NFS("s:/e", "/x", "5", "d")), "cache=unsafe");
    /* block devices */
    nothing(ON("a", SAN("'wwn':'naa.1',", "d")), ON("b", SAN("'wwn':'naa.1',", "e")));
    only(ON("a", SAN("'wwn':'naa.1',", "d")), ON("b", SAN("'wwn':'naa.2',", "d")),
         "is /x (naa.1) here and /x (naa.2) at");
    only(ON("a", SAN("", "d")), ON("b", SAN("", "e")), "is /x here and /x at");
    compare(ON("a", SAN("", "d")), ON("b", SAN("", "d")), true);
    assert_int_equal(refused.count, 0);
    assert_non_null(strstr(refused.notes[0], "has no name that both hosts know"));
    /* storage that QEMU accesses by a URL */
    nothing(ON("a", NET("rbd:pool/x")), ON("b", NET("rbd:pool/x")));
    only(ON("a", NET("rbd:pool/x")), ON("b", NET("rbd:pool/y")), "rbd:pool/x here");
    only(ON("a", NET("nbd://localhost/x")), ON("b", NET("nbd://localhost/x")), "nothing shows");
    only(ON("a", NET("nbd+unix:///x?socket=/s")), ON("b", NET("nbd+unix:///x?socket=/s")),
         "nothing shows");
    /* Nobody writes to it and its contents are the same, so a copy will do. */
    nothing(ON("a", ISO(LOCAL("5") ",'digest':'d'")), ON("b", ISO(LOCAL("6") ",'digest':'d'")));
    only(ON("a", ISO(LOCAL("5") ",'digest':'d'")), ON("b", ISO(LOCAL("5") ",'digest':'e'")), sn);
    /* The file cannot be read. */
    only(ON("a", FILE_AT("'x':1")), ON("b", FILE_AT("'x':1")), "nothing shows that these are one");
    nothing(ON("a", FILE_AT("'x':1")), ON("a", FILE_AT("'x':1")));
}

static void a_disk_has_the_same_chain(NO_STATE)
{
#define CHAIN(layers)     ON("a", "'read-only':false,'layers':[" layers "]")
#define ONE(role, driver) "{'role':'" role "','driver':'" driver "'}"
#define LEAF(role, id)                                                                             \
    "{'role':'" role "','driver':'file','file':'/" id "','reach':'local','id':'" id "'}"
    nothing(CHAIN(ONE("", "qcow2") "," LEAF("file", "5")),
            CHAIN(ONE("", "qcow2") "," LEAF("file", "5")));
    only(CHAIN(ONE("", "qcow2") "," LEAF("file", "5")), CHAIN(LEAF("", "5")),
         "is qcow2, file file here and file at the destination: give both QEMUs the same image in "
         "the same format");
    only(CHAIN(ONE("", "qcow2") "," LEAF("file", "5") "," LEAF("backing", "6")),
         CHAIN(ONE("", "qcow2") "," LEAF("file", "5") "," LEAF("backing", "7")),
         "is /6 here and /7 at");
    only(CHAIN(ONE("", "qcow2") "," LEAF("file", "5") "," LEAF("backing", "6")),
         CHAIN(ONE("", "qcow2") "," LEAF("file", "5")),
         "backing file here and qcow2, file file at");
}

static void a_disk_has_the_same_size_and_medium(NO_STATE)
{
#define SIZED(bytes) "{'host':'a','disks':[{'at':'1','type':'vb','bytes':" bytes ",'layers':[]}]}"
    only(SIZED("100"), SIZED("200"), "is of 100 bytes here and of 200 bytes at");
#define EMPTY "{'host':'a','disks':[{'at':'05.0','type':'vb'}]}"
    nothing(EMPTY, EMPTY);
    only(EMPTY, ON("a", FILE_AT("'id':'5'")), "is an empty drive here and /x at the destination");
    only(ON("a", FILE_AT("'id':'5'")), EMPTY, "is /x here and an empty drive at the destination");
    /* A drive that was started empty has no name for its device. */
#define DRIVE    "'devices':[{'type':'vb','at':'05.0','plugged':false,'properties':{}}]"
#define NAMELESS "{'host':'a'," DRIVE ",'disks':[{'at':'sata0','type':'','removable':true}]}"
#define IN_DRIVE                                                                                   \
    "{'host':'a'," DRIVE                                                                           \
    ",'disks':[{'at':'05.0','type':'vb','removable':true,'bytes':100," ISO("'id':'5'") "}]}"
    nothing(NAMELESS, NAMELESS);
    nothing(IN_DRIVE, IN_DRIVE);
    only(NAMELESS, IN_DRIVE, "is an empty drive here and /x at the destination");
    only(IN_DRIVE, NAMELESS, "is /x here and an empty drive at the destination");
    only(ON("a", "'read-only':false,'layers':[]"), ON("a", "'read-only':true,'layers':[]"),
         "is writable here and read-only at");
#define CACHED(type, cached) "{'disks':[{'at':'p','type':'" type "'," cached "'layers':[]}]}"
    only(CACHED("scsi-hd", "'writeback':false,"), CACHED("scsi-hd", "'writeback':true,"),
         "is written through (write-cache=off or cache=writethrough) here and cached until a "
         "flush, which this guest never sends at the destination");
    nothing(CACHED("scsi-hd", "'writeback':true,"), CACHED("scsi-hd", "'writeback':false,"));
    nothing(CACHED("virtio-blk-pci", "'writeback':false,"),
            CACHED("virtio-blk-pci", "'writeback':true,"));
    nothing(CACHED("scsi-hd", ""), CACHED("scsi-hd", "'writeback':true,"));
    nothing(CACHED("scsi-hd", "'read-only':true,'writeback':false,"),
            CACHED("scsi-hd", "'read-only':true,'writeback':true,"));
    nothing("{'disks':[{'at':'1','type':'vb'}]}", "{'disks':[]}"); /* its device is missing */
#define FLASH(digest, read_only)                                                                   \
    "'firmware':true,'read-only':" read_only                                                       \
    "," LAYER("'file':'/fw'," LOCAL("1") ",'digest':'" digest "'")
    nothing(ON("a", FLASH("d", "true")), ON("b", FLASH("d", "true")));
    /* flash with variables is copied */
    nothing(ON("a", FLASH("d", "false")), ON("b", FLASH("e", "false")));
    compare(ON("a", FLASH("d", "true")), ON("b", FLASH("e", "true")), true);
    assert_int_equal(refused.count, 0);
    assert_non_null(strstr(refused.notes[0], "the firmware /fw here is another one than /fw at"));
}

static void risks_are_noted(NO_STATE)
{
    const char *disk = ON("a", "'bitmaps':['b'],"
                               "'read-only':false,'layers':[{'role':'file','driver':'file','file':"
                               "'/x','id':'5','locked':false},{'role':'backing','driver':'file',"
                               "'file':'/y','id':'6','locked':false}]");
    compare(disk, disk, true);
    assert_int_equal(refused.count, 0);
    assert_int_equal(refused.note_count, 2);
    assert_non_null(strstr(refused.notes[0], "the dirty bitmap b of vb @ 05.0 is in this QEMU's"));
    assert_non_null(strstr(refused.notes[1], "/x is not locked"));
}

/* ------------------------------------------------------------ as QEMU and peers have them */

/* The description comes from a peer. */
static void odd_descriptions_do_no_harm(NO_STATE)
{
    static const char whole[] =
        "{'host':'a','cpus':['a'],'cpu':'b','cpuid':{'1.0 EDX':'3'},'machine':{'a':'b'},"
        "'numa':['x'],'memory':['y'],'order':['r','s'],'ram':{'z':[1,2]},'backends':['u'],"
        "'virtio':{'/p':{'name':'n','addr':1,'used':['A'],'offered':['A']}},"
        "'devices':[{'type':'t','at':'p','plugged':true,'properties':{'n':'v'}}],"
        "'disks':[{'at':'p','type':'t','bytes':1,'read-only':false,'layers':[{'role':'','driver':"
        "'file','file':'/x','reach':'local','id':'1'}]}]}";
    static const char *const odd[] = {"null",
                                      "1",
                                      "'x'",
                                      "[]",
                                      "{}",
                                      "[[]]",
                                      "[{}]",
                                      "[null]",
                                      "[1]",
                                      "{'a':{}}",
                                      "{'n':1}",
                                      "[{'layers':1}]",
                                      "[{'at':'p','type':'t','layers':[1]}]",
                                      "[{'at':'p','type':'t','bytes':1,'layers':[{'file':1}]}]",
                                      "[{'at':'p','type':'t','properties':[]}]",
                                      "[{'at':'p','type':'t','properties':{'n':[]}}]"};
    const struct ibx_comparison same = {.same_version = true};
    json_t *good = parsed(whole);
    const char *member;
    json_t *value;
    for (unsigned i = 0; i < COUNT(odd); i++) {
        json_t *bad = json_deep_copy(good);
        json_object_foreach(good, member, value)
        {
            json_object_set_new(bad, member, parsed(strchr("'n1", *odd[i]) ? "[]" : odd[i]));
            compare_parsed(bad, good, same);
            compare_parsed(good, bad, same);
        }
        json_decref(bad);
    }
    compare_parsed(good, good, same);
    assert_int_equal(refused.count, 0);
    json_decref(good);
    assert_int_equal(ibx_description_read("[]", 2, &good, NULL), -EPROTO);
    assert_int_equal(ibx_description_read("{", 1, &good, NULL), -EPROTO);
    assert_int_equal(ibx_description_read("", 0, &good, NULL), -EPROTO);
}

/* All entries would be compared with each other. */
static void description_with_long_lists_is_refused(NO_STATE)
{
    json_t *read;
    for (unsigned count = 8192; count <= 8193; count++) {
        json_t *list = json_array(), *whole = json_pack("{s:o}", "numa", list);
        for (unsigned i = 0; i < count; i++)
            json_array_append_new(list, json_string("x"));
        char *text = json_dumps(whole, JSON_COMPACT);
        json_decref(whole);
        assert_non_null(text);
        const int rc = ibx_description_read(text, strlen(text), &read, NULL);
        assert_int_equal(rc, count > 8192 ? -EPROTO : 0);
        if (!rc)
            json_decref(read);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ram_blocks_have_two_sizes),
        cmocka_unit_test(size_taken_of_virtio_mem_does_not_matter),
        cmocka_unit_test(exchanged_backends_are_noticed),
        cmocka_unit_test(each_difference_has_a_sentence),
        cmocka_unit_test(a_property_is_named_with_both_values),
        cmocka_unit_test(harmless_differences_are_accepted),
        cmocka_unit_test(negotiated_features_are_needed),
        cmocka_unit_test(a_disk_is_the_same_file_on_one_host),
        cmocka_unit_test(a_disk_is_the_same_on_two_hosts),
        cmocka_unit_test(a_disk_has_the_same_chain),
        cmocka_unit_test(a_disk_has_the_same_size_and_medium),
        cmocka_unit_test(risks_are_noted),
        cmocka_unit_test(odd_descriptions_do_no_harm),
        cmocka_unit_test(description_with_long_lists_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
