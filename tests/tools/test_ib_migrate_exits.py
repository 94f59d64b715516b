#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_exits.py IB-MIGRATE: what programs read of the tool: --json on every exit."""
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
from harness import (LIMIT, Skip, alive, children, equal, free_port, process_state, run_all, until,
                     within)

import migrate_scene as tool
from migrate_scene import OLD_RECORD, Vm, case, objects, start

OUTCOMES = {0: "done", 1: "failed", 2: "wrong-usage", 3: "unfinished"}


def ends(scene, status, line, *more, command="", words=()):
    """The last object of --json says how it ended, as the exit status and standard error do."""
    code, out, err = scene.run(*line.split(), *more)
    lines = objects(out)
    assert lines and all(len(one) == 1 for one in lines), (line, code, out, err)
    (kind, last), = lines[-1].items()
    assert kind in ("summary", "result"), lines[-1]
    equal((line, code, last["exit_status"], last["outcome"]),
          (line, status, status, OUTCOMES[status]))
    if kind == "result":
        equal(sorted(last), ["command", "error", "exit_status", "outcome"])
        equal(last["command"], command or line.split()[0])
    if status:
        assert len(last["error"]) > 15 and "\n" not in last["error"], last
        whole_sentence(last["error"])
        for word in words:
            assert word in last["error"], (line, word, last)
    else:
        equal(last["error"], None)
    return last


def whole_sentence(text):
    """Nothing is missing at its end or in its middle."""
    assert not re.search(r"[:;,(]\s*$|: [;:)]|\(\)|\(null\)", text), text


@case
def every_wrong_usage_is_an_object(scene):
    for line, words in (("move --json", 'no command "move"'), ("--json", "a command is needed"),
                        ("send --json --qmp Q", "needs a URI: give rdma://host:port"),
                        ("set --j", "--max-bandwidth"),
                        ("status more --js", "one argument too many"),
                        ("cancel --json --yes", "does not go with"),
                        ("status --json --nonsense", "command line is wrong"),
                        ("status --json --prometheus", "two formats")):
        code, out, err = scene.run(*line.split())
        (result,) = [one["result"] for one in objects(out)]
        equal((line, code, result["exit_status"], result["outcome"]),
              (line, 2, 2, "wrong-usage"))
        assert words in result["error"] and err, (line, result)
    equal(scene.run("--help", "--json")[0], 0)
    equal(scene.run("--version", "--json")[1].count("{"), 0)


@case
def a_send_for_libvirt_that_is_interrupted_was_not_killed(scene):
    """Before the destination answers. Another process undoes what it has begun, and says so."""
    vm, gate = Vm(scene), scene.path("gate")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = scene.start("send", "--libvirt", gate, *vm.qmp,
                             f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        until(lambda: os.path.exists(gate), "the socket for libvirt")
        sender.send_signal(signal.SIGTERM)
        _, err = sender.communicate(timeout=LIMIT)
    equal(sender.returncode, 1)
    assert "cancelled" in err and "goes on here" in err and "killed" not in err, err
    assert not os.path.exists(gate)
    vm.runs_on()


@case
def a_signal_before_anything_was_begun_is_an_object(scene):
    """While the monitor says nothing yet: it has other clients, or its QEMU is stopped."""
    monitor = socket.socket(socket.AF_UNIX)
    monitor.bind(scene.path("monitor"))
    monitor.listen()
    qmp = f"--qmp {scene.path('monitor')}"
    for number, status, line, words in (
            (signal.SIGTERM, 1, f"send {qmp} tcp://127.0.0.1:1", "the VM stays here"),
            (signal.SIGINT, 1, f"borrow --yes {qmp} tcp://127.0.0.1:1", "the VM stays here"),
            (signal.SIGHUP, 1, f"run {qmp} --to nowhere", "the VM stays here"),
            (signal.SIGTERM, 5, f"receive {qmp} --listen tcp://127.0.0.1:0", "no VM had come")):
        process = scene.start(*line.split(), "--json")
        client = monitor.accept()[0]
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT)
        client.close()
        (last,) = objects(out)
        (kind, last), = last.items()
        # A receiver that may take signals already has a summary.
        assert kind == "result" or line.startswith("receive"), (line, kind)
        equal([line, process.returncode, last["exit_status"], last["outcome"]],
              [line, status, status, "stopped" if status == 5 else "failed"])
        assert words in last["error"] and err.endswith(f"ib-migrate: {last['error']}\n"), err
    monitor.close()


