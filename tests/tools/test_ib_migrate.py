#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate.py IB-MIGRATE: the tool as its users see it until a VM is migrated: values,
messages, JSON, exit status. With QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and as root,
it looks at VMs, too."""
import fcntl
import itertools
import json
import mmap
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys

from harness import LIMIT, Skip, equal, free_port, patient, run_all, until
from migrate_scene import (Vm, case, fails, finish, key_file, objects, receiver, says, start,
                           succeeds)

SMALL_STACK = 64 << 10


# ------------------------------------------------------------------------- arguments


@case
def bad_values_exit_1_with_one_sentence(scene):
    for command, option, values in (
            ("send", "--links", ("0", "17", "two")), ("send", "--give-up", ("-1", "soon", "0")),
            ("send", "--qmp", ("", "x" * 200)), ("set", "--max-bandwidth", ("fast", "")),
            ("receive", "--max-bandwidth", ("-1",)),
            ("receive", "--set", ("chunk", "chunk=7", "nonsense=1"))):
        for value in values:
            says(fails(scene, command, option, value), option)
    for option, value, words in (
            ("--encryption", "maybe", '"maybe" is not accepted: give required, auto or off\n'),
            ("--key-file", "x" * 300, '"xxx'), ("--key-file", "", '"" is empty'),
            ("--allow", "", '"" is empty'), ("--set", "key_file=", 'key_file: "" is empty'),
            ("--set", "allow=", 'allow: "" is empty')):
        err = fails(scene, "receive", option, value)
        assert err.startswith(f"ib-migrate: {option}: {words}"), err
    says(fails(scene, "serve --multicast --multicast-interface eth77 --cache tcp://a:1 F"),
         'no interface "eth77"')
    says(fails(scene, "serve --listen tcp://127.0.0.1:0", scene.path("F")), "there is no folder")
    with open(scene.path("memory"), "wb") as file:
        file.truncate(1 << 20)
    os.chmod(scene.path("memory"), 0o600)
    says(fails(scene, "serve --listen verbs://127.0.0.1:0?device=no_such", scene.path("memory")),
         "nobody could be served at verbs://127.0.0.1:0")
    os.mkdir(scene.path("D"), 0o700)
    says(fails(scene, "serve --no-verify --listen tcp://127.0.0.1:0", scene.path("D")),
         "--no-verify is for a memory file")
    for uri, what in (("localhost:18600", "localhost:18600"), ("http://host:80", "http"),
                      ("tcp://host:1?chunk=7", "chunk")):
        says(fails(scene, "send", "--qmp", scene.path("none"), uri), what)


@case
def what_it_makes_is_its_users_whatever_the_umask(scene):
    os.umask(0o777)
    try:
        fails(scene, "send --state-dir", scene.path("made"), "--qmp", "none", "tcp://127.0.0.1:1")
    finally:
        os.umask(0o022)
    equal(oct(os.stat(scene.path("made")).st_mode), "0o40700")


@case
def a_state_folder_that_cannot_be_used_is_one_sentence(scene):
    with open(scene.path("file"), "w", encoding="ascii"):
        pass
    for path in (scene.path("file"), scene.path("x" * 150)):
        says(fails(scene, "status", "--state-dir", path))


@case
def without_records_there_is_nothing_to_do(scene):
    assert not os.path.exists(scene.path("state"))
    none = (f"no migration is recorded in {scene.path('state')}: there is no such folder; see "
            "--state-dir\n")
    for line in ("status", "prune"):
        equal(succeeds(scene, line), none)
    # A program, or a metric, must not take a wrong folder for a host without migrations.
    for line in ("status --json", "status --prometheus"):
        code, out, err = scene.run(*line.split())
        equal((line, code, err), (line, 0, f"ib-migrate: {none}"))
        assert line.endswith("prometheus") or not out, out
    for line in ("cancel", "cancel --qmp Q", "set --max-bandwidth 1G", "recover --qmp Q",
                 "rollback --yes --qmp Q"):
        says(fails(scene, line), "ib-migrate status")
    # Whoever looks makes no folder, not even one that nobody could make.
    for folder in (scene.path("other"), "/proc/1/none"):
        for line in ("status", "prune"):
            assert folder in succeeds(scene, line, "--state-dir", folder)
        assert folder in scene.run("status", "--prometheus", "--state-dir", folder)[2]
        says(fails(scene, "recover --qmp Q", "--state-dir", folder), folder)
        assert not os.path.exists(folder)
    # ... nor does who needs none, even where nobody could make one.
    for line in ("freeze --qmp Q", "clone --qmp Q", "serve --listen tcp://127.0.0.1:0"):
        for folder in (scene.path("other"), "/proc/1/none"):
            err = fails(scene, line, scene.path("D"), "--state-dir", folder)
            assert "records" not in err and not os.path.exists(folder), err


@case
def prune_removes_keys_that_a_killed_run_has_left(scene):
    """But not of one that is at work, or has just begun, nor one that a record names."""
    os.makedirs(scene.path("state"), mode=0o700)
    keys = [key_file(scene, f"state/run-{digit * 32}.key", "a1" * 32) for digit in "abcd"]
    left, locked, young, named = keys
    for path in (left, locked, named):
        os.utime(path, (1, 1))
    record = {
        "ibx-record": 1, "id": "01" * 16, "role": "source", "epoch": 3, "state": "may-run",
        "uuid": "", "name": "", "qmp": "/run/a.qmp", "pid": 1, "pid-started": 1, "uri": "tcp://a:1",
        "peer": "b", "key-file": named, "uffd": -1, "device-way": False, "written": 1700000000}
    path = scene.path(f"state/{record['id']}.source.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.chmod(path, 0o600)
    with open(locked, encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        succeeds(scene, "prune")
    equal([os.path.exists(path) for path in keys], [path != left for path in keys])


def put_record(scene, **fields):
    """One of a VM in this process, as the present version writes it."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        started = int(file.read().rpartition(")")[2].split()[19])
    record = {
        "ibx-record": 10, "epoch": 3, "uuid": "", "name": "db1", "qmp": "/run/a.qmp",
        "pid": os.getpid(), "pid-started": started, "uri": "tcp://a:1", "peer": "node-b",
        "key-file": "", "uffd": -1, "device-way": False, "was-running": True, "guest-ram": [],
        "complete": None, "key-name": "", "allow": "", "encryption": "auto", "verify": "",
        "settings": None, "hold": 0, "vm-status": "running", "machine": "", "source-key": None,
        "insecure": False, "libvirt": False, "borrow": 0, "base": "0" * 32, "whole": False,
        "stream": 0, "guarded": False, "qemu-migration": "", "boot": "",
        **fields}
    path = scene.path(f"state/{record['id']}.{record['role']}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.chmod(path, 0o600)


@case
def a_vm_that_came_and_went_on_is_not_here(scene):
    """Also when the clock was set back in between."""
    os.makedirs(scene.path("state"), mode=0o700)
    came = {"id": "01" * 16, "role": "destination", "state": "done", "number": 1,
            "complete": {"pages": 1, "zero": 0, "discarded": 0, "hash": "07" * 32}}
    went = {"id": "02" * 16, "role": "source", "state": "done", "number": 2}
    for first, second in ((1700000000, 1700000100), (1700000100, 1700000000)):
        put_record(scene, written=first, **came)
        put_record(scene, written=second, **went)
        out = succeeds(scene, "status")
        assert "told by the record of its later migration to node-b" in out, out
    put_record(scene, written=1700000000, **{**came, "number": 3})
    out = succeeds(scene, "status")
    assert "VM db1 runs here with all of its pages" in out and "later" not in out, out


# ------------------------------------------------------------------------- no monitor


@case
def a_monitor_that_is_not_there_is_one_sentence(scene):
    missing = scene.path("missing")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(scene.path("dead"))
    for path in (missing, scene.path("dead")):
        for line in ("send tcp://127.0.0.1:1", "receive --listen tcp://127.0.0.1:0", "check",
                     "check --destination", "send --quiet tcp://127.0.0.1:1"):
            says(fails(scene, line, "--qmp", path), path)
    # A relative path means the same one.
    says(fails(scene, "check --qmp missing"), missing)


@case
def a_vm_that_has_left_is_not_to_be_started_again(scene):
    """send once more, after send --quit: the monitor is gone because the VM is elsewhere."""
    os.makedirs(scene.path("state"), mode=0o700)
    missing = scene.path("missing")
    with subprocess.Popen("true") as ended:
        pass
    went = {"role": "source", "qmp": missing, "pid": ended.pid, "pid-started": 1,
            "written": 1700000000}
    for number, state, words in ((1, "done", "db1 went to node-b with all of its pages"),
                                 (2, "moved", "db1 runs at node-b and not here")):
        put_record(scene, id=f"{number:02}" * 16, number=number, state=state, **went)
        for line in ("send tcp://127.0.0.1:1", "check", "run --to node-b"):
            err = fails(scene, line, "--qmp", missing)
            says(err, words)
            says(err, missing)
            assert "start QEMU" not in err, err
    # Not said of a QEMU that is to receive a VM, nor where the VM stayed.
    says(fails(scene, "receive --listen tcp://127.0.0.1:0", "--qmp", missing), "start QEMU")
    says(fails(scene, "check --destination", "--qmp", missing), "start QEMU")
    put_record(scene, id="03" * 16, number=3, state="kept", **went)
    says(fails(scene, "send tcp://127.0.0.1:1", "--qmp", missing), "start QEMU")


@case
def a_failure_is_told_as_json_too(scene):
    missing = scene.path("missing")
    for command in ("send", "recover"):
        code, out, err = scene.run(command, "--json", "--qmp", missing, "tcp://127.0.0.1:1")
        equal(code, 1)
        says(err, missing)
        lines = objects(out)
        assert all(len(line) == 1 for line in lines), lines
        summary = lines[-1]["summary"]
        equal([summary[name] for name in ("complete", "exit_status", "role", "phase",
                                          "downtime_ns")], [False, 1, "source", "failed", None])
        assert missing in summary["error"], summary


# -------------------------------------------------------------------------- real VMs


@case
def check_says_every_reason_and_touches_nothing(scene):
    private = Vm(scene, ram="memory-backend-ram,id=mem0,size=64M")
    code, out, err = scene.run("check", *private.qmp)
    equal((code, err), (1, ""))
    assert "private" in out and "share=on" in out, out
    code, out, err = scene.run("check", "--json", *private.qmp)
    answer = json.loads(out)
    equal((code, err, answer["movable"]), (1, "", False))
    assert any("share=on" in one for one in answer["refusals"]), answer
    code, out, _ = scene.run("check", "--destination", *private.qmp)
    assert code == 1 and "-incoming defer" in out, out
    private.runs_on()
    good = Vm(scene)
    equal(succeeds(scene, "check", *good.qmp), f"the VM at {good.socket} can be migrated\n")
    equal(json.loads(succeeds(scene, "check --json", *good.qmp)),
          {"movable": True, "refusals": [], "notes": [], "error": None, "exit_status": 0})
    good.runs_on()


@case
def check_takes_a_device_for_which_the_vm_stands_still(scene):
    if not shutil.which("qemu-storage-daemon"):
        raise Skip("needs qemu-storage-daemon")
    end, image = scene.path("back-end"), scene.path("disk")
    with open(image, "wb") as file:
        file.truncate(1 << 20)
    scene.started.append(subprocess.Popen(
        ["qemu-storage-daemon", "--blockdev", f"file,node-name=disk,filename={image}", "--export",
         f"vhost-user-blk,id=disk,node-name=disk,writable=on,addr.type=unix,addr.path={end}"]))
    until(lambda: os.path.exists(end), "a vhost-user back end")
    vm = Vm(scene, "-chardev", f"socket,id=disk,path={end}", "-device",
            "vhost-user-blk-pci,chardev=disk")
    code, out, err = scene.run("check", *vm.qmp)
    equal((code, err), (1, ""))
    assert "--stand-still at both ends" in out, out
    equal(succeeds(scene, "check --stand-still", *vm.qmp),
          f"the VM at {vm.socket} can be migrated\n")


@case
def check_notes_a_monitor_that_others_can_use(scene):
    vm = Vm(scene)
    os.chmod(vm.socket, 0o777)
    equal(json.loads(succeeds(scene, "check --json", *vm.qmp))["notes"], [])  # nobody gets there
    os.chmod(scene.path(""), 0o755)
    for mode, named in ((0o775, True), (0o602, True), (0o755, False), (0o600, False)):
        os.chmod(vm.socket, mode)
        notes = json.loads(succeeds(scene, "check --json", *vm.qmp))["notes"]
        equal((mode, len(notes)), (mode, int(named)))
        for note in notes:
            assert f"is at {vm.socket}, whose mode {mode:04o} lets other users" in note, note
            assert "chmod 600 that socket" in note, note


@case
def check_notes_who_else_can_write_to_the_memory(scene):
    vm = Vm(scene)
    until(lambda: os.path.getsize(vm.ram), "QEMU's memory")
    with open(vm.ram, "r+b") as file:
        for access, named in ((mmap.ACCESS_WRITE, 1), (mmap.ACCESS_READ, 0)):
            with mmap.mmap(file.fileno(), 4096, access=access):
                answer = json.loads(succeeds(scene, "check --json", *vm.qmp))
            equal((answer["movable"], len(answer["notes"])), (True, named))
            for note in answer["notes"]:
                assert f"process {os.getpid()} (" in note, note
                assert f"can write to {vm.ram}, the file of guest RAM mem0" in note, note


@case
def check_says_what_it_found_without_a_receiver_too(scene):
    private, good = Vm(scene, ram="memory-backend-ram,id=mem0,size=64M"), Vm(scene)
    uri = f"tcp://127.0.0.1:{free_port()}"
    code, out, err = scene.run("check", *private.qmp, uri)
    assert code == 1 and "share=on" in out, (code, out)
    says(err, "the destination could not be asked", 'start "ib-migrate receive" there', "127.0.0.1")
    for vm, fine in ((private, False), (good, True)):
        _, _, err = scene.run("check", *vm.qmp, uri)
        equal("nothing on this side prevents the migration, but the destination" in err, fine)
    for vm, words in ((private, ["share=on"]), (good, [])):
        code, out, err = scene.run("check", "--json", *vm.qmp, uri)
        answer = json.loads(out)
        equal((code, sorted(answer)), (1, ["error", "exit_status", "movable", "notes", "refusals"]))
        equal(answer["movable"], False)
        equal(len(answer["refusals"]), len(words))
        assert all(word in one for word, one in zip(words, answer["refusals"])), answer
        assert 'start "ib-migrate receive" there' in answer["error"], answer
        says(err, answer["error"])
    good.end()
    code, out, err = scene.run("check", "--json", *good.qmp)
    equal((code, json.loads(out)["movable"]), (1, False))
    says(err, json.loads(out)["error"])


@case
def check_asks_the_receiver_which_goes_on_waiting(scene):
    source, other = Vm(scene), Vm(scene, "-M", "pc", incoming=True)
    equal(succeeds(scene, "check --destination", *other.qmp),
          f"the VM at {other.socket} can receive\n")
    waiting, uri = receiver(scene, other)
    for line in ("check", "check --json"):
        code, out, err = scene.run(*line.split(), *source.qmp, uri)
        equal((code, err), (1, ""))
        assert "-M pc-q35" in out, out
    equal(waiting.poll(), None)
    assert "-M pc-q35" in fails(scene, "send", *source.qmp, uri)
    source.runs_on()


def on_another_host(scene, *command):
    """The command with another boot's id: files have other names than those on this host."""
    other = scene.path("boot-id")
    with open(other, "w", encoding="ascii") as file:
        file.write("00000000-0000-4000-8000-000000000000\n")
    mount = f"mount --bind {other} /proc/sys/kernel/random/boot_id"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]


