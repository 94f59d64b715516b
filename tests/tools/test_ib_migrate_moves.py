#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_moves.py IB-MIGRATE: migrations as the users of the tool see them, with QEMU,
GUEST_ELF and GUEST_EXPECT in the environment, and as root."""
import fcntl
import glob
import os
import re
import signal
import socket
import sys
import threading

from guest_vm import ask_qmp, in_file
from harness import LIMIT, equal, free_port, process_state, run_all, until
from migrate_scene import (Terminal, Vm, case, expect, fails, finish, halted, key_file, let_go,
                           objects, receiver, same_memory, says, slow_migration, start, stops_at,
                           succeeds, wait_for_message)


@case
def a_vm_is_migrated_and_both_sides_report(scene):
    small = "mib=16"
    source, destination = Vm(scene, append=small), Vm(scene, append=small, incoming=True)
    key = key_file(scene, "key", "a1" * 32)
    # So slow in the background that the guest has to ask for its pages itself.
    waiting, uri = receiver(scene, destination, "--key", key, "--max-bandwidth", "1M")
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
    expect(source, destination, append=small)
    out = succeeds(scene, "status")
    equal((out.count("guest-of-a-test"), out.count("with all of its pages")), (4, 2))
    when = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}"
    equal(len(re.findall(rf"  done  /\S+  {when}$", out, re.M)), 2)
    lines = objects(succeeds(scene, "status --json"))
    equal([sorted(line) for line in lines], [["record", "sentence", "status", "trouble"]] * 2)
    equal({(line["record"]["role"], line["status"], line["trouble"]) for line in lines},
          {("source", None, None), ("destination", None, None)})
    for line in ("recover", "rollback --yes"):
        says(fails(scene, line, *source.qmp), "no unfinished migration")


@case
def a_migration_that_fetches_pages_before_the_stop_has_moved_nothing(scene):
    """The records say from the first pages on that the VM may run at the destination; the tools at
    work know better. What a user reads of a migration returns to no earlier phase."""
    source, destination = Vm(scene, append="mib=16"), Vm(scene, append="mib=16", incoming=True)
    waiting, uri = receiver(scene, destination)
    sender = start(scene, "send --json --warm", *source.qmp, uri, env=stops_at("source:dropping"))
    until(lambda: process_state(sender.pid) == "T", "the sender to stop itself")
    out = succeeds(scene, "status", *destination.qmp)
    assert "does not run here yet" in out and "  warming: " in out and "may run" not in out, out
    (line,) = objects(succeeds(scene, "status --json", *destination.qmp))
    equal((line["record"]["state"], line["status"]["phase"]), ("may-run", "warming"))
    assert "does not run here yet" in line["sentence"], line
    sender.send_signal(signal.SIGCONT)
    order = ["waiting", "preparing", "warming", "switching", "filling", "done"]
    for process in (sender, waiting):
        code, _, err = finish(process)
        equal(code, 0)
        phases = [line["status"]["phase"] for line in process.lines if "status" in line]
        equal(sorted(phases, key=order.index), phases)
        assert err.count("preparing: ") <= 1 and err.count("warming: ") == 1, err
    expect(source, destination, append="mib=16")


@case
def a_receiver_that_is_told_to_end_before_the_commit_has_not_failed(scene):
    """So systemd(1), which stops it, has no failed unit, and begins no recover."""
    source = Vm(scene, append="mib=8")
    for state in ("ready", "waiting"):
        destination = Vm(scene, append="mib=8", incoming=True)
        waiting, uri = receiver(scene, destination, env=stops_at(f"destination:{state}"))
        sender = start(scene, "send --json", *source.qmp, uri)
        until(lambda: process_state(waiting.pid) == "T", "the receiver to stop itself")
        waiting.send_signal(signal.SIGINT)
        waiting.send_signal(signal.SIGCONT)
        code, summary, err = finish(waiting)
        equal((state, code, summary["outcome"], summary["record"]["state"]),
              (state, 5, "stopped", "given-up"))
        assert "the VM stays at the source" in summary["error"], summary
        assert "start it anew before the next ib-migrate receive" in err, err
        code, summary, err = finish(sender)
        equal((state, code, summary["record"]["state"]), (state, 1, "kept"))
        source.runs_on()
        says(fails(scene, "recover", *destination.qmp), "no unfinished migration")
    expect(source, append="mib=8")


@case
def a_signal_behind_a_migration_says_nothing_of_it(scene):
    """It ends a tool whose output nobody reads; the VM is not here, as before the migration."""
    source, destination = Vm(scene, append="mib=8"), Vm(scene, append="mib=8", incoming=True)
    waiting, uri = receiver(scene, destination)
    unread, full = os.pipe()
    os.set_blocking(full, False)
    try:
        while os.write(full, bytes(4096)):
            pass
    except BlockingIOError:
        os.set_blocking(full, True)
    sender = start(scene, "send --json", *source.qmp, uri, stdout=full)
    os.close(full)
    equal(finish(waiting)[0], 0)

    def ended():
        sender.send_signal(signal.SIGTERM)  # the migration itself takes some
        return sender.poll() is not None
    until(lambda: '"done"' in succeeds(scene, "status --json", *source.qmp), "the sender's record")
    until(ended, "the sender to end")
    err = sender.stderr.read()
    os.close(unread)
    equal(sender.returncode, -signal.SIGTERM)
    assert "the VM stays here" not in err, err
    destination.runs_on()
    expect(source, destination, append="mib=8")


@case
def a_receiver_whose_qemu_is_ended_says_so(scene):
    """While it waits: on purpose, and nothing has failed; while a VM is on its way: that stays."""
    source, destination = Vm(scene, append="mib=8"), Vm(scene, append="mib=8", incoming=True)
    waiting, _ = receiver(scene, destination)
    destination.process.terminate()
    code, summary, _ = finish(waiting)
    equal((code, summary["outcome"]), (5, "stopped"))
    says("ib-migrate: " + summary["error"], "the QEMU here", "(host-signal)", "no VM had come")
    destination = Vm(scene, append="mib=8", incoming=True)
    waiting, uri = receiver(scene, destination, env=stops_at("destination:ready"))
    sender = start(scene, "send --json", *source.qmp, uri)
    until(lambda: process_state(waiting.pid) == "T", "the receiver to stop itself")
    destination.process.terminate()
    destination.process.wait(LIMIT)
    waiting.send_signal(signal.SIGCONT)
    for process in waiting, sender:
        code, summary, _ = finish(process)
        equal(code, 1)
        assert "was ended (host-signal): the VM stays at the source" in summary["error"], summary
    source.runs_on()
    expect(source, append="mib=8")


@case
def a_vm_that_stands_still_for_long_is_told_of(scene):
    """The destination's tool is there, and its QEMU does not answer."""
    source, destination = Vm(scene, append="mib=8"), Vm(scene, append="mib=8", incoming=True)
    timeout = "--set", "timeout_ms=8000"
    waiting, uri = receiver(scene, destination, *timeout)
    sender = start(scene, "send --json", *source.qmp, uri, *timeout, env=stops_at("source:sending"))
    until(lambda: process_state(sender.pid) == "T", "the sender to stop itself")
    destination.process.send_signal(signal.SIGSTOP)
    sender.send_signal(signal.SIGCONT)
    wait_for_message(sender, "s, and the destination's QEMU has not loaded its state: look at its")
    destination.process.send_signal(signal.SIGCONT)
    equal([finish(process)[0] for process in (sender, waiting)], [0, 0])
    destination.runs_on()
    expect(source, destination, append="mib=8")


