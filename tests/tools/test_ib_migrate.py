#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate.py IB-MIGRATE: the tool as its users see it: arguments, messages, JSON, exit
status. With QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and as root, it migrates VMs."""
import fcntl
import glob
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import termios

from harness import LIMIT, Skip, equal, free_port, run_all, test, until

COMMANDS = ("receive", "send", "check", "status", "cancel", "set", "recover", "rollback", "prune",
            "run")


def case(function):
    """A test with a state folder of its own, whose VMs end with it."""
    def run(scene):
        scene.vms, os.environ["IBX_STATE_DIR"] = [], scene.path("state")
        try:
            function(scene)
        finally:
            for process in scene.started:  # a sender keeps the memory of a QEMU that ends
                process.kill()
                process.wait(LIMIT)
            for vm in scene.vms:
                for path in glob.glob(vm.ram + "*"):
                    os.unlink(path)
    run.__name__ = function.__name__
    return test(run)


def says(text, *words):
    """One line of the tool, with these words."""
    lines = text.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ib-migrate: ") and len(lines[0]) > 20, text
    for word in words:
        assert word in text, f"no {word!r} in {text!r}"


def fails(scene, line, *more):
    """Exit status 1 and nothing on standard output: what is on standard error."""
    code, out, err = scene.run(*line.split(), *more)
    equal((line, code, out), (line, 1, ""))
    return err


def succeeds(scene, line, *more):
    """Exit status 0 and nothing on standard error: what is on standard output."""
    code, out, err = scene.run(*line.split(), *more)
    equal((line, code, err), (line, 0, ""))
    return out


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def key_file(scene, name, secret):
    path = scene.path(name)
    with open(path, "w", encoding="ascii") as file:
        file.write(secret)
    os.chmod(path, 0o600)
    return path


# ------------------------------------------------------------------------- arguments


@case
def help_and_version_are_no_errors(scene):
    for line in ("--help", "send --help", "status -h"):
        out = succeeds(scene, line)
        assert out.startswith("Usage: ib-migrate [OPTION...] receive") and "key_file" in out, out
        for command in COMMANDS:
            assert f"ib-migrate [OPTION...] {command}" in out, out
    assert re.fullmatch(r"ib-migrate \d+\.\d+\.\d+\n", succeeds(scene, "--version"))


@case
def wrong_usage_exits_2(scene):
    for line in ("", "move", "--quiet", "--qmp x", "receive", "receive --qmp Q", "send --qmp Q",
                 "send tcp://a:1", "send --qmp Q tcp://a:1 more", "receive --listen tcp://a:1",
                 "receive --qmp Q --listen tcp://a:1 more", "check", "recover", "rollback", "set",
                 "set --qmp Q", "prune --unfinished", "prune more", "status --unfinished",
                 "status more", "cancel more", "status --nonsense", "cancel --quiet",
                 "status --yes",
                 "send --qmp Q --listen x tcp://a:1", "send --qmp Q --max-bandwidth 1G tcp://a:1",
                 "receive --qmp Q --listen tcp://a:1 --quit", "check --qmp Q --yes",
                 "receive --qmp Q --listen tcp://a:1 --links 2", "status --set chunk=1M",
                 "set --max-bandwidth", "send --qmp Q --minor tcp://a:1",
                 "check --qmp Q --destination tcp://a:1",
                 "recover --qmp Q --listen tcp://a:1 tcp://b:1"):
        code, out, err = scene.run(*line.split())
        equal((line, code, out), (line, 2, ""))
        assert err.startswith("ib-migrate: ") and "Try `ib-migrate --help'" in err, err
    for line, words in (
            ("send --max-bandwidth 1G", 'not go with "send", but with receive, set, recover, '),
            ("receive --qmp Q tcp://a:1", '"tcp://a:1" is one argument too many'),
            ("recover --qmp Q --listen tcp://a:1 tcp://b:1", '"tcp://b:1" with --listen')):
        assert words in scene.run(*line.split())[2], words


@case
def bad_values_exit_1_with_one_sentence(scene):
    for command, option, values in (
            ("send", "--links", ("0", "17", "two")), ("send", "--give-up", ("-1", "soon", "0")),
            ("send", "--qmp", ("", "x" * 200)), ("set", "--max-bandwidth", ("fast", "")),
            ("receive", "--max-bandwidth", ("-1",)),
            ("receive", "--set", ("chunk", "chunk=7", "nonsense=1"))):
        for value in values:
            says(fails(scene, command, option, value), option)
    for uri, what in (("localhost:18600", "localhost:18600"), ("http://host:80", "http"),
                      ("tcp://host:1?chunk=7", "chunk")):
        says(fails(scene, "send", "--qmp", scene.path("none"), uri), what)


@case
def a_state_folder_that_cannot_be_used_is_one_sentence(scene):
    with open(scene.path("file"), "w", encoding="ascii"):
        pass
    for path in (scene.path("file"), scene.path("x" * 150)):
        says(fails(scene, "status", "--state-dir", path))


@case
def without_records_there_is_nothing_to_do(scene):
    none = f"no migration is recorded in {scene.path('state')}\n"
    for line, out in (("status", none), ("status --json", ""), ("prune", none)):
        equal(succeeds(scene, line), out)
    for line in ("cancel", "cancel --qmp Q", "set --max-bandwidth 1G", "recover --qmp Q",
                 "rollback --yes --qmp Q"):
        says(fails(scene, line), "ib-migrate status")
    assert scene.path("other") in succeeds(scene, "status", "--state-dir", scene.path("other"))


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


class Vm:
    """A QEMU with the guest of tests/moves/guest."""

    def __init__(self, scene, *extra, ram=None, append="", incoming=False, place=""):
        if not {"QEMU", "GUEST_ELF", "GUEST_EXPECT"} <= os.environ.keys() or os.geteuid():
            raise Skip("needs QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and root")
        name = f"vm{len(scene.vms)}"
        self.socket, self.own, self.serial = (
            scene.path(os.path.join(place, f"{name}.{what}")) for what in ("qmp", "own", "serial"))
        self.qmp = ("--qmp", self.socket)
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix=f"ibx-vm-{os.getpid()}-",
                                         delete=False) as file:
            self.ram = file.name
        ram = ram or f"memory-backend-file,id=mem0,size=64M,mem-path={self.ram},share=on"
        self.process = subprocess.Popen(
            [os.environ["QEMU"], *"-name guest-of-a-test -M q35 -accel tcg,thread=multi -m 64 "
             "-nodefaults -display none -no-reboot -machine memory-backend=mem0".split(),
             "-kernel", os.environ["GUEST_ELF"], "-append", append, "-object", ram,
             "-serial", f"file:{self.serial}", "-qmp", f"unix:{self.socket},server=on,wait=off",
             "-qmp", f"unix:{self.own},server=on,wait=off",
             *(("-incoming", "defer") if incoming else ()), *extra],
            stdin=subprocess.DEVNULL, start_new_session=True)
        scene.vms.append(self)
        scene.started.append(self.process)
        until(lambda: self.listens() or self.process.poll() is not None, "QEMU's monitor")
        equal(self.process.poll(), None)

    def end(self):
        self.process.kill()
        self.process.wait(LIMIT)

    def listens(self):
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.own) == 0

    def running(self):
        """As the monitor says that is not ib-migrate's."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(LIMIT)
            monitor.connect(self.own)
            with monitor.makefile("rw", encoding="utf-8") as lines:
                for what in ("qmp_capabilities", "query-status"):
                    lines.write(json.dumps({"execute": what, "id": what}) + "\n")
                    lines.flush()
                for line in lines:
                    answer = json.loads(line)
                    if answer.get("id") == "query-status":
                        return answer["return"]["running"]
        raise AssertionError("no answer to query-status")

    def beats(self):
        try:
            with open(self.serial, encoding="ascii", errors="replace") as serial:
                return len(re.findall(r"^beat .*\n", serial.read(), re.M))
        except FileNotFoundError:
            return 0

    def runs_on(self):
        """Heartbeats beyond those that there are."""
        now = self.beats()
        until(lambda: self.beats() > now + 20, "heartbeats")
        equal(self.running(), True)


