#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What programs of tools/bench compute from what others have printed or the kernel tells. Runs no
benchmark. The argument is tools/bench/samples."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys

from harness import equal, run_all, test


def sampled(scene, paths, **outcomes):
    """Exit status, output, and the verdicts and figures by path; PATH=(STATUS, TEXT)."""
    for path, (status, text) in outcomes.items():
        folder = scene.path(f"of/{path}.1")
        os.makedirs(folder, exist_ok=True)
        with open(folder + "/one.end", "w", encoding="ascii") as file:
            file.write(f"{status} 1.0 2.5\n")
        with open(folder + "/one.out", "w", encoding="ascii") as file:
            file.write(text)
    rc, out, err = scene.run(scene.path("of"), paths, "1", scene.path("json"))
    equal((rc, err), (0, ""))
    with open(scene.path("json"), encoding="ascii") as file:
        found = json.load(file)["programs"][0]["paths"]
    return out, {path: (one["verdict"], [each["ratio"] for each in one["figures"]])
                 for path, one in found.items()}


@test
def a_native_program_that_fails_is_nothing_to_compare_with(scene):
    _, found = sampled(scene, "native,shm", native=(1, "copy: 2.0 ms\n"), shm=(0, "copy: 4.0 ms\n"))
    equal(found, {"native": ("exit 1", []), "shm": ("passes", [])})
    _, found = sampled(scene, "native,shm", native=(0, "copy: 2.0 ms\n"), shm=(0, "copy: 4.0 ms\n"))
    equal(found, {"native": ("passes", [1.0]), "shm": ("passes", [0.5])})


@test
def without_the_native_programs_ratios_are_named_by_what_they_are_to(scene):
    out, found = sampled(scene, "shm,tcp", shm=(0, "copy: 2.0 ms\n"), tcp=(0, "copy: 4.0 ms\n"))
    equal(found, {"shm": ("passes", [1.0]), "tcp": ("passes", [0.5])})
    assert "to shm" in out and "to native" not in out, out
    _, found = sampled(scene, "shm,tcp", shm=(0, "Result = FAILED\n"), tcp=(0, "Result = FAILED\n"))
    equal([verdict for verdict, _ in found.values()], ["says failed"] * 2)


@test
def a_first_path_that_fails_hides_no_figures_of_the_others(scene):
    out, _ = sampled(scene, "gvirtus,native,shm", gvirtus=(1, ""), native=(0, "copy: 2.0 ms\n"),
                     shm=(0, "copy: 4.0 ms\n"))
    rows = [line.split() for line in out.splitlines()]
    assert ["copy:", "#", "ms", "-", "2", "(1.00)", "4", "(0.50)"] in rows, out


def loaded(name):
    """A program of that folder as a module."""
    folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    sys.path.insert(0, folder)
    loader = importlib.machinery.SourceFileLoader(name, os.path.join(folder, name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


SMAPS = """7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Private_Dirty:        64 kB
Anonymous:            64 kB
7f0000800000-7f0000900000 rw-p 00000000 00:1b 274700                     /dev/shm/cache-1/ram.0
Private_Dirty:        12 kB
Anonymous:            12 kB
7f0000900000-7f0000c00000 rw-p 00000000 00:00 0
Private_Dirty:         0 kB
Anonymous:            20 kB
7f0000c00000-7f0001000000 rw-p 00400000 00:1b 274700                     /dev/shm/cache-1/ram.0
Private_Dirty:       256 kB
Anonymous:           256 kB
7f0001000000-7f0001800000 rw-p 00000000 00:00 0
Private_Dirty:         8 kB
Anonymous:             8 kB
7f0001800000-7f0001900000 rw-p 00000000 00:00 0                          [heap]
Private_Dirty:        32 kB
Anonymous:            32 kB
"""


@test
def private_memory_of_a_child_is_that_of_all_parts_of_its_ram(_):
    """Also of those that are zero in the snapshot, which are mappings without a file."""
    equal(loaded("clone").private_kib(SMAPS.splitlines(), 16 << 20), 12 + 20 + 256 + 8)


@test
def figures_of_a_microvm_are_those_of_all_rounds(_):
    """And not those of the first one, beside times of all."""
    module = loaded("firecracker")
    server = module.Server.__new__(module.Server)
    rounds = [{"by_fault": n, "by_prefetch": 10 * n, "latency_p50_ns": 1000 * n,
               "latency_p99_ns": 5000 * n} for n in (900, 3, 1, 2, 4)]
    server.build, server.caches = "build", [(1.0, 1.0)]
    server.runs = {"cold": [(1.0, 2.0, 3.0, figures) for figures in rounds]}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        server.show()
    assert "pages by faults 3, ahead 30, a fault 3 us (99 %: 15)" in out.getvalue(), out.getvalue()


@test
def a_way_that_there_is_not_is_refused(_):
    """It would be measured as another one, under its name."""
    program = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "multicast")
    for ways in ("multcast", "parent,tree", "trees", "tree2x", "", "parent,"):
        done = subprocess.run([program, "--build", "/nowhere", "--ways", ways], check=False,
                              capture_output=True, text=True)
        equal((ways, done.returncode, done.stdout), (ways, 2, ""))
        assert "argument --ways" in done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
