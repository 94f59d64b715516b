#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What starts tests, counts them, and cleans up behind them; and names of tests that are wrong."""
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest.mock

from harness import Skip, equal, in_share, run_all, run_tests, test


def ended_process():
    """A number that was a process's."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def made(scene, *names):
    os.mkdir(scene.path("place"))
    for name in names:
        path = os.path.join(scene.path("place"), name)
        os.mkdir(path)
        with open(os.path.join(path, "file"), "w", encoding="ascii"):
            pass


@test
def files_without_a_process_are_removed_after_a_day(scene):
    old = ["ibx-swallowed-aB3dEf", "ibx_test_names.aB3dEf", "ibx-run-aB3dEf", "ibx-swallowed-1",
           "ibx-swallowed-aB3dEfg", "ibx-other-aB3dEf"]
    used = ["ibx-claims-aB3dEf", "ibx-socket-aB3dEf"]
    made(scene, *old, *used)
    place, then = scene.path("place"), time.time() - 2 * 86400
    for name in old + used[:1]:
        os.utime(f"{place}/{name}/file", (then, then))
    for name in old + used[1:]:
        os.utime(f"{place}/{name}", (then, then))
    scene.run(place)
    equal(sorted(os.listdir(place)), sorted(old[2:] + used))


@test
def names_that_people_give_stay(scene):
    """mkstemp(3) seldom makes a word or a number, which people and tests with a PID do."""
    given = ["ibx-disk-ubuntu", "ibx-config-backup", "ibx-image-202611",
             "ibx-image-v1.2.3", "ibx-disk-a_copy"]
    made(scene, *given)
    place, then = scene.path("place"), time.time() - 2 * 86400
    for name in given:
        os.utime(f"{place}/{name}/file", (then, then))
        os.utime(f"{place}/{name}", (then, then))
    scene.run(place)
    equal(sorted(os.listdir(place)), sorted(given))


@test
def what_ended_processes_left_is_removed(scene):
    dead, alive = ended_process(), os.getpid()
    left = [f"ibx-vm-{dead}-abc", f"ibx-clone-{dead}", f"ibx-clone-{dead}.2",
            f"ib-bw-test-{dead}-x", f"test_gvirtus-{dead}-x"]
    made(scene, *left)
    scene.run(scene.path("place"))
    equal(os.listdir(scene.path("place")), [])
    equal(os.path.isdir(f"/proc/{alive}"), True)


@test
def what_others_use_stays(scene):
    dead, alive = ended_process(), os.getpid()
    stays = {f"ibx-vm-{alive}-abc", f"ibx-run-{dead}", f"ibx-snapshots-{dead}", f"ibx-{dead}",
             "ibx-vm-folder", f"ibx-vm-{dead}abc", f"vm-{dead}"}
    made(scene, *stays)
    os.symlink("/", os.path.join(scene.path("place"), f"ibx-vm-{dead}-link"))
    scene.run(scene.path("place"))
    equal(set(os.listdir(scene.path("place"))), stays | {f"ibx-vm-{dead}-link"})


@test
def notes_of_killed_tools_go_with_their_records(scene):
    dead = ended_process()
    record = f"{dead:032x}.source"
    made(scene, f"ibx-mv-{dead}-x")
    path = os.path.join(scene.path("place"), f"ibx-mv-{dead}-x", f"{record}.json")
    note = f"/dev/shm/ibx-{record}.arrived"
    for file in (path, note):
        with open(file, "w", encoding="ascii"):
            pass
    scene.run(scene.path("place"))
    equal((os.path.exists(note), os.listdir(scene.path("place"))), (False, []))


@test
def what_they_had_mounted_goes_too(scene):
    left = f"ibx-huge-{ended_process()}"
    made(scene, left)
    at = os.path.join(scene.path("place"), left)
    mounts = f"mount -t tmpfs none {at} && mkdir {at}/in && mount -t tmpfs none {at}/in && "
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mounts}{scene.program} {scene.path('place')}"],
        capture_output=True, text=True, check=False)
    if os.geteuid() or said.stderr.startswith(("mount:", "unshare:")):
        raise Skip("needs root, and mounts of its own")
    equal((said.returncode, said.stdout, said.stderr),
          (0, f"sweep: removed {at}, which a killed test has left\n", ""))
    equal(os.listdir(scene.path("place")), [])


LOST = """
import ctypes, os, sys
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=100600,user_id={os.getuid()},group_id=0"
sys.exit(ctypes.CDLL(None).mount(b"ibx", sys.argv[1].encode(), b"fuse", 0, options.encode()) != 0)
"""


@test
def a_file_whose_file_system_has_lost_its_process_goes_too(scene):
    """As migrate-move-disk-full leaves it, when it is killed: nobody sees whose the file is."""
    at = os.path.join(scene.path("place"), f"ibx-disk-{ended_process()}-x")
    made(scene)
    with open(at, "w", encoding="ascii"):
        pass
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c",
         f'python3 -c "$1" {at} || exit 9; {scene.program} {scene.path("place")}', "-", LOST],
        capture_output=True, text=True, check=False)
    if os.geteuid() or said.returncode == 9 or said.stderr.startswith("unshare:"):
        raise Skip("needs root, and mounts of its own")
    equal((said.returncode, said.stdout, said.stderr),
          (0, f"sweep: removed {at}, which a killed test has left\n", ""))
    equal(os.listdir(scene.path("place")), [])


@test
def limits_grow_with_the_load(scene):
    multiplier = os.path.join(os.path.dirname(scene.program), "timeout-multiplier")
    with open(scene.path("loadavg"), "w", encoding="ascii") as file:
        file.write(f"{7 * len(os.sched_getaffinity(0))}.00 1.00 1.00 1/100 4321\n")
    bind = f"mount --bind {scene.path('loadavg')} /proc/loadavg && "
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c", bind + f"{multiplier} && {multiplier} 1.5"],
        capture_output=True, text=True, check=False)
    if os.geteuid() or "mount" in said.stderr or "unshare" in said.stderr:
        raise Skip("needs root, and mounts of its own")
    equal((said.stdout, said.stderr), ("7\n10.5\n", ""))


@test
def what_failed_is_shown_with_its_condition(scene):
    counts = os.path.join(os.path.dirname(scene.program), "count-results")
    said = [f"ok   before {i}" for i in range(60)] + ["FAIL copies"]
    said += [f"ok   behind {i}" for i in range(60)]
    condition = "../tests/gvirtus/application.cpp:41: cudaFree(device) == 0"
    program = ["said: (exit status 1)", "said: child 7 has ended with status 0xe"]
    errors = [condition, *program] + [f"ibx: a line of the log, {i}" for i in range(60)]
    with open(scene.path("log"), "w", encoding="ascii") as log:
        json.dump({"name": "gpu", "stdout": "\n".join(said), "stderr": "\n".join(errors),
                   "result": "FAIL"}, log)
    lines = subprocess.run([counts, scene.path("log")], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    shown = [line.strip() for line in lines[:lines.index("        [ the end of its output ]")]]
    equal(shown, ["FAILED  gpu (fail): copies", *said[52:61], condition, *program])
    equal(lines[-1], "120 1 0")


@test
def a_program_that_was_cut_off_by_its_limit_is_called_so(scene):
    counts = os.path.join(os.path.dirname(scene.program), "count-results")
    with open(scene.path("log"), "w", encoding="ascii") as log:
        log.write("ok one\nok two\n")
    said = subprocess.run([counts, "--log", scene.path("log"), "moves", "124"],
                          capture_output=True, text=True, check=True).stdout.splitlines()
    equal((said[0], said[-1]), ("FAILED  moves (timeout): it named no test that failed", "2 1 0"))


@test
def a_program_without_a_case_counts_for_nothing(scene):
    counts = os.path.join(os.path.dirname(scene.program), "count-results")
    cmocka = "[==========] Running 0 test(s).\n[==========] 0 test(s) run.\n"
    for said, wanted in ((cmocka, "0 0 0"), ("0 passed, 0 failed\n", "0 0 0"), ("\n", "1 0 0")):
        with open(scene.path("log"), "w", encoding="ascii") as log:
            log.write(said)
        ran = subprocess.run([counts, "--log", scene.path("log"), "moves", "0"],
                             capture_output=True, text=True, check=True)
        equal(ran.stdout.splitlines()[-1], wanted)


@test
def a_report_of_a_sanitizer_is_a_failure(scene):
    """A process may have made it whose exit code nobody looks at."""
    counts = os.path.join(os.path.dirname(scene.program), "count-results")
    reports = ("==41==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010",
               "==41==ERROR: LeakSanitizer: detected memory leaks",
               "WARNING: ThreadSanitizer: data race (pid=41)",
               "../common/wire.c:41:9: runtime error: index 4 out of bounds for type 'int[4]'")
    for report in reports:
        for result in ("OK", "SKIP"):
            with open(scene.path("log"), "w", encoding="ascii") as log:
                json.dump({"name": "gpu", "stdout": "ok copies\n", "stderr": f"{report}\n",
                           "result": result}, log)
            said = subprocess.run([counts, scene.path("log")], capture_output=True, text=True,
                                  check=True).stdout.splitlines()
            equal((said[0], said[1].strip(), said[-1]),
                  (f"FAILED  gpu ({result.lower()}): a sanitizer reported an error", "ok copies",
                   "1 1 0"))


@test
def a_test_that_does_not_exist_fails(_):
    ran, said = [], io.StringIO()
    with contextlib.redirect_stdout(said):
        equal(run_tests(["no_such_test"], ran.append), 1)
    equal((ran, said.getvalue()), ([], "FAILED no_such_test: there is no test of this name\n"))


@test
def a_share_without_a_case_says_so(_):
    said, name = io.StringIO(), a_share_without_a_case_says_so.__name__
    for share in ("1/2", "2/2"):
        with unittest.mock.patch.dict(os.environ, IBX_TEST_SHARE=share), \
                contextlib.redirect_stdout(said):
            equal(run_tests([name], lambda _: None), 0)
    equal(sorted(said.getvalue().splitlines()),
          ["0 passed, 0 failed", "ok a share without a case says so"])


@test
def each_test_is_in_one_share(_):
    names = [f"test_{i}" for i in range(30)]
    shares = []
    for share in ("1/3", "2/3", "3/3", "1-2/3"):
        with unittest.mock.patch.dict(os.environ, IBX_TEST_SHARE=share):
            shares.append([name for name in names if in_share(name)])
    range_of_two = shares.pop()
    equal(sorted(range_of_two), sorted(shares[0] + shares[1]))
    equal(sorted(sum(shares, [])), sorted(names))
    assert min(map(len, shares)) > 4, shares


@test
def turns_run_everything(_):
    tests = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

    def said(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    turns = [f"{number}/48" for number in range(1, 49)]
    wanted, latest, cases = sorted([*said(f"{tests}/run", "--list")[:6], "rest"]), [], {}
    for turn in turns:
        which, share, *parts = said(f"{tests}/turn", turn)
        equal(which, turn)
        latest = [*latest, parts][-4:]  # four in a row have every part, each turn of which ...
        if len(latest) == 4:
            equal(sorted({part for parts in latest for part in parts}), wanted)
        with unittest.mock.patch.dict(os.environ, IBX_TEST_SHARE=share):
            ours = [case for case in range(100) if in_share(f"test_{case}")]
        for part in parts:
            cases.setdefault(part, []).append(ours)
    for part in wanted:  # ... has other cases than the turn before, and all turns have every case
        equal(sorted({case for ours in cases[part] for case in ours}), list(range(100)))
    equal(sorted(sum(cases["asan"], [])), list(range(100)))
    assert " ".join(said(f"{tests}/turn")[:1]) in turns
    for wrong in ("49/48", "0/48", "1/36", "1", ""):
        done = subprocess.run([f"{tests}/turn", wrong], capture_output=True, check=False)
        equal(done.returncode, 2)


def chosen_tests(folder, tests, *arguments):
    """What tests/chosen-tests says of a build that has these tests."""
    os.makedirs(f"{folder}/build/meson-info", exist_ok=True)
    with open(f"{folder}/build/meson-info/intro-tests.json", "w", encoding="ascii") as file:
        json.dump([{"name": name, "timeout": timeout, "suite": [f"ibx:{suite}" for suite in suites]}
                   for name, timeout, *suites in tests], file)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../chosen-tests")
    done = subprocess.run([program, f"{folder}/build", *arguments], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout.splitlines()


LONG = ("migrate-move-relay-often", 4800, "migrate", "rest")


@test
def shares_of_rest_have_every_test_together(_):
    whole = [(f"whole-{i}", 60 + 600 * (i % 3 == 0), "unit", "rest", "whole") for i in range(30)]
    tests = [("quick", 30, "unit"), ("wide", 30, "migrate", "rest"), LONG, *whole]
    with tempfile.TemporaryDirectory() as folder:
        equal(chosen_tests(folder, tests, "asan", "3/12"), (0, ["quick"]))
        equal(chosen_tests(folder, tests, "rest", "1/1"), (0, [test[0] for test in tests[1:]]))
        seen = []
        for share in range(1, 13):
            code, names = chosen_tests(folder, tests, "rest", f"{share}/12")
            equal((code, names[0]), (0, "wide"))  # it runs a share of its cases
            assert len([test for test in whole if test[0] in names and test[1] > 60]) <= 1, names
            seen += names[1:]
        equal(sorted(seen), sorted(test[0] for test in whole))
        two = [name for i in (2, 3) for name in chosen_tests(folder, tests, "rest", f"{i}/12")[1]]
        equal(set(chosen_tests(folder, tests, "rest", "2-3/12")[1]), set(two))


@test
def a_test_that_no_turn_runs_is_found(_):
    with tempfile.TemporaryDirectory() as folder:
        equal(chosen_tests(folder, [("quick", 30, "unit"), LONG]), (0, []))
        equal(chosen_tests(folder, [("quick", 30, "unit")]), (0, []))  # nothing can migrate
        code, said = chosen_tests(folder, [("migrate-move", 30, "migrate")])
        equal((code, len(said)), (1, 1))
        assert "names migrate-move-relay-often, and there is no such test" in said[0], said
        code, said = chosen_tests(folder, [(LONG[0], 60, "unit")])
        equal((code, len(said)), (1, 1))
        assert "runs in some turn" in said[0], said


@test
def every_test_of_this_build_has_a_turn(_):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../chosen-tests")
    done = subprocess.run([program, os.environ["IBX_TEST_BUILD"]], capture_output=True, text=True,
                          check=False)
    equal((done.returncode, done.stdout, done.stderr), (0, "", ""))


@contextlib.contextmanager
def runner_elsewhere():
    """A folder with tests/run and what it calls, whose parts and other scripts a test replaces."""
    tests = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/tests")
        for name in ("run", "count-results", "timeout-multiplier"):
            shutil.copy(f"{tests}/{name}", f"{folder}/tests/{name}")
        shutil.copytree(f"{tests}/parts", f"{folder}/tests/parts")
        put_script(folder, "tests/sweep", "exit 0")
        yield folder


def put_script(folder, name, body):
    path = f"{folder}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        file.write(f"#!/bin/bash\n{body}\n")
    os.chmod(path, 0o755)


def run_elsewhere(folder, *arguments, **environment):
    """The exit code and the sum of the tests; None: it says no sum."""
    done = subprocess.run([f"{folder}/tests/run", *arguments], capture_output=True, text=True,
                          check=False, env={**os.environ, "IBX_NO_INSTALL": "1", **environment})
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    return done.returncode, last if " passed, " in last else None


@test
def no_turn_is_no_success(_):
    with runner_elsewhere() as folder:
        for turn in ("exit 1", "echo", "echo 1/6 1/10"):
            put_script(folder, "tests/turn", turn)
            equal(run_elsewhere(folder), (2, None))


MESON_TESTS = """project('some')
sh = find_program('sh')
foreach name, body : {
  'good': 'echo ok a',
  'skips': 'exit 77',
  'fails': 'echo FAIL a; exit 1',
  'says so only': 'echo FAIL a',
  'is killed': 'kill -KILL $$',
  'hangs': 'exec sleep 60',
  'has a child with a report': 'echo ==41==ERROR: AddressSanitizer: SEGV >&2',
}
  test(name, sh, args: ['-c', body], timeout: name == 'hangs' ? 1 : 60)
