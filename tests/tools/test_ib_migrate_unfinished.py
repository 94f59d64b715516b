#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_unfinished.py IB-MIGRATE: migrations that have not come to their end, and what
recover, rollback and status make of them, with QEMU, GUEST_ELF and GUEST_EXPECT in the environment,
and as root."""
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

from guest_vm import ask_qmp
from harness import LIMIT, children, equal, free_port, process_state, run_all, until
from migrate_scene import (OLD_RECORD, Terminal, Vm, case, expect, fails, finish, interrupt_twice,
                           key_file, let_go, looks_like, receiver, rewrite_record, same_memory,
                           says, slow_migration, start, stops_at, succeeds, wait_for_message,
                           wait_for_phase, wait_for_status)

WATCHDOG = 65  # seconds that one is waited for


def left_behind(scene, *extra):
    """A VM whose tool and watchdog are killed at once, right after its migration was started.

    The destination's tool has ended: a rollback that asks it just then must be called again."""
    source, destination = Vm(scene, *extra), Vm(scene, *extra, incoming=True)
    waiting, uri = receiver(scene, destination)
    sender = start(scene, "send --json", *source.qmp, uri, env=stops_at("source:starting"))
    until(lambda: process_state(sender.pid) == "T", "it to stop itself")
    for pid in (*children(sender.pid), sender.pid):
        os.kill(pid, signal.SIGKILL)
    sender.wait(LIMIT)
    equal(finish(waiting)[0], 1)
    await_migration(source, "failed")
    return source, uri


def await_migration(vm, status):
    until(lambda: ask_qmp(vm.own, "query-migrate")[0].get("status") == status, f"it to be {status}")


def migrates(vm, uri):
    """Not while QEMU still cleans up behind a migration that has failed."""
    try:
        ask_qmp(vm.own, ("migrate", {"uri": uri}))
    except AssertionError as error:
        assert "duplicate yank instance" in str(error), error
        return False
    return True


@case
def a_vm_that_was_started_again_is_told_of_its_earlier_record(scene):
    """... whose QEMU has ended: nobody is told to leave that as it is."""
    uuid = ("-uuid", "7f3c4b52-5a0e-4c0b-9d11-1b7c6c2f0a01")
    source, uri = left_behind(scene, *uuid)
    source.process.kill()
    source.process.wait(LIMIT)
    os.unlink(source.ram)
    again = Vm(scene, *uuid)
    err = fails(scene, "send", *again.qmp, uri)
    said = (f"(process {source.process.pid}) has ended: do what "
            f"\"ib-migrate status --qmp {source.socket}")
    assert said in err, err
    out = succeeds(scene, "status", *source.qmp)
    assert "start it from its disk" in out, out
    succeeds(scene, "prune --unfinished", *source.qmp)
    succeeds(scene, "check", *again.qmp)
    assert "earlier" not in fails(scene, "send", *again.qmp, "tcp://127.0.0.1:1")


@case
def an_unfinished_migration_is_known_by_every_monitor(scene):
    """A migration that is made before it was ended would be cancelled by its rollback."""
    source, uri = left_behind(scene)
    says(fails(scene, "send", "--qmp", source.own, uri), "an earlier migration of this VM is not")
    equal(scene.run("rollback", "--yes", *source.qmp)[0], 0)
    source.runs_on()
    expect(source)


