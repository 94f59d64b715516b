#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_freeze_exits.py IB-MIGRATE: freezes that are interrupted, and whose output nobody
takes."""
import os
import signal
import subprocess
import sys

from guest_vm import ask_qmp
from harness import LIMIT, equal, process_state, run_all, until

import migrate_scene as tool
from migrate_scene import Vm, case, objects, qemu_with, says, stops_at

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def capabilities(vm):
    """Those of QEMU's migrations that are on."""
    return [one["capability"] for one in ask_qmp(vm.own, "query-migrate-capabilities")[0]
            if one["state"]]


def status_of(vm):
    return ask_qmp(vm.own, "query-status")[0]["status"]


def interrupted(scene, vm, state, number, *more):
    """A freeze that gets this signal in this state: exit status, standard output and error. `more`:
    its folder, if it has one of its own, and options."""
    if not more or more[0].startswith("--"):
        more = (scene.path("folder"), *more)
    freeze = scene.start("freeze", *vm.qmp, *more, env=stops_at(f"freeze:{state}"))
    until(lambda: process_state(freeze.pid) == "T" or freeze.poll() is not None, "its state")
    freeze.send_signal(number)
    freeze.send_signal(signal.SIGCONT)
    out, err = freeze.communicate(timeout=LIMIT)
    return freeze.returncode, out, err


@case
def a_freeze_that_is_interrupted_leaves_the_vm_running_and_no_snapshot(scene):
    """Whoever interrupts it wants no snapshot, and least of all a VM that stands still."""
    vm = Vm(scene)
    for number, state in zip(ENDS * 2, ("prepared", "starting", "begun", "reading", "stopped",
                                        "saved")):
        code, out, err = interrupted(scene, vm, state, number)
        equal((state, code, out), (state, 1, ""))
        says(err, "cancelled", "there is no snapshot", "the VM runs on")
        equal((os.path.exists(scene.path("folder")), capabilities(vm)), (False, []))
        vm.runs_on()
    code, out, err = interrupted(scene, vm, "copied", signal.SIGINT, "--json")
    (last,) = objects(out)
    equal((code, last["result"]["exit_status"]), (1, 1))
    assert err == f"ib-migrate: {last['result']['error']}\n" and "the VM runs on" in err, err
    code, out, err = interrupted(scene, vm, "continued", signal.SIGTERM, "--resume")
    equal((code, out), (1, ""))
    says(err, "cancelled", "the VM runs on")
    vm.runs_on()
    ask_qmp(vm.own, "stop")
    code, out, err = interrupted(scene, vm, "stopped", signal.SIGTERM)
    equal((code, out, os.path.exists(scene.path("folder"))), (1, "", False))
    says(err, "cancelled", "the VM is as it was")
    equal(vm.running(), False)
    ask_qmp(vm.own, "cont")
    vm.runs_on()
    tool.succeeds(scene, "freeze", *vm.qmp, scene.path("folder"))
    tool.expect(vm)


@case
def a_freeze_that_is_done_says_so_whatever_signal_comes(scene):
    """The VM stands still, and the operator has to know that."""
    for number in ENDS:
        vm = Vm(scene)
        code, out, err = interrupted(scene, vm, "sealed", number)
        equal((code, err, vm.running()), (0, "", False))
        assert "frozen" in out and "the VM stays stopped" in out, out
        os.rename(scene.path("folder"), scene.path(f"whole{number}"))


def manifest_of(folder):
    """Without it a folder is no snapshot."""
    return os.path.join(folder, "manifest.json")


def warns(text, *words):
    """One line of a watchdog, with these words."""
    says(text.replace("ibx: warn: ", "ib-migrate: "), *words)


def killed(scene, vm, state, number, *more):
    """A freeze that is killed in this state: what its watchdog says, which has ended."""
    code, out, err = interrupted(scene, vm, state, number, *more)
    equal((state, code, out), (state, -number, ""))
    return err


@case
def a_freeze_that_is_killed_leaves_a_vm_that_runs_or_a_snapshot(scene):
    """... and never both: children of the snapshot would be on a disk that the VM changes."""
    vm = Vm(scene)
    for number in (signal.SIGKILL, signal.SIGQUIT):
        for state in ("prepared", "starting", "begun", "reading", "stopped", "saved", "copied",
                      "continued"):
            folder = scene.path(f"{state}{number}")
            warns(killed(scene, vm, state, number, folder), "before the snapshot was whole",
                  "goes on here")
            equal((os.path.exists(manifest_of(folder)), capabilities(vm)), (False, []))
            vm.runs_on()
        for more in ((), ("--quit",), ("--resume",)):
            folder = scene.path(f"sealed{number}{''.join(more)}")
            err = killed(scene, vm, "sealed", number, folder, *more)
            assert os.path.exists(manifest_of(folder))
            if more == ("--resume",):  # which continues only VMs that change no disk
                equal(err, "")
                vm.runs_on()
                continue
            warns(err, "when the snapshot was whole", "stays stopped")
            equal((status_of(vm), capabilities(vm)), ("postmigrate", []))
            ask_qmp(vm.own, "cont")
            vm.runs_on()
    tool.expect(vm)


