#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What programs of tools/bench compute from what others have printed or the kernel tells. Runs no
benchmark. The argument is tools/bench/samples."""
import json
import os
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


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
