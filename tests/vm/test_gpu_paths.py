#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_gpu_paths.py IB-MIGRATE PLUGIN MOVING-APPLICATION VM-CACHE: a Linux guest uses the GPU of
another guest by the rdma communicator, over soft-RoCE and over TCP, and ib-migrate moves it between
hosts where its paths are others: its RDMA device is unplugged before and plugged in after that, its
addresses change, and a network carries no RoCE. The guest compares every call's answer. Prints for
each migration how long the back end waited for a call, and how long the guest stood still."""
import os
import re
import shutil
import subprocess
import sys
import time

# pylint: disable=wrong-import-position
from gpu_guests import (IB_MIGRATE, RDMA_FILES, Memory, Vm, ask, longest, make_initramfs, make_key,
                        move, own_network)
from harness import LIMIT, Skip, run_all, test, until  # gpu_guests.py knows where it is

ARGUMENTS = []
# By a name with two addresses: a guest uses the one to which it has a route.
CALLER = "role=call to=gpu rdma=yes provider=verbs,tcp timeout=6000"
SERVER = "role=serve own=10.78.0.1,10.79.0.1 rdma=yes provider=verbs,tcp timeout=6000"
GID = "ffff:0a4e:0002"  # of 10.78.0.2
NO_ROCE = "-p IPv4 --ip-proto udp --ip-dport 4791 -j DROP"


class Guest:
    """The guest that migrates, whichever QEMU runs it."""

    def __init__(self, scene, key, back_end, port):
        self.scene, self.key, self.back_end = scene, key, back_end
        self.port = port
        self.words = f"{CALLER} own=10.78.0.2 port={port}"
        self.vm, self.number = Vm(scene, 0, "tap0", self.words), 0
        self.before = ""

    def said(self):
        return self.before + self.vm.said()

    def waits(self):
        """ms, since it was asked last."""
        return ask(self.back_end, self.back_end)[1]

    def resumed(self):
        """By which provider each time, from which one."""
        return re.findall(r"after \d+ ms the session continues over (\w+)[^\n]*?"
                          r"(?:, before over (\w+))?\r?\n", self.said())

    def last_said(self):
        return re.findall(r"warn: (the connection[^\n]*)", self.said())[-1]

    def show(self):
        """What the back end knows of it, asked by another program with the same key."""
        said = self.vm.run(f"echo 'communicator : tcp://gpu:{self.port}' >/show && "
                           "echo 'rdma.key_file : /key' >>/show && "
                           "ibx-gvirtus show --properties /show | grep -A 1 ^sessions")
        print("       " + "\n       ".join(said.splitlines()[-2:]), flush=True)
        words = "1 that survive the loss of a connection, 1 of them have gone on over a new one"
        assert words in said, said
        for change in ("verbs to tcp", "again by tcp", "tcp to verbs"):
            assert change in said, said

    def goes_on(self, count=300):
        """Calls, all of them right."""
        right = self.vm.right()
        until(lambda: self.vm.right() >= right + count, "calls", 3 * LIMIT)

    def changes(self, what, action, path):
        """Does something upon which the session goes on by another path."""
        before = len(self.resumed())
        self.waits()
        began = time.monotonic()
        action()
        until(lambda: len(self.resumed()) > before, f"the session to go on: {what}", 3 * LIMIT)
        self.goes_on()
        assert self.resumed()[-1][0] == path, (what, self.resumed())
        print(f"     {what}: calls waited {self.waits():.0f} ms, heartbeats "
              f"{longest(self.vm.beats.times, began, time.monotonic()):.0f}\n"
              f"       {self.last_said()}", flush=True)

    def moves(self, behind=None, path=None):
        """To the other host; `behind` happens as soon as it runs there."""
        resumed, right = len(self.resumed()), self.vm.right()
        self.number += 1
        self.waits()
        began, old = time.monotonic(), self.vm
        new, summary = move(self.scene, self.key, old, self.number)
        self.before += old.said()
        self.vm = new
        if behind:
            behind()
        if path:
            until(lambda: len(self.resumed()) > resumed, "the session to go on", 3 * LIMIT)
            assert self.resumed()[-1][0] == path, self.resumed()
        until(lambda: new.right() > right, "calls after a migration", 3 * LIMIT)
        self.goes_on()
        stop = longest(old.beats.times + new.beats.times, began, time.monotonic())
        wait = self.waits()
        print(f"     move {self.number}: calls waited {wait:.0f} ms, heartbeats {stop:.0f}, STOP "
              f"to RESUME {summary['downtime_ns'] / 1e6:.1f}; by {self.resumed()[-1][0]}",
              flush=True)
        if path:
            print(f"       {self.last_said()}", flush=True)
        if not path:
            assert len(self.resumed()) == resumed, self.resumed()
        old.end()


def scene_of_two(scene, key):
    scene.initramfs = make_initramfs(scene, key, rdma=True)
    server = Vm(scene, "gpu", "tap2", SERVER)
    line = until(lambda: connect(server), "the back end's serial line")
    found = re.fullmatch(r"port (\d+)\r?\n", line.readline())
    assert found, server.said()
    guest = Guest(scene, key, line, int(found.group(1)))
    guest.server = server
    return guest


def connect(server):
    try:
        return server.connect(server.beats_at)
    except OSError:
        return None


@test
def the_path_of_a_guest_that_moves_changes(scene):
    with Memory(scene, ARGUMENTS):
        guest = scene_of_two(scene, make_key(scene))
        try:
            paths(guest)
        except (AssertionError, OSError):
            print(f"{guest.said()[-3000:]}\n--- the back end:\n{guest.server.said()[-2000:]}")
            raise


def paths(guest):
    until(lambda: guest.vm.right() >= 300, "the guest's first calls", 3 * LIMIT)
    assert not guest.resumed(), guest.said()
    # An adapter must be unplugged before its VM moves.
    guest.changes("the RDMA device is unplugged", lambda: guest.vm.run("rdma link delete rxe0"),
                  "tcp")
    guest.moves()
    guest.moves(lambda: guest.vm.run("ip addr add 10.79.0.2/24 dev eth0 && "
                                     "ip addr del 10.78.0.2/24 dev eth0"), "tcp")
    # The new host has an adapter too, and its network another address.
    guest.moves(lambda: guest.vm.run(
        "rdma link add rxe0 type rxe netdev eth0 && ip addr add 10.78.0.2/24 dev eth0 && "
        f"until grep -q {GID} /sys/class/infiniband/rxe0/ports/1/gids/*; do sleep 0.01; done && "
        "ip addr del 10.79.0.2/24 dev eth0"), "verbs")
    guest.moves()  # soft-RoCE belongs to the guest, and survives
    if without_roce("tap1"):
        guest.moves(None, "tcp")
    else:
        print("     ebtables cannot drop RoCE here: no network without it", flush=True)
    guest.show()
    assert guest.vm.right() > 0
    guest.vm.end()


def without_roce(tap):
    """The network of one host carries none any more."""
    ebtables = shutil.which("ebtables", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    return ebtables and not subprocess.run([ebtables, "-A", "FORWARD", "-i", tap, *NO_ROCE.split()],
                                           check=False, capture_output=True).returncode


if __name__ == "__main__":
    ARGUMENTS = [os.path.abspath(one) for one in sys.argv[1:5]]
    if len(ARGUMENTS) != 4:
        sys.exit(__doc__)
    try:
        if not all(os.path.exists(path) for path in RDMA_FILES) or not shutil.which("rdma"):
            raise Skip("needs rdma and libibverbs's driver of soft-RoCE")
        own_network("10.78.0.254")
    except Skip as why:
        print(f"skip the path of a guest that moves changes: {why}")
        sys.exit(0)
    sys.exit(run_all(ARGUMENTS[IB_MIGRATE], [], 6 * LIMIT))
