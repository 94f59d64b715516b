/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Differences that prevent a migration are found before the VM's stop: the VM runs on at the
 * source, and the sentence names the difference, with both values. */
#include "tests/fixtures/mover.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <unistd.h>

#define DISK "driver=null-co,size=1048576,node-name="

static void vm_start_pair(const struct vm_options *from, const struct vm_options *to)
{
    vm_start(&vms[0], from);
    vm_start(&vms[1], to);
    vm_wait_beats(&vms[0], pair_beats);
}

/* The destination is not like the source, and both tools say so; the VM goes on at the source. */
static void refused(const struct vm_options *from, const struct vm_options *to, const char *words)
{
    vm_start_pair(from, to);
    pair_receive(NULL);
    mover_must_print(MOVER_RUN(1, "check", "--qmp", vms[0].tool, receiver.uri, TIMED), words);
    pair_send(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, words);
    pair_stays();
}

#define ON_PURPOSE "--disks-differ-on-purpose"

/* A stale copy: only its inode tells. */
static void test_a_stale_disk(void)
{
    char here[96], there[96], drive[2][160], words[320];
    mover_begin();
    mover_make_file(here, sizeof(here), "here", 1 << 20);
    mover_make_file(there, sizeof(there), "there", 1 << 20);
    snprintf(drive[0], sizeof(drive[0]), "file=%s,format=raw,if=none,id=d", here);
    snprintf(drive[1], sizeof(drive[1]), "file=%s,format=raw,if=none,id=d", there);
#define WITH(drive)                                                                                \
    .append = "", .extra = {"-drive", (drive), "-device", "virtio-blk-pci,drive=d,addr=5"}
    snprintf(words, sizeof(words), "the disk of virtio-blk-pci @ q35-pcihost/05.0 is %s (inode ",
             here);
    refused(&(struct vm_options){WITH(drive[0])},
            &(struct vm_options){WITH(drive[1]), .incoming = true}, words);
    struct mover *check =
        MOVER_RUN(0, "check", "--qmp", vms[0].tool, receiver.uri, TIMED, ON_PURPOSE);
    mover_must_print(check, words);
    mover_must_print(check, "as is said to be on purpose");
    mover_send(&sender, &vms[0], receiver.uri, (const char *[]){TIMED, ON_PURPOSE, NULL});
    pair_done();
    mover_must_print(&sender, "as is said to be on purpose");
    pair_moved("");
}

/* The same file, of which the destination's VM would see another part. */
static void test_a_part_of_the_disk(void)
{
    char file[96], drive[2][160];
    mover_begin();
    mover_make_file(file, sizeof(file), "disk", 2 << 20);
    for (unsigned i = 0; i < 2; i++)
        snprintf(drive[i], sizeof(drive[i]), "file=%s,format=raw,if=none,id=d,offset=%uM,size=1M",
                 file, i);
    refused(&(struct vm_options){WITH(drive[0])},
            &(struct vm_options){WITH(drive[1]), .incoming = true},
            "is raw, file file here and raw from byte 1048576, file file at the destination");
}

/* QEMU tells the number as it was spelled. */
static void test_a_part_spelled_otherwise(void)
{
    static const char *const offsets[] = {"0x80000", "0.5m"};
    char file[96], drive[2][160];
    mover_begin();
    mover_make_file(file, sizeof(file), "disk", 2 << 20);
    for (unsigned i = 0; i < 2; i++)
        snprintf(drive[i], sizeof(drive[i]), "file=%s,format=raw,if=none,id=d,offset=%s,size=1M",
                 file, offsets[i]);
    vm_start_pair(&(struct vm_options){WITH(drive[0])},
                  &(struct vm_options){WITH(drive[1]), .incoming = true});
    pair_receive(NULL);
    pair_send(NULL);
    pair_done();
    pair_moved("");
}