def expect(*vms):
    """The guest's memory was right at every heartbeat, wherever it ran."""
    text = b""
    for vm in vms:
        with open(vm.serial, "rb") as serial:
            text += serial.read()
    done = subprocess.run([os.environ["GUEST_EXPECT"]], input=text, capture_output=True,
                          check=False)
    assert done.returncode == 0, done.stdout


def same_memory(source, destination):
    """Of a guest that has halted."""
    with open(source.ram, "rb") as one, open(destination.ram, "rb") as other:
        assert one.read() == other.read()


def start(scene, line, *more, **options):
    process = scene.start(*line.split(), *more, **options)
    process.lines = []
    return process


def next_line(process):
    line = process.stdout.readline()
    assert line, (process.lines[-1:], process.communicate(timeout=LIMIT))
    process.lines.append(json.loads(line))
    return process.lines[-1]


def wait_for_status(process, wanted):
    while True:
        status = next_line(process).get("status")
        if status and wanted(status):
            return status


def wait_for_phase(phase, *processes):
    for process in processes:
        wait_for_status(process, lambda status: status["phase"] == phase)


def wait_for_message(process, words):
    while words not in next_line(process).get("say", ""):
        pass


def finish(process):
    """Exit status, summary, standard error."""
    out, err = process.communicate(timeout=LIMIT)
    process.lines += objects(out)
    assert all(len(line) == 1 for line in process.lines), process.lines
    return process.returncode, process.lines[-1]["summary"], err


