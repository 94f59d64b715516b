# SPDX-License-Identifier: LGPL-2.1-or-later
"""One step of a VM from host to host: its tools, and what they and the records say of it."""
import os

from scene import SLOW_WORDS, TIMEOUT, Failed, Tool, ask

PORT = 18700
OVER = ("done", "ended")  # records
PATHS = {"shm": "shm://127.0.0.1", "tcp": "tcp://127.0.0.1", "tls": "tcp://127.0.0.1",
         "verbs": f"verbs://{os.environ.get('IBX_VM_ADDR_A', '127.0.0.1')}"}


class Place:
    """A QEMU on one of the hosts."""

    def __init__(self, host, qemu):
        self.host, self.qemu = host, qemu

    def record(self, role):
        """The newest one of this QEMU's monitor in this role; {}."""
        path = os.path.abspath(self.qemu.socket)
        for one in ask(self.host, "status", "--qmp", path):
            record = one.get("record") or {}
            if record.get("role") == role and record.get("written"):
                return record
        return {}

    def prune(self):
        """What is not over, when the QEMU has ended."""
        ask(self.host, "prune", "--unfinished", "--qmp", os.path.abspath(self.qemu.socket))

    def state(self, role):
        """Of that."""
        return self.record(role).get("state", "")


class Leg:
    """One migration, by whatever command."""

    def __init__(self, trip, kind, source, destination, path):
        self.trip, self.kind, self.source, self.destination = trip, kind, source, destination
        self.path, self.sender, self.receiver = path, None, None
        trip.ports += 1
        self.port = PORT + trip.ports
        self.tools = []
        self.rolled_back = False

    @property
    def is_loan(self):
        """The VM's memory stays at the source."""
        return self.kind in ("borrow", "borrow --fill", "return --keep-warm")

    def start(self, side, *arguments, stop_at=None):
        """A tool that takes part."""
        place = self.source if side == "source" else self.destination
        options = ("--json", "--set", TIMEOUT)
        tool = Tool(place.host, *arguments, "--qmp", os.path.abspath(place.qemu.socket), *options,
                    stop_at=stop_at)
        self.tools.append(tool)
        self.trip.tools.append(tool)
        if side == "source":
            self.sender = tool
        else:
            self.receiver = tool
        return tool

    def begin(self, home, stop_at=""):
        """Both commands; `home`: the VM was there before."""
        key = self.trip.key(self.path)
        uri = f"{PATHS[self.path]}:{self.port}"
        self.start("destination", "receive", "--listen", uri, *(("--home",) if home else ()), *key,
                   stop_at=stop_at if stop_at.startswith("destination") else None)
        self.receiver.says("waiting at ")
        command, *more = self.kind.split()
        self.start("source", command, uri, *more, *(("--yes",) if command == "borrow" else ()),
                   *key, stop_at=stop_at if stop_at.startswith("source") else None)

    def states(self):
        """Of the records of both sides."""
        return self.source.state("source"), self.destination.state("destination")

    def works(self):
        """Whose tools do."""
        return (bool(self.sender and self.sender.alive()),
                bool(self.receiver and self.receiver.alive()))

    def fills(self):
        """The VM runs there, and both sides know it and serve it."""
        return all(self.works()) and self.sender.phase() == self.receiver.phase() == "filling"

    def is_whole(self):
        """All of its pages are there."""
        last = self.receiver.last()
        return last.get("phase") == "filling" and last.get("present_pages") == last.get("pages")

    def was_slow(self):
        """Whether a tool waited too long for one that had no processor."""
        return any(words in tool.said() for tool in self.tools for words in SLOW_WORDS)

    def check_codes(self):
        """No tool was ended by what nobody sent. 5: a receiver was, and the VM never ran there."""
        for tool in self.tools:
            code = tool.code()
            came = tool.command != "receive" or self.destination.qemu.beats()
            most = 4 if came else 5
            if code is not None and (code > most or (code < 0 and code not in (-9, -15))):
                raise Failed(f"{tool.name} ended with {code}")
