#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_secrets.py IB-BW [TEST...]

What a core dump of either end of a connection would hold of a key file, which the processes read
whole: nothing, neither while they are connected nor after that."""
import hashlib
import os
import re
import secrets
import sys

from harness import Skip, equal, run_all, test

PIECE = 16  # bytes of a key that count as found
KEPT_OUT = "dd"  # of VmFlags: MADV_DONTDUMP


def regions(pid):
    """What the process can read and has touched: (start, end, flags) of each."""
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as smaps:
        entries = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps.read(), flags=re.M)[1:]
    for entry in entries:
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) r.* ", entry)
        flags = re.search(r"^VmFlags: (.*)", entry, re.M).group(1).split()
        if found and "io" not in flags and not re.search(r"^Rss: +0 kB", entry, re.M):
            yield int(found.group(1), 16), int(found.group(2), 16), flags


def memory(pid, start, end):
    """Piece by piece, which overlap; where nothing can be read, as in [vvar], there is nothing."""
    try:
        file = open(f"/proc/{pid}/mem", "rb", buffering=0)
    except PermissionError as why:
        raise Skip("may not look into its own children") from why
    with file:
        for at in range(start, end, 1 << 20):
            try:
                yield os.pread(file.fileno(), min((1 << 20) + PIECE, end - at), at)
            except OSError:
                pass


class Key:
    """A line of a key file, and all that the product makes of it before it knows a peer."""

    def __init__(self, name):
        self.name, digits = name, secrets.token_hex(32)
        self.line = f"{name}:{digits}\n"
        whole = {"text": digits.encode(), "bytes": bytes.fromhex(digits),
                 "digest": hashlib.sha256(bytes.fromhex(digits)).digest()}
        self.pieces = {what: [one[at:at + PIECE] for at in range(0, len(one), PIECE)]
                       for what, one in whole.items()}

    def found_in(self, block):
        return {f"{self.name}'s {what}" for what, pieces in self.pieces.items()
                for one in pieces if one in block}


def found(keys, pid, kept_out):
    """What there is of the keys in memory that a core has, or in what it has not. A sanitizer's
    shadow, which has none either, is terabytes."""
    return sorted({one for start, end, flags in regions(pid)
                   if (KEPT_OUT in flags) == kept_out and not (kept_out and end - start > 1 << 20)
                   for block in memory(pid, start, end)
                   for key in keys for one in key.found_in(block)})


def heard(process, words):
    """Reads its log up to a line with the words."""
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended before it said {words!r}")


def key_file(scene, keys):
    path = scene.path("keys-" + keys[0].name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.writelines(key.line for key in keys)
    return path


def check(scene, provider, *more):
    alice, bob = keys = Key("alice"), Key("bob")
    loud = {**os.environ, "IBX_LOG": "info"}
    server = scene.start("serve", "--key-file", key_file(scene, keys),
                         "rdma://127.0.0.1:0", env=loud)
    uri = server.stdout.readline().split()[-1]
    equal(found(keys, server.pid, False), [])
    client = scene.start("run", "--key-file", key_file(scene, (bob, alice)),
                         "--set", f"provider={provider}", *more,
                         "--sizes", "4", "--time", "100", uri, env=loud)
    heard(server, "connected to ")
    heard(client, "connected to ")
    for process in (server, client):
        equal(found(keys, process.pid, False), [])
    # A server needs its keys for the next client, where no core has them.
    equal(found(keys, server.pid, True), ["alice's digest", "bob's digest"])
    client.kill()
    heard(server, "closed the connection")
    equal(found(keys, server.pid, False), [])


@test
def over_tcp_in_tls(scene):
    check(scene, "tcp", "--set", "encryption=required")


@test
def over_tcp(scene):
    check(scene, "tcp", "--set", "encryption=off")


@test
def over_shared_memory(scene):
    check(scene, "shm")


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
