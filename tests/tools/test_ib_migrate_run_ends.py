#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_run_ends.py IB-MIGRATE: what is left at both ends when a process of `ib-migrate
run`, its ssh or its guest ends early, and how the VM goes on. In the place of ssh stands the same
as in test_ib_migrate_run.py."""
import glob
import json
import os
import re
import signal
import sys

from harness import LIMIT, alive, change_a_page, equal, process_state, run_all, until
from run_scene import (case, far_qemus, far_vm, leftovers, nothing_is_left, open_to_signals,
                       processes_with, run_line, start_vm)

import migrate_scene as tool
from migrate_scene import stops_at

HARDLY = "1K"  # so slow that the background brings only what it may ask for at once


@case
def a_killed_run_leaves_nothing_behind(scene):
    vm, before = start_vm(scene), leftovers(scene)
    for number in (signal.SIGINT, signal.SIGKILL):
        process = scene.start(*run_line(scene), env=stops_at("source:asking"))
        until(lambda: process_state(process.pid) == "T", "it to stop itself")
        equal(len(far_qemus(scene)), 1)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=LIMIT)
        until(lambda: not far_qemus(scene), "the far QEMU to end")
        until(lambda: leftovers(scene) == before, "its folders to be removed")
        vm.runs_on()


def stopped_as_it_starts(scene):
    """The receiver of a far end, stopped before it takes signals; 0: it takes them already."""
    (pid,) = until(lambda: processes_with(b"\0receive\0", f"{scene.memory}-run".encode()),
                   "a receiver")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: process_state(pid) == "T", "it to be stopped")
    if open_to_signals(pid):
        return pid
    os.kill(pid, signal.SIGCONT)
    return 0


def parent_and_switches(pid):
    """Of a process: its parent, and how often it has waited for something."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        text = file.read()
    return [int(re.search(rf"^{name}:\s*(\d+)", text, re.M).group(1))
            for name in ("PPid", "voluntary_ctxt_switches")]


@case
def a_run_killed_while_its_receiver_starts_leaves_nothing_behind(scene):
    vm, before, receiver = start_vm(scene), leftovers(scene), 0
    while not receiver:
        process = scene.start(*run_line(scene))
        receiver = stopped_as_it_starts(scene)
        far, _ = parent_and_switches(receiver) if receiver else (0, 0)
        waits = parent_and_switches(far)[1] if far else 0
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT)
        if receiver:
            try:
                until(lambda: parent_and_switches(far)[1] > waits, "the far end to learn it")
            finally:
                os.kill(receiver, signal.SIGCONT)
        nothing_is_left(scene, before)
        process.communicate(timeout=LIMIT)
    vm.runs_on()


@case
def a_signal_before_the_migration_leaves_no_key(scene):
    vm, before = start_vm(scene), leftovers(scene)
    with open(scene.ssh, encoding="ascii") as file:  # the far end starts while QEMU is stopped
        text = file.read().replace("#!/bin/sh\n", f"#!/bin/sh\nkill -STOP {vm.pid}\n", 1)
    with open(scene.ssh, "w", encoding="ascii") as file:
        file.write(text)
    process = scene.start(*run_line(scene))

    def waits():
        code, out, _ = scene.run("status", "--json", "--state-dir", scene.there.state)
        return code == 0 and "waiting" in out
    until(waits, "the far end to wait")
    process.send_signal(signal.SIGTERM)
    os.kill(vm.pid, signal.SIGCONT)
    process.communicate(timeout=LIMIT)
    assert process.returncode, "it was interrupted"
    nothing_is_left(scene, before)
    vm.runs_on()


@case
def a_key_stays_as_long_as_it_is_needed(scene):
    vm = start_vm(scene, "-no-shutdown")
    process = tool.start(scene, "run", *run_line(scene, "--json", "--max-bandwidth", HARDLY)[1:])
    tool.wait_for_phase("filling", process)
    far = far_vm(scene)
    (there,) = glob.glob(scene.memory + "-far/ibx-run-*/mem0")
    put_back = change_a_page(scene.memory + "/mem0", there)
    tool.succeeds(scene, "set --max-bandwidth 0 --state-dir", scene.there.state)
    code, summary, _ = tool.finish(process)
    equal((code, summary["record"]["state"]), (1, "broken"))
    (key,) = glob.glob(scene.here.state + "/run-*.key")  # rollback asks the far end with it
    put_back()
    os.kill(far.pid, signal.SIGKILL)
    until(lambda: not alive(far.pid), "the far QEMU to end")
    code, _, err = scene.run("rollback", "--yes", "--qmp", scene.here.path("tool"))
    equal(code, 0)
    assert "no server answers" in err, err
    vm.runs_on()
    code, _, err = scene.run("recover", "--qmp", scene.here.path("tool"))  # perhaps it is back
    assert code == 1 and "could not be told" in err and os.path.exists(key), err
    tool.succeeds(scene, "prune")
    assert not os.path.exists(key)


@case
def a_lost_ssh_does_not_harm_a_migration(scene):
    source = start_vm(scene)
    process = tool.start(scene, "run", *run_line(scene, "--json", "--max-bandwidth", HARDLY)[1:])
    tool.wait_for_phase("filling", process)
    with open(scene.path("ssh.pids"), encoding="ascii") as file:
        os.kill(int(file.read().split()[-1]), signal.SIGKILL)
    far = far_vm(scene)
    out = tool.succeeds(scene, "set --max-bandwidth 0 --state-dir", scene.there.state)
    equal(out, "")
    code, summary, _ = tool.finish(process)
    equal((code, summary["record"]["state"]), (0, "done"))
    far.runs_on()
    tool.expect(source, far)


@case
def a_guest_that_shuts_down_there_leaves_no_key(scene):
    start_vm(scene, "-append", "button=1")
    process = tool.start(scene, "run", *run_line(scene, "--json", "--max-bandwidth", HARDLY)[1:])
    tool.wait_for_phase("filling", process)
    far = far_vm(scene)
    keys = glob.glob(scene.memory + "-run/*/key")
    equal(len(keys), 1)
    far.ask("system_powerdown")
    code, summary, _ = tool.finish(process)
    equal((code, summary["record"]["state"]), (4, "ended"))
    until(lambda: not os.path.exists(keys[0]), "the key to be removed")
    equal(glob.glob(scene.here.state + "/run-*"), [])


@case
def an_unconfirmed_migration_that_prune_ends_leaves_no_key(scene):
    """Its record stays, since nothing else says where the memory of the VM is."""
    start_vm(scene)
    equal(scene.run(*run_line(scene))[0], 0)
    (path,) = glob.glob(scene.there.state + "/*.destination.json")
    with open(path, encoding="ascii") as file:
        record = json.load(file)
    with open(path, "w", encoding="ascii") as file:  # as if the confirmation had been lost
        json.dump(dict(record, state="complete"), file)
    with open(record["key-file"], "w", encoding="ascii"):
        pass
    out = tool.succeeds(scene, "prune --unfinished --state-dir", scene.there.state, "--qmp",
                        record["qmp"])
    assert out.startswith("kept: ") and "its QEMU lives" in out, out
    with open(path, encoding="ascii") as file:
        equal(json.load(file)["state"], "done")
    assert not os.path.exists(record["key-file"])


@case
def a_run_that_dies_after_the_commit_is_recovered_from(scene):
    source, before = start_vm(scene), leftovers(scene)
    process = tool.start(scene, "run", *run_line(scene, "--json", "--max-bandwidth", HARDLY)[1:])
    tool.wait_for_phase("filling", process)
    equal(open_to_signals(process.pid), [])
    process.send_signal(signal.SIGINT)
    tool.wait_for_message(process, "interrupt once more")
    process.kill()
    process.wait(LIMIT)  # its standard error stays open at the far end
    far = far_vm(scene)
    again = tool.start(scene, "recover --json --quit --remove --qmp", scene.here.path("tool"))
    tool.wait_for_phase("filling", again)
    tool.succeeds(scene, "set --max-bandwidth 0 --state-dir", scene.there.state)
    equal(tool.finish(again)[0], 0)
    far.runs_on()
    tool.expect(source, far)
    equal(os.listdir(scene.memory), [])
    os.kill(far.pid, signal.SIGKILL)
    until(lambda: not alive(far.pid), "the far QEMU to end")
    memory = [path for path in leftovers(scene) - before if "-far/" in path]
    equal(len(memory), 1)
    out = tool.succeeds(scene, "prune --state-dir", scene.there.state, "--remove")
    assert out.startswith("deleted: "), out
    equal(os.path.exists(memory[0]), False)


@case
def a_destination_that_comes_back_after_a_rollback_is_told(scene):
    """Its tool was away when the VM was taken back: recover at the source has the key, still."""
    source = start_vm(scene)
    process = tool.start(scene, "run", *run_line(scene, "--json", "--max-bandwidth", HARDLY)[1:])
    tool.wait_for_phase("filling", process)
    process.kill()
    process.wait(LIMIT)
    for pid in processes_with(b"receive", scene.memory.encode() + b"-run/"):
        os.kill(pid, signal.SIGKILL)
    (path,) = glob.glob(scene.there.state + "/*.destination.json")
    with open(path, encoding="ascii") as file:
        qmp = json.load(file)["qmp"]
    until(lambda: "no ib-migrate works on it" in
          scene.run("status", "--state-dir", scene.there.state)[1], "the far end to end")
    equal(scene.run("rollback", "--yes", "--qmp", scene.here.path("tool"))[0], 0)
    source.runs_on()
    (key,) = glob.glob(scene.here.state + "/run-*.key")
    again = tool.start(scene, "recover --json --state-dir", scene.there.state, "--qmp", qmp)
    tool.wait_for_message(again, "waiting at ")
    code, _, err = scene.run("recover", "--qmp", scene.here.path("tool"))
    assert code == 1 and "was taken back here, and its destination knows it" in err, err
    code, summary, _ = tool.finish(again)
    equal((code, summary["record"]["state"]), (1, "broken"))
    assert not os.path.exists(key)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
