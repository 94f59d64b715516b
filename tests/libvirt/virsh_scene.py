# SPDX-License-Identifier: LGPL-2.1-or-later
"""`virsh migrate` between two hosts with a libvirtd each (hosts.py), and ib-migrate beside each
QEMU: the tools, the moves, and what has to be true after them. Tests are programs that take the
names of some of theirs; GUEST_ELF, GUEST_EXPECT and IB_MIGRATE are in the environment, and they are
root."""
import itertools
import json
import os
import re
import signal

from hosts import (LIMIT, RESTLESS, Domain, Hosts, Skip, children, process_state, run_tests,
                   until)

SOCKET = "/run/ibx/{name}.sock"
PORT = 18600
MIGRATE = "migrate --live --unsafe --persistent --undefinesource".split()


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
        """Of the tool itself, as the test sees it: the child of nsenter. None: it has ended, or
        not begun."""
        return next(iter(children(self.process.pid)), None)

    def says(self, words):
        """Waits until it has printed that."""
        self.says_or_ends(words)
        assert words in self.text, self.text

    def says_or_ends(self, words):
        """Waits for either."""
        until(lambda: words in self.text or self.process.poll() is not None, words)

    def stopped(self):
        """Waits until it has stopped itself (IBX_MOVE_STOP_AT)."""
        def state():
            assert self.process.poll() is None, self.text
            pid = self.pid()
            return pid and process_state(pid) == "T"
        until(state, "a tool that stops itself")

    def kill(self, number=signal.SIGKILL):
        """Ends it; or only a signal. nsenter stops itself when what it has started is stopped. One
        that has ended meanwhile needs neither."""
        until(lambda: self.pid() or self.process.poll() is not None, "a tool that has begun")
        pid = self.pid()
        if pid:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        self.process.send_signal(signal.SIGCONT)
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
        self.receiver = Tool(self.destination,
                             ["receive", *self.common(), *self.more["receive"], "--listen",
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


def in_connect(host):
    """libvirtd waits there for the source's tool to let it connect."""
    pid = host.ok("cat", "/run/libvirtd.pid").strip()
    return "unix_wait_for_peer" in host.ok("sh", "-c", f"cat /proc/{pid}/task/*/wchan")


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


def caught(hosts, domain, state, **more):
    """A move whose tool has stopped itself at this state; `more`: options of the tools."""
    move = Move(hosts, domain, stop_at=state, **more)
    move.begin()
    tool = move.sender if state.startswith("source") else move.receiver
    tool.stopped()
    return move, tool


def stopped_with_missing_pages(hosts, domain, state):
    """The same for a state after the commit, of a domain that this starts; virsh has ended."""
    domain = Domain(hosts, domain.name, words=RESTLESS)
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, state)
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    until(lambda: not hosts.a.qemu(domain.name), "the end of the source's QEMU")
    return domain, move, tool


def stayed(hosts, domain, move):
    """virsh failed, and all is as it was at the source."""
    assert move.virsh.wait(LIMIT) == 1, move.virsh.stdout.read()
    for tool in (move.sender, move.receiver):
        if tool.process.poll() is None:
            tool.kill(signal.SIGTERM)
        tool.end()
    here(domain, hosts.a, hosts.b)
    nothing_left(move.source, domain)


# ------------------------------------------------------------------------- runner


def run(hosts, one, number):
    """One test, with the two hosts and a domain of its own."""
    domain = Domain(hosts, f"vm{number}")
    try:
        one(hosts, domain)
    finally:
        for host in hosts.all:
            host.release_libvirtd()
            if host.run("virsh", "-c", "qemu:///system", "list").code:
                host.start_libvirtd()
            host.kill_tools()
            host.virsh("destroy", domain.name)
            host.virsh("undefine", domain.name)


def main(wanted):
    """Exit status for the tests marked, or for those named."""
    numbers = itertools.count()
    try:
        hosts = Hosts()
    except Skip as why:
        print(f"skip all: {why}")
        return 77
    with hosts:
        write_key(hosts)
        return run_tests(wanted, lambda one: run(hosts, one, next(numbers)))