/* A snapshot was taken at the source since: the destination's image lacks what the overlay has. */
static void test_snapshot_since(void)
{
    char file[96], overlay[96], drive[160];
    mover_begin();
    mover_make_file(file, sizeof(file), "disk", 1 << 20);
    snprintf(overlay, sizeof(overlay), "%s/overlay", mover_folder);
    snprintf(drive, sizeof(drive), "file=%s,format=raw,if=none,id=d,file.locking=off", file);
    vm_start(&vms[0], &(struct vm_options){WITH(drive)});
    vm_start(&vms[1], &(struct vm_options){WITH(drive), .incoming = true});
    pair_receive(NULL);
    vm_do(&vms[0], "block-dirty-bitmap-add",
          json_pack("{s:s,s:s}", "node", "d", "name", "since-monday"));
    struct mover *check = MOVER_RUN(0, "check", "--qmp", vms[0].tool, receiver.uri, TIMED);
    mover_must_print(check, "note: the dirty bitmap since-monday of virtio-blk-pci");
    mover_must_print(check, "disk is not locked (file.locking=off");
    vm_do(&vms[0], "blockdev-snapshot-sync",
          json_pack("{s:s,s:s,s:s}", "device", "d", "snapshot-file", overlay, "format", "qcow2"));
    mover_must_print(MOVER_RUN(1, "check", "--qmp", vms[0].tool, receiver.uri, TIMED),
                     "q35-pcihost/05.0 is qcow2, file file, backing file here and file at the "
                     "destination");
}

/* A disk's bitmap may be that of any of its nodes. */
static void test_a_bitmap_below_a_filter(void)
{
    pair_start(&(struct vm_options){
        .append = "",
        .extra = {"-object", "throttle-group,id=group,x-iops-total=1000", "-blockdev", DISK "d",
                  "-blockdev", "throttle,node-name=limited,throttle-group=group,file=d", "-device",
                  "virtio-blk-pci,drive=limited,addr=5"}});
    vm_do(&vms[0], "block-dirty-bitmap-add",
          json_pack("{s:s,s:s}", "node", "d", "name", "since-monday"));
    pair_run(NULL);
    pair_done();
    mover_must_print(&sender, "the dirty bitmap since-monday of virtio-blk-pci");
    pair_moved("");
}

/* QEMU would refuse the device state, after the stop. */
static void test_a_device_with_other_queues(void)
{
    mover_begin();
    refused(&(struct vm_options){.append = "",
                                 .extra = {"-blockdev", DISK "d", "-device",
                                           "virtio-blk-pci,drive=d,addr=5,num-queues=4"}},
            &(struct vm_options){.append = "",
                                 .incoming = true,
                                 .extra = {"-blockdev", DISK "other", "-device",
                                           "virtio-blk-pci,drive=other,addr=5,num-queues=1"}},
            "device virtio-blk-pci @ q35-pcihost/05.0 differs: vectors is 5 here and 2, num-queues "
            "is 4 here and 1 at the destination");
}

/* "info qtree" does not have it, and a guest would not notice what is plugged in there. */
static void test_another_way_to_plug(void)
{
    mover_begin();
    refused(&(struct vm_options){.append = ""},
            &(struct vm_options){
                .append = "",
                .incoming = true,
                .extra = {"-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"}},
            "device ICH9-LPC @ q35-pcihost/1f.0 differs: acpi-pci-hotplug-with-bridge-support is "
            "true here and false at the destination");
}

static void test_other_back_end(void)
{
    mover_begin();
    refused(&(struct vm_options){.append = "",
                                 .extra = {"-netdev", "user,id=n", "-device",
                                           "virtio-net-pci,netdev=n,addr=5"}},
            &(struct vm_options){.append = "",
                                 .incoming = true,
                                 .extra = {"-netdev", "hubport,id=n,hubid=0", "-device",
                                           "virtio-net-pci,netdev=n,addr=5"}},
            "the destination lacks user-mode network (-netdev user)");
}