@case
def two_signals_before_anything_was_begun_print_one_result(scene):
    """The first one waits for somebody to take the result, the second one does not."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.bind(scene.path("monitor"))
        monitor.listen()
        read, write, there = full_pipe()
        process = scene.start("send", "--qmp", scene.path("monitor"), "tcp://127.0.0.1:1", "--json",
                              stdout=write)
        os.close(write)
        client = monitor.accept()[0]
        process.send_signal(signal.SIGINT)
        said = process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        with open(read, "rb") as file:
            lines = objects(file.read()[there:].decode())
        _, more = process.communicate(timeout=LIMIT)
        client.close()
    assert "the VM stays here" in said, said
    equal((process.returncode, more), (1, ""))
    assert len(lines) <= 1, lines


@case
def a_second_signal_in_the_middle_of_the_first_loses_no_result(scene):
    if "IBX_SECOND_SIGNAL" not in os.environ:
        raise Skip("needs IBX_SECOND_SIGNAL in the environment")
    twice = dict(os.environ, LD_PRELOAD=os.environ["IBX_SECOND_SIGNAL"],
                 ASAN_OPTIONS="verify_asan_link_order=0")
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.bind(scene.path("monitor"))
        monitor.listen()
        process = scene.start("send", "--qmp", scene.path("monitor"), "tcp://127.0.0.1:1", "--json",
                              env=twice)
        client = monitor.accept()[0]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
        client.close()
    (result,) = objects(out)
    equal((process.returncode, result["result"]["exit_status"]), (1, 1))
    equal(err, f"ib-migrate: {result['result']['error']}\n")


@case
def every_failure_is_an_object(scene):
    missing, file = scene.path("missing"), scene.path("file")
    with open(file, "w", encoding="ascii"):
        pass
    for line, words in (("cancel --json", "no ib-migrate works"),
                        ("cancel --json --qmp Q", "no ib-migrate works"),
                        ("set --json --max-bandwidth 1G", "no ib-migrate works"),
                        ("rollback --json --yes --qmp Q", "no unfinished migration"),
                        ("recover --json --qmp Q", "no unfinished migration"),
                        (f"send --json --qmp {missing} tcp://127.0.0.1:1", missing),
                        (f"send --json --qmp {missing} http://127.0.0.1:1", "http"),
                        (f"receive --json --qmp {missing} --listen tcp://127.0.0.1:0", missing),
                        (f"status --json --state-dir {file}", "is no folder"),
                        (f"prune --json --state-dir {file}", "is no folder"),
                        ("send --json --state-dir /proc/none --qmp Q tcp://127.0.0.1:1", "/proc"),
                        (f"check --json --state-dir {file} --qmp Q", "is no folder")):
        ends(scene, 1, line, words=(words,))
    for line, words in (("set --json --max-bandwidth fast", "--max-bandwidth"),
                        ("send --json --links 99", "--links"),
                        ("receive --json --set chunk=7", "--set")):
        code, out, _ = scene.run(*line.split())
        (result,) = [one["result"] for one in objects(out)]
        equal((line, code, result["exit_status"]), (line, 1, 1))
        assert words in result["error"], result
    code, out, _ = scene.run("check", "--json", "--qmp", missing)
    answer, = objects(out)
    equal((code, answer["exit_status"], answer["movable"]), (1, 1, False))
    assert missing in answer["error"], answer
    os.makedirs(scene.path("state"), exist_ok=True)
    with open(scene.path("state/" + "ab" * 16 + ".source.json"), "w", encoding="ascii") as file:
        file.write("{}")
    for line in ("status --json", "prune --json", "cancel --json", "recover --json --qmp Q",
                 "rollback --json --qmp Q"):
        ends(scene, 1, line, words=("is not a record",))


@case
def a_qemu_that_ends_at_once_leaves_no_process(scene):
    """It may be a script, which has started something else."""
    left = scene.path("left")
    os.makedirs(scene.path("folder"), mode=0o700)
    ends(scene, 1, f"clone --json --qmp {scene.path('none')} {scene.path('folder')}", "--", "sh",
         "-c", f"sleep {LIMIT} & echo $! >{left}; exit 3", words=("has ended before it had",))
    with open(left, encoding="ascii") as file:
        pid = int(file.read())
    until(lambda: not alive(pid), "the end of what it had started")


@case
def a_qemu_of_clone_is_like_one_of_a_shell(scene):
    """It has the signals and the core dumps that this tool was started with."""
    now = scene.path("now")
    with open("/proc/self/coredump_filter", encoding="ascii") as file:
        cores = file.read()
    os.makedirs(scene.path("folder"), mode=0o700)
    ends(scene, 1, f"clone --json --qmp {scene.path('none')} {scene.path('folder')}", "--", "sh",
         "-c", f"cat /proc/self/coredump_filter >{now}; grep SigIgn /proc/self/status >>{now}",
         words=("has ended before it had",))
    with open(now, encoding="ascii") as file:
        found, ignored = file.readlines()
    own = subprocess.run(["grep", "SigIgn", "/proc/self/status"], check=True, text=True,
                         stdout=subprocess.PIPE).stdout
    equal((found, ignored), (cores, own))


@case
def names_that_are_no_utf_8_lose_no_line(scene):
    """Names of files may be any bytes, and sentences may be cut inside of a character."""
    memory = scene.path("memory-\udcff")
    with open(memory, "wb") as file:
        file.write(b"x" * 4096)
    os.chmod(memory, 0o600)
    server = scene.start("serve", "--json", "--listen", "tcp://127.0.0.1:0", memory)
    with within(LIMIT, "the first line"):
        (serving,) = json.loads(server.stdout.readline()).values()
    equal(serving["folder"], scene.path("memory-?"))
    server.terminate()
    equal(server.wait(LIMIT), 0)
    os.makedirs(scene.path("state"))
    path = scene.path(f"state/{'01' * 16}.source.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(dict(OLD_RECORD, name="", uuid="", qmp="/x" + "\u00e9" * 500), file)
    os.chmod(path, 0o600)
    code, out, err = scene.run("prune", "--json")
    equal((code, [sorted(line) for line in objects(out)], err), (0, [["prune"], ["result"]], ""))


@case
def output_that_is_lost_is_said(scene):
    """A file system that is full, where what is printed goes. What was done stays as it is."""
    missing = scene.path("missing")
    for more in ((), ("--json",)):
        with open("/dev/full", "w", encoding="ascii") as full:
            code, _, err = scene.run("send", *more, "--qmp", missing, "tcp://127.0.0.1:1",
                                     stdout=full)
        last = "ib-migrate: standard output could not be written"
        equal((code, err.splitlines()[1:]), (1, [last] if more else []))


@case
def a_receiver_that_cannot_wait_does_not_say_that_it_waits(scene):
    """Its folder, where others find it, is on a file system that is read-only. A check says so."""
    vm, folder = Vm(scene, incoming=True), scene.path("read-only")
    os.mkdir(folder, 0o700)
    mounted = f"mount -t tmpfs -o ro,mode=700 none {folder} && exec $0 $@"
    for words in (("receive", *vm.qmp, "--listen", "tcp://127.0.0.1:0"),
                  ("check", "--destination", *vm.qmp)):
        done = subprocess.run(["unshare", "-m", "sh", "-c", mounted, scene.program, *words,
                               "--state-dir", folder],
                              capture_output=True, text=True, timeout=LIMIT, check=False)
        if "unshare" in done.stderr:
            raise Skip("no namespace for mounts")
        equal(done.returncode, 1)
        said = done.stdout + done.stderr
        equal(len(said.splitlines()), 1)
        for word in folder, "Read-only", "--state-dir":
            assert word in said, said


@case
def the_second_of_two_receivers_for_libvirt_is_refused(scene):
    """There is no QEMU yet, whose monitor would have one client. The remedy can be pasted."""
    qmp = scene.path("web's monitor")
    line = ("receive", "--libvirt", scene.path("gate"), "--qmp", qmp, "--listen",
            "tcp://127.0.0.1:0")
    first = scene.start(*line)
    assert "waiting for libvirt" in first.stderr.readline()
    err = tool.fails(scene, *line)
    remedy = re.search(r"ib-migrate (cancel --qmp .*) ends it", err)
    assert f"process {first.pid}" in err and remedy, err
    equal(first.poll(), None)
    subprocess.run(["sh", "-c", f"{scene.program} {remedy[1]}"], check=True, timeout=LIMIT)
    first.communicate(timeout=LIMIT)
    equal(first.returncode, 5)


@case
def whoever_has_the_monitor_is_named(scene):
    """A freeze has no record, and other programs have none either. A check is waited for."""
    frozen, other, checked = Vm(scene), Vm(scene), Vm(scene)
    holder = tool.looks_like(scene, "check", checked)
    freeze = scene.start("freeze", *frozen.qmp, scene.path("folder"),
                         env=tool.stops_at("freeze:prepared"))
    until(lambda: process_state(freeze.pid) == "T", "the freeze")
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(other.socket)
        assert monitor.recv(1)
        for process, *words in (
                (scene.start("check", *frozen.qmp), f"{frozen.socket}, and QEMU serves one client",
                 f"process {freeze.pid} (ib-migrate freeze) works at"),
                (scene.start("check", *other.qmp), f"process {os.getpid()} (",
                 f"has the QMP socket {other.socket}", "-qmp socket of its own"),
                (scene.start("check", *checked.qmp), f"process {holder.pid} (ib-migrate check)",
                 f"has the QMP socket {checked.socket}")):
            _, err = process.communicate(timeout=LIMIT)
            equal(process.returncode, 1)
            tool.says(err.splitlines()[-1], *words)
    freeze.send_signal(signal.SIGCONT)
    freeze.communicate(timeout=LIMIT)


@case
def libvirt_keeps_its_monitor(scene):
    """It is not waited for, and nobody is told to end it: it would lose the VM."""
    vm = Vm(scene)
    holds = ("import socket, sys, time; open('/proc/self/comm', 'w').write('libvirtd'); "
             "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(1)); "
             "sys.stdout.flush(); time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", holds, vm.socket],
                          stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline()
        code, _, err = scene.run("check", *vm.qmp)
        holder.kill()
    equal(code, 1)
    tool.says(err, f"process {holder.pid} (libvirtd) has the QMP socket {vm.socket}",
              "a second monitor for this tool")
    assert "waiting" not in err and "end that process" not in err, err


@case
def whoever_has_the_monitor_is_named_at_once(scene):
    """... and waited for."""
    vm = Vm(scene)
    holder = tool.looks_like(scene, "check", vm)
    process = scene.start("check", *vm.qmp)
    line = process.stderr.readline()
    assert f"process {holder.pid} (ib-migrate check) has the QMP socket" in line, line
    assert re.search(r": waiting \d+ s at most\n", line), line
    holder.communicate()
    _, err = process.communicate(timeout=LIMIT)
    equal((process.returncode, err), (0, ""))


@case
def a_remedy_names_the_folder_that_was_given(scene):
    """It can be pasted: without that option it would look for records elsewhere."""
    vm, folder = Vm(scene, incoming=True), scene.path("its folder")
    waiting = scene.start("receive", "--listen", "tcp://127.0.0.1:0", *vm.qmp, "--state-dir",
                          folder)
    while "waiting at" not in waiting.stderr.readline():
        equal(waiting.poll(), None)
    for more, words in ((("--state-dir", folder), f"--qmp {vm.socket} --state-dir '{folder}' ends"),
                        ((), "works at the QMP socket")):
        err = tool.fails(scene, "check --destination", *vm.qmp, *more)
        assert words in err, err


@case
def the_slower_of_two_tools_does_not_wait_for_the_other(scene):
    """Neither had a record when they began, as with two that begin in the same instant."""
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = tool.receiver(scene, destination)
    sender = tool.start(scene, "send --json", *source.qmp, uri, env=tool.stops_at("source:sending"))
    until(lambda: process_state(sender.pid) == "T", "the sender")
    for vm, other, command in ((destination, waiting, "receive"), (source, sender, "send")):
        line = "receive --listen tcp://127.0.0.1:0" if command == "receive" else f"send {uri}"
        tool.says(tool.fails(scene, f"{line} --state-dir {scene.path('another')}", *vm.qmp),
                  f"process {other.pid} (ib-migrate {command}) works at the QMP socket {vm.socket}")
    for line in (f"send {uri} --state-dir {scene.path('another')}",
                 f"freeze {scene.path('snapshot')}"):
        tool.says(tool.fails(scene, line, "--qmp", source.own),
                  f"another ib-migrate works on the VM of this QEMU (process {source.process.pid})")
    for vm, words, more in (
            (source, "another ib-migrate works on the VM of", ()),
            (destination, f"another ib-migrate (process {waiting.pid}) is receiving a VM into",
             ("--destination",))):
        code, out, _ = scene.run("check", "--qmp", vm.own, "--state-dir", scene.path("another"),
                                 *more)
        equal(code, 1)
        assert f"{words} this QEMU (process {vm.process.pid})" in out, out
    tool.says(tool.fails(scene, "freeze", *destination.qmp, scene.path("folder")),
              f"process {waiting.pid} (ib-migrate receive) works at")
    sender.send_signal(signal.SIGCONT)
    for process in (sender, waiting):
        equal(tool.finish(process)[0], 0)


@case
def standard_output_that_cannot_be_written_changes_the_status(scene):
    os.makedirs(scene.path("state"))
    path = scene.path(f"state/{'01' * 16}.source.json")
    with open(path, "w", encoding="ascii") as file:
        json.dump(OLD_RECORD, file)
    os.chmod(path, 0o600)
    for line in ("status", "status --json", "status --prometheus", "check --json --qmp Q",
                 "prune --json", "--help", "send --help", "--version"):
        with open("/dev/full", "w", encoding="ascii") as full:
            process = scene.start(*line.split(), stdout=full)
            _, err = process.communicate(timeout=LIMIT)
        equal((line, process.returncode), (line, 1))
        assert "standard output could not be written" in err, (line, err)


@case
def a_record_of_which_a_copy_was_read_is_said(scene):
    os.makedirs(scene.path("state"))
    path = scene.path(f"state/{'01' * 16}.source.json")
    for name, text in ((path, "{"), (path.replace(".json", ".copy"),
                                     json.dumps(dict(OLD_RECORD, state="moved")))):
        with open(name, "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(name, 0o600)
    words = f"{path} is damaged, and a copy of it was read"
    equal(tool.succeeds(scene, "status").splitlines()[-1], f"  {words}")
    (line,) = objects(tool.succeeds(scene, "status --json"))
    equal((line["record"]["state"], line["status"], line["trouble"]), ("moved", None, words))
    os.unlink(path)  # without it there is no migration
    assert "no migration is recorded" in tool.succeeds(scene, "status")


@case
def a_vm_that_ended_with_its_qemu_is_not_said_to_be_here(scene):
    vm = Vm(scene)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}?timeout_ms=1000"
        sender = start(scene, "send --json", *vm.qmp, uri)
        with silent.accept()[0]:
            vm.end()
            _, err = sender.communicate(timeout=LIMIT)
    equal(sender.returncode, 1)
    assert "ended with it: start it from its disk" in err and "stayed" not in err, err
    for state, words in (("here", "ended with it: start it from its disk"),
                         ("kept", "ended with it: start it from its disk"),
                         ("broken", "nothing can restart it from where it stopped")):
        tool.rewrite_record(scene, "source", state=state)
        (answer,) = objects(tool.succeeds(scene, "status --json"))
        equal(answer["record"]["state"], state)
        assert words in answer["sentence"], answer


@case
def whoever_interrupts_a_send_gets_a_summary(scene):
    vm = Vm(scene)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}?timeout_ms=30000"
        sender = start(scene, "send --json", *vm.qmp, uri)
        with silent.accept()[0]:
            sender.send_signal(signal.SIGTERM)
            code, summary, err = tool.finish(sender)
    equal((code, summary["exit_status"], summary["outcome"]), (1, 1, "failed"))
    assert "the VM stays here" in summary["error"] and "the VM stays here" in err, (summary, err)
    assert "ended before the commit" not in err, err  # once is enough, and it was no accident
    vm.runs_on()


def in_background():
    """As a shell without job control starts "command &", below nohup(1)."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def nothing_interrupts(process):
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        process.send_signal(number)


