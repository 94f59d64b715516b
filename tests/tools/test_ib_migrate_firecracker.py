#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ib-migrate firecracker with a memory file of this host: pages, removals, records, killed handlers
(firecracker_scene.py). storm=MS, as an argument like names of tests: how long the storm lasts."""
import errno
import os
import signal
import socket
import subprocess
import sys
import time

from firecracker_scene import (PAGE, PAGES, MicroVM, ended, event, handler_of, listening, main,
                               offered, resident, serving, snapshot)
from harness import LIMIT, TEST_LIMIT, Skip, children, equal, test, until

STORM_MS = 800


@test
def every_page_is_right_in_every_form_of_the_message(scene):
    memory = snapshot(scene)
    for form in ("old", "kib", "new", "documented", "pieces", "both"):
        vm, tool, told = serving(scene, memory, form=form)
        equal((told["firecracker"], told["pages"]), (vm.process.pid, PAGES))
        vm.do("check")
        figures = ended(vm, tool)
        assert figures["zero"] == PAGES // 8 and not figures["removed"], figures
        assert not os.path.exists(scene.path("socket"))


@test
def removed_pages_are_zero_for_good(scene):
    vm, tool, _ = serving(scene, snapshot(scene))
    vm.do("touch 0 64")
    vm.do("write 10 20")
    vm.do("remove 0 40")  # were there
    vm.do("remove 1000 50")  # were not
    vm.do("check")
    vm.do("write 1000 50")
    vm.do("remove 1000 50")
    vm.do("check")
    figures = ended(vm, tool)
    equal((figures["removals"], figures["removed"]), (3, 50))


@test
def the_rest_comes_in_the_background(scene):
    vm, tool, _ = serving(scene, snapshot(scene), "--background")
    vm.do("touch 100 1")
    until(lambda: resident(vm) > (PAGES - PAGES // 8) * PAGE, "all pages")
    vm.do("remove 300 300")
    vm.do("check")
    ended(vm, tool)


def needs_huge_pages(pages):
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("HugePages_Free:"))
    if free < pages:
        raise Skip(f"needs {pages} free huge pages")


@test
def huge_pages_come_and_go_as_a_whole(scene):
    needs_huge_pages(8)
    memory = snapshot(scene, 8 * 512)
    vm, tool, told = serving(scene, memory, form="new", double=("huge",))
    equal(told["pages"], 8)
    vm.do("touch 1 1")
    vm.do("remove 1 2")
    os.kill(handler_of(tool), signal.SIGKILL)
    vm.do("check")
    ended(vm, tool)


def taken(file, pages):
    """Whether the file has so many huge pages. Another test may have all of them at the moment."""
    try:
        os.posix_fallocate(file.fileno(), 0, pages << 21)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


@test
def a_huge_page_without_room_comes_when_there_is_some(scene):
    """Pages with data, and behind all of them one of zeros, for which no server is needed. Others
    have all of a filesystem of huge pages."""
    needs_huge_pages(5)
    folder = scene.path("pages")
    os.mkdir(folder)
    memory = snapshot(scene, 4 * 512)
    with open(memory, "r+b") as file:
        file.truncate(3 << 21)
        file.truncate(4 << 21)  # the last page is of zeros
    for served, steps in ((False, ((0, 1, 4),)), (True, ((0, 3, 2), (3, 1, 0)))):
        if subprocess.run(["mount", "-t", "hugetlbfs", "-o", "pagesize=2M,size=10M", "none",
                           folder], stderr=subprocess.DEVNULL).returncode:
            raise Skip("no filesystem of huge pages can be mounted here")
        try:
            server, source = offered(scene, memory) if served else (None, memory)
            with open(f"{folder}/others", "wb") as others:
                until(lambda file=others: taken(file, 5), "huge pages")
                vm = MicroVM(scene, memory, "huge", f"{folder}/vm")
                tool = listening(scene, source)
                vm.do("send new")
                for page, count, left in steps:
                    vm.ask(f"touch {page} {count}")
                    assert "make room" in event(tool, "full")["reason"]
                    assert "make room" in event(tool, "full")["reason"]
                    os.truncate(others.fileno(), left << 21)
                    equal(vm.answer()["wrong"], 0)
                    if served:
                        server.kill()
                        server.wait(LIMIT)
            ended(vm, tool)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@test
def a_killed_handler_goes_on(scene):
    vm, tool, _ = serving(scene, snapshot(scene))
    vm.do("write 0 10")
    vm.do("remove 5 200")
    vm.do("touch 500 20")
    for number in range(1, 6):
        os.kill(handler_of(tool), signal.SIGKILL)
        equal(event(tool, "restarted")["signal"], 9)
        equal(event(tool, "serving")["restarts"], number)
        vm.do(f"touch {700 + 10 * number} 5")
        vm.do(f"remove {900 + 10 * number} 5")
    os.kill(handler_of(tool), signal.SIGKILL)
    vm.do("remove 1200 10")  # waits for the next handler
    vm.do("check")
    ended(vm, tool)


@test
def a_killed_handler_goes_on_where_the_ends_of_children_are_ignored(scene):
    """As whoever starts the tool may hand it down."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        vm, tool, _ = serving(scene, snapshot(scene))
    finally:
        signal.signal(signal.SIGCHLD, before)
    os.kill(handler_of(tool), signal.SIGKILL)
    equal(event(tool, "restarted")["signal"], 9)
    vm.do("touch 500 20")
    ended(vm, tool)