/* The state of a virtio-net device on a tap with offloads needs one like it. */
static void test_other_offloads(void)
{
    char name[16], netdev[96], possible[160];
    snprintf(name, sizeof(name), "ibx%d", (int)getpid());
    snprintf(netdev, sizeof(netdev), "tap,id=n,ifname=%s,script=no,downscript=no", name);
    snprintf(possible, sizeof(possible),
             "ip tuntap add %s mode tap 2>/dev/null && ip tuntap del %s mode tap", name, name);
    if (system(possible)) {
        print_message("no taps here\n");
        return;
    }
    static const char device[] = "virtio-net-pci,netdev=n,addr=5,romfile=";
    mover_begin();
    refused(&(struct vm_options){.append = "", .extra = {"-netdev", netdev, "-device", device}},
            &(struct vm_options){.append = "",
                                 .incoming = true,
                                 .extra = {"-netdev", "hubport,id=n,hubid=0", "-device", device}},
            "has the feature VIRTIO_NET_F_CSUM here, which the destination cannot");
}

/* QEMU would load the state, and the guest's clock would go otherwise from then on. */
static void test_another_icount(void)
{
    mover_begin();
    refused(&(struct vm_options){.accel = "tcg", .append = "", .extra = {"-icount", "shift=2"}},
            &(struct vm_options){.append = "", .incoming = true},
            "the guest's clock goes by -icount shift=2 here and without -icount at the "
            "destination");
}

/* QEMU would load the state, and the guest would see another processor, another date, other files
 * and another network. */
static void test_another_command_line(void)
{
#define LINE(cpu, rtc, file, net)                                                                  \
    .append = "", .extra = {"-cpu",    "qemu64," cpu,                                              \
                            "-rtc",    rtc,                                                        \
                            "-fw_cfg", file,                                                       \
                            "-netdev", "user,id=n,net=" net,                                       \
                            "-device", "virtio-net-pci,netdev=n,addr=5,romfile="}
    mover_begin();
    refused(&(struct vm_options){LINE("model=5", "base=utc", "opt/ibx/a,string=x", "10.9.0.0/24")},
            &(struct vm_options){LINE("model=6", "clock=vm", "opt/ibx/b,string=x", "10.8.0.0/24"),
                                 .incoming = true},
            "the vCPUs differ: model is 5 here and 6 at the destination");
    mover_must_print(&sender, "the VM has -netdev user,net=10.9.0.0,restrict=off here and -netdev "
                              "user,net=10.8.0.0,restrict=off at the destination");
    mover_must_print(&sender, "the real-time clock goes by -rtc clock=host here and by clock=vm");
    mover_must_print(&sender, "the destination lacks opt/ibx/a: ");
    mover_must_print(&sender, "the destination has opt/ibx/b, which the VM here has not: ");
}

