/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory limits, the kernel's services, libfabric. */
#include "tools/ib-doctor/ib-doctor.h"

#include "common/control_groups.h"
#include "common/rights.h"
#include "transport/transport.h"

#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef IBX_WITH_URING
#include <liburing.h>
#endif

#define SMALL_SHM  (1ull << 30) /* a container's has 64 MiB by default */
#define NO_LIMIT   (1ll << 60)  /* version 1 of control groups reports no limit as a huge number */
#define HUGE_PAGES "/sys/kernel/mm/hugepages/hugepages-2048kB/"

/* ---------------------------------------------------------------------- memory */

static void check_memlock(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        ibx_doctor_add("memory", "locked memory", DOCTOR_OK, NULL, "unlimited");
    else if (ibx_capable(CAP_IPC_LOCK))
        ibx_doctor_add("memory", "locked memory", DOCTOR_OK, NULL,
                       "the limit of %llu KiB does not apply: this process has CAP_IPC_LOCK",
                       (unsigned long long)limit.rlim_cur >> 10);
    else
        ibx_doctor_add("memory", "locked memory", DOCTOR_LIMITED,
                       "registration with verbs pins memory: \"* - memlock unlimited\" in "
                       "/etc/security/limits.conf, LimitMEMLOCK=infinity in a unit, or --ulimit "
                       "memlock=-1 of a container",
                       "%llu KiB", (unsigned long long)limit.rlim_cur >> 10);
}

static void check_huge_pages(void)
{
    static const char label[] = "huge pages of 2 MiB";
    const long long total = ibx_doctor_read_number(HUGE_PAGES "nr_hugepages", -1),
                    spare = ibx_doctor_read_number(HUGE_PAGES "free_hugepages", 0);
    if (total < 0)
        ibx_doctor_add("memory", label, DOCTOR_MISSING,
                       "this processor or kernel does not have them", "not known here");
    else
        ibx_doctor_add("memory", label, total ? DOCTOR_OK : DOCTOR_LIMITED,
                       "for guests backed by them: sysctl vm.nr_hugepages=N",
                       "%lld, of which %lld free", total, spare);
}

/* /dev/shm has the memory of VMs that migrate, their page states, and what clone URI fetches. */
static void check_shm(void)
{
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs)) {
        ibx_doctor_add("memory", "/dev/shm", DOCTOR_MISSING, "mount a tmpfs there", "%s",
                       strerror(errno));
        return;
    }
    const unsigned long long bytes = (unsigned long long)fs.f_blocks * fs.f_frsize;
    if (access("/dev/shm", W_OK | X_OK))
        ibx_doctor_add("memory", "/dev/shm", DOCTOR_MISSING,
                       "ib-migrate notes there which pages of a VM have come: chmod 1777 /dev/shm",
                       "%s", strerror(errno));
    else if (!bytes) /* a tmpfs of size=0, as --shm-size 0 of a container */
        ibx_doctor_add("memory", "/dev/shm", DOCTOR_OK, NULL, "no limit of its own");
    else
        ibx_doctor_add("memory", "/dev/shm", bytes < SMALL_SHM ? DOCTOR_LIMITED : DOCTOR_OK,
                       "the memory of VMs lies there (mem-path), and snapshots that clone fetches: "
                       "mount -o remount,size=75% /dev/shm, or --shm-size of a container",
                       "%llu MiB, of which %llu MiB free", bytes >> 20,
                       (unsigned long long)fs.f_bavail * fs.f_frsize >> 20);
}

static void look_at_group(void *context, const struct ibx_control_group *group)
{
    long long *least = context;
    char path[2 * PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", group->folder,
             group->second ? "memory.max" : "memory.limit_in_bytes");
    const long long limit = ibx_doctor_read_number(path, -1);
    if (limit >= 0 && (*least < 0 || limit < *least))
        *least = limit;
}

/* Bytes; 0: not known. */
static long long host_memory(void)
{
    long long kib = 0;
    FILE *file = fopen(ibx_doctor_path("/proc/meminfo"), "re");
    if (file && fscanf(file, "MemTotal: %lld", &kib) != 1)
        kib = 0;
    if (file)
        fclose(file);
    return kib << 10;
}

