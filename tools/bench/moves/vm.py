# SPDX-License-Identifier: LGPL-2.1-or-later
"""A QEMU with the guest, and its monitor."""
import json
import os
import socket
import subprocess
import threading
import time

from moves.heartbeats import parse
from moves.memory import written_mib
from moves.waiting import Failure, WAIT_S, await_value
from moves.wire import at_end


class Qmp:
    """A connection to a QEMU's monitor. Events are kept, with QEMU's own time stamps."""

    def __init__(self, path, patience):
        self.patience = patience
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rw", encoding="utf-8")
        self.events, self.answers, self.ended = [], [], False
        self.changed = threading.Condition()
        self.greetings = 0
        threading.Thread(target=self.listen, daemon=True).start()
        self.negotiate()

    def negotiate(self):
        """Waits for the greeting and answers with qmp_capabilities. A QEMU that is starting may
        greet twice, when the client comes while the monitor is set up, and then wants an answer to
        each."""
        self.wait(lambda: self.greetings or self.ended, "the greeting")
        if not self.greetings:
            raise ConnectionResetError
        before = 0
        while before != self.greetings:
            before = self.greetings
            try:
                self.run("qmp_capabilities")
            except Failure:
                if before == 1:
                    raise

    def listen(self):
        try:
            for line in self.file:
                message = json.loads(line)
                with self.changed:
                    if "QMP" in message:
                        self.greetings += 1
                    else:
                        (self.events if "event" in message else self.answers).append(message)
                    self.changed.notify_all()
        except (OSError, ValueError):
            pass
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, ready, what, limit=None):
        with self.changed:
            self.changed.wait_for(lambda: ready() or self.ended, limit or self.patience)
            if not ready():
                raise Failure(f"waited for {what}")

    def run(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        self.wait(lambda: self.answers, f"the answer to {command}")
        answer = self.answers.pop(0)
        if "error" in answer:
            raise Failure(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    def event(self, name, status=None):
        """The first event of this name (and status, if given), or None."""
        for e in list(self.events):
            if e["event"] == name and status in (None, e.get("data", {}).get("status")):
                return e
        return None

    def await_status(self, status, limit=None):
        self.wait(lambda: self.event("MIGRATION", status) or self.event("MIGRATION", "failed"),
                  f"migration status {status}", limit)
        if self.event("MIGRATION", "failed"):
            raise Failure("QEMU's migration failed")
        return stamp(self.event("MIGRATION", status))


def stamp(event):
    return event["timestamp"]["seconds"] + event["timestamp"]["microseconds"] / 1e6


class Vm:
    def __init__(self, bench, folder, size, ram, incoming):
        self.name = os.path.join(folder, "to" if incoming else "from")
        self.serial, self.tool = self.name + ".serial", self.name + ".tool"
        self.ram = f"{ram}/{os.path.basename(folder)}.{os.path.basename(self.name)}"
        self.patience = WAIT_S * (1 + size // 4096)
        self.seen = []  # (TSC of the last heartbeat, time when it was seen)
        self.options = (f"mib={written_mib(size)} cpus={bench.cpus} beat={bench.beat}"
                        + (" scattered=1" if bench.scattered else ""))
        self.all_options = self.options + (f" doze={bench.doze}" if bench.doze else "")
        backend = f"memory-backend-file,id=mem0,size={size}M,mem-path={self.ram},share=on"
        command = at_end(bench, incoming) + [bench.qemu, "-M", "pc", "-accel", bench.accel,
                                             "-m", str(size),
                   "-smp", str(bench.cpus), "-object", backend, "-machine", "memory-backend=mem0",
                   "-nodefaults", "-display", "none", "-no-reboot", "-kernel", bench.guest,
                   "-append", self.all_options, "-serial", f"file:{self.serial}",
                   "-qmp", f"unix:{self.name}.qmp,server=on,wait=off",
                   "-qmp", f"unix:{self.tool},server=on,wait=off"]
        if bench.bios:
            command += ["-bios", bench.bios]
        if incoming:
            command += ["-incoming", "defer"]
        self.qmp = None
        self.log = open(self.name + ".log", "w+b")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, umask=0o077)  # for its RAM's file
        try:
            self.qmp = await_value(self.connect, self.patience, "QEMU did not start", 0.02)
            cpus = self.qmp.run("query-cpus-fast")
        except BaseException:
            self.end()
            raise
        self.threads = [cpu["thread-id"] for cpu in cpus]

    def connect(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise Failure("QEMU did not start: " + self.log.read()[-500:].decode(errors="replace"))
        try:
            return Qmp(self.name + ".qmp", self.patience)
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, ValueError):
            return None

    def text(self):
        with open(self.serial, "rb") as serial:
            return serial.read()

    def last_beat(self):
        """(vCPU, count, TSC) of the last whole heartbeat, or None; notes when it was seen."""
        if not os.path.exists(self.serial):
            return None
        with open(self.serial, "rb") as serial:
            serial.seek(max(0, os.fstat(serial.fileno()).st_size - 400))
            beats = parse(serial.read())
        if beats:
            self.seen.append((beats[-1][2], time.monotonic()))
        return beats[-1] if beats else None

    def cpu_s(self):
        """The CPU time that QEMU has used so far, without its vCPUs."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for cpu in self.threads:
            path = f"/proc/{self.process.pid}/task/{cpu}/schedstat"
            with open(path, encoding="ascii") as stat:
                total -= int(stat.read().split()[0]) / 1e9
        return total

    def end(self):
        self.process.kill()
        self.process.wait()
        if self.qmp:
            self.qmp.socket.close()
        self.log.close()
        if os.path.exists(self.ram):
            os.unlink(self.ram)
