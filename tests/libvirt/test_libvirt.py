#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_libvirt.py [TEST...]: `virsh migrate` between two hosts with a libvirtd each (hosts.py), and
ib-migrate beside each QEMU. GUEST_ELF, GUEST_EXPECT and IB_MIGRATE are in the environment, and this
is root."""
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback

from hosts import LIMIT, Domain, Hosts, Skip, children, until

SOCKET = "/run/ibx/{name}.sock"
PORT = 18600
MIGRATE = "migrate --live --unsafe --persistent --undefinesource".split()
TESTS = []


def test(function):
    """Marks a test; each gets the two hosts and a domain of its own name."""
    TESTS.append(function)
    return function


class Tool:
    """An ib-migrate on a host."""

    def __init__(self, host, arguments, stop_at=None):
        self.host = host
        self.log_name = os.path.join(host.own, f"tool-{arguments[0]}.log")
        self.log = open(self.log_name, "w", encoding="utf-8")  # pylint: disable=consider-using-with
        stop = [f"IBX_MOVE_STOP_AT={stop_at}"] if stop_at else []
        self.process = host.start("env", "IBX_LOG=warn", *stop, os.environ["IB_MIGRATE"],
                                  *arguments, stdout=self.log)

    @property
    def text(self):
        """What it has printed so far."""
        with open(self.log_name, encoding="utf-8") as file:
            return file.read()

    def pid(self):
        """Of the tool itself, as the test sees it: the child of nsenter."""
        return children(self.process.pid)[0]

    def says(self, words):
        """Waits until it has printed that."""
        until(lambda: words in self.text or self.process.poll() is not None, words)
        assert words in self.text, self.text

    def stopped(self):
        """Waits until it has stopped itself (IBX_MOVE_STOP_AT)."""
        def state():
            assert self.process.poll() is None, self.text
            with open(f"/proc/{self.pid()}/stat", encoding="ascii") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "T"
        until(state, "a tool that stops itself")

    def kill(self, number=signal.SIGKILL):
        """Ends it; or only a signal. nsenter stops itself when what it has started is stopped."""
        os.kill(self.pid(), number)
        os.kill(self.process.pid, signal.SIGCONT)
        if number == signal.SIGKILL:
            self.process.wait(LIMIT)

    def end(self):
        """Its exit status."""
        return self.process.wait(LIMIT)

    def summary(self):
        """The last line of --json."""
        lines = [line for line in self.text.splitlines() if line.startswith('{"summary"')]
        return json.loads(lines[-1])["summary"]


class Move:
    """Both tools of a migration, and virsh."""

    def __init__(self, hosts, domain, source=None, destination=None, stop_at=None, only=None,
                 receive=(), send=()):
        self.hosts, self.domain = hosts, domain
        self.more = {"receive": receive, "send": send}
        self.source, self.destination = source or hosts.a, destination or hosts.b
        self.socket = SOCKET.format(name=domain.name)
        self.key = os.path.join(hosts.folder, "key")
        self.stop_at = stop_at or ""
        self.receiver = self.sender = self.virsh = None
        if only not in ("send", "none"):
            self.receive()
        if only not in ("receive", "none"):
            self.send()

    def common(self):
        """Options of both."""
        return ["--json", "--libvirt", self.socket, "--qmp", self.domain.monitor,
                "--key-file", self.key]

    def receive(self):
        """Starts the destination's tool."""
        stop = self.stop_at if self.stop_at.startswith("destination") else None
        self.receiver = Tool(self.destination, ["receive", *self.common(), *self.more["receive"], "--listen",
                                                f"tcp://{self.destination.address}:{PORT}"], stop)
        self.receiver.says("waiting for libvirt")

    def send(self):
        """Starts the source's tool, which is ready when its socket is there."""
        stop = self.stop_at if self.stop_at.startswith("source") else None
        self.sender = Tool(self.source, ["send", *self.common(), *self.more["send"],
                                         f"tcp://{self.destination.address}:{PORT}"], stop)
        until(lambda: os.path.exists(self.source.inside(self.socket)) or
              self.sender.process.poll() is not None, "the source's socket")
        assert self.sender.process.poll() is None, self.sender.text

    def line(self, *more):
        """virsh's arguments."""
        return [*MIGRATE, *more, "--migrateuri", f"unix://{self.socket}", self.domain.name,
                self.destination.uri]

    def migrate(self, *more):
        """Runs it."""
        return self.source.virsh(*self.line(*more), limit=LIMIT)

    def begin(self, *more):
        """Starts it."""
        self.virsh = self.source.start("virsh", "-q", "-c", "qemu:///system", *self.line(*more))

    def whole(self, *more):
        """All of it, to its good end."""
        ran = self.migrate(*more)
        assert ran.code == 0, (ran, self.sender.text[-2000:], self.receiver.text[-2000:])
        assert self.sender.end() == 0, self.sender.text
        assert self.receiver.end() == 0, self.receiver.text