@case
def rollback_leaves_a_migration_of_another_program_alone(scene):
    """Which has begun it since: its VM may run at the other end."""
    source, _ = left_behind(scene)
    off = [{"capability": name, "state": False} for name in ("x-ignore-shared", "return-path")]
    path = scene.path("away")
    with socket.socket(socket.AF_UNIX) as away:  # which reads nothing
        away.bind(path)
        away.listen()
        ask_qmp(source.own, ("migrate-set-capabilities", {"capabilities": off}),
                ("migrate", {"uri": f"unix:{path}"}))
        await_migration(source, "active")
        err = fails(scene, "rollback", "--yes", *source.qmp)
        assert "another program" in err and "(active)" in err, err
        equal(ask_qmp(source.own, "query-migrate")[0]["status"], "active")
    await_migration(source, "failed")
    until(lambda: migrates(source, "exec:cat >/dev/null"), "the failed one to be cleaned up")
    await_migration(source, "completed")
    err = fails(scene, "rollback", "--yes", *source.qmp)
    assert "another program" in err and "cont" in err, err
    equal(ask_qmp(source.own, "query-status")[0]["status"], "postmigrate")
    ask_qmp(source.own, "cont")
    equal(scene.run("rollback", "--yes", *source.qmp)[0], 0)
    source.runs_on()
    expect(source)


@case
def a_copy_of_the_records_recovers_nothing_a_second_time(scene):
    """Two destinations would take each other's page faults, and two sources serve one VM."""
    source, destination, sender, waiting = slow_migration(scene)
    for process in (sender, waiting):
        process.kill()
        process.wait(LIMIT)
    shutil.copytree(scene.path("state"), scene.path("copy"),
                    ignore=shutil.ignore_patterns("*.sock"))
    again = [start(scene, "recover --json --max-bandwidth 100K", *destination.qmp),
             start(scene, "recover --json", *source.qmp)]
    wait_for_phase("filling", *again)
    listen = ("--listen", f"tcp://127.0.0.1:{free_port()}")
    for vm, more, words in (
            (destination, listen, f"another ib-migrate (process {again[0].pid}) continues "),
            (source, (), f"another ib-migrate works on the VM of this QEMU (process "
                         f"{source.process.pid})")):
        code, out, err = scene.run("recover", *vm.qmp, "--state-dir", scene.path("copy"), *more)
        equal((code, out), (3, ""))
        assert words in err, err
    let_go(scene, destination)
    for process in again:
        equal(finish(process)[0], 0)
    same_memory(source, destination)


@case
def recover_says_that_another_migration_is_under_way(scene):
    """With return-path it waits for its other end until it is cancelled."""
    source, _ = left_behind(scene)
    path = scene.path("away")
    with socket.socket(socket.AF_UNIX) as away:
        away.bind(path)
        away.listen()
        until(lambda: migrates(source, f"unix:{path}"), "the failed one to be cleaned up")
        taker = subprocess.Popen(["cat"], stdin=away.accept()[0], stdout=subprocess.DEVNULL)
        scene.started.append(taker)
        until(lambda: ask_qmp(source.own, "query-status")[0]["status"] == "finish-migrate",
              "the end of its stream")
        err = scene.run("recover", *source.qmp)[2]
        assert "in a migration of this VM that is not this one" in err, err
        ask_qmp(source.own, "migrate_cancel")
        await_migration(source, "cancelled")
    equal(scene.run("rollback", "--yes", *source.qmp)[0], 0)
    source.runs_on()
    expect(source)


@case
def killed_tools_are_recovered_from(scene):
    source, destination, sender, waiting = slow_migration(scene)
    waiting.kill()
    waiting.communicate()
    assert "no ib-migrate works on it" in succeeds(scene, "status", *destination.qmp)
    # A line of status is as long as its sentence.
    wait_for_status(sender, lambda status: "no server answers" in status["sentence"])
    out = succeeds(scene, "status", *source.qmp)
    end = 'start "ib-migrate recover" there, or correct the URI\n'
    assert end in out, out
    again = start(scene, "recover --json --max-bandwidth 100K", *destination.qmp)
    wait_for_phase("filling", again)
    wait_for_status(sender, lambda status: status["phase"] == "filling" and status["reconnects"])
    sender.kill()
    _, err = sender.communicate()
    # The loss of a page connection or of the link, whichever is noticed first; said once.
    lost = re.findall(r"(\S.* (?:has ended|is lost): .*); connecting again", err)
    assert lost and not any(line.startswith("ib-migrate: reconnecting") for line in lost), err
    err = fails(scene, "rollback --yes", *source.qmp)
    assert "the VM is there" in err and "not rolled back" in err, err
    says(fails(scene, "recover --listen tcp://127.0.0.1:0", *source.qmp), "source")
    sender = start(scene, "recover --json", *source.qmp)
    wait_for_phase("filling", sender)
    let_go(scene, destination)
    for process in (sender, again):
        code, summary, _ = finish(process)
        equal((code, summary["complete"], summary["record"]["state"]), (0, True, "done"))
    same_memory(source, destination)