class Crowd:
    """Sockets without the key at a listener: silent ones, and some that send a byte at times."""

    def __init__(self, uri, silent, slow):
        self.address = ("127.0.0.1", int(uri.rpartition(":")[2]))
        self.sockets, self.over = [], threading.Event()
        self.came = 0
        self.threads = [threading.Thread(target=self.stay, args=(count, trickles), daemon=True)
                        for count, trickles in ((silent, False), (slow, True))]
        for thread in self.threads:
            thread.start()

    def stay(self, count, trickles):
        """Whoever is sent away comes again."""
        mine = [None] * count
        while not self.over.wait(0.05):
            for i, one in enumerate(mine):
                try:
                    if one is None:
                        one = mine[i] = socket.socket()
                        one.settimeout(0.2)
                        one.connect(self.address)
                        one.setblocking(False)
                        self.came += 1
                    if trickles:
                        one.send(b"I")
                    if not one.recv(100):
                        raise OSError
                except BlockingIOError:
                    pass
                except OSError:
                    mine[i] = one.close()
        for one in mine:
            if one:
                one.close()

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(LIMIT)


def comes_in(run):
    """Where it has no processor for long, one with the key may be told to try again, too."""
    code, err = run()
    assert not code or "try again" in err, (code, err)
    return not code


