# SPDX-License-Identifier: LGPL-2.1-or-later
"""One migration between two QEMUs and two ib-migrate, and what an operator sees of them: processes,
the tools' words and exit statuses, the records of each side. What is true is seen elsewhere: in
the guest's heartbeats, in both monitors and in whether a process lives."""
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))

# pylint: disable=wrong-import-position
from guest_vm import (NEEDED, PRIVATE, GuestVm, ask_qmp, in_file, judge,  # noqa: E402,F401
                      printed)
from harness import change_a_page, children, process_state, slower, until  # noqa: E402,F401

BEATS = 5    # for how many a VM is watched
GUEST = "mib=8"
# In the guest of tests/vm a QEMU emulates this one.
SLOWER = max(4 if os.environ.get("IBX_VM") else 1, round(slower()))
PATIENCE = 20 * SLOWER  # seconds for a monitor
SLOW = "64K"  # bytes a second, while a test looks on
PORT = 18600
SLOW_WORDS = ("did not answer", "in time")
TIMEOUT = f"timeout_ms={8000 * SLOWER}"
PIDFD_GETFD = 438


def pause(seconds):
    """Of the pause itself, when what is to pass is time."""
    select.select([], [], [], seconds)


class Failed(AssertionError):
    """What the matrix looks for."""


class TooSlow(Failed):
    """This host had no time for a tool before anything was done to it."""


class Qemu(GuestVm):
    """In the folder of the case; a child of a snapshot has private memory."""

    def __init__(self, name, append, incoming, private=False):
        self.name, self.ram = name, f"/dev/shm/{name}"
        self.log = open(f"{name}.log", "wb")  # pylint: disable=consider-using-with
        os.umask(0o077)
        super().__init__(name, PRIVATE if private else in_file(self.ram),
                         append=f"{GUEST} doze=10000000 {append}", incoming=incoming,
                         stdout=self.log, stderr=self.log)
        self.wait_for_monitor()

    def execute(self, command, **arguments):
        """Its result; None when there is no answer."""
        try:
            return ask_qmp(self.own, (command, arguments), limit=PATIENCE)[0]
        except (OSError, ValueError, LookupError, AssertionError):
            return None

    def runs(self):
        """As this QEMU says."""
        return bool(self.alive() and (self.execute("query-status") or {}).get("running"))

    def goes_on(self):
        """New heartbeats come."""
        now = self.beats()
        until(lambda: self.beats() >= now + BEATS or not self.alive(),
              f"heartbeats of QEMU {self.name}")


def expect(*qemus, text=None):
    """The guest's memory was right at every heartbeat, and it had each of them once."""
    try:
        judge(printed(*qemus) if text is None else text, GUEST)
    except AssertionError as why:
        raise Failed(f"heartbeats of {'+'.join(q.name for q in qemus)}: {why}") from why


def peer_of(one):
    """The path of the unix socket to which this one is connected."""
    try:
        return one.getpeername()
    except OSError:
        return None


class Tool:
    """An ib-migrate of one side. What it prints goes to files, which can be looked at when it has
    stopped or died; migrate_scene.py takes it from pipes, in its order."""
    count = 0
    ends_by = (signal.SIGKILL, signal.SIGTERM)  # for whatever reason; no signal else but one sent

    def __init__(self, side, *arguments, stop_at=None):
        Tool.count += 1
        self.side, self.command, self.limit = side, arguments[0], None
        self.name = f"{Tool.count:02}-{side}-{arguments[0]}"
        environment = dict(os.environ, IBX_STATE_DIR=os.path.abspath(side))
        if stop_at:
            environment["IBX_MOVE_STOP_AT"] = stop_at
        with open(self.name + ".out", "wb") as out, open(self.name + ".err", "wb") as err:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                [os.environ["IB_MIGRATE"], *arguments], stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, env=environment)

    def alive(self):
        """It has not ended."""
        return self.process.poll() is None

    def code(self):
        """Exit status, -SIGNAL; None as long as it has not ended."""
        return self.process.poll()

    def said(self):
        """What it has said to a person."""
        with open(self.name + ".err", encoding="utf-8") as err:
            return err.read()

    def text(self):
        """All that it has printed."""
        with open(self.name + ".err", encoding="utf-8") as err, \
                open(self.name + ".out", encoding="utf-8") as out:
            return err.read() + out.read()

    def last(self):
        """The last status or summary."""
        found = {}
        with open(self.name + ".out", encoding="utf-8") as out:
            for line in out:
                if line.endswith("\n"):
                    one = json.loads(line)
                    found = one.get("summary") or one.get("status") or found
        return found

    def phase(self):
        """Of that."""
        return self.last().get("phase")

    def says(self, words):
        """Waits until it has printed that."""
        until(lambda: words in self.text() or not self.alive(), f"{self.name} to print {words}")
        if words not in self.text():
            raise Failed(f"{self.name} ended with {self.code()} and did not print {words}")

    def stopped(self, look=lambda: None):
        """Waits until it has stopped itself, while `look` sees nothing against it."""
        def state():
            look()
            if not self.alive():
                raise Failed(f"{self.name} ended with {self.code()} before the state was reached")
            return process_state(self.process.pid) == "T"
        until(state, f"{self.name} to come to its state")

    def signal(self, number):
        """To it, if it lives."""
        if self.alive():
            os.kill(self.process.pid, number)

    def go_on(self):
        """Continues it, if it has stopped. A tool that ends must not get SIGCONT: this would undo
        the SIGSTOP by which LeakSanitizer stops it, and LeakSanitizer waits without limit."""
        if process_state(self.process.pid) == "T":
            self.signal(signal.SIGCONT)

    def cut(self, path):
        """Its connection to the unix socket at this path ends; both processes live."""
        pidfd = os.pidfd_open(self.process.pid)
        for name in os.listdir(f"/proc/{self.process.pid}/fd"):
            fd = ctypes.CDLL(None).syscall(PIDFD_GETFD, pidfd, int(name), 0)
            if fd >= 0 and stat.S_ISSOCK(os.fstat(fd).st_mode):
                copy = socket.socket(fileno=fd)
                if copy.family == socket.AF_UNIX and peer_of(copy) == path:
                    copy.shutdown(socket.SHUT_RDWR)
                copy.close()
            elif fd >= 0:
                os.close(fd)
        os.close(pidfd)

    def ends(self):
        """Waits for its end: its exit status."""
        until(lambda: not self.alive(), f"the end of {self.name}")
        return self.code()


