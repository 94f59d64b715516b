#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_virsh_migrate.py [TEST...]: moves by `virsh migrate` that end well, and those that are
refused or given up (virsh_scene.py)."""
import os
import signal
import sys
import time

from hosts import LIMIT, Domain, test
from virsh_scene import (MIGRATE, PORT, Move, Tool, caught, here, main, nothing_left, stayed,
                         stopped_with_missing_pages)

CD_ROM = """<disk type='file' device='cdrom'>
      <driver name='qemu' type='raw'/><source file='{path}' startupPolicy='optional'/>
      <target dev='sda' bus='sata'/><readonly/>
    </disk>"""

# ------------------------------------------------------------------------- the hosts themselves


@test
def libvirt_migrates_by_itself(hosts, domain):
    """Plain pre-copy: what the other tests begin with."""
    domain.start(hosts.a)
    ran = hosts.a.virsh(*MIGRATE, domain.name, hosts.b.uri)
    assert ran.code == 0, ran
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


# ------------------------------------------------------------------------- good ends


@test
def virsh_migrate_moves_there_and_back(hosts, domain):
    """And the domain is what it was."""
    domain.start(hosts.a)
    uuid = hosts.a.virsh_ok("domuuid", domain.name)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    assert hosts.a.state(domain.name) == "none"
    domain.expect(hosts.a, hosts.b)
    Move(hosts, domain, hosts.b, hosts.a).whole()
    here(domain, hosts.a, hosts.b)
    assert hosts.b.state(domain.name) == "none"
    assert hosts.a.virsh_ok("domuuid", domain.name) == uuid
    for host in hosts.all:
        nothing_left(host, domain)


@test
def devices_have_more_memory_than_a_socket_takes(hosts, domain):
    """ROMs of network cards. QEMU sends them before it stops the VM, and before it says so."""
    cards = [word for slot in ("0x10", "0x11", "0x12")
             for word in ("-device", f"virtio-net-pci,addr={slot}")]
    big = Domain(hosts, domain.name, arguments=cards)
    big.start(hosts.a)
    Move(hosts, big).whole()
    here(big, hosts.b, hosts.a)
    big.expect(hosts.a, hosts.b)


@test
def libvirtd_itself_migrates(hosts, domain):
    """--p2p, as OpenStack Nova and others call it."""
    domain.start(hosts.a)
    Move(hosts, domain).whole("--p2p")
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_vm_may_be_left_paused(hosts, domain):
    """--suspend: it is there when libvirt has ended the source's QEMU."""
    domain.start(hosts.a)
    Move(hosts, domain).whole("--suspend")
    assert hosts.b.state(domain.name) == "paused"
    assert hosts.a.state(domain.name) == "none"
    hosts.b.virsh_ok("resume", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def pages_come_before_the_stop(hosts, domain):
    """--warm: libvirt waits at the source's socket meanwhile, and the VM runs."""
    domain.start(hosts.a)
    move = Move(hosts, domain, send=("--warm",))
    move.whole()
    summary = move.sender.summary()
    assert summary["warm_rounds"] > 0, summary
    assert summary["warm_pages"] > 0, summary
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)
    for host in hosts.all:
        nothing_left(host, domain)


@test
def a_copy_at_the_source_may_stay_defined(hosts, domain):
    """Without --undefinesource it is shut off there."""
    domain.start(hosts.a)
    move = Move(hosts, domain)
    ran = hosts.a.virsh("migrate", "--live", "--unsafe", "--migrateuri", f"unix://{move.socket}",
                        domain.name, hosts.b.uri)
    assert ran.code == 0, ran
    here(domain, hosts.b, hosts.a, persistent=False)
    assert hosts.a.state(domain.name) == "shut off"


# ------------------------------------------------------------------------- refused


@test
def memory_that_cannot_work_is_refused_first(hosts, domain):
    """By the tool, before anything is touched; and virsh then has nobody to talk to."""
    private = Domain(hosts, domain.name, memory="<source type='anonymous'/>")
    private.start(hosts.a)
    move = Move(hosts, private, only="receive")
    tool = Tool(hosts.a, ["send", *move.common(), f"tcp://{hosts.b.address}:{PORT}"])
    assert tool.end() == 1
    assert "share=on" in tool.text, tool.text
    ran = move.migrate()
    assert ran.code == 1, ran
    here(private, hosts.a, hosts.b)


