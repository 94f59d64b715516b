#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_bw_tune.py IB-BW: what it measures on a GPU (a double), and where it stores that."""
import os
import re
import socket
import subprocess
import sys

from harness import Skip, equal, need_for_all, run_all, test, until
from ib_bw_scene import fails, works


def tune(scene, *args, stdout=subprocess.PIPE, **environment):
    """On the double of CUDA."""
    if "IBX_TEST_LIBCUDA" not in os.environ:
        raise Skip("IBX_TEST_LIBCUDA does not name the double")
    env = {**os.environ, "IBX_LIBCUDA": os.environ["IBX_TEST_LIBCUDA"],
           "GVIRTUS_HOME": scene.path("home"), **environment}
    for unset in ("GVIRTUS_CONFIG", "GVIRTUS_RDMA_PROPERTIES"):
        env.pop(unset, None)
    return scene.run("tune", "--sizes=64K,4K,8K", "--count=3", "--rounds=1", *args, env=env,
                     stdout=stdout)


def stored(path):
    with open(path, encoding="ascii") as file:
        lines = [line.rstrip("\n") for line in file if not line.startswith("#")]
    return dict(line.split(" : ") for line in lines)


def tuned(scene, slow, inline_is_faster):
    """What tune says, or None where other processes were in the way of the copies: by the times
    that it prints, of 4 KiB and 8 KiB in both directions, the faster way is not twice as fast."""
    out = works(tune(scene, IBX_DOUBLE_SLOW=slow))
    times = [[float(us) for us in row] for row in
             re.findall(r"^ +[48] KiB +([0-9.]+) +([0-9.]+) ", out, re.M)]
    equal(len(times), 4)
    fast, late = (0, 1) if inline_is_faster else (1, 0)
    return out if all(row[fast] * 2 < row[late] for row in times) else None


@test
def tune_stores_what_is_faster_where_a_back_end_looks(scene):
    os.makedirs(scene.path("home/etc"))
    # Copies that the driver makes at once, or those that it makes from pinned memory, are slow.
    for slow, wanted in (("0 20000", "8K"), ("20000 0", "0")):
        out = until(lambda slow=slow, wanted=wanted: tuned(scene, slow, wanted != "0"),
                    "times of copies that nothing was in the way of")
        file = scene.path("home/etc/ibx-tuning.properties")
        assert file in out, out
        found = stored(file)
        equal([found[key] for key in ("gpu", "driver", "host")],
              ["double 0", "13.0", socket.gethostname()])
        equal((slow, found["h2d.inline"], found["d2h.inline"]), (slow, wanted, wanted))
        # 64 KiB do not fit into a message.
        assert re.search(r"^ +4 KiB .*\n +8 KiB .*\n +64 KiB +- ", out, re.M), out
        chosen = "inline up to 8 KiB, " if wanted == "8K" else "never inline, "
        assert "\nH2D: " + chosen in out, out
        assert "refused: direct: " in out, out
    equal(os.listdir(scene.path("home/etc")), ["ibx-tuning.properties"])


@test
def tune_takes_another_file(scene):
    works(tune(scene, "--output", scene.path("mine")))
    equal(len(stored(scene.path("mine"))), 13)
    for args in (("--output", "/nowhere/file"), ()):  # there is no folder home/etc
        fails(scene, args, "--output", run=tune)
    os.makedirs(scene.path("home/etc"))
    with open(scene.path("home/etc/gvirtus.properties"), "w", encoding="ascii") as file:
        file.write("rdma.tuning : none\n")
    fails(scene, (), "rdma.tuning", "--output", run=tune)


@test
def tune_names_standard_output_that_cannot_be_written(scene):
    with open("/dev/full", "w", encoding="ascii") as full:
        code, _, err = tune(scene, "--output", scene.path("mine"), stdout=full)
    equal((code, err), (1, "ib-bw: standard output could not be written\n"))


