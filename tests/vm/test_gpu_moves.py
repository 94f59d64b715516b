#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_gpu_moves.py IB-MIGRATE PLUGIN MOVING-APPLICATION VM-CACHE [MOVES [OPTION...]]: a Linux guest
uses a remote GPU by the rdma communicator over its network card, and ib-migrate moves it to and fro
between two QEMUs; OPTIONs go to send. The back end stays where it is. Every call's answer is
compared in the guest, and so is the device's state. Prints, for every move, how long the back end
waited for the next call, and how long the guest itself stood still."""
import json
import os
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))

# pylint: disable=wrong-import-position
from harness import LIMIT, Skip, equal, free_port, run_all, test, until  # noqa: E402

HOST = "10.78.0.1"
MODULES = ("virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover "
           "net_failover virtio_net").split()
SOURCE, PLUGIN, APPLICATION, CACHE = range(4)
ARGUMENTS = []
MOVES, OPTIONS = 3, []


def own_network():
    """This process is in a network of its own: a bridge with the address of the host, and two taps
    that QEMUs use, as a VM's network on both hosts would be."""
    if os.geteuid():
        raise Skip("needs root")
    for program in ("ip", "qemu-system-x86_64", "busybox"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            raise Skip(f"needs {program}")
    if not os.path.exists("/dev/net/tun"):
        raise Skip("needs /dev/net/tun")
    if "IBX_OWN_NETWORK" not in os.environ:
        os.environ["IBX_OWN_NETWORK"] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    for line in ("link set lo up", "link add bridge0 type bridge", f"addr add {HOST}/24 dev bridge0",
                 "link set bridge0 up", "tuntap add tap0 mode tap", "tuntap add tap1 mode tap",
                 "link set tap0 master bridge0 up", "link set tap1 master bridge0 up"):
        subprocess.run(["ip", *line.split()], check=True)


def libraries(*programs):
    """What the dynamic linker loads for these, by its own word."""
    found = set()
    for program in programs:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        found.update(re.findall(r"(/\S+) \(0x", done.stdout))
    return sorted(found)


def make_initramfs(scene, key):
    tree, to = scene.path("tree"), scene.path("initramfs")
    plugin, application, cache = (ARGUMENTS[n] for n in (PLUGIN, APPLICATION, CACHE))
    for folder in ("bin", "dev", "proc", "sys", "lib", "modules", "tmp"):
        os.makedirs(os.path.join(tree, folder))
    shutil.copy(shutil.which("busybox"), tree + "/bin/busybox")
    shutil.copy(application, tree + "/bin/moving-application")
    shutil.copy(plugin, tree + "/lib/libgvirtus-communicators-rdma.so")
    shutil.copy(os.path.join(HERE, "gpu-init"), tree + "/init")
    shutil.copy(key, tree + "/key")
    for module in MODULES:
        shutil.copy(f"{cache}/kernel/modules/{module}.ko", tree + "/modules/")
    for path in libraries(application, plugin):
        os.makedirs(tree + os.path.dirname(path), exist_ok=True)
        shutil.copy(path, tree + path)
    # busybox's cpio keeps who owns a file and its mode; the key is root's and nobody else's.
    with open(to, "wb") as file:
        subprocess.run("find . | busybox cpio -o -H newc 2>/dev/null", cwd=tree, shell=True,
                       check=True, stdout=file)
    shutil.rmtree(tree)
    return to


class Beats(threading.Thread):
    """When heartbeats came over a serial line."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(path)
        self.times = []
        self.start()

    def run(self):
        while self.line.recv(4096):
            self.times.append(time.monotonic())


class Vm:
    """A QEMU; `incoming` waits for the migration."""

    def __init__(self, scene, number, tap, incoming):
        self.folder = scene.path(f"vm{number}")
        os.mkdir(self.folder)
        self.qmp, self.own, self.beats_at = (
            os.path.join(self.folder, name) for name in ("qmp", "own", "beats"))
        self.console = os.path.join(self.folder, "console")
        self.ram = os.path.join(scene.memory, f"vm{number}")
        cache = ARGUMENTS[CACHE]
        append = ("console=ttyS0 quiet panic=-1 oops=panic nokaslr mitigations=off nopti "
                  f"tsc=reliable no_timer_check port={scene.port}")
        line = ("-name guest,debug-threads=on -M q35 -accel tcg,thread=multi -cpu max,-erms,-fsrm "
                "-smp 2 -m 192 -nodefaults -no-user-config -no-reboot -display none "
                "-machine memory-backend=mem0").split() + [
            "-object", f"memory-backend-file,id=mem0,size=192M,mem-path={self.ram},share=on",
            "-kernel", f"{cache}/kernel/vmlinux", "-initrd", scene.initramfs, "-append", append,
            "-serial", f"file:{self.console}",
            "-serial", f"unix:{self.beats_at},server=on,wait=off",
            "-netdev", f"tap,id=net0,ifname={tap},script=no,downscript=no",
            "-device", "virtio-net-pci,netdev=net0,mac=52:54:00:78:00:02,romfile=",
            "-qmp", f"unix:{self.qmp},server=on,wait=off",
            "-qmp", f"unix:{self.own},server=on,wait=off"]
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *line,
             *(("-incoming", "defer") if incoming else ())],
            stdin=subprocess.DEVNULL, start_new_session=True)
        scene.started.append(self.process)
        until(lambda: os.path.exists(self.own) or self.process.poll() is not None, "QEMU")
        equal(self.process.poll(), None)
        self.beats = until(self.listen, "QEMU's serial line")

    def listen(self):
        try:
            return Beats(self.beats_at)
        except OSError:
            return None

    def said(self):
        try:
            with open(self.console, encoding="ascii", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def right(self):
        """How many calls the guest has found right; none may have been wrong."""
        text = self.said()
        assert "WRONG" not in text and "panic" not in text.lower(), text[-2000:]
        # The last line may not be whole: it goes on at the other QEMU's console.
        found = re.findall(r"^right (\d+)\s*\n", text, re.M)
        return int(found[-1]) if found else 0

    def end(self):
        self.process.kill()
        self.process.wait(LIMIT)
        os.unlink(self.ram)


def longest(times, begin, end):
    """The longest time without a heartbeat that touches begin to end, in ms."""
    times = sorted(times)
    gaps = [(b - a) * 1000 for a, b in zip(times, times[1:]) if b >= begin and a <= end]
    return max(gaps, default=0)


def ask(back_end):
    """Requests since the last question, and the longest time between two, in ms."""
    back_end.stdin.write("\n")
    back_end.stdin.flush()
    line = back_end.stdout.readline()
    found = re.fullmatch(r"requests (\d+) longest (\d+) us\n", line)
    assert found, line
    return int(found.group(1)), int(found.group(2)) / 1000


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def move(scene, key, source, number):
    """One migration: the new VM, and what `send` says of it."""
    vm = Vm(scene, number, f"tap{number % 2}", True)
    port = free_port()
    uri = f"tcp://{HOST}:{port}"
    receive = scene.start("receive", "--json", "--qmp", vm.qmp, "--key", key, "--listen", uri)
    until(lambda: listens(port) or receive.poll() is not None, "receive")
    send = scene.start("send", "--json", *OPTIONS, "--qmp", source.qmp, "--key", key, uri)
    received, refused = receive.communicate(timeout=LIMIT)
    sent, errors = send.communicate(timeout=LIMIT)
    equal((receive.returncode, send.returncode), (0, 0)), (received, refused, sent, errors)
    summary = json.loads(sent.splitlines()[-1])["summary"]
    assert summary["complete"], summary
    return vm, summary


@test
def a_guest_with_a_remote_gpu_moves(scene):
    key = scene.path("key")
    with open(key, "w", encoding="ascii") as file:
        os.chmod(key, 0o600)
        file.write("5a" * 32)
    scene.memory = f"/dev/shm/ibx-gpu-moves-{os.getpid()}"
    os.mkdir(scene.memory, 0o700)
    os.environ["IBX_STATE_DIR"] = scene.path("state")
    try:
        moves(scene, key)
    finally:
        shutil.rmtree(scene.memory)


def moves(scene, key):
    back_end = subprocess.Popen(  # pylint: disable=consider-using-with
        [ARGUMENTS[APPLICATION], ARGUMENTS[PLUGIN], "serve", HOST, key], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, start_new_session=True)
    scene.started.append(back_end)
    scene.port = int(re.fullmatch(r"port (\d+)\n", back_end.stdout.readline()).group(1))
    scene.initramfs = make_initramfs(scene, key)
    vm = Vm(scene, 0, "tap0", False)
    until(lambda: vm.right() >= 500, "the guest's first calls")
    waits, stops, downtimes, total = [], [], [], 0
    for number in range(1, MOVES + 1):
        total += ask(back_end)[0]
        before, began, old = vm.right(), time.monotonic(), vm.beats
        new, summary = move(scene, key, vm, number)
        until(lambda: new.right() > before, "calls after a migration")  # pylint: disable=all
        done = time.monotonic()
        requests, wait = ask(back_end)
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
        own_network()
    except Skip as why:
        print(f"skip a guest with a remote gpu moves: {why}")
        sys.exit(0)
    sys.exit(run_all(ARGUMENTS[SOURCE], []))
