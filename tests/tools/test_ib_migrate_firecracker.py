#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ib-migrate firecracker, with a process in Firecracker's place that has real memory and real
faults. Further arguments: the names of tests; storm=MS: how long the storm lasts."""
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time

from harness import LIMIT, Skip, children, equal, run_all, test, until

PAGES = 2048
PAGE = 4096
STORM_MS = 800
DOUBLE = None


def snapshot(scene, pages=PAGES, seed=1, holes=True):
    """A memory file: random pages, and (with holes) every eighth group of 16 pages is none."""
    path = scene.path("memory")
    random.seed(seed)
    with open(path, "wb") as file:
        for at in range(0, pages, 16):
            if holes and at // 16 % 8 == 3:
                continue
            file.seek(at * PAGE)
            file.write(random.randbytes(16 * PAGE))
        file.truncate(pages * PAGE)
    return path


class MicroVM:
    """The process in Firecracker's place."""

    def __init__(self, scene, memory, *args):
        self.process = subprocess.Popen([DOUBLE, scene.path("socket"), memory, *args], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, start_new_session=True)
        scene.started.append(self.process)
        first = json.loads(self.process.stdout.readline() or "{}")
        if "skip" in first or not first:
            raise Skip(first.get("skip") or self.process.communicate()[1])

    def ask(self, line):
        """Begins it; answer() waits for its end."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        # One line an order, so none was read ahead.
        assert select.select([self.process.stdout], [], [], LIMIT + STORM_MS / 1000)[0], "it hangs"
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def do(self, line):
        self.ask(line)
        answer = self.answer()
        equal(answer["wrong"], 0)
        return answer

    def end(self):
        self.process.stdin.close()
        self.process.stdin = None  # communicate() would use it
        equal(self.process.wait(LIMIT), 0)


def event(tool, kind):
    """The next line of the tool's JSON of this kind."""
    while True:
        line = tool.stdout.readline()
        assert line, f"no \"{kind}\": {tool.communicate()[1]}"
        told = json.loads(line)
        if told.get("event") == kind:
            return told


def serving(scene, memory, *args, form="both", double=()):
    """A microVM, and the tool that serves it."""
    vm = MicroVM(scene, memory, *double)
    tool = scene.start("firecracker", "--json", "--socket", scene.path("socket"), "--from", memory,
                       *args)
    event(tool, "listening")
    vm.do(f"send {form}")
    return vm, tool, event(tool, "serving")


def ended(vm, tool):
    """Both have ended well; the tool's figures."""
    vm.end()
    figures = event(tool, "ended")["figures"]
    out = tool.stdout.read()  # communicate() knows nothing of what was read ahead
    _, err = tool.communicate(timeout=LIMIT)
    equal((tool.returncode, err), (0, ""))
    equal(json.loads(out)["result"]["outcome"], "done")
    return figures


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


@test
def huge_pages_come_and_go_as_a_whole(scene):
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) for line in file if line.startswith("HugePages_Free:"))
    if free < 8:
        raise Skip("needs 8 free huge pages")
    memory = snapshot(scene, 8 * 512)
    vm, tool, told = serving(scene, memory, form="new", double=("huge",))
    equal(told["pages"], 8)
    vm.do("touch 1 1")
    vm.do("remove 1 2")
    os.kill(handler_of(tool), signal.SIGKILL)
    vm.do("check")
    ended(vm, tool)