/* The receiver, which knows its vCPU already, asks for what may have changed. */
static void test_a_processor_changed_since(void)
{
    mover_begin();
    vm_start_pair(&(struct vm_options){.append = ""},
                  &(struct vm_options){.append = "", .incoming = true});
    pair_receive(NULL);
    MOVER_RUN(0, "check", "--qmp", vms[0].tool, receiver.uri, TIMED);
    vm_do(&vms[1], "qom-set",
          json_pack("{s:s,s:s,s:i}", "path", "/machine/unattached/device[0]", "property", "model",
                    "value", 6));
    pair_send(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the vCPUs differ: model is ");
    pair_stays();
}

/* The guest would lose what it has written when the destination's host loses its power. */
static void test_a_disk_written_through(void)
{
#define CACHE(kind)                                                                                \
    .append = "", .extra = {"-drive",  "driver=null-co,size=1M,if=none,id=d,cache=" kind,          \
                            "-device", "virtio-scsi-pci,addr=5",                                   \
                            "-device", "scsi-hd,drive=d"}
    mover_begin();
    refused(&(struct vm_options){CACHE("writethrough")},
            &(struct vm_options){CACHE("writeback"), .incoming = true},
            "the disk of scsi-hd @ q35-pcihost/05.0/0:0:0 is written through (write-cache=off or "
            "cache=writethrough) here and cached until a flush, ");
}

/* Memory that was plugged in lies at another address: QEMU would accept it, and the guest would
 * crash. */
static void test_memory_elsewhere(void)
{
    static const char backend[] = "memory-backend-file,id=more,size=64M,mem-path=/dev/shm,share=on";
    mover_begin();
    refused(&(struct vm_options){.append = "",
                                 .extra = {"-m", "64,slots=2,maxmem=1G", "-object", backend,
                                           "-device", "pc-dimm,memdev=more,addr=0x100000000"}},
            &(struct vm_options){.append = "",
                                 .incoming = true,
                                 .extra = {"-m", "64,slots=2,maxmem=1G", "-object", backend,
                                           "-device", "pc-dimm,memdev=more,addr=0x108000000"}},
            "the VM has dimm of 64 MiB at 0x100000000, slot 0, node 0 here and dimm of 64 MiB at "
            "0x108000000");
}

/* Two backends of one size, exchanged: QEMU would refuse the state, and end. */
static void test_memory_exchanged(void)
{
#define HALF(id) "memory-backend-file,id=" id ",size=32M,mem-path=/dev/shm,share=on"
#define NODES(first, second)                                                                       \
    .append = "", .ram = HALF("left"),                                                             \
    .extra = {"-object", HALF("right"),        "-numa", "node,memdev=" first,                      \
              "-numa",   "node,memdev=" second}
    mover_begin();
    refused(&(struct vm_options){NODES("left", "right")},
            &(struct vm_options){NODES("right", "left"), .incoming = true},
            "guest RAM lies in the order left, right here and right, left at the destination");
}

/* Devices that were plugged in are on the destination's command line: both are the same machine. */
static void test_a_machine_plugged_together_since(void)
{
#define SLOTS                                                                                      \
    "-m", "64,slots=2,maxmem=1G", "-smp", "1,maxcpus=2,sockets=2", "-object",                      \
        "memory-backend-file,id=more,size=64M,mem-path=/dev/shm,share=on", "-device",              \
        "pcie-root-port,id=rp,addr=8"
    mover_begin();
    vm_start_pair(&(struct vm_options){.append = "", .extra = {SLOTS}},
                  &(struct vm_options){.append = "",
                                       .incoming = true,
                                       .extra = {SLOTS, "-device", "virtio-rng-pci,bus=rp",
                                                 "-device", "pc-dimm,memdev=more", "-device",
                                                 "qemu64-x86_64-cpu,socket-id=1,core-id=0,"
                                                 "thread-id=0"}});
    vm_do(&vms[0], "device_add", json_pack("{s:s,s:s}", "driver", "pc-dimm", "memdev", "more"));
    pair_receive(NULL);
    struct mover *check = MOVER_RUN(1, "check", "--qmp", vms[0].tool, receiver.uri, TIMED);
    mover_must_print(check, "1 vCPUs here and 2 at the destination");
    mover_must_print(check, "has virtio-rng-pci @ q35-pcihost/08.0/00.0, which");
    vm_do(&vms[0], "device_add",
          json_pack("{s:s,s:i,s:i,s:i,s:s}", "driver", "qemu64-x86_64-cpu", "socket-id", 1,
                    "core-id", 0, "thread-id", 0, "id", "plugged"));
    vm_do(&vms[0], "device_add", json_pack("{s:s,s:s}", "driver", "virtio-rng-pci", "bus", "rp"));
    pair_send(NULL);
    pair_done();
    pair_moved("");
}

static char group[PATH_MAX + 128], left[PATH_MAX + 128];

/* Finds this process's control group, `left`, in the tree where memory is counted, and the place of
 * one for the processes that it starts, `group`. In version 2 a group has processes or groups, not
 * both: `group` is beside `left`. */
static bool find_groups(void)
{
    char line[PATH_MAX], path[PATH_MAX] = "";
    bool first = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !first && fgets(line, sizeof(line), file)) {
        first = strstr(line, ":memory:");
        if (first || !strncmp(line, "0::", 3))
            sscanf(strchr(line, '/'), "%4000[^\n]", path);
    }
    if (file)
        fclose(file);
    snprintf(left, sizeof(left), "/sys/fs/cgroup%s%s", first ? "/memory" : "", path);
    const bool found = first || (*path && path[1]);
    if (!first && found)
        *strrchr(path, '/') = '\0';
    snprintf(group, sizeof(group), "/sys/fs/cgroup%s%s/ibx-test-%d", first ? "/memory" : "", path,
             (int)getpid());
    return found;
}

