# SPDX-License-Identifier: LGPL-2.1-or-later
"""What kill_matrix.py, trip_matrix.py and third_trip.py share: cases that run side by side, each in
a process and in namespaces of its own, which end with all that is in them. A case has words for a
person. Its run() returns how it ended, or raises Failed. A case is the same for the same seed and
number."""
import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback

from scene import NEEDED, SLOWER, Failed, now, pause

CASE_LIMIT = 600 * SLOWER  # seconds
INSIDE = "ip link set lo up && mount -t tmpfs -o size=1g tmpfs /dev/shm && exec \"$@\""


def arguments(what, count, jobs):
    """A parser of what is common to all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moves", type=int, default=count, help=what)
    parser.add_argument("--seed", default="ibx")
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--only", type=int, action="append")
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    return parser


@contextlib.contextmanager
def told(scene):
    """Ends it; where it went wrong, its story is told before."""
    try:
        yield scene
    except Exception:
        print(scene.story(), flush=True)
        raise
    finally:
        scene.end()


def run_cases(options, case, apart=True):
    """Exit status. case(NUMBER) makes one; apart: with a network of its own."""
    if options.inside is not None:
        return inside(case(options.inside))
    if os.geteuid() or not NEEDED <= os.environ.keys():
        print("skip all: needs " + ", ".join(sorted(NEEDED)) + " in the environment, and root")
        return 77
    return Runner(options, case, apart).run()


def inside(case):
    """One case, in namespaces of its own: the exit status."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        print(case.run(), flush=True)
    except Failed as why:
        print(f"    => {why}", flush=True)
        return 1
    except Exception:  # pylint: disable=broad-except
        traceback.print_exc()
        return 1
    return 0


class Runner:
    """All of them."""

    def __init__(self, options, case, apart):
        self.options, self.case, self.apart = options, case, apart
        self.running, self.failed, self.passed = {}, [], 0
        self.outcomes = {}
        self.folder = tempfile.mkdtemp(prefix=f"ibx-kills-{os.getpid()}-")

    def begin(self, number):
        """Starts this case: this program again, with its number."""
        folder = os.path.join(self.folder, str(number))
        os.mkdir(folder)
        with open(os.path.join(folder, "log"), "wb") as log:
            process = subprocess.Popen(  # pylint: disable=consider-using-with
                ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--ipc", "--pid", "--fork",
                 "--kill-child", "--mount-proc", *(["--net"] if self.apart else []), "sh", "-c",
                 INSIDE, "sh", sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:],
                 "--inside", str(number)],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running[number] = (process, now(), folder)

    def reap(self):
        """Those that have ended, or take too long."""
        for number, (process, began, folder) in list(self.running.items()):
            if process.poll() is None and now() - began < CASE_LIMIT:
                continue
            process.kill()
            process.wait()
            del self.running[number]
            self.note(number, process.returncode, folder)

    def note(self, number, code, folder):
        """One line for a case, and all that was said when it has failed."""
        with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as file:
            said = file.read().strip()
        case = self.case(number)
        if code == 0:
            self.passed += 1
            outcome = said.splitlines()[-1]
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            print(f"ok {case}: {outcome}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            self.failed.append(number)
            print(f"FAILED {case}" + ("" if said else f" (took {CASE_LIMIT} s)") +
                  "".join(f"\n      {line}" for line in said.splitlines()), flush=True)

    def run(self):
        """Exit status."""
        waiting = self.options.only or list(range(self.options.moves))
        began = now()
        while waiting or self.running:
            while waiting and len(self.running) < self.options.jobs:
                self.begin(waiting.pop(0))
            pause(0.05)
            self.reap()
        for outcome, count in sorted(self.outcomes.items(), key=lambda one: -one[1]):
            print(f"        {count:4} {outcome}")
        if self.failed:
            print(f"        seed {self.options.seed}; logs in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
        print(f"        {now() - began:.0f} s")
        print(f"{self.passed} passed, {len(self.failed)} failed, 0 skipped", flush=True)
        return 1 if self.failed else 0
