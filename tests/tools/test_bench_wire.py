#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A migration over a long wire (tools/bench/wire), by the packets that crossed it: padding goes
ahead, and while the VM stands still nothing else than what it waits for."""
import os
import subprocess
import sys
import tempfile

BENCH, BUILD = sys.argv[1:3]
RTT_US = 20000
SKIPPED = 77


def packets(name):
    """(microseconds, direction, bytes, port of the source's side, of the other) of data."""
    with open(name, encoding="ascii") as trace:
        rows = [line.split() for line in trace]
    rows = [(int(at), way, int(size), *map(int, ports if way == ">" else reversed(ports)))
            for at, way, size, *ports, _ in rows]
    return [row for row in rows if row[2] > 60]


def check(rows):
    listener = rows[0][4]
    lanes = [row for row in rows if row[4] != listener and row[1] == ">"]
    doors = {row[3] for row in rows if row[4] == listener}
    sent = {door: sum(r[2] for r in rows if r[3] == door and r[1] == ">") for door in doors}
    control = max(doors, key=sent.get)  # it has the device state, the others single pages
    heard = [r for r in rows if r[3] == control and r[1] == "<"]
    said = [r for r in heard if r[2] == 85]  # READY, then LOADED: a frame and a message of a byte
    assert len(said) >= 2, f"{len(said)} messages without fields came from the destination"
    ready, loaded = said[0][0], said[1][0]
    assert any(r[0] < ready and r[2] > 1000 for r in lanes), "no padding goes ahead of READY"
    asked = [r for r in rows if ready < r[0] < loaded and r[1] == "<" and r[3] != control
             and r[4] == listener]
    assert len(asked) < 16, f"{len(asked)} READs before LOADED"


def a_list_that_cannot_be_written():
    """What ib-wire says then, and its exit status; None: there is no wire here."""
    wire = subprocess.Popen(  # pylint: disable=consider-using-with
        [BUILD + "/tools/ib-wire", "1000", "100", "/dev/full"], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    words = wire.stdout.readline().split()
    if words:
        subprocess.run(["nsenter", f"--net=/proc/{words[0]}/ns/net", sys.executable, "-c",
                        f"import socket; socket.socket().connect_ex(('{words[3]}', 1))"],
                       check=True)
    _, said = wire.communicate()
    return (wire.returncode, said) if words else None


def main():
    if os.geteuid() or not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return SKIPPED
    found = a_list_that_cannot_be_written()
    if not found:
        return SKIPPED
    assert found == (1, "ib-wire: /dev/full: No space left on device\n"), found
    with tempfile.TemporaryDirectory() as folder:
        trace = folder + "/packets"
        done = subprocess.run([BENCH, "--build", BUILD, "--methods", "ibx", "--sizes", "64",
                               "--rounds", "1", "--wire", f"400:{RTT_US}:{trace}"],
                              capture_output=True, text=True, check=False)
        if "there is no wire" in done.stderr:
            return SKIPPED
        assert not done.returncode, done.stdout + done.stderr
        check(packets(trace))
    print("padding ahead of READY, and nothing in front of LOADED and COMMIT")
    return 0


if __name__ == "__main__":
    sys.exit(main())