/* Reports control groups that limit memory: ib-migrate refuses a VM that would not fit, and the
 * kernel ends a process that goes beyond the limit. */
static void check_groups(void)
{
    char groups[2 * PATH_MAX];
    long long least = -1;
    FILE *file = fopen(ibx_doctor_path("/proc/self/cgroup"), "re");
    groups[file ? fread(groups, 1, sizeof(groups) - 1, file) : 0] = '\0';
    if (file)
        fclose(file);
    ibx_control_groups_of("memory", "/sys/fs/cgroup", groups, look_at_group, &least);
    const bool limited = least >= 0 && least < NO_LIMIT;
    const long long memory = host_memory();
    if (limited && memory && least >= memory)
        ibx_doctor_add("memory", "control group", DOCTOR_OK, NULL,
                       "%lld MiB, which is not less than this host has", least >> 20);
    else if (limited)
        ibx_doctor_add("memory", "control group", DOCTOR_LIMITED,
                       "VMs that are started or received in it, and ib-migrate, have to fit: "
                       "MemoryMax= of the unit or slice, or --memory of a container",
                       "%lld MiB for this process and those beside it", least >> 20);
    else
        ibx_doctor_add("memory", "control group", DOCTOR_OK, NULL, "no limit of memory");
}

/* Guest memory that is in none of hugetlbfs has these pages. */
static void check_pages(void)
{
    const long kib = sysconf(_SC_PAGESIZE) / 1024;
    ibx_doctor_add("memory", "pages", kib == 4 ? DOCTOR_OK : DOCTOR_LIMITED,
                   "ib-migrate needs guests in huge pages of 2 MiB here", "%ld KiB", kib);
}

static void check_numa(void)
{
    char nodes[128];
    if (ibx_doctor_read("/sys/devices/system/node/online", nodes, sizeof(nodes)))
        ibx_doctor_add("memory", "NUMA nodes", DOCTOR_OK, NULL, "%s%s",
                       strpbrk(nodes, ",-") ? "" : "only ", nodes);
}

void ibx_doctor_check_memory(void)
{
    check_memlock();
    check_pages();
    check_huge_pages();
    check_shm();
    check_groups();
    check_numa();
}

/* ---------------------------------------------------------------------- system */

#define SESSIONS   4096u /* that a back end serves without rdma.sessions */
#define FILES_EACH 14u   /* with TLS on four lanes; 4 to 9 over shm, 6 over tcp in plain */

#define FILES_ENOUGH 65536u
/* The soft limit and the hard one, which is to be far higher (docs/security.md). */
#define UNIT_FILES "LimitNOFILE=65536:524288 in its unit"

/* Whether the hard limit can be raised: by root, but not in each container. */
static bool may_raise_files(const struct rlimit *limit)
{
    const struct rlimit more = {.rlim_cur = limit->rlim_cur, .rlim_max = 524288};
    return !setrlimit(RLIMIT_NOFILE, &more) && !setrlimit(RLIMIT_NOFILE, limit);
}

static void check_open_files(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    char value[96];
    const int n = snprintf(value, sizeof(value), "%llu", (unsigned long long)limit.rlim_cur);
    if (limit.rlim_cur < limit.rlim_max)
        snprintf(value + n, sizeof(value) - (size_t)n, ", may be raised to %llu",
                 (unsigned long long)limit.rlim_max);
    else
        snprintf(value + n, sizeof(value) - (size_t)n, ", which is also the hard limit");
    const char *remedy =
        "each connection to a back end takes 4 to 14 descriptors: \"* soft nofile 65536\" and \"* "
        "hard nofile 524288\" in /etc/security/limits.conf and a new login, or " UNIT_FILES;
    if (limit.rlim_max >= FILES_ENOUGH)
        remedy = "each connection to a back end takes 4 to 14 descriptors: ulimit -Sn 65536, "
                 "or " UNIT_FILES;
    else if (may_raise_files(&limit))
        remedy = "each connection to a back end takes 4 to 14 descriptors: ulimit -Hn 524288 and "
                 "ulimit -Sn 65536, or " UNIT_FILES;
    ibx_doctor_add("system", "open files",
                   limit.rlim_cur < SESSIONS * FILES_EACH ? DOCTOR_LIMITED : DOCTOR_OK, remedy,
                   "%s", value);
}