@case
def a_host_that_does_not_know_itself_is_not_called_another_one(scene):
    if subprocess.run(on_another_host(scene, "true"), check=False).returncode:
        raise Skip("needs a mount namespace")
    source, destination = Vm(scene), Vm(scene, incoming=True)
    _, uri = receiver(scene, destination)
    command = on_another_host(scene, scene.program, "send", *source.qmp, uri)
    command[4] = command[4].replace(scene.path("boot-id"), "/dev/null")
    err = subprocess.run(command, check=False, capture_output=True, text=True).stderr
    assert "it is not known whether" in err and "boot_id cannot be read here" in err, err
    assert "is on another host" not in err, err
    source.runs_on()


@case
def a_receiver_without_descriptors_says_so_once(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination)
    used = {int(fd) for fd in os.listdir(f"/proc/{waiting.pid}/fd")}
    free = next(fd for fd in itertools.count() if fd not in used)
    resource.prlimit(waiting.pid, resource.RLIMIT_NOFILE, (free, free))
    fails(scene, "send --set timeout_ms=1000", *source.qmp, uri)
    waiting.terminate()
    _, _, err = finish(waiting)
    equal(err.count("raise the limit on open files"), 1)
    source.runs_on()


def small_stack(hard=None):
    """Of a process that is to be started."""
    most = resource.getrlimit(resource.RLIMIT_STACK)[1] if hard is None else hard
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_STACK, (SMALL_STACK, most))}


