#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""libvirt_matrix.py [--moves N] [--seed S] [--only NUMBER]... [--linux]

virsh migrate between the two hosts of tests/libvirt, while somebody is struck: a tool, a QEMU or a
libvirtd of either side, by SIGKILL, SIGTERM or a SIGSTOP for a while, in each state of a migration.
libvirtd is started again, as an init system does. Then an operator does what ib-migrate(1) tells to
do. In the end the domain runs on exactly one host, and virsh on both says so; its memory was right
at every heartbeat; nothing is left. Or it is lost, with a QEMU that was struck, and no tool has
ended with success before all pages were there.

The domain has a disk. With --linux it is Linux, which writes to its disk with fdatasync and counts
over a TCP connection. It goes on for some cases until it is lost or taken back. A case is the
same for the same seed and number, but for the host where it begins. GUEST_ELF, GUEST_EXPECT and
IB_MIGRATE are in the environment, and this is root."""
import argparse
import json
import os
import random
import signal
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "libvirt"))

# pylint: disable=wrong-import-position
from hosts import LIMIT, Domain, Hosts, Skip, children, judge, patient  # noqa: E402
from linux_guest import LinuxDomain  # noqa: E402
from remedies import Remedies  # noqa: E402
from scene import SLOW_WORDS  # noqa: E402
from virsh_scene import Move, Tool, here, nothing_left, write_key  # noqa: E402

STATES = ("source:exposing", "source:warming", "source:starting", "source:sending",
          "destination:joining", "destination:ready", "destination:mapped", "destination:waiting",
          "source:committed", "destination:resuming", "source:serving", "destination:filling",
          "source:confirming", "destination:complete")
VICTIMS = ("tool", "QEMU", "libvirtd")
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
PAUSES = (0.2, 1.5, 6)  # seconds
AT_MOST = 150           # seconds for what an operator does
USES = 3                # of a domain: all of its heartbeats are computed again each time
TRIES = 4
TO_END = 5              # ... for a libvirtd that may wait for a tool that waits
UNFINISHED = ("may-run", "running", "moved", "complete")


class Wrong(AssertionError):
    """What the matrix looks for."""


class Small(Domain):
    """With the guest of tests/migrations/guest."""

    def __init__(self, hosts, name):
        super().__init__(hosts, name)
        self.order = []

    def right_from(self, source, destination):
        """At every heartbeat, of which there is each one once."""
        self.order += [self.take(host) for host in (source, destination)]
        judge(b"".join(self.order))

    def end(self):
        """There is nothing beside it."""


class Linux(LinuxDomain):
    """With Linux."""

    def right_from(self, *_):
        """It compares by itself."""
        self.right()

    def end(self):
        """The other end of its connection."""
        for pid in children(self.counter.pid):  # nsenter waits for it
            os.kill(pid, signal.SIGKILL)
        self.counter.wait(LIMIT)


class Case:
    """Who is struck, when and how."""

    def __init__(self, seed, number):
        all_of_them = [(state, f"{side} {victim}", name) for state in STATES
                       for side in ("source", "destination") for victim in VICTIMS
                       for name in SIGNALS]
        random.Random(seed).shuffle(all_of_them)
        chance = random.Random(f"{seed}/{number}")
        self.number = number
        self.state, self.victim, self.how = all_of_them[number % len(all_of_them)]
        self.pause = chance.choice(PAUSES)
        self.first = chance.random() < 0.5  # libvirtd is there again before the tool goes on
        self.ends_qemu = self.victim.endswith("QEMU") and self.how != "stop"

    def __str__(self):
        return (f"case {self.number}: at {self.state}: {self.victim}: {self.how}" +
                (f" for {self.pause} s" if self.how == "stop" else ""))


class Struck(Remedies):
    """A migration with its case, and the operator."""
    patience, most = patient(6), 20

    def __init__(self, case, domain, source, destination):
        super().__init__()
        self.case, self.domain = case, domain
        self.source, self.destination = source, destination
        warm = ("--warm",) if case.state == "source:warming" else ()
        self.move = Move(domain.hosts, domain, source, destination, case.state, send=warm)
        self.tools = {"source": self.move.sender, "destination": self.move.receiver}
        self.taken_back = False

    def host(self, side):
        """Of this side."""
        return self.source if side == "source" else self.destination

    # -------------------------------------------------------------- the strike

    def strike(self):
        """The migration until then, and the victim."""
        case = self.case
        self.move.begin()
        waits = self.tools[case.state.split(":", maxsplit=1)[0]]
        waits.stopped()
        side, victim = case.victim.split()
        getattr(self, f"strike_{victim.lower()}")(side, SIGNALS[case.how])
        if waits.process.poll() is None:
            waits.kill(signal.SIGCONT)

    def pass_on(self, pid, number):
        """A signal, and SIGCONT after a while."""
        try:
            os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(self.case.pause)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def strike_tool(self, side, number):
        """Its watchdog lives."""
        tool = self.tools[side]
        if tool.process.poll() is None:
            pid = tool.pid()
            if pid:
                self.pass_on(pid, number)
            tool.process.send_signal(signal.SIGCONT)  # nsenter stops with it

    def strike_qemu(self, side, number):
        """Unless libvirt has ended it already."""
        pid = self.host(side).qemu(self.domain.name)
        if pid:
            self.pass_on(pid, number)

    def strike_libvirtd(self, side, number):
        """And starts it again, at once or later."""
        host = self.host(side)
        if number != signal.SIGSTOP:
            host.end_libvirtd(number, patient(TO_END))
            if self.case.first:
                host.start_libvirtd()
            return
        pid = host.ok("cat", "/run/libvirtd.pid").strip()
        host.ok("kill", "-STOP", pid)
        time.sleep(self.case.pause)
        host.ok("kill", "-CONT", pid)

    # -------------------------------------------------------------- the operator

    def record(self, side):
        """The state of its newest record."""
        said = self.host(side).run(os.environ["IB_MIGRATE"], "status", "--json", "--qmp",
                                   self.domain.monitor).out
        found = [json.loads(line).get("record") or {} for line in said.splitlines()]
        found = [one for one in found if one.get("written") and one.get("role") == side]
        return found[0]["state"] if found else ""

    def recover(self, side):
        """Of this side."""
        self.did(f"recover on the {side}")
        self.tools[side] = Tool(self.host(side), ["recover", "--json", "--qmp",
                                                  self.domain.monitor])

    def take_back(self):
        """The destination is lost for good: from the stop, if the source's QEMU is there."""
        if not self.source.qemu(self.domain.name):
            return False
        self.did("virsh resume and rollback")
        self.taken_back = True
        if self.source.state(self.domain.name) == "paused":
            self.source.virsh("resume", self.domain.name)
        self.source.run(os.environ["IB_MIGRATE"], "rollback", "--yes", "--qmp",
                        self.domain.monitor)
        return True

    def alive(self, side):
        """Its tool works."""
        return self.tools[side].process.poll() is None

    def remedy(self, waited):
        """What is to be done; True when something was."""
        name = self.domain.name
        there = self.destination.qemu(name)
        if not self.alive("destination"):
            state = self.record("destination")
            if state == "complete" or (state in UNFINISHED and there):
                self.recover("destination")
                return True
        state = "" if self.alive("source") else self.record("source")
        if state == "done" and self.record("destination") == "complete":
            self.recover("source")
            return True
        if state in ("may-run", "moved"):
            if there:
                self.recover("source")
                return True
            return self.take_back()
        if waited and self.alive("source") and not self.alive("destination") and not there:
            for words in ("interrupt once more", '"summary"'):
                if self.alive("source"):  # it may end by itself meanwhile
                    self.tools["source"].kill(signal.SIGTERM)
                    self.tools["source"].says_or_ends(words)
            self.did("two SIGTERM for the source")
            return True
        if waited and self.alive("destination") and not self.alive("source") and not there:
            self.tools["destination"].kill(signal.SIGTERM)
            self.did("SIGTERM for a receiver to which nobody comes")
            return True
        return self.domains_are_put_right()

    def domains_are_put_right(self):
        """A libvirtd that was struck has forgotten its migration, and left a domain paused."""
        if any(map(self.alive, self.tools)):
            return False
        name = self.domain.name
        states = self.source.state(name), self.destination.state(name)
        if states == ("paused", "running"):
            self.source.virsh("destroy", name)
        elif states[0] == "paused" and states[1] in ("none", "shut off"):
            self.source.virsh("resume", name)
        elif states[1] == "paused" and states[0] in ("none", "shut off"):
            self.destination.virsh("resume", name)
        else:
            return False
        self.did(f"virsh, with the domain {states[0]} and {states[1]}")
        return True

    def work(self):
        """Until nothing is left to do."""
        deadline, before = time.monotonic() + patient(AT_MOST), None
        while True:
            for host in self.domain.hosts.all:
                if host.run("virsh", "-q", "-c", "qemu:///system", "list").code:
                    host.start_libvirtd()
            seen = [self.alive("source"), self.alive("destination"),
                    self.source.qemu(self.domain.name), self.destination.qemu(self.domain.name)]
            if seen != before:
                self.since, before = time.monotonic(), seen
            waited = self.waited()
            idle = not any(seen[:2]) or waited
            if idle and self.remedy(waited):
                self.since = time.monotonic()
            elif not any(seen[:2]) and self.move.virsh.poll() is not None:
                return
            if time.monotonic() > deadline:
                raise Wrong(f"not over: working {seen[:2]}, virsh {self.move.virsh.poll()}, "
                            f"{self.done}")
            time.sleep(0.2)

    # -------------------------------------------------------------- the judge

    def where(self):
        """The host where it runs; None: nowhere."""
        name, found = self.domain.name, []
        end = time.monotonic() + patient(10)
        while time.monotonic() < end and not found:
            found = [host for host in self.domain.hosts.all if host.state(name) == "running"]
            time.sleep(0.2)
        if len(found) > 1:
            raise Wrong("it runs twice")
        return found[0] if found else None

    def verdict(self):
        """Words; and where the domain is, if it goes on."""
        at = self.where()
        if not at:
            return self.lost(), None
        other = self.source if at is self.destination else self.destination
        here(self.domain, at, other, persistent=False)
        codes = [tool.process.poll() for tool in self.tools.values()]
        if at is self.source and 0 in codes:
            raise Wrong(f"the tools ended with {codes}, and it runs at the source")
        if self.taken_back:
            return "taken back to its stop", None
        self.domain.right_from(self.source, self.destination)
        if self.case.victim == "destination tool" and self.case.how == "kill":
            # The next one removes it.
            self.destination.run("rm", "-f", self.move.socket)
        for host in self.domain.hosts.all:
            nothing_left(host, self.domain, patient(20))
        return f"runs at the {'source' if at is self.source else 'destination'}", at

    def lost(self):
        """There has to be a reason, and it was not called a success."""
        states = [host.state(self.domain.name) for host in (self.source, self.destination)]
        if not self.case.ends_qemu:
            raise Wrong(f"it is lost: {states}")
        if any(host.qemu(self.domain.name) for host in self.domain.hosts.all):
            raise Wrong(f"it does not run, and a QEMU lives: {states}")
        had_all = self.record("source") == "done" or \
            self.record("destination") in ("done", "complete")
        codes = [tool.process.poll() for tool in self.tools.values()]
        if 0 in codes and not had_all:
            raise Wrong(f"it is lost, and the tools ended with {codes}")
        return "lost with the QEMU that was struck"

    def story(self):
        """What everybody said."""
        lines = []
        for side, tool in self.tools.items():
            said = [line[:400] for line in tool.text.splitlines()
                    if not line.startswith('{"status"')]
            lines += [f"      {side}: exit {tool.process.poll()}, record {self.record(side)}, "
                      f"domain {self.host(side).state(self.domain.name)}"]
            lines += [f"        {line}" for line in said]
        return "\n".join(lines)


