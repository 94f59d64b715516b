#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate.py IB-MIGRATE: the tool as its users see it: arguments, sentences, JSON, exit status.
With QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and as root, real VMs are migrated too."""
import fcntl
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

COMMANDS = ("receive", "send", "check", "status", "cancel", "set", "recover", "rollback", "prune")


def says(text, *words):
    """One line of the tool, with these words."""
    lines = text.splitlines()
    assert len(lines) == 1 and lines[0].startswith("ib-migrate: ") and len(lines[0]) > 20, text
    for word in words:
        assert word in text, f"no {word!r} in {text!r}"


def folder(scene):
    return ("--state-dir", scene.path("state"))


def key_file(scene, name, secret):
    path = scene.path(name)
    with open(path, "w", encoding="ascii") as file:
        file.write(secret)
    os.chmod(path, 0o600)
    return path


# ------------------------------------------------------------------------- arguments


@test
def help_and_version_are_no_errors(scene):
    for args in (("--help",), ("send", "--help"), ("status", "-h")):
        code, out, err = scene.run(*args)
        equal((code, err), (0, ""))
        assert out.startswith("Usage: ib-migrate [OPTION...] receive") and "key_file" in out, out
        for command in COMMANDS:
            assert f"ib-migrate [OPTION...] {command}" in out, out
    code, out, err = scene.run("--version")
    assert code == 0 and re.fullmatch(r"ib-migrate \d+\.\d+\.\d+\n", out), out


@test
def wrong_usage_exits_2(scene):
    qmp = ("--qmp", "/nowhere")
    for args in ((), ("move",), ("--json",), ("--qmp", "x"), ("receive",), ("receive", *qmp), ("send", *qmp),
                 ("send", "tcp://a:1"), ("send", *qmp, "tcp://a:1", "more"), ("receive", "--listen", "tcp://a:1"),
                 ("receive", *qmp, "--listen", "tcp://a:1", "more"), ("check",), ("recover",), ("rollback",),
                 ("set",), ("set", *qmp), ("prune", "--unfinished"), ("prune", "more"), ("status", "--unfinished"), ("status", "more"), ("cancel", "more"), ("status", "--nonsense"),
                 ("send", *qmp, "--listen", "x", "tcp://a:1"), ("send", *qmp, "--max-bandwidth", "1G", "tcp://a:1"),
                 ("receive", *qmp, "--listen", "tcp://a:1", "--quit"), ("cancel", "--json"), ("status", "--yes"),
                 ("receive", *qmp, "--listen", "tcp://a:1", "--links", "2"), ("check", *qmp, "--yes"),
                 ("status", "--set", "chunk=1M"), ("set", "--max-bandwidth"), ("send", *qmp, "--minor", "tcp://a:1"),
                 ("check", *qmp, "--destination", "tcp://a:1"), ("recover", *qmp, "--listen", "tcp://a:1", "tcp://b:1")):
        code, out, err = scene.run(*args)
        equal((args, code, out), (args, 2, ""))
        assert err.startswith("ib-migrate: ") and "Try `ib-migrate --help'" in err, err
    for args, words in ((("send", "--max-bandwidth", "1G"), 'does not go with "send", but with receive, set or recover'),
                        (("receive", *qmp, "tcp://a:1"), '"tcp://a:1" is one argument too many'),
                        (("recover", *qmp, "--listen", "tcp://a:1", "tcp://b:1"), '"tcp://b:1" with --listen')):
        assert words in scene.run(*args)[2], words


@test
def bad_values_exit_1_with_one_sentence(scene):
    for command, option, value in (("send", "--links", "0"), ("send", "--links", "17"), ("send", "--links", "two"),
                                   ("send", "--give-up", "-1"), ("send", "--give-up", "soon"),
                                   ("send", "--give-up", "0"), ("send", "--qmp", ""), ("send", "--qmp", "x" * 200),
                                   ("set", "--max-bandwidth", "fast"), ("set", "--max-bandwidth", ""),
                                   ("receive", "--max-bandwidth", "-1"), ("receive", "--set", "chunk"),
                                   ("receive", "--set", "chunk=7"), ("receive", "--set", "nonsense=1")):
        code, out, err = scene.run(command, option, value)
        equal((option, value, code, out), (option, value, 1, ""))
        says(err, option)


@test
def a_wrong_uri_is_said_before_anything_else(scene):
    for uri, what in (("localhost:18600", "localhost:18600"), ("http://host:80", "http"), ("tcp://host:1?chunk=7", "chunk")):
        code, out, err = scene.run("send", "--qmp", scene.path("none"), *folder(scene), uri)
        equal((uri, code, out), (uri, 1, ""))
        says(err, what)


@test
def a_state_folder_that_cannot_be_used_is_one_sentence(scene):
    with open(scene.path("file"), "w", encoding="ascii"):
        pass
    for path in (scene.path("file"), scene.path("x" * 150)):
        code, out, err = scene.run("status", "--state-dir", path)
        equal((code, out), (1, ""))
        says(err)


# -------------------------------------------------------------------- nothing on record


@test
def without_records_there_is_nothing_to_do(scene):
    code, out, err = scene.run("status", *folder(scene))
    equal((code, err), (0, ""))
    equal(out, f"no migration is recorded in {scene.path('state')}\n")
    equal(scene.run("status", "--json", *folder(scene)), (0, "", ""))
    equal(scene.run("prune", *folder(scene)), (0, out, ""))
    qmp = ("--qmp", scene.path("qmp"))
    for args in (("cancel",), ("cancel", *qmp), ("set", "--max-bandwidth", "1G"), ("recover", *qmp),
                 ("rollback", "--yes", *qmp)):
        code, out, err = scene.run(*args, *folder(scene))
        equal((args, code, out), (args, 1, ""))
        says(err, "ib-migrate status")
    environment = dict(os.environ, IBX_STATE_DIR=scene.path("other"))
    assert scene.path("other") in scene.run("status", env=environment)[1]


# ------------------------------------------------------------------------- no monitor


@test
def a_monitor_that_is_not_there_is_one_sentence(scene):
    missing = scene.path("missing")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(scene.path("dead"))
    for path in (missing, scene.path("dead")):
        for args in (("send", "tcp://127.0.0.1:1"), ("receive", "--listen", "tcp://127.0.0.1:0"), ("check",),
                     ("check", "--destination"), ("send", "--quiet", "tcp://127.0.0.1:1")):
            code, out, err = scene.run(*args, "--qmp", path, *folder(scene))
            equal((args, code, out), (args, 1, ""))
            says(err, path)
    # From another folder it is the same one.
    code, _, err = scene.run("check", "--qmp", "missing", *folder(scene))
    equal(code, 1)
    says(err, missing)


@test
def a_failure_is_told_as_json_too(scene):
    for command in ("send", "recover"):
        code, out, err = scene.run(command, "--json", "--qmp", scene.path("missing"), *folder(scene),
                                   "tcp://127.0.0.1:1")
        equal(code, 1)
        says(err, scene.path("missing"))
        lines = [json.loads(line) for line in out.splitlines()]
        assert all(len(line) == 1 for line in lines), lines
        summary = lines[-1]["summary"]
        equal((summary["complete"], summary["exit_status"], summary["role"], summary["phase"]),
              (False, 1, "source", "failed"))
        assert scene.path("missing") in summary["error"], summary
        equal(summary["downtime_ns"], None)


# -------------------------------------------------------------------------- real VMs


class Vm:
    """A QEMU with the guest of tests/moves/guest."""

    def __init__(self, scene, *extra, ram=None, append="", incoming=False, place=""):
        if not {"QEMU", "GUEST_ELF", "GUEST_EXPECT"} <= os.environ.keys() or os.geteuid():
            raise Skip("needs QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and root")
        name = f"vm{len(scene.vms)}" if hasattr(scene, "vms") else "vm0"
        scene.vms = getattr(scene, "vms", []) + [self]
        self.socket, self.own, self.serial = (scene.path(os.path.join(place, f"{name}.{what}"))
                                                   for what in ("qmp", "own", "serial"))
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix=f"ibx-vm-{os.getpid()}-", delete=False) as file:
            self.ram = file.name
        ram = ram or f"memory-backend-file,id=mem0,size=64M,mem-path={self.ram},share=on"
        self.process = subprocess.Popen(
            [os.environ["QEMU"], "-name", "guest-of-a-test", "-M", "q35", "-accel", "tcg,thread=multi", "-m", "64",
             "-nodefaults", "-display", "none", "-no-reboot", "-kernel", os.environ["GUEST_ELF"], "-append", append,
             "-object", ram, "-machine", "memory-backend=mem0", "-serial", f"file:{self.serial}",
             "-qmp", f"unix:{self.socket},server=on,wait=off", "-qmp", f"unix:{self.own},server=on,wait=off",
             *(("-incoming", "defer") if incoming else ()), *extra],
            stdin=subprocess.DEVNULL, start_new_session=True)
        scene.started.append(self.process)
        until(lambda: self.listens() or self.process.poll() is not None, "QEMU's monitor")
        equal(self.process.poll(), None)

    def listens(self):
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.own) == 0

    def ask(self, command):
        """A command to the monitor that is not ib-migrate's."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(LIMIT)
            monitor.connect(self.own)
            with monitor.makefile("rw", encoding="utf-8") as lines:
                for what in ("qmp_capabilities", command):
                    lines.write(json.dumps({"execute": what, "id": what}) + "\n")
                    lines.flush()
                for line in lines:
                    answer = json.loads(line)
                    if answer.get("id") == command:
                        return answer["return"]
        raise AssertionError(f"no answer to {command}")

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


