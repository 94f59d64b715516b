#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_gpu_moves.py IB-MIGRATE PLUGIN MOVING-APPLICATION VM-CACHE [MOVES [OPTION...]]: a Linux
guest uses a remote GPU by the rdma communicator over its network card, and ib-migrate moves it to
and fro between two QEMUs; `ib-migrate send` gets the OPTIONs, too. The back end stays where it is.
The guest compares every call's answer, and the device's state. Prints, for every move, how long the
back end waited for the next call, and how long the guest itself stood still."""
import os
import re
import statistics
import subprocess
import sys
import time

# pylint: disable=wrong-import-position
from gpu_guests import (APPLICATION, IB_MIGRATE, PLUGIN, Memory, Vm, ask, longest, make_initramfs,
                        make_key, move, own_network)
from harness import LIMIT, TEST_LIMIT, Skip, run_all, test, until  # gpu_guests.py knows where it is

HOST = "10.78.0.1"
ARGUMENTS = []
MOVES, OPTIONS = 3, []


@test
def a_guest_with_a_remote_gpu_moves(scene):
    with Memory(scene, ARGUMENTS):
        moves(scene, make_key(scene))


def moves(scene, key):
    back_end = subprocess.Popen(  # pylint: disable=consider-using-with
        [ARGUMENTS[APPLICATION], ARGUMENTS[PLUGIN], "serve", HOST, key], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True)
    scene.started.append(back_end)
    port = int(re.fullmatch(r"port (\d+)\n", back_end.stdout.readline()).group(1))
    scene.initramfs = make_initramfs(scene, key)
    vm = Vm(scene, 0, "tap0", f"role=call own=10.78.0.2 to={HOST} port={port} provider=tcp")
    until(lambda: vm.right() >= 500, "the guest's first calls")
    waits, stops, downtimes, total = [], [], [], 0
    for number in range(1, MOVES + 1):
        total += ask(back_end.stdin, back_end.stdout)[0]
        before, began, old = vm.right(), time.monotonic(), vm.beats
        new, summary = move(scene, key, vm, number, OPTIONS)
        until(lambda: new.right() > before, "calls after a migration")  # pylint: disable=all
        done = time.monotonic()
        requests, wait = ask(back_end.stdin, back_end.stdout)
        total += requests
        vm.right()
        stop = longest(old.times + new.beats.times, began, done)
        waits.append(wait)
        stops.append(stop)
        downtimes.append(summary["downtime_ns"] / 1e6)
        print(f"     move {number}: the back end waited {wait:.0f} ms for a call, the guest's "
              f"heartbeat {stop:.0f} ms; STOP to RESUME {downtimes[-1]:.1f} ms", flush=True)
        vm.end()
        vm = new
    assert total > 0 and vm.right() > 0
    print(f"     {MOVES} moves, {total} calls, median (most): calls waited "
          f"{statistics.median(waits):.0f} ({max(waits):.0f}) ms, heartbeats "
          f"{statistics.median(stops):.0f} ({max(stops):.0f}), STOP to RESUME "
          f"{statistics.median(downtimes):.1f} ({max(downtimes):.1f})", flush=True)
    vm.end()


if __name__ == "__main__":
    ARGUMENTS = [os.path.abspath(one) for one in sys.argv[1:5]]
    if len(ARGUMENTS) != 4:
        sys.exit(__doc__)
    MOVES, OPTIONS = int((sys.argv[5:6] or ["3"])[0]), sys.argv[6:]
    try:
        own_network(HOST)
    except Skip as why:
        print(f"skip a guest with a remote gpu moves: {why}")
        sys.exit(0)
    sys.exit(run_all(ARGUMENTS[IB_MIGRATE], [], TEST_LIMIT + MOVES * LIMIT))