def resident(vm):
    """Bytes of its private memory."""
    with open(f"/proc/{vm.process.pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


def handler_of(tool):
    return until(lambda: children(tool.pid), "a handler")[0]


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
    vm, tool, _ = serving(scene, memory, "--record", scene.path("gone/record"),
                          "--record-seconds", "1")
    os.rmdir(scene.path("gone"))
    vm.do("touch 0 10")
    began = time.monotonic()
    line = tool.stderr.readline()
    assert "--record" in line and "No such file" in line, line
    assert 0.5 < time.monotonic() - began < LIMIT
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
    answer = vm.answer()
    equal(answer["wrong"], 0)
    assert answer["checked"] > 1000 and answer["removed"] > 1000, answer
    vm.do("check")
    ended(vm, tool)
    print(f"# {answer['checked']} pages compared, {answer['removed']} removed, {kills} kills")


def replaying(scene, memory, record):
    """As serving(), and the microVM's memory before any page came."""
    vm = MicroVM(scene, memory)
    tool = scene.start("firecracker", "--json", "--socket", scene.path("socket"), "--from", memory,
                       "--replay", record)
    event(tool, "listening")
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
def a_record_survives_killed_handlers_and_is_written_in_time(scene):
    memory, record = snapshot(scene), scene.path("record")
    vm, tool, _ = serving(scene, memory, "--record", record, "--record-seconds", "1")
    vm.do("touch 16 10")
    os.kill(handler_of(tool), signal.SIGKILL)
    vm.do("touch 400 8")
    equal(event(tool, "recorded")["pages"], 18)
    vm.do("touch 600 8")
    ended(vm, tool)
    vm, tool, _ = serving(scene, memory, "--replay", record)
    vm.do("check")
    ended(vm, tool)


def offered(scene, memory, uri="tcp://127.0.0.1:0"):
    """A server of this memory file, and its URI."""
    server = scene.start("serve", "--json", "--listen", uri, memory)
    line = server.stdout.readline()
    assert line, server.communicate()[1]
    return server, json.loads(line)["serving"]["uri"]


def served_by(scene, uri, memory, *args):
    """As serving(), by that server."""
    vm = MicroVM(scene, memory)
    tool = scene.start("firecracker", "--json", "--socket", scene.path("socket"), "--from", uri,
                       *args)
    event(tool, "listening")
    vm.do("send both")
    event(tool, "serving")
    return vm, tool


@test
def pages_come_from_another_host(scene):
    memory, record = snapshot(scene), scene.path("record")
    os.chmod(memory, 0o400)
    for uri in ("tcp://127.0.0.1:0", "shm://127.0.0.1:0"):
        server, there = offered(scene, memory, uri)
        vm, tool = served_by(scene, there, memory, "--record", record)
        vm.do("reply 200 3")
        vm.do("remove 100 100")
        vm.do("check")
        first = ended(vm, tool)
        equal(first["zero"], PAGES // 8)
        vm, tool = served_by(scene, there, memory, "--replay", record)
        vm.do("reply 200 3")
        os.kill(handler_of(tool), signal.SIGKILL)
        vm.do("check")
        ended(vm, tool)
        server.terminate()
        equal(server.wait(LIMIT), 0)


@test
def a_lost_server_is_asked_again(scene):
    memory = snapshot(scene)
    server, uri = offered(scene, memory)
    vm, tool = served_by(scene, uri, memory)
    vm.do("touch 0 100")
    server.kill()
    server.wait(LIMIT)
    vm.ask("touch 500 100")  # waits for it
    assert event(tool, "lost")["reason"]
    with open(memory, "rb") as file:
        other = file.read()[::-1]
    os.mkdir(scene.path("others"))
    with open(scene.path("others/memory"), "wb") as file:
        file.write(other)
    stranger, _ = offered(scene, scene.path("others/memory"), uri)
    while "serves another snapshot now" not in event(tool, "lost")["reason"]:
        pass
    stranger.kill()
    stranger.wait(LIMIT)
    server, _ = offered(scene, memory, uri)
    equal(vm.answer()["wrong"], 0)
    vm.do("check")
    vm.end()
    event(tool, "ended")
    equal(tool.wait(LIMIT), 0)


@test
def a_killed_handler_and_a_lost_server_are_waited_for(scene):
    memory = snapshot(scene)
    server, uri = offered(scene, memory)
    vm, tool = served_by(scene, uri, memory)
    vm.do("touch 0 100")
    server.kill()
    server.wait(LIMIT)
    event(tool, "lost")
    os.kill(handler_of(tool), signal.SIGKILL)
    vm.ask("touch 500 100")
    event(tool, "restarted")
    assert "no server answers" in event(tool, "lost")["reason"]
    server, _ = offered(scene, memory, uri)
    equal(vm.answer()["wrong"], 0)
    vm.do("check")
    vm.end()
    event(tool, "ended")
    tool.stdout.read()
    equal(tool.wait(LIMIT), 0)


@test
def a_microvm_that_ends_while_the_server_is_lost_is_noticed(scene):
    memory = snapshot(scene)
    for args, status in (((), 0), (("--record", scene.path("record")), 1)):
        server, uri = offered(scene, memory)
        vm, tool = served_by(scene, uri, memory, *args)
        server.kill()
        server.wait(LIMIT)
        event(tool, "lost")
        os.kill(handler_of(tool), signal.SIGKILL)
        event(tool, "restarted")
        event(tool, "lost")
        os.killpg(vm.process.pid, signal.SIGKILL)
        tool.stdout.read()
        err = tool.stderr.read()
        equal((tool.wait(LIMIT), "--record" in err), (status, status == 1))


@test
def what_fails_at_once_is_not_tried_without_a_pause(scene):
    memory = snapshot(scene)
    _, uri = offered(scene, memory)
    vm = MicroVM(scene, memory)
    tool = scene.start("firecracker", "--json", "--socket", scene.path("socket"), "--from", uri,
                       "--background")
    event(tool, "listening")
    # There is no such memory, so that no page can be placed.
    vm.do('raw [{"base_host_virt_addr": 4096, "size": 4096, "offset": 0}]')
    began = time.monotonic()
    for _ in range(6):
        event(tool, "lost")
    assert time.monotonic() - began > 1.2, time.monotonic() - began
    vm.end()
    tool.stdout.read()
    equal(tool.wait(LIMIT), 0)


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


def refused(scene, *args, line):
    """A microVM that sends this; the tool's sentence."""
    memory = scene.path("memory")
    vm = MicroVM(scene, memory if os.path.exists(memory) else snapshot(scene))
    tool = scene.start("firecracker", "--socket", scene.path("socket"), "--from", memory, *args)
    until(lambda: os.path.exists(scene.path("socket")), "the socket")
    vm.ask(line)
    vm.answer()
    equal(vm.do("gone")["gone"], True)
    _, err = tool.communicate(timeout=LIMIT)
    equal((tool.returncode, err.count("\n")), (1, 1))
    os.killpg(vm.process.pid, signal.SIGKILL)
    return err


@test
def messages_that_cannot_be_served_are_refused(scene):
    region = '{"base_host_virt_addr": 4096, "size": 4096, "offset": 0, "page_size": 4096}'
    for text, words in (
            ("[]", "not an array of memory regions"),
            ("{}", "not an array of memory regions"),
            ("nonsense", "not JSON"),
            ("[1]", "region 0 of Firecracker's message is no JSON object"),
            (f"[{region}] and more", "not JSON"),
            (f"[{region},{region}]", "share addresses"),
            (f"[{region.replace('4096}', '8192}')}]", "pages of 8192 bytes"),
            (f"[{region[:-1]}, \"page_size_kib\": 2097152}}]", "are the same thing"),
            (f"[{region.replace('4096, ', '4097, ', 1)}]", "not of whole pages"),
            (f"[{region.replace('4096, ', '-4096, ', 1)}]", 'no "base_host_virt_addr"'),
            (f"[{region.replace('0, ', '8388608, ')}]",
             "it is of another snapshot; Firecracker (process ")):
        err = refused(scene, line=f"raw {text}")
        assert words in err, f"{text}: {err}"


@test
def wrong_files_are_refused_before_firecracker_waits(scene):
    memory = snapshot(scene, 64)
    with open(scene.path("old"), "wb") as file:
        file.write(b"ibx working set\n" + bytes([2]) + bytes(55))
    with open(scene.path("cut"), "wb") as file:
        file.write(b"ibx working set\n" + bytes([1]) + bytes(22) + bytes([1]) + bytes(50))
    for args, words in (
            (("--from", scene.path("none")), "none: No such file or directory"),
            (("--from", scene.path("")), "is empty or no file"),
            (("--from", "tcp://127.0.0.1:9"), "no server answers at 127.0.0.1 port 9"),
            (("--from", memory, "--replay", memory), "it is no working set"),
            (("--from", memory, "--replay", scene.path("old")), "of version 2, and this"),
            (("--from", memory, "--replay", scene.path("cut")), "cut, or damaged")):
        status, out, err = scene.run("firecracker", "--socket", scene.path("socket"), *args)
        equal((status, out), (1, ""))
        assert words in err and err.count("\n") == 1, err
        assert not os.path.exists(scene.path("socket"))


@test
def the_socket_is_for_one_user_in_a_safe_folder(scene):
    memory = snapshot(scene, 64)
    tool = scene.start("firecracker", "--json", "--socket", scene.path("socket"), "--from", memory)
    event(tool, "listening")
    equal(os.stat(scene.path("socket")).st_mode & 0o777, 0o600)
    status, _, err = scene.run("firecracker", "--socket", scene.path("socket"), "--from", memory)
    assert status == 1 and "another process listens there" in err, err
    tool.terminate()
    out, err = tool.communicate(timeout=LIMIT)
    assert tool.returncode == 1 and "ended by a signal" in err, err
    assert not os.path.exists(scene.path("socket"))
    os.mkdir(scene.path("open"))
    os.chmod(scene.path("open"), 0o777)
    status, _, err = scene.run("firecracker", "--socket", scene.path("open/socket"), "--from",
                               memory)
    assert status == 1 and "has mode 0777" in err, err


@test
def a_stranger_costs_nothing(scene):
    if os.geteuid():
        raise Skip("needs root: a process of another user connects")
    memory = snapshot(scene)
    os.chmod(scene.folder.name, 0o755)
    vm = MicroVM(scene, memory)
    tool = scene.start("firecracker", "--json", "--socket", scene.path("socket"), "--from", memory)
    event(tool, "listening")
    os.chmod(scene.path("socket"), 0o666)
    stranger = os.fork()
    if not stranger:
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(scene.path("socket"))
            os._exit(len(end.recv(1)))
    equal(os.waitpid(stranger, 0)[1], 0)
    vm.do("send both")
    vm.do("check")
    vm.end()
    _, err = tool.communicate(timeout=LIMIT)
    assert tool.returncode == 0 and "user 65534" in err and "--peer-uid 65534" in err, err


@test
def wrong_usage_is_named(scene):
    for line, words in (("", "--socket and --from are needed"),
                        ("--socket=/x --from=y --record=a --replay=b", "--record with --replay"),
                        ("--socket=/x --from=y --record=a --background", "--record with --backg"),
                        ("--socket=/x --from=y --record-seconds=1", "--record-seconds needs")):
        status, _, err = scene.run("firecracker", *line.split())
        assert status == 2 and words in err, err
    status, _, err = scene.run("firecracker", "--peer-uid=nobody")
    assert status == 1 and '"nobody" is no user number' in err, err


if __name__ == "__main__":
    DOUBLE = sys.argv[2]
    for argument in sys.argv[3:]:
        if argument.startswith("storm="):
            STORM_MS = int(argument[6:])
    sys.exit(run_all(sys.argv[1], [a for a in sys.argv[3:] if not a.startswith("storm=")]))
