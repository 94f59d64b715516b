#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ib-doctor's page and JSON, here and on a made-up host with two adapters."""
import errno
import json
import os
import pty
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness import in_share

DOCTOR = sys.argv.pop(1)
FAKE_PTRACE_SCOPE = sys.argv.pop(1)
FAKE_USERFAULTFD = sys.argv.pop(1)
FAKE_VERBS = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1].endswith(".so") else None
QEMU = "qemu-system-" + ("aarch64" if platform.machine() == "aarch64" else "x86_64")
LIBCUDA = os.environ.get("IBX_TEST_LIBCUDA")
PCI = "/sys/devices/pci0000:00"
GPU = PCI + "/0000:00:01.0/0000:01:01.0/0000:03:00.0"


def run(*args, root=None, **more):
    env = dict(os.environ, **more)
    for name in ("IBX_DOCTOR_ROOT", "GVIRTUS_HOME", "GVIRTUS_CONFIG", "GVIRTUS_RDMA_PROPERTIES"):
        env.pop(name, None)
    if root:
        env["IBX_DOCTOR_ROOT"] = root
    return subprocess.run([DOCTOR, *args], env=env, capture_output=True, text=True, timeout=60)


def write(root, path, text):
    whole = root + path
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    with open(whole, "w", encoding="ascii") as file:
        file.write(text + "\n")


def adapter(root, device, state, link, gids):
    port = f"/sys/class/infiniband/{device}/ports/1"
    write(root, port + "/state", state)
    write(root, port + "/rate", "200 Gb/sec (4X HDR)")
    write(root, port + "/link_layer", link)
    for i, gid in enumerate(gids):
        write(root, f"{port}/gids/{i}", gid)


def pci(root, path, acs=None, length=4096):
    """A PCI function with this ACS control word, behind another capability; or without one."""
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x140 << 20).to_bytes(4, "little")
    if acs is not None:
        config[0x140:0x144] = (0x000D | 1 << 16).to_bytes(4, "little")
        config[0x146:0x148] = acs.to_bytes(2, "little")
    os.makedirs(root + path, exist_ok=True)
    with open(f"{root}{path}/config", "wb") as file:
        file.write(config[:length])


def link(root, path, target):
    os.makedirs(os.path.dirname(root + path), exist_ok=True)
    os.symlink(os.path.relpath(root + target, os.path.dirname(root + path)), root + path)


def host_with_gpu(root, nic_bridge, gpu_bridge, length=4096):
    """An adapter below one bridge, a GPU below two; the upper one is common to both."""
    pci(root, PCI + "/0000:00:01.0", acs=0x01, length=length)
    pci(root, PCI + "/0000:00:01.0/0000:01:00.0", acs=nic_bridge, length=length)
    pci(root, PCI + "/0000:00:01.0/0000:01:00.0/0000:02:00.0", acs=0x1D)  # the adapter's own
    pci(root, PCI + "/0000:00:01.0/0000:01:01.0", acs=gpu_bridge, length=length)
    pci(root, GPU)
    write(root, GPU + "/vendor", "0x10de")
    write(root, GPU + "/class", "0x030200")
    pci(root, PCI + "/0000:00:1f.0/0000:04:00.0", acs=0x1D)  # a disk and its bridge do not matter
    pci(root, PCI + "/0000:00:1f.0", acs=0x1D)
    write(root, PCI + "/0000:00:1f.0/0000:04:00.0/vendor", "0x144d")
    write(root, PCI + "/0000:00:1f.0/0000:04:00.0/class", "0x010802")
    link(root, "/sys/bus/pci/devices/0000:03:00.0", GPU)
    link(root, "/sys/bus/pci/devices/0000:04:00.0", PCI + "/0000:00:1f.0/0000:04:00.0")
    link(root, "/sys/class/infiniband/mlx5_0/device",
         PCI + "/0000:00:01.0/0000:01:00.0/0000:02:00.0")


