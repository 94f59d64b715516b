#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_vhost_user.py: a Linux guest whose disk is a vhost-user device, and an unmodified back end
at each end: QEMU's storage daemon, which maps guest RAM by itself. Environment and exit status are
those of test_virsh_migrate.py."""
import json
import shutil
import sys

from hosts import LIMIT, Hosts, Skip, until
from linux_guest import NETWORK, LinuxDomain
from virsh_scene import PORT, Move, Tool, here, write_key

BEFORE = ("waiting", "preparing", "switching")
SOCKET = "/run/ibx/{name}.vhost"
DISK = """<disk type='vhostuser' device='disk'>
      <driver name='qemu' type='raw'/>
      <source type='unix' path='{socket}'/>
      <target dev='vda' bus='virtio'/>
    </disk>"""


class VhostDomain(LinuxDomain):
    """LinuxDomain with another disk; the image is the same."""

    def devices(self):
        """Of which the disk is a vhost-user device."""
        return DISK.format(socket=SOCKET.format(name=self.name)) + NETWORK

    def back_end(self, host):
        """Of this host. Both have the image open; only one has a VM that runs."""
        path = SOCKET.format(name=self.name)
        host.start("qemu-storage-daemon", "--blockdev",
                   f"file,node-name=image,filename={self.disk},cache.direct=on,locking=off",
                   "--export", f"vhost-user-blk,id=disk,node-name=image,writable=on,addr.type=unix,"
                   f"addr.path={path}")
        until(lambda: host.run("test", "-S", path).code == 0, "a vhost-user back end")
        host.ok("chmod", "0777", path)


def statuses(tool):
    """All that it has reported."""
    lines = [json.loads(line) for line in tool.text.splitlines() if line.startswith('{"status"')]
    return [line["status"] for line in lines]


def moves(hosts, domain):
    """There and back."""
    for source, destination in ((hosts.a, hosts.b), (hosts.b, hosts.a)):
        still = ("--stand-still",)
        move = Move(hosts, domain, source, destination, receive=still, send=still)
        move.whole()
        here(domain, destination, source)
        first = next(status for status in statuses(move.receiver)
                     if status["phase"] not in BEFORE)
        assert first["present_pages"] == first["pages"], first
        domain.right()
        print(f"  the VM stood still for {move.sender.summary()['downtime_ns'] / 1e6:.0f} ms")


def a_disk_of_vhost_user_migrates(hosts):
    """With --stand-still; without it the tool refuses and says so."""
    domain = VhostDomain(hosts)
    for host in hosts.all:
        domain.back_end(host)
    domain.start(hosts.a)
    refused = Tool(hosts.a, ["send", *Move(hosts, domain, only="none").common(),
                             f"tcp://{hosts.b.address}:{PORT}"])
    assert refused.process.wait(LIMIT) == 1
    assert "--stand-still at both ends" in refused.text, refused.text
    moves(hosts, domain)
    print("ok a disk of vhost user migrates:", *domain.numbers())


if __name__ == "__main__":
    try:
        if not shutil.which("qemu-storage-daemon"):
            raise Skip("needs qemu-storage-daemon")
        with Hosts() as both:
            write_key(both)
            a_disk_of_vhost_user_migrates(both)
    except Skip as why:
        print(f"skip all: {why}")
        sys.exit(77)