def write_key(hosts):
    """The key of both tools."""
    key = os.path.join(hosts.folder, "key")
    with open(key, "w", encoding="ascii") as file:
        file.write(os.urandom(32).hex())
    os.chmod(key, 0o600)


def ignores_shared(host, domain):
    """Whether x-ignore-shared is on, by libvirt's own monitor."""
    text = host.virsh_ok("qemu-monitor-command", domain.name,
                         '{"execute":"query-migrate-capabilities"}')
    found = {one["capability"]: one["state"] for one in json.loads(text)["return"]}
    return found["x-ignore-shared"]


def no_job(host, domain):
    """libvirt has no job on it any more."""
    return "None" in host.virsh_ok("domjobinfo", domain.name)


def here(domain, host, other, persistent=True):
    """It runs on this host, and neither of the two says anything else."""
    until(lambda: host.state(domain.name) == "running", f"running on {host.name}")
    until(lambda: other.state(domain.name) in ("none", "shut off"), f"nothing on {other.name}")
    domain.beats_on(host)
    until(lambda: no_job(host, domain), "the end of libvirt's job")
    until(lambda: not other.qemu(domain.name), f"no QEMU on {other.name}")
    if persistent:
        assert re.search(r"Persistent:\s+yes", host.virsh_ok("dominfo", domain.name))
    until(lambda: not ignores_shared(host, domain), "x-ignore-shared is off")


def nothing_left(host, domain, limit=LIMIT):
    """No socket and no memory."""
    def left():
        shm = host.ok("find", "/dev/shm", "-type", "f", "-name", f"*{domain.name}*ibx*").split()
        return shm + host.ok("find", "/run/ibx", "-name", f"{domain.name}.sock").split()
    try:
        until(lambda: not left(), f"nothing left on {host.name}", limit)
    except AssertionError as why:
        raise AssertionError(f"{why}: {left()}") from None


# ------------------------------------------------------------------------- the hosts themselves


@test
def libvirt_migrates_by_itself(hosts, domain):
    """Plain pre-copy: what the other tests begin with."""
    domain.start(hosts.a)
    ran = hosts.a.virsh(*MIGRATE, domain.name, hosts.b.uri)
    assert ran.code == 0, ran
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


# ------------------------------------------------------------------------- good ends


@test
def virsh_migrate_moves_there_and_back(hosts, domain):
    """And the domain is what it was."""
    domain.start(hosts.a)
    uuid = hosts.a.virsh_ok("domuuid", domain.name)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    assert hosts.a.state(domain.name) == "none"
    domain.expect(hosts.a, hosts.b)
    Move(hosts, domain, hosts.b, hosts.a).whole()
    here(domain, hosts.a, hosts.b)
    assert hosts.b.state(domain.name) == "none"
    assert hosts.a.virsh_ok("domuuid", domain.name) == uuid
    for host in hosts.all:
        nothing_left(host, domain)