@case
def a_low_limit_on_the_stack_is_raised(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, **small_stack())
    sender = start(scene, "send --json", *source.qmp, uri, **small_stack())
    for tool in (sender, waiting):
        code, summary, _ = finish(tool)
        equal((code, summary["complete"]), (0, True))
    destination.runs_on()
    equal(scene.run("status", **small_stack())[0], 0)


@case
def a_limit_on_the_stack_that_cannot_be_raised_is_said(scene):
    without = ("setpriv", "--bounding-set", "-sys_resource")
    if subprocess.run((*without, "true"), check=False, stderr=subprocess.DEVNULL).returncode:
        raise Skip("needs setpriv, and root")
    done = subprocess.run((*without, scene.program, "status"), check=False, text=True,
                          capture_output=True, **small_stack(SMALL_STACK))
    equal((done.returncode, done.stdout), (1, ""))
    says(done.stderr, "64 KiB", "ulimit -s")


@case
def the_stack_has_its_address_space_from_the_start(scene):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    destination = Vm(scene, incoming=True)
    if scene.run("status", preexec_fn=limit)[0]:
        raise Skip("this build takes terabytes of address space")
    waiting, _ = receiver(scene, destination, preexec_fn=limit)
    with open(f"/proc/{waiting.pid}/status", encoding="ascii") as file:
        (has,) = re.findall(r"VmStk:\s*(\d+) kB", file.read())
    assert int(has) >= 512, has


