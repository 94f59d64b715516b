#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ib-migrate firecracker with pages from `ib-migrate serve` of another host: servers that are lost,
changed or cut short (firecracker_scene.py)."""
import json
import os
import signal
import socket
import subprocess
import sys
import time

from firecracker_scene import (MORE, PAGE, PAGES, URIS, MicroVM, copied, ended, event,
                               handler_of, listening, main, offered, served_by, snapshot)
from harness import LIMIT, Skip, equal, test



@test
def pages_come_from_another_host(scene):
    memory, record = snapshot(scene), scene.path("record")
    os.chmod(memory, 0o400)
    for uri in URIS or ("tcp://127.0.0.1:0", "shm://127.0.0.1:0"):
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
def a_cache_that_has_not_all_pages_serves(scene):
    memory, folder = snapshot(scene), f"/dev/shm/ibx-cache-test-{os.getpid()}"
    server, there = offered(scene, memory)
    try:
        cache, here = offered(scene, folder, None, "--cache", there, "--on-demand")
        vm, tool = served_by(scene, here, memory)
        vm.do("touch 100 64")
        line = json.loads(cache.stdout.readline())["serving"]
        while not line["bytes"]:
            line = json.loads(cache.stdout.readline())["serving"]
        equal((line["whole"], line["bytes"] < PAGES * PAGE / 2), (False, True))
        cache.stdout.close()  # nobody has to read how it gets on
        vm.do("check")
        ended(vm, tool)
        for process in (cache, server):
            process.terminate()
            equal(process.wait(LIMIT), 0)
    finally:
        subprocess.run(["rm", "-rf", folder], check=False)


@test
def a_cache_whose_file_was_changed_is_not_whole(scene):
    """While nobody filled it: a page with data, and one that is zero in the snapshot."""
    memory, folder = snapshot(scene), f"/dev/shm/ibx-cache-test-{os.getpid()}"
    _, there = offered(scene, memory)
    for page in (16, 3 * 16 + 5):
        try:
            cache, _ = offered(scene, folder, None, "--cache", there, "--on-demand")
            cache.kill()
            cache.wait(LIMIT)
            with open(folder + "/ram.0", "r+b") as file:
                file.seek(page * PAGE + 5)
                file.write(b"changed")
            cache = scene.start("serve", "--json", "--cache", there, folder, *MORE)
            for line in cache.stdout:
                assert not json.loads(line).get("serving", {}).get("whole"), page
            _, err = cache.communicate(timeout=LIMIT)
            equal(cache.returncode, 1)
            assert "their digest differs" in err, err
        finally:
            subprocess.run(["rm", "-rf", folder], check=False)


@test
def a_cache_that_has_all_pages_waits_for_room_to_say_so(scene):
    """The tmpfs is full with the last page; the manifest that says so takes one more."""
    memory, place = snapshot(scene, 256, holes=False), scene.path("small")
    os.mkdir(place)
    _, there = offered(scene, memory)
    # The memory, its hashes, the device state and a manifest: a page each but for the first.
    cache = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size={256 * 4 + 3 * 4}k,mode=700 "
         f"none {place} && exec \"$@\"", "sh", scene.program, "serve", "--json", "--cache", there,
         place + "/cache", *MORE], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True)
    scene.started.append(cache)
    said = cache.stderr.readline()
    if said.startswith(("unshare:", "mount:")):
        raise Skip("needs a mount namespace")
    assert "manifest.json cannot be written: No space left" in said, said
    for _ in range(3):
        assert not json.loads(cache.stdout.readline())["serving"]["whole"]
    subprocess.run(["nsenter", "--mount", "--target", str(cache.pid), "mount", "-o",
                    "remount,size=2m", place], check=True)
    while not json.loads(cache.stdout.readline())["serving"]["whole"]:
        pass
    with open(f"/proc/{cache.pid}/root{place}/cache/manifest.json", encoding="ascii") as file:
        assert json.load(file)["complete"]
    cache.terminate()
    equal(cache.wait(LIMIT), 0)


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
    os.chmod(scene.path("others/memory"), 0o600)
    stranger, _ = offered(scene, scene.path("others/memory"), uri)
    while "now serves another snapshot" not in event(tool, "lost")["reason"]:
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
def a_page_that_was_changed_is_not_placed(scene):
    memory = snapshot(scene, holes=False)
    right = copied(scene, memory)
    before = os.stat(memory)
    server, uri = offered(scene, memory)
    with open(memory, "r+b") as file:
        file.seek(1000 * PAGE + 5)
        file.write(b"changed")
    os.utime(memory, ns=(before.st_atime_ns, before.st_mtime_ns))  # the server notices nothing
    vm, tool = served_by(scene, uri, right)
    vm.do("touch 0 500")
    vm.ask("touch 1000 1")  # waits for it
    for _ in range(2):
        assert "page 1000 came with other bytes" in event(tool, "lost")["reason"]
    equal(server.poll(), None)
    with open(memory, "r+b") as file, open(right, "rb") as copy:
        copy.seek(1000 * PAGE)
        file.seek(1000 * PAGE)
        file.write(copy.read(PAGE))
    os.utime(memory, ns=(before.st_atime_ns, before.st_mtime_ns))
    equal(vm.answer()["wrong"], 0)
    vm.do("check")
    vm.end()
    event(tool, "ended")
    tool.stdout.read()
    equal(tool.wait(LIMIT), 0)


def sentence(server):
    """What a server says that ends by itself."""
    out, err = server.communicate(timeout=LIMIT)
    assert (server.returncode, err.count("\n")) == (1, 1), err
    equal(json.loads(out.splitlines()[-1])["result"]["outcome"], "failed")
    return err


@test
def a_file_that_is_changed_is_not_served(scene):
    memory = snapshot(scene, 256)
    server, _ = offered(scene, memory)
    os.utime(memory)  # its bytes are what they were
    for _ in range(2):  # one line a second, after a look at the file
        assert json.loads(server.stdout.readline())["serving"]["whole"]
    with open(memory, "r+b") as file:
        file.write(b"changed")
    assert "was changed while it was served" in sentence(server), server
    unhashed = scene.start("serve", "--json", "--no-verify", "--listen", "tcp://127.0.0.1:0",
                           memory)
    unhashed.stdout.readline()
    with open(memory, "r+b") as file:
        file.write(b"again!!")
    assert "was changed while it was served" in sentence(unhashed)


@test
def a_file_that_is_cut_short_kills_no_server(scene):
    with open(scene.path("key"), "w", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write("7" * 32)
    # Who encrypts looks at the memory itself: SIGBUS.
    for args in ((), ("--key-file", scene.path("key"), "--encryption", "required")):
        memory = snapshot(scene)
        server, there = offered(scene, memory, "tcp://127.0.0.1:0", *args)
        vm, tool = served_by(scene, there, copied(scene, memory), *args)
        vm.do("touch 0 10")
        os.truncate(memory, 100 * PAGE)
        vm.ask("touch 1500 1")  # a page that is no more: it waits
        assert "was cut short while it was served" in sentence(server), args
        assert event(tool, "lost")["reason"]
        os.killpg(vm.process.pid, signal.SIGKILL)
        event(tool, "ended")
        tool.stdout.read()
        equal(tool.wait(LIMIT), 0)


@test
def a_file_that_others_can_read_or_change_is_not_served(scene):
    memory = snapshot(scene, 64)
    for mode in (0o640, 0o604, 0o620, 0o602):
        os.chmod(memory, mode)
        status, _, err = scene.run("serve", "--listen", "tcp://127.0.0.1:0", memory)
        equal(status, 1)
        assert f"mode {mode:04o}" in err and f"chmod 0600 {memory}" in err, err
    os.chmod(memory, 0o600)
    if os.geteuid() == 0:
        os.chown(memory, 4321, -1)
        status, _, err = scene.run("serve", "--listen", "tcp://127.0.0.1:0", memory)
        equal(status, 1)
        assert "belongs to user 4321" in err, err


@test
def without_a_key_it_says_whom_it_serves(scene):
    memory, key = snapshot(scene, 64), scene.path("key")
    with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
        file.write("a1" * 32)
    for args, here in ((), True), (("--key-file", key), False), (("--set=insecure=yes",), False):
        server = scene.start("serve", "--listen", "tcp://127.0.0.1:0", memory, *args)
        equal((args, "this host only" in server.stdout.readline()), (args, here))
        server.terminate()
        equal(server.wait(LIMIT), 0)


def lose_both(server, tool, meanwhile=lambda: None):
    """The server first, then the handler; the next handler finds no server."""
    server.kill()
    server.wait(LIMIT)
    event(tool, "lost")
    os.kill(handler_of(tool), signal.SIGKILL)
    meanwhile()
    event(tool, "restarted")
    assert "no server answers" in event(tool, "lost")["reason"]


@test
def a_killed_handler_and_a_lost_server_are_waited_for(scene):
    memory = snapshot(scene)
    server, uri = offered(scene, memory)
    vm, tool = served_by(scene, uri, memory)
    vm.do("touch 0 100")
    lose_both(server, tool, lambda: vm.ask("touch 500 100"))
    server, _ = offered(scene, memory, uri)
    equal(vm.answer()["wrong"], 0)
    vm.do("check")
    vm.end()
    event(tool, "ended")
    tool.stdout.read()
    equal(tool.wait(LIMIT), 0)


@test
def the_next_handler_takes_no_other_bytes(scene):
    """The file that is served later has the times of the first one, but not its bytes."""
    memory = snapshot(scene, holes=False)
    right, before = copied(scene, memory), os.stat(memory)
    server, uri = offered(scene, memory)
    vm, tool = served_by(scene, uri, right)
    vm.do("touch 0 100")
    lose_both(server, tool)
    with open(memory, "r+b") as file:
        file.seek(1000 * PAGE + 5)
        file.write(b"changed")
    os.utime(memory, ns=(before.st_atime_ns, before.st_mtime_ns))
    vm.ask("touch 1000 1")  # waits for it
    server, _ = offered(scene, memory, uri)
    while "is another snapshot than the one" not in event(tool, "lost")["reason"]:
        pass
    server.kill()
    server.wait(LIMIT)
    with open(memory, "wb") as file, open(right, "rb") as copy:
        file.write(copy.read())
    os.utime(memory, ns=(before.st_atime_ns, before.st_mtime_ns))
    offered(scene, memory, uri)
    equal(vm.answer()["wrong"], 0)
    vm.do("check")
    vm.end()
    tool.stdout.read()
    equal(tool.wait(LIMIT), 0)


@test
def a_microvm_that_ends_while_the_server_is_lost_is_noticed(scene):
    memory = snapshot(scene)
    for args in ((), ("--record", scene.path("record"))):
        server, uri = offered(scene, memory)
        vm, tool = served_by(scene, uri, memory, *args)
        server.kill()
        server.wait(LIMIT)
        event(tool, "lost")
        os.kill(handler_of(tool), signal.SIGKILL)
        event(tool, "restarted")
        event(tool, "lost")
        os.killpg(vm.process.pid, signal.SIGKILL)
        told = tool.stdout.read()
        equal((tool.wait(LIMIT), '"recorded"' in told, tool.stderr.read()), (0, bool(args), ""))
        equal(os.path.exists(scene.path("record")), bool(args))


@test
def a_signal_ends_what_waits_for_a_server(scene):
    """A server takes the connection and says nothing: before there is a microVM, and with one."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tool = scene.start("firecracker", "--socket", scene.path("socket"), "--from",
                           f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        silent.accept()[0].detach()
        tool.terminate()
        _, err = tool.communicate(timeout=LIMIT)
        assert "ended by a signal; no microVM had connected" in err, err
    if URIS:
        raise Skip("the server here is at another address than the silent one")
    memory = snapshot(scene)
    server, uri = offered(scene, memory)
    vm, tool = served_by(scene, uri, memory, "--record", scene.path("record"))
    vm.do("touch 16 10")
    server.kill()
    server.wait(LIMIT)
    event(tool, "lost")
    with socket.create_server(("127.0.0.1", int(uri.rsplit(":", 1)[1]))) as silent:
        os.kill(handler_of(tool), signal.SIGKILL)
        event(tool, "restarted")
        silent.accept()[0].detach()
        tool.terminate()
        equal(event(tool, "recorded")["pages"], 10)
        err = tool.stderr.read()
        assert "ended by a signal; the microVM waits" in err and "no --record" not in err, err
        assert os.path.exists(scene.path("record"))
        equal(tool.wait(LIMIT), 1)
    os.killpg(vm.process.pid, signal.SIGKILL)


@test
def what_fails_at_once_is_not_tried_without_a_pause(scene):
    memory = snapshot(scene)
    _, uri = offered(scene, memory)
    vm = MicroVM(scene, memory)
    tool = listening(scene, uri, "--background")
    # There is no such memory, so that no page can be placed.
    began = time.monotonic()
    vm.do('raw [{"base_host_virt_addr": 4096, "size": 4096, "offset": 0}]')
    for _ in range(6):
        event(tool, "lost")
    assert time.monotonic() - began > 1.2, time.monotonic() - began
    vm.end()
    tool.stdout.read()
    equal(tool.wait(LIMIT), 0)


if __name__ == "__main__":
    sys.exit(main())