@test
def only_its_supervisor_ends_a_handler(scene):
    """A handler that somebody else tells to end would leave a microVM that hangs."""
    vm, tool, _ = serving(scene, snapshot(scene), "--record", scene.path("record"))
    handler = handler_of(tool)
    vm.do("touch 0 10")
    os.kill(handler, signal.SIGTERM)
    vm.do("touch 500 20")
    assert "does not end the handler" in tool.stderr.readline()
    equal(children(tool.pid), [handler])
    tool.terminate()
    equal(event(tool, "recorded")["pages"], 30)
    tool.stdout.read()
    assert "ended by a signal; the microVM waits" in tool.stderr.read()
    tool.wait(LIMIT)
    os.killpg(vm.process.pid, signal.SIGKILL)


def has_to_end(pid):
    """Whether SIGTERM waits for this process to read it."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        pending = [line.split()[1] for line in file if line.startswith("ShdPnd:")]
    return int(pending[0], 16) >> (signal.SIGTERM - 1) & 1


@test
def a_record_is_written_when_its_handler_is_killed_at_the_end(scene):
    memory, record = snapshot(scene), scene.path("record")
    for kill in (lambda tool: os.kill(handler_of(tool), signal.SIGKILL),
                 lambda tool: tool.terminate()):  # a second signal waits for nothing
        vm, tool, _ = serving(scene, memory, "--record", record)
        vm.do("touch 0 10")
        handler = handler_of(tool)
        os.kill(handler, signal.SIGSTOP)
        tool.terminate()
        until(lambda pid=handler: has_to_end(pid), "the end to be announced")
        kill(tool)
        equal(event(tool, "recorded")["pages"], 10)
        tool.stdout.read()
        assert "no --record" not in tool.stderr.read()
        equal(tool.wait(LIMIT), 1)
        os.remove(record)
        os.killpg(vm.process.pid, signal.SIGKILL)
        vm.process.wait(LIMIT)


@test
def a_file_that_is_changed_meanwhile_is_served_no_more(scene):
    memory = snapshot(scene)
    vm, tool, _ = serving(scene, memory)
    vm.do("touch 0 100")
    with open(memory, "r+b") as file:
        file.seek(1000 * PAGE)
        file.write(bytes(PAGE))
    vm.ask("touch 1000 5")
    tool.stdout.read()
    err = tool.stderr.read()
    equal(tool.wait(LIMIT), 1)
    assert "was changed while it is served" in err and "waits for its memory for ever" in err, err
    os.killpg(vm.process.pid, signal.SIGKILL)


@test
def a_handler_after_another_one_has_the_same_snapshot(scene):
    memory = snapshot(scene)
    vm, tool, _ = serving(scene, memory)
    vm.do("touch 0 100")
    with open(memory, "rb") as file:
        other = file.read()[::-1]
    with open(scene.path("other"), "wb") as file:
        file.write(other)
    os.rename(scene.path("other"), memory)
    os.kill(handler_of(tool), signal.SIGKILL)
    vm.ask("touch 500 100")
    event(tool, "restarted")
    tool.stdout.read()
    _, err = tool.communicate(timeout=LIMIT)
    equal(tool.returncode, 1)
    assert "is another snapshot than the one that Firecracker was given" in err, err
    assert f"(process {vm.process.pid})" in err, err
    os.killpg(vm.process.pid, signal.SIGKILL)


@test
def a_record_that_cannot_be_written_is_a_failure(scene):
    memory = snapshot(scene)
    os.mkdir(scene.path("gone"))
    vm = MicroVM(scene, memory)
    tool = listening(scene, memory, "--record", scene.path("gone/record"),
                     "--record-seconds", "1")
    os.rmdir(scene.path("gone"))  # it was there when the tool began
    began = time.monotonic()
    vm.do("send both")
    vm.do("touch 0 10")
    line = tool.stderr.readline()
    assert "--record" in line and "No such file" in line, line
    assert 1 <= time.monotonic() - began < LIMIT
    vm.do("touch 20 10")
    vm.end()
    tool.stdout.read()
    err = tool.stderr.read()
    equal((tool.wait(LIMIT), err.count("\n")), (1, 1))
    assert "--record" in err and "waits" not in err, err


def stalls(vm):
    """Page faults of its threads so far."""
    with open(f"/proc/{vm.process.pid}/stat", encoding="ascii") as file:
        return int(file.read().rsplit(")", 1)[1].split()[7])


@test
def a_storm_of_removals_with_killed_handlers(scene):
    vm, tool, _ = serving(scene, snapshot(scene))
    kills, end = 0, time.monotonic() + STORM_MS / 1000
    vm.ask(f"storm {STORM_MS} 4 7")
    while time.monotonic() < end - 0.3:
        faults = stalls(vm)
        until(lambda: stalls(vm) > faults + 3000 or time.monotonic() > end,
              "faults")  # pylint: disable=cell-var-from-loop
        os.kill(handler_of(tool), signal.SIGKILL)
        kills += 1
        event(tool, "serving")
    answer = vm.answer(LIMIT + STORM_MS / 1000)
    equal(answer["wrong"], 0)
    assert answer["checked"] > 1000 and answer["removed"] > 1000, answer
    vm.do("check")
    ended(vm, tool)
    print(f"# {answer['checked']} pages compared, {answer['removed']} removed, {kills} kills")


def replaying(scene, memory, record):
    """As serving(), and the microVM's memory before any page came."""
    vm = MicroVM(scene, memory)
    tool = listening(scene, memory, "--replay", record)
    before = resident(vm)
    vm.do("send both")
    return vm, tool, before