@case
def little_address_space_ends_no_tool_by_a_signal(scene):
    source = Vm(scene)

    def send(kib):
        """To nobody, with so much address space: exit status and words."""
        limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (kib << 10,) * 2)}
        code, _, err = scene.run("send", *source.qmp, "tcp://127.0.0.1:9", **limit)
        return code, err
    low, high = 1 << 10, 1 << 20
    if send(high)[0] != 1:
        raise Skip("this build takes terabytes of address space")
    while high - low > 25:  # with less, there is no room for the second thread's stack
        middle = (low + high) // 2
        code, err = send(middle)
        low, high = (middle, high) if code != 1 or "no thread" in err else (low, middle)
    for kib in range(high, high + 1500, 50):
        code, err = send(kib)
        equal((kib, code), (kib, 1))
        assert err.startswith("ib-migrate: "), err
    source.runs_on()


@case
def a_disk_is_known_on_another_host(scene):
    if subprocess.run(on_another_host(scene, "true"), check=False).returncode:
        raise Skip("needs a mount namespace")
    images = {name: scene.path(name) for name in ("disk", "iso", "copy")}
    for name, path in images.items():
        with open(path, "wb") as file:
            file.write(b"first bytes" + bytes((1 << 20) - 11))
    disk = ("-drive", f"file={images['disk']},format=raw,if=none,id=d", "-device",
            "virtio-blk-pci,drive=d,addr=5")
    cds = [("-drive", f"file={images[name]},format=raw,if=none,id=cd,readonly=on", "-device",
            "ide-cd,drive=cd,bus=ide.0") for name in ("iso", "copy")]
    source, destination = Vm(scene, *disk, *cds[0]), Vm(scene, *disk, *cds[1], incoming=True)
    # Each side takes its time: two QEMUs are asked for all that they have.
    key = ("--key", key_file(scene, "key", "a1" * 16), "--set",
           f"timeout_ms={round(patient(10000))}")
    # On one host it is one file, and the copy of the ISO image is as good.
    waiting, uri = receiver(scene, destination, *key)
    succeeds(scene, "check", *source.qmp, *key, uri)
    waiting.kill()
    waiting.wait()
    scene.program, program = "unshare", scene.program
    try:
        other = on_another_host(scene, program)[1:]
        waiting, uri = receiver(scene, destination, *key, before=other)
    finally:
        scene.program = program
    _, out, err = scene.run("check", *source.qmp, *key, uri)
    equal(err, "")
    equal(len(out.splitlines()), 1)
    assert images["disk"] in out and "a file system of one host" in out, out
    assert "--disks-differ-on-purpose" in out, out
    out = succeeds(scene, "check --disks-differ-on-purpose", *source.qmp, *key, uri)
    assert "note: the disk of virtio-blk-pci @ q35-pcihost/05.0" in out, out


