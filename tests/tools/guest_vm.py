# SPDX-License-Identifier: LGPL-2.1-or-later
"""A QEMU with the guest of tests/migrations/guest: its monitors and its heartbeats. Each heartbeat
tells whether the guest's memory is right."""
import json
import os
import re
import socket
import subprocess

from harness import LIMIT, until

NEEDED = {"QEMU", "GUEST_ELF", "GUEST_EXPECT"}
PRIVATE = "memory-backend-ram,id=mem0,size=64M"


def in_file(path):
    """QEMU's words for memory that is this file."""
    return f"memory-backend-file,id=mem0,size=64M,mem-path={path},share=on"


def ask_qmp(path, *commands, limit=LIMIT):
    """The answers of the monitor there to commands, each a name or (name, arguments); a QEMU that
    ends answers no more."""
    answers = []
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(limit)
        monitor.connect(path)
        with monitor.makefile("rw", encoding="utf-8") as lines:
            for one in ("qmp_capabilities", *commands):
                name, arguments = one if isinstance(one, tuple) else (one, {})
                lines.write(json.dumps({"execute": name, "arguments": arguments, "id": "test"}) +
                            "\n")
                lines.flush()
                for answer in map(json.loads, lines):
                    if answer.get("id") == "test":
                        assert "return" in answer, (one, answer)
                        answers.append(answer["return"])
                        break
    return answers[1:]


def count_beats(serial):
    """Whole heartbeats in this file so far."""
    try:
        with open(serial, encoding="ascii", errors="replace") as file:
            return len(re.findall(r"^beat .*\n", file.read(), re.M))
    except FileNotFoundError:
        return 0


def judge(text, *words):
    """Compares all that a guest has printed, with these words on its command line, with what it has
    to be: the memory was right at every heartbeat, and each of them is there once."""
    done = subprocess.run([os.environ["GUEST_EXPECT"], *words], input=text, capture_output=True,
                          check=False)
    assert done.returncode == 0, done.stdout.decode()
    return done.stdout.decode()


def printed(*vms):
    """What a guest has printed there, one after the other."""
    text = b""
    for vm in vms:
        with open(vm.serial, "rb") as serial:
            text += serial.read()
    return text


class GuestVm:
    """The process. Of its two monitors `socket` is ib-migrate's, and `own` is the test's."""

    def __init__(self, path, memory, *extra, append="", incoming=False, **options):
        """`path`: of its sockets and its serial line, less their endings."""
        self.socket, self.own, self.serial = (f"{path}.{what}" for what in ("qmp", "own", "serial"))
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [os.environ["QEMU"], *"-name guest-of-a-test -M q35 -accel tcg,thread=multi -m 64 "
             "-nodefaults -display none -no-reboot -machine memory-backend=mem0".split(),
             "-kernel", os.environ["GUEST_ELF"], "-append", append, "-object", memory,
             "-serial", f"file:{self.serial}", "-qmp", f"unix:{self.socket},server=on,wait=off",
             "-qmp", f"unix:{self.own},server=on,wait=off",
             *(("-incoming", "defer") if incoming else ()), *extra],
            stdin=subprocess.DEVNULL, **options)

    def wait_for_monitor(self):
        """As soon as both are there."""
        until(lambda: self.listens() or not self.alive(), "QEMU's monitor")
        assert self.alive(), f"QEMU ended with {self.process.poll()}"

    def listens(self):
        """The second one is there."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.own) == 0

    def alive(self):
        """The process has not ended."""
        return self.process.poll() is None

    def beats(self):
        """Whole heartbeats so far."""
        return count_beats(self.serial)

    def end(self):
        """SIGKILL, also of one that is stopped."""
        self.process.kill()
        self.process.wait(LIMIT)
