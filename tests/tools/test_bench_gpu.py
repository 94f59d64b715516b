#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""tools/bench/gpu --gvirtus with a made-up GVirtuS, build and nvcc: what it runs over which path,
how it reports programs and failures, and that it leaves nothing behind."""
import json
import os
import shutil
import socket
import subprocess
import sys

from harness import Skip, alive, equal, run_all, test, until

BACK_END = """import json, os, socket, sys
if os.environ.get("FAKE_BACK_END") == "dies":
    sys.exit("no GPU to be had")
with open(sys.argv[1], encoding="ascii") as file:
    port = int(json.load(file)["communicator"][0]["endpoint"]["port"])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", port))
with open(os.environ["FAKE_PIDS"], "a", encoding="ascii") as pids:
    print(os.getpid(), file=pids)
listener.listen()  # it may be killed from now on
while True:
    listener.accept()[0].close()
"""
INSTALLER = """import os, sys
if "FAKE_INSTALLER" in os.environ:
    sys.exit("it cannot be installed")
with open(sys.argv[sys.argv.index("--home") + 1] + "/uri", "w", encoding="ascii") as file:
    file.write(sys.argv[sys.argv.index("--uri") + 1])
"""
# Native and over each path the same, but for what FAKE_WRONG names: "SCHEME OPTION".
PROGRAMS = """import os, sys
uri = os.environ.get("GVIRTUS_HOME", "/nowhere") + "/uri"
scheme = open(uri, encoding="ascii").read().split(":")[0] if os.path.exists(uri) else "own"
native = "GVIRTUS_HOME" not in os.environ
wrong, option = os.environ.get("FAKE_WRONG", "none none").split()
if sys.argv[0].endswith("bench-calls"):
    once = os.environ.get("FAKE_ONCE", "/nowhere")
    if not native and scheme == os.environ.get("FAKE_CALLS") and not os.path.exists(once):
        if "FAKE_ONCE" in os.environ:
            open(once, "w", encoding="ascii").close()
        sys.exit("a launch: error 9")
    off = os.path.exists(uri) and "pipeline=off" in open(uri, encoding="ascii").read()
    print("CALL %s 1.000 9.000 a launch" % ("2.000" if native else "9.0" if off else "3.000"))
    print("a line of GVirtuS's own")
    print("DONE")
    sys.exit(0)
differs = not native and wrong == scheme and option in sys.argv
if not native:
    print("a line of GVirtuS's own")
print("0 0 " + ("fedcba9876543210" if differs else "0123456789abcdef"))
print("DONE")
"""
NVCC = """import os, sys
if "FAKE_NVCC" in os.environ:
    sys.exit("nvcc fatal   : Unknown option '--no-compress'")
to = sys.argv[sys.argv.index("-o") + 1]
with open(to, "w", encoding="ascii") as file:
    file.write("#!" + sys.executable + " -IS\\n")
    file.write(open(os.environ["FAKE_PROGRAMS"], encoding="ascii").read())
os.chmod(to, 0o755)
"""
APPLICATION = """import os, sys
home = os.environ.get("GVIRTUS_HOME", "/nowhere")
uri = home + "/uri"
print(open(uri, encoding="ascii").read().split(":")[0] if os.path.exists(uri) else "own",
      "preload" if os.environ.get("LD_PRELOAD") else "")
if home == "/nowhere":
    print(sys.argv[1])
"""
BENCH = """import json, sys
options = list(zip(sys.argv, sys.argv[1:]))
cells = [one.split("=", 1) for before, one in options if before == "--cells"]
one = dict(options)
with open(one["--json"], "w", encoding="ascii") as file:
    json.dump({"cells": [(name, open(path, encoding="ascii").read().split())
                         for name, path in cells],
               "paths": one["--paths"], "rounds": one["--rounds"]}, file)