/* Makes a control group for this process and its children, without swap. False: this is
 * impossible. */
static bool limit_memory(unsigned mib)
{
    char command[4 * PATH_MAX];
    struct sysinfo host;
    if (sysinfo(&host) || !find_groups())
        return false;
    snprintf(command, sizeof(command),
             "exec 2>/dev/null; cd /sys/fs/cgroup; mkdir %s && cd %s && "
             "for limit in memory.max memory.limit_in_bytes; do "
             "[ -e $limit ] && echo %uM > $limit && "
             "{ echo 0 > memory.swap.max || echo %uM > memory.memsw.limit_in_bytes || %s; } && "
             "echo %d > cgroup.procs && exit; done; exit 1",
             group, group, mib, mib, host.totalswap ? "false" : "true", (int)getpid());
    return !system(command);
}

/* This process leaves the group; its children stay. */
static int leave_group(void)
{
    char command[2 * PATH_MAX];
    snprintf(command, sizeof(command), "echo %d > %s/cgroup.procs", (int)getpid(), left);
    return system(command);
}

/* Sets the limit to what is used, and so many MiB more. */
static bool tighten_memory(unsigned mib)
{
    char command[2 * PATH_MAX];
    snprintf(command, sizeof(command),
             "exec 2>/dev/null; cd %s && for of in max:current limit_in_bytes:usage_in_bytes; do "
             "[ -e memory.${of%%:*} ] && used=$(cat memory.${of#*:}) && "
             "echo $((used + %u * 1048576)) > memory.${of%%:*} && exit; done; exit 1",
             group, mib);
    return !system(command);
}

/* Behind each case: the group of one that fails goes, too. */
static int end_all(void **state)
{
    int rc = mover_end_all(state);
    if (!*group || access(group, F_OK))
        return rc;
    if (leave_group() || rmdir(group))
        rc = -1;
    return rc;
}

static void start_of_size(struct vm *vm, const char *ram, const char *size, bool incoming)
{
    vm_start(vm, &(struct vm_options){
                     .append = "mib=4",
                     .incoming = incoming,
                     .extra = {"-m", size, "-object", ram, "-machine", "memory-backend=mem1"}});
}

/* Allocates, or frees, pages that the guest never touches: those beyond the memory that it
 * knows. */
static void hold_the_rest(const char *ram, int mode)
{
    int fd = open(ram, O_RDWR | O_CLOEXEC);
    assert_int_equal(fallocate(fd, mode, (off_t)VM_RAM_MIB << 20, (256 - VM_RAM_MIB) << 20), 0);
    close(fd);
}

/* Pages that are READ into place count as the tool's memory: the kernel would end the tool, and the
 * VM would wait. The check counts what the VM holds, not what it could hold. */
