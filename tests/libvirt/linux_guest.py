# SPDX-License-Identifier: LGPL-2.1-or-later
"""A domain with a Linux guest, which has a disk, a network card and counting.c: what it does on its
disk, in its memory and over its TCP connection is compared while it migrates."""
import json
import os
import shutil
import subprocess

from hosts import HERE, LIMIT, Domain, Skip, until

ROOT = os.path.join(HERE, "..", "..")
MODULES = "virtio_pci virtio_blk virtio_net"
PORT = 7777
ADDRESS = "10.77.0.100"
SERVER = "10.77.0.1"  # host a
MAC = "52:54:00:77:00:64"
BOOT = 300  # seconds, on a busy machine

BOOT_XML = """<kernel>{kernel}</kernel><initrd>{initrd}</initrd>
    <cmdline>console=ttyS0 panic=-1 quiet mitigations=off</cmdline>"""
NETWORK = f"""
    <interface type='bridge'>
      <mac address='{MAC}'/><source bridge='br0'/><model type='virtio'/><driver name='qemu'/>
    </interface>"""

INIT = f"""#!/bin/busybox sh
/bin/busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do /bin/busybox insmod "/modules/$module"; done </modules/order
/bin/busybox ip link set eth0 up
/bin/busybox ip addr add {ADDRESS}/24 dev eth0
exec /counting {SERVER} {PORT}
"""


def kernel():
    """The folder of a kernel with its modules; it is fetched once."""
    cache = os.environ.get("IBX_VM_CACHE", os.path.join(ROOT, "build", "vm-cache")) + "-virtio"
    environment = dict(os.environ, IBX_VM_CACHE=cache, IBX_VM_MODULES=MODULES)
    os.makedirs(cache, exist_ok=True)
    done = subprocess.run([os.path.join(ROOT, "tests", "vm", "prepare")], env=environment,
                          capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise Skip(f"no kernel for the guest: {done.stderr.strip()}")
    return os.path.join(cache, "kernel")


def initramfs(folder, path, name):
    """An archive at `path` with busybox, the modules that the devices need, and counting.c."""
    tree = os.path.join(path, "tree")
    for one in ("bin", "dev", "modules"):
        os.makedirs(os.path.join(tree, one))
    shutil.copy(shutil.which("busybox"), os.path.join(tree, "bin", "busybox"))
    subprocess.run([os.environ.get("CC", "cc").split()[-1], "-O2", "-static", "-pthread",
                    os.path.join(HERE, "counting.c"), "-o", os.path.join(tree, "counting")],
                   check=True)
    with open(os.path.join(folder, "modules", "order"), encoding="ascii") as file:
        order = [one for one in file.read().split()
                 if one.startswith(("virtio", "net_failover", "failover"))]
    for one in order:
        shutil.copy(os.path.join(folder, "modules", one), os.path.join(tree, "modules", one))
    with open(os.path.join(tree, "modules", "order"), "w", encoding="ascii") as file:
        file.write("".join(f"{one}\n" for one in order))
    with open(os.path.join(tree, "init"), "w", encoding="ascii") as file:
        file.write(INIT)
    os.chmod(os.path.join(tree, "init"), 0o755)
    with open(name, "wb") as file:
        subprocess.run("find . | busybox cpio -o -H newc 2>/dev/null", shell=True, cwd=tree,
                       stdout=file, check=True)
    shutil.rmtree(tree)


class LinuxDomain(Domain):
    """It runs on either host; counter.py is on host a."""
    mib = 192

    def __init__(self, hosts, name="linux"):
        self.counter_log = os.path.join(hosts.folder, "counter")
        self.folder = kernel()
        self.read_from, self.counter = 0, None
        super().__init__(hosts, name)

    def boot(self):
        """Linux."""
        initrd = os.path.join(self.hosts.folder, f"{self.name}.initramfs")
        vmlinux = os.path.join(self.hosts.folder, "vmlinux")
        shutil.copy(os.path.join(self.folder, "vmlinux"), vmlinux)
        initramfs(self.folder, self.hosts.folder, initrd)
        return BOOT_XML.format(kernel=vmlinux, initrd=initrd)

    def devices(self):
        """A network card, too."""
        return super().devices() + NETWORK

    def start(self, host):
        """Also starts the counter, and waits until the guest counts."""
        log = open(self.counter_log, "w", encoding="ascii")  # pylint: disable=consider-using-with
        self.counter = self.hosts.a.start("/usr/bin/env", "python3",
                                          os.path.join(HERE, "counter.py"), SERVER, str(PORT),
                                          stdout=log)
        until(lambda: "listening" in self.counted(), "counter.py")
        host.virsh_ok("define", self.xml)
        host.virsh_ok("start", self.name)
        until(lambda: '"at"' in self.counted(), "a guest that counts", BOOT)

    def counted(self):
        """All that the counter has printed, whole lines."""
        with open(self.counter_log, encoding="ascii") as file:
            text = file.read()
        return text[:text.rfind("\n") + 1]

    def news(self):
        """Of the counter since the last time."""
        text = self.counted()
        new, self.read_from = text[self.read_from:], len(text)
        return [json.loads(line) for line in new.splitlines()]

    def numbers(self):
        """The latest N, DISK, MEMORY and WRONG."""
        return [json.loads(line)["at"] for line in self.counted().splitlines()
                if '"at"' in line][-1]

    def beats_on(self, host):
        """The disk, the memory and the network go on."""
        before = self.numbers()
        def further():
            return all(now > then for now, then in zip(self.numbers()[:3], before[:3]))
        until(further, f"a guest that counts on {host.name}", LIMIT)

    def right(self):
        """Nothing was wrong anywhere so far."""
        consoles = b"".join(self.serial(host) for host in self.hosts.all)
        assert b"wrong" not in consoles, consoles[-2000:]
        assert '"wrong"' not in self.counted(), [one for one in self.counted().splitlines()
                                                 if "wrong" in one]
        assert self.numbers()[3] == 0, self.numbers()