@case
def a_waiting_receiver_is_shown_and_cancelled(scene):
    none = f"no migration is recorded in {scene.path('state')}\n"
    vm, other = Vm(scene, incoming=True), Vm(scene, incoming=True)
    (waiting, uri), (second, _) = receiver(scene, vm), receiver(scene, other)
    # core(5): of its memory, a core dump has at most the first pages of programs.
    with open(f"/proc/{waiting.pid}/coredump_filter", encoding="ascii") as file:
        equal(int(file.read(), 16) & ~0x10, 0)
    out = succeeds(scene, "status", *vm.qmp)
    equal(len(out.splitlines()), 2)
    for word in ("destination  waiting", f"process {waiting.pid})", uri, vm.socket):
        assert word in out, out
    lines = objects(succeeds(scene, "status --json"))
    equal([sorted(line) for line in lines], [["record", "sentence", "status", "trouble"]] * 2)
    equal({line["status"]["phase"] for line in lines}, {"waiting"})
    equal({line["record"]["qmp"] for line in lines}, {vm.socket, other.socket})
    for line in ("receive --listen tcp://127.0.0.1:0", "check --destination"):
        assert f"(process {waiting.pid}) that waits" in fails(scene, line, *vm.qmp)
    err = fails(scene, "cancel")
    for words in ("2 ib-migrate processes work here, choose one of them: ",
                  f"--qmp {vm.socket} (waiting for a source)",
                  f"--qmp {other.socket} (waiting for a source)"):
        assert words in err, err
    equal(succeeds(scene, "cancel", *vm.qmp), "")
    code, summary, _ = finish(waiting)
    equal((code, summary["complete"], summary["outcome"]), (5, False, "stopped"))
    assert "no VM had come" in summary["error"], summary
    os.kill(second.pid, signal.SIGSTOP)
    code, out, err = scene.run("status")
    equal((code, out), (0, none))
    for words in (f"(process {second.pid}) that waits for a VM does not answer", "kill -CONT"):
        assert words in err, err
    second.kill()
    second.wait()
    equal(succeeds(scene, "status"), none)
    assert not [name for name in os.listdir(scene.path("state")) if "waiting" in name]


