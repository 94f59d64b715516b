# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ib-migrate firecracker share: a memory file, a process in Firecracker's place
that has real memory and real faults, the tool that serves it, and servers on other hosts. Arguments
of these tests: IB-MIGRATE DOUBLE [TEST...]."""
import json
import os
import random
import select
import subprocess
import sys

from harness import LIMIT, TEST_LIMIT, Skip, children, equal, run_all, until

PAGES = 2048
PAGE = 4096
# In the guest of tests/vm: over verbs, and what that needs.
URIS = os.environ.get("IBX_TEST_URIS", "").split()
MORE = os.environ.get("IBX_TEST_ARGUMENTS", "").split()


def snapshot(scene, pages=PAGES, seed=1, holes=True):
    """A memory file: random pages, and (with holes) every eighth group of 16 pages is none."""
    path = scene.path("memory")
    random.seed(seed)
    with open(path, "wb") as file:
        for at in range(0, pages, 16):
            if holes and at // 16 % 8 == 3:
                continue
            file.seek(at * PAGE)
            file.write(random.randbytes(16 * PAGE))
        file.truncate(pages * PAGE)
    os.chmod(path, 0o600)
    return path


class MicroVM:
    """The process in Firecracker's place."""
    program = None

    def __init__(self, scene, memory, *args):
        self.process = subprocess.Popen([self.program, scene.path("socket"), memory, *args],
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, start_new_session=True)
        scene.started.append(self.process)
        first = json.loads(self.process.stdout.readline() or "{}")
        if "skip" in first or not first:
            raise Skip(first.get("skip") or self.process.communicate()[1])

    def ask(self, line):
        """Begins it; answer() waits for its end."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self, limit=LIMIT):
        # One line an order, so none was read ahead.
        assert select.select([self.process.stdout], [], [], limit)[0], "it hangs"
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def do(self, line):
        self.ask(line)
        answer = self.answer()
        if answer["wrong"]:
            self.process.kill()
            raise AssertionError(f"{answer}: {self.process.communicate()[1]}")
        return answer

    def end(self):
        self.process.stdin.close()
        self.process.stdin = None  # communicate() would use it
        equal(self.process.wait(LIMIT), 0)


def event(tool, kind):
    """The next line of the tool's JSON of this kind."""
    while True:
        line = tool.stdout.readline()
        assert line, f"no \"{kind}\": {tool.communicate()[1]}"
        told = json.loads(line)
        if told.get("event") == kind:
            return told


def listening(scene, memory, *args):
    """The tool, which waits for a microVM of this memory file, or URI."""
    tool = scene.start("firecracker", "--json", "--socket", scene.path("socket"), "--from", memory,
                       *args)
    event(tool, "listening")
    return tool


def serving(scene, memory, *args, form="both", double=()):
    """A microVM, and the tool that serves it."""
    vm = MicroVM(scene, memory, *double)
    tool = listening(scene, memory, *args)
    vm.do(f"send {form}")
    return vm, tool, event(tool, "serving")


def ended(vm, tool):
    """Both have ended well; the tool's figures."""
    vm.end()
    figures = event(tool, "ended")["figures"]
    out = tool.stdout.read()  # communicate() knows nothing of what was read ahead
    _, err = tool.communicate(timeout=LIMIT)
    equal((tool.returncode, err), (0, ""))
    equal(json.loads(out)["result"]["outcome"], "done")
    return figures


def resident(vm):
    """Bytes of its private memory."""
    with open(f"/proc/{vm.process.pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


def handler_of(tool):
    return until(lambda: children(tool.pid), "a handler")[0]


def offered(scene, memory, uri=None, *args):
    """A server of this memory file, and its URI."""
    uri = uri or (URIS or ["tcp://127.0.0.1:0"])[0]
    server = scene.start("serve", "--json", "--listen", uri, memory, *args, *MORE)
    line = server.stdout.readline()
    assert line, server.communicate()[1]
    return server, json.loads(line)["serving"]["uri"]


def served_by(scene, uri, memory, *args):
    """As serving(), by that server."""
    vm = MicroVM(scene, memory)
    tool = listening(scene, uri, *args, *MORE)
    vm.do("send both")
    event(tool, "serving")
    return vm, tool


def copied(scene, memory):
    """For the microVM, which compares."""
    right = scene.path("right")
    with open(memory, "rb") as file, open(right, "wb") as copy:
        copy.write(file.read())
    return right


def main(limit=TEST_LIMIT):
    """Exit status."""
    MicroVM.program = sys.argv[2]
    return run_all(sys.argv[1], sys.argv[3:], limit)
