#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ib-doctor's page and JSON, here and on a made-up host with two adapters."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

DOCTOR = sys.argv.pop(1)
FAKE_VERBS = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1].endswith(".so") else None
LIBCUDA = os.environ.get("IBX_TEST_LIBCUDA")
PCI = "/sys/devices/pci0000:00"


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
    gpu = PCI + "/0000:00:01.0/0000:01:01.0/0000:03:00.0"
    pci(root, gpu)
    write(root, gpu + "/vendor", "0x10de")
    write(root, gpu + "/class", "0x030200")
    pci(root, PCI + "/0000:00:1f.0/0000:04:00.0", acs=0x1D)  # a disk and its bridge do not matter
    pci(root, PCI + "/0000:00:1f.0", acs=0x1D)
    write(root, PCI + "/0000:00:1f.0/0000:04:00.0/vendor", "0x144d")
    write(root, PCI + "/0000:00:1f.0/0000:04:00.0/class", "0x010802")
    link(root, "/sys/bus/pci/devices/0000:03:00.0", gpu)
    link(root, "/sys/bus/pci/devices/0000:04:00.0", PCI + "/0000:00:1f.0/0000:04:00.0")
    link(root, "/sys/class/infiniband/mlx5_0/device",
         PCI + "/0000:00:01.0/0000:01:00.0/0000:02:00.0")