@test
def what_is_recorded_is_replayed(scene):
    memory, record = snapshot(scene), scene.path("record")
    vm, tool, _ = serving(scene, memory, "--record", record)
    first = vm.do("reply 300 5")
    figures = ended(vm, tool)
    assert first["us"] > 0 and figures["by_prefetch"] == 0, figures
    vm, tool, before = replaying(scene, memory, record)
    until(lambda: resident(vm) >= before + figures["by_fault"] * PAGE, "the recorded pages")
    vm.do("reply 300 5")
    again = ended(vm, tool)
    assert again["by_fault"] <= 16 and again["by_prefetch"] >= figures["by_fault"], again


@test
def of_faults_that_were_not_there_no_time_is_told(scene):
    """All pages come ahead of them."""
    memory, record = snapshot(scene, holes=False), scene.path("record")
    vm, tool, _ = serving(scene, memory, "--record", record)
    vm.do("check")
    ended(vm, tool)
    vm = MicroVM(scene, memory)
    tool = scene.start("firecracker", "--socket", scene.path("socket"), "--from", memory,
                       "--replay", record)
    assert tool.stdout.readline().startswith("Waiting at ")
    before = resident(vm)
    vm.do("send both")
    until(lambda: resident(vm) >= before + PAGES * PAGE, "all pages")
    vm.end()
    out, err = tool.communicate(timeout=LIMIT)
    equal((tool.returncode, err), (0, ""))
    assert out.endswith(f" 0 pages by faults and {PAGES} ahead of them\n"), out