def ask(side, *arguments):
    """A command of the tool that ends at once: the objects that it prints."""
    done = subprocess.run([os.environ["IB_MIGRATE"], *arguments, "--json"], capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, IBX_STATE_DIR=os.path.abspath(side)))
    return [json.loads(line) for line in done.stdout.splitlines()]


class Scene:
    """Two QEMUs, the source's with a VM, and the tools of one migration."""

    def __init__(self, append=""):
        self.append = append
        self.tools = []
        self.sender = self.receiver = None
        self.a = Qemu("A", append, False)
        self.b = None
        self.new_destination()
        until(lambda: self.a.beats() >= BEATS, "the guest's first heartbeats")

    def new_destination(self):
        """Another QEMU that waits for the VM."""
        if self.b:
            self.b.end()
        self.b = Qemu(f"B{len(self.tools)}", self.append, True)

    def receive(self, *more, stop_at=None):
        """Starts `receive`, which waits."""
        self.receiver = self.tool("destination", "receive", "--qmp", self.b.socket, "--listen",
                                  f"tcp://127.0.0.1:{PORT}", *more, stop_at=stop_at)
        if stop_at != "destination:listening":
            self.receiver.says("waiting at ")

    def send(self, *more, stop_at=None):
        """Starts `send`."""
        self.sender = self.tool("source", "send", "--qmp", self.a.socket,
                                f"tcp://127.0.0.1:{PORT}", *more, stop_at=stop_at)

    def tool(self, side, *arguments, stop_at=None):
        """One that is part of the migration."""
        timed = ("--json", "--set", TIMEOUT) if arguments[0] != "rollback" else (
            "--json", "--yes", "--set", TIMEOUT)
        self.tools.append(Tool(side, *arguments, *timed, stop_at=stop_at))
        return self.tools[-1]

    def record(self, side):
        """The newest record of a side, as `status` prints it; {}."""
        found = [one for one in ask(side, "status") if one.get("record", {}).get("written")]
        return found[0] if found else {}

    def filling(self):
        """Waits until the VM runs at the destination while its pages come slowly."""
        def fills():
            self.check_time()
            return self.receiver.phase() == "filling"
        until(fills, "pages that come")

    def check_time(self):
        """Raises TooSlow when the sender has given up before it came to anything."""
        if self.sender and not self.sender.alive() and self.receiver.phase() == "waiting" and \
                self.was_slow():
            raise TooSlow(f"{self.sender.name} ended before the state was reached")

    def fast(self):
        """Pages come as fast as they can."""
        return ask("destination", "set", "--max-bandwidth", "0", "--qmp", self.b.socket)

    def story(self):
        """What everybody said and how it ended, for a person."""
        lines = []
        for one in self.tools:
            said = one.said().strip().replace("\n", "\n      ")
            lines.append(f"    {one.name}: exit {one.code()}, phase {one.phase()}\n      {said}")
        for side in ("source", "destination"):
            record = self.record(side)
            lines.append(f"    {side}'s record: {record.get('record', {}).get('state')}: "
                         f"{record.get('sentence')}")
        for qemu in (self.a, self.b):
            lines.append(f"    QEMU {qemu.name}: {'lives' if qemu.alive() else 'ended'}, "
                         f"{qemu.beats()} heartbeats")
        return "\n".join(lines)

    def was_slow(self):
        """Whether a tool waited too long for one that had no processor."""
        return any(words in tool.said() for tool in self.tools for words in SLOW_WORDS)

    def end(self):
        """All that it has started, and its records."""
        for process in (*self.tools, self.a, self.b):
            process.process.kill()
            process.process.wait()
        for side in ("source", "destination"):
            shutil.rmtree(side, ignore_errors=True)

    def left_over(self):
        """What the migration should not have left behind, once it is over."""
        return [name for name in os.listdir("/dev/shm") if name.startswith("ibx-")]


def now():
    """Seconds."""
    return time.monotonic()