endforeach
"""


@test
def each_way_to_fail_makes_the_run_fail(_):
    with runner_elsewhere() as folder:
        some = f"{folder}/build-tests/some"
        put_script(folder, "tests/timeout-multiplier", "echo 1")
        os.makedirs(f"{folder}/some")
        with open(f"{folder}/some/meson.build", "w", encoding="ascii") as file:
            file.write(MESON_TESTS)
        subprocess.run(["meson", "setup", some, f"{folder}/some"], capture_output=True, check=True)
        for tests, wanted in (
                ("60 good skips", (0, "1 passed, 0 failed, 1 skipped")),
                ("60", (1, "1 passed, 5 failed, 1 skipped")),
                ("60 'no such test'", (1, "0 passed, 1 failed, 0 skipped"))):
            put_script(folder, "tests/parts/migrations.sh",
                       f"part_lint() {{ tests_of some {tests}; }}")
            equal(run_elsewhere(folder, "lint"), wanted)


@test
def other_ways_to_fail_make_the_run_fail(_):
    failed = (1, "0 passed, 1 failed, 0 skipped")
    with runner_elsewhere() as folder:
        for body, wanted in (
                (":", failed),                             # no test ran
                ("fuzz_each inputs", failed),              # there is no parser
                ("quietly a 9 false || return 0", failed),  # it does not compile
                ("check a 9 no-such-program", failed),
                ("check a 1 sleep 60", failed),
                ("program a 9 bash -c 'echo ok b; kill -SEGV $$'",
                 (1, "1 passed, 1 failed, 0 skipped")),
                ("counted a 9 echo 2 passed, 0 failed", (0, "2 passed, 0 failed, 0 skipped")),
                ("counted a 9 echo", failed),
                ("counted a 9 sh -c 'echo 2 passed, 0 failed; exit 1'",
                 (1, "2 passed, 1 failed, 0 skipped")),
                ("false", (1, None))):
            put_script(folder, "tests/parts/migrations.sh",
                       f"build_asan() {{ :; }}; patient() {{ echo \"$1\"; }}; FUZZ_SECONDS=0;"
                       f" part_lint() {{ {body}; }}")
            equal((body, *run_elsewhere(folder, "lint")), (body, *wanted))
        put_script(folder, "tests/parts/migrations.sh", "part_lint() { ok a; }")
        put_script(folder, "tools/packages", "exit 1")
        equal(run_elsewhere(folder, "lint", IBX_NO_INSTALL=""), (1, None))


@test
def the_installer_of_packages_explains_itself(_):
    packages = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/packages")
    for option in ("--help", "-h"):
        done = subprocess.run([packages, option], capture_output=True, text=True, check=False)
        equal((done.returncode, done.stderr), (0, ""))
        for word in ("packages GROUP", "build ", "test ", "libvirt "):
            assert word in done.stdout, done.stdout


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