"""
LDD = """echo "	libcudart.so.12 => $FAKE_RUNTIME (0x00007f0000000000)"
"""
ROUND = [["gvirtus", ["own"]], ["gvirtus-shm", ["rdma"]],
         ["gvirtus-shm-preload", ["rdma", "preload"]], ["gvirtus-tcp-preload", ["tcp", "preload"]]]


def write(path, text, first=f"#!{sys.executable} -IS\n"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(first + text)
    os.chmod(path, 0o755)


def bench(scene, *options, **more):
    """Exit status, output, errors, and what the JSON has; nothing is left behind."""
    home, build, tools, scratch = map(scene.path, ("a home", "build", "bin", "scratch"))
    write(home + "/bin/gvirtus-backend", BACK_END)
    write(home + "/lib/frontend/libcudart.so.12", "", "")
    write(home + "/lib/libgvirtus-plugin-cudart.so", "", "")
    write(build + "/tools/ibx-gvirtus", INSTALLER)
    write(build + "/tests/gvirtus/test_gpu", "")
    write(build + "/tests/gvirtus/bench_gpu", BENCH)
    write(build + "/tests/gvirtus/bench-application", APPLICATION)
    # Any library that can be preloaded without a word.
    with open("/proc/self/maps", encoding="utf-8") as maps:
        os.makedirs(build + "/frontend-glue", exist_ok=True)
        shutil.copy(next(line.split()[-1] for line in maps if "/libm.so" in line),
                    build + "/frontend-glue/libibx-frontend.so")
    write(tools + "/nvcc", NVCC)
    write(tools + "/python3", f'[ "$1" = -c ] || exec {sys.executable} -IS "$@"\n', "#!/bin/sh\n")
    if "FAKE_RUNTIME" in more:
        write(tools + "/ldd", LDD, "#!/bin/sh\n")
    write(scene.path("programs"), PROGRAMS, "")
    os.mkdir(scratch)
    env = dict(os.environ, PATH=tools + ":" + os.environ["PATH"], TMPDIR=scratch,
               FAKE_PIDS=scene.path("pids"), FAKE_PROGRAMS=scene.path("programs"), **more)
    env.pop("GVIRTUS_HOME", None)
    before = sorted(os.walk(home))
    rc, out, err = scene.run("--build", build, "--gvirtus", home, "--json", scene.path("json"),
                             *options, env=env)
    equal((os.listdir(scratch), sorted(os.walk(home))), ([], before))
    if os.path.exists(scene.path("pids")):
        with open(scene.path("pids"), encoding="ascii") as pids:
            started = [int(one) for one in pids]
        until(lambda: not any(alive(one) for one in started), "back ends to end")
    cells = None
    if os.path.exists(scene.path("json")):
        with open(scene.path("json"), encoding="ascii") as file:
            cells = json.load(file)
    return rc, out, err, cells


@test
def programs_and_cells_over_each_path(scene):
    rc, out, err, cells = bench(scene, FAKE_WRONG="own --symbols")
    equal((rc, out.count("   ok: ")), (0, 18)), err
    for options in ("of one thread", "--threads 2", "--calls", "--calls --threads 2"):
        for path in ("rdma", "tcp", "rdma-preload", "tcp-preload"):
            assert f"   ok: 1000 random programs {options}, over {path}\n" in out, out
    for path in ("rdma-preload", "tcp-preload"):
        assert f"   ok: 1000 random programs --graphs, over {path}\n" in out, out
    assert "left out: 1000 random programs --symbols" in out, out
    equal((cells["cells"], cells["rounds"]), (ROUND * 3, "1"))
    assert "native: the driver's copies" in out, out
    assert cells["paths"].startswith("native,"), cells


@test
def calls_alone(scene):
    rc, out, err, cells = bench(scene, "--calls", "1", FAKE_CALLS="own")
    equal((rc, cells), (0, None)), err
    equal(out.count("left out: a round of gvirtus fails (1): a launch: error 9"), 1)
    table = out[out.index("a launch\n"):].split("\n")[1:]
    equal([line.split() for line in table if line],
          [[name, cell, f"({cell}", "to", f"{cell})", ratio] for name, cell, ratio in (
              ("native", "2.00", "1.00"), ("shm-off", "9.00", "4.50"), ("shm", "3.00", "1.50"),
              ("shm-preload", "3.00", "1.50"), ("tcp-off", "9.00", "4.50"),
              ("tcp", "3.00", "1.50"), ("tcp-preload", "3.00", "1.50"))])


@test
def a_round_of_calls_that_fails_is_told_in_the_table(scene):
    rc, out, err, _ = bench(scene, "--calls", "2", FAKE_CALLS="rdma", FAKE_ONCE=scene.path("once"))
    equal(rc, 0), err
    table = out[out.index("a launch\n"):].split("\n")[1:]
    equal({line.split()[0]: line.split()[-1] for line in table if "round" in line},
          {"shm-off": "1"}), out


CLIENTS = """print("SHARED 5.00 9.00 0.00 1 x 4 B")
print("FAILED 7 x 4 B")
print("DONE")
"""


@test
def clients_that_fail_are_called_so(scene):
    write(scene.path("build") + "/tests/gvirtus/bench-clients", CLIENTS)
    rc, out, err, _ = bench(scene, "--shared", "0.1")
    equal(rc, 0), err
    rows = [line.split() for line in out.splitlines()]
    for path in ("native", "shm", "tcp"):
        assert [path, "5.00", "9.00", "0.00", "1", "x", "4", "B"] in rows, out
        assert [path, "FAILED", "7", "x", "4", "B"] in rows, out


SAMPLE = """import os, sys, time
uri = os.environ.get("GVIRTUS_HOME", "/nowhere") + "/uri"
path = open(uri, encoding="ascii").read().split(":")[0] if os.path.exists(uri) else \\
    "own" if "GVIRTUS_HOME" in os.environ else "native"
