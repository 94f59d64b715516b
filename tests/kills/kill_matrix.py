#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""kill_matrix.py [--moves N] [--seed S] [--jobs N] [--only NUMBER]... [--state NAME]

Migrations in which somebody is killed: the tool or the QEMU of either side, by SIGKILL, SIGTERM,
SIGBUS or a SIGSTOP for a while, or the source's tool with its watchdog, in each state of both state
machines (source.h, destination.h).
Then an operator does what ib-migrate(1) tells to do, by what the tools say and by who lives. In the
end the guest is right on exactly one side and its migration can be made again, or the VM is lost
for a reason that no tool can do anything about, and it was said so.

What is true is found in the guest's heartbeats and in both QEMUs, not in any record. A case is the
same for the same seed and number. QEMU, GUEST_ELF, GUEST_EXPECT and IB_MIGRATE are in the
environment, and this is root."""
import os
import random
import signal
import sys

from manual import Operator
from matrix import arguments, run_cases, told
from scene import SLOW, Failed, Scene, TooSlow, change_a_page, children, pause, process_state

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP,
           "bus": signal.SIGBUS}
VICTIMS = ("source tool", "destination tool", "source QEMU", "destination QEMU")
WITH_WATCHDOG = "source tool and watchdog"
# A tool has a handler for SIGBUS, which the kernel sends it when a file that it has mapped is cut
# short; to a QEMU that is as any other signal.
STRIKES = [(victim, name) for victim in VICTIMS for name in SIGNALS
           if name != "bus" or victim.endswith("tool")] + [(WITH_WATCHDOG, "kill")]
# Who has ended when a tool comes to that state, and cannot be struck.
GONE = {"destination:given up": ("destination QEMU",),
        "destination:answering": ("source tool", WITH_WATCHDOG, "destination QEMU"),
        "destination:failed": ("destination QEMU",),
        "destination:shut down": ("destination QEMU",)}
PAUSES = (0.2, 1.5, 10, 45)  # seconds: below the time-out, above it, and above what is a stall
TRIES = 6


# ------------------------------------------------------------------------------ states


def plainly(slow=False):
    """A state that a migration passes through by itself."""
    def come(scene, state):
        source = state.startswith("source")
        scene.receive(*(("--max-bandwidth", SLOW) if slow else ()),
                      stop_at=None if source else state)
        if state == "destination:listening":
            scene.receiver.stopped()
        scene.send(stop_at=state if source else None)
    return come


def interrupted_before(scene, state):
    """Both give up a migration that is interrupted before the commit."""
    if state == "source:kept":
        scene.receive(stop_at="destination:ready")
        scene.send(stop_at=state)
        scene.receiver.stopped(scene.check_time)
        scene.hold(scene.receiver)
        scene.sender.signal(signal.SIGINT)
    else:
        scene.receive(stop_at=state)
        scene.send(stop_at="source:exposing")
        scene.sender.stopped()
        scene.sender.signal(signal.SIGINT)
        scene.sender.signal(signal.SIGCONT)


def monitor_lost(scene, state):
    """The tool loses the monitor of a QEMU that lives, and cannot continue the VM by itself."""
    scene.receive(stop_at="destination:mapped")
    scene.send(stop_at=state)
    scene.receiver.stopped(scene.check_time)
    scene.hold(scene.receiver)
    scene.sender.cut(scene.a.socket)


def qemu_gone(scene, state):
    """The QEMU of that side is killed, which makes its tool come to this state."""
    if state == "destination:answering":
        scene.receive(stop_at=state)
        scene.send(stop_at="source:committed")
        scene.sender.stopped()
        scene.sender.signal(signal.SIGKILL)
        scene.receiver.says("this tool waits for the source to be back")
        scene.kill_qemu(scene.b)
    else:
        scene.receive("--max-bandwidth", SLOW, stop_at=state)
        scene.send()
        scene.filling()
        scene.kill_qemu(scene.b)


def left(scene, state):
    """Interrupted twice after the commit."""
    scene.receive("--max-bandwidth", SLOW, stop_at=state if state[0] == "d" else None)
    scene.send(stop_at=state if state[0] == "s" else None)
    scene.filling()
    tool = scene.sender if state[0] == "s" else scene.receiver
    tool.signal(signal.SIGINT)
    tool.says("interrupt once more")
    tool.signal(signal.SIGINT)


def broken(scene, state):
    """Somebody writes to the source's memory."""
    scene.receive("--max-bandwidth", SLOW, stop_at=state if state[0] == "d" else None)
    scene.send(stop_at=state if state[0] == "s" else None)
    scene.filling()
    put_back = change_a_page(scene.a.ram, scene.b.ram)
    scene.fast()
    (scene.sender if state[0] == "s" else scene.receiver).stopped()
    put_back()


def shut_down(scene, state):
    """The guest shuts the VM down at the destination."""
    scene.receive("--max-bandwidth", SLOW, stop_at=state)
    scene.send()
    scene.filling()
    scene.guest_ends = True
    scene.b.execute("system_powerdown")