class Matrix:
    """All cases, with a domain that goes on."""

    def __init__(self, options, hosts):
        self.options, self.hosts = options, hosts
        self.domain, self.at, self.used = None, None, 0
        self.count, self.passed, self.failed = 0, 0, []

    def fresh(self):
        """Another domain, at host a."""
        kind = Linux if self.options.linux else Small
        self.domain = kind(self.hosts, f"vm{self.count}")
        self.count += 1
        self.used = 0
        self.at = self.hosts.a
        self.domain.start(self.at)

    def clean(self):
        """Ends what is left of it."""
        for host in self.hosts.all:
            host.kill_tools()
            if host.run("virsh", "-c", "qemu:///system", "list").code:
                host.start_libvirtd()
            host.virsh("destroy", self.domain.name)
            host.virsh("undefine", self.domain.name)
            host.run("sh", "-c", "rm -rf /dev/shm/libvirt/qemu/* /dev/shm/*ibx* /var/lib/ibx/*")
        self.domain.end()
        self.domain = None

    def struck(self, case):
        """The migration after its strike; again when there was no time for a tool before that."""
        for left in range(TRIES, 0, -1):
            if not self.domain:
                self.fresh()
            other = next(host for host in self.hosts.all if host is not self.at)
            one = Struck(case, self.domain, self.at, other)
            try:
                one.strike()
                return one
            except AssertionError as why:
                said = "".join(tool.text for tool in one.tools.values())
                if left == 1 or not any(words in said for words in SLOW_WORDS):
                    raise Wrong(f"{why}\n{one.story()}") from why
                one.move.virsh.kill()
                self.clean()
        return None

    def run(self, number):
        """One case."""
        case = Case(self.options.seed, number)
        began = time.monotonic()
        struck = None
        try:
            struck = self.struck(case)
            struck.work()
            words, self.at = struck.verdict()
            done = f" after {', '.join(struck.done)}" if struck.done else ""
            print(f"ok {case}: {words}{done} ({time.monotonic() - began:.0f} s)", flush=True)
            self.passed += 1
        except Exception:  # pylint: disable=broad-except
            print(f"FAILED {case}\n{traceback.format_exc()}", flush=True)
            if struck:
                print(struck.story(), flush=True)
            self.failed.append(number)
            self.at = None
        if struck and struck.move.virsh:
            struck.move.virsh.kill()
        self.used += 1
        if not self.at or (self.used == USES and not self.options.linux):
            self.clean()


def main():
    """Exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moves", type=int, default=24)
    parser.add_argument("--seed", default="ibx")
    parser.add_argument("--only", type=int, action="append")
    parser.add_argument("--linux", action="store_true")
    options = parser.parse_args()
    with Hosts() as hosts:
        write_key(hosts)
        matrix = Matrix(options, hosts)
        for number in options.only or range(options.moves):
            matrix.run(number)
    print(f"{matrix.passed} passed, {len(matrix.failed)} failed, 0 skipped", flush=True)
    return 1 if matrix.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Skip as why:
        print(f"skip libvirt's kill matrix: {why}")
        sys.exit(77)