@case
def what_a_watchdog_records_still_names_the_key(scene):
    """... by which recover tells the destination that the VM stays, and nobody else; and what else
    the tool has learnt, such as the destination's name."""
    key = ("--key-file", key_file(scene, "keys", f"alice:{'5c' * 32}\n"), "--set", "name=alice")
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, *key)
    sender = start(scene, "send --json", *source.qmp, uri, *key, env=stops_at("source:starting"))
    until(lambda: process_state(sender.pid) == "T", "it to stop itself")
    sender.kill()
    sender.communicate()
    equal(finish(waiting)[0], 1)
    (path,) = glob.glob(scene.path("state/*.source.json"))
    with open(path, encoding="ascii") as file:
        record = json.load(file)
    equal((record["state"], record["source-key"], record["peer"], record["settings"]),
          ("kept", "alice", socket.gethostname(), None))
    source.runs_on()


@case
def rollback_waits_for_who_has_the_monitor(scene):
    """It may be a send that is about to be refused. The VM must not stay stopped for that."""
    source, _ = left_behind(scene)
    holder = looks_like(scene, "send", source)
    code, _, err = scene.run("rollback", "--yes", *source.qmp)
    equal(code, 1)
    assert f"process {holder.pid} (ib-migrate send) has the QMP socket" in err, err


@case
def recover_by_an_early_record_waits_for_who_has_the_monitor(scene):
    """Such a record does not say where guest RAM is."""
    source, _ = left_behind(scene)
    rewrite_record(scene, "source", **{"state": "moved", "machine": "", "guest-ram": []})
    holder = looks_like(scene, "send", source)
    _, _, err = scene.run("recover", *source.qmp)
    assert f"process {holder.pid} (ib-migrate send) has the QMP socket" in err, err


@case
def a_torn_record_hides_no_other(scene):
    """... and lets nothing begin, since it may be that of any VM here."""
    source, destination, sender, waiting = slow_migration(scene)
    torn = scene.path("state/" + "ab" * 16 + ".source.json")
    with open(torn, "w", encoding="ascii") as file:
        file.write('{"version": 9, "sta')
    code, out, err = scene.run("status")
    equal((code, out.count(source.socket), out.count(destination.socket)), (1, 1, 1))
    says(err, torn)
    code, out, _ = scene.run("status", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    equal((code, ["record" in line for line in lines[:-1]]), (1, [True, True]))
    assert torn in lines[-1]["result"]["error"], lines
    code, out, err = scene.run("status", "--qmp", scene.path("nothing"))
    equal((code, out), (1, ""))
    for line in ("recover --qmp", "rollback --yes --qmp", "send tcp://127.0.0.1:1 --qmp"):
        says(fails(scene, line, scene.path("nothing")), torn)
    for one, vm in ((sender, source), (waiting, destination)):
        one.kill()
        one.communicate()
        assert "no ib-migrate works on it" in scene.run("status", *vm.qmp)[1]
    again = [start(scene, "recover --json", *vm.qmp) for vm in (destination, source)]
    for process in again:
        code, _, err = finish(process)
        equal((code, err.count(torn)), (0, 1))
    same_memory(source, destination)


def records(scene):
    """What a backup of them has."""
    found = {}
    for path in glob.glob(scene.path("state/*.json")):
        with open(path, encoding="ascii") as file:
            found[path] = file.read()
    return found


def restore(scene, backup):
    for path in records(scene):
        os.unlink(path)
    for path, text in backup.items():
        with open(path, "w", encoding="ascii", opener=lambda *how: os.open(*how, 0o600)) as file:
            file.write(text)


@case
def records_out_of_a_backup_let_no_vm_run_twice(scene):
    """The commit is undone in them, and nobody answers there any more."""
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "300K")
    sender = start(scene, "send --json", *source.qmp, uri, env=stops_at("source:exposing"))
    until(lambda: process_state(sender.pid) == "T", "the sender to stop itself")
    backups = [records(scene)]
    sender.send_signal(signal.SIGCONT)
    wait_for_phase("filling", sender, waiting)
    backups.append(records(scene))
    let_go(scene, destination)
    for process in (sender, waiting):
        equal(finish(process)[0], 0)
    for backup, state in zip(backups, ("here", "moved")):
        assert state in [json.loads(text)["state"] for text in backup.values()], backup
    for backup in backups:
        restore(scene, backup)
        assert "has completed a migration" in fails(scene, "rollback --yes", *source.qmp)
        assert scene.run("recover --give-up 1", *source.qmp)[0] != 0
        restore(scene, backup)
        assert scene.run("recover --listen tcp://127.0.0.1:0", *destination.qmp)[0] != 0
        equal((source.running(), destination.running()), (False, True))
    destination.runs_on()
    expect(source, destination)


