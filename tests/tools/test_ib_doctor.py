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


def run(*args, root=None):
    env = dict(os.environ)
    env.pop("IBX_DOCTOR_ROOT", None)
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


class Doctor(unittest.TestCase):
    def report(self, root=None):
        done = run("--json", root=root)
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

    def test_usage(self):
        done = run("--jsno")
        self.assertEqual(done.returncode, 2)
        self.assertIn('"--jsno"', done.stderr)
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
