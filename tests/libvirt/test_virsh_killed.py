#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_virsh_killed.py [TEST...]: a tool, a QEMU or a libvirtd of either side is killed during
`virsh migrate` (virsh_scene.py)."""
import os
import signal
import sys
import time

from hosts import LIMIT, RESTLESS, Domain, needs_seabios, test, until
from virsh_scene import (Move, Tool, caught, here, in_connect, main, nothing_left, stayed,
                         stopped_with_missing_pages)

BEFORE = ("source:exposing", "source:starting", "source:stopped", "source:sending",
          "destination:joining", "destination:ready", "destination:mapped", "destination:waiting")


@test
def a_tool_is_killed_before_the_commit(hosts, domain):
    """At each state of either side: the VM stays, and the next move works."""
    domain.start(hosts.a)
    for state in BEFORE:
        print("  ", state, flush=True)
        move, tool = caught(hosts, domain, state)
        tool.kill()
        stayed(hosts, domain, move)
    domain.expect(hosts.a)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_qemu_that_waits_for_a_page_is_let_go(hosts, domain):
    """The destination's tool is killed while QEMU loads, at different moments of that: libvirtd
    there asks QEMU something, and would wait for its answer for ever."""
    domain.start(hosts.a)
    for _ in range(4):
        move, tool = caught(hosts, domain, "destination:mapped")
        until(lambda: hosts.a.state(domain.name) == "paused", "the stop")
        tool.kill()
        stayed(hosts, domain, move)
    domain.expect(hosts.a)


@test
def the_source_tool_is_killed_as_it_commits(hosts, domain):
    """COMMIT has not gone: libvirt takes the VM back."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:committed")
    tool.kill()
    stayed(hosts, domain, move)


@test
def the_destination_tool_is_killed_as_the_vm_loads(hosts, domain):
    """The end of the device state is lost with it: libvirt takes the VM back."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    tool.kill()
    assert move.virsh.wait(LIMIT) == 1
    until(lambda: not hosts.a.ok("find", "/dev/shm", "-name", f"*{domain.name}*.ibx-*"),
          "no second name of guest memory")
    assert move.sender.process.poll() is None, "it looks for the destination for 10 seconds"
    assert move.sender.end() == 1
    assert "libvirt has continued the VM here" in move.sender.text, move.sender.text
    here(domain, hosts.a, hosts.b)


@test
def the_source_tool_is_killed_while_pages_are_missing(hosts, domain):
    """libvirt has ended the source's QEMU: recover finds the pages without it."""
    domain, move, tool = stopped_with_missing_pages(hosts, domain, "source:serving")
    tool.kill()
    again = Tool(hosts.a, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.receiver.end() == 0, move.receiver.text
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)
    for host in hosts.all:
        nothing_left(host, domain)


@test
def the_destination_tool_is_killed_while_pages_are_missing(hosts, domain):
    """libvirt's job may wait for a page; recover ends it well, and names libvirt's remedy."""
    domain = Domain(hosts, domain.name, words=RESTLESS)
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:filling")
    tool.kill()
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert f"(virsh destroy {domain.name})" in again.text, again.text
    assert move.sender.end() == 0, move.sender.text
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def the_destination_tool_leaves_a_vm_that_runs_at_once(hosts, domain):
    """Interrupted twice: it does not wait for the end of a QEMU that goes on."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:filling", receive=("--max-bandwidth", "64K"))
    tool.kill(signal.SIGTERM)
    tool.kill(signal.SIGCONT)
    tool.says("interrupt once more")
    assert move.virsh.wait(LIMIT) == 0, move.virsh.stdout.read()
    since = time.monotonic()
    tool.kill(signal.SIGTERM)
    assert tool.end() == 3, tool.text
    assert time.monotonic() - since < 3
    again = Tool(hosts.b, ["recover", "--json", "--qmp", domain.monitor])
    assert again.end() == 0, again.text
    assert move.sender.end() == 0, move.sender.text
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def the_destination_s_qemu_is_killed(hosts, domain):
    """The destination's, before the commit: the VM stays."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "source:starting")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    stayed(hosts, domain, move)
    move, tool = caught(hosts, domain, "destination:waiting")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    stayed(hosts, domain, move)
    domain.expect(hosts.a)