def stopped(scene, state, *line):
    """Starts a tool in the background, and waits until it has stopped itself in this state."""
    process = scene.start(*line, env=tool.stops_at(state), preexec_fn=in_background)
    until(lambda: process_state(process.pid) == "T" or process.poll() is not None, state)
    return process


@case
def what_is_ignored_from_the_start_stays_ignored(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    freeze = stopped(scene, "freeze:copied", "freeze", *source.qmp, scene.path("folder"))
    nothing_interrupts(freeze)
    freeze.send_signal(signal.SIGCONT)
    _, err = freeze.communicate(timeout=LIMIT)
    equal((freeze.returncode, err), (0, ""))
    ask_qmp(source.own, "cont")
    server = scene.start("serve", scene.path("folder"), "--listen", "tcp://127.0.0.1:0",
                         preexec_fn=in_background)
    assert server.stdout.readline()
    nothing_interrupts(server)
    waiting, uri = tool.receiver(scene, destination, preexec_fn=in_background)
    nothing_interrupts(waiting)
    sender = stopped(scene, "source:sending", "send", "--json", *source.qmp, uri)
    nothing_interrupts(sender)
    sender.send_signal(signal.SIGCONT)
    sender.communicate(timeout=LIMIT)
    equal((sender.returncode, tool.finish(waiting)[0]), (0, 0))
    destination.runs_on()
    equal(server.poll(), None)
    server.terminate()
    server.communicate(timeout=LIMIT)
    equal(server.returncode, 0)
    tool.expect(source, destination)


def full_pipe():
    """Its ends, and how many bytes are in it."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    there = 0
    try:
        while True:
            there += os.write(write, b" " * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
        return read, write, there


def is_program(process):
    """Python's own child blocks signals before that."""
    with open(f"/proc/{process.pid}/comm", encoding="ascii") as file:
        return file.read() == "ib-migrate\n"


def takes_sigterm(process):
    """Whether one of its threads does."""
    def blocked(path):
        try:
            with open(path, encoding="ascii") as file:
                (mask,) = re.findall(r"^SigBlk:\s*(\w+)", file.read(), re.M)
        except (FileNotFoundError, ProcessLookupError):  # that thread has ended
            return True
        return int(mask, 16) >> (signal.SIGTERM - 1) & 1
    return not all(blocked(path) for path in glob.glob(f"/proc/{process.pid}/task/*/status"))


def interrupted(scene, *line):
    """A migration that was interrupted, whose end is printed and not taken; where it is printed,
    and how many other bytes come before that."""
    read, write, there = full_pipe()
    process = scene.start(*line, "--json", stdout=write)
    os.close(write)
    until(lambda: is_program(process) and not takes_sigterm(process), "the migration's beginning")
    process.send_signal(signal.SIGTERM)
    until(lambda: takes_sigterm(process), "its end")
    return process, read, there


def two_that_wait(scene):
    """A sender and a receiver that wait for the other side."""
    silent = socket.create_server(("127.0.0.1", 0))
    source, destination = Vm(scene), Vm(scene, incoming=True)
    yield "send", *source.qmp, f"tcp://127.0.0.1:{silent.getsockname()[1]}?timeout_ms=30000"
    yield "receive", *destination.qmp, "--listen", "tcp://127.0.0.1:0"
    source.runs_on()
    silent.close()


@case
def whoever_interrupts_the_end_gets_the_summary(scene):
    for line in two_that_wait(scene):
        process, read, there = interrupted(scene, *line)
        process.send_signal(signal.SIGTERM)
        with open(read, "rb") as file:
            lines = objects(file.read()[there:].decode())
        process.wait(LIMIT)
        assert lines and "summary" in lines[-1], (line, process.returncode, lines)
        equal(lines[-1]["summary"]["exit_status"], process.returncode)


@case
def whoever_interrupts_the_end_again_and_again_ends_it(scene):
    """Nobody ever takes what is printed, as on a terminal that is stopped."""
    for line in two_that_wait(scene):
        process, read, _ = interrupted(scene, *line)

        def has_ended(process=process):
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        until(has_ended, "the tool to end")
        os.close(read)


@case
def who_reads_to_the_end_does_not_wait_for_a_silent_destination(scene):
    """As in `ib-migrate send ... 2>&1 | tee log`: the watchdog tries for a while to tell it."""
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = tool.receiver(scene, destination)
    sender = scene.start("send", *source.qmp, uri, env=tool.stops_at("source:asking"),
                         stderr=subprocess.STDOUT)
    until(lambda: process_state(sender.pid) == "T", "it to ask the destination")
    (watchdog,) = children(sender.pid)
    waiting.send_signal(signal.SIGSTOP)
    sender.send_signal(signal.SIGINT)
    sender.send_signal(signal.SIGCONT)
    assert "cancelled" in sender.stdout.read()
    equal(os.readlink(f"/proc/{watchdog}/fd/2"), "/dev/null")  # it still tries
    equal(sender.wait(LIMIT), 1)
    source.runs_on()


@case
def a_migration_is_steered_by_objects(scene):
    source, destination, sender, waiting = tool.slow_migration(scene)
    ends(scene, 1, "cancel --json", *source.qmp, words=("cannot be cancelled",))
    ends(scene, 1, "set --json --max-bandwidth 1G", words=("choose one of them",))
    ends(scene, 1, "rollback --json --yes", *source.qmp, words=("two SIGTERM",))
    code, out, _ = scene.run("prune", "--json", "--unfinished", *source.qmp)
    kept, result = objects(out)
    equal((code, kept["prune"]["deleted"], result["result"]["exit_status"]), (0, False, 0))
    assert "its QEMU lives" in kept["prune"]["kept_because"], kept
    ends(scene, 0, "set --json --max-bandwidth 0", *destination.qmp)
    for process in (sender, waiting):
        code, summary, _ = tool.finish(process)
        equal((code, summary["outcome"]), (0, "done"))
    source.end()
    shutil.copytree(scene.path("state"), scene.path("copy"))
    # First as if a VM had come into the same file; who is told of it may remove it.
    for state, opened, named in (("copy", source.ram, None), ("state", os.devnull, source.ram)):
        with open(opened, "r+b"):
            code, out, _ = scene.run("prune", "--json", "--state-dir", scene.path(state),
                                     *source.qmp)
        objects_of_prune = objects(out)
        equal((code, len(objects_of_prune)), (0, 2))
        equal(objects_of_prune[0]["prune"]["memory_file"], named)
        equal(sorted(objects_of_prune[0]["prune"]), ["deleted", "kept_because", "memory_file",
                                                     "record", "sentence"])
    equal(ends(scene, 0, "prune --json")["command"], "prune")


@case
def who_gives_up_says_a_whole_sentence(scene):
    source, destination, sender, waiting = tool.slow_migration(scene)
    for process in (sender, waiting):
        tool.interrupt_twice(process)
    for line, vm, word in (("recover --json --give-up 1", source, "the destination has been away"),
                           ("recover --json --give-up 1", destination, "the source has been away")):
        last = ends(scene, 3, line, *vm.qmp, words=(word, "ib-migrate recover"))
        whole_sentence(last["sentence"])
    destination.end()
    code, out, err = scene.run("rollback", "--json", *source.qmp)
    equal((code, objects(out)[-1]["result"]["outcome"]), (1, "failed"))
    assert "needs --yes" in objects(out)[-1]["result"]["error"], out
    ends(scene, 0, "rollback --json --yes", *source.qmp)
    equal(source.running(), True)


@case
def failed_tries_leave_one_record(scene):
    vm, port = Vm(scene), free_port()
    for _ in range(4):
        ends(scene, 1, "send --json", *vm.qmp, f"tcp://127.0.0.1:{port}", words=(str(port),))
    records = objects(scene.run("status", "--json")[1])
    equal([one["record"]["state"] for one in records], ["kept"])
    equal(len([name for name in os.listdir(scene.path("state")) if name.endswith(".lock")]), 1)


# ESC and CSI, as UTF-8 has the latter, a line's end, BEL and DEL: what a terminal acts on.
CONTROLS = "\x1b[31m\u009b31m\n\x07\x7f"


def harmless(text):
    """Nothing in it but whole lines of characters that are shown."""
    found = [one for one in text if one != "\n" and (one < " " or "\x7f" <= one <= "\x9f")]
    equal((text, found), (text, []))
    return text


@case
def what_is_printed_has_no_control_characters(scene):
    """Whoever names the paths, a VM or its host."""
    os.makedirs(scene.path("state"))
    path = scene.path(f"state/{'01' * 16}.source.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(dict(OLD_RECORD, name=f"a{CONTROLS}b", qmp=f"/run/a{CONTROLS}b",
                       uri=f"tcp://a{CONTROLS}:1", peer=f"h{CONTROLS}"), file)
    os.chmod(path, 0o600)
    for line in ("status", "status --json", "status --prometheus", "prune"):
        code, out, err = scene.run(*line.split())
        equal((line, code, harmless(err)), (line, 0, ""))
        assert line == "prune" or "01" * 16 in out or "a?[31m" in harmless(out), out
        if line.endswith("json"):
            equal(objects(out)[0]["record"]["name"], f"a{CONTROLS}b")
    strange = f"/tmp/x{CONTROLS}"
    for line in (("status", "--qmp", strange), ("check", "--qmp", strange), (strange,),
                 ("clone", "--qmp", scene.path("none"), scene.path("no"), "--", strange),
                 ("freeze", "--qmp", strange, "--json", strange),
                 ("serve", "--listen", "tcp://127.0.0.1:0", strange)):
        _, out, err = scene.run(*line)
        equal(len(harmless(out + err).splitlines()), len((out + err).splitlines()))
        assert "?[31m" in out + err or "\\u001B[31m" in out + err, (line, out, err)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