def receiver(scene, vm, *args, before=()):
    """A receiver that waits, and its URI, where another one may wait when it was killed."""
    uri = f"tcp://127.0.0.1:{free_port()}"
    process = start(scene, "", *before, "receive", "--json", "--listen", uri, *vm.qmp, *args)
    found = wait_for_status(process, lambda one: one["phase"] == "waiting" and one["record"])
    return process, found["record"]["uri"]


def interrupt_twice(process):
    """After the commit, where the first signal only warns. What remains to be done is said."""
    process.send_signal(signal.SIGINT)
    wait_for_message(process, "interrupt once more")
    process.send_signal(signal.SIGTERM)
    code, summary, err = finish(process)
    equal((code, summary["exit_status"], summary["complete"]), (3, 3, False))
    assert "recover" in err or "rollback" in err, err


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
def check_says_what_it_found_without_a_receiver_too(scene):
    private, good = Vm(scene, ram="memory-backend-ram,id=mem0,size=64M"), Vm(scene)
    uri = f"tcp://127.0.0.1:{free_port()}"
    code, out, err = scene.run("check", *private.qmp, uri)
    assert code == 1 and "share=on" in out, (code, out)
    says(err, "the destination could not be asked", 'start "ib-migrate receive" there', "127.0.0.1")
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
    key = ("--key", key_file(scene, "key", "a1" * 16))
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
    assert "2 migrations" in err and "--qmp" in err, err
    equal(succeeds(scene, "cancel", *vm.qmp), "")
    code, summary, _ = finish(waiting)
    equal((code, summary["complete"]), (1, False))
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
        equal(finish(waiting)[0], 1)
        succeeds(scene, "check --destination", "--qmp", path)


@case
def a_destination_that_does_not_answer_leaves_the_vm_running(scene):
    vm, port = Vm(scene), free_port()
    for command in ("send", "check"):
        err = fails(scene, command, *vm.qmp, f"tcp://127.0.0.1:{port}")
        assert str(port) in err and 'start "ib-migrate receive" there' in err, err
    # Whoever interrupts does not wait for it.
    for number in (signal.SIGINT, signal.SIGTERM):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}?timeout_ms=30000"
            sender = start(scene, "send", *vm.qmp, uri)
            with silent.accept()[0]:
                sender.send_signal(number)
                out, err = sender.communicate(timeout=LIMIT)
        equal((sender.returncode, out), (1, ""))
        assert "goes on here" in err and "did not answer" not in err, err
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
    equal((code, summary["complete"], summary["exit_status"]), (1, False, 1))
    assert "cancelled" in err, err
    # Each line names the refused peer once.
    refused = [line for line in err.splitlines() if "refused 127.0.0.1:" in line]
    equal([len(refused), *(line.count("127.0.0.1") for line in refused)], [2, 1, 1])


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


