#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What test_gpu_moves.py and test_gpu_paths.py share: Linux guests on a bridge of this host, all of
whose files are in an initramfs, and migrations of one of them."""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))

# pylint: disable=wrong-import-position
from harness import LIMIT, Skip, equal, free_port, until  # noqa: E402

MODULES = ("virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover "
           "net_failover virtio_net").split()
RDMA_MODULES = ("crc32_generic udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe configfs ib_cm "
                "iw_cm rdma_cm rdma_ucm").split()
RDMA_FILES = ("/etc/libibverbs.d/rxe.driver",
              "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so")
NAMES = {"etc/hosts": "127.0.0.1 localhost\n10.78.0.1 gpu\n10.79.0.1 gpu\n",
         "etc/host.conf": "multi on\n", "etc/nsswitch.conf": "hosts: files\n"}
IB_MIGRATE, PLUGIN, APPLICATION, CACHE = range(4)


def own_network(*addresses):
    """This process is in a network of its own: a bridge with these addresses of the host, and three
    taps that QEMUs use, as VMs' network on their hosts would be."""
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
    lines = ["link set lo up", "link add bridge0 type bridge", "link set bridge0 up"]
    lines += [f"addr add {address}/24 dev bridge0" for address in addresses]
    for n in range(3):
        lines += [f"tuntap add tap{n} mode tap", f"link set tap{n} master bridge0 up"]
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


def libraries(*programs):
    """What the dynamic linker loads for these, by its own word."""
    found = set()
    for program in programs:
        done = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        found.update(re.findall(r"(/\S+) \(0x", done.stdout))
    return sorted(found)


def put(tree, path):
    """A file of this host, at its place there."""
    os.makedirs(tree + os.path.dirname(path), exist_ok=True)
    shutil.copy(path, tree + path)


def make_initramfs(scene, key, rdma=False):
    tree, to = scene.path("tree"), scene.path("initramfs")
    plugin, application, cache = (scene.arguments[n] for n in (PLUGIN, APPLICATION, CACHE))
    for folder in ("bin", "dev", "etc", "proc", "sys", "lib", "modules", "tmp"):
        os.makedirs(os.path.join(tree, folder))
    shutil.copy(shutil.which("busybox"), tree + "/bin/busybox")
    shutil.copy(application, tree + "/bin/moving-application")
    shutil.copy(plugin, tree + "/lib/libgvirtus-communicators-rdma.so")
    shutil.copy(os.path.join(HERE, "gpu-init"), tree + "/init")
    shutil.copy(key, tree + "/key")
    for name, text in NAMES.items():
        with open(os.path.join(tree, name), "w", encoding="ascii") as file:
            file.write(text)
    modules = MODULES + (RDMA_MODULES if rdma else [])
    for module in modules:
        shutil.copy(f"{cache}/kernel/modules/{module}.ko", tree + "/modules/")
    with open(tree + "/modules/order", "w", encoding="ascii") as file:
        file.write("\n".join(modules) + "\n")
    programs = [application, plugin]
    if rdma:
        show = os.path.join(os.path.dirname(scene.arguments[IB_MIGRATE]), "ibx-gvirtus")
        shutil.copy(show, tree + "/bin/ibx-gvirtus")
        programs.append(show)
        programs += [shutil.which("rdma"), RDMA_FILES[1]]
        shutil.copy(shutil.which("rdma"), tree + "/bin/rdma")
        for path in RDMA_FILES:
            put(tree, path)
    for path in libraries(*programs):
        put(tree, path)
    # busybox's cpio keeps owner and mode of a file; the key must belong to root and be readable by
    # nobody else.
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
    """A QEMU with a guest of gpu-init, whose words it takes; `incoming` waits for the migration."""

    def __init__(self, scene, number, tap, words, incoming=False):
        self.folder = scene.path(f"vm{number}")
        os.mkdir(self.folder)
        self.qmp, self.own, self.beats_at, self.shell_at = (
            os.path.join(self.folder, name) for name in ("qmp", "own", "beats", "shell"))
        self.console = os.path.join(self.folder, "console")
        self.ram = os.path.join(scene.memory, f"vm{number}")
        self.shell = None
        cache = scene.arguments[CACHE]
        append = ("console=ttyS0 quiet panic=-1 oops=panic nokaslr mitigations=off nopti "
                  f"tsc=reliable no_timer_check {words}")
        mac = "52:54:00:78:00:01" if "role=serve" in words else "52:54:00:78:00:02"
        line = ("-name guest,debug-threads=on -M q35 -accel tcg,thread=multi -cpu max,-erms,-fsrm "
                "-smp 2 -m 192 -nodefaults -no-user-config -no-reboot -display none "
                "-machine memory-backend=mem0").split() + [
            "-object", f"memory-backend-file,id=mem0,size=192M,mem-path={self.ram},share=on",
            "-kernel", f"{cache}/kernel/vmlinux", "-initrd", scene.initramfs, "-append", append,
            "-serial", f"file:{self.console}",
            "-serial", f"unix:{self.beats_at},server=on,wait=off",
            "-serial", f"unix:{self.shell_at},server=on,wait=off",
            "-netdev", f"tap,id=net0,ifname={tap},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=net0,mac={mac},romfile=",
            "-qmp", f"unix:{self.qmp},server=on,wait=off",
            "-qmp", f"unix:{self.own},server=on,wait=off"]
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *line,
             *(("-incoming", "defer") if incoming else ())],
            stdin=subprocess.DEVNULL, start_new_session=True)
        scene.started.append(self.process)
        until(lambda: os.path.exists(self.own) or self.process.poll() is not None, "QEMU")
        equal(self.process.poll(), None)
        self.beats = until(self.listen, "QEMU's serial line") if "role=call" in words else None

    def listen(self):
        try:
            return Beats(self.beats_at)
        except OSError:
            return None

    def connect(self, path):
        """A serial line, as a file."""
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(LIMIT)
        line.connect(path)
        return line.makefile("rw", encoding="ascii", errors="replace")

    def run(self, command):
        """In the guest, by its shell."""
        self.shell = self.shell or self.connect(self.shell_at)
        self.shell.write(f"{command}; echo status $?\n")
        self.shell.flush()
        said = ""
        while not (line := self.shell.readline()).startswith("status "):
            said += line
        assert line.split()[1] == "0", (command, said)
        return said

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
        # The last line may be incomplete: the rest is on the other QEMU's console.
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