@case
def a_monitor_may_lie_deeper_than_an_address_is_long(scene):
    deep = scene.path("x" * 120)
    os.mkdir(deep)
    os.symlink(deep, scene.path("short"))
    vm = Vm(scene, incoming=True, place="short")
    for path in (vm.socket, os.path.join(deep, os.path.basename(vm.socket))):
        waiting, _ = receiver(scene, vm)
        equal(succeeds(scene, "status", "--qmp", path).count("waiting"), 1)
        succeeds(scene, "cancel", "--qmp", path)
        equal(finish(waiting)[0], 5)
        succeeds(scene, "check --destination", "--qmp", path)


@case
def a_destination_that_does_not_answer_leaves_the_vm_running(scene):
    vm, port = Vm(scene), free_port()
    for command in ("send", "check"):
        err = fails(scene, command, *vm.qmp, f"tcp://127.0.0.1:{port}")
        assert str(port) in err and 'start "ib-migrate receive" there' in err, err
    # Whoever interrupts does not wait for it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}?timeout_ms=30000"
            sender = start(scene, "send", *vm.qmp, uri)
            with silent.accept()[0]:
                sender.send_signal(number)
                out, err = sender.communicate(timeout=LIMIT)
        equal((sender.returncode, out), (1, ""))
        assert "stays here" in err and "did not answer" not in err, err
    equal([name for name in os.listdir(scene.path("state")) if name.endswith(".sock")], [])
    vm.runs_on()