@case
def a_vm_is_migrated_and_both_sides_report(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    key = key_file(scene, "key", "a1" * 32)
    # So slow in the background that the guest has to ask for its pages itself.
    waiting, uri = receiver(scene, destination, "--key", key, "--max-bandwidth", "100K")
    until(lambda: source.beats() > 40, "heartbeats")
    sender = start(scene, "send --json --links 1 --key", key, *source.qmp, uri)
    for process, role in ((sender, "source"), (waiting, "destination")):
        code, summary, err = finish(process)
        equal([code, *(summary[name] for name in ("role", "phase", "complete", "exit_status",
                                                  "error"))], [0, role, "done", True, 0, None])
        equal((summary["ram_bytes"], summary["present_pages"]), (64 << 20, summary["pages"]))
        equal([summary["record"][name] for name in ("state", "over", "name")],
              ["done", True, "guest-of-a-test"])
        assert summary["wire_bytes"] > 1 << 20, summary
        assert summary["zero_pages"] > 0 and summary["faults"] > 0, summary
        p50, p99, most = (summary[f"fault_{name}_ns"] for name in ("p50", "p99", "max"))
        assert 0 < p50 <= p99 <= most, summary
        phases = [line["status"]["phase"] for line in process.lines if "status" in line]
        order = ["waiting", "preparing", "switching", "filling", "done"]
        equal(sorted(phases, key=order.index), phases)
        assert "ib-migrate: filling: the VM runs at the destination" in err, err
        if role == "source":
            for name in ("downtime_ns", "state_bytes", "total_ns"):
                assert summary[name] > 0, summary
    destination.runs_on()
    expect(source, destination)
    out = succeeds(scene, "status")
    equal((out.count("guest-of-a-test"), out.count("with all of its pages")), (4, 2))
    lines = objects(succeeds(scene, "status --json"))
    equal([sorted(line) for line in lines], [["record", "sentence", "status", "trouble"]] * 2)
    equal({(line["record"]["role"], line["status"], line["trouble"]) for line in lines},
          {("source", None, None), ("destination", None, None)})
    for line in ("recover", "rollback --yes"):
        says(fails(scene, line, *source.qmp), "no unfinished migration")


def halted(scene):
    """A VM that has filled 32 MiB and halts: all of its pages are fetched in the background."""
    vm = Vm(scene, append="beats=40")
    until(lambda: vm.beats() == 40, "the guest to halt")
    return vm


def slow_migration(scene):
    """One that does not end before let_go(): the VMs and the tools at work."""
    source, destination = halted(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    sender = start(scene, "send --json", *source.qmp, uri)
    wait_for_phase("filling", sender, waiting)
    return source, destination, sender, waiting


def let_go(scene, destination):
    equal(succeeds(scene, "set --max-bandwidth 0", *destination.qmp), "")


@case
def a_running_migration_is_watched_and_changed(scene):
    source, destination, sender, waiting = slow_migration(scene)
    lines = objects(succeeds(scene, "status --json"))
    live = {line["record"]["role"]: line["status"] for line in lines}
    for role, limit in (("source", None), ("destination", 100 << 10)):
        equal((live[role]["phase"], live[role]["max_bandwidth"]), ("filling", limit))
    out = succeeds(scene, "status", *destination.qmp)
    assert "destination  running" in out and re.search(r"^  filling  .*pages left", out, re.M), out
    for line, qmp, words in (("set --max-bandwidth 1G", (), "name one by --qmp"),
                             ("set --max-bandwidth 1G", source.qmp, "set the bandwidth there"),
                             ("cancel", source.qmp, "cannot be cancelled"),
                             ("cancel", destination.qmp, "cannot be cancelled"),
                             ("recover --quiet", destination.qmp, "ib-migrate"),
                             ("rollback --yes", source.qmp, "works on this m")):
        code, out, err = scene.run(*line.split(), *qmp)
        assert code in (1, 3) and out == "" and words in err, (line, code, out, err)
    assert "process " in err, err
    let_go(scene, destination)
    for process in (sender, waiting):
        equal(finish(process)[0], 0)
    same_memory(source, destination)


@case
def killed_tools_are_recovered_from(scene):
    source, destination, sender, waiting = slow_migration(scene)
    waiting.kill()
    waiting.communicate()
    assert "no ib-migrate works on it" in succeeds(scene, "status", *destination.qmp)
    # A line of status is as long as its sentence.
    wait_for_status(sender, lambda status: "no server answers" in status["sentence"])
    out = succeeds(scene, "status", *source.qmp)
    end = 'start "ib-migrate recover" there, or correct the URI; connecting again\n'
    assert end in out, out
    again = start(scene, "recover --json --max-bandwidth 100K", *destination.qmp)
    wait_for_phase("filling", again)
    wait_for_status(sender, lambda status: status["phase"] == "filling" and status["reconnects"])
    sender.kill()
    _, err = sender.communicate()
    # The loss of a page connection or of the link, whichever is noticed first; said once.
    lost = re.findall(r"(\S.* (?:has ended|is lost): .*); connecting again", err)
    assert lost and not any(line.startswith("ib-migrate: broken") for line in lost), err
    err = fails(scene, "rollback --yes", *source.qmp)
    assert "the VM runs there" in err and "not rolled back" in err, err
    says(fails(scene, "recover --listen tcp://127.0.0.1:0", *source.qmp), "source")
    sender = start(scene, "recover --json", *source.qmp)
    wait_for_phase("filling", sender)
    let_go(scene, destination)
    for process in (sender, again):
        code, summary, _ = finish(process)
        equal((code, summary["complete"], summary["record"]["state"]), (0, True, "done"))
    same_memory(source, destination)


@case
def two_signals_leave_an_unfinished_migration_with_status_3(scene):
    source, destination, sender, waiting = slow_migration(scene)
    for process in (sender, waiting):
        interrupt_twice(process)
    processes = [start(scene, "recover --quiet", *vm.qmp) for vm in (destination, source)]
    for process in processes:
        equal((*process.communicate(timeout=LIMIT), process.returncode), ("", "", 0))
    same_memory(source, destination)


class Terminal:
    """The tool on a terminal of this many columns."""

    def __init__(self, scene, line, *more, columns=80):
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self.seen = ""
        self.process = subprocess.Popen([scene.program, *line.split(), *more], stdin=slave,
                                        stdout=slave, stderr=slave, start_new_session=True)
        scene.started.append(self.process)
        os.close(slave)

    def read(self):
        try:
            more = os.read(self.master, 4096)
        except OSError:
            more = b""
        self.seen += more.decode()
        return more

    def wait_for(self, pattern):
        while not re.search(pattern, self.seen):
            assert self.read(), f"no {pattern!r} in {self.seen!r}"

    def write(self, text):
        os.write(self.master, text.encode())

    def finish(self):
        """Exit status and what stays to be read, a line each."""
        while self.read():
            pass
        os.close(self.master)
        lines = self.seen.split("\r\n")
        return self.process.wait(LIMIT), [line.rsplit("\r\033[K", 1)[-1] for line in lines]


@case
def a_terminal_shows_one_line_that_fits(scene):
    source, destination = halted(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    sender = Terminal(scene, "send", *source.qmp, uri, columns=50)
    sender.wait_for(r"\rfilling  \d+ pages left")
    let_go(scene, destination)
    code, lines = sender.finish()
    equal(code, 0)
    drawn = re.findall(r"\r([^\r\n]*)\033\[K", sender.seen)
    assert drawn and all(len(line) < 50 for line in drawn), drawn
    end = r"guest-of-a-test: migrated to \S+, complete and confirmed"
    assert re.fullmatch(end, lines[0]), lines
    assert any(line.startswith("  downtime ") for line in lines), lines
    equal(finish(waiting)[0], 0)
    same_memory(source, destination)


@case
def rollback_says_what_is_known_and_asks(scene):
    source, destination, sender, waiting = slow_migration(scene)
    waiting.kill()  # before it could tell the source
    waiting.communicate()
    destination.end()
    out = succeeds(scene, "status", *destination.qmp)
    assert re.search(r"does not run here: its QEMU \(process \d+\) has ended; .*rollback", out), out
    line = json.loads(succeeds(scene, "status --json", *destination.qmp))
    assert "does not run here" in line["sentence"], line
    wait_for_phase("broken", sender)
    says(fails(scene, "rollback --yes", *source.qmp), f"process {sender.pid} ", "two SIGTERM")
    interrupt_twice(sender)
    err = fails(scene, "rollback", *source.qmp)
    for words in ("does not answer", "Everything that the VM did", "runs twice", "needs --yes"):
        assert words in err, err
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
def a_reader_that_does_not_read_delays_nothing(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination)
    until(lambda: source.beats() > 40, "heartbeats")
    # By a link to a link in a folder that is one, too; the socket itself goes with its QEMU.
    name = os.path.basename(source.socket)
    os.symlink(os.path.dirname(source.socket), scene.path("folder"))
    os.symlink(os.path.join("folder", name), scene.path("middle"))
    os.symlink(scene.path("middle"), scene.path("link"))
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 512)
    except BlockingIOError:
        os.set_blocking(writing, True)
    sender = start(scene, "send --json --quit --qmp", scene.path("link"), uri, stdout=writing)
    os.close(writing)
    equal(finish(waiting)[0], 0)
    equal(sender.poll(), None)  # its output is not written yet
    os.close(reading)
    equal(sender.wait(LIMIT), 0)
    equal(source.process.wait(LIMIT), 0)  # --quit
    assert not os.path.exists(source.socket)
    for path in ("link", scene.path("folder/" + name), source.socket):
        out = succeeds(scene, "status", "--qmp", path)
        equal((path, out.count(source.socket), out.count("source")), (path, 1, 1))
        assert re.search(r" went to .* its QEMU here \(process \d+\) has ended\n", out), out
    assert "runs here with all of its pages" in succeeds(scene, "status", *destination.qmp)
    destination.end()
    out = succeeds(scene, "status", *destination.qmp)
    end = r" came here with all of its pages; its QEMU \(process \d+\) has ended since\n"
    assert re.search(end, out), out
    code, out, err = scene.run("recover", "--json", "--qmp", "link")
    equal((code, objects(out)[-1]["summary"]["exit_status"]), (1, 1))
    says(err, "no unfinished migration", "only if ib-migrate status reports complete")


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