@case
def a_crowd_without_the_key_keeps_no_vm_away(scene):
    """It costs the receiver no descriptor beyond its places, and none once it has gone."""
    small = "mib=16"
    source, destination = Vm(scene, append=small), Vm(scene, append=small, incoming=True)
    key = key_file(scene, "key", "a1" * 32)
    waiting, uri = receiver(scene, destination, "--key", key)
    descriptors = f"/proc/{waiting.pid}/fd"
    before = len(os.listdir(descriptors))
    for _ in range(2):
        crowd = Crowd(uri, 300, 50)
        until(lambda: crowd.came >= 600, "those that were sent away come again")
        assert len(os.listdir(descriptors)) < before + 200, os.listdir(descriptors)
        check = "check", "--key", key, *source.qmp, uri
        for _ in range(2):
            until(lambda: comes_in(lambda: scene.run(*check)[::2]), "a check")
        crowd.end()
        until(lambda: len(os.listdir(descriptors)) <= before, "their descriptors are closed")
    crowd = Crowd(uri, 300, 50)
    until(lambda: crowd.came >= 350, "they are there")
    send = "send --json --key", key, *source.qmp, uri
    until(lambda: comes_in(lambda: finish(start(scene, *send))[::2]), "the VM")
    equal(finish(waiting)[0], 0)
    crowd.end()
    destination.runs_on()
    expect(source, destination, append=small)


@case
def nothing_is_printed_into_the_memory_of_a_vm(scene):
    """Standard output and error may be closed: no socket or file takes their numbers, by which what
    is printed would go there."""
    def closed(*line):
        return scene.start(*line, preexec_fn=lambda: os.closerange(1, 3))

    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0 or waiting.poll() is not None
    source, destination, port = halted(scene), Vm(scene, incoming=True), free_port()
    uri = f"tcp://127.0.0.1:{port}"
    waiting = closed("receive", "--listen", uri, *destination.qmp)
    until(listens, "the receiver")
    equal([closed("send", *source.qmp, uri).wait(LIMIT), waiting.wait(LIMIT)], [0, 0])
    same_memory(source, destination)


@case
def a_vm_that_came_and_went_on_is_not_said_to_run(scene):
    first, second, third = Vm(scene, append="mib=4"), *(
        Vm(scene, append="mib=4", incoming=True) for _ in range(2))
    until(lambda: first.beats() > 20, "heartbeats")
    for here, there in ((first, second), (second, third)):
        waiting, uri = receiver(scene, there)
        sender = start(scene, "send --json", *here.qmp, uri)
        equal([finish(sender)[0], finish(waiting)[0]], [0, 0])
    third.runs_on()
    own = r"came here with all of its pages: where it is now is told by the record of its later " \
          r"migration to \S+"
    lines = objects(succeeds(scene, "status --json", *second.qmp))
    equal([line["record"]["role"] for line in lines], ["source", "destination"])
    assert re.search(own, lines[1]["sentence"]), lines
    assert "runs here with all of its pages" in succeeds(scene, "status", *third.qmp)
    # ... by whatever monitor it left.
    for file in glob.glob(os.path.join(os.environ["IBX_STATE_DIR"], "*.source.json")):
        with open(file, encoding="ascii") as record:
            text = record.read()
        if second.socket in text:
            with open(file, "w", encoding="ascii") as record:
                record.write(text.replace(second.socket, second.own))
    out = succeeds(scene, "status", *second.qmp)
    equal((out.count("guest-of-a-test  "), len(re.findall(own, out))), (1, 1))
    assert re.search(f"deleted: .* {own}", succeeds(scene, "prune", *second.qmp))