@test
def a_libvirtd_that_stands_still_leaves_the_vm_paused(hosts, domain):
    """The migration has failed, and nobody continues the VM, which is said."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:mapped")
    until(lambda: hosts.a.state(domain.name) == "paused", "the stop")
    hosts.a.hold_libvirtd()
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    assert move.sender.end() == 1, move.sender.text
    assert f"virsh resume {domain.name}" in move.sender.text, move.sender.text
    hosts.a.release_libvirtd()
    stayed(hosts, domain, move)
    domain.expect(hosts.a)


@test
def a_libvirtd_is_killed_before_the_commit(hosts, domain):
    """And started again: the VM runs at the source, and nowhere else."""
    domain.start(hosts.a)
    for number in (0, 1):
        host = hosts.all[number]
        move, tool = caught(hosts, domain, "source:sending")
        host.end_libvirtd(signal.SIGKILL)
        tool.kill(signal.SIGCONT)
        move.virsh.wait(LIMIT)
        host.start_libvirtd()
        stayed(hosts, domain, move)
    domain.expect(hosts.a)


def left_before_qemu_begins(hosts, domain):
    """libvirtd is killed as it waits for the source's tool, and started again. Nobody tells that
    tool, because the destination's stands still."""
    move, tool = caught(hosts, domain, "source:compared")
    until(lambda: in_connect(hosts.a), "libvirtd in connect(2)")
    move.receiver.kill(signal.SIGSTOP)
    hosts.a.end_libvirtd(signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    assert move.virsh.wait(LIMIT) == 1, move.virsh.stdout.read()
    hosts.a.start_libvirtd()
    return move


@test
def a_vm_is_saved_with_its_memory_when_libvirt_has_left(hosts, domain):
    """Before QEMU began to migrate it, while QEMU has the setting that leaves RAM out. It is saved,
    or stays as it is; saved without RAM it would be lost."""
    domain.start(hosts.a)
    move = left_before_qemu_begins(hosts, domain)
    if hosts.a.virsh("managedsave", domain.name).code == 0:
        hosts.a.virsh_ok("start", domain.name)
    assert move.sender.end() == 1, move.sender.text
    assert "virsh suspend" in move.sender.summary()["error"], move.sender.text
    move.receiver.kill(signal.SIGCONT)
    move.receiver.end()
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)


@test
def a_tool_to_which_libvirt_does_not_come_gives_up(hosts, domain):
    """And QEMU has its settings back."""
    domain.start(hosts.a)
    move = left_before_qemu_begins(hosts, domain)
    assert move.sender.end() == 1, move.sender.text
    assert "virsh domjobabort" in move.sender.summary()["error"], move.sender.text
    move.receiver.kill(signal.SIGCONT)
    move.receiver.end()
    here(domain, hosts.a, hosts.b)


@test
def the_source_s_libvirtd_is_killed_after_the_commit(hosts, domain):
    """It does not know what has become of the VM, and leaves it paused; the VM runs elsewhere."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    hosts.a.end_libvirtd(signal.SIGKILL)
    hosts.a.start_libvirtd()
    tool.kill(signal.SIGCONT)
    move.virsh.wait(LIMIT)
    until(lambda: hosts.b.state(domain.name) == "running", "running on b")
    domain.beats_on(hosts.b)
    assert move.receiver.end() == 0, move.receiver.text
    assert move.sender.end() == 0, move.sender.text
    assert hosts.a.state(domain.name) == "paused"
    # virsh says that it "probably" is so, as where the VM has stayed.
    assert "do not continue it here (virsh resume)" in move.sender.text, move.sender.text
    assert f"virsh destroy {domain.name} on this host" in move.sender.text, move.sender.text
    hosts.a.virsh_ok("destroy", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_vm_that_was_shut_down_elsewhere_is_not_continued(hosts, domain):
    """By its guest, while its pages came; the source's libvirtd has left it paused."""
    needs_seabios("power button")
    with open(domain.xml, encoding="utf-8") as file:
        text = file.read()
    with open(domain.xml, "w", encoding="utf-8") as file:
        file.write(text.replace("<cmdline>", "<cmdline>button=1 "))
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming", receive=("--max-bandwidth", "64K"))
    hosts.a.end_libvirtd(signal.SIGKILL)
    hosts.a.start_libvirtd()
    tool.kill(signal.SIGCONT)
    move.virsh.wait(LIMIT)
    until(lambda: hosts.b.state(domain.name) == "running", "running on b")
    hosts.b.virsh_ok("shutdown", domain.name, "--mode", "acpi")
    assert move.receiver.end() == 4, move.receiver.text
    assert move.sender.end() == 4, move.sender.text
    assert hosts.a.state(domain.name) == "paused"
    assert "the VM was shut down by its guest at b" in move.sender.text, move.sender.text
    assert "do not continue it here (virsh resume)" in move.sender.text, move.sender.text
    hosts.a.virsh_ok("destroy", domain.name)
    nothing_left(hosts.a, domain)