static void test_no_memory_for_minor(void)
{
    char folder[] = "/dev/shm/ibx-vm-folder-XXXXXX", from[64], to[64], ram[2][160];
    char named[sizeof(group) + 64];
    mover_begin();
    assert_non_null(mkdtemp(folder));
    snprintf(from, sizeof(from), "%s/from", folder);
    snprintf(to, sizeof(to), "%s/to", folder);
    snprintf(ram[0], sizeof(ram[0]), "memory-backend-file,id=mem1,size=256M,mem-path=%s,share=on",
             from);
    snprintf(ram[1], sizeof(ram[1]), "memory-backend-file,id=mem1,size=256M,mem-path=%s,share=on",
             to);
    start_of_size(&vms[0], ram[0], "256", false);
    start_of_size(&vms[1], ram[1], "256", true);
    vm_wait_beats(&vms[0], pair_beats);
    if (!limit_memory(200)) /* a sanitizer takes more than the tool */
        skip();
    snprintf(named, sizeof(named), "the control group of this ib-migrate, %.200s", group);
    mover_receive(&receiver, &vms[1], "tcp://127.0.0.1:0", (const char *[]){"--minor", NULL});
    assert_int_equal(leave_group(), 0);
    mover_must_print(&receiver, named);
    mover_must_print(&receiver, "may come to need");
    hold_the_rest(from, 0);
    mover_send(&sender, &vms[0], receiver.uri, NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, named);
    mover_must_print(&sender, "and this VM needs ");
    hold_the_rest(from, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
    mover_send(&sender, &vms[0], receiver.uri, NULL);
    pair_done();
    mover_must_print(&sender, named);
    pair_moved("mib=4");
    unlink(from);
    unlink(to);
    rmdir(folder);
}

/* The kernel would end the tool after the VM has come, and the VM would wait. */
static void test_no_memory_for_the_receiver(void)
{
    mover_begin();
    vm_start_pair(&(struct vm_options){0}, &(struct vm_options){.incoming = true});
    if (!limit_memory(1000)) /* a sanitizer takes more than the tool */
        skip();
    pair_receive(NULL);
    assert_int_equal(leave_group(), 0);
    assert_true(tighten_memory(12));
    pair_send(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the control group of this ib-migrate, ");
    mover_must_print(&sender, "to which what it fetches and notes counts, has ");
    pair_stays();
}

/* The limit falls while pages come: the kernel ends the destination's QEMU, and both sides say
 * why. */
static void test_no_memory_any_more(void)
{
    mover_begin();
    pair_start_source();
    if (!limit_memory(400))
        skip();
    vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true});
    assert_int_equal(leave_group(), 0);
    pair_run((const char *[]){"--max-bandwidth", HARDLY, NULL});
    mover_await(&receiver, "filling", 0);
    if (!tighten_memory(1 /* less than the VM has still to get there */))
        skip();
    struct mover quicker; /* if the kernel has not been, with what the guest has fetched */
    mover_start(&quicker,
                (const char *[]){"set", "--max-bandwidth", "0", "--qmp", vms[1].tool, NULL});
    mover_wait(&quicker);
    mover_ends(&receiver, 3);
    mover_must_print(&receiver, "for want of memory");
    mover_ends(&sender, 3);
    mover_must_print(&sender, "for want of memory");
    MOVER_RUN(0, "rollback", "--yes", "--qmp", vms[0].tool, TIMED);
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + pair_beats);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "");
}

/* A file system without a limit says nothing about the host's memory. A VM that holds little moves,
 * though all of its RAM would find no room. */
static void test_no_memory_of_the_host(void)
{
    char ram[200], size[32];
    struct sysinfo host;
    mover_begin();
    assert_int_equal(sysinfo(&host), 0);
    snprintf(size, sizeof(size), "%luM",
             (host.totalram + host.totalswap) / (1ul << 20) * host.mem_unit * 2);
    snprintf(ram, sizeof(ram), "memory-backend-memfd,id=mem1,size=%s,share=on", size);
    start_of_size(&vms[1], ram, size, true);
    struct mover *check = MOVER_RUN(0, "check", "--qmp", vms[1].tool, "--destination");
    mover_must_print(check, "note: this host (MemAvailable ");
    mover_must_print(check, "free memory or add swap");
}

/* The source of a pair in a file on disk, with `mib` of room in /dev/shm for the other. False: this
 * user cannot mount. */