@test
def libvirtd_itself_migrates(hosts, domain):
    """--p2p, as OpenStack Nova and others call it."""
    domain.start(hosts.a)
    Move(hosts, domain).whole("--p2p")
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_vm_may_be_left_paused(hosts, domain):
    """--suspend: it counts as running there when libvirt has left it paused for 30 seconds."""
    domain.start(hosts.a)
    Move(hosts, domain).whole("--suspend")
    assert hosts.b.state(domain.name) == "paused"
    assert hosts.a.state(domain.name) == "none"
    hosts.b.virsh_ok("resume", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def pages_come_before_the_stop(hosts, domain):
    """--warm: libvirt waits at the source's socket meanwhile, and the VM runs."""
    domain.start(hosts.a)
    move = Move(hosts, domain, send=("--warm",))
    move.whole()
    summary = move.sender.summary()
    assert summary["warm_rounds"] > 0, summary
    assert summary["warm_pages"] > 0, summary
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)
    for host in hosts.all:
        nothing_left(host, domain)


@test
def a_copy_at_the_source_may_stay_defined(hosts, domain):
    """Without --undefinesource it is shut off there."""
    domain.start(hosts.a)
    move = Move(hosts, domain)
    ran = hosts.a.virsh("migrate", "--live", "--unsafe", "--migrateuri", f"unix://{move.socket}",
                        domain.name, hosts.b.uri)
    assert ran.code == 0, ran
    here(domain, hosts.b, hosts.a, persistent=False)
    assert hosts.a.state(domain.name) == "shut off"


# ------------------------------------------------------------------------- refused


@test
def memory_that_cannot_work_is_refused_first(hosts, domain):
    """By the tool, before anything is touched; and virsh then has nobody to talk to."""
    private = Domain(hosts, domain.name, memory="<source type='anonymous'/>")
    private.start(hosts.a)
    move = Move(hosts, private, only="receive")
    tool = Tool(hosts.a, ["send", *move.common(), f"tcp://{hosts.b.address}:{PORT}"])
    assert tool.end() == 1
    assert "share=on" in tool.text, tool.text
    ran = move.migrate()
    assert ran.code == 1, ran
    here(private, hosts.a, hosts.b)


@test
def what_virsh_was_told_beside_it_is_refused(hosts, domain):
    """Options whose stream is another one. The VM goes on."""
    domain.start(hosts.a)
    for option, words in (("--parallel", "--parallel"),
                          ("--postcopy", "Postcopy is not supported")):
        move = Move(hosts, domain)
        ran = move.migrate(option)
        assert ran.code == 1, ran
        assert move.sender.end() == 1
        assert words in move.sender.text + ran.err, (ran, move.sender.text)
        here(domain, hosts.a, hosts.b)
        move.receiver.end()
    domain.expect(hosts.a)


@test
def without_a_receiver_virsh_does_not_wait_for_ever(hosts, domain):
    """The source's tool opens nobody's way, says why, and virsh fails."""
    domain.start(hosts.a)
    move = Move(hosts, domain, only="send")
    ran = move.migrate()
    assert ran.code == 1, ran
    assert move.sender.end() == 1
    assert "no ib-migrate receive --libvirt" in move.sender.text, move.sender.text
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)


@test
def a_move_that_is_cancelled_leaves_all_as_it_was(hosts, domain):
    """By a signal while libvirt waits for the source's tool; the next one works."""
    domain.start(hosts.a)
    move = Move(hosts, domain, stop_at="destination:joining")
    move.begin()
    move.receiver.stopped()
    move.sender.kill(signal.SIGTERM)
    assert move.sender.end() == 1
    move.receiver.kill(signal.SIGCONT)
    stayed(hosts, domain, move)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_move_is_given_up_while_pages_come_before_the_stop(hosts, domain):
    """By a signal to the source's tool, by its death, and by virsh; the next one works."""
    domain.start(hosts.a)
    for number in (signal.SIGTERM, signal.SIGKILL):
        move, tool = caught(hosts, domain, "source:warming", send=("--warm",))
        assert hosts.a.state(domain.name) == "running"
        domain.beats_on(hosts.a)
        tool.kill(number)
        if number != signal.SIGKILL:
            tool.kill(signal.SIGCONT)
        stayed(hosts, domain, move)
    move, tool = caught(hosts, domain, "source:warming", send=("--warm",))
    abort = hosts.a.start("virsh", "-q", "-c", "qemu:///system", "domjobabort", domain.name)
    tool.kill(signal.SIGCONT)
    abort.wait(LIMIT)
    if move.virsh.wait(LIMIT):  # it came in time
        stayed(hosts, domain, move)
        Move(hosts, domain, send=("--warm",)).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