/* Tries to read a byte of another process; 0, or the errno. */
static int read_byte_of(pid_t process)
{
    static char from = 'x'; /* has the same address in a child */
    char to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    return process_vm_readv(process, &local, 1, &remote, 1, 0) == 1 ? 0 : errno;
}

/* Checks process_vm_readv(2), which the shm path uses between two processes of one user. A child
 * tries it, since a parent may be allowed to read its child but not the reverse. */
static void check_direct_copy(void)
{
    long long scope = ibx_doctor_read_number("/proc/sys/kernel/yama/ptrace_scope", 0);
    int code = read_byte_of(getpid()), status = 0;
    const pid_t parent = getpid(), child = fork();
    if (!child)
        _exit(read_byte_of(parent));
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && !code)
        code = WEXITSTATUS(status);
    ibx_doctor_add("system", "process_vm_readv", code ? DOCTOR_LIMITED : DOCTOR_OK,
                   "shm then copies twice: sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE",
                   "%s, ptrace_scope %lld", code ? strerror(code) : "allowed", scope);
}

static void check_uring(void)
{
#ifdef IBX_WITH_URING
    struct io_uring ring;
    int rc = io_uring_queue_init(8, &ring, 0);
    if (rc) {
        ibx_doctor_add(
            "system", "io_uring", DOCTOR_LIMITED,
            "tcp then uses plain system calls: sysctl kernel.io_uring_disabled=0, or allow it "
            "in the container's seccomp profile",
            "%s", strerror(-rc));
        return;
    }
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
    bool zero_copy = probe && io_uring_opcode_supported(probe, IORING_OP_SEND_ZC);
    ibx_doctor_add("system", "io_uring", DOCTOR_OK, NULL, "usable");
    ibx_doctor_add("system", "io_uring SEND_ZC", zero_copy ? DOCTOR_OK : DOCTOR_LIMITED,
                   "Linux 6.0 and later have it", "%s",
                   zero_copy ? "usable" : "not in this kernel");
    io_uring_free_probe(probe);
    io_uring_queue_exit(&ring);
#else
    ibx_doctor_add("system", "io_uring", DOCTOR_MISSING, "build with liburing",
                   "not in this build");
#endif
}

static void check_cipher(void)
{
    const char *remedy, *name = ibx_cipher_description(&remedy);
    ibx_doctor_add("system", "encryption", remedy ? DOCTOR_LIMITED : DOCTOR_OK, remedy, "%s", name);
}

static void check_iommu(void)
{
    struct dirent **names;
    int units = ibx_doctor_list("/sys/class/iommu", &names);
    ibx_doctor_list_free(names, units);
    ibx_doctor_add("system", "IOMMU", DOCTOR_OK, NULL, "%s",
                   units ? "on: GPUDirect between PCIe devices may need iommu=pt"
                         : "off, or not seen");
}

/* rdma:// uses only native fabrics; ofi:// also uses their emulations. */
static void check_libfabric(void)
{
    struct ibx_options native, any;
    struct ibx_error err = {0};
    char description[160];
    ibx_options_init(&native);
    ibx_options_init(&any);
    ibx_options_set(&any, "provider", "ofi", NULL);
    if (!ibx_provider_probe("ofi", &native, description, sizeof(description), &err))
        ibx_doctor_add("system", "libfabric", DOCTOR_OK, NULL, "%s", description);
    else if (!ibx_provider_probe("ofi", &any, description, sizeof(description), &err))
        ibx_doctor_add("system", "libfabric", DOCTOR_LIMITED,
                       "rdma:// does not use it; a native provider needs the fabric's device (EFA, "
                       "Omni-Path, Slingshot) and its driver",
                       "emulation only: %s", description);
    else
        ibx_doctor_add("system", "libfabric", DOCTOR_MISSING, "apt install libfabric1", "%s",
                       err.message);
}

void ibx_doctor_check_system(void)
{
    struct utsname host;
    uname(&host);
    ibx_doctor_add("system", "release", DOCTOR_OK, NULL, "%s", host.release);
    check_open_files();
    check_direct_copy();
    check_uring();
    check_cipher();
    check_iommu();
    check_libfabric();
}