static bool start_where_room_is(unsigned mib, char file[96])
{
    char ram[200], options[32];
    mover_begin();
    if (geteuid() || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return false;
    mover_make_file(file, 96, "ram", VM_RAM_MIB << 20);
    assert_int_equal(chmod(file, 0600), 0);
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=%uM,mem-path=%s,share=on",
             VM_RAM_MIB, file);
    vm_start(&vms[0], &(struct vm_options){.ram = ram, .append = ""});
    vm_wait_beats(&vms[0], pair_beats);
    snprintf(options, sizeof(options), "size=%uM", mib);
    assert_int_equal(mount("ibx-test", "/dev/shm", "tmpfs", 0, options), 0);
    vm_start(&vms[1], &(struct vm_options){.append = "", .incoming = true});
    return true;
}

static void leave_no_hole(const char *file)
{
    int fd = open(file, O_RDWR | O_CLOEXEC);
    const size_t bytes = (size_t)VM_RAM_MIB << 20;
    uint8_t *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(all, MAP_FAILED);
    for (size_t at = 0; at < bytes; at += 4096)
        atomic_fetch_or((_Atomic uint8_t *)all + at, 0);
    munmap(all, bytes);
    close(fd);
}

/* What is noted of the VM's pages lies in /dev/shm, as guest RAM often does: with room for that
 * alone, the last pages would find none, and the VM would hang. */
static void test_no_room_beside_the_notes(void)
{
    char file[96];
    if (!start_where_room_is(VM_RAM_MIB, file))
        skip();
    leave_no_hole(file);
    pair_run(NULL);
    mover_ends(&sender, 1);
    mover_must_print(&sender, " has 63 MiB left and this VM needs 64 MiB more");
    pair_stays();
    vm_end(&vms[1]);
    assert_int_equal(umount2("/dev/shm", MNT_DETACH), 0);
}

/* The check counts what the VM holds, a good half of its RAM, not what it could hold; for a
 * borrowed VM not even that, since only the pages that it needs come. */
static void test_little_room(void)
{
    static const char noted[] = "may come to need 64 MiB more: enlarge it";
    for (unsigned borrowed = 0; borrowed < 2; borrowed++) {
        char file[96];
        if (!start_where_room_is(VM_RAM_MIB * 3 / 4, file))
            skip();
        if (borrowed) {
            leave_no_hole(file);
            pair_run(NULL);
            mover_ends(&sender, 1);
            mover_must_print(&sender, " left and this VM needs 64 MiB more: enlarge it");
            mover_start(&sender, (const char *[]){"borrow", "--yes", "--qmp", vms[0].tool, "--json",
                                                  receiver.uri, TIMED, NULL});
            mover_await(&receiver, "filling", 0);
            vm_wait_beats(&vms[1], pair_beats);
            mover_must_print(&sender, noted);
        } else {
            pair_run(NULL);
            pair_done();
            mover_must_print(&sender, noted);
            pair_moved("");
        }
        mover_end_all(NULL);
        assert_int_equal(umount2("/dev/shm", MNT_DETACH), 0);
    }
}

/* A VM may come from a file on a disk, and not into one: its pages could not come one by one. */
static void test_memory_on_a_disk(void)
{
    char ram[2][200], path[96], file[64];
    struct statfs fs;
    mover_begin();
    assert_int_equal(statfs(mover_folder, &fs), 0);
    if (fs.f_type == TMPFS_MAGIC)
        skip();
    for (unsigned i = 0; i < 2; i++) {
        snprintf(file, sizeof(file), "ram-%u", i);
        mover_make_file(path, sizeof(path), file, 0);
        assert_int_equal(chmod(path, 0600), 0);
        snprintf(ram[i], sizeof(ram[i]),
                 "memory-backend-file,id=mem1,size=64M,mem-path=%s,share=on", path);
    }
#define ON_A_DISK(i) .append = "", .extra = {"-object", ram[i], "-machine", "memory-backend=mem1"}
    vm_start(&vms[0], &(struct vm_options){ON_A_DISK(0)});
    vm_start(&vms[1], &(struct vm_options){ON_A_DISK(1), .incoming = true});
    struct mover *check = MOVER_RUN(0, "check", "--qmp", vms[0].tool);
    check = MOVER_RUN(1, "check", "--qmp", vms[1].tool, "--destination");
    mover_must_print(check, "is on no tmpfs and not in huge pages");
}