@test
def the_destination_s_libvirtd_is_killed_after_the_commit(hosts, domain):
    """The VM is loaded there and does not run: the source's libvirtd continues it."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming")
    hosts.b.end_libvirtd(signal.SIGKILL)
    move.virsh.wait(LIMIT)
    assert move.sender.end() == 1
    assert "libvirt has continued the VM here" in move.sender.text, move.sender.text
    tool.kill(signal.SIGCONT)
    hosts.b.start_libvirtd()
    assert move.receiver.end() == 1
    here(domain, hosts.a, hosts.b)
    domain.expect(hosts.a)
    nothing_left(hosts.a, domain)


@test
def a_vm_that_is_destroyed_where_it_runs_is_lost(hosts, domain):
    """And the tool there does not promise that the source could restart it."""
    domain, move, tool = stopped_with_missing_pages(hosts, domain, "destination:filling")
    hosts.b.virsh_ok("destroy", domain.name)
    tool.kill(signal.SIGCONT)
    assert move.receiver.end() != 0
    assert "start it from its disk" in move.receiver.text, move.receiver.text
    assert "rollback" not in move.receiver.summary()["error"], move.receiver.text
    is_lost_at_the_source(hosts, domain, move)
    # From its disk, and this migration's record is not in the way of the next one.
    hosts.b.virsh_ok("undefine", domain.name)
    domain.start(hosts.a)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)


def is_lost_at_the_source(hosts, domain, move):
    """The source's tool ends by itself, says what is left, and leaves nothing."""
    assert move.sender.end() == 3, move.sender.text
    assert "nothing can restart it from where it stopped" in move.sender.summary()["error"]
    said = hosts.a.ok(os.environ["IB_MIGRATE"], "status", "--qmp", domain.monitor)
    assert "start it from its disk" in said, said
    for host in hosts.all:
        assert host.state(domain.name) in ("none", "shut off"), host.state(domain.name)
        assert not host.qemu(domain.name)
    nothing_left(hosts.a, domain)


@test
def a_qemu_is_killed_where_the_vm_runs(hosts, domain):
    """While its pages come, and libvirt has ended the source's: both say that it is lost."""
    domain, move, tool = stopped_with_missing_pages(hosts, domain, "destination:filling")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    tool.kill(signal.SIGCONT)
    assert move.receiver.end() == 3, move.receiver.text
    is_lost_at_the_source(hosts, domain, move)


@test
def a_qemu_is_killed_before_libvirt_has_ended_the_source_s(hosts, domain):
    """libvirtd at the source is dead: its QEMU stays, and virsh resume brings the VM back."""
    domain.start(hosts.a)
    move, tool = caught(hosts, domain, "destination:resuming", receive=("--max-bandwidth", "64K"))
    hosts.a.end_libvirtd(signal.SIGKILL)
    hosts.a.start_libvirtd()
    tool.kill(signal.SIGCONT)
    move.virsh.wait(LIMIT)
    until(lambda: hosts.b.state(domain.name) == "running", "running on b")
    os.kill(hosts.b.qemu(domain.name), signal.SIGKILL)
    assert move.receiver.end() == 3, move.receiver.text
    assert move.sender.end() == 3, move.sender.text
    assert "virsh resume here" in move.sender.summary()["error"], move.sender.text
    assert "virsh resume there" in move.receiver.summary()["error"], move.receiver.text
    for words in ("virsh resume", "rollback\" ends what is left"):
        assert words in hosts.a.ok(os.environ["IB_MIGRATE"], "status", "--qmp", domain.monitor)
    assert hosts.a.state(domain.name) == "paused"
    hosts.a.virsh_ok("resume", domain.name)
    hosts.a.ok(os.environ["IB_MIGRATE"], "rollback", "--yes", "--qmp", domain.monitor)
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
