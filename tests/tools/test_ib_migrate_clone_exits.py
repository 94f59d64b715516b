#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_clone_exits.py IB-MIGRATE: what a clone that is ended leaves, and which of its
processes end with it."""
import glob
import json
import os
import select
import signal
import socket
import subprocess
import sys

from guest_vm import ask_qmp
from harness import LIMIT, Skip, alive, equal, free_port, process_state, run_all, until

import migrate_scene as tool
from migrate_scene import Vm, case, qemu_with, stops_at


@case
def a_clone_that_is_ended_while_qemu_starts_leaves_no_qemu(scene):
    """This one never makes a monitor. Signals that are ignored stay so."""
    started = scene.path("started")
    qemu = ("sh", "-c", f"echo $$ > {started}.new && mv {started}.new {started}; exec sleep 1000")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with subprocess.Popen([scene.program, "clone", "--qmp", scene.path("child"),
                               scene.path("no"), "--", *qemu], stderr=subprocess.DEVNULL,
                              preexec_fn=lambda: signal.signal(signal.SIGQUIT, signal.SIG_IGN),
                              ) as clone:
            until(lambda: os.path.exists(started), "QEMU's start")
            with open(started, encoding="ascii") as file:
                child = os.pidfd_open(int(file.read()))
            clone.send_signal(signal.SIGQUIT)
            clone.send_signal(number)
            equal(clone.wait(LIMIT), -number)
        equal(len(select.select([child], [], [], LIMIT)[0]), 1)
        os.close(child)
        os.remove(started)


@case
def a_clone_that_is_ended_before_it_has_a_vm_leaves_no_qemu(scene):
    """Its memory is the snapshot's already. Once it has the VM, it stays."""
    parent, folder = Vm(scene), scene.path("folder")
    tool.succeeds(scene, "freeze", *parent.qmp, folder)
    own, monitor = scene.path("own"), scene.path("child")
    for number, state in ((signal.SIGTERM, "clone:mapped"), (signal.SIGINT, "clone:mapped"),
                          (signal.SIGHUP, "clone:loaded")):
        clone = scene.start("clone", "--qmp", monitor, folder, "--", *qemu_with(own),
                            env=stops_at(state),
                            stderr=subprocess.DEVNULL)  # which its QEMU has, too
        until(lambda at=clone: process_state(at.pid) == "T", "it to come to its state")
        clone.send_signal(number)
        clone.send_signal(signal.SIGCONT)
        equal(clone.wait(LIMIT), -number)
        if state == "clone:mapped":
            assert not os.path.exists(monitor)
            with socket.socket(socket.AF_UNIX) as probe:
                until(lambda at=probe: at.connect_ex(own) != 0, "its QEMU to end")
        else:
            equal(ask_qmp(own, "query-status")[0]["running"], True)
            ask_qmp(own, "quit")


@case
def what_others_put_in_the_place_of_this_hosts_caches_is_not_used(scene):
    """/dev/shm is everybody's."""
    parent, folder = Vm(scene), scene.path("folder")
    tool.succeeds(scene, "freeze", *parent.qmp, folder)
    server = scene.start("serve", "--json", "--set=insecure=yes", "--listen=tcp://127.0.0.1:0",
                         folder)
    uri = json.loads(server.stdout.readline())["serving"]["uri"]
    for made in ("ln -s /tmp", "touch", "mkdir -m 0755"):
        said = subprocess.run(
            ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /dev/shm || exit 77; "
             f'{made} "/dev/shm/ibx-snapshots-$(id -u)"; exec "$@"', "sh", scene.program, "clone",
             "--set=insecure=yes", "--qmp", scene.path("child"), uri],
            capture_output=True, text=True, check=False)
        if said.returncode == 77 or said.stderr.startswith("unshare:"):
            raise Skip("needs a mount namespace")
        equal(said.returncode, 1)
        assert f"/dev/shm/ibx-snapshots-{os.geteuid()} is " in said.stderr, said.stderr
        assert "remove it, or serve --cache into a folder of your own" in said.stderr, said.stderr


