# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of command-line tools share: one line a test ("ok NAME", "FAILED NAME" or "skip
NAME"), processes that end with their test, and waits for conditions instead of sleeps."""
import contextlib
import errno
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
import traceback

os.umask(0o022)  # configuration that others can change is refused
# nohup has SIGHUP ignored, and a shell SIGINT and SIGQUIT for what runs in the background, and so
# by tools.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
PAGE, RANGE = 4096, 512
MANY = 16  # pages: QEMU may touch a few at any time


def slower():
    """How many times longer things take now than on an idle machine: tests/fixtures/patience.h."""
    with open("/proc/loadavg", encoding="ascii") as file:
        minute, _, _, tasks = file.read().split()[:4]
    load = max(float(minute), float(tasks.split("/")[0])) / (os.cpu_count() or 1)
    asked = float(os.environ.get("MESON_TEST_TIMEOUT_MULTIPLIER", "1"))
    return min(max(load, asked, 1), 20)


def patient(seconds):
    """What these seconds of an idle machine are on this one now."""
    return seconds * slower()


LIMIT = patient(60)  # seconds for any one wait
TEST_LIMIT = 4 * LIMIT  # ... and for a test


class Skip(Exception):
    """This host cannot run the test, for the reason given."""


def need_for_all(path):
    """Skips a test that becomes another user where that one cannot read this file: a tree in a home
    of mode 0700, as Debian makes them, is its owner's and root's alone."""
    path = os.path.realpath(path)
    for at, bit in [(path, 0o004), *((str(folder), 0o001)
                                     for folder in pathlib.Path(path).parents)]:
        if not os.stat(at).st_mode & bit:
            raise Skip(f"other users cannot read {path}")


def until(condition, what, limit=LIMIT):
    """Polls a condition until it holds and returns its value."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        select.select([], [], [], 0.005)
    raise AssertionError(f"waited {limit:.0f} s for {what}")


@contextlib.contextmanager
def within(limit, what):
    """Raises what has not ended by then, wherever it waits: a test that hangs fails, and cleans up.
    For the main thread, and not one in another."""
    def too_long(*_):
        raise AssertionError(f"{what} took longer than {limit:.0f} s")
    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def process_state(pid):
    """The letter of proc(5): "T" is one that is stopped; "X" also stands for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid):
    """Whether a process runs; one that is dead but not reaped does not."""
    return process_state(pid) not in "ZX"


def children(pid):
    """Of its main thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(one) for one in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Scene:
    """One test's folder and processes."""

    def __init__(self, program):
        self.program = os.path.abspath(program)
        self.folder = tempfile.TemporaryDirectory(prefix=f"ib-bw-test-{os.getpid()}-")
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # with what it may have left behind
            except ProcessLookupError:
                pass
            process.communicate()
        until(self.removed, "the test's folder to be removed")

    def removed(self):
        """False: another process, such as the watchdog of a tool that was killed, has made a file
        there meanwhile."""
        try:
            self.folder.cleanup()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def start(self, *args, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        process = subprocess.Popen([self.program, *args], stdin=subprocess.DEVNULL, text=True,
                                   cwd=self.folder.name, start_new_session=True, **options)
        self.started.append(process)
        return process

    def run(self, *args, **options):
        """Exit status, standard output, standard error."""
        process = self.start(*args, **options)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def serve(self, *args, uri="rdma://127.0.0.1:0"):
        """A server that is ready, and its URI."""
        process = self.start("serve", *args, uri)
        line = process.stdout.readline()
        found = re.search(r"serving \w+ at (\S+)", line)
        assert found, line or process.communicate(timeout=LIMIT)
        return process, found.group(1)


RESERVED = []


def free_port():
    """A port of 127.0.0.1 for a server that sets SO_REUSEADDR. A socket that does not listen stays
    bound to it, so that the kernel gives it to no other process."""
    RESERVED.append(socket.socket())
    RESERVED[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    RESERVED[-1].bind(("127.0.0.1", 0))
    return RESERVED[-1].getsockname()[1]


def equal(got, wanted):
    assert got == wanted, f"{got!r} is not {wanted!r}"


def one_sentence(text):
    """An error is one line of ib-bw's with some words."""
    lines = text.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ib-bw: ") and len(lines[0]) > 15, text


def flip(path, page):
    """Changes a byte of this page."""
    with open(path, "r+b") as ram:
        ram.seek(page * PAGE + 1234)
        byte = ram.read(1)
        ram.seek(page * PAGE + 1234)
        ram.write(bytes([byte[0] ^ 0x40]))


def change_a_page(source, destination):
    """Changes, in the file of a source's memory, a page that has come to the destination, while
    others of its range, which are compared with it, have not. A function that puts it back."""
    with open(source, "rb") as one, open(destination, "rb") as other:
        def there(file, page):
            try:
                return os.lseek(file.fileno(), page * PAGE, os.SEEK_DATA) == page * PAGE
            except OSError:
                return False
        for first in range(0, os.fstat(one.fileno()).st_size // PAGE, RANGE):
            pages = [page for page in range(first, first + RANGE) if there(one, page)]
            come = [page for page in pages if there(other, page)]
            if come and len(pages) - len(come) > MANY:
                flip(source, come[-1])
                return lambda: flip(source, come[-1])
    raise AssertionError("no range has both pages that have come and pages that have not")


TESTS = []


def test(function):
    """Marks a test; they run in the order of the file."""
    TESTS.append(function)
    return function


def in_share(name):
    """Whether the test is in the share that IBX_TEST_SHARE leaves, as 2/3, the second of three, or
    2-3/5, the second and the third of five. FNV-1a, as in tests/fixtures/selection.c."""
    wanted = os.environ.get("IBX_TEST_SHARE", "1/1")
    parts = re.fullmatch(r"(\d+)(?:-(\d+))?/(\d+)", wanted)
    numbers = (parts[1], parts[2] or parts[1], parts[3]) if parts else (0, 0, 0)
    first, last, shares = map(int, numbers)
    assert 1 <= first <= last <= shares, \
        f"IBX_TEST_SHARE is {wanted}: give it as 2/3 or 2-3/5, or unset it"
    code = 2166136261
    for byte in name.encode():
        code = (code ^ byte) * 16777619 % (1 << 32)
    return first <= code % shares + 1 <= last


def run_tests(wanted, run, limit=TEST_LIMIT):
    """Exit status for all tests marked, or for those named; run(TEST) runs one of them."""
    failed = 0
    for name in set(wanted) - {one.__name__ for one in TESTS}:
        print(f"FAILED {name}: there is no test of this name", flush=True)
        failed += 1
    chosen = [one for one in TESTS
              if (not wanted or one.__name__ in wanted) and in_share(one.__name__)]
    if not chosen and not failed:
        print("0 passed, 0 failed", flush=True)  # tests/count-results counts it for nothing
    for one in chosen:
        name = one.__name__.replace("_", " ")
        try:
            with within(limit, name):
                run(one)
            print(f"ok {name}", flush=True)
        except Skip as why:
            print(f"skip {name}: {why}", flush=True)
        except Exception:  # pylint: disable=broad-except
            traceback.print_exc()
            print(f"FAILED {name}", flush=True)
            failed += 1
    return 1 if failed else 0


def run_all(program, wanted, limit=TEST_LIMIT):
    """The same, of this program, each with a scene of its own."""
    def run(one):
        with Scene(program) as scene:
            one(scene)
    return run_tests(wanted, run, limit)