@case
def two_signals_leave_an_unfinished_migration_with_status_3(scene):
    source, destination, sender, waiting = slow_migration(scene)
    for process in (sender, waiting):
        interrupt_twice(process)
    processes = [start(scene, "recover --quiet", *vm.qmp) for vm in (destination, source)]
    for process in processes:
        equal((*process.communicate(timeout=LIMIT), process.returncode), ("", "", 0))
    same_memory(source, destination)


@case
def rollback_says_what_is_known_and_asks(scene):
    source, destination, sender, waiting = slow_migration(scene)
    waiting.kill()  # before it could tell the source
    waiting.communicate()
    destination.end()
    out = succeeds(scene, "status", *destination.qmp)
    ended = r"does not run here: its QEMU \(process \d+\) has ended; "
    assert re.search(ended + '"ib-migrate rollback" at .*prune --unfinished', out), out
    # Where libvirt drives, it has ended the QEMU at the source, too.
    rewrite_record(scene, "destination", libvirt=True)
    out = succeeds(scene, "status", *destination.qmp)
    assert re.search(ended + "if virsh list .* from its disk", out) and "rollback" not in out, out
    line = json.loads(succeeds(scene, "status --json", *destination.qmp))
    assert "does not run here" in line["sentence"], line
    wait_for_phase("reconnecting", sender)
    says(fails(scene, "rollback --yes", *source.qmp), f"process {sender.pid} ", "two SIGTERM")
    interrupt_twice(sender)
    err = fails(scene, "rollback", *source.qmp)
    for words in ("does not answer", "Everything that the VM did", "runs twice", "needs --yes"):
        assert words in err, err
    assert "restarts the VM here from where it stopped;" in err, err
    # ... and nobody but libvirt restarts it here.
    rewrite_record(scene, "source", libvirt=True)
    err = fails(scene, "rollback", *source.qmp)
    assert "virsh resume lets it go on from" in err and "restarts the VM" not in err, err
    assert "continue it by virsh resume" in fails(scene, "rollback --yes", *source.qmp)
    rewrite_record(scene, "source", libvirt=False)
    rewrite_record(scene, "source", name="")
    asked = Terminal(scene, "rollback", *source.qmp)
    asked.wait_for(f"Type yes to roll back the VM at {source.socket}: ")
    asked.write(f"VM at {source.socket}\n")
    code, lines = asked.finish()
    equal((code, "ib-migrate: nothing was done" in lines), (1, True))
    rewrite_record(scene, "source", name="guest-of-a-test")
    for answer in ("no", "", "YES", "guest-of-a-test"):
        asked = Terminal(scene, "rollback", *source.qmp)
        asked.wait_for(r"Type the VM's name \(guest-of-a-test\) or yes to roll back: ")
        equal(source.running(), False)
        asked.write(answer + "\n")
        code, lines = asked.finish()
        if answer != "guest-of-a-test":
            equal((answer, code, "ib-migrate: nothing was done" in lines), (answer, 1, True))
    equal((code, "guest-of-a-test: rolled back, it runs here again" in lines), (0, True))
    equal(source.running(), True)
    assert "rolled-back" in succeeds(scene, "status", *source.qmp)
    says(fails(scene, "rollback --yes", *source.qmp), "no unfinished migration")