def vms_end(scene):
    for vm in getattr(scene, "vms", []):
        vm.process.kill()
        vm.process.wait()
        os.unlink(vm.ram)


def with_vms(function):
    def run(scene):
        try:
            function(scene)
        finally:
            vms_end(scene)
    run.__name__ = function.__name__
    return test(run)


def expect(*vms):
    """The guest's memory was right at every heartbeat, wherever it ran."""
    text = b""
    for vm in vms:
        with open(vm.serial, "rb") as serial:
            text += serial.read()
    done = subprocess.run([os.environ["GUEST_EXPECT"]], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def same_memory(source, destination):
    """Of a guest that has halted."""
    with open(source.ram, "rb") as one, open(destination.ram, "rb") as other:
        assert one.read() == other.read()


def receiver(scene, vm, *args, uri=None):
    """A receiver that waits, and its URI, where another one may wait when it was killed."""
    uri = uri or f"tcp://127.0.0.1:{free_port()}"
    process = scene.start("receive", "--json", "--qmp", vm.socket, "--listen", uri, *folder(scene), *args)
    process.lines = []
    found = wait_for_status(process, lambda status: status["phase"] == "waiting" and status["record"])
    return process, found["record"]["uri"]


def wait_for_status(process, wanted):
    while True:
        line = process.stdout.readline()
        assert line, (process.lines[-1:], process.communicate(timeout=LIMIT))
        process.lines.append(json.loads(line))
        status = process.lines[-1].get("status")
        if status and wanted(status):
            return status


def finish(process):
    """Exit status, summary, standard error."""
    out, err = process.communicate(timeout=LIMIT)
    process.lines += [json.loads(line) for line in out.splitlines()]
    assert all(len(line) == 1 for line in process.lines), process.lines
    return process.returncode, process.lines[-1]["summary"], err


@with_vms
def check_says_every_reason_and_touches_nothing(scene):
    private = Vm(scene, ram="memory-backend-ram,id=mem0,size=64M")
    code, out, err = scene.run("check", "--qmp", private.socket, *folder(scene))
    equal((code, err), (1, ""))
    assert "private" in out and "share=on" in out, out
    code, out, err = scene.run("check", "--json", "--qmp", private.socket, *folder(scene))
    answer = json.loads(out)
    equal((code, err, answer["movable"]), (1, "", False))
    assert any("share=on" in one for one in answer["refusals"]), answer
    code, out, _ = scene.run("check", "--destination", "--qmp", private.socket, *folder(scene))
    assert code == 1 and "-incoming defer" in out, out
    private.runs_on()
    good = Vm(scene)
    equal(scene.run("check", "--qmp", good.socket, *folder(scene)), (0, f"the VM at {good.socket} can be migrated\n", ""))
    code, out, err = scene.run("check", "--json", "--qmp", good.socket, *folder(scene))
    equal((code, err, json.loads(out)), (0, "", {"movable": True, "refusals": []}))
    good.runs_on()


@with_vms
def check_asks_the_receiver_which_goes_on_waiting(scene):
    source, other = Vm(scene), Vm(scene, "-M", "pc", incoming=True)
    equal(scene.run("check", "--destination", "--qmp", other.socket, *folder(scene)),
          (0, f"the VM at {other.socket} can receive\n", ""))
    waiting, uri = receiver(scene, other)
    for args in (("check",), ("check", "--json")):
        code, out, err = scene.run(*args, "--qmp", source.socket, *folder(scene), uri)
        equal((code, err), (1, ""))
        assert "-M pc-q35" in out, out
    equal(waiting.poll(), None)
    code, out, err = scene.run("send", "--qmp", source.socket, *folder(scene), uri)
    equal((code, out), (1, ""))
    assert "-M pc-q35" in err, err
    source.runs_on()


@with_vms
def a_waiting_receiver_is_shown_and_cancelled(scene):
    vm, other = Vm(scene, incoming=True), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, vm)
    second, _ = receiver(scene, other)
    code, out, err = scene.run("status", "--qmp", vm.socket, *folder(scene))
    equal((code, err, len(out.splitlines())), (0, "", 2))
    for word in ("destination  waiting", f"process {waiting.pid})", uri, vm.socket):
        assert word in out, out
    lines = [json.loads(line) for line in scene.run("status", "--json", *folder(scene))[1].splitlines()]
    equal([sorted(line) for line in lines], [["record", "sentence", "status", "trouble"]] * 2)
    equal({line["status"]["phase"] for line in lines}, {"waiting"})
    equal({line["record"]["qmp"] for line in lines}, {vm.socket, other.socket})
    for args in (("receive", "--listen", "tcp://127.0.0.1:0"), ("check", "--destination")):
        code, _, err = scene.run(*args, "--qmp", vm.socket, *folder(scene))
        assert code == 1 and f"(process {waiting.pid}) that waits" in err, err
    code, _, err = scene.run("cancel", *folder(scene))
    assert code == 1 and "2 migrations" in err and "--qmp" in err, err
    equal(scene.run("cancel", "--qmp", vm.socket, *folder(scene)), (0, "", ""))
    code, summary, _ = finish(waiting)
    equal((code, summary["complete"]), (1, False))
    assert "no VM had come" in summary["error"], summary
    os.kill(second.pid, signal.SIGSTOP)
    code, out, err = scene.run("status", *folder(scene))
    equal((code, out), (0, f"no migration is recorded in {scene.path('state')}\n"))
    assert f"(process {second.pid}) that waits for a VM does not answer" in err and "kill -CONT" in err, err
    second.kill()
    second.wait()
    equal(scene.run("status", *folder(scene))[1], f"no migration is recorded in {scene.path('state')}\n")
    assert not [name for name in os.listdir(scene.path("state")) if "waiting" in name]