class Doctor(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name  # of a host with nothing on it

    def report(self, root=None, **more):
        done = run("--json", root=root, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check_of(self, report, name):
        found = [c for c in report["checks"] if c["name"] == name]
        self.assertEqual(len(found), 1, f"{name} in {report['checks']}")
        return found[0]

    def expect(self, check, status, *words, value=None):
        """Words in the value or the remedy."""
        self.assertEqual(check["status"], status, check)
        for one in words:
            self.assertIn(one, check["value"] + check["remedy"])
        if value:
            self.assertEqual(check["value"], value)

    def test_shape(self):
        report = self.report()
        self.assertEqual(set(report), {"version", "host", "kernel", "checks", "paths", "chosen"})
        self.assertEqual(report["kernel"], os.uname().release)
        for check in report["checks"]:
            self.assertEqual(set(check), {"area", "name", "status", "value", "remedy"})
            self.assertIn(check["status"], ("ok", "limited", "missing"))
            self.assertTrue(check["value"], check)
            self.assertEqual(check["status"] == "ok", check["remedy"] == "", check)
        self.assertEqual([p["provider"] for p in report["paths"]], ["shm", "verbs", "ofi", "tcp"])
        for path in report["paths"]:
            self.assertTrue(path["description" if path["usable"] else "reason"], path)
        self.assertEqual(report["chosen"]["other_host"],
                         next(p["provider"] for p in report["paths"]
                              if p["usable"] and p["provider"] != "shm"))
        page = run().stdout
        for check in report["checks"]:
            self.assertIn(check["name"], page)
        self.assertNotIn("\033", page, "colour into a pipe")
        for kind, colours in (("xterm", True), ("dumb", False)):
            master, slave = pty.openpty()
            with subprocess.Popen([DOCTOR], stdout=slave, env={**os.environ, "TERM": kind}) as one:
                os.close(slave)
                shown = b""
                while b"rdma:// uses" not in shown:
                    shown += os.read(master, 4096)
                self.assertEqual((one.wait(), b"\033" in shown), (0, colours))
            os.close(master)
        # rdma:// uses only native providers of libfabric: any other is not ok.
        native = next(p for p in report["paths"] if p["provider"] == "ofi")["usable"]
        check = self.check_of(report, "libfabric")
        self.assertEqual(check["status"] == "ok", native, check)
        self.assertEqual(check["status"] == "limited", check["value"].startswith("emulation only"))

    def test_adapters(self):
        unset = "0000:0000:0000:0000:0000:0000:0000:0000"
        adapter(self.root, "mlx5_0", "4: ACTIVE", "InfiniBand",
                ["fe80:0000:0000:0000:0002:c903:0000:0001", unset])
        adapter(self.root, "mlx5_1", "1: DOWN", "InfiniBand", [])
        adapter(self.root, "bnxt_re0", "4: ACTIVE", "Ethernet", [unset])
        report = self.report(self.root)
        up = self.check_of(report, "mlx5_0 port 1")
        self.expect(up, "ok", "200 Gb/sec", "1 GIDs")
        self.assertEqual(up["area"], "rdma")
        self.expect(self.check_of(report, "mlx5_1 port 1"), "limited", "opensm")
        self.expect(self.check_of(report, "bnxt_re0 port 1"), "limited", "address")
        self.expect(self.check_of(report, "rdma_cm"), "missing")

    def test_limits_of_the_other_host(self):
        name, pages = "huge pages of 2 MiB", "/sys/kernel/mm/hugepages/hugepages-2048kB/"
        self.expect(self.check_of(self.report(self.root), name), "missing")
        write(self.root, pages + "nr_hugepages", "0")
        self.expect(self.check_of(self.report(self.root), name), "limited", "vm.nr_hugepages")
        write(self.root, pages + "nr_hugepages", "512")
        write(self.root, pages + "free_hugepages", "100")
        write(self.root, "/sys/devices/system/node/online", "0-3")
        report = self.report(self.root)
        for name, status, value in (("devices", "missing", "none"), ("NUMA nodes", "ok", "0-3"),
                                    ("huge pages of 2 MiB", "ok", "512, of which 100 free")):
            self.expect(self.check_of(report, name), status, value=value)

    def acs(self, *bridges, **options):
        with tempfile.TemporaryDirectory() as root:
            host_with_gpu(root, *bridges, **options)
            return self.check_of(self.report(root), "PCI ACS")

    def test_acs(self):
        self.expect(self.acs(0x01, 0x00), "ok", value="no redirects on 3 bridges above 2 devices")
        self.expect(self.acs(None, None), "ok")  # bridges without the capability
        for bit in (0x04, 0x08, 0x10):
            self.expect(self.acs(0x01, bit), "limited", "ECAP_ACS+6.w=0",
                        value="redirects on 1 of 3 bridges: 0000:01:01.0")
        self.expect(self.acs(0x1D, 0x1D), "limited", "on 2 of 3")
        # Others than root see 64 bytes of it.
        self.expect(self.acs(0x1D, 0x1D, length=64), "limited", "root",
                    value="cannot be read on 3 of 3 bridges above 2 devices")
        self.expect(self.check_of(self.report(self.root), "PCI ACS"), "ok",
                    value="no RDMA device or GPU on PCI")

    def test_acs_chain(self):
        """Capabilities that lead in a circle, or out of what there is."""
        host_with_gpu(self.root, 0, 0)
        for after in (0x100, 0xFFC):
            with open(f"{self.root}{PCI}/0000:00:01.0/config", "r+b") as config:
                config.seek(0x100)
                config.write((0x0001 | 1 << 16 | after << 20).to_bytes(4, "little"))
            self.expect(self.check_of(self.report(self.root), "PCI ACS"), "ok")

    def test_root_that_is_not_there(self):
        done = run(root="/nowhere")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("IBX_DOCTOR_ROOT=/nowhere: No such file or directory; name ", done.stderr)

    def test_driver_that_cannot_be_used(self):
        """Not the driver is missing then, and another remedy helps."""
        for library, words in (("/nowhere/libcuda.so.1", "/nowhere/libcuda.so.1: cannot open"),
                               ("libc.so.6", "libc.so.6 has no cuCtxGetCurrent: a driver for")):
            check = self.check_of(self.report(self.root, IBX_LIBCUDA=library), "CUDA")
            self.expect(check, "missing", words, value="no driver that can be used")

    def gpu(self, attributes=""):
        """The lines of the first GPU of a double of CUDA, in 0000:03:00.0, by name."""
        if not LIBCUDA:
            self.skipTest("no double of CUDA")
        report = self.report(self.root, IBX_LIBCUDA=LIBCUDA, IBX_DOUBLE_ATTRIBUTES=attributes)
        return {c["name"][6:]: c for c in report["checks"] if c["name"].startswith("GPU 0 ")}

    def test_gpu_copies(self):
        """The path of copies, and why not a better one."""
        found = self.gpu()
        self.expect(found["copies"], "ok", "pinned memory; in place")  # no adapter, no better path
        self.assertNotIn("adapter", found)
        host_with_gpu(self.root, 0, 0)
        for attributes, peermem, status, words in (
                ("", False, "ok", "by dma-buf, ordered by the GPU"),
                ("118=0 117=1", False, "ok", "by dma-buf, flushed after each"),
                ("118=0 117=2", False, "limited", "neither ordered nor flushed"),
                ("124=0", False, "limited", "neither dma-buf nor nvidia-peermem"),
                ("124=0", True, "ok", "by nvidia-peermem")):
            if peermem:
                write(self.root, "/sys/module/nvidia_peermem/refcnt", "0")
            self.expect(self.gpu(attributes)["copies"], status, words)

    def test_gpu_and_adapter(self):
        host_with_gpu(self.root, 0, 0)
        near = "mlx5_0, below one bridge with it"
        self.expect(self.gpu()["adapter"], "ok", value=near)
        # Another one is not nearer; then it is the only one, at the other processor.
        other = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"
        pci(self.root, other)
        write(self.root, other + "/numa_node", "1")
        write(self.root, GPU + "/numa_node", "0")
        link(self.root, "/sys/class/infiniband/mlx5_1/device", other)
        self.expect(self.gpu()["adapter"], "ok", value=near)
        os.unlink(self.root + "/sys/class/infiniband/mlx5_0/device")
        os.rmdir(self.root + "/sys/class/infiniband/mlx5_0")
        self.expect(self.gpu()["adapter"], "limited", "mlx5_1, at another processor")
        write(self.root, GPU + "/numa_node", "1")
        self.expect(self.gpu()["adapter"], "ok", value="mlx5_1, at its processor")

    def test_gpu_bar(self):
        host_with_gpu(self.root, 0, 0)
        self.assertNotIn("BAR1", self.gpu())
        first = "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n"
        none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
        for size, status in ((256 << 20, "limited"), (16 << 30, "ok"), (32 << 30, "ok")):
            second = f"0x0000002000000000 0x{0x2000000000 + size - 1:016x} 0x000000000014220c\n"
            # Since Hopper the first region has an address of 64 bits as well.
            for lines in (first + second, first + none + second + none + first):
                write(self.root, GPU + "/resource", lines)
                self.expect(self.gpu()["BAR1"], status,
                            value=f"{size >> 20} MiB of 16384 MiB of memory")
        write(self.root, GPU + "/resource", first + 5 * none + first)  # the last one is the ROM's
        self.assertNotIn("BAR1", self.gpu())

    def test_gpu_paths(self):
        """By which size copies take which path, and whether that was measured here."""
        file = "/etc/gvirtus/ibx-tuning.properties"
        found = self.gpu()
        self.expect(found["tuning"], "limited", "not measured: ", "ib-bw tune")
        self.assertRegex(found["H2D"]["value"], "^inline up to 16 KiB, in place,"
                         "(.* from 4 MiB,)? else by chunks of 512 KiB$")
        self.assertRegex(found["D2H"]["value"], "^never inline, ")
        text = ("h2d.inline : 0\nd2h.in_place : never\nd2h.copy_threads : 3M\nd2h.direct : 1M\n"
                "threads : 5")
        write(self.root, file, "gpu : double 0\ndriver : 13.0\n" + text)
        host_with_gpu(self.root, 0, 0)
        found = self.gpu()
        self.expect(found["tuning"], "ok", value="measured, in " + file)
        self.expect(found["H2D"], "ok",
                    "never inline, in place, by 5 threads from 4 MiB, direct, else")
        self.expect(found["D2H"], "ok",
                    "never in place, by 5 threads from 3 MiB, direct from 1 MiB, else")
        self.assertNotIn("direct", self.gpu("124=0")["D2H"]["value"])
        self.assertNotIn("threads", found)
        write(self.root, file, "gpu : another\n" + text)
        found = self.gpu()
        self.expect(found["tuning"], "limited",
                    'not used: it was measured with the GPU "another"')
        self.expect(found["H2D"], "ok", "inline up to 16 KiB")
        write(self.root, file, "\nchunk : 7")
        self.expect(self.gpu()["tuning"], "missing", 'line 2 (chunk): "7" is not accepted')

    def test_text_that_is_not_utf8(self):
        """JSON holds the line all the same."""
        adapter(self.root, "mlx5\udcff", "4: ACTIVE", "Ethernet", ["fe80::1"])
        self.expect(self.check_of(self.report(self.root), "mlx5? port 1"), "ok", "1 GIDs")

    def test_control_groups(self):
        """The least limit of this process's group and of those above it, of both versions."""
        self.expect(self.check_of(self.report(self.root), "control group"), "ok",
                    value="no limit of memory")
        write(self.root, "/proc/self/cgroup", "0::/machine.slice/vms.service\n")
        groups = "/sys/fs/cgroup"
        for group, limit in (("", "max"), ("/machine.slice", "max"),
                             ("/machine.slice/vms.service", "max")):
            write(self.root, f"{groups}{group}/memory.max", limit)
        self.expect(self.check_of(self.report(self.root), "control group"), "ok")
        write(self.root, groups + "/machine.slice/vms.service/memory.max", str(4 << 30))
        self.expect(self.check_of(self.report(self.root), "control group"), "limited",
                    "4096 MiB", "MemoryMax=", "--memory")
        write(self.root, groups + "/machine.slice/memory.max", str(1 << 30))
        self.expect(self.check_of(self.report(self.root), "control group"), "limited", "1024 MiB")
        write(self.root, groups + "/memory.max", str(512 << 20))  # a container's
        self.expect(self.check_of(self.report(self.root), "control group"), "limited", "512 MiB")
        write(self.root, "/proc/self/cgroup", "9:cpu:/x\n4:memory:/box\n0::/none\n")
        for name in ("", "/machine.slice", "/machine.slice/vms.service"):
            os.unlink(f"{self.root}{groups}{name}/memory.max")
        write(self.root, groups + "/memory/box/memory.limit_in_bytes", "9223372036854771712")
        self.expect(self.check_of(self.report(self.root), "control group"), "ok")
        write(self.root, groups + "/memory/box/memory.limit_in_bytes", str(256 << 20))
        self.expect(self.check_of(self.report(self.root), "control group"), "limited", "256 MiB")
        write(self.root, groups + "/memory/memory.limit_in_bytes", str(128 << 20))  # a container's
        self.expect(self.check_of(self.report(self.root), "control group"), "limited", "128 MiB")

    def test_a_control_group_that_may_have_all_memory(self):
        """A limit that is not less than what the host has limits nothing."""
        limit = "/sys/fs/cgroup/memory.max"
        write(self.root, "/proc/self/cgroup", "0::/\n")
        write(self.root, "/proc/meminfo", "MemTotal:        1048576 kB\nMemFree: 5 kB")
        for mib, status in ((1023, "limited"), (1024, "ok"), (40960, "ok")):
            write(self.root, limit, str(mib << 20))
            self.expect(self.check_of(self.report(self.root), "control group"), status,
                        f"{mib} MiB")

    def as_another(self, before, *arguments):
        """The report of one that has become such a user, or has lost something, by `before`."""
        with open(DOCTOR, "rb") as program:  # in a folder that this user may not enter, perhaps
            done = subprocess.run([*arguments, f"/proc/self/fd/{program.fileno()}", "--json"],
                                  timeout=60, capture_output=True, check=True,
                                  preexec_fn=before, pass_fds=(program.fileno(),))
        return json.loads(done.stdout)

    def with_rights_of_its_own(self, folder, **variables):
        """What one says that has rights of its file, when nobody starts it."""
        program = os.path.join(folder, "ib-doctor")
        shutil.copy(DOCTOR, program)
        os.chown(program, 0, 1)
        os.chmod(program, 0o2755)
        done = subprocess.run([program], timeout=60, capture_output=True, text=True, check=False,
                              user=65534, group=65534, extra_groups=(),
                              env={"PATH": os.environ["PATH"], **variables})
        return done.stdout + done.stderr

    @unittest.skipIf(os.geteuid(), "needs root, to give a program rights")
    @unittest.skipIf(not FAKE_VERBS, "this build has no verbs")
    def test_variables_of_libraries(self):
        """A library for RDMA opens no file of a caller's choice with rights that the caller lacks:
        libibverbs reads its environment in all programs but set-user-ID ones."""
        with tempfile.TemporaryDirectory() as folder:
            if os.statvfs(folder).f_flag & os.ST_NOSUID:
                self.skipTest("no file here gives rights")
            os.chmod(folder, 0o777)
            write(folder, "/sys/class/infiniband_verbs/abi_version", "6")
            log = os.path.join(folder, "log")
            text = self.with_rights_of_its_own(folder, VERBS_LOG_FILE=log, VERBS_LOG_LEVEL="4",
                                               SYSFS_PATH=folder + "/sys")
            self.assertFalse(os.path.exists(log))
            self.assertRegex(text, "verbs +the environment variable (VERBS_LOG_|SYSFS_PATH)")
            for name in ("RDMAV_DRIVERS", "IBV_DRIVERS", "MLX5_DEBUG_FILE", "FI_PROVIDER",
                         "PSM2_DEVICES", "HFI_DEBUG_FILENAME", "IPATH_DEBUG_FILENAME"):
                text = self.with_rights_of_its_own(folder, **{name: log})
                for fabric in ("verbs", "libfabric"):
                    self.assertRegex(text, f"{fabric} +the environment variable {name} ")
            self.assertNotIn("the environment", self.with_rights_of_its_own(folder, FILE=log))

    @unittest.skipIf(os.geteuid(), "needs root, to lose something")
    @unittest.skipIf(not shutil.which("setpriv"), "needs setpriv")
    def test_root_without_its_capabilities(self):
        """As in a container: what counts is what it may do, and not its number."""
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        def small():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, limit[1]))
        report = self.as_another(small)
        if "is not held to that" in self.check_of(report, "locked memory")["value"]:
            self.expect(self.check_of(report, "locked memory"), "ok", "64 KiB", "CAP_IPC_LOCK")
            self.expect(self.check_of(report, "ptrace"), "ok")
        report = self.as_another(small, "setpriv", "--bounding-set=-ipc_lock,-sys_ptrace",
                                 "--inh-caps=-all")
        self.expect(self.check_of(report, "locked memory"), "limited", "memlock",
                    value="64 KiB")
        check = self.check_of(report, "ptrace")
        self.assertNotEqual(check["status"], "ok", check)
        self.assertIn("--cap-add SYS_PTRACE", check["remedy"])
        try:
            report = self.as_another(small, "unshare", "--user", "--map-root-user")
        except subprocess.CalledProcessError:
            return  # no user namespaces here
        self.expect(self.check_of(report, "locked memory"), "limited", value="64 KiB")
        self.assertNotEqual(self.check_of(report, "ptrace")["status"], "ok")

    def ptrace_under(self, scope, *before, **more):
        """Of who is started so, where Yama has this scope."""
        write(self.root, "/proc/sys/kernel/yama/ptrace_scope", str(scope))
        done = subprocess.run([*before, DOCTOR, "--json"], capture_output=True, timeout=60,
                              env=dict(os.environ, IBX_DOCTOR_ROOT=self.root, **more), check=True)
        return self.check_of(json.loads(done.stdout), "ptrace")

    @unittest.skipIf(not os.geteuid() and not shutil.which("setpriv"), "needs setpriv")
    def test_what_yama_allows(self):
        """From 2 on it takes the right even for a child: no seccomp profile forbids that."""
        less = () if os.geteuid() else ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all")
        self.expect(self.ptrace_under(0, *less), "limited", "of QEMUs of this user alone")
        self.expect(self.ptrace_under(1, *less), "missing", "of no QEMU", "scope is 1", "as root")
        nobody = {"LD_PRELOAD": FAKE_PTRACE_SCOPE, "ASAN_OPTIONS": "verify_asan_link_order=0"}
        self.expect(self.ptrace_under(1, *less, **nobody), "missing", "seccomp")
        check = self.ptrace_under(2, *less, **nobody)
        self.expect(check, "missing", "of no QEMU", "scope is 2", "as root", "SYS_PTRACE")
        self.assertNotIn("seccomp", check["remedy"])
        self.expect(self.ptrace_under(3, *less, **nobody), "missing", "takes a restart")

    @unittest.skipIf(not shutil.which("unshare"), "needs unshare")
    def test_root_of_a_user_namespace(self):
        """Yama asks for the right in the namespace of the QEMU, which may be the same one."""
        for scope in range(3):
            try:
                check = self.ptrace_under(scope, "unshare", "--user", "--map-root-user")
            except subprocess.CalledProcessError:
                self.skipTest("no user namespaces here")
            self.expect(check, "limited", "of QEMUs in this user namespace alone")

    @unittest.skipIf(os.geteuid(), "needs root, to mount")
    @unittest.skipIf(not shutil.which("unshare"), "needs unshare")
    def test_shared_memory_of_a_container(self):
        script = 'mount -t tmpfs -o "$0" ibx-test /dev/shm && exec "$@"'
        for options, status, words in (("size=64m", "limited", ("64 MiB, of which", "--shm-size")),
                                       ("size=2g", "ok", ("2048 MiB",)),
                                       ("size=0", "ok", ("no limit",))):
            done = subprocess.run(["unshare", "-m", "sh", "-c", script, options, DOCTOR, "--json"],
                                  capture_output=True, timeout=60, check=False)
            if done.returncode:
                self.skipTest("nothing can be mounted here")
            self.expect(self.check_of(json.loads(done.stdout), "/dev/shm"), status, *words)
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, "size=2g,mode=0700",
                               "setpriv", "--reuid=65534", "--clear-groups", DOCTOR, "--json"],
                              capture_output=True, timeout=60, check=False)
        if not done.returncode:  # else the program is in a folder that this user may not enter
            self.expect(self.check_of(json.loads(done.stdout), "/dev/shm"), "missing",
                        "Permission denied", "chmod 1777")

    def test_open_files(self):
        """Enough for the connections that a back end serves by default."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        enough = "ok" if most >= 4096 * 14 else "limited"
        for soft, status in ((1024, "limited"), (65536, "ok"), (most, enough)):
            if soft > most:
                continue
            done = subprocess.run([DOCTOR, "--json"], capture_output=True, timeout=60, check=True,
                                  preexec_fn=lambda n=soft: resource.setrlimit(
                                      resource.RLIMIT_NOFILE, (n, most)))
            self.expect(self.check_of(json.loads(done.stdout), "open files"), status,
                        value=f"{soft}, may be raised to {most}" if soft < most
                        else f"{soft}, which is also the hard limit")

    def test_open_files_by_its_advice(self):
        """A shell takes the commands, if there are any, and then has enough."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        above = subprocess.run(["bash", "-ec", "ulimit -n 4096; ulimit -Hn 524288"],
                               capture_output=True, timeout=60, check=False).returncode == 0
        for hard in (4096, 60000, 524288):
            if hard > most and not above:
                continue
            def limit(most=hard):
                resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
            done = subprocess.run([DOCTOR, "--json"], capture_output=True, timeout=60, check=True,
                                  preexec_fn=limit)
            remedy = self.check_of(json.loads(done.stdout), "open files")["remedy"]
            commands = re.findall(r"ulimit -[HS]n [0-9]+", remedy)
            self.assertEqual(bool(commands), above or hard >= 65536, remedy)
            self.assertNotEqual(bool(commands), "limits.conf" in remedy, remedy)
            shell = subprocess.run(["bash", "-ec", "; ".join(commands + ["ulimit -Sn"])],
                                   capture_output=True, timeout=60, check=False, preexec_fn=limit)
            self.assertEqual((shell.returncode, shell.stdout),
                             (0, b"65536\n" if commands else b"1024\n"), remedy)

    @unittest.skipIf(os.geteuid(), "needs root, to become another user")
    def test_open_files_of_who_may_not_have_more(self):
        """A shell's ulimit would refuse it."""
        def become():
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
            os.setresuid(65534, 65534, 65534)
        with open(DOCTOR, "rb") as program:  # in a folder that this user may not enter, perhaps
            done = subprocess.run([f"/proc/self/fd/{program.fileno()}", "--json"], timeout=60,
                                  capture_output=True, check=True, preexec_fn=become,
                                  pass_fds=(program.fileno(),))
        check = self.check_of(json.loads(done.stdout), "open files")
        self.expect(check, "limited", "1024, may be raised to 4096", "limits.conf",
                    "soft nofile 65536", "hard nofile 524288")
        self.assertNotIn("ulimit", check["remedy"])

    def test_other_processes_cannot_be_read(self):
        """Also where this one can read itself, and is root's."""
        self.expect(self.check_of(self.report(), "process_vm_readv"), "ok", "allowed")
        report = self.report(LD_PRELOAD=FAKE_PTRACE_SCOPE, ASAN_OPTIONS="verify_asan_link_order=0")
        self.expect(self.check_of(report, "process_vm_readv"), "limited", "not permitted",
                    "CAP_SYS_PTRACE")

    def uffd(self, makers, features="ffff", **more):
        """The lines of a kernel with such a userfaultfd, for who may make one by these ways."""
        report = self.report(LD_PRELOAD=FAKE_USERFAULTFD, ASAN_OPTIONS="verify_asan_link_order=0",
                             IBX_DOUBLE_UFFD_MAKERS=makers, IBX_DOUBLE_UFFD_FEATURES=features,
                             **more)
        return {c["name"]: c for c in report["checks"] if c["area"] == "vm"}

    def test_who_may_make_a_userfaultfd(self):
        """Which page faults it serves, and how that of a QEMU with other rights is made."""
        both, device = "for page faults of programs and of the kernel", "/dev/userfaultfd"
        found = self.uffd("call user device")
        self.expect(found["userfaultfd"], "ok", value=both)
        self.expect(found[device], "ok", value="usable")
        found = self.uffd("call user")
        self.expect(found["userfaultfd"], "ok", value=both)
        self.expect(found[device], "limited", "Permission denied", "-sandbox on", "chmod")
        found = self.uffd("call user", IBX_DOUBLE_UFFD_NO_DEVICE="1")
        self.expect(found[device], "limited", "No such file", "Linux 6.1")
        self.expect(self.uffd("user device")["userfaultfd"], "ok", value=both)
        found = self.uffd("user")
        self.expect(found["userfaultfd"], "limited", "for page faults of programs only "
                    "(vm.unprivileged_userfaultfd is ", "of the kernel, too", device, "as root")
        self.assertIn("--minor", found)
        found = self.uffd("")
        if os.geteuid():
            self.expect(found["userfaultfd"], "missing", "not permitted", "userfaultfd=1")
        else:  # root may, so that neither its name nor a sysctl is what is missing
            self.expect(found["userfaultfd"], "missing", "not permitted", "seccomp", "--device")
            self.assertNotIn("as root", found["userfaultfd"]["remedy"])
        self.assertNotIn("--minor", found)  # not known

    def test_a_kernel_without_userfaultfd(self):
        """No right helps there; and a seccomp profile may answer as such a kernel does."""
        absent = {"IBX_DOUBLE_UFFD_CODE": str(errno.ENOSYS), "IBX_DOUBLE_UFFD_NO_DEVICE": "1"}
        found = self.uffd("", IBX_DOUBLE_UFFD_NO_SYSCTL="1", **absent)
        self.expect(found["userfaultfd"], "missing", "not in this kernel", "CONFIG_USERFAULTFD")
        for word in ("root", "sysctl", "seccomp", "--device"):
            self.assertNotIn(word, found["userfaultfd"]["remedy"])
        self.assertNotIn("/dev/userfaultfd", found)  # nor does its device
        found = self.uffd("", **absent)
        self.expect(found["userfaultfd"], "missing", "not implemented", "seccomp", "--device")
        self.assertNotIn("root", found["userfaultfd"]["remedy"])

    def test_what_the_kernel_can_do_for_migrations(self):
        for features, warm, minor, words in (
                ("ffff", "ok", "ok", "in /dev/shm and in huge pages"),
                ("7fff", "limited", "ok", "in /dev/shm and in huge pages"),
                ("9ff", "limited", "limited", "not supported"),
                ("bff", "limited", "limited", "huge")):
            found = self.uffd("call", features)
            self.expect(found["--warm, borrow"], warm, *[] if warm == "ok" else ["Linux 6.7"])
            self.expect(found["--minor"], minor, words)

    def test_pages(self):
        kib = os.sysconf("SC_PAGESIZE") // 1024
        self.expect(self.check_of(self.report(), "pages"), "ok" if kib == 4 else "limited",
                    value=f"{kib} KiB")

    def qemu(self, script, name=QEMU):
        """Its line, with this program in the PATH."""
        with tempfile.TemporaryDirectory() as folder:
            if script:
                write(folder, "/" + name, "#!/bin/sh\n" + script)
                os.chmod(f"{folder}/{name}", 0o755)
            os.symlink("/bin/sh", folder + "/sh")
            return self.check_of(self.report(PATH=folder), "QEMU")

    def test_qemu(self):
        says = "echo 'QEMU emulator version %s (Debian 1:7.2)'"
        self.expect(self.qemu(says % "7.2.22"), "ok", value="7.2, " + QEMU)
        self.expect(self.qemu(says % "10.0.2", "qemu-kvm"), "ok", value="10.0, qemu-kvm")
        self.expect(self.qemu(says % "3.1.0"), "missing", "3.1", "QEMU 4.0")
        self.expect(self.qemu("echo hello"), "limited", "does not tell its version")
        if not os.path.exists("/usr/libexec/qemu-kvm"):
            self.expect(self.qemu(None), "missing", "not in the PATH", "apt install")

    def test_kvm(self):
        self.expect(self.check_of(self.report(self.root), "KVM"), "limited",
                    "there is no /dev/kvm", "firmware")
        write(self.root, "/dev/kvm", "")
        self.expect(self.check_of(self.report(self.root), "KVM"), "ok", value="there")
        if os.geteuid() and os.path.exists("/dev/kvm") and not os.access("/dev/kvm", os.W_OK):
            self.expect(self.check_of(self.report(), "KVM"), "limited", "adduser")

    @unittest.skipUnless(FAKE_VERBS, "a build without verbs")
    def test_mtu_of_every_port(self):
        report = self.report(LD_PRELOAD=FAKE_VERBS, ASAN_OPTIONS="verify_asan_link_order=0")
        self.expect(self.check_of(report, "fake0"), "ok", "MTU 4096, 1024, ?, ", "77 queue pairs")

    def test_usage(self):
        done = run("--jsno")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("'--jsno'", done.stderr)
        self.assertEqual(run("--help").returncode, 0)
        self.assertIn("ib-doctor", run("--version").stdout)

    def test_host_whose_name_is_not_utf8(self):
        """JSON cannot hold it: that is an error, and not an empty report."""
        name = ["unshare", "--uts", "sh", "-c",
                "printf '\\377' > /proc/sys/kernel/hostname && exec \"$@\"", "sh"]
        if os.geteuid() or subprocess.run([*name, "true"], check=False,
                                          capture_output=True).returncode:
            self.skipTest("needs root and unshare")
        done = subprocess.run([*name, DOCTOR, "--json"], capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual((done.returncode, done.stdout.strip()), (1, ""))
        self.assertIn("could not be written", done.stderr)

    def test_full_disk(self):
        for args in ([], ["--json"]):
            with open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([DOCTOR, *args], stdout=full, stderr=subprocess.PIPE,
                                      text=True, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn("could not be written", done.stderr)


def load_tests(loader, _standard, _pattern):
    """For unittest.main() without names: the tests in the share that IBX_TEST_SHARE leaves."""
    names = loader.getTestCaseNames(Doctor)
    return unittest.TestSuite(Doctor(name) for name in names if in_share(name))


if __name__ == "__main__":
    unittest.main(verbosity=2)