def ask(asking, answers):
    """Requests since the last question, and the longest time between two, in ms."""
    asking.write("\n")
    asking.flush()
    line = answers.readline()
    found = re.fullmatch(r"requests (\d+) longest (\d+) us\r?\n", line)
    assert found, line
    return int(found.group(1)), int(found.group(2)) / 1000


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def move(scene, key, source, number, options=()):
    """One migration: the new VM, and what `send` says of it."""
    vm = Vm(scene, number, f"tap{number % 2}", "role=call", True)
    port = free_port()
    uri = f"tcp://127.0.0.1:{port}"
    receive = scene.start("receive", "--json", "--qmp", vm.qmp, "--key", key, "--listen", uri)
    until(lambda: listens(port) or receive.poll() is not None, "receive")
    send = scene.start("send", "--json", *options, "--qmp", source.qmp, "--key", key, uri)
    received, refused = receive.communicate(timeout=LIMIT)
    sent, errors = send.communicate(timeout=LIMIT)
    equal((receive.returncode, send.returncode), (0, 0)), (received, refused, sent, errors)
    summary = json.loads(sent.splitlines()[-1])["summary"]
    assert summary["complete"], summary
    return vm, summary


def make_key(scene):
    key = scene.path("key")
    with open(key, "w", encoding="ascii") as file:
        os.chmod(key, 0o600)
        file.write("5a" * 32)
    return key


class Memory:
    """Where guests' memory is, and this process's state folder."""

    def __init__(self, scene, arguments):
        scene.arguments = arguments
        scene.memory = f"/dev/shm/ibx-gpu-moves-{os.getpid()}"
        os.environ["IBX_STATE_DIR"] = scene.path("state")
        self.folder = scene.memory

    def __enter__(self):
        os.mkdir(self.folder, 0o700)

    def __exit__(self, *_):
        shutil.rmtree(self.folder)