@case
def a_watchdog_that_works_for_long_is_named(scene):
    """... by both, and the record of the borrowing, on which nobody works, is not taken instead."""
    os.makedirs(scene.path("state"))
    for number, role, state in (("01", "destination", "running"), ("02", "source", "may-run")):
        path = scene.path(f"state/{number * 16}.{role}")
        with open(path + ".json", "w", encoding="ascii") as file:
            json.dump(dict(OLD_RECORD, id=number * 16, role=role, state=state, pid=os.getpid(),
                           written=OLD_RECORD["written"] + int(number)), file)
        os.chmod(path + ".json", 0o600)
    tool = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True,
                          stdout=subprocess.PIPE, text=True).stdout.strip()
    with open(path + ".lock", "w", encoding="ascii") as file:
        file.write(tool + "\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = [start(scene, line, "--qmp", OLD_RECORD["qmp"])
                   for line in ("recover", "rollback --yes")]
        for one, status in zip(waiting, (3, 1)):
            _, err = one.communicate(timeout=WATCHDOG + LIMIT)
            words = f"process {tool} worked on this migration and has ended, but its watchdog still"
            assert words in err and "try again" in err, err
            assert f"is waited for: for {WATCHDOG} s at most" in err, err
            equal(one.returncode, status)


@case
def a_rollback_after_a_watchdog_has_nothing_to_do(scene):
    """It waits for the watchdog, which has continued the VM then."""
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination)
    sender = start(scene, "send --json", *source.qmp, uri, env=stops_at("source:stopped"))
    until(lambda: process_state(sender.pid) == "T", "it to stop itself")
    (watchdog,) = children(sender.pid)
    os.kill(watchdog, signal.SIGSTOP)
    sender.kill()
    sender.wait(LIMIT)
    rollback = start(scene, "rollback --yes", *source.qmp)
    assert "is waited for: " in rollback.stderr.readline()
    os.kill(watchdog, signal.SIGCONT)
    _, err = rollback.communicate(timeout=LIMIT)
    assert "there is nothing to roll back any more: " in err and "stayed here" in err, err
    equal(rollback.returncode, 1)
    equal(finish(waiting)[0], 1)
    source.runs_on()
    expect(source)


@case
def a_vm_that_may_not_have_run_there_is_not_said_to_have_ended(scene):
    source, destination = Vm(scene, append="mib=4"), Vm(scene, append="mib=4", incoming=True)
    waiting, uri = receiver(scene, destination,
                            env=stops_at("destination:ready"))
    sender = start(scene, "send --json", *source.qmp, uri)
    until(lambda: process_state(waiting.pid) == "T", "the receiver to stop")
    waiting.kill()
    waiting.communicate()
    destination.end()
    equal(finish(sender)[0], 1)
    source.runs_on()
    there = "unless it runs at the source, as ib-migrate status there says"
    code, _, err = scene.run("recover", *destination.qmp)
    assert code == 1 and there in err and "the VM with it" not in err, err
    out = succeeds(scene, "status", *destination.qmp)
    assert "does not run here: its QEMU (process " in out and there in out, out