@case
def a_running_migration_is_watched_and_changed(scene):
    source, destination, sender, waiting = slow_migration(scene)
    lines = objects(succeeds(scene, "status --json"))
    live = {line["record"]["role"]: line["status"] for line in lines}
    for role, limit in (("source", None), ("destination", 100 << 10)):
        equal((live[role]["phase"], live[role]["max_bandwidth"]), ("filling", limit))
    out = succeeds(scene, "status", *destination.qmp)
    assert "destination  running" in out and re.search(r"^  filling  .*pages left", out, re.M), out
    ask_qmp(destination.own, "stop")
    until(lambda: succeeds(scene, "status").count('was "paused" when QEMU was last asked') == 2,
          "the VM's status in both sentences")
    ask_qmp(destination.own, "cont")
    for line, qmp, words in (("set --max-bandwidth 1G", (),
                              f"for the destination): --qmp {destination.socket} (destin"),
                             ("cancel", (), "choose one of them"),
                             ("set --max-bandwidth 1G", source.qmp,
                              "set the bandwidth on the destination"),
                             ("cancel", source.qmp, "cannot be cancelled; to have it here again, "),
                             ("cancel", destination.qmp, "cannot be cancelled; to have it at "),
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
def a_vm_whose_pages_are_missing_goes_nowhere_else(scene):
    """Its other monitor is free for any command; pages that have not come would be zeros there, or
    in a snapshot."""
    source, destination, sender, waiting = slow_migration(scene)
    third = Vm(scene, incoming=True)
    idle, uri = receiver(scene, third)
    snapshot, own = scene.path("snapshot"), ("--qmp", destination.own)
    for line, more in (("send", (uri,)), ("borrow --yes", (uri,)), ("freeze", (snapshot,)),
                       ("run --to localhost --ssh false", ()), ("check", ())):
        code, out, err = scene.run(*line.split(), *own, *more)
        equal((line, code), (line, 1))
        assert "is not over, and pages that are missing here" in out + err, (line, out, err)
    # Nor does anything say to cancel the migration: then the VM would run at the source, too.
    code, out, err = scene.run("check", "--qmp", source.own)
    equal((code, err), (1, ""))
    assert "is under way already" in out and "migrate_cancel" not in out, out
    let_go(scene, destination)
    for process in (sender, waiting):
        equal(finish(process)[0], 0)
    same_memory(source, destination)
    equal(succeeds(scene, "check", *own), f"the VM at {destination.own} can be migrated\n")
    sender = start(scene, "send --json", *own, uri)
    for process in (sender, idle):
        equal(finish(process)[0], 0)
    same_memory(source, third)


@case
def a_receiver_leaves_a_vm_alone_that_came_by_another_one(scene):
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination)
    destination.socket, destination.qmp = destination.own, ("--qmp", destination.own)
    other, _ = receiver(scene, destination)
    sender = start(scene, "send --json", *source.qmp, uri)
    for process in (sender, waiting):
        code, summary, _ = finish(process)
        equal((code, summary["vm_status"]), (0, "running"))
    code, summary, _ = finish(other)
    equal((code, summary["outcome"]), (1, "failed"))
    assert "has left it alone" in summary["error"], summary
    destination.runs_on()
    expect(source, destination)


def two_receivers(scene):
    """Of one QEMU, by its two monitors: the first one stops itself while it takes a VM."""
    destination = Vm(scene, incoming=True)
    by_other = ("--qmp", destination.own)

    def first(state):
        process, uri = receiver(scene, destination, env=stops_at(state))
        taken = Vm(scene)
        sender = start(scene, "send --json", *taken.qmp, uri)
        until(lambda: process_state(process.pid) == "T", "it to stop itself")
        return process, sender, taken
    return destination, by_other, first


@case
def a_receiver_that_has_begun_leaves_a_vm_alone_that_came_by_another_one(scene):
    """Both have found the QEMU free."""
    destination, by_other, first = two_receivers(scene)
    late, left, stays = first("destination:joining")
    destination.qmp = by_other
    waiting, uri = receiver(scene, destination)
    source = Vm(scene)
    sender = start(scene, "send --json", *source.qmp, uri)
    for process in (sender, waiting):
        equal(finish(process)[0], 0)
    late.send_signal(signal.SIGCONT)
    code, summary, _ = finish(late)
    equal((code, summary["outcome"]), (1, "failed"))
    assert "has left it alone" in summary["error"], summary
    equal(finish(left)[0], 1)
    stays.runs_on()
    destination.own = destination.socket  # which is free by now
    destination.runs_on()
    expect(source, destination)