@with_vms
def a_monitor_may_lie_deeper_than_an_address_is_long(scene):
    deep = scene.path("x" * 120)
    os.mkdir(deep)
    os.symlink(deep, scene.path("short"))
    vm = Vm(scene, incoming=True, place="short")
    for path in (vm.socket, os.path.join(deep, os.path.basename(vm.socket))):
        waiting, _ = receiver(scene, vm)
        code, out, err = scene.run("status", "--qmp", path, *folder(scene))
        equal((path, code, err, out.count("waiting")), (path, 0, "", 1))
        equal(scene.run("cancel", "--qmp", path, *folder(scene))[0], 0)
        equal(finish(waiting)[0], 1)
        code, _, err = scene.run("check", "--destination", "--qmp", path, *folder(scene))
        equal((code, err), (0, ""))


@with_vms
def nobody_at_the_destination_leaves_the_vm_running(scene):
    vm, port = Vm(scene), free_port()
    for args in (("send",), ("check",)):
        code, out, err = scene.run(*args, "--qmp", vm.socket, *folder(scene), f"tcp://127.0.0.1:{port}")
        equal((args, code, out), (args, 1, ""))
        assert str(port) in err and 'start "ib-migrate receive" there' in err, err
    vm.runs_on()
    equal(vm.ask("query-status")["status"], "running")