@test
def what_virsh_was_told_beside_it_is_refused(hosts, domain):
    """Options whose stream is another one. The VM goes on."""
    domain.start(hosts.a)
    for option, words in (("--parallel", "--parallel"),
                          ("--postcopy", "Postcopy is not supported")):
        move = Move(hosts, domain)
        ran = move.migrate(option)
        assert ran.code == 1, ran
        assert move.sender.end() == 1
        assert words in move.sender.text + ran.err, (ran, move.sender.text)
        here(domain, hosts.a, hosts.b)
        move.receiver.end()
    domain.expect(hosts.a)


@test
def a_qemu_that_listens_elsewhere_is_named(hosts, domain):
    """receive was given another path than send and virsh: nobody waits for what does not come."""
    domain.start(hosts.a)
    move = Move(hosts, domain, only="none")
    own, move.socket = move.socket, f"/run/ibx/{domain.name}-other.sock"
    other = move.socket
    move.receive()
    move.socket = own
    move.send()
    since = time.monotonic()
    assert move.migrate().code == 1
    assert (move.receiver.end(), move.sender.end()) == (1, 1), move.receiver.text
    assert time.monotonic() - since < 20, "as long as nothing comes"
    error = move.receiver.summary()["error"]
    assert f"the socket {own}" in error and f"--migrateuri unix://{other}" in error, error
    assert error in move.sender.summary()["error"], move.sender.text
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)


@test
def a_vm_that_libvirt_migrates_past_the_tools_is_whole(hosts, domain):
    """virsh was given no unix://, while QEMU had ib-migrate's settings: libvirt's own migration
    fails, or moves all of the memory, as it comes before or after the end of the tools."""
    domain.start(hosts.a)
    move = Move(hosts, domain)
    ran = hosts.a.virsh(*MIGRATE, domain.name, hosts.b.uri, limit=LIMIT)
    assert (move.receiver.end(), move.sender.end()) == (1, 1), move.receiver.text
    moved = ran.code == 0
    error = move.receiver.summary()["error"]
    assert moved or f"--migrateuri unix://{move.socket}" in error, error
    here(domain, hosts.b if moved else hosts.a, hosts.a if moved else hosts.b)
    nothing_left(hosts.a, domain)
    domain.expect(*hosts.all[:2 if moved else 1])


@test
def a_vm_that_libvirt_migrates_past_a_send_that_waits_is_not_called_lost(hosts, domain):
    """libvirt ends QEMU here, and the VM runs elsewhere: if started here, it would run twice."""
    domain.start(hosts.a)
    move = Move(hosts, domain, only="send")
    ran = hosts.a.virsh(*MIGRATE, domain.name, hosts.b.uri, limit=LIMIT)
    assert ran.code == 0, ran
    assert move.sender.end() == 1
    said = move.sender.text
    assert "unless virsh list has it on another host" in said and "shut down here" not in said, said
    here(domain, hosts.b, hosts.a)
    nothing_left(hosts.a, domain)


@test
def a_cd_rom_that_the_destination_lacks_is_named(hosts, domain):
    """libvirt leaves it out there (startupPolicy), and the guest would find an empty drive."""
    iso = f"/var/lib/libvirt/images/{domain.name}.iso"
    hosts.a.ok("sh", "-c", f"echo medium >{iso}; truncate -s 1M {iso}; chmod 644 {iso}")
    with open(domain.xml, encoding="utf-8") as file:
        text = file.read()
    with open(domain.xml, "w", encoding="utf-8") as file:
        file.write(text.replace("<memballoon", CD_ROM.format(path=iso) + "<memballoon"))
    domain.start(hosts.a)
    move = Move(hosts, domain)
    assert move.migrate().code == 1
    assert move.sender.end() == 1
    error = move.sender.summary()["error"]
    assert f"is {iso}" in error and "an empty drive at the destination" in error, error
    move.receiver.end()
    here(domain, hosts.a, hosts.b)
    hosts.a.virsh_ok("change-media", domain.name, "sda", "--eject")
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_vm_that_is_suspended_meanwhile_stays(hosts, domain):
    """After send has begun and before libvirt has: it would not stop any more, and nobody waits
    for that. The next move works."""
    domain.start(hosts.a)
    move = Move(hosts, domain)
    hosts.a.virsh_ok("suspend", domain.name)
    since = time.monotonic()
    move.begin()
    assert move.sender.end() == 1, move.sender.text
    assert "virsh suspend" in move.sender.summary()["error"], move.sender.text
    assert "libvirt has not continued" not in move.sender.text, move.sender.text
    assert move.virsh.wait(LIMIT) == 1, move.virsh.stdout.read()
    assert time.monotonic() - since < 20, "until the receiver gave up"
    move.receiver.end()
    assert hosts.a.state(domain.name) == "paused"
    assert hosts.b.state(domain.name) == "none"
    hosts.a.virsh_ok("resume", domain.name)
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def without_a_receiver_virsh_does_not_wait_for_ever(hosts, domain):
    """The source's tool opens nobody's way, says why, and virsh fails."""
    domain.start(hosts.a)
    move = Move(hosts, domain, only="send")
    ran = move.migrate()
    assert ran.code == 1, ran
    assert move.sender.end() == 1
    assert "no ib-migrate receive --libvirt" in move.sender.text, move.sender.text
    here(domain, hosts.a, hosts.b)
    nothing_left(hosts.a, domain)