@case
def only_a_named_source_may_come(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    alice, bob = (f"{name}:{digits * 32}\n" for name, digits in (("alice", "a1"), ("bob", "b0")))
    both = key_file(scene, "both", alice + bob)
    err = fails(scene, "receive --listen tcp://127.0.0.1:0", *destination.qmp, "--key", both,
                "--allow", "carol")
    assert 'has no key "carol"' in err, err
    waiting, uri = receiver(scene, destination, "--key", both, "--allow", "alice")
    err = fails(scene, "check", *source.qmp, "--key", key_file(scene, "bob", bob), uri)
    assert "this name is not allowed" in err, err
    for key in (("--key", key_file(scene, "alice", alice)), ("--key", both, "--set=name=alice")):
        succeeds(scene, "check", *source.qmp, *key, uri)
    equal(waiting.poll(), None)
    waiting.terminate()
    finish(waiting)


@case
def a_wrong_key_is_told_and_the_receiver_goes_on(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    good, bad = (key_file(scene, name, name * 16) for name in ("a1fa", "beda"))
    waiting, uri = receiver(scene, destination, "--key", good)
    for args in (("--key-file", bad), ()):
        err = fails(scene, "send --quiet", *source.qmp, *args, uri)
        assert "key" in err and all(one.startswith("ib-migrate: ") for one in err.splitlines()), err
    source.runs_on()
    equal(succeeds(scene, "check", *source.qmp, "--key", good, uri),
          f"the VM at {source.socket} can be migrated to {uri}\n")
    equal(waiting.poll(), None)
    waiting.terminate()
    code, summary, err = finish(waiting)
    equal((code, summary["complete"], summary["exit_status"]), (5, False, 5))
    assert "cancelled" in err, err
    # Each line names the refused peer once; most of its connections make no line of their own.
    refused = re.findall(r"refused 127\.0\.0\.1:(\d+)", err)
    assert len(refused) >= 2 and len(refused) == len(set(refused)), err
    equal({line.count("127.0.0.1") for line in err.splitlines() if "refused 127." in line}, {1})


@case
def a_bad_key_is_said_before_qemu_is_asked(scene):
    none, short = ("--qmp", scene.path("nowhere")), key_file(scene, "short", "beda")
    good = key_file(scene, "good", "a1" * 16)
    for args, word in ((("--key", short), "32 hex"), (("--key", good, "--set=name=bob"), "bob"),
                       (("--key", scene.path("gone")), "gone")):
        for command in ("send --quiet", "check"):
            err = fails(scene, command, *none, *args, "tcp://127.0.0.1:1")
            assert word in err and "monitor" not in err, err
    err = fails(scene, "receive --quiet --listen tcp://127.0.0.1:0", *none, "--key", short)
    assert "32 hex" in err and "monitor" not in err, err
    err = fails(scene, "check", *none, "--key", good, "tcp://127.0.0.1:1")
    assert "nowhere" in err, err


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