@with_vms
def a_destination_that_is_silent_is_not_waited_for_by_who_interrupts(scene):
    vm = Vm(scene)
    for number in (signal.SIGINT, signal.SIGTERM):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}?timeout_ms=30000"
            sender = scene.start("send", "--qmp", vm.socket, *folder(scene), uri)
            with silent.accept()[0]:
                sender.send_signal(number)
                out, err = sender.communicate(timeout=LIMIT)
        equal((sender.returncode, out), (1, ""))
        assert "goes on here" in err and "did not answer" not in err, err
    vm.runs_on()
    equal(vm.ask("query-status")["status"], "running")


@with_vms
def a_wrong_key_is_told_and_the_receiver_goes_on(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    good, bad = key_file(scene, "good", "alpha alpha alpha alpha"), key_file(scene, "bad", "beta beta beta beta beta")
    waiting, uri = receiver(scene, destination, "--key", good)
    for args in (("--key-file", bad), ()):
        code, out, err = scene.run("send", "--quiet", "--qmp", source.socket, *folder(scene), *args, uri)
        equal((code, out), (1, ""))
        assert "key" in err and all(line.startswith("ib-migrate: ") for line in err.splitlines()), err
    source.runs_on()
    equal(scene.run("check", "--qmp", source.socket, *folder(scene), "--key", good, uri),
          (0, f"the VM at {source.socket} can be migrated to {uri}\n", ""))
    equal(waiting.poll(), None)
    waiting.terminate()
    code, summary, err = finish(waiting)
    equal((code, summary["complete"], summary["exit_status"]), (1, False, 1))
    assert "cancelled" in err, err
    # Who was refused stands there once.
    refused = [line for line in err.splitlines() if "refused 127.0.0.1:" in line]
    equal([len(refused), *(line.count("127.0.0.1") for line in refused)], [2, 1, 1])


@with_vms
def a_vm_moves_and_both_sides_tell_how(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    key = key_file(scene, "key", "alpha alpha alpha alpha")
    # So slow in the background that the guest has to ask for its pages itself.
    waiting, uri = receiver(scene, destination, "--key", key, "--max-bandwidth", "100K")
    until(lambda: source.beats() > 40, "heartbeats")
    sender = scene.start("send", "--json", "--links", "1", "--key", key, "--qmp", source.socket, *folder(scene), uri)
    sender.lines = []
    for process, role in ((sender, "source"), (waiting, "destination")):
        code, summary, err = finish(process)
        equal((code, summary["role"], summary["phase"], summary["complete"], summary["exit_status"],
               summary["error"]), (0, role, "done", True, 0, None))
        equal((summary["ram_bytes"], summary["present_pages"]), (64 << 20, summary["pages"]))
        equal((summary["record"]["state"], summary["record"]["over"]), ("done", True))
        equal(summary["record"]["name"], "guest-of-a-test")
        assert summary["wire_bytes"] > 1 << 20 and summary["zero_pages"] > 0 and summary["faults"] > 0, summary
        assert 0 < summary["fault_p50_ns"] <= summary["fault_p99_ns"] <= summary["fault_max_ns"], summary
        phases = [line["status"]["phase"] for line in process.lines if "status" in line]
        order = ["waiting", "preparing", "switching", "filling", "done"]
        equal(sorted(phases, key=order.index), phases)
        assert "ib-migrate: filling: the VM runs at the destination" in err, err
        if role == "source":
            assert summary["downtime_ns"] > 0 and summary["state_bytes"] > 0 and summary["total_ns"] > 0, summary
    destination.runs_on()
    expect(source, destination)
    code, out, err = scene.run("status", *folder(scene))
    equal((code, err, out.count("guest-of-a-test"), out.count("with all of its pages")), (0, "", 4, 2))
    lines = [json.loads(line) for line in scene.run("status", "--json", *folder(scene))[1].splitlines()]
    equal([sorted(line) for line in lines], [["record", "sentence", "status", "trouble"]] * 2)
    equal({(line["record"]["role"], line["status"], line["trouble"]) for line in lines},
          {("source", None, None), ("destination", None, None)})
    for command in (("recover",), ("rollback", "--yes")):
        code, _, err = scene.run(*command, "--qmp", source.socket, *folder(scene))
        equal(code, 1)
        says(err, "no unfinished migration")


def halted(scene, **options):
    """A VM that has filled 32 MiB and does nothing any more, so that its pages are all fetched in the background."""
    vm = Vm(scene, append="beats=40", **options)
    until(lambda: vm.beats() == 40, "the guest to halt")
    return vm


def slow_move(scene):
    """A move that goes on until it is given more bandwidth: the VMs and the tools at work."""
    source, destination = halted(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    sender = scene.start("send", "--json", "--qmp", source.socket, *folder(scene), uri)
    sender.lines = []
    wait_for_status(sender, lambda status: status["phase"] == "filling")
    wait_for_status(waiting, lambda status: status["phase"] == "filling")
    return source, destination, sender, waiting


def let_go(scene, destination):
    equal(scene.run("set", "--max-bandwidth", "0", "--qmp", destination.socket, *folder(scene)), (0, "", ""))


@with_vms
def a_running_move_is_watched_and_changed(scene):
    source, destination, sender, waiting = slow_move(scene)
    lines = [json.loads(line) for line in scene.run("status", "--json", *folder(scene))[1].splitlines()]
    live = {line["record"]["role"]: line["status"] for line in lines}
    equal((live["source"]["phase"], live["destination"]["phase"]), ("filling", "filling"))
    equal((live["source"]["max_bandwidth"], live["destination"]["max_bandwidth"]), (None, 100 << 10))
    code, out, err = scene.run("status", "--qmp", destination.socket, *folder(scene))
    equal((code, err), (0, ""))
    assert "destination  running" in out and re.search(r"^  filling  .*pages left", out, re.M), out
    for args, words in ((("set", "--max-bandwidth", "1G"), "name one by --qmp"),
                        (("set", "--max-bandwidth", "1G", "--qmp", source.socket), "set the bandwidth there"),
                        (("cancel", "--qmp", source.socket), "cannot be cancelled"),
                        (("cancel", "--qmp", destination.socket), "cannot be cancelled"),
                        (("recover", "--qmp", destination.socket, "--quiet"), "ib-migrate"),
                        (("rollback", "--yes", "--qmp", source.socket), "works on this move: process")):
        code, out, err = scene.run(*args, *folder(scene))
        assert code in (1, 3) and out == "" and words in err, (args, code, out, err)
    let_go(scene, destination)
    for process in (sender, waiting):
        equal(finish(process)[0], 0)
    same_memory(source, destination)


@with_vms
def killed_tools_are_recovered_from(scene):
    source, destination, sender, waiting = slow_move(scene)
    waiting.kill()
    waiting.communicate()
    code, out, _ = scene.run("status", "--qmp", destination.socket, *folder(scene))
    assert code == 0 and "no ib-migrate works on it" in out, out
    # A line is as long as its sentence.
    wait_for_status(sender, lambda status: "nobody answers" in status["sentence"])
    out = scene.run("status", "--qmp", source.socket, *folder(scene))[1]
    assert 'start "ib-migrate recover" there, or correct the URI; connecting again\n' in out, out
    again = scene.start("recover", "--json", "--qmp", destination.socket, "--max-bandwidth", "100K", *folder(scene))
    again.lines = []
    wait_for_status(again, lambda status: status["phase"] == "filling")
    wait_for_status(sender, lambda status: status["phase"] == "filling" and status["reconnects"])
    sender.kill()
    _, err = sender.communicate()
    lost = re.findall(r"(\S.* (?:has ended|is lost): .*); connecting again", err)  # of pages, or all of it: noticed first
    assert lost and not any(line.startswith("ib-migrate: broken") for line in lost), err  # said once
    code, out, err = scene.run("rollback", "--yes", "--qmp", source.socket, *folder(scene))
    equal((code, out), (1, ""))
    assert "the VM runs there" in err and "not rolled back" in err, err
    code, _, err = scene.run("recover", "--qmp", source.socket, "--listen", "tcp://127.0.0.1:0", *folder(scene))
    equal(code, 1)
    says(err, "source")
    sender = scene.start("recover", "--json", "--qmp", source.socket, *folder(scene))
    sender.lines = []
    wait_for_status(sender, lambda status: status["phase"] == "filling")
    let_go(scene, destination)
    for process in (sender, again):
        code, summary, _ = finish(process)
        equal((code, summary["complete"], summary["record"]["state"]), (0, True, "done"))
    same_memory(source, destination)


@with_vms
def two_signals_leave_an_unfinished_move_with_status_3(scene):
    source, destination, sender, waiting = slow_move(scene)
    for process in (sender, waiting):
        process.send_signal(signal.SIGINT)
        wait_for(process, "say", "interrupt once more")
        process.send_signal(signal.SIGTERM)
        code, summary, err = finish(process)
        equal((code, summary["exit_status"], summary["complete"]), (3, 3, False))
        assert "recover" in err, err
    processes = [scene.start("recover", "--quiet", "--qmp", vm.socket, *folder(scene)) for vm in (destination, source)]
    for process in processes:
        out, err = process.communicate(timeout=LIMIT)
        equal((process.returncode, out, err), (0, "", ""))
    same_memory(source, destination)


def wait_for(process, member, words):
    while True:
        line = process.stdout.readline()
        assert line, (process.lines[-1:], process.communicate(timeout=LIMIT))
        process.lines.append(json.loads(line))
        if words in process.lines[-1].get(member, ""):
            return


class Terminal:
    """The tool on a terminal of this many columns."""

    def __init__(self, scene, *args, columns=80):
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        self.seen = ""
        self.process = subprocess.Popen([scene.program, *args], stdin=slave, stdout=slave, stderr=slave,
                                        cwd=scene.folder.name, start_new_session=True)
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
        code = self.process.wait(LIMIT)
        return code, [line.rsplit("\r\033[K", 1)[-1] for line in self.seen.split("\r\n")]


@with_vms
def a_terminal_shows_one_line_that_fits(scene):
    source, destination = halted(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination, "--max-bandwidth", "100K")
    sender = Terminal(scene, "send", "--qmp", source.socket, *folder(scene), uri, columns=50)
    sender.wait_for(r"\rfilling  \d+ pages left")
    let_go(scene, destination)
    code, lines = sender.finish()
    equal(code, 0)
    drawn = re.findall(r"\r([^\r\n]*)\033\[K", sender.seen)
    assert drawn and all(len(line) < 50 for line in drawn), drawn
    assert re.fullmatch(r"guest-of-a-test: migrated to \S+, complete and confirmed", lines[0]), lines
    assert any(line.startswith("  downtime ") for line in lines), lines
    equal(finish(waiting)[0], 0)
    same_memory(source, destination)


@with_vms
def rollback_says_what_is_true_and_asks(scene):
    source, destination, sender, waiting = slow_move(scene)
    destination.process.kill()
    destination.process.wait()
    waiting.kill()
    waiting.communicate()
    _, out, _ = scene.run("status", "--qmp", destination.socket, *folder(scene))
    assert re.search(r"does not run here: its QEMU \(process \d+\) has ended; .*rollback", out), out
    line = json.loads(scene.run("status", "--json", "--qmp", destination.socket, *folder(scene))[1])
    assert "does not run here" in line["sentence"], line
    wait_for_status(sender, lambda status: status["phase"] == "broken")
    code, _, err = scene.run("rollback", "--yes", "--qmp", source.socket, *folder(scene))
    equal(code, 1)
    says(err, f"process {sender.pid} ", "two SIGTERM")
    sender.send_signal(signal.SIGINT)
    wait_for(sender, "say", "interrupt once more")
    sender.send_signal(signal.SIGINT)
    equal(finish(sender)[0], 3)
    code, out, err = scene.run("rollback", "--qmp", source.socket, *folder(scene))
    equal((code, out), (1, ""))
    for words in ("does not answer", "Everything that the VM did", "runs twice", "needs --yes"):
        assert words in err, err
    for answer in ("no", "", "YES"):
        asked = Terminal(scene, "rollback", "--qmp", source.socket, *folder(scene))
        asked.wait_for(r"Type the VM's name \(guest-of-a-test\) or yes to roll back: ")
        asked.write(answer + "\n")
        code, lines = asked.finish()
        equal((answer, code, "ib-migrate: nothing was done" in lines), (answer, 1, True))
        equal(source.ask("query-status")["running"], False)
    asked = Terminal(scene, "rollback", "--qmp", source.socket, *folder(scene))
    asked.wait_for("to roll back: ")
    asked.write("guest-of-a-test\n")
    code, lines = asked.finish()
    equal((code, "guest-of-a-test: rolled back, it runs here again" in lines), (0, True))
    equal(source.ask("query-status")["running"], True)
    code, out, _ = scene.run("status", "--qmp", source.socket, *folder(scene))
    assert code == 0 and "rolled-back" in out, out
    code, _, err = scene.run("rollback", "--yes", "--qmp", source.socket, *folder(scene))
    equal(code, 1)
    says(err, "no unfinished migration")


@with_vms
def who_does_not_read_holds_up_nothing(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination)
    until(lambda: source.beats() > 40, "heartbeats")
    # By a link to a link in a folder that is one, too; the socket itself goes with its QEMU.
    os.symlink(os.path.dirname(source.socket), scene.path("folder"))
    os.symlink(os.path.join("folder", os.path.basename(source.socket)), scene.path("middle"))
    os.symlink(scene.path("middle"), scene.path("link"))
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 512)
    except BlockingIOError:
        os.set_blocking(writing, True)
    sender = scene.start("send", "--json", "--quit", "--qmp", scene.path("link"), *folder(scene), uri, stdout=writing)
    os.close(writing)
    equal(finish(waiting)[0], 0)
    equal(sender.poll(), None)  # it still wants to say how it was
    os.close(reading)
    equal(sender.wait(LIMIT), 0)
    equal(source.process.wait(LIMIT), 0)  # --quit
    assert not os.path.exists(source.socket)
    for path in ("link", scene.path("folder/" + os.path.basename(source.socket)), source.socket):
        code, out, err = scene.run("status", "--qmp", path, *folder(scene))
        equal((path, code, err, out.count(source.socket), out.count("source")), (path, 0, "", 1, 1))
        assert re.search(r" went to .* its QEMU here \(process \d+\) has ended\n", out), out
    assert "runs here with all of its pages" in scene.run("status", "--qmp", destination.socket, *folder(scene))[1]
    destination.process.kill()
    destination.process.wait(LIMIT)
    out = scene.run("status", "--qmp", destination.socket, *folder(scene))[1]
    assert re.search(r" came here with all of its pages; its QEMU \(process \d+\) has ended since\n", out), out
    code, out, err = scene.run("recover", "--json", "--qmp", "link", *folder(scene))
    equal((code, json.loads(out.splitlines()[-1])["summary"]["exit_status"]), (1, 1))
    says(err, "no unfinished migration", "only if ib-migrate status reports complete")


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