@case
def memory_that_is_cut_short_is_said_to_be(scene):
    """By a QEMU that its guest has taken over, whose file it is."""
    key = ("--key-file", key_file(scene, "keys", "5c" * 32), "--encryption", "required")
    source, destination = Vm(scene, append="mib=32"), Vm(scene, append="mib=32", incoming=True)
    until(lambda: source.beats() > 3, "heartbeats")
    _, uri = receiver(scene, destination, *key)
    sender = start(scene, "send --json", *source.qmp, uri, *key, env=stops_at("source:serving"))
    until(lambda: process_state(sender.pid) == "T", "it to stop itself")
    os.truncate(source.ram, 4096)
    sender.send_signal(signal.SIGCONT)
    _, err = sender.communicate(timeout=LIMIT)
    # It has looked at the size of the file, or another thread has read beyond its end before.
    if sender.returncode == -signal.SIGBUS:
        assert "was cut short, or this host's memory is broken: this tool ends" in err, err
        code, _, err = scene.run("recover", *source.qmp, *key)
        assert code and "was cut short to 4096 of " in err, (code, err)
    else:
        equal(sender.returncode, 1)
        assert "is broken: the file of guest RAM " in err, err
        assert "was cut short to 4096 of " in err, err


@case
def a_signal_that_says_that_memory_is_broken_ends_it_too(scene):
    """One that comes of no instruction, as where the kernel tells of broken memory early."""
    source, destination = Vm(scene), Vm(scene, incoming=True)
    _, uri = receiver(scene, destination)
    sender = start(scene, "send --json", *source.qmp, uri, env=stops_at("source:serving"))
    until(lambda: process_state(sender.pid) == "T", "it to stop itself")
    sender.send_signal(signal.SIGBUS)
    sender.send_signal(signal.SIGCONT)
    _, err = sender.communicate(timeout=LIMIT)
    equal(sender.returncode, -signal.SIGBUS)
    assert "this tool ends" in err, err


@case
def a_paused_vm_that_is_taken_back_is_not_said_to_run(scene):
    source, destination = Vm(scene, append="beats=40"), Vm(scene, incoming=True)
    until(lambda: source.beats() == 40, "the guest to halt")
    ask_qmp(source.own, "stop")
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    sender = start(scene, "send --json", *source.qmp, uri)
    wait_for_phase("filling", sender, waiting)
    waiting.send_signal(signal.SIGINT)
    wait_for_message(waiting, "the VM is here and needs pages that are still at the source; ")
    for process in (waiting, destination.process):
        process.kill()
    wait_for_phase("reconnecting", sender)
    interrupt_twice(sender)
    code, out, err = scene.run("rollback", "--yes", *source.qmp)
    equal((code, source.running()), (0, False))
    equal(out, "guest-of-a-test: rolled back, it is here again, paused as it was\n")
    out = succeeds(scene, "status", *source.qmp)
    assert "is here, paused as it was" in out and "runs" not in out, out
    source.end()
    out = succeeds(scene, "status", *source.qmp)
    assert "was rolled back; its QEMU (process " in out and "ran here" not in out, out


@case
def a_guest_that_has_panicked_is_not_said_to_run(scene):
    """Also where the migration is over a moment later."""
    panics, words = ("-device", "pvpanic", "-action", "panic=pause"), "mib=16 button=2"
    source, destination = (Vm(scene, *panics, append=words, incoming=there)
                           for there in (False, True))
    until(lambda: source.beats() > 20, "heartbeats")
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    sender = start(scene, "send --json", *source.qmp, uri)
    wait_for_phase("filling", sender, waiting)
    ask_qmp(destination.own, "system_powerdown")
    until(lambda: not destination.running(), "the panic")
    let_go(scene, destination)
    for process in (sender, waiting):
        code, summary, _ = finish(process)
        equal((code, summary["vm_status"]), (0, "guest-panicked"))


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