class Doctor(unittest.TestCase):
    def report(self, root=None, **more):
        done = run("--json", root=root, **more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check_of(self, report, name):
        found = [c for c in report["checks"] if c["name"] == name]
        self.assertEqual(len(found), 1, f"{name} in {report['checks']}")
        return found[0]

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

    def test_page_says_the_same(self):
        page = run().stdout
        for check in self.report()["checks"]:
            self.assertIn(check["name"], page)
        self.assertNotIn("\033", page, "colour into a pipe")

    def test_adapters(self):
        with tempfile.TemporaryDirectory() as root:
            adapter(root, "mlx5_0", "4: ACTIVE", "InfiniBand",
                    ["fe80:0000:0000:0000:0002:c903:0000:0001",
                     "0000:0000:0000:0000:0000:0000:0000:0000"])
            adapter(root, "mlx5_1", "1: DOWN", "InfiniBand", [])
            adapter(root, "bnxt_re0", "4: ACTIVE", "Ethernet",
                    ["0000:0000:0000:0000:0000:0000:0000:0000"])
            report = self.report(root)
            up = self.check_of(report, "mlx5_0 port 1")
            self.assertEqual((up["status"], up["area"]), ("ok", "rdma"))
            self.assertIn("200 Gb/sec", up["value"])
            self.assertIn("1 GIDs", up["value"])
            down = self.check_of(report, "mlx5_1 port 1")
            self.assertEqual(down["status"], "limited")
            self.assertIn("opensm", down["remedy"])
            bare = self.check_of(report, "bnxt_re0 port 1")
            self.assertEqual(bare["status"], "limited")
            self.assertIn("address", bare["remedy"])
            self.assertEqual(self.check_of(report, "rdma_cm")["status"], "missing")

    def test_limits_of_the_other_host(self):
        with tempfile.TemporaryDirectory() as root:
            write(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512")
            write(root, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100")
            write(root, "/sys/devices/system/node/online", "0-3")
            report = self.report(root)
            self.assertEqual(self.check_of(report, "devices")["status"], "missing")
            pages = self.check_of(report, "huge pages of 2 MiB")
            self.assertEqual((pages["status"], pages["value"]), ("ok", "512, of which 100 free"))
            self.assertEqual(self.check_of(report, "huge pages of 1 GiB")["status"], "missing")
            self.assertEqual(self.check_of(report, "NUMA nodes")["value"], "0-3")

    def acs(self, *bridges, **options):
        with tempfile.TemporaryDirectory() as root:
            host_with_gpu(root, *bridges, **options)
            check = self.check_of(self.report(root), "PCI ACS")
            return check["status"], check["value"], check["remedy"]

    def test_acs(self):
        status, value, _ = self.acs(0x01, 0x00)
        self.assertEqual((status, value), ("ok", "no redirects on 3 bridges above 2 devices"))
        self.assertEqual(self.acs(None, None)[0], "ok")  # bridges without the capability
        for bit in (0x04, 0x08, 0x10):
            status, value, remedy = self.acs(0x01, bit)
            self.assertEqual((status, value),
                             ("limited", "redirects on 1 of 3 bridges: 0000:01:01.0"))
            self.assertIn("ECAP_ACS+6.w=0", remedy)
        self.assertIn("on 2 of 3", self.acs(0x1D, 0x1D)[1])
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(self.check_of(self.report(root), "PCI ACS")["value"],
                             "no RDMA device or GPU on PCI")

    def test_acs_hidden(self):
        """What others than root get to see of it: 64 bytes."""
        status, value, remedy = self.acs(0x1D, 0x1D, length=64)
        self.assertEqual((status, value),
                         ("limited", "cannot be read on 3 of 3 bridges above 2 devices"))
        self.assertIn("root", remedy)

    def test_acs_chain(self):
        """Capabilities that lead in a circle, or out of what there is."""
        for after in (0x100, 0xFFC):
            with tempfile.TemporaryDirectory() as root:
                host_with_gpu(root, 0, 0)
                with open(f"{root}{PCI}/0000:00:01.0/config", "r+b") as config:
                    config.seek(0x100)
                    config.write((0x0001 | 1 << 16 | after << 20).to_bytes(4, "little"))
                self.assertEqual(self.check_of(self.report(root), "PCI ACS")["status"], "ok")

    def gpu(self, root, attributes=""):
        """What is said of the first GPU of a double of CUDA, in 0000:03:00.0: by name of the line."""
        report = self.report(root, IBX_LIBCUDA=LIBCUDA, IBX_DOUBLE_ATTRIBUTES=attributes)
        return {c["name"][6:]: c for c in report["checks"] if c["name"].startswith("GPU 0 ")}

    @unittest.skipUnless(LIBCUDA, "no double of CUDA")
    def test_gpu_copies(self):
        """The way that copies take, and why not a better one."""
        with tempfile.TemporaryDirectory() as root:
            found = self.gpu(root)
            self.assertIn("pinned memory; in place", found["copies"]["value"])
            self.assertEqual(found["copies"]["status"], "ok")  # there is no adapter to want more of
            self.assertNotIn("adapter", found)
            host_with_gpu(root, 0, 0)
            for attributes, peermem, status, words in (
                    ("", False, "ok", "by dma-buf, ordered by the GPU"),
                    ("118=0 117=1", False, "ok", "by dma-buf, flushed after each"),
                    ("118=0 117=2", False, "limited", "neither ordered nor flushed"),
                    ("124=0", False, "limited", "neither dma-buf nor nvidia-peermem"),
                    ("124=0", True, "ok", "by nvidia-peermem")):
                if peermem:
                    write(root, "/sys/module/nvidia_peermem/refcnt", "0")
                found = self.gpu(root, attributes)["copies"]
                self.assertEqual(found["status"], status, found)
                self.assertIn(words, found["value"])

    @unittest.skipUnless(LIBCUDA, "no double of CUDA")
    def test_gpu_and_adapter(self):
        gpu = PCI + "/0000:00:01.0/0000:01:01.0/0000:03:00.0"
        with tempfile.TemporaryDirectory() as root:
            host_with_gpu(root, 0, 0)
            near = self.gpu(root)["adapter"]
            self.assertEqual((near["status"], near["value"]),
                             ("ok", "mlx5_0, below one bridge with it"))
            # Another one is not nearer; then it is the only one, at the other processor.
            other = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"
            pci(root, other)
            write(root, other + "/numa_node", "1")
            write(root, gpu + "/numa_node", "0")
            link(root, "/sys/class/infiniband/mlx5_1/device", other)
            self.assertEqual(self.gpu(root)["adapter"]["value"], near["value"])
            os.unlink(root + "/sys/class/infiniband/mlx5_0/device")
            os.rmdir(root + "/sys/class/infiniband/mlx5_0")
            far = self.gpu(root)["adapter"]
            self.assertEqual(far["status"], "limited")
            self.assertIn("mlx5_1, at another processor", far["value"])
            write(root, gpu + "/numa_node", "1")
            self.assertEqual(self.gpu(root)["adapter"]["value"], "mlx5_1, at its processor")

    @unittest.skipUnless(LIBCUDA, "no double of CUDA")
    def test_gpu_bar(self):
        gpu = PCI + "/0000:00:01.0/0000:01:01.0/0000:03:00.0"
        with tempfile.TemporaryDirectory() as root:
            host_with_gpu(root, 0, 0)
            self.assertNotIn("BAR1", self.gpu(root))
            for size, status in ((256 << 20, "limited"), (16 << 30, "ok"), (32 << 30, "ok")):
                write(root, gpu + "/resource",
                      "0x00000000f0000000 0x00000000f0ffffff 0x0000000000040200\n"
                      f"0x0000002000000000 0x{0x2000000000 + size - 1:016x} 0x000000000014220c")
                bar = self.gpu(root)["BAR1"]
                self.assertEqual((bar["status"], bar["value"]),
                                 (status, f"{size >> 20} MiB of 16384 MiB of memory"))

    @unittest.skipUnless(LIBCUDA, "no double of CUDA")
    def test_gpu_ways(self):
        """By which size copies take which way, and whether that was measured here."""
        file = "/etc/gvirtus/ibx-tuning.properties"
        with tempfile.TemporaryDirectory() as root:
            found = self.gpu(root)
            self.assertEqual(found["tuning"]["status"], "limited")
            self.assertIn("not measured: ", found["tuning"]["value"])
            self.assertIn("ib-bw tune", found["tuning"]["remedy"])
            self.assertRegex(found["H2D"]["value"],
                             "^inline up to 16 KiB, in place,(.* from 4 MiB,)? else by chunks of 512 KiB$")
            self.assertRegex(found["D2H"]["value"], "^never inline, ")
            text = "h2d.inline : 0\nd2h.in_place : never\nd2h.copy_threads : 3M\nd2h.direct : 1M\nthreads : 5"
            write(root, file, "gpu : double 0\ndriver : 13.0\n" + text)
            host_with_gpu(root, 0, 0)
            found = self.gpu(root)
            self.assertEqual((found["tuning"]["status"], found["tuning"]["value"]), ("ok", "measured, in " + file))
            self.assertIn("never inline, in place, by 5 threads from 4 MiB, direct, else", found["H2D"]["value"])
            self.assertIn("never in place, by 5 threads from 3 MiB, direct from 1 MiB, else", found["D2H"]["value"])
            self.assertNotIn("direct", self.gpu(root, "124=0")["D2H"]["value"])
            self.assertNotIn("threads", found)
            write(root, file, "gpu : another\n" + text)
            found = self.gpu(root)
            self.assertEqual(found["tuning"]["status"], "limited")
            self.assertIn('not used: it was measured with the GPU "another"', found["tuning"]["value"])
            self.assertIn("inline up to 16 KiB", found["H2D"]["value"])
            write(root, file, "\nchunk : 7")
            found = self.gpu(root)
            self.assertEqual(found["tuning"]["status"], "missing")
            self.assertIn('line 2 (chunk): "7" is not accepted', found["tuning"]["value"])

    def test_libfabric(self):
        """What rdma:// does not take is not ok."""
        report = self.report()
        native = next(p for p in report["paths"] if p["provider"] == "ofi")["usable"]
        check = self.check_of(report, "libfabric")
        self.assertEqual(check["status"] == "ok", native, check)
        self.assertEqual(check["status"] == "limited", check["value"].startswith("emulation only"))

    @unittest.skipUnless(FAKE_VERBS, "a build without verbs")
    def test_mtu_of_every_port(self):
        report = self.report(LD_PRELOAD=FAKE_VERBS, ASAN_OPTIONS="verify_asan_link_order=0")
        check = self.check_of(report, "fake0")
        self.assertIn("MTU 4096, 1024, ?, ", check["value"])
        self.assertIn("77 queue pairs", check["value"])

    def test_usage(self):
        done = run("--jsno")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'--jsno'", done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(run("--help").returncode, 0)
        self.assertIn("ib-doctor", run("--version").stdout)

    def test_full_disk(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([DOCTOR, "--json"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("could not be written", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
