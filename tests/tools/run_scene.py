# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests of ib-migrate run share: two hosts on one machine, ssh or a script in its place,
and VMs, whoever has started them."""
import glob
import os
import re
import shutil
import signal
import socket
import subprocess

from guest_vm import NEEDED, ask_qmp, count_beats, in_file
from harness import LIMIT, Skip, alive, equal, free_port, test, until

import migrate_scene as tool


class Host:
    """What is not shared with the other host: folders of sockets, memory and records."""

    def __init__(self, scene, name):
        self.folder = scene.path(name)
        os.mkdir(self.folder)
        self.state = os.path.join(self.folder, "state")

    def path(self, name):
        return os.path.join(self.folder, name)


class Running:
    """A QEMU, whoever started it."""

    def __init__(self, pid, host):
        self.pid, self.host = pid, host
        self.monitor, self.serial = host.path("qmp"), host.path("serial")

    def ask(self, *commands):
        """The answers to commands, each a name or (name, arguments); to one command, its answer."""
        answers = ask_qmp(self.monitor, *commands)
        return answers[0] if len(answers) == 1 else answers

    def beats(self):
        return count_beats(self.serial)

    def running(self):
        return self.ask("query-status")["running"]

    def runs_on(self):
        now = self.beats()
        until(lambda: self.beats() > now + 20, "heartbeats")
        equal(self.running(), True)

    def arguments(self):
        with open(f"/proc/{self.pid}/cmdline", "rb") as file:
            return file.read().decode().split("\0")[:-1]


def open_to_signals(pid):
    """Threads to which the kernel may give a SIGINT or a SIGTERM."""
    found = []
    for path in glob.glob(f"/proc/{pid}/task/*/status"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read()
        except OSError:  # that thread has ended
            continue
        blocked = int(re.search(r"^SigBlk:\s*(\w+)", text, re.M).group(1), 16)
        if not all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM)):
            found.append(path)
    return found


def listens(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def start_vm(scene, *extra, ram=None, name="guest-of-a-test", wait=True):
    if not NEEDED <= os.environ.keys() or os.geteuid():
        raise Skip("needs QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and root")
    here = scene.here
    os.makedirs(scene.memory, mode=0o700)
    ram = ram or in_file(f"{scene.memory}/mem0")
    process = subprocess.Popen(
        [os.environ["QEMU"], "-name", name, *"-M q35 -accel tcg,thread=multi "
         "-m 64,slots=4,maxmem=1G -nodefaults -display none -no-reboot "
         "-machine memory-backend=mem0".split(), "-kernel", os.environ["GUEST_ELF"],
         "-append", "", "-object", ram, "-serial", f"file:{here.path('serial')}", "-qmp",
         f"unix:{here.path('qmp')},server=on,wait=off", "-qmp",
         f"unix:{here.path('tool')},server=on,wait=off", *extra],
        stdin=subprocess.DEVNULL, start_new_session=True)
    scene.started.append(process)
    until(lambda: listens(here.path("qmp")) or process.poll() is not None, "QEMU's monitor")
    equal(process.poll(), None)
    vm = Running(process.pid, here)
    vm.process, vm.given = process, vm.arguments()
    if wait:
        until(lambda: vm.beats() > 20, "heartbeats")
    return vm


def in_cores(pid):
    """Which memory of the process a core dump has: core(5)."""
    with open(f"/proc/{pid}/coredump_filter", encoding="ascii") as file:
        return int(file.read(), 16)


def processes_with(*words):
    """Whose command lines have all of these."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                line = file.read()
        except OSError:
            continue
        if all(word in line for word in words):
            found.append(int(path.split("/")[2]))
    return found


def far_qemus(scene):
    """Processes of QEMU that run started: their arguments name this scene's folder."""
    found = processes_with(scene.there.folder.encode(), b"/ibx-run-", b"-incoming")
    return [pid for pid in found if alive(pid)]


def leftovers(scene):
    """Folders of run, in the place of this test."""
    return set(glob.glob(scene.memory + "-*/ibx-run-*"))


