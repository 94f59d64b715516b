#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ib_migrate_run.py IB-MIGRATE: one command that makes the destination's QEMU and migrates the
VM. In the place of ssh stands a program that runs the command on this host, in another folder and
with another folder of records; with IBX_TEST_SSHD=1 a real sshd and ssh are in its place."""
import glob
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys

from harness import LIMIT, Skip, alive, equal, run_all, until
from run_scene import (case, fails, far_vm, in_cores, leftovers, listens, nothing_is_left, places,
                       processes_with, run_line, Running, start_vm)

import migrate_scene as tool
from migrate_scene import objects

# Whatever a shell could take for its own.
HOSTILE = "a b'c\"d$(touch PWNED)`touch PWNED`;touch PWNED\n&|<>*?,,=x\\"


# ------------------------------------------------------------------------------ it works


@case
def a_vm_is_migrated_by_one_command(scene):
    before = leftovers(scene)
    # A monitor that is called as those of run, in a folder that is none of run's.
    precious, linked = scene.path("precious"), scene.path("ibx-run-linked")
    os.makedirs(precious, mode=0o700)
    os.symlink(precious, linked)
    with open(os.path.join(precious, "key"), "w", encoding="ascii"):
        pass
    # Another VM's, which this QEMU's command line names.
    others = scene.path("ibx-run-Other1")
    os.makedirs(others, mode=0o700)
    # One to which another user's link leads, which may lead to yet another one next.
    theirs, found = scene.path("theirs"), scene.path("place")
    for folder in (theirs, found, os.path.join(found, "ibx-run-Found1")):
        os.makedirs(folder, mode=0o700)
    os.symlink(found, os.path.join(theirs, "way"))
    with open(os.path.join(found, "ibx-run-Found1", "key"), "w", encoding="ascii"):
        pass
    os.chown(theirs, 1000, 1000)
    source = start_vm(scene, "-qmp", f"unix:{linked}/qmp,server=on,wait=off", "-qmp",
                      f"unix:{others}/qmp,server=on,wait=off", "-qmp",
                      f"unix:{theirs}/way/ibx-run-Found1/qmp,server=on,wait=off")
    os.rename(others, scene.path("its-own"))
    os.makedirs(others, mode=0o700)
    with open(os.path.join(others, "key"), "w", encoding="ascii"):
        pass
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(others, "qmp"))
    listener.listen()
    code, out, err = scene.run(*run_line(scene))
    equal((code, "complete and confirmed" in out), (0, True))
    assert os.path.exists(os.path.join(precious, "key"))
    assert os.path.exists(os.path.join(others, "key"))
    assert os.path.exists(os.path.join(found, "ibx-run-Found1", "key"))
    listener.close()
    far = far_vm(scene)
    assert f"is process {far.pid};" in err and "broken" not in err, err
    equal(in_cores(far.pid), in_cores("self"))  # QEMU's, not those of ib-migrate
    equal(source.process.wait(LIMIT), 0)  # as --quit
    equal(os.listdir(scene.memory), [])   # as --remove
    far.runs_on()
    tool.expect(source, far)
    folders = leftovers(scene) - before
    equal(sorted(path[len(scene.memory):][:4] for path in folders), ["-far", "-run"])
    for path in folders:
        equal(os.stat(path).st_mode & 0o777, 0o700)
        equal(sorted(os.listdir(path)), ["mem0"] if "-far/" in path else ["log", "qmp"])
    equal(glob.glob(scene.here.state + "/run-*"), [])
    for key in ("-S", "-daemonize"):
        assert key not in far.arguments()
    machine = far.ask(("qom-get", {"path": "/machine", "property": "type"}))[:-len("-machine")]
    assert machine.startswith("pc-q35-"), machine
    equal(far.arguments().count(f"type={machine}"), 1)
    code, _, err = scene.run("recover", "--qmp", scene.here.path("tool"))
    assert code == 1 and "the destination has confirmed it" in err and "key" not in err, err
    # And back again, with pages that come before the stop: what the first run had made is gone.
    code, out, err = scene.run(
        "run", "--to", "127.0.0.1", "--ssh", scene.ssh, "--far-program", scene.program, "--map",
        f"{scene.there.folder}={scene.here.folder}", "--listen", "tcp://127.0.0.1:0",
        *places(scene), "--qmp", scene.there.path("tool"), "--state-dir", scene.there.state,
        "--far-state-dir", scene.here.state, "--warm", "--json")
    summary = objects(out)[-1]["summary"]
    equal((code, summary["exit_status"], summary["record"]["state"]), (0, 0, "done"))
    tells = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 7)
    equal(bool(summary["warm_pages"]), tells)
    until(lambda: not alive(far.pid), "the first far QEMU to end")
    equal(len(leftovers(scene) - before), 2)
    (pid,) = processes_with(scene.here.folder.encode(), b"/ibx-run-", b"-incoming")
    back = Running(pid, scene.here)
    equal(back.running(), True)
    equal(back.arguments().count(f"type={machine}"), 1)
    back.ask("quit")
    until(lambda: not listens(back.monitor), "QEMU to end")


@case
def what_is_started_has_the_callers_limit_on_the_stack(scene):
    start_vm(scene)
    low = 512 << 10  # ib-migrate raises its own
    own, most = resource.getrlimit(resource.RLIMIT_STACK)
    wrapped = scene.path("wrapped-ssh")
    with open(wrapped, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\nulimit -s > {scene.path('limit')}\nexec {scene.ssh} \"$@\"\n")
    os.chmod(wrapped, 0o700)
    line = list(run_line(scene))
    line[line.index("--ssh") + 1] = wrapped
    code, _, err = scene.run(
        *line, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (low, most)))
    equal((code, err if code else ""), (0, ""))
    with open(scene.path("limit"), encoding="ascii") as file:
        equal(int(file.read()) << 10, low)
    there = own if "IBX_TEST_SSHD" in os.environ else low  # a login there has its host's
    equal(resource.prlimit(far_vm(scene).pid, resource.RLIMIT_STACK), (there, most))


@case
def a_host_with_ipv6_alone_is_reached(scene):
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as why:
            raise Skip(f"needs ::1: {why}") from why
    start_vm(scene)
    line = list(run_line(scene, "--address", "::1"))
    del line[line.index("--listen"):line.index("--listen") + 2]
    code, _, err = scene.run(*line)
    assert code == 0 and "waiting at rdma://[::]:" in err, err


@case
def hostile_names_pass_no_shell(scene):
    disk, odd = scene.here.path("disk " + HOSTILE), scene.path("odd " + HOSTILE)
    with open(disk, "wb") as file:
        file.truncate(1 << 20)
    os.link(disk, scene.there.path("disk " + HOSTILE))  # shared storage, by another path
    os.makedirs(odd)
    os.symlink(scene.program, os.path.join(odd, "ib-migrate"))
    text = "file=" + disk.replace(",", ",,") + ",if=none,id=one,format=raw,file.locking=off"
    node = json.dumps({"driver": "raw", "node-name": "two", "read-only": True, "file": {
        "driver": "file", "filename": disk, "locking": "off"}})
    source = start_vm(scene, "-drive", text, "-blockdev", node, "-device",
                      "virtio-blk-pci,drive=one,addr=4,serial=" + "x,,y z", "-fw_cfg",
                      "name=opt/test,string=" + HOSTILE.replace(",", ",,").replace("\n", " "),
                      name="guest=vm " + HOSTILE.replace(",", ",,"))
    line = list(run_line(scene))
    line[line.index("--far-program") + 1] = os.path.join(odd, "ib-migrate")
    code, _, err = scene.run(*line)
    assert code == 0, err
    far = far_vm(scene)
    was, now = (["", *vm] for vm in (source.given, far.arguments()))
    there = disk.replace(scene.here.folder, scene.there.folder)
    for option, wanted in (("-drive", text.replace(scene.here.folder, scene.there.folder)),
                           ("-name", was[was.index("-name") + 1]),
                           ("-fw_cfg", was[was.index("-fw_cfg") + 1]),
                           ("-append", "")):
        equal(now[now.index(option) + 1], wanted)
    equal(json.loads(now[now.index("-blockdev") + 1])["file"]["filename"], there)
    far.runs_on()


@case
def what_was_plugged_in_is_there_too(scene):
    ports = [one for i in range(1, 6)
             for one in ("-device", f"pcie-root-port,id=port{i},chassis={i},addr={i + 8:x}")]
    source = start_vm(scene, *ports, "-device", "nec-usb-xhci,id=usb", "-object",
                      "iothread,id=gone", "-object", "iothread,id=stays")
    with open(scene.here.path("plugged.img"), "wb") as file:
        file.truncate(1 << 20)
    os.link(scene.here.path("plugged.img"), scene.there.path("plugged.img"))
    source.ask(
        ("object-add", {"qom-type": "memory-backend-file", "id": "mem1", "size": 128 << 20,
                        "mem-path": scene.memory + "/mem1", "share": True}),
        ("device_add", {"driver": "pc-dimm", "id": "dimm1", "memdev": "mem1"}),
        ("object-del", {"id": "gone"}),
        ("object-add", {"qom-type": "iothread", "id": "io1", "poll-max-ns": 4711}),
        ("blockdev-add", {"driver": "raw", "node-name": "plugged", "cache": {"direct": False},
                          "detect-zeroes": "unmap", "discard": "unmap",
                          "file": {"driver": "file", "filename": scene.here.path("plugged.img"),
                                   "locking": "off"}}),
        ("device_add", {"driver": "virtio-blk-pci", "id": "disk1", "drive": "plugged",
                        "bus": "port2", "iothread": "io1", "serial": "a b"}),
        ("device_add", {"driver": "virtio-rng-pci", "id": "rng1", "bus": "port3"}),
        # With properties that QEMU tells and does not let anybody set.
        ("device_add", {"driver": "virtio-balloon-pci", "id": "balloon1", "bus": "port1"}),
        ("device_add", {"driver": "usb-tablet", "id": "tablet1", "bus": "usb.0"}),
        ("object-add", {"qom-type": "memory-backend-file", "id": "mem2", "size": 128 << 20,
                        "mem-path": scene.memory + "/mem2", "share": True}),
        ("device_add", {"driver": "virtio-mem-pci", "id": "vmem1", "memdev": "mem2",
                        "requested-size": 64 << 20, "bus": "port5"}),
        # With two queues, so that both QEMUs can have it.
        ("netdev_add", {"type": "tap", "id": "net1", "ifname": f"ibx{os.getpid()}", "queues": 2,
                        "script": "no", "downscript": "no"}),
        ("device_add", {"driver": "virtio-net-pci", "id": "nic1", "netdev": "net1", "mq": True,
                        "vectors": 6, "mac": "52:54:00:12:34:99", "bus": "port4"}))
    code, _, err = scene.run(*run_line(scene))
    assert code == 0 and "broken" not in err, err
    far = far_vm(scene)
    far.runs_on()
    children = {one["name"]: one["type"] for one in
                far.ask(("qom-list", {"path": "/machine/peripheral"}))}
    equal([children.get(name) for name in ("dimm1", "disk1", "rng1", "nic1", "balloon1", "tablet1",
                                           "vmem1")],
          [f"child<{name}>" for name in ("pc-dimm", "virtio-blk-pci", "virtio-rng-pci",
                                         "virtio-net-pci", "virtio-balloon-pci", "usb-tablet",
                                         "virtio-mem-pci")])
    given = far.arguments()
    assert any(one.startswith("tap,id=net1,") and ",queues=2" in one for one in given), given
    (dimm,) = [one for one in far.ask("query-memory-devices") if one["type"] == "dimm"]
    equal((dimm["data"]["size"], dimm["data"]["slot"], dimm["data"]["addr"]),
          (128 << 20, 0, 4 << 30))
    equal([far.ask(("qom-get", {"path": path, "property": name})) for path, name in (
        ("/objects/io1", "poll-max-ns"), ("/machine/peripheral/disk1", "serial"))],
        [4711, "a b"])
    (zeroes,) = [one["detect_zeroes"] for one in far.ask("query-named-block-nodes")
                 if one["node-name"] == "plugged"]
    equal(zeroes, "unmap")
    present = [one["name"] for one in far.ask(("qom-list", {"path": "/objects"}))]
    assert "gone" not in present and "stays" in present, present
    tool.expect(source, far)


LIMITS = {"bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0}


def limits_of(vm):
    """Those of its disks that have any, by the place of the disk, and of its throttle groups."""
    disks, groups = vm.ask("query-block", ("qom-get", {"path": "/objects/group",
                                                       "property": "limits"}))
    return {one["qdev"]: {name: value for name, value in one["inserted"].items()
                          if name.startswith(("bps", "iops", "group")) and value}
            for one in disks if one.get("inserted")}, groups


@case
def limits_that_a_monitor_has_set_are_there_too(scene):
    images = []
    for i in range(4):
        with open(scene.here.path(f"{i}.img"), "wb") as file:
            file.truncate(1 << 20)
        os.link(scene.here.path(f"{i}.img"), scene.there.path(f"{i}.img"))
        images.append(f"file.locking=off,format=raw,file={scene.here.path(f'{i}.img')}")
    source = start_vm(
        scene, "-object", "throttle-group,id=group,x-iops-total=70",
        "-drive", f"if=virtio,{images[0]}", "-drive", f"if=none,id=other,bps=70000,{images[1]}",
        "-device", "virtio-blk-pci,drive=other", "-blockdev", "throttle,node-name=node,"
        f"throttle-group=group,file.driver=file,file.filename={scene.here.path('2.img')}",
        "-device", "virtio-blk-pci,id=disk,drive=node", "-drive", f"if=none,id=same,{images[3]}",
        "-device", "virtio-blk-pci,drive=same")
    source.ask(
        ("block_set_io_throttle", dict(LIMITS, device="virtio0", bps_rd=1000000, bps_rd_max=3000000,
                                       bps_rd_max_length=2, iops=300, iops_size=8192,
                                       group="others")),
        ("block_set_io_throttle", dict(LIMITS, device="other")),  # it has none any more
        ("block_set_io_throttle", dict(
            LIMITS, id="/machine/peripheral/disk/virtio-backend", iops=500)),
        ("qom-set", {"path": "/objects/group", "property": "limits",
                     "value": {"iops-total": 0, "bps-write": 900000}}))
    wanted = limits_of(source)
    equal(sorted(map(len, wanted[0].values())), [0, 0, 2, 6])
    code, _, err = scene.run(*run_line(scene))
    assert code == 0 and "broken" not in err, err
    far = far_vm(scene)
    equal(limits_of(far), wanted)
    far.runs_on()


@case
def the_units_start_what_the_manual_says(scene):
    folder = os.path.dirname(scene.program)
    units = [os.path.join(folder, f"ib-migrate-{name}@.service") for name in ("receive", "recover")]
    if not os.path.exists(units[0]):
        raise Skip("needs the units beside the program")
    lines = {}
    for unit in units:
        with open(unit, encoding="ascii") as file:
            text = file.read()
        statuses = "4 5" if unit == units[0] else "4"
        assert f"\nSuccessExitStatus={statuses}\n" in text, "what is no failure"
        (lines[unit],) = [line[len("ExecStart="):] for line in text.splitlines()
                          if line.startswith("ExecStart=")]
        copy = scene.path(os.path.basename(unit).replace("@", "@web"))
        with open(copy, "w", encoding="ascii") as file:
            file.write(text.replace(lines[unit].split()[0], scene.program))
        if shutil.which("systemd-analyze"):
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], check=False,
                                  capture_output=True, text=True)
            assert "ib-migrate" not in done.stderr, done.stderr
    start_vm(scene, "-incoming", "defer", wait=False)
    key = tool.key_file(scene, "key", "a1" * 32)
    settings = {"${QMP}": [scene.here.path("tool")], "${LISTEN}": ["tcp://127.0.0.1:0"],
                "$OPTIONS": ["--key-file", key]}
    words = [part for word in lines[units[0]].split()[1:] for part in settings.get(word, [word])]
    process = scene.start(*words)
    assert "waiting at tcp://127.0.0.1:" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert "no VM had come" in err, err
    # For days, perhaps: a journal gets what is new, and no status five times a second.
    equal((process.returncode, out), (5, ""))
    words = [part for word in lines[units[1]].split()[1:] for part in settings.get(word, [word])]
    equal(scene.run(*words)[0], 1)  # there is nothing to continue


# ------------------------------------------------------------------------------ it does not


@case
def what_cannot_be_is_refused_before_anything_starts(scene):
    vm = start_vm(scene, "-object", "iothread,id=io0", "-device", "pcie-root-port,id=port1")
    vm.ask(("object-add", {"qom-type": "secret", "id": "sec1", "data": "x"}))
    fails(scene, vm, ("sec1", "plugged in while the VM ran", "--qemu-arg"))
    vm.ask(("object-del", {"id": "sec1"}))
    vm.ask(("netdev_add", {"type": "user", "id": "net1"}),
           ("device_add", {"driver": "virtio-net-pci", "id": "nic1", "netdev": "net1",
                           "bus": "port1"}))
    fails(scene, vm, ("nic1", "plugged in while the VM ran", "only networks of type tap"))
    assert not os.path.exists(scene.path("ssh.pids"))
    for line, words in ((("--map", "relative=/x"), "two absolute paths"),
                        (("--map", "/x"), "two absolute paths")):
        code, _, err = scene.run(*run_line(scene, *line))
        equal((line, code), (line, 1))
        assert words in err, err
    code, _, err = scene.run("run", "--qmp", "Q")
    equal((code, "--to is needed" in err), (2, True))
    for host in ("", "-oProxyCommand=x"):
        equal((host, scene.run("run", "--qmp", "Q", "--to", host)[0]), (host, 2))


@case
def a_far_end_may_be_in_a_folder_that_its_user_cannot_enter(scene):
    """As with --ssh "ssh HOST sudo -u USER": it looks for listeners all the same."""
    vm, taken, locked = start_vm(scene), scene.path("taken"), scene.path("locked")
    os.mkdir(locked, mode=0o700)
    with open(scene.path("ssh"), "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\ncd {locked} && chmod 0 . && exec setpriv --bounding-set "
                   "-dac_override,-dac_read_search --inh-caps -dac_override,-dac_read_search "
                   "sh -c \"$2\"\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(taken)
        listener.listen()
        fails(scene, vm, (f"a program already listens at {taken}",), "--qemu-arg=-monitor",
              f"--qemu-arg=unix:{taken},server=on,wait=off")
        assert listens(taken)
    fails(scene, vm, ("QEMU did not start", "nonsense"), "--qemu-arg=-nonsense")


def plug_a_tap(scene, downscript):
    vm = start_vm(scene, "-device", "pcie-root-port,id=port1")
    vm.ask(("netdev_add", {"type": "tap", "id": "net1", "ifname": f"ibx{os.getpid()}",
                           "script": "no", "downscript": downscript}),
           ("device_add", {"driver": "virtio-net-pci", "id": "nic1", "netdev": "net1",
                           "bus": "port1"}))
    return vm


@case
def a_tap_whose_description_qemu_cuts_is_refused(scene):
    fails(scene, plug_a_tap(scene, "/" + 300 * "a"), ("nic1", "not tell the whole names"))


@case
def a_tap_with_a_comma_in_the_name_of_its_script_is_refused(scene):
    fails(scene, plug_a_tap(scene, "/a,b"), ("nic1", "not tell the whole names"))


@case
def a_far_end_that_does_not_come_up_is_cleaned_up(scene):
    vm = start_vm(scene)
    err = fails(scene, vm, ("QEMU did not start", "nonsense"), "--qemu-arg=-nonsense")
    assert len(err.splitlines()) == 1, err
    fails(scene, vm, ("no folder can be made in /none",), "--memory-dir", "/none")
    # Somebody's, such as the QEMU's own where both ends are on one host and no --map is given.
    taken = scene.path("taken")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(taken)
        listener.listen()
        for words in (("-monitor", f"unix:{taken},server=on,wait=off"),
                      ("-qmp", f"unix:{taken},server,nowait"),
                      ("-chardev", f"socket,id=late,path={taken},server=on,wait=off")):
            fails(scene, vm, (f"a program already listens at {taken}", "--map"),
                  *("--qemu-arg=" + word for word in words))
        assert listens(taken)
    # A name without a folder is in that where the QEMU here runs, or its namesake there.
    relative = f"taken-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(relative)
        listener.listen()
        try:
            fails(scene, vm, (f"a program already listens at {relative} in {os.getcwd()}",),
                  "--qemu-arg=-monitor", f"--qemu-arg=unix:{relative},server=on,wait=off")
            assert listens(relative)
        finally:
            os.unlink(relative)
    # What only ssh's configuration knows is no address: no record says that a migration began.
    fails(scene, vm, ('"nowhere.invalid"', "cannot be resolved", "by --address"),
          "--address", "nowhere.invalid")
    equal(glob.glob(scene.here.state + "/*.json"), [])
    fails(scene, vm, ("the destination", "refuses"), "--qemu-arg=-device",
          "--qemu-arg=virtio-rng-pci,addr=9")
    line, no_ssh = list(run_line(scene)), scene.path("no-ssh")
    with open(no_ssh, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexit 255\n")
    # As ssh(1) where the command cannot be run there: its output ends before it has heard how the
    # command did, and until then a signal ends it with 255.
    slow_ssh = scene.path("slow-ssh")
    with open(slow_ssh, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\ntrap 'exit 255' TERM\nexec >&-\ncat > /dev/null\nexit 127\n")
    for path in (no_ssh, slow_ssh):
        os.chmod(path, 0o700)
    for at, value, words in ((line.index("--far-program") + 1, "/none/ib-migrate",
                              ("did not start at the destination", "--far-program")),
                             (line.index("--ssh") + 1, "false",
                              ("did not start at the destination", "false")),
                             (line.index("--ssh") + 1, "/none/ssh -p 22", ("/none/ssh",)),
                             # As ssh(1) ends when there is no such host, or no way in.
                             (line.index("--ssh") + 1, no_ssh,
                              ("cannot be reached", "255", f'"{no_ssh} 127.0.0.1 true"')),
                             (line.index("--ssh") + 1, slow_ssh,
                              ("did not start at the destination", "127", "--far-program")),
                             # A real ssh(1) ends in that way there, too.
                             (line.index("--to") + 1, "other-host",
                              ("cannot be reached", "other-host") if "IBX_TEST_SSHD" in os.environ
                              else ("did not start at the destination",))):
        bad = list(line)
        bad[at] = value
        code, out, err = scene.run(*bad, "--json")
        (result,) = [one["result"] for one in objects(out)]
        equal((value, code, result["exit_status"]), (value, 1, 1))
        for word in words:
            assert word in err, (word, err)
    vm.runs_on()


def receivers(scene):
    """Those that far ends have started."""
    return processes_with(b"\0receive\0", scene.there.state.encode())


@case
def a_qemu_that_dies_behind_its_monitor_says_why(scene):
    """QEMU opens its monitor before disks and kernels: a receiver may be there when one fails."""
    vm, before = start_vm(scene), leftovers(scene)
    pipe = scene.path("kernel")
    os.mkfifo(pipe)
    process = scene.start(*run_line(scene, "--qemu-arg=-kernel", f"--qemu-arg={pipe}"))
    until(lambda: receivers(scene), "the receiver")

    def opened():
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads yet
            return False
        return True
    until(opened, "QEMU to open its kernel")
    _, err = process.communicate(timeout=LIMIT)
    equal(process.returncode, 1)
    assert "QEMU did not start: " in err and pipe in err, err
    nothing_is_left(scene, before)
    vm.runs_on()


@case
def a_login_shell_that_prints_something_is_named(scene):
    """Standard output is only for the far end; the greeting of a shell comes before its output."""
    vm, before, loud = start_vm(scene), leftovers(scene), scene.path("loud")
    for said, told in (("Welcome to this host\\n", "-"), ("Welcome to this host", "-"),
                       ("\\033[2JWelcome to this host\\n", "-"),
                       ("Welcome to this host\\n", "'exit 255'")):  # as ssh(1) that is told to end
        with open(loud, "w", encoding="ascii") as file:
            file.write(f"#!/bin/sh\ntrap {told} TERM\nexec 3<&0\nprintf '{said}'\n"
                       f"{scene.ssh} \"$@\" <&3 &\nwait\n")
        os.chmod(loud, 0o700)
        line = list(run_line(scene))
        line[line.index("--ssh") + 1] = loud
        code, out, err = scene.run(*line)
        equal((code, out), (1, ""))
        for word in ("Welcome to this host", f'"{loud} 127.0.0.1 true" must print nothing'):
            assert word in err, err
        assert "status" not in err and "\033" not in err, ascii(err)
    silent = scene.path("silent")
    with open(silent, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nexec >&-\nexec sleep 1000\n")
    os.chmod(silent, 0o700)
    line[line.index("--ssh") + 1] = silent
    code, out, err = scene.run(*line)
    equal((code, out), (1, ""))
    assert "closed its output" in err, err
    nothing_is_left(scene, before)
    vm.runs_on()


@case
def a_far_end_that_lies_writes_no_control_characters(scene):
    """What it says reaches the terminal as text, whichever of its words it is in."""
    vm, liar = start_vm(scene), scene.path("liar")
    for said in ([{"far": "say", "text": "\x1b[2Jsaid\n\x9bm"},
                  {"far": "ended", "error": "\x1b]0;why"}],
                 [{"far": "ready", "qmp": "/\x1b[2J\nmonitor", "uri": "tcp://127.0.0.1:1"}],
                 [{"far": "ready", "qmp": "/\x1b[2J\nmonitor", "uri": "\x1b[2J"}]):
        with open(liar, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nread -r request\ncat <<'END'\n"
                       + "".join(json.dumps(one) + "\n" for one in said) + "END\n")
        os.chmod(liar, 0o700)
        line = list(run_line(scene))
        line[line.index("--ssh") + 1] = liar
        code, out, err = scene.run(*line)
        equal((code, out), (1, ""))
        assert any(word in err for word in ("why", "monitor")), err
        assert not [c for c in err if c != "\n" and not c.isprintable()], ascii(err)
        assert all(one.startswith("ib-migrate: ") for one in err.splitlines()), err
    vm.runs_on()


@case
def a_far_end_that_says_too_much_is_cut_off(scene):
    vm, liar = start_vm(scene), scene.path("liar")
    with open(liar, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\nread -r request\nfor i in 1 2 3 4 5 6 7 8 9; do for j in "
                   f"{' '.join(map(str, range(200)))}; do\n"
                   "echo '{\"far\": \"say\", \"text\": \"me again\"}'\ndone\ndone\n"
                   "echo '{\"far\": \"ended\", \"error\": \"that was all\"}'\n")
    os.chmod(liar, 0o700)
    line = list(run_line(scene))
    line[line.index("--ssh") + 1] = liar
    code, _, err = scene.run(*line)
    equal((code, "that was all" in err), (1, True))
    assert 2 < err.count("me again") < 900 and "were left out" in err, err[-300:]
    vm.runs_on()


@case
def a_far_end_sets_no_options_here(scene):
    """What --listen has behind its ? counts, and not what the far end says that it has there."""
    vm, liar = start_vm(scene), scene.path("liar")
    ready = {"far": "ready", "qmp": "/monitor", "uri": "tcp://127.0.0.1:1?encryption=nonsense"}
    with open(liar, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\nread -r request\necho '{json.dumps(ready)}'\n")
    os.chmod(liar, 0o700)
    for own, words in (("", "127.0.0.1 port 1: Connection refused"), ("?chunk=wrong", '"wrong"')):
        line = list(run_line(scene))
        line[line.index("--ssh") + 1] = liar
        line[line.index("--listen") + 1] += own
        code, out, err = scene.run(*line)
        equal((code, out), (1, ""))
        assert words in err and "nonsense" not in err, err
    # As long as a host and a query may be: nothing of it is cut off.
    line = list(run_line(scene, "--address", "127.0.0." + 200 * "0" + "1"))
    line[line.index("--ssh") + 1] = liar
    line[line.index("--listen") + 1] += "?" + 24 * "timeout_ms=12345&" + "chunk=wrong"
    assert '"wrong"' in scene.run(*line)[2]
    # A user's name may have an @, as that of a directory does: the host is behind the last one.
    line = list(run_line(scene))
    line[line.index("--ssh") + 1] = liar
    line[line.index("--to") + 1] = "me@example.org@127.0.0.1"
    code, out, err = scene.run(*line)
    equal((code, out, "127.0.0.1 port 1: Connection refused" in err), (1, "", True))
    vm.runs_on()


@case
def a_far_end_without_a_process_for_its_receiver_is_cleaned_up(scene):
    """It does not become that receiver itself, which nobody would look after."""
    if "IBX_NO_FORK" not in os.environ:
        raise Skip("needs IBX_NO_FORK in the environment")
    vm, far = start_vm(scene), scene.path("far")
    with open(far, "w", encoding="ascii") as file:
        file.write(f"#!/bin/sh\nexport LD_PRELOAD={os.environ['IBX_NO_FORK']} "
                   f"ASAN_OPTIONS=verify_asan_link_order=0\nexec {scene.program} \"$@\"\n")
    os.chmod(far, 0o700)
    fails(scene, vm, ("no process for a receiver",), "--far-program", far)


@case
def a_clock_that_is_set_back_cuts_no_far_end_off(scene):
    """What it says last is waited for, whatever the time of the day; only a real ssh(1) ends, and
    says no more, when it is told to."""
    if "IBX_PAST_CLOCK" not in os.environ:
        raise Skip("needs IBX_PAST_CLOCK in the environment")
    vm = start_vm(scene)
    before = dict(os.environ)
    os.environ["LD_PRELOAD"] = before["IBX_PAST_CLOCK"]
    os.environ["ASAN_OPTIONS"] = "verify_asan_link_order=0"
    try:
        err = fails(scene, vm, ("refuses",), "--qemu-arg=-device",
                    "--qemu-arg=virtio-rng-pci,addr=9")
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert "has not reported that it removed" not in err, err


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[2:]))
