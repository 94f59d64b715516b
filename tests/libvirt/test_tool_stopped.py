#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_tool_stopped.py [TEST...]: the source's tool stands still (SIGSTOP) while libvirt gives up
its migration and saves the VM (virsh_scene.py). QEMU has been told to leave RAM out of what it
migrates: whatever succeeds must have RAM nevertheless."""
import os
import signal
import sys

from hosts import LIMIT, children, test, until
from virsh_scene import (PORT, Move, Tool, caught, here, ignores_shared, in_connect, main, no_job,
                         stayed)


def libvirtd_leaves(host):
    """It waits for the tool to let it connect, and is killed, and started again."""
    until(lambda: in_connect(host), "libvirtd in connect(2)")
    host.end_libvirtd(signal.SIGKILL)
    host.start_libvirtd()


def set_and_left(hosts, domain):
    """A move whose tool has set what it sets, and stands still, and has not let libvirt connect,
    which has left."""
    move, tool = caught(hosts, domain, "source:set")
    libvirtd_leaves(hosts.a)
    until(lambda: no_job(hosts.a, domain), "the end of libvirt's job")
    return move, tool


def goes_on(hosts, domain, move, tool):
    """The tool goes on, and ends, and so do virsh and the other tool. The VM is at the source."""
    tool.kill(signal.SIGCONT)
    assert tool.end() == 1, tool.text
    stayed(hosts, domain, move)
    domain.expect(hosts.a)


# As in ib-migrate(1): gives a QEMU that is about to load what was saved the setting for that.
SET = r"""
import socket, sys, time
one = socket.socket(socket.AF_UNIX)
while one.connect_ex(sys.argv[1]):
    time.sleep(0.001)
one.sendall(b'{"execute":"qmp_capabilities"}{"execute":"migrate-set-capabilities","arguments":'
            b'{"capabilities":[{"capability":"x-ignore-shared","state":' + sys.argv[2].encode() +
            b'}]}}')
said = b""
while said.count(b'"return"') < 2:
    said += one.recv(1000)
"""


def size_of(host, path):
    """In bytes."""
    return int(host.ok("stat", "-c", "%s", path))


@test
def a_vm_is_saved_after_its_libvirtd_was_killed(hosts, domain):
    """Before QEMU has begun to migrate it."""
    domain.start(hosts.a)
    move, tool = set_and_left(hosts, domain)
    hosts.a.virsh_ok("managedsave", domain.name)
    hosts.a.virsh_ok("start", domain.name)
    goes_on(hosts, domain, move, tool)
    assert "has ended here" in tool.summary()["error"], tool.text


@test
def what_is_saved_of_a_running_vm_has_its_memory(hosts, domain):
    """Nothing stops the VM before QEMU writes its state, and the VM stays."""
    domain.start(hosts.a)
    move, tool = set_and_left(hosts, domain)
    dump, memory = (os.path.join("/var/lib/libvirt/qemu", f"{domain.name}.{kind}")
                    for kind in ("dump", "memory"))
    hosts.a.virsh_ok("dump", "--live", domain.name, dump)
    hosts.a.virsh_ok("snapshot-create-as", domain.name, "one", "--live", "--memspec",
                     f"file={memory}", "--diskspec", "vda,snapshot=no")
    hosts.a.virsh_ok("snapshot-delete", domain.name, "one", "--metadata")
    for path in (dump, memory):
        # The guest writes to 16 MiB and more of its memory; all of its devices take 1 MiB.
        assert size_of(hosts.a, path) > 4 << 20, (path, size_of(hosts.a, path))
    goes_on(hosts, domain, move, tool)


@test
def what_was_saved_without_memory_is_loaded_with_it(hosts, domain):
    """The watchdog stands still, too. Nothing removes the memory, and the manual's way works."""
    domain.start(hosts.a)
    move = Move(hosts, domain, only="receive")
    move.sender = tool = Tool(hosts.a, ["send", *move.common(),
                                        f"tcp://{hosts.b.address}:{PORT}"],
                              stop_at="source:recorded,source:set")
    tool.stopped()
    (watchdog,) = children(tool.pid())
    os.kill(watchdog, signal.SIGSTOP)
    tool.kill(signal.SIGCONT)
    until(lambda: os.path.exists(hosts.a.inside(move.socket)), "the source's socket")
    move.begin()
    tool.stopped()
    libvirtd_leaves(hosts.a)
    hosts.a.virsh_ok("managedsave", domain.name)
    assert "x-ignore-shared" in hosts.a.virsh("start", domain.name).err
    tool.kill(signal.SIGCONT)
    os.kill(watchdog, signal.SIGCONT)
    assert tool.end() == 3, tool.text
    error = tool.summary()["error"]
    (memory,) = hosts.a.ok("find", "/dev/shm", "-name", f"*{domain.name}*.ibx-*").split()
    assert memory in error and "MIGRATIONS BY LIBVIRT" in error, error
    status = hosts.a.ok(os.environ["IB_MIGRATE"], "status", "--qmp", domain.monitor)
    assert error in status and "start no QEMU" not in status, status
    recover = hosts.a.run(os.environ["IB_MIGRATE"], "recover", "--qmp", domain.monitor)
    assert recover.code == 6 and error in recover.err, recover
    folder = os.path.dirname(memory)
    hosts.a.ok("sh", "-c", f"cd {folder}; for id in $(seq 1 50); do "
               f"install -d -o libvirt-qemu $id-{domain.name}; "
               f"ln {memory} $id-{domain.name}/pc.ram; done")
    setting = hosts.a.start("python3", "-c", SET, domain.monitor, "true")
    hosts.a.virsh_ok("start", domain.name)
    assert setting.wait(LIMIT) == 0, setting.stdout.read()
    hosts.a.ok("python3", "-c", SET, domain.monitor, "false")
    hosts.a.ok("rm", memory)
    pruned = hosts.a.ok(os.environ["IB_MIGRATE"], "prune", "--unfinished", "--qmp", domain.monitor)
    assert "deleted" in pruned and "kept" not in pruned, pruned
    stayed(hosts, domain, move)
    domain.expect(hosts.a)


@test
def a_tool_that_stood_still_gives_up(hosts, domain):
    """libvirt has waited for it, and QEMU would migrate all of its memory now."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:set")
    until(lambda: in_connect(hosts.a), "libvirtd in connect(2)")
    tool.says("QEMU saves the VM with its RAM again")
    goes_on(hosts, domain, move, tool)
    assert "stood still" in tool.summary()["error"], tool.text


@test
def a_vm_is_saved_after_the_destination_has_failed(hosts, domain):
    """QEMU's migration is complete, and libvirt continues the VM at the source."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:committed")
    hosts.b.end_libvirtd(signal.SIGKILL)
    assert move.virsh.wait(LIMIT) == 1, move.virsh.stdout.read()
    until(lambda: hosts.a.state(domain.name) == "running", "running on a")
    hosts.a.virsh_ok("managedsave", domain.name)
    hosts.a.virsh_ok("start", domain.name)
    hosts.b.start_libvirtd()
    goes_on(hosts, domain, move, tool)


@test
def a_tool_that_goes_on_moves_the_vm(hosts, domain):
    """It stands still while QEMU migrates the VM: QEMU refuses what would spoil that."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:sending")
    tool.kill(signal.SIGCONT)
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    assert (move.sender.end(), move.receiver.end()) == (0, 0), move.sender.text
    here(domain, hosts.b, hosts.a)
    assert not ignores_shared(hosts.b, domain)
    domain.expect(hosts.a, hosts.b)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
