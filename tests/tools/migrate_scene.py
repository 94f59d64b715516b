# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ib-migrate share: a tool with a folder of records of its own, VMs in QEMUs, and
migrations of them that are under way."""
import contextlib
import glob
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios

from guest_vm import NEEDED, GuestVm, ask_qmp, in_file, judge, printed
from harness import LIMIT, Skip, equal, free_port, test, until


def case(function):
    """A test with a state folder of its own, whose VMs end with it."""
    def run(scene):
        scene.vms, os.environ["IBX_STATE_DIR"] = [], scene.path("state")
        try:
            function(scene)
        finally:
            for process in scene.started:  # a sender keeps the memory of a QEMU that ends
                process.kill()
                process.wait(LIMIT)
            for vm in scene.vms:
                for path in glob.glob(vm.ram + "*"):
                    os.unlink(path)
            remove_notes(scene.path("state"))
    run.__name__ = function.__name__
    return test(run)


def remove_notes(state):
    """What tools that were killed have noted beside the records of this folder."""
    for record in glob.glob(os.path.join(state, "*.json")):
        name = os.path.basename(record)[:-len("json")]
        for path in glob.glob(f"/dev/shm/ibx-{glob.escape(name)}*"):
            with contextlib.suppress(FileNotFoundError):  # a watchdog removes some, too
                os.unlink(path)


def says(text, *words):
    """One line of the tool, with these words."""
    lines = text.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ib-migrate: ") and len(lines[0]) > 20, text
    for word in words:
        assert word in text, f"no {word!r} in {text!r}"


def fails(scene, line, *more):
    """Exit status 1 and nothing on standard output: what is on standard error."""
    code, out, err = scene.run(*line.split(), *more)
    equal((line, code, out), (line, 1, ""))
    return err


def succeeds(scene, line, *more):
    """Exit status 0 and nothing on standard error: what is on standard output."""
    code, out, err = scene.run(*line.split(), *more)
    equal((line, code, err), (line, 0, ""))
    return out


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def key_file(scene, name, secret):
    path = scene.path(name)
    with open(path, "w", encoding="ascii") as file:
        file.write(secret)
    os.chmod(path, 0o600)
    return path


# ------------------------------------------------------------------------- real VMs


CALM = "doze=15000000"  # most of the time: many of them only stand there while tests look at tools


class Vm(GuestVm):
    """One that ends with its scene, and its memory with it."""

    def __init__(self, scene, *extra, ram=None, append="", incoming=False, place=""):
        if not NEEDED <= os.environ.keys() or os.geteuid():
            raise Skip("needs QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and root")
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix=f"ibx-vm-{os.getpid()}-",
                                         delete=False) as file:
            self.ram = file.name
        super().__init__(scene.path(os.path.join(place, f"vm{len(scene.vms)}")),
                         ram or in_file(self.ram), *extra, append=f"{CALM} {append}",
                         incoming=incoming,
                         start_new_session=True)
        self.qmp = ("--qmp", self.socket)
        scene.vms.append(self)
        scene.started.append(self.process)
        self.wait_for_monitor()

    def running(self):
        """As the monitor says that is not ib-migrate's."""
        return ask_qmp(self.own, "query-status")[0]["running"]

    def runs_on(self):
        """Heartbeats beyond those that there are."""
        now = self.beats()
        until(lambda: self.beats() > now + 20, "heartbeats")
        equal(self.running(), True)


def qemu_with(monitor):
    """The QEMU of a child, which has that monitor besides."""
    return (os.environ["QEMU"], *"-M q35 -accel tcg,thread=multi -m 64 -nodefaults -display none "
            "-no-reboot -machine memory-backend=mem0".split(), "-kernel", os.environ["GUEST_ELF"],
            "-append", "", "-object", "memory-backend-ram,id=mem0,size=64M", "-serial", "null",
            "-qmp", f"unix:{monitor},server=on,wait=off")


def expect(*vms, append=""):
    """The memory of a guest with these options was right at every heartbeat, wherever it ran."""
    judge(printed(*vms), *append.split())


def same_memory(source, destination):
    """Of a guest that has halted."""
    with open(source.ram, "rb") as one, open(destination.ram, "rb") as other:
        assert one.read() == other.read()


def stops_at(state):
    """The environment of a tool that stops itself there, as by SIGSTOP."""
    return dict(os.environ, IBX_MOVE_STOP_AT=state)


def start(scene, line, *more, **options):
    process = scene.start(*line.split(), *more, **options)
    process.lines = []
    return process


def next_line(process):
    line = process.stdout.readline()
    assert line, (process.lines[-1:], process.communicate(timeout=LIMIT))
    process.lines.append(json.loads(line))
    return process.lines[-1]


