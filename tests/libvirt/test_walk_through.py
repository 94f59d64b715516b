#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_walk_through.py [TEST...]: the commands of ib-migrate(1), WALK-THROUGH, as they are printed
there, on the two hosts of hosts.py. Their libvirtd has to be there, and is not used. What is not as
printed is in SUBSTITUTES and GUEST: a small guest without KVM, and names of files and hosts.
Environment as for virsh_scene.py."""
import os
import re
import shlex
import signal
import sys

from hosts import HERE, LIMIT, Hosts, Skip, children, judge, run_tests, test, until

PAGE = os.path.join(HERE, "..", "..", "docs", "man", "ib-migrate.1")
SUBSTITUTES = (("accel=kvm", "accel=tcg"), ("-smp 2 -m 4G", "-m 64M"), ("size=4G", "size=64M"),
               ("rdma://destination:", "rdma://b:"))
GUEST = "-kernel {elf} -nodefaults -display none -serial file:/run/web.serial"
SLOW = " --max-bandwidth 64K"  # so that there is time for a mishap


def printed():
    """(host, command) in their order, up to the next way to migrate."""
    with open(PAGE, encoding="ascii") as page:
        text = page.read()
    text = text[text.index(".Sh WALK-THROUGH"):text.index(".Ss One command")]
    text = text.replace("\\e\n", "").replace("\\e", "\\")
    return re.findall(r"^(?:(source|destination)# |\.Dl )(.*)$", text, re.M)


class Walk:
    """A pair of QEMUs, and the tools, all started by what is printed."""

    def __init__(self, hosts):
        self.hosts, self.commands = hosts, printed()
        self.host = {"source": hosts.a, "destination": hosts.b}
        self.folder = os.path.join(hosts.folder, "walk")
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "web.qcow2"), "wb") as disk:
            disk.truncate(16 << 20)

    def line(self, host, words):
        """The one printed command for this host with these words."""
        found = [line for where, line in self.commands if where == host and words in line]
        assert len(found) == 1, (host, words, found)
        return self.here(found[0])

    def here(self, line):
        """With this test's names."""
        for was, now in (*SUBSTITUTES, ("/srv/shared", self.folder),
                         ("/etc/ibx.key", os.path.join(self.folder, "ibx.key"))):
            line = line.replace(was, now)
        tools = os.path.dirname(os.environ["IB_MIGRATE"])
        return f"export PATH={tools}:$PATH; umask 077; {line}"

    def run(self, host, words):
        """To its good end: what it printed."""
        return self.host[host].ok("sh", "-c", self.line(host, words))

    def start(self, host, words, more=""):
        """In the background: its process and what it prints."""
        log = open(os.path.join(self.folder, f"{host}-{words}.log"), "w+", encoding="utf-8")
        line = self.line(host, words)
        tail = line.rsplit("; ", 1)
        process = self.host[host].start("sh", "-c", f"{tail[0]}; exec {tail[1]}{more}", stdout=log)
        process.text = lambda: open(log.name, encoding="utf-8").read()
        return process

    def key(self):
        """As printed, for both."""
        line = next(line for where, line in self.commands if not where)
        self.hosts.a.ok("sh", "-c", self.here(line))

    def qemus(self):
        """Both, and the VM's first heartbeats."""
        guest = " " + GUEST.format(elf=os.environ["GUEST_ELF"])
        for host in ("source", "destination"):
            self.run(host, "install -d")
            self.start(host, "qemu-system-x86_64", guest)
            until(lambda at=host: os.path.exists(self.host[at].inside("/run/web.qmp")), "QEMU")
        self.beats("source")

    def serial(self, host):
        """What the guest has printed there."""
        try:
            with open(self.host[host].inside("/run/web.serial"), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def beats(self, host):
        """It runs there."""
        now = self.serial(host).count(b"\nbeat ")
        until(lambda: self.serial(host).count(b"\nbeat ") > now + 5, f"heartbeats, {host}")

    def migrate(self, more=""):
        """Both tools."""
        receiver = self.start("destination", "ib-migrate receive", more)
        until(lambda: "waiting at" in receiver.text(), "the receiver")
        self.run("source", "ib-migrate check")
        return receiver, self.start("source", "ib-migrate send")

    def kill(self, *names, host):
        """SIGKILL for all processes of these names on this host."""
        for pid, words in list(self.host[host].processes()):
            if os.path.basename(words[0]) in names:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # a watchdog, which has ended with its tool

    def right(self):
        """At every heartbeat, on both."""
        judge(self.serial("source") + self.serial("destination"))

    def end(self):
        """All that is left."""
        for host in self.host:
            self.kill("ib-migrate", "qemu-system-x86_64", host=host)
            self.host[host].run("sh", "-c", "rm -rf /run/web.* /dev/shm/vm /var/lib/ibx/*")


def there(walk, receiver, sender):
    """Both tools end well, and the VM runs at the destination."""
    assert sender.wait(LIMIT) == 0, sender.text()
    assert receiver.wait(LIMIT) == 0, receiver.text()
    walk.beats("destination")
    walk.right()


@test
def by_hand_and_encrypted(walk):
    """QEMU, the key, check, receive and send."""
    receiver, sender = walk.migrate()
    there(walk, receiver, sender)
    assert "TLS" in sender.text(), sender.text()
    until(lambda: not any("qemu-system" in words[0] for _, words in walk.hosts.a.processes()),
          "the end of the source's QEMU (--quit)")


@test
def a_lost_link(walk):
    """There is nothing to do."""
    receiver, sender = walk.migrate(SLOW + " --set timeout_ms=2000")
    until(lambda: "filling" in sender.text(), "the switch")
    walk.hosts.b.ok("ip", "link", "set", "br0", "down")
    until(lambda: "connecting again" in sender.text(), "a lost link")
    assert "web" in walk.run("source", "ib-migrate status")
    walk.hosts.b.ok("ip", "link", "set", "br0", "up")
    until(lambda: "the source is back" in receiver.text(), "the link")
    walk.hosts.b.ok(os.environ["IB_MIGRATE"], "set", "--qmp", "/run/web.qmp", "--max-bandwidth",
                    "0")
    there(walk, receiver, sender)


@test
def killed_tools(walk):
    """At both ends."""
    _, sender = walk.migrate(SLOW)
    until(lambda: "filling" in sender.text(), "the switch")
    for host in ("destination", "source"):
        walk.kill("ib-migrate", host=host)
    receiver = walk.start("destination", "ib-migrate recover")
    sender = walk.start("source", "ib-migrate recover")
    there(walk, receiver, sender)


@test
def a_lost_destination(walk):
    """Its host is off: nothing answers."""
    _, sender = walk.migrate(SLOW)
    until(lambda: "filling" in sender.text(), "the switch")
    walk.hosts.b.ok("ip", "link", "set", "br0", "down")
    walk.kill("ib-migrate", "qemu-system-x86_64", host="destination")
    until(lambda: "connecting again" in sender.text(), "a lost link")
    for _ in range(2):
        os.kill(children(sender.pid)[0], signal.SIGINT)
        until(lambda: sender.poll() is not None or "interrupt once more" in sender.text(), "a word")
    assert sender.wait(LIMIT) == 3, sender.text()
    line = shlex.quote(walk.line("source", "ib-migrate rollback"))
    said = walk.hosts.a.ok("sh", "-c", f"echo web | script -qec {line} /dev/null")
    assert "rolled back, it runs here again" in said, said
    walk.beats("source")
    judge(walk.serial("source"))
    walk.hosts.b.ok("ip", "link", "set", "br0", "up")


def run(hosts, one):
    """One test, with both QEMUs as they are printed."""
    walk = Walk(hosts)
    try:
        walk.key()
        walk.qemus()
        one(walk)
    finally:
        walk.end()


if __name__ == "__main__":
    try:
        with Hosts() as both:
            STATUS = run_tests(sys.argv[1:], lambda one: run(both, one))
        sys.exit(STATUS)
    except Skip as why:
        print(f"skip all: {why}")
        sys.exit(77)