# ------------------------------------------------------------------------- killed

BEFORE = ("source:exposing", "source:starting", "source:stopped", "source:sending",
          "destination:joining", "destination:ready", "destination:mapped", "destination:waiting")


def caught(hosts, domain, state, **more):
    """A move whose tool has stopped itself at this state; `more`: options of the tools."""
    move = Move(hosts, domain, stop_at=state, **more)
    move.begin()
    tool = move.sender if state.startswith("source") else move.receiver
    tool.stopped()
    return move, tool


def stayed(hosts, domain, move):
    """virsh failed, and all is as it was at the source."""
    assert move.virsh.wait(LIMIT) == 1, move.virsh.stdout.read()
    for tool in (move.sender, move.receiver):
        if tool.process.poll() is None:
            tool.kill(signal.SIGTERM)
        tool.end()
    here(domain, hosts.a, hosts.b)
    nothing_left(move.source, domain)


@test
def a_tool_is_killed_before_the_commit(hosts, domain):
    """At each state of either side: the VM stays, and the next move works."""
    domain.start(hosts.a)
    for state in BEFORE:
        print("  ", state, flush=True)
        move, tool = caught(hosts, domain, state)
        tool.kill()
        stayed(hosts, domain, move)
    domain.expect(hosts.a)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_qemu_that_waits_for_a_page_is_let_go(hosts, domain):
    """The destination's tool is killed while QEMU loads, at different moments of that: libvirtd
    there asks QEMU something, and would wait for its answer for ever."""
    domain.start(hosts.a)
    for _ in range(4):
        move, tool = caught(hosts, domain, "destination:mapped")
        until(lambda: hosts.a.state(domain.name) == "paused", "the stop")
        tool.kill()
        stayed(hosts, domain, move)
    domain.expect(hosts.a)


@test
def the_source_tool_is_killed_as_it_commits(hosts, domain):
    """COMMIT has not gone: libvirt takes the VM back."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:committed")
    tool.kill()
    stayed(hosts, domain, move)


@test
def the_destination_tool_is_killed_as_the_vm_loads(hosts, domain):
    """The end of the device state is lost with it: libvirt takes the VM back."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    tool.kill()
    assert move.virsh.wait(LIMIT) == 1
    assert move.sender.end() == 1
    assert "libvirt has continued the VM here" in move.sender.text, move.sender.text
    here(domain, hosts.a, hosts.b)


@test
def the_source_tool_is_killed_while_pages_are_missing(hosts, domain):
    """libvirt has ended the source's QEMU: recover finds the pages without it."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:serving")
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    until(lambda: not hosts.a.qemu(domain.name), "the end of the source's QEMU")
    tool.kill()
    again = Tool(hosts.a, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.receiver.end() == 0, move.receiver.text
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)
    for host in hosts.all:
        nothing_left(host, domain)


@test
def the_destination_tool_is_killed_while_pages_are_missing(hosts, domain):
    """libvirt's job may wait for a page; recover ends it well."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:filling")
    tool.kill()
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.sender.end() == 0, move.sender.text
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def the_destination_tool_leaves_a_vm_that_runs_at_once(hosts, domain):
    """Interrupted twice: it does not wait for the end of a QEMU that goes on."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:filling", receive=("--max-bandwidth", "64K"))
    tool.kill(signal.SIGTERM)
    tool.kill(signal.SIGCONT)
    tool.says("interrupt once more")
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    since = time.monotonic()
    tool.kill(signal.SIGTERM)
    assert tool.end() == 3, tool.text
    assert time.monotonic() - since < 3
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.sender.end() == 0, move.sender.text
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def the_destination_s_qemu_is_killed(hosts, domain):
    """The destination's, before the commit: the VM stays."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:starting")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    stayed(hosts, domain, move)
    move, tool = caught(hosts, domain, "destination:waiting")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    stayed(hosts, domain, move)
    domain.expect(hosts.a)


