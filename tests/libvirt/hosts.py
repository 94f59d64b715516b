# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two hosts with a libvirtd each, on this one: what differs between hosts is in namespaces of their
own (mount, network, UTS, IPC, PID). A link joins them, and one folder is visible on both, as shared
storage would be. Guests run under TCG, or as IBX_TEST_ACCEL and IBX_TEST_BIOS (vm.h) say."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tools"))

# pylint: disable=wrong-import-position
from guest_vm import judge  # noqa: E402
from harness import (LIMIT, Skip, children, patient, process_state,  # noqa: E402,F401
                     run_tests, test, until, within)

QEMU = os.environ.get("QEMU", "/usr/bin/qemu-system-x86_64")
NAMESPACES = "--mount --net --uts --ipc --pid".split()


def needed():
    """Raises Skip where there can be no such hosts."""
    if os.geteuid():
        raise Skip("needs root")
    for program in ("libvirtd", "virsh", "qemu-system-x86_64", "unshare", "nsenter", "ip"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            raise Skip(f"needs {program}")
    for name in ("GUEST_ELF", "GUEST_EXPECT", "IB_MIGRATE"):
        if name not in os.environ:
            raise Skip(f"needs {name} in the environment")


def needs_seabios(what):
    """Raises Skip where the firmware lacks something that SeaBIOS has."""
    if BIOS != SEABIOS:
        raise Skip(f"{BIOS} has no {what}")


class Ran:
    """A command that has ended."""

    def __init__(self, line, done):
        self.line, self.code, self.out, self.err = line, done.returncode, done.stdout, done.stderr

    def __repr__(self):
        return f"{' '.join(self.line)}: {self.code}\n{self.out}{self.err}"


class Host:
    """One of them. Everything on it ends with its first process."""

    def __init__(self, scene, name, address):
        self.scene, self.name, self.address = scene, name, address
        self.started, self.own = [], os.path.join(scene.folder, name)
        os.mkdir(self.own)
        self.log = open(os.path.join(self.own, "log"), "ab")  # pylint: disable=consider-using-with
        self.first = subprocess.Popen(  # pylint: disable=consider-using-with
            ["setpriv", "--pdeathsig", "KILL",  # also when this program is killed
             "unshare", *NAMESPACES, "--fork", "--mount-proc", "--kill-child",
             os.path.join(HERE, "host"), name, address, scene.folder, *scene.lines],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        self.pid = until(self.find_pid, "the first process of a host")
        until(lambda: self.has_made("etc", "qemu.conf"), "a host's folders")

    def check_first(self):
        """Its script has not failed, with what it has said if it has."""
        if self.first.poll() is not None:
            with open(os.path.join(self.own, "log"), encoding="utf-8", errors="replace") as log:
                raise AssertionError(f"the first process of host {self.name} has ended: "
                                     f"{self.first.returncode}\n{log.read()[-3000:]}")

    def has_made(self, *path):
        """Its first process has made this file of its own folder."""
        made = os.path.exists(os.path.join(self.own, *path))
        if not made:
            self.check_first()
        return made

    def find_pid(self):
        """Of the first process in the namespaces: the child of unshare."""
        self.check_first()
        found = children(self.first.pid)
        return found[0] if found else None

    def link_up(self):
        """The link is there."""
        with open(os.path.join(self.own, "linked"), "w", encoding="ascii"):
            pass
        until(lambda: self.has_made("ready"), "a host's network")

    def end(self):
        """Kills all that runs on it."""
        for process in self.started:  # nsenter may be stopped
            process.kill()
            process.wait(LIMIT)
        self.first.send_signal(signal.SIGKILL)
        self.first.wait(LIMIT)
        until(lambda: not os.path.exists(f"/proc/{self.pid}/root/proc"), "the end of a host")
        self.log.close()

    def line(self, *command):
        """What runs this command there."""
        return ["nsenter", "-t", str(self.pid), "-m", "-n", "-u", "-i", "-p", "--", *command]

    def start(self, *command, **options):
        """A process on this host; it ends with the host at the latest."""
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.STDOUT)
        process = subprocess.Popen(  # pylint: disable=consider-using-with
            self.line(*command), stdin=subprocess.DEVNULL, text=True, start_new_session=True,
            **options)
        self.started.append(process)
        return process

    def run(self, *command, limit=LIMIT):
        """Runs a command there to its end."""
        done = subprocess.run(self.line(*command), stdin=subprocess.DEVNULL, text=True, check=False,
                              capture_output=True, timeout=limit)
        return Ran(command, done)

    def ok(self, *command, limit=LIMIT):
        """The same, which has to succeed: its output."""
        ran = self.run(*command, limit=limit)
        assert ran.code == 0, ran
        return ran.out

    # ---- libvirt

    def start_libvirtd(self):
        """Starts libvirtd and waits until it answers."""
        self.ok("sh", "-c", "libvirtd --daemon --listen --pid-file /run/libvirtd.pid >>"
                f"{self.own}/libvirtd.log 2>&1")
        until(lambda: self.virsh("list").code == 0, "libvirtd")

    def end_libvirtd(self, number=signal.SIGTERM, patience=LIMIT):
        """QEMUs go on. SIGKILL for one that has not ended by then."""
        pid = self.ok("cat", "/run/libvirtd.pid").strip()
        self.run("kill", f"-{int(number)}", pid)
        try:
            until(lambda: self.run("kill", "-0", pid).code, "the end of libvirtd", patience)
        except AssertionError:
            self.run("kill", "-9", pid)
            until(lambda: self.run("kill", "-0", pid).code, "the end of libvirtd")

    def hold_libvirtd(self):
        """It stands still."""
        self.ok("sh", "-c", "kill -STOP $(cat /run/libvirtd.pid)")

    def release_libvirtd(self):
        """It goes on."""
        self.run("sh", "-c", "kill -CONT $(cat /run/libvirtd.pid)")

    def virsh(self, *arguments, limit=LIMIT):
        """virsh with this host's libvirtd."""
        return self.run("virsh", "-q", "-c", "qemu:///system", *arguments, limit=limit)

    def virsh_ok(self, *arguments, limit=LIMIT):
        """The same, which has to succeed: its output."""
        return self.ok("virsh", "-q", "-c", "qemu:///system", *arguments, limit=limit).strip()

    @property
    def uri(self):
        """By which another host's virsh reaches this libvirtd."""
        return f"qemu+tcp://{self.address}/system"

    def state(self, domain):
        """What virsh domstate says, or "none"."""
        ran = self.virsh("domstate", domain)
        return ran.out.strip() if ran.code == 0 else "none"

    def inside(self, path):
        """A path of this host, for the test."""
        return f"/proc/{self.pid}/root{path}"

    def processes(self):
        """All on this host: process number, as the test sees it, and command line."""
        with os.scandir("/proc") as found:
            pids = [entry.name for entry in found if entry.name.isdigit()]
        for pid in pids:
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                    words = file.read().split("\0")
                if os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{self.pid}/ns/pid"):
                    yield int(pid), words
            except OSError:
                continue

    def qemu(self, domain):
        """QEMU's process number; 0: none."""
        name = f"guest={domain},debug-threads=on"
        return next((pid for pid, words in self.processes() if name in words), 0)

    def tools(self):
        """Of each ib-migrate."""
        return [pid for pid, words in self.processes() if words[0].endswith("ib-migrate")]

    def kill_tools(self):
        """Those that have not ended."""
        for pid in self.tools():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Hosts:
    """Two hosts, a and b, and the folder that both see. `lines` go into their qemu.conf."""

    def __init__(self, *lines):
        needed()
        self.lines = lines
        os.environ["PATH"] += ":/usr/sbin:/sbin"
        self.folder = tempfile.mkdtemp(prefix=f"ibx-libvirt-{os.getpid()}-")
        os.chmod(self.folder, 0o755)
        self.all = []
        try:
            self.build()
        except BaseException:
            self.end()
            raise

    def build(self):
        """Starts both."""
        self.a = Host(self, "a", "10.77.0.1")
        self.all.append(self.a)
        self.b = Host(self, "b", "10.77.0.2")
        self.all.append(self.b)
        subprocess.run(["ip", "link", "add", "eth0", "netns", str(self.a.pid), "type", "veth",
                        "peer", "name", "eth0", "netns", str(self.b.pid)], check=True)
        for host in self.all:
            host.link_up()
            host.start_libvirtd()

    def end(self):
        """Ends all."""
        for host in self.all:
            host.end()
        shutil.rmtree(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            for host in self.all:
                name = os.path.join(host.own, "libvirtd.log")
                with open(name, encoding="utf-8", errors="replace") as log:
                    print(f"---- libvirtd {host.name}\n{log.read()[-3000:]}")
        self.end()


DOMAIN = """<domain type='{kind}' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>{name}</name>
  <memory unit='MiB'>{mib}</memory>
  <memoryBacking>{memory}</memoryBacking>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>{rom}{boot}</os>
  <features><acpi/><apic/></features>
  <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>{qemu}</emulator>
    {devices}
    <serial type='file'><source path='/var/lib/libvirt/qemu/{name}.serial' append='on'/></serial>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-qmp'/>
    <qemu:arg value='unix:{monitor},server=on,wait=off'/>
    {arguments}
  </qemu:commandline>
</domain>
"""
DISK = """<disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none'/>
      <source file='{path}'><seclabel model='dac' relabel='no'/></source>
      <target dev='vda' bus='virtio'/>
    </disk>"""
MEMORY = "<source type='file'/><access mode='shared'/>"
# What the VMs run on, by the environment as in tests/fixtures/vm.h.
KIND = "kvm" if os.environ.get("IBX_TEST_ACCEL", "").startswith("kvm") else "qemu"
SEABIOS = "bios-256k.bin"  # QEMU's default
BIOS = os.environ.get("IBX_TEST_BIOS", SEABIOS)
ROM = "" if BIOS == SEABIOS else f"<loader type='rom'>/usr/share/qemu/{BIOS}</loader>"
MONITOR = "/run/ibx/{name}.qmp"
# The guest rests most of the time: all of its heartbeats are computed again, and it beats while
# tests look at tools.
CALM = "doze=15000000"
# It does not rest, and gets no interrupt. TCG delivers one under QEMU's big lock: if the guest's
# stack is a missing page, QEMU's main thread waits for it as well, and libvirt for QEMU.
RESTLESS = ""


class Domain:
    """A domain that can run on either host, with the guest of tests/migrations/guest."""
    mib = 64

    def __init__(self, hosts, name="web", memory=MEMORY, arguments=(), words=CALM):
        self.hosts, self.name, self.words, self.taken = hosts, name, words, {}
        self.monitor = MONITOR.format(name=name)
        self.disk = os.path.join(hosts.folder, f"{name}.raw")
        with open(self.disk, "wb") as file:
            file.truncate(16 << 20)
        shutil.chown(self.disk, "libvirt-qemu", "libvirt-qemu")
        self.xml = os.path.join(hosts.folder, f"{name}.xml")
        with open(self.xml, "w", encoding="utf-8") as file:
            own = "".join(f"<qemu:arg value='{one}'/>" for one in arguments)
            file.write(DOMAIN.format(name=name, mib=self.mib, memory=memory, boot=self.boot(),
                                     devices=self.devices(), monitor=self.monitor, arguments=own,
                                     qemu=QEMU, kind=KIND, rom=ROM))

    def boot(self):
        """What it boots, as libvirt writes it; it lies in the folder of both hosts."""
        kernel = os.path.join(self.hosts.folder, "guest.elf")
        shutil.copyfile(os.environ["GUEST_ELF"], kernel)
        return f"<kernel>{kernel}</kernel><cmdline>{self.words}</cmdline>"

    def devices(self):
        """Beside its serial port."""
        return DISK.format(path=self.disk)

    def serial(self, host):
        """What the guest has printed there."""
        try:
            with open(host.inside(f"/var/lib/libvirt/qemu/{self.name}.serial"), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def beats(self, host):
        """How many whole heartbeats."""
        return len(re.findall(rb"^beat .*\n", self.serial(host), re.M))

    def start(self, host):
        """Defines and starts it there, and waits until it beats."""
        host.virsh_ok("define", self.xml)
        host.virsh_ok("start", self.name)
        self.beats_on(host)

    def beats_on(self, host):
        """It beats there."""
        now = self.beats(host)
        until(lambda: self.beats(host) > now + 20, f"heartbeats on {host.name}")

    def take(self, host):
        """What the guest has printed there since the last time."""
        text = self.serial(host)
        new = text[self.taken.get(host.name, 0):]
        self.taken[host.name] = len(text)
        return new

    def expect(self, *hosts):
        """The guest's memory was right at every heartbeat, on these hosts one after the other."""
        return judge(b"".join(self.serial(host) for host in hosts))
