#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""bench-clients, over a libcudart whose copies take no time: what it prints, and that a client
which is killed ends its measurement and no more."""
import os
import sys

from harness import equal, run_all, test

LIBCUDART = os.environ["IBX_TEST_COPIES"]


@test
def a_killed_client_ends_its_measurement_only(scene):
    env = dict(os.environ, IBX_TEST_KILLED=str(256 << 20))
    status, out, err = scene.run(LIBCUDART, "0.01", env=env)
    lines = out.splitlines()
    equal((status, err, lines[-1]), (0, "", "DONE"))
    failed = [line for line in lines if line.startswith("FAILED ")]
    equal(failed, [f"FAILED {count} x {size} beside 256 MiB"
                   for size in ("4 B", "64 KiB") for count in (1, 7)])
    equal([line.split()[0] for line in lines if line not in failed],
          ["SHARED"] * 6 + ["EQUAL"] * 2 + ["DONE"])


@test
def a_client_that_fails_says_why_once(scene):
    status, out, err = scene.run("/nowhere/libcudart.so", "0.01")
    equal((status, out.count("FAILED "), out.splitlines()[-1]), (0, 12, "DONE"))
    equal(err.count("/nowhere/libcudart.so"), 12), err


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