path += "-preload" if os.environ.get("LD_PRELOAD") else ""
assert os.path.exists("data"), "not in its own folder"
factor = {"native": 4, "own": 1, "rdma": 2, "rdma-preload": 3, "tcp": 1, "tcp-preload": 2}[path]
print(f" Host to Device Bandwidth, 1 Device(s)\\n PINNED Memory Transfers\\n"
      f"   Transfer Size (Bytes)\\tBandwidth(GB/s)\\n   32000000\\t\\t\\t{10.0 * factor}\\n")
print(f"4 streams:\\t{8.0 / factor}")
print("Test FAILED to find a display")
if path == os.environ.get("FAKE_SAYS"):
    print("Result = FAIL")
sys.exit(path == os.environ.get("FAKE_EXITS") and 3)
"""


def sampled(scene, *options, **more):
    write(scene.path("samples") + "/one/one", SAMPLE)
    write(scene.path("samples") + "/one/data/image", "", "")
    os.chmod(scene.path("samples") + "/one/data/image", 0o644)
    return bench(scene, "--samples", scene.path("samples"), *options, **more)


@test
def samples_and_their_figures(scene):
    rc, out, err, found = sampled(scene, "--rounds", "2", FAKE_SAYS="tcp-preload", FAKE_EXITS="own")
    equal((rc, found["rounds"], len(found["programs"])), (0, 2, 1)), err
    paths = found["programs"][0]["paths"]
    equal({path: one["verdict"] for path, one in paths.items()},
          {"native": "passes", "gvirtus": "exit 3", "shm": "passes", "shm-preload": "passes",
           "tcp": "passes", "tcp-preload": "says failed"})
    equal([(one["line"], one["value"], one["kind"], one["ratio"])
           for one in paths["shm-preload"]["figures"]],
          [("Host to Device Bandwidth, # Device(s), PINNED Memory Transfers 32000000", 30.0, "rate",
            0.75), ("# streams: #", round(8 / 3, 6), "ms", 0.75)])
    equal(paths["gvirtus"]["figures"], [])
    assert "passes 0.75" in out and "end well" in out, out


@test
def a_sample_that_fails_costs_the_others_nothing(scene):
    for name in ("two", "three"):
        write(scene.path("samples") + f"/{name}/{name}", SAMPLE)
        write(scene.path("samples") + f"/{name}/data", "", "")
        os.chmod(scene.path("samples") + f"/{name}/data", 0o644)
    for exits, back_ends in (("none", 1), ("rdma", 3)):
        rc, _, err, _ = sampled(scene, "--rounds", "1", "--paths", "native,shm", FAKE_EXITS=exits)
        equal((rc, len(open(scene.path("pids"), encoding="ascii").readlines())),
              (0, back_ends)), err
        os.unlink(scene.path("pids"))
        shutil.rmtree(scene.path("scratch"))


@test
def chosen_paths_of_samples(scene):
    rc, _, err, found = sampled(scene, "--rounds", "1", "--paths", "native,tcp")
    equal((rc, list(found["programs"][0]["paths"])), (0, ["native", "tcp"])), err
    equal(found["programs"][0]["paths"]["tcp"]["figures"][0]["ratio"], 0.25)


@test
def samples_of_one_name_are_refused(scene):
    """Their results would be one, that of the last of them."""
    write(scene.path("samples") + "/two/one", SAMPLE)
    rc, out, err, found = sampled(scene, "--rounds", "1", "--paths", "native")
    equal((rc, out, found), (1, "", None))
    assert "has several programs named one:" in err, err


@test
def a_folder_without_samples(scene):
    os.mkdir(scene.path("empty"))
    rc, _, err, _ = bench(scene, "--samples", scene.path("empty"))
    equal(rc, 1)
    assert "has no programs" in err and "-cudart shared" in err, err


@test
def calls_want_a_compiler(scene):
    rc, _, err, _ = bench(scene, "--calls", "2", FAKE_NVCC="old")
    equal(rc, 1)
    assert "--calls wants nvcc" in err, err


@test
def native_in_turns_with_gvirtus(scene):
    rc, _, err, cells = bench(scene, "--rounds", "2", FAKE_RUNTIME="/of/cuda/libcudart.so.12")
    native = ["native", ["own", "/of/cuda/libcudart.so.12"]]
    equal((rc, cells["cells"]), (0, ([native] + ROUND) * 2)), err
    assert "native" not in cells["paths"] and cells["paths"].startswith("stock,"), cells


@test
def other_bytes_over_one_path_end_it(scene):
    rc, out, err, cells = bench(scene, FAKE_WRONG="tcp --threads")
    equal((rc, cells), (1, None))
    assert "over rdma" in out and "--threads 2 over tcp give other bytes than native" in err, err


@test
def a_compiler_that_cannot_costs_the_programs_alone(scene):
    rc, out, err, cells = bench(scene, FAKE_NVCC="old")
    equal((rc, out.count("   ok: "), len(cells["cells"])), (0, 0, 12)), err
    assert "left out: random programs with kernels: " in out and "Unknown option" in err, (out, err)


@test
def nothing_passes_for_a_path_that_could_not_be_made(scene):
    rc, out, err, cells = bench(scene, FAKE_INSTALLER="fails")
    equal((rc, cells), (1, None))
    assert "   ok: " not in out, out
    assert "it cannot be installed" in err and "bench-gpu: rdma: no copy of " in err, err


@test
def what_is_not_there_is_named(scene):
    for option in ("--gvirtus", "--from"):
        equal((option, *scene.run(option, "/nowhere/at/all")),
              (option, 2, "", f"bench-gpu: {option}: there is no /nowhere/at/all\n"))


@test
def bad_values_are_refused_before_anything_is_run(scene):
    write(scene.path("no.json"), "no JSON", "")
    for line, error in (
            ("--rounds 0", '--rounds: "0" is not accepted: give 1 to 99'),
            ("--rounds x", '--rounds: "x" is not accepted'),
            ("--clients -1", '--clients: "-1" is not accepted: give 0 to 99'),
            ("--time 0.0", '--time: "0.0" is not accepted'),
            ("--time -1", '--time: "-1" is not accepted'),
            ("--paths native,foo",
             '--paths: "native,foo" is not accepted: give names of native, stock'),
            ("--paths ,", '--paths: "," is not accepted'),
            ("--paths", "--paths needs a value"),
            ("--bogus 1", "there is no option --bogus"),
            ("--gvirtus .", "is no GVirtuS home: it has no bin/gvirtus-backend"),
            ("--samples .", "--samples wants a GVirtuS: give --gvirtus HOME"),
            ("--samples . --paths stock", '--paths: "stock" is not accepted: give names of native'),
            ("--from no.json --plot x.svg", "no.json is not what --json writes"),
            ("--from no.json", "--from is what --plot draws"),
            ("--plot x.pdf", "x.pdf is no .svg nor .png")):
        arguments = line.split()
        rc, out, err = scene.run(*arguments)
        equal((arguments, rc, out, len(err.splitlines())), (arguments, 2, "", 1))
        assert err.startswith("bench-gpu: ") and error in err, (arguments, err)


@test
def a_build_that_fails_is_shown(scene):
    tools = scene.path("bin")
    write(tools + "/python3", "exit 0\n", "#!/bin/sh\n")  # there is a GPU
    write(tools + "/meson", "exit 0\n", "#!/bin/sh\n")
    write(tools + "/ninja", "echo FAILED: this and that; exit 1\n", "#!/bin/sh\n")
    rc, _, err = scene.run(env=dict(os.environ, PATH=tools + ":" + os.environ["PATH"]))
    equal(rc, 1)
    assert "FAILED: this and that" in err and "build-gpu cannot be built" in err, err


@test
def a_back_end_that_dies_is_an_error(scene):
    rc, out, err, cells = bench(scene, FAKE_BACK_END="dies")
    equal((rc, cells), (1, None))
    assert "   ok: " not in out and "does not listen: no GPU to be had" in err, err


@test
def a_port_in_use_is_left_alone(scene):
    write(scene.path("seed"), "RANDOM=1\n", "")
    first = subprocess.run(["bash", "-c", "RANDOM=1; echo $((20000 + RANDOM % 10000))"],
                           capture_output=True, text=True, check=True)
    port = ("127.0.0.1", int(first.stdout))
    with socket.socket() as probe:
        if not probe.connect_ex(port):
            raise Skip("another process listens there")
    with socket.create_server(port):
        _, _, err, _ = bench(scene, BASH_ENV=scene.path("seed"), FAKE_INSTALLER="fails")
    assert "it cannot be installed" in err, err
    with open(scene.path("pids"), encoding="ascii") as pids:
        equal(len(pids.readlines()), 1)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