STATES = {
    **{f"source:{name}": plainly() for name in
       "asking exposing starting stopped sending committed confirming done".split()},
    **{f"destination:{name}": plainly() for name in
       "listening joining ready mapped waiting resuming complete done".split()},
    "source:serving": plainly(slow=True), "destination:filling": plainly(slow=True),
    "source:kept": interrupted_before, "destination:given up": interrupted_before,
    "source:stranded": monitor_lost, "destination:answering": qemu_gone,
    "destination:failed": qemu_gone,
    "source:left": left, "destination:left": left,
    "source:broken": broken, "destination:broken": broken,
    "destination:shut down": shut_down,
}


class Case:
    """What is done to one migration: every combination once, then with a second one at random."""

    def __init__(self, seed, number, state=None):
        matrix = [(s, *strike) for s in STATES for strike in STRIKES
                  if (not state or s == state) and strike[0] not in GONE.get(s, ())]
        random.Random(seed).shuffle(matrix)
        self.number, self.random = number, random.Random(f"{seed}/{number}")
        self.state, *first = matrix[number % len(matrix)]
        self.strikes = [tuple(first)]
        if number >= len(matrix):
            self.strikes.append(self.random.choice(STRIKES))
        self.pauses = [self.random.choice(PAUSES) for _ in self.strikes]
        self.at_once = self.random.random() < 0.5  # both strikes, or one after the other

    def __str__(self):
        what = ", then ".join(
            f"{victim}: {name}" + (f" for {seconds} s" if name == "stop" else "")
            for (victim, name), seconds in zip(self.strikes, self.pauses))
        return f"case {self.number}: at {self.state}: {what}"

    def run(self):
        """How it ended, in words; again when there was no time for a tool before it was struck, or
        when nobody was struck."""
        for left in range(TRIES, 0, -1):
            try:
                return attempt(self)
            except TooSlow:
                if left == 1:
                    raise
        return None


# ------------------------------------------------------------------------------ a case


class Struck(Scene):
    """A migration of which the case's victims are struck."""

    def __init__(self, case):
        super().__init__("button=1" if case.state == "destination:shut down" else "")
        self.case, self.held, self.guest_ends = case, [], False
        self.before_death = {}  # of the source's QEMU: what each tool had said by then

    def hold(self, tool):
        """This tool has stopped itself, too, and goes on after the strike."""
        self.held.append(tool)

    def kill_qemu(self, qemu):
        """SIGKILL, and nothing that was said before that is untrue because of it."""
        if qemu is self.a and qemu.alive():
            self.before_death = {tool: len(tool.said()) for tool in self.tools}
        qemu.end()

    def said_since(self, tool):
        """What this tool has said since the source's QEMU ended."""
        return tool.said()[self.before_death.get(tool, 0):]

    def victim(self, name):
        """A process by its name, and whose it is. libvirtd would be another one."""
        return {"source tool": self.sender, "destination tool": self.receiver,
                "source QEMU": self.a, "destination QEMU": self.b,
                WITH_WATCHDOG: self.sender}[name]

    def strike(self, victim, name, seconds):
        """One signal, if the victim lives, and whether it does; a stopped one goes on after that.
        """
        process = self.victim(victim)
        if not process or not process.alive():
            return False
        if victim == WITH_WATCHDOG:
            for one in children(process.process.pid):
                os.kill(one, signal.SIGKILL)
        if name == "kill" and process is self.a:
            self.kill_qemu(process)
        elif process is self.a:
            self.before_death = {tool: len(tool.said()) for tool in self.tools}
        process.process.send_signal(SIGNALS[name])
        if name == "bus":
            process.ends_by += (signal.SIGBUS,)
        if name == "stop":
            self.go_on(but=process)
            pause(seconds)
        if name == "stop" or process_state(process.process.pid) == "T":
            process.process.send_signal(signal.SIGCONT)
        return True

    def go_on(self, but=None):
        """What was stopped for the strike."""
        for tool in (*self.held, self.sender, self.receiver):
            if tool and tool is not but:
                tool.go_on()
        self.held = []

    def run(self):
        """Until the strikes are over."""
        case = self.case
        try:
            STATES[case.state](self, case.state)
            tool = self.sender if case.state.startswith("source") else self.receiver
            tool.stopped(self.check_time)
        except TooSlow:
            raise
        except Failed as why:
            self.go_on()
            pause(1)
            if self.was_slow():
                raise TooSlow(str(why)) from why
            raise
        for number, ((victim, name), seconds) in enumerate(zip(case.strikes, case.pauses)):
            if not self.strike(victim, name, seconds) and number == 0:
                raise TooSlow(f"nobody was struck: the {victim} had ended before {case.state}")
            if not case.at_once:
                self.go_on()
        self.go_on()


def attempt(case):
    """The words that describe how it ended."""
    with told(Struck(case)) as scene:
        scene.run()
        return Operator(scene).work()


def main():
    """Exit status."""
    parser = arguments("cases", 24, 2 * (os.cpu_count() or 1))
    parser.add_argument("--state", choices=list(STATES))
    options = parser.parse_args()
    return run_cases(options, lambda number: Case(options.seed, number, options.state))


if __name__ == "__main__":
    sys.exit(main())