#define FLASH(file, rest) "file=" file ",format=raw,if=pflash," rest

/* Firmware of the same size in each host's own files, an empty drive, a disk without content.
 * False: this host has no firmware. */
static bool start_with_firmware(const char *variables_there)
{
    static const char bios[] = "/usr/share/seabios/bios-256k.bin";
    char copy[96], variables[2][96], drive[4][200], command[300];
    mover_begin();
    for (unsigned i = 0; i < 2; i++) {
        mover_make_file(variables[i], sizeof(variables[i]), i ? "there" : "here", 256 << 10);
        snprintf(drive[2 + i], sizeof(drive[0]), FLASH("%s", "%s"), variables[i],
                 i ? variables_there : "unit=1");
    }
    snprintf(copy, sizeof(copy), "%s/firmware", mover_folder);
    snprintf(command, sizeof(command), "cp %s %s && printf x >> %s && truncate -s 256K %s", bios,
             copy, copy, copy);
    if (access(bios, R_OK) || system(command)) {
        print_message("no %s here\n", bios);
        return false;
    }
    snprintf(drive[0], sizeof(drive[0]), FLASH("%s", "unit=0,readonly=on"), bios);
    snprintf(drive[1], sizeof(drive[1]), FLASH("%s", "unit=0,readonly=on"), copy);
#define FIRMWARE(i)                                                                                \
    .append = "",                                                                                  \
    .extra = {"-drive", drive[i], "-drive", drive[2 + (i)], "-device", "ide-cd,bus=ide.0"}
    vm_start(&vms[0], &(struct vm_options){FIRMWARE(0)});
    vm_start(&vms[1], &(struct vm_options){FIRMWARE(1), .incoming = true});
    vm_wait_beats(&vms[0], pair_beats);
    pair_run(NULL);
    return true;
}

/* The VM moves, and takes its firmware along. */
static void test_own_firmware(void)
{
    if (!start_with_firmware("unit=1"))
        return;
    pair_done();
    pair_moved("");
}

/* What the guest's firmware writes from then on would be lost. */
static void test_variables_that_cannot_be_written(void)
{
    if (!start_with_firmware("unit=1,readonly=on"))
        return;
    mover_ends(&sender, 1);
    mover_must_print(&sender, "the disk of cfi.pflash01 @ system.flash1 is writable here and "
                              "read-only at the destination");
    pair_stays();
}

int main(void)
{
    pair_beats = 40;
    static const struct vm_test tests[] = {VM_TEST(test_a_stale_disk),
                                           VM_TEST(test_a_part_of_the_disk),
                                           VM_TEST(test_a_part_spelled_otherwise),
                                           VM_TEST(test_snapshot_since),
                                           VM_TEST(test_a_bitmap_below_a_filter),
                                           VM_TEST(test_a_device_with_other_queues),
                                           VM_TEST(test_another_way_to_plug),
                                           VM_TEST(test_other_back_end),
                                           VM_TEST(test_other_offloads),
                                           VM_TEST(test_another_icount),
                                           VM_TEST(test_another_command_line),
                                           VM_TEST(test_a_processor_changed_since),
                                           VM_TEST(test_a_disk_written_through),
                                           VM_TEST(test_memory_elsewhere),
                                           VM_TEST(test_memory_exchanged),
                                           VM_TEST(test_a_machine_plugged_together_since),
                                           VM_TEST(test_no_memory_for_minor),
                                           VM_TEST(test_no_memory_for_the_receiver),
                                           VM_TEST(test_no_memory_any_more),
                                           VM_TEST(test_no_memory_of_the_host),
                                           VM_TEST(test_no_room_beside_the_notes),
                                           VM_TEST(test_little_room),
                                           VM_TEST(test_memory_on_a_disk),
                                           VM_TEST(test_own_firmware),
                                           VM_TEST(test_variables_that_cannot_be_written),
                                           {0}};
    return vm_tests(tests, end_all);
}