@case
def one_receiver_at_a_time_takes_a_vm(scene):
    """The memory of a QEMU is emptied for one VM alone."""
    destination, by_other, first = two_receivers(scene)
    process, sender, source = first("destination:claimed")
    destination.qmp = by_other
    waiting, uri = receiver(scene, destination)
    second = Vm(scene)
    fails(scene, "send", *second.qmp, uri)
    code, summary, _ = finish(waiting)
    equal(code, 1)
    assert "is receiving a VM into this QEMU" in summary["error"], summary
    process.send_signal(signal.SIGCONT)
    for one in (sender, process):
        equal(finish(one)[0], 0)
    second.runs_on()
    destination.runs_on()
    expect(source, destination)


@case
def who_has_locked_the_memory_of_a_qemu_is_named(scene):
    """Whoever may read its file can do that."""
    source, destination = Vm(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination)
    with open(destination.ram, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        err = fails(scene, "send", *source.qmp, uri)
    assert f"process {os.getpid()} (" in err and "has locked the file of guest RAM" in err, err
    equal(finish(waiting)[0], 1)
    source.runs_on()
    expect(source)


@case
def memory_that_another_process_uses_is_not_emptied(scene):
    """... nor any that a VM still needs which is elsewhere."""
    source, _, sender, waiting = slow_migration(scene)
    same = Vm(scene, incoming=True, ram=in_file(source.ram))
    words = f"process {source.process.pid} (qemu-system-x86) uses {source.ram}"
    code, out, _ = scene.run("check", "--destination", *same.qmp)
    assert code == 1 and words in out and "another mem-path" in out, out
    line = ("receive", "--listen", "tcp://127.0.0.1:0", *same.qmp)
    needed = "the VM guest-of-a-test that left from there still needs pages"
    assert needed in fails(scene, "", *line)
    assert words in fails(scene, "", *line, "--state-dir", scene.path("other"))
    for process in (sender, source.process):
        process.kill()
        process.wait(LIMIT)
    assert needed in fails(scene, "", *line)
    assert needed in scene.run("check", "--destination", *same.qmp)[1]
    same.end()
    recovering = start(scene, "recover --json", *source.qmp)
    let_go(scene, scene.vms[1])
    equal([finish(process)[0] for process in (recovering, waiting)], [0, 0])


@case
def a_helper_of_qemu_that_has_its_memory_is_none_else(scene):
    """... that frees it when QEMU has ended."""
    succeeds(scene, "check --destination", *Vm(scene, "-async-teardown", incoming=True).qmp)


@case
def a_paused_vm_that_came_without_ib_migrate_is_not_emptied(scene):
    """No event says that it is there."""
    source, destination, second = Vm(scene), Vm(scene, incoming=True), Vm(scene)
    waiting, uri = receiver(scene, destination)
    state = scene.path("saved")
    ask_qmp(source.own, "stop", ("migrate", {"uri": f"exec:cat >{state}"}))
    until(lambda: ask_qmp(source.own, "query-migrate")[0].get("status") == "completed", "its end")
    ask_qmp(destination.own, ("migrate-incoming", {"uri": f"exec:cat {state}"}))
    until(lambda: ask_qmp(destination.own, "query-status")[0]["status"] == "paused", "it to come")
    code, out, err = scene.run("send", *second.qmp, uri)
    equal((code, out), (1, ""))
    assert "is paused and does not wait for a VM" in err, err
    waiting.terminate()
    finish(waiting)
    ask_qmp(destination.own, "cont")
    destination.runs_on()
    second.runs_on()
    expect(source, destination)
    expect(second)


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
def a_dumb_terminal_shows_lines(scene):
    source, destination = halted(scene), Vm(scene, incoming=True)
    waiting, uri = receiver(scene, destination)
    sender = Terminal(scene, "send", *source.qmp, uri, kind="dumb")
    equal((sender.finish()[0], finish(waiting)[0]), (0, 0))
    assert sender.seen.startswith("ib-migrate: preparing"), sender.seen
    assert "\033" not in sender.seen, sender.seen
    same_memory(source, destination)


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