@test
def a_libvirtd_is_killed_before_the_commit(hosts, domain):
    """And started again: the VM runs at the source, and nowhere else."""
    domain.start(hosts.a)
    for number in (0, 1):
        host = hosts.all[number]
        move, tool = caught(hosts, domain, "source:sending")
        host.end_libvirtd(signal.SIGKILL)
        tool.kill(signal.SIGCONT)
        move.virsh.wait(LIMIT)
        host.start_libvirtd()
        stayed(hosts, domain, move)
    domain.expect(hosts.a)


@test
def the_source_s_libvirtd_is_killed_after_the_commit(hosts, domain):
    """It does not know what has become of the VM, and leaves it paused; the VM runs elsewhere."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    hosts.a.end_libvirtd(signal.SIGKILL)
    hosts.a.start_libvirtd()
    tool.kill(signal.SIGCONT)
    move.virsh.wait(LIMIT)
    until(lambda: hosts.b.state(domain.name) == "running", "running on b")
    domain.beats_on(hosts.b)
    assert move.receiver.end() == 0, move.receiver.text
    assert move.sender.end() == 0, move.sender.text
    assert hosts.a.state(domain.name) == "paused"
    hosts.a.virsh_ok("destroy", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def the_destination_s_libvirtd_is_killed_after_the_commit(hosts, domain):
    """The VM is loaded there and does not run: the source's libvirtd continues it."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    hosts.b.end_libvirtd(signal.SIGKILL)
    move.virsh.wait(LIMIT)
    assert move.sender.end() == 1
    assert "libvirt has continued the VM here" in move.sender.text, move.sender.text
    tool.kill(signal.SIGCONT)
    hosts.b.start_libvirtd()
    assert move.receiver.end() == 1
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)
    nothing_left(hosts.a, domain)


@test
def a_vm_that_is_destroyed_where_it_runs_is_lost(hosts, domain):
    """And the tool there does not promise that the source could restart it."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:filling")
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    until(lambda: not hosts.a.qemu(domain.name), "the end of the source's QEMU")
    hosts.b.virsh_ok("destroy", domain.name)
    tool.kill(signal.SIGCONT)
    assert move.receiver.end() != 0
    assert "start it from its disk" in move.receiver.text, move.receiver.text
    assert "rollback" not in move.receiver.summary()["error"], move.receiver.text
    is_lost_at_the_source(hosts, domain, move)
    # From its disk, and this migration's record is not in the way of the next one.
    hosts.b.virsh_ok("undefine", domain.name)
    domain.start(hosts.a)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)


def is_lost_at_the_source(hosts, domain, move):
    """The source's tool ends by itself, says what is left, and leaves nothing."""
    assert move.sender.end() == 3, move.sender.text
    assert "nothing can restart it from its stop" in move.sender.summary()["error"]
    said = hosts.a.ok(os.environ["IB_MIGRATE"], "status", "--qmp", domain.monitor)
    assert "start it from its disk" in said, said
    for host in hosts.all:
        assert host.state(domain.name) in ("none", "shut off"), host.state(domain.name)
        assert not host.qemu(domain.name)
    nothing_left(hosts.a, domain)


