#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whom and what ib-migrate firecracker refuses: messages, files, sockets, users, usage
(firecracker_scene.py)."""
import os
import shutil
import signal
import socket
import sys

from firecracker_scene import MicroVM, listening, main, snapshot
from harness import LIMIT, Skip, equal, test, until



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
            (f"[{region[:-1]}, \"page_size_kib\": 2097152}}]", "the two must be equal"),
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
    os.symlink("/dev/null", scene.path("link"))
    for args, words in (
            (("--from", scene.path("none")), "none: No such file or directory"),
            (("--from", scene.path("")), "is no file of whole pages"),
            (("--from", scene.path("cut")), "(90 bytes): name the memory file"),
            (("--from", "tcp://127.0.0.1:9"), "no server answers at 127.0.0.1 port 9"),
            (("--from", memory, "--record", scene.path("none/pages")), "its folder: No such file"),
            (("--from", memory, "--record", scene.path("link")),
             "because it is a link and would be replaced"),
            (("--from", memory, "--replay", scene.path("none")), "an earlier run writes that file"),
            (("--from", memory, "--replay", memory), "it is no working set"),
            (("--from", memory, "--replay", scene.path("old")), "of version 2, and this"),
            (("--from", memory, "--replay", scene.path("cut")), "truncated or damaged")):
        status, out, err = scene.run("firecracker", "--socket", scene.path("socket"), *args)
        equal((status, out), (1, ""))
        assert words in err and err.count("\n") == 1, err
        assert not os.path.exists(scene.path("socket"))


@test
def the_socket_is_for_one_user_in_a_safe_folder(scene):
    memory = snapshot(scene, 64)
    tool = listening(scene, memory)
    equal(os.stat(scene.path("socket")).st_mode & 0o777, 0o600)
    status, _, err = scene.run("firecracker", "--socket", scene.path("socket"), "--from", memory)
    assert status == 1 and "another process listens there" in err, err
    tool.terminate()
    out, err = tool.communicate(timeout=LIMIT)
    assert tool.returncode == 1 and "by a signal; no microVM had connected" in err, err
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
    tool = listening(scene, memory)
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
def the_user_of_the_microvm_reads_no_file_of_roots(scene):
    if os.geteuid():
        raise Skip("needs root: a folder of another user's")
    memory = snapshot(scene)
    os.chmod(scene.folder.name, 0o755)
    folder, link, own = (scene.path(name) for name in ("theirs", "theirs/memory", "theirs/own"))
    os.mkdir(folder)
    os.symlink(memory, link)
    shutil.copy(memory, own)
    for name in (folder, own):
        os.chown(name, 65534, 65534)
    status, said, _ = scene.run("firecracker", "--json", "--peer-uid=65534", "--socket",
                                scene.path("socket"), "--from", link)
    equal(status, 1)
    assert '"failed"' in said and "user 65534 owns" in said and link in said, said
    for path in (own, memory):
        tool = listening(scene, path, "--peer-uid=65534")
        tool.terminate()
        tool.communicate(timeout=LIMIT)


@test
def the_user_of_the_microvm_has_no_file_of_roots_replaced(scene):
    """By a folder of his on the way to what is recorded: it is refused before the run."""
    if os.geteuid():
        raise Skip("needs root: a folder of another user's")
    memory = snapshot(scene)
    os.chmod(scene.folder.name, 0o755)
    os.mkdir(scene.path("theirs"))
    os.chown(scene.path("theirs"), 65534, 65534)
    status, _, err = scene.run("firecracker", "--peer-uid=65534", "--socket", scene.path("socket"),
                               "--from", memory, "--record", scene.path("theirs/pages"))
    equal(status, 1)
    assert "--record" in err and "user 65534 owns" in err and err.count("\n") == 1, err


@test
def what_is_no_file_is_not_opened(scene):
    """What opening it alone would do, a watchdog's device does: it resets the host later."""
    fifo = scene.path("fifo")
    os.mkfifo(fifo)
    writer = os.fork()
    if not writer:
        os.open(fifo, os.O_WRONLY)
        os._exit(0)

    def waits():
        with open(f"/proc/{writer}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "S"
    until(waits, "the writer")
    from_it = ("firecracker", "--socket", scene.path("socket"), "--from", fifo)
    commands = [(from_it, "is no file of whole pages"),
                (("serve", fifo, "--listen", "tcp://127.0.0.1:0"), "nor the memory file of one")]
    if not os.geteuid():
        commands.append(((*from_it, "--peer-uid=65534"), "is no file of whole pages"))
    opened = []
    for command, words in commands:
        status, out, err = scene.run(*command)
        equal((status, out), (1, ""))
        assert words in err, err
        opened += [] if waits() else [command]
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    equal(opened, [])


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
    sys.exit(main())