@case
def a_snapshot_that_is_whole_is_said_though_its_vm_has_gone_on_or_ended(scene):
    """As by a client of QEMU, after the tool was stopped and before it is killed."""
    for number, command in enumerate(("cont", "quit")):
        vm = Vm(scene)
        folder = scene.path(command)
        freeze = scene.start("freeze", *vm.qmp, folder, env=stops_at("freeze:sealed"))
        until(lambda at=freeze: process_state(at.pid) == "T", "its snapshot")
        ask_qmp(vm.own, command)
        if command == "quit":
            vm.process.wait(LIMIT)
        freeze.kill()
        _, err = freeze.communicate(timeout=LIMIT)
        warns(err, "when the snapshot was whole",
              ("another client of QEMU has continued it", "is only in the snapshot")[number])
        assert os.path.exists(manifest_of(folder))
        if command == "cont":
            vm.runs_on()
            tool.expect(vm)


@case
def a_snapshot_whose_name_the_disk_has_not_taken_is_none_before_the_vm_goes_on(scene):
    """Whether this freeze then fails by itself or is killed."""
    vm = Vm(scene)
    for number in (signal.SIGCONT, signal.SIGKILL):
        folder = scene.path(f"folder{number}")
        freeze = scene.start("freeze", *vm.qmp, folder,
                             env=dict(stops_at("freeze:sealed"),
                                      LD_PRELOAD=os.environ["IBX_NO_FOLDER_SYNC"]))
        until(lambda at=freeze: process_state(at.pid) == "T", "the manifest")
        equal((os.path.exists(manifest_of(folder)), vm.running()), (False, False))
        freeze.send_signal(number)
        _, err = freeze.communicate(timeout=LIMIT)
        if number == signal.SIGCONT:
            says(err, "manifest.json cannot be written: Input/output error")
        else:
            warns(err, "before the snapshot was whole", "goes on here")
        assert not os.path.exists(manifest_of(folder))
        vm.runs_on()
    tool.expect(vm)


@case
def a_freeze_of_a_monitor_that_says_nothing_can_be_interrupted(scene):
    """Nothing was changed until then."""
    vm = Vm(scene)
    os.kill(vm.process.pid, signal.SIGSTOP)
    for number in ENDS:
        freeze = scene.start("freeze", *vm.qmp, scene.path("folder"))
        until(lambda at=freeze: any("socket:" in os.readlink(f"/proc/{at.pid}/fd/{fd}")
                                    for fd in os.listdir(f"/proc/{at.pid}/fd")),
              "it to ask the monitor")
        freeze.send_signal(number)
        out, err = freeze.communicate(timeout=LIMIT)
        equal((freeze.returncode, out), (1, ""))
        says(err, "cancelled before anything was begun", "no snapshot")
    os.kill(vm.process.pid, signal.SIGCONT)
    vm.runs_on()


@case
def what_is_done_is_done_though_nobody_takes_what_is_printed(scene):
    """A script that sees a failure would freeze or clone anew. Standard error has what it is."""
    vm = Vm(scene)
    for more in ((), ("--json",)):
        folder = scene.path(f"folder{len(more)}")
        with open("/dev/full", "w", encoding="ascii") as full:
            code, _, err = scene.run("freeze", *vm.qmp, folder, *more, stdout=full)
        says(err, "standard output could not be written")
        equal((code, os.path.exists(os.path.join(folder, "manifest.json"))), (0, True))
        own, monitor = scene.path("own"), scene.path("child")
        with open("/dev/full", "w", encoding="ascii") as full, \
                open(scene.path("log"), "w+", encoding="utf-8") as log:
            code = subprocess.run([scene.program, "clone", "--qmp", monitor, folder, *more, "--",
                                   *qemu_with(own)],
                                  stdout=full, stderr=log, timeout=LIMIT, check=False).returncode
            log.seek(0)
            assert "standard output could not be written" in log.read()
        equal((code, ask_qmp(own, "query-status")[0]["running"]), (0, True))
        ask_qmp(own, "quit")
        until(lambda at=monitor: not os.path.exists(at), "QEMU's end")
        ask_qmp(vm.own, "cont")


@case
def a_limit_on_the_size_of_files_is_named(scene):
    """Another folder would not help."""
    vm = Vm(scene)
    done = subprocess.run(["sh", "-c", "ulimit -f 1000; exec $0 $@", scene.program, "freeze",
                           *vm.qmp, scene.path("folder")],
                          capture_output=True, text=True, timeout=LIMIT, check=False)
    equal((done.returncode, done.stdout), (1, ""))
    says(done.stderr, "67108864 bytes", "File too large", "ulimit -f")
    assert not os.path.exists(scene.path("folder"))
    vm.runs_on()


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