@test
def a_qemu_is_killed_where_the_vm_runs(hosts, domain):
    """While its pages come, and libvirt has ended the source's: both say that it is lost."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:filling")
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    until(lambda: not hosts.a.qemu(domain.name), "the end of the source's QEMU")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    assert move.receiver.end() == 3, move.receiver.text
    is_lost_at_the_source(hosts, domain, move)


@test
def a_qemu_is_killed_before_libvirt_has_ended_the_source_s(hosts, domain):
    """libvirtd at the source is dead: its QEMU stays, and virsh resume brings the VM back."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming", receive=("--max-bandwidth", "64K"))
    hosts.a.end_libvirtd(signal.SIGKILL)
    hosts.a.start_libvirtd()
    tool.kill(signal.SIGCONT)
    move.virsh.wait(LIMIT)
    until(lambda: hosts.b.state(domain.name) == "running", "running on b")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    assert move.receiver.end() == 3, move.receiver.text
    assert move.sender.end() == 3, move.sender.text
    assert "virsh resume here" in move.sender.summary()["error"], move.sender.text
    assert hosts.a.state(domain.name) == "paused"
    hosts.a.virsh_ok("resume", domain.name)
    hosts.a.ok(os.environ["IB_MIGRATE"], "rollback", "--yes", "--qmp", domain.monitor)
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)


# ------------------------------------------------------------------------- libvirt decides


@test
def recover_leaves_a_paused_vm_paused(hosts, domain):
    """The destination's tool dies when the VM is loaded, and libvirt does not continue that."""
    domain.start(hosts.a)
    move = Move(hosts, domain)
    assert move.migrate("--suspend").code == 0
    move.receiver.kill()
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.sender.end() == 0, move.sender.text
    assert hosts.b.state(domain.name) == "paused"
    hosts.b.virsh_ok("resume", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def rollback_leaves_it_to_virsh_resume(hosts, domain):
    """libvirtd at the source has forgotten the migration, and the VM never ran elsewhere."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    hosts.a.end_libvirtd(signal.SIGKILL)
    hosts.a.start_libvirtd()
    tool.kill()
    move.virsh.wait(LIMIT)
    until(lambda: not hosts.b.qemu(domain.name), "the end of the QEMU on b")
    move.sender.kill(signal.SIGTERM)
    move.sender.says("interrupt once more")
    move.sender.kill(signal.SIGTERM)
    assert move.sender.end() == 3, move.sender.text
    again = hosts.a.run(os.environ["IB_MIGRATE"], "rollback", "--yes", "--qmp", domain.monitor)
    assert again.code == 1 and "virsh resume" in again.err, again
    assert hosts.a.state(domain.name) == "paused"
    hosts.a.virsh_ok("resume", domain.name)
    hosts.a.ok(os.environ["IB_MIGRATE"], "rollback", "--yes", "--qmp", domain.monitor)
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)
    domain.expect(hosts.a)


# ------------------------------------------------------------------------- operators


@test
def operators_at_work_while_pages_are_missing(hosts, domain):
    """A restarted libvirtd and a managed save at the destination lose nothing."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:serving")
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    hosts.b.end_libvirtd()
    hosts.b.start_libvirtd()
    assert hosts.b.state(domain.name) == "running"
    saving = hosts.b.start("virsh", "-q", "-c", "qemu:///system", "managedsave", domain.name)
    tool.kill(signal.SIGCONT)
    assert saving.wait(LIMIT) == 0, saving.stdout.read()
    assert move.sender.end() == 0, move.sender.text
    move.receiver.end()
    hosts.b.virsh_ok("start", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


# ------------------------------------------------------------------------- runner


def run(hosts, one, number):
    """One test, with a domain of its own."""
    domain = Domain(hosts, f"vm{number}")
    try:
        one(hosts, domain)
    finally:
        for host in hosts.all:
            if host.run("virsh", "-c", "qemu:///system", "list").code:
                host.start_libvirtd()
            host.kill_tools()
            host.virsh("destroy", domain.name)
            host.virsh("undefine", domain.name)


def main(wanted, tests):
    """Exit status."""
    failed = 0
    try:
        hosts = Hosts()
    except Skip as why:
        print(f"skip all: {why}")
        return 77
    with hosts:
        write_key(hosts)
        for number, one in enumerate(tests):
            name = one.__name__.replace("_", " ")
            if wanted and one.__name__ not in wanted:
                continue
            try:
                run(hosts, one, number)
                print(f"ok {name}", flush=True)
            except (Exception, subprocess.TimeoutExpired):  # pylint: disable=broad-except
                traceback.print_exc()
                print(f"FAILED {name}", flush=True)
                failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], TESTS))