@test
def a_move_that_is_cancelled_leaves_all_as_it_was(hosts, domain):
    """By a signal while libvirt waits for the source's tool; the next one works."""
    domain.start(hosts.a)
    move = Move(hosts, domain, stop_at="destination:joining")
    move.begin()
    move.receiver.stopped()
    move.sender.kill(signal.SIGTERM)
    assert move.sender.end() == 1
    move.receiver.kill(signal.SIGCONT)
    stayed(hosts, domain, move)
    Move(hosts, domain).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def a_move_is_given_up_while_pages_come_before_the_stop(hosts, domain):
    """By a signal to the source's tool, by its death, and by virsh; the next one works."""
    domain.start(hosts.a)
    for number in (signal.SIGTERM, signal.SIGKILL):
        move, tool = caught(hosts, domain, "source:warming", send=("--warm",))
        assert hosts.a.state(domain.name) == "running"
        domain.beats_on(hosts.a)
        tool.kill(number)
        if number != signal.SIGKILL:
            tool.kill(signal.SIGCONT)
        stayed(hosts, domain, move)
    move, tool = caught(hosts, domain, "source:warming", send=("--warm",))
    abort = hosts.a.start("virsh", "-q", "-c", "qemu:///system", "domjobabort", domain.name)
    tool.kill(signal.SIGCONT)
    abort.wait(LIMIT)
    if move.virsh.wait(LIMIT):  # it came in time
        stayed(hosts, domain, move)
        Move(hosts, domain, send=("--warm",)).whole()
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


@test
def who_answers_while_pages_come_before_the_stop(hosts, domain):
    """As ib-migrate(1) says: virsh list and domstate, and not domjobinfo; ib-migrate does."""
    domain.start(hosts.a)
    move = Move(hosts, domain, receive=("--max-bandwidth", "1M"), send=("--warm",))
    move.begin()
    move.sender.says('"phase":"warming"')
    info = hosts.a.start("virsh", "-q", "-c", "qemu:///system", "domjobinfo", domain.name)
    assert domain.name in hosts.a.virsh_ok("list")
    assert hosts.a.state(domain.name) == "running"
    said = hosts.a.ok(os.environ["IB_MIGRATE"], "status", "--json", "--qmp", domain.monitor)
    assert '"phase":"warming"' in said, said
    assert info.poll() is None, info.stdout.read()
    hosts.a.ok(os.environ["IB_MIGRATE"], "cancel", "--qmp", domain.monitor)
    info.wait(LIMIT)
    stayed(hosts, domain, move)
    domain.expect(hosts.a)


# ------------------------------------------------------------------------- operators


@test
def operators_at_work_while_pages_are_missing(hosts, domain):
    """A restarted libvirtd and a managed save at the destination lose nothing."""
    domain, move, tool = stopped_with_missing_pages(hosts, domain, "source:serving")
    hosts.b.end_libvirtd()
    hosts.b.start_libvirtd()
    assert hosts.b.state(domain.name) == "running"
    saving = hosts.b.start("virsh", "-q", "-c", "qemu:///system", "managedsave", domain.name)
    tool.kill(signal.SIGCONT)
    assert saving.wait(LIMIT) == 0, saving.stdout.read()
    assert move.sender.end() == 0, move.sender.text
    move.receiver.end()
    hosts.b.virsh_ok("start", domain.name)
    here(domain, hosts.b, hosts.a)
    domain.expect(hosts.a, hosts.b)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