def wait_for_status(process, wanted):
    while True:
        status = next_line(process).get("status")
        if status and wanted(status):
            return status


def wait_for_phase(phase, *processes):
    for process in processes:
        wait_for_status(process, lambda status: status["phase"] == phase)


def wait_for_message(process, words):
    while words not in next_line(process).get("say", ""):
        pass


def finish(process):
    """Exit status, summary, standard error."""
    out, err = process.communicate(timeout=LIMIT)
    process.lines += objects(out)
    assert all(len(line) == 1 for line in process.lines), process.lines
    return process.returncode, process.lines[-1]["summary"], err


def receiver(scene, vm, *args, before=(), **options):
    """A receiver that waits, and its URI, where another one may wait when it was killed."""
    uri = f"tcp://127.0.0.1:{free_port()}"
    process = start(scene, "", *before, "receive", "--json", "--listen", uri, *vm.qmp, *args,
                    **options)
    found = wait_for_status(process, lambda one: one["phase"] == "waiting" and one["record"])
    return process, found["record"]["uri"]


OLD_RECORD = {"ibx-record": 1, "role": "source", "epoch": 3, "state": "kept", "uuid": "",
              "name": "web", "qmp": "/run/web", "pid": 1, "pid-started": 1, "uri": "tcp://a:1",
              "peer": "a", "key-file": "", "uffd": -1, "device-way": False, "id": "01" * 16,
              "written": 1700000000}


def rewrite_record(scene, side, **changes):
    """That of the one source or destination here, as if a migration of this kind had left it."""
    (path,) = glob.glob(scene.path(f"state/*.{side}.json"))
    with open(path, encoding="ascii") as file:
        record = json.load(file)
    with open(path, "w", encoding="ascii") as file:
        json.dump(dict(record, **changes), file)


def interrupt_twice(process):
    """After the commit, where the first signal only warns. What remains to be done is said."""
    process.send_signal(signal.SIGINT)
    wait_for_message(process, "interrupt once more")
    process.send_signal(signal.SIGTERM)
    code, summary, err = finish(process)
    equal((code, summary["exit_status"], summary["complete"]), (3, 3, False))
    assert "recover" in err or "rollback" in err, err


def halted(scene):
    """A VM that has filled 32 MiB and halts: all of its pages are fetched in the background."""
    vm = Vm(scene, append="beats=40")
    until(lambda: vm.beats() == 40, "the guest to halt")
    return vm


def slow_migration(scene):
    """One that does not end before let_go(): the VMs and the tools at work."""
    source, destination = halted(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    sender = start(scene, "send --json", *source.qmp, uri)
    wait_for_phase("filling", sender, waiting)
    return source, destination, sender, waiting


def looks_like(scene, command, vm):
    """A process that has this VM's monitor, like an ib-migrate that was started by a long path."""
    folder = scene.path("a" * 100)
    os.mkdir(folder)
    os.symlink(sys.executable, f"{folder}/ib-migrate")
    with open(f"{folder}/{command}", "w", encoding="ascii") as script:
        script.write("import socket, sys\n"
                     "monitor = socket.socket(socket.AF_UNIX)\n"
                     "monitor.connect(sys.argv[1])\n"
                     "assert monitor.recv(1)\n"
                     "print(flush=True)\n"
                     "sys.stdin.read()\n")
    holder = subprocess.Popen([f"{folder}/ib-migrate", command, vm.socket], cwd=folder,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    scene.started.append(holder)
    equal(holder.stdout.readline(), b"\n")
    return holder


def let_go(scene, destination):
    equal(succeeds(scene, "set --max-bandwidth 0", *destination.qmp), "")


class Terminal:
    """The tool on a terminal of this many columns."""

    def __init__(self, scene, line, *more, columns=80, kind="xterm"):
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self.seen = ""
        self.process = subprocess.Popen([scene.program, *line.split(), *more], stdin=slave,
                                        stdout=slave, stderr=slave, start_new_session=True,
                                        env={**os.environ, "TERM": kind})
        scene.started.append(self.process)
        os.close(slave)

    def read(self):
        try:
            more = os.read(self.master, 4096)
        except OSError:
            more = b""
        self.seen += more.decode()
        return more

    def wait_for(self, pattern):
        while not re.search(pattern, self.seen):
            assert self.read(), f"no {pattern!r} in {self.seen!r}"

    def write(self, text):
        os.write(self.master, text.encode())

    def finish(self):
        """Exit status and what stays to be read, a line each."""
        while self.read():
            pass
        os.close(self.master)
        lines = self.seen.split("\r\n")
        return self.process.wait(LIMIT), [line.rsplit("\r\033[K", 1)[-1] for line in lines]