@test
def tune_without_a_gpu_is_one_sentence(scene):
    fails(scene, (), "IBX_LIBCUDA", run=lambda _: tune(scene, IBX_LIBCUDA="/nowhere/libcuda.so.1"))


@test
def tune_tells_why_a_way_is_refused(scene):
    out = works(tune(scene, "--set", "provider=tcp", "--output", scene.path("mine")))
    assert "over tcp" in out and "in place" not in out.split("H2D: ")[1], out
    assert re.search(r"^refused: in place: .* over tcp", out, re.M), out
    equal(stored(scene.path("mine"))["h2d.in_place"], "0")  # as it was


@test
def tune_measures_long_copies_of_pageable_memory(scene):
    out = works(tune(scene, "--sizes", "4K,4M", "--output", scene.path("mine")))
    # By all three sizes of chunks, in both directions.
    equal(len(re.findall(r"^ +4 MiB +-( +[0-9.]+){3} ", out, re.M)), 2)


@test
def tune_over_another_fabric(scene):
    out = works(tune(scene, "--over", "tcp://127.0.0.1:0", "--output", scene.path("mine")))
    h2d = out.split("H2D: ")[1]
    # The other ways still go over shm.
    assert " in place" in h2d and " far" in h2d and " direct" not in h2d, out
    assert re.search(r"^far, direct: .* over tcp", out, re.M), out
    assert re.search(r"^refused: direct: ", out, re.M), out
    equal(stored(scene.path("mine"))["h2d.direct"], "0")  # as it was
    for uri in ("nonsense", "verbs://127.0.0.1:0", "tcp://192.0.2.1:0"):
        fails(scene, ("--over", uri, "--output", scene.path("mine")), "--over", run=tune)


NOBODY = 65534


def nobodys(scene):
    """A home of nobody's in a folder of root's, and a folder of root's beside it."""
    if os.geteuid():
        raise Skip("needs root")
    need_for_all(scene.program)
    for name in ("home/etc", "outside"):
        os.makedirs(scene.path(name))
    os.chmod(scene.path(""), 0o755)
    for name in ("home", "home/etc"):
        os.chown(scene.path(name), NOBODY, NOBODY)
    # LeakSanitizer cannot look into a process that was root.
    return {"ASAN_OPTIONS": "detect_leaks=0", "HOME": "/nonexistent"}


@test
def tune_in_a_home_of_others_is_done_as_its_owner(scene):
    environment = nobodys(scene)
    works(tune(scene, **environment))
    st = os.stat(scene.path("home/etc/ibx-tuning.properties"))
    equal((st.st_uid, st.st_gid), (NOBODY, NOBODY))
    # What they may write decides where: their properties are theirs.
    with open(scene.path("home/etc/gvirtus.properties"), "w", encoding="ascii") as file:
        file.write("rdma.tuning : " + scene.path("outside/tuning") + "\n")
    os.chown(file.name, NOBODY, NOBODY)
    fails(scene, (), "outside/tuning: Permission denied: done as user 65534, who can change ",
          run=lambda _: tune(scene, **environment))
    equal(os.listdir(scene.path("outside")), [])


@test
def tune_leads_root_nowhere(scene):
    environment = nobodys(scene)
    os.rmdir(scene.path("home/etc"))
    os.symlink(scene.path("outside"), scene.path("home/etc"))
    os.lchown(scene.path("home/etc"), NOBODY, NOBODY)
    for args in ((), ("--output", scene.path("home/etc/mine"))):
        fails(scene, args, "Permission denied: done as user 65534, who can change ", "--output",
              run=lambda *a: tune(*a, **environment))
    equal(os.listdir(scene.path("outside")), [])
    os.chmod(scene.path("outside"), 0o775)
    fails(scene, ("--output", scene.path("outside/mine")), "others than root can write ",
          run=lambda *a: tune(*a, **environment))
    os.chmod(scene.path("outside"), 0o1777)  # like /tmp
    works(tune(scene, "--output", scene.path("outside/mine"), **environment))
    equal(os.stat(scene.path("outside/mine")).st_uid, 0)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