@test
def a_record_survives_killed_handlers_and_is_written_in_time(scene):
    memory, record = snapshot(scene), scene.path("record")
    for seconds in (1, 5, 25):  # a slow machine may need more until the second touch
        vm, tool, _ = serving(scene, memory, "--record", record, "--record-seconds", str(seconds))
        vm.do("touch 16 10")
        os.kill(handler_of(tool), signal.SIGKILL)
        vm.do("touch 400 8")
        pages = event(tool, "recorded")["pages"]
        vm.do("touch 600 8")
        ended(vm, tool)
        if pages >= 18:
            break
    equal(pages, 18)
    vm, tool, _ = serving(scene, memory, "--replay", record)
    vm.do("check")
    ended(vm, tool)


def stored(manager, wanted):
    """What systemd would keep, by name, as soon as so many descriptors have come."""
    kept = {}
    manager.settimeout(LIMIT)
    while len(kept) < wanted:
        text, fds, _, _ = socket.recv_fds(manager, 4096, 4)
        if fds:
            name = text.decode().split("FDNAME=")[1].strip()
            assert text.startswith(b"FDSTORE=1\n") and len(fds) == 1 and name not in kept, text
            kept[name] = fds[0]
    return kept


def waiting(manager):
    """All messages that are there."""
    manager.setblocking(False)
    while True:
        try:
            yield manager.recv(4096)
        except BlockingIOError:
            return


def given_by_systemd(scene, kept, environment, words):
    """The tool, started with these descriptors."""
    given = {"LISTEN_FDS": str(len(kept)), "LISTEN_FDNAMES": ":".join(kept)}

    def place():
        for i, fd in enumerate([os.dup2(fd, 100 + i) for i, fd in enumerate(kept.values())]):
            os.dup2(fd, 3 + i)
    tool = subprocess.Popen(
        ["/bin/sh", "-c", 'LISTEN_PID=$$ exec "$0" "$@"', scene.program, *words], text=True,
        env=dict(environment, **given), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=place, pass_fds=range(3, 3 + len(kept)), start_new_session=True)
    scene.started.append(tool)
    return tool


@test
def systemd_keeps_the_descriptors_of_a_killed_supervisor(scene):
    memory = snapshot(scene)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(scene.path("notify"))
    environment = dict(os.environ, NOTIFY_SOCKET=scene.path("notify"))
    vm = MicroVM(scene, memory)
    words = ["firecracker", "--json", "--socket", scene.path("socket"), "--from", memory]
    tool = scene.start(*words, env=environment)
    event(tool, "listening")
    vm.do("send both")
    kept = stored(manager, 4)
    equal(sorted(kept), ["ibx-peer", "ibx-session", "ibx-socket", "ibx-uffd"])
    vm.do("remove 0 10")
    vm.do("touch 20 10")
    os.killpg(tool.pid, signal.SIGKILL)  # both processes, as systemd does
    vm.ask("touch 0 100")
    again = given_by_systemd(scene, kept, environment, words)
    equal(event(again, "serving")["firecracker"], vm.process.pid)
    equal(vm.answer()["wrong"], 0)
    vm.do("check")
    for fd in kept.values():
        os.close(fd)
    ended(vm, again)
    told = b"".join(waiting(manager))
    assert all(f"FDSTOREREMOVE=1\nFDNAME={name}".encode() in told for name in kept), told
    assert b"READY=1" in told, told  # or systemd ends a unit that does not start in time


if __name__ == "__main__":
    for argument in [one for one in sys.argv[3:] if one.startswith("storm=")]:
        STORM_MS = int(argument[6:])
        sys.argv.remove(argument)
    sys.exit(main(TEST_LIMIT + STORM_MS / 1000))