def stand_in(scene):
    """HOST COMMAND: in another folder, as another user's login shell would run it."""
    path = scene.path("ssh")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\necho $$ >> {scene.path('ssh.pids')}\n"
                   f"[ \"$1\" = 127.0.0.1 ] || exit 9\n"
                   f"cd {scene.there.folder} || exit 9\nexec sh -c \"$2\"\n")
    os.chmod(path, 0o755)
    return path


def real_ssh(scene):
    """A server of this test alone, with keys of its own, and a client for it."""
    server = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"])
    if not server or not shutil.which("ssh") or os.geteuid():
        raise Skip("needs sshd, ssh, and root")
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", scene.path(name)],
                       check=True)
    port, config = free_port(), scene.path("sshd_config")
    with open(config, "w", encoding="ascii") as file:
        file.write(f"Port {port}\nListenAddress 127.0.0.1\nHostKey {scene.path('host')}\n"
                   f"AuthorizedKeysFile {scene.path('client.pub')}\nPidFile none\nUsePAM no\n"
                   "StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n")
    scene.started.append(subprocess.Popen([server, "-D", "-f", config], stderr=subprocess.DEVNULL,
                                          stdin=subprocess.DEVNULL, start_new_session=True))
    path = scene.path("ssh")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\necho $$ >> {scene.path('ssh.pids')}\n"
                   f"exec ssh -q -p {port} -i {scene.path('client')} -o BatchMode=yes "
                   "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
                   "-o ConnectTimeout=5 \"$@\"\n")
    os.chmod(path, 0o755)
    until(lambda: not subprocess.run([path, "127.0.0.1", "true"], check=False,
                                     stdin=subprocess.DEVNULL).returncode, "sshd")
    os.unlink(scene.path("ssh.pids"))
    return path


def case(function):
    def run(scene):
        scene.here, scene.there = Host(scene, "here"), Host(scene, "there")
        scene.memory = f"/dev/shm/ibx-test-{os.getpid()}"
        scene.ssh = real_ssh(scene) if "IBX_TEST_SSHD" in os.environ else stand_in(scene)
        for place in ("-far", "-run"):
            os.makedirs(scene.memory + place, mode=0o700)
        os.environ["IBX_STATE_DIR"] = scene.here.state
        try:
            function(scene)
        finally:
            for pid in far_qemus(scene):
                os.kill(pid, signal.SIGKILL)
            for process in scene.started:
                process.kill()
                process.wait(LIMIT)
            for place in ("", "-far", "-run"):
                shutil.rmtree(scene.memory + place, ignore_errors=True)
            for host in (scene.here, scene.there):
                tool.remove_notes(host.state)
            assert not glob.glob(scene.path("**/PWNED"), recursive=True)
    run.__name__ = function.__name__
    return test(run)


def places(scene):
    return "--memory-dir", scene.memory + "-far", "--run-dir", scene.memory + "-run"


def run_line(scene, *more):
    return ("run", "--to", "127.0.0.1", "--ssh", scene.ssh, "--far-program", scene.program,
            "--far-state-dir", scene.there.state, "--map",
            f"{scene.here.folder}={scene.there.folder}", "--listen", "tcp://127.0.0.1:0",
            *places(scene), "--qmp", scene.here.path("tool"), *more)


def far_vm(scene):
    (pid,) = far_qemus(scene)
    return Running(pid, scene.there)


def nothing_is_left(scene, before):
    until(lambda: not far_qemus(scene), "the far QEMU to end")
    until(lambda: leftovers(scene) == before, "its folders to be removed")
    equal(glob.glob(scene.here.state + "/run-*"), [])


def fails(scene, vm, words, *more):
    """The VM goes on here, one sentence says why, and nothing is left behind."""
    before = leftovers(scene)
    code, out, err = scene.run(*run_line(scene, *more))
    equal((code, out), (1, ""))
    for word in words:
        assert word in err, (word, err)
    nothing_is_left(scene, before)
    vm.runs_on()
    return err