@case
def a_clone_that_is_ended_leaves_the_monitor_of_another_qemu(scene):
    """... which has made it meanwhile, and does not answer yet, or not at all."""
    parent, folder, path = Vm(scene), scene.path("folder"), scene.path("child")
    tool.succeeds(scene, "freeze", *parent.qmp, folder)
    for by_signal in (True, False):
        clone = scene.start("clone", "--qmp", path, folder, "--", "sh", "-c",
                            f"echo > {scene.path('started')}; exec sleep 1000")
        until(lambda: os.path.exists(scene.path("started")), "its start")
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.bind(path)
            monitor.listen()
            monitor.settimeout(LIMIT)
            with monitor.accept()[0] as client:
                client.settimeout(LIMIT)
                client.sendall(b'{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, '
                               b'"major": 7}, "package": ""}, "capabilities": ["oob"]}}\n')
                asked = json.loads(client.recv(4096))
                equal(asked["execute"], "qmp_capabilities")
                client.sendall(json.dumps({"return": {}, "id": asked["id"]}).encode() + b"\n")
                equal(client.recv(1), b"")
            with monitor.accept()[0]:
                if by_signal:
                    clone.send_signal(signal.SIGTERM)
                    equal(clone.wait(LIMIT), -signal.SIGTERM)
            equal(clone.wait(LIMIT), -signal.SIGTERM if by_signal else 1)
            assert os.path.exists(path)
        os.remove(path)
        os.remove(scene.path("started"))


@case
def a_clone_that_is_ended_early_leaves_the_monitor_of_another_qemu(scene):
    """... which has made it, and has just begun to listen; but not one of its own QEMU."""
    parent, folder, path = Vm(scene), scene.path("folder"), scene.path("child")
    tool.succeeds(scene, "freeze", *parent.qmp, folder)
    for listens in (True, False):
        started = scene.path("started")
        clone = scene.start("clone", "--qmp", path, folder, "--", "sh", "-c",
                            f"echo > {started}; exec sleep 1000")
        until(lambda at=started: os.path.exists(at), "its start")
        os.remove(started)
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.bind(path)
            clone.send_signal(signal.SIGSTOP)
            clone.send_signal(signal.SIGTERM)
            if listens:
                monitor.listen()
                monitor.settimeout(LIMIT)
            clone.send_signal(signal.SIGCONT)
            if listens:
                monitor.accept()[0].close()
            equal(clone.wait(LIMIT), -signal.SIGTERM)
            equal(os.path.exists(path), listens)
        if listens:
            os.remove(path)


def process_with(name, folder):
    """The process of that name that has the folder open, and its parent; None: there is none."""
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                stat = file.read()
            if f"({name})" not in stat:
                continue
            opened = [os.readlink(fd) for fd in glob.glob(f"/proc/{entry}/fd/*")]
        except OSError:
            continue  # it has ended, or is no process
        if folder in opened:
            return int(entry), int(stat.rpartition(")")[2].split()[1])
    return None


@case
def the_end_of_a_cache_that_a_clone_began_late_ends_no_child(scene):
    """The processes that filled it first were killed while the clone worked."""
    parent, folder = Vm(scene), scene.path("folder")
    tool.succeeds(scene, "freeze", *parent.qmp, folder)
    with open(folder + "/manifest.json", encoding="utf-8") as file:
        cache = f"/dev/shm/ibx-snapshots-{os.geteuid()}/{json.load(file)['id']}"
    uri = f"tcp://127.0.0.1:{free_port()}"
    scene.start("serve", folder, "--listen", uri, "--json").stdout.readline()
    own = scene.path("own")
    clone = scene.start("clone", "--on-demand", "--qmp", scene.path("child"), uri, "--",
                        *qemu_with(own), env=stops_at("clone:mapped"), stderr=subprocess.DEVNULL)
    until(lambda: process_state(clone.pid) == "T", "it to come to its state")
    first = process_with("ibx-cache", cache)
    for pid in reversed(first):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in first), "both to end")
    clone.send_signal(signal.SIGCONT)
    equal(clone.wait(LIMIT), 0)
    equal(ask_qmp(own, "query-status")[0]["running"], True)
    filler, supervisor = process_with("ibx-cache", cache)
    try:
        assert filler not in first and supervisor not in first
        os.kill(supervisor, signal.SIGTERM)
        until(lambda: not alive(supervisor), "it to end")
        equal(ask_qmp(own, "query-status")[0]["running"], True)
        ask_qmp(own, "quit")
    finally:
        os.kill(filler, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
