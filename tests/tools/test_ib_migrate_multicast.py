#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ib-migrate serve --multicast, and caches that are filled by it. Hosts are network namespaces on
a bridge; number 0 has the snapshot, a memory file. Further arguments: the names of tests."""
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading

from harness import LIMIT, Skip, equal, run_all, test, until

PAGE = 4096
PAGES = 1024
DATA = 768    # pages of them that hold something
HASHES = 4    # pages of the table
GROUP, PORT = "239.77.1.2", 7701
DATAGRAM = 9000  # bytes at most
HOSTS = None


class Hosts:
    """Made once for all tests."""

    def __init__(self, count):
        self.tag = f"ibxm{os.getpid() % 100000}"
        self.names = [f"{self.tag}-{i}" for i in range(count)]
        try:
            self.ip("link", "add", self.tag, "type", "bridge")
            self.ip("link", "set", self.tag, "up")
            for i, name in enumerate(self.names):
                self.ip("netns", "add", name)
                self.ip("link", "add", f"{self.tag}v{i}", "type", "veth", "peer", "name", "eth0",
                        "netns", name)
                self.ip("link", "set", f"{self.tag}v{i}", "master", self.tag, "up")
                self.ip("-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
                self.ip("-n", name, "addr", "add", f"{self.six(i)}/64", "dev", "eth0", "nodad")
                # Otherwise the kernel cuts pages behind this device, which counts one head a page.
                self.ip("-n", name, "link", "set", "eth0", "gso_max_segs", "1")
                self.ip("-n", name, "link", "set", "eth0", "up")
                self.ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as why:
            self.end()
            raise Skip(f"no network namespaces: {why}") from why

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    @staticmethod
    def address(i):
        return f"10.213.9.{i + 1}"

    @staticmethod
    def six(i):
        return f"fd00:213:9::{i + 1}"

    def tried(self, i):
        """Bytes that were sent, and the most bytes that a busy machine has dropped at once."""
        out = subprocess.check_output(["ip", "-n", self.names[i], "-s", "-j", "link", "show",
                                       "eth0"])
        told = json.loads(out)[0]["stats64"]["tx"]
        return told["bytes"], told["dropped"] * DATAGRAM

    def sent(self, i):
        return self.tried(i)[0]

    def end(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self.tag], check=False, capture_output=True)


def hosts():
    global HOSTS  # pylint: disable=global-statement
    if not HOSTS:
        HOSTS = Hosts(5)
    return HOSTS


class Server:
    """An ib-migrate serve on a host."""

    def __init__(self, scene, host, folder, *more, six=False, env=None, listen=True):
        self.folder, self.lines, self.said = folder, [], ""
        where = f"[{Hosts.six(host)}]" if six else Hosts.address(host)
        command = ["ip", "netns", "exec", hosts().names[host], scene.program, "serve", "--json",
                   "--encryption", "required", "--key-file", scene.key, folder, *more]
        if listen:
            command += ["--listen", f"tcp://{where}:0"]
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        start_new_session=True, env={**os.environ, **(env or {})})
        scene.started.append(self.process)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()
        self.uri = until(lambda: self.lines or self.process.poll() is not None, "a server") and \
            self.lines and self.lines[0]["uri"]
        assert self.lines, self.said

    def read(self):
        for line in self.process.stdout:
            self.lines.append(json.loads(line).get("serving", {}))

    def listen(self):
        for line in self.process.stderr:
            self.said += line

    def whole(self):
        until(lambda: self.lines[-1].get("whole"), f"all pages in {self.folder}")
        return self.lines[-1]

    def says(self, words):
        until(lambda: words in self.said, f"{words!r}; it said {self.said!r}")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT)
        self.reader.join(LIMIT)
        self.listener.join(LIMIT)
        return self.process.returncode


def begin(scene):
    """A memory file and a key."""
    hosts()
    random.seed(7)
    scene.memory, scene.key = scene.path("memory"), scene.path("key")
    with open(scene.memory, "wb") as file:
        for at in range(0, PAGES, 16):
            if at // 16 % 4 == 3:
                continue
            file.seek(at * PAGE)
            file.write(random.randbytes(16 * PAGE))
        file.truncate(PAGES * PAGE)
    os.chmod(scene.memory, 0o600)
    with open(scene.key, "w", encoding="ascii") as file:
        file.write("00112233445566778899aabbccddeeff" * 2 + "\n")
    os.chmod(scene.key, 0o600)
    scene.caches = f"/dev/shm/{hosts().tag}"
    shutil.rmtree(scene.caches, ignore_errors=True)
    os.mkdir(scene.caches, 0o700)


def parent(scene, *more, **how):
    return Server(scene, 0, scene.memory, "--multicast", "--multicast-rate", "4M", *more, **how)


def cache(scene, host, uri, *more, **how):
    return Server(scene, host, f"{scene.caches}/{host}", "--cache", uri, "--multicast", *more,
                  **how)


def check(scene, *caches):
    """Every page is right."""
    with open(scene.memory, "rb") as file:
        wanted = file.read()
    for one in caches:
        with open(os.path.join(one.folder, "ram.0"), "rb") as file:
            assert file.read() == wanted, one.folder


def finish(scene, *servers):
    for server in servers:
        equal(server.end(), 0)
    shutil.rmtree(scene.caches)


@test
def hosts_share_what_is_sent(scene):
    begin(scene)
    top = parent(scene)
    before = hosts().sent(0)
    caches = [cache(scene, i, top.uri) for i in (1, 2, 3)]
    until(lambda: top.lines[-1].get("multicast_joined") == 3, "three members")
    joined = hosts().sent(0)
    figures = [one.whole() for one in caches]
    check(scene, *caches)
    sent = hosts().sent(0)
    for told in figures:
        assert told["multicast_pages"] > DATA * 0.9, told
        assert not told["multicast_wrong"] and not told["multicast_strange"], told
        equal(told["multicast_pages"] * PAGE + told["bytes"], (DATA + HASHES) * PAGE)
    # Who comes later is sent what it has missed. Once all are there each page is sent once at most,
    # but for the few that are READ; with READs alone it would be three times as much.
    assert sent - joined < 1.4 * DATA * PAGE, (before, joined, sent)
    told = top.lines[-1]["multicast_sent"]
    tried = hosts().tried(0)
    assert told < sum(tried) - before, (before, told, tried)
    finish(scene, *caches, top)


@test
def what_is_lost_is_read(scene):
    begin(scene)
    top = parent(scene)
    lossy = cache(scene, 1, top.uri, env={"IBX_MULTICAST_DROP": "30"})
    told = lossy.whole()
    assert 0.7 * DATA < told["multicast_pages"] < 0.97 * DATA, told
    lossy.says("datagrams did not; what is missing is READ")
    lost = int(re.search(r"came, (\d+) of", lossy.said).group(1))
    assert 50 < lost < 150, lossy.said  # 2304 in all
    check(scene, lossy)
    finish(scene, lossy, top)


def forge(stop):
    """A stranger hears a group, and sends what it heard, changed, and noise."""
    fd = os.open(f"/run/netns/{hosts().names[4]}", os.O_RDONLY)
    libc_setns(fd)
    own = socket.inet_aton(hosts().address(4))
    hear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hear.bind((GROUP, PORT))
    hear.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + own)
    say = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    say.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
    say.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
    while not stop.is_set():
        if not select.select([hear], [], [], 0.1)[0]:
            continue
        heard = bytearray(hear.recv(DATAGRAM))
        assert b"\xab" * 64 not in heard
        # Pages that nobody has yet, with this head and with other bytes; and what is no datagram.
        page = struct.unpack_from("<Q", heard, 24)[0]
        struct.pack_into("<Q", heard, 24, (page + 300) % PAGES)
        say.sendto(heard, (GROUP, PORT))
        heard[100] ^= 1
        say.sendto(heard, (GROUP, PORT))
        say.sendto(b"noise", (GROUP, PORT))


def libc_setns(fd):
    import ctypes  # pylint: disable=import-outside-toplevel
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000):
        raise Skip(f"setns: {os.strerror(ctypes.get_errno())}")


@test
def who_has_no_key_is_dropped(scene):
    begin(scene)
    top = parent(scene, "--multicast-group", f"{GROUP}:{PORT}")
    stop = threading.Event()
    stranger = threading.Thread(target=forge, args=(stop,))
    stranger.start()
    try:
        member = cache(scene, 1, top.uri)
        told = member.whole()
    finally:
        stop.set()
        stranger.join(LIMIT)
    assert told["multicast_strange"] > 100 and not told["multicast_wrong"], told
    assert told["multicast_pages"] > DATA * 0.9, told
    member.says("that nobody with the group's key has made: they are dropped")
    check(scene, member)
    finish(scene, member, top)


@test
def the_rate_follows_who_loses(scene):
    begin(scene)
    top = parent(scene)
    equal(top.lines[0]["multicast_rate"], 1 << 20)
    good = cache(scene, 2, top.uri)
    good.whole()
    until(lambda: top.lines[-1]["multicast_rate"] > 1 << 20, "a higher rate")
    lossy = cache(scene, 1, top.uri, env={"IBX_MULTICAST_DROP": "3"})
    lossy.whole()
    until(lambda: top.lines[-1]["multicast_rate"] < 1 << 20, "a lower rate")
    assert top.lines[-1]["multicast_rate"] >= 512 << 10, top.lines[-1]
    check(scene, good, lossy)
    finish(scene, good, lossy, top)


@test
def over_ipv6(scene):
    begin(scene)
    top = parent(scene, six=True)
    member = cache(scene, 1, top.uri, six=True)
    assert member.whole()["multicast_pages"] > DATA * 0.9, member.lines[-1]
    check(scene, member)
    finish(scene, member, top)


@test
def a_cache_sends_to_its_rack(scene):
    begin(scene)
    top = parent(scene)
    head = cache(scene, 1, top.uri, "--multicast-rate", "8M", "--multicast-group", "239.77.1.3",
                 env={"IBX_MULTICAST_DROP": "100"})
    members = [cache(scene, i, head.uri) for i in (2, 3)]
    before = [one.whole()["multicast_pages"] for one in members]
    assert min(before) > DATA * 0.6, before
    head.whole()
    check(scene, head, *members)
    until(lambda: head.lines[-1]["multicast_joined"] == 2, "two members")
    equal(top.lines[-1]["multicast_joined"], 1)
    finish(scene, *members, head, top)


@test
def without_a_server_or_a_group_it_goes_on(scene):
    begin(scene)
    top = parent(scene, "--multicast-rate", "64K")
    other = Server(scene, 4, scene.memory)
    member = cache(scene, 1, top.uri, "--cache", other.uri)
    until(lambda: member.lines[-1].get("multicast_packets"), "datagrams")
    top.process.kill()
    told = member.whole()  # the other one has no group
    member.says(f"no multicast from {other.uri} any more (it sends nothing by multicast")
    equal(told["source"], other.uri)
    nowhere = cache(scene, 2, other.uri, "--multicast-interface", "lo")
    nowhere.whole()
    check(scene, member, nowhere)
    finish(scene, member, nowhere, other)


@test
def a_cache_that_was_killed_joins_again(scene):
    begin(scene)
    top = parent(scene, "--multicast-rate", "1M")
    member = cache(scene, 1, top.uri)
    until(lambda: member.lines[-1].get("multicast_pages", 0) > 64, "pages by multicast")
    member.process.kill()
    member.end()
    member = cache(scene, 1, top.uri)
    told = member.whole()
    assert told["multicast_pages"] > 64, (told, member.said)
    check(scene, member)
    finish(scene, member, top)


@test
def where_nothing_arrives_pages_are_read(scene):
    begin(scene)
    top = parent(scene, "--multicast-rate", "64M")
    deaf = cache(scene, 1, top.uri, "--multicast-interface", "lo")
    equal(deaf.whole()["multicast_pages"], 0)
    deaf.says("has sent all: 0 pages came")  # it was fed within the 5 seconds
    finish(scene, deaf, top)
    begin(scene)
    top = parent(scene, "--multicast-rate", "256K")
    deaf = cache(scene, 1, top.uri, "--multicast-interface", "lo")
    equal(deaf.whole()["multicast_pages"], 0)
    deaf.says("does the network between carry it")
    check(scene, deaf)
    finish(scene, deaf, top)


@test
def wrong_usage_is_named(scene):
    for line, words in (("--multicast --on-demand --cache=tcp://127.0.0.1:1", "--multicast with"),
                        ("--multicast-rate=1M --listen=tcp://127.0.0.1:0", "needs --multicast"),
                        ("--multicast --multicast-hops=2 --cache=tcp://127.0.0.1:1",
                         "needs --listen")):
        status, _, err = scene.run("serve", scene.path("x"), *line.split())
        assert status == 2 and words in err, err
    status, _, err = scene.run("serve", scene.path("x"), "--multicast", "--multicast-rate=1K",
                               "--listen=tcp://127.0.0.1:0")
    assert status == 1 and "multicast-rate" in err, err
    begin(scene)
    for more, words in ((("--multicast-group", "10.0.0.1"), "is no multicast group"),
                        (("--multicast-group", "verbs://239.1.2.3:7"), "is no multicast group"),
                        (("--multicast-group", "verbs://", "--multicast-interface", "lo"),
                         "without verbs://"),
                        (("--multicast-interface", "eth77"), 'no interface "eth77"'),
                        (("--no-verify",), "leave out --no-verify")):
        status, _, err = scene.run("serve", scene.memory, "--multicast", "--listen",
                                   "tcp://127.0.0.1:0", *more)
        assert status == 1 and words in err, err
    shutil.rmtree(scene.caches)


if __name__ == "__main__":
    try:
        sys.exit(run_all(sys.argv[1], sys.argv[2:]))
    finally:
        if HOSTS:
            shutil.rmtree(f"/dev/shm/{HOSTS.tag}", ignore_errors=True)
            HOSTS.end()
