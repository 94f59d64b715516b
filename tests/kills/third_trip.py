#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""third_trip.py [--moves N] [--seed S] [--jobs N] [--only NUMBER]... [--paths NAME,...] [--list]

A VM that was borrowed and has returned goes away once more, or comes back from there. In each state
of that third or fourth trip somebody is killed: a tool of this trip or of the one before, the QEMU
that the VM leaves, the one that it goes to, or the one that keeps what it left before. Then an
operator does what ib-migrate(1) tells to do. Afterwards the VM runs in at most one place, with the
memory that it should have there; where it runs nowhere, no place was left that could have run it,
and a tool has said so.

Case NUMBER is the same for each seed; --moves takes the first N in an order of the seed."""
import os
import random
import signal
import sys

from leg import Leg, Place
from matrix import arguments, run_cases, told
from remedies import Remedies
from scene import BEATS, SLOWER, TIMEOUT, Failed, Tool, TooSlow, expect, now, pause, until
from trip_operator import AT_MOST, LOOK, Operator
from trips import HOSTS, TRIES, Trip

BEFORE = (("borrow", "return", "borrow"),
          ("borrow", "return --keep-warm", "borrow"),
          ("borrow", "return --keep-warm", "borrow --fill"),
          ("borrow", "return --keep-warm", "borrow", "return"),
          ("borrow", "return --keep-warm", "borrow", "return --keep-warm"))
SOURCE = ("asking", "exposing", "warming", "starting", "stopped", "sending", "committed", "serving")
DESTINATION = ("joining", "ready", "mapped", "waiting", "resuming", "filling")
VICTIMS = ("sender", "receiver", "old sender", "old receiver", "source's QEMU",
           "destination's QEMU", "old QEMU")
SETTLES = 20 * SLOWER  # seconds for what tools do by themselves when a QEMU has ended
STABLE = 1 * SLOWER
LOST = ("has ended", "is lost", "cannot connect to the QMP socket")


def cases():
    """All of them: trips, the state, who is killed."""
    for kinds in BEFORE:
        loan = kinds[-2] != "return"
        states = [f"source:{name}" for name in SOURCE if loan or name != "warming"]
        states += [f"destination:{name}" for name in DESTINATION]
        for state in states:
            for victim in VICTIMS:
                if loan or not victim.startswith("old"):
                    yield kinds, state, victim


class Calm(random.Random):
    """Chance by which nothing strikes; it still chooses."""

    def random(self):
        """As seldom as can be."""
        return 1.0

    def choice(self, seq):
        """Not by random()."""
        return seq[self.getrandbits(16) % len(seq)]


class ThirdTrip(Trip):
    """Its last leg is struck."""

    def __init__(self, chance, paths, kinds, state, victim):
        super().__init__(chance, paths)
        self.kinds, self.state, self.victim = kinds, state, victim
        self.before = set()  # what its tools had said when it was struck

    def all_but_the_last(self):
        """Of its trips."""
        for kind in self.kinds[:-1]:
            self.go_calmly(kind)

    def go_calmly(self, kind):
        """Nobody is killed."""
        chance, self.random = self.random, Calm(self.random.random())
        self.go(kind)
        self.random = chance

    def last(self):
        """It is struck: how it ended, in words."""
        kind, path = self.kinds[-1], self.choose_path(self.kinds[-1])
        home = self.loan.source.host if self.loan else HOSTS[self.at.host == HOSTS[0]]
        leg = Leg(self, kind, self.at, Place(home, self.qemu()), path)
        self.note(f"  {kind} over {path}: {leg.source.host}, QEMU {leg.source.qemu.name} to "
                  f"{leg.destination.qemu.name}; kill {self.victim} at {self.state}")
        try:
            leg.begin(bool(self.loan), self.state)
            stopped = leg.sender if self.state.startswith("source") else leg.receiver
            stopped.stopped()
        except Failed as why:
            if leg.was_slow():
                raise TooSlow(f"nobody was struck: {why}") from why
            raise
        self.strike(leg, stopped)
        if "QEMU" in self.victim:
            return QemuOperator(self, leg).work()
        return self.mend(leg)

    def strike(self, leg, stopped):
        """The signals."""
        loan = self.loan
        self.before = {line for tool in self.tools for line in tool.text().splitlines()}
        tools = {"sender": leg.sender, "receiver": leg.receiver,
                 "old sender": loan and loan.sender, "old receiver": loan and loan.receiver}
        qemus = {"source's QEMU": leg.source.qemu, "destination's QEMU": leg.destination.qemu,
                 "old QEMU": loan and loan.source.qemu}
        victim = tools.get(self.victim) or qemus.get(self.victim)
        if not victim.alive():
            raise TooSlow(f"nobody was struck: the {self.victim} had ended before {self.state}")
        process = victim.process
        process.kill()
        process.wait()
        if stopped.process is not process:
            stopped.signal(signal.SIGCONT)

    def mend(self, leg):
        """A tool was killed: the VM goes, or stays and can go then."""
        if Operator(leg, self.loan).work():
            self.arrive(leg)
            return "arrived"
        self.qemus.remove(leg.destination.qemu)
        if leg.destination.qemu.beats():
            raise Failed("the VM stayed, and has run at the destination")
        if self.loan:
            Operator(leg, self.loan).continue_loan()
        self.check(self.at)
        self.go_calmly(self.kinds[-1])
        return "stayed, and went then"


class QemuOperator(Remedies):
    """A QEMU has ended: lets its tools act by themselves, then does what the manual says."""
    most = 8

    def __init__(self, trip, leg):
        super().__init__()
        self.trip, self.leg, self.loan, self.said = trip, leg, trip.loan, ""

    def did(self, what):
        """Notes a remedy."""
        self.trip.note(f"      {what}")
        super().did(what)

    def seen(self):
        """What can change."""
        legs = [self.leg] + ([self.loan] if self.loan else [])
        return ([(leg.states(), leg.works(), leg.sender and leg.sender.phase(),
                  leg.receiver.phase())
                 for leg in legs], [qemu.name for qemu in self.trip.qemus if qemu.runs()])

    def settle(self):
        """Until nothing changes any more, and what still works has nothing left to do."""
        before, since, deadline = None, now(), now() + AT_MOST
        while now() < deadline:
            seen = self.seen()
            legs = [self.leg] + ([self.loan] if self.loan else [])
            busy = any(any(leg.works()) and not leg.fills() for leg in legs)
            if seen != before:
                before, since = seen, now()
            elif now() - since > (SETTLES if busy else STABLE):
                break
            pause(LOOK)
        self.trip.note(f"      settled: {before}")

    def running(self):
        """The QEMU in which the VM runs; None."""
        found = [qemu for qemu in self.trip.qemus if qemu.runs()]
        if len(found) > 1:
            raise Failed(f"the VM runs in {[qemu.name for qemu in found]}")
        return found[0] if found else None

    def roll_back(self, leg):
        """Whether the VM is at the source of this leg again."""
        self.let_go_both(leg)
        self.did(f"rollback of {leg.kind}")
        tool = Tool(leg.source.host, "rollback", "--yes", "--qmp",
                    os.path.abspath(leg.source.qemu.socket), "--json", "--set", TIMEOUT)
        self.trip.tools.append(tool)
        code = tool.ends()
        if code and leg.source.qemu.alive():
            self.said = tool.text()
            self.did(f"refused: {tool.said().strip()}")
        return code == 0

    def lost(self):
        """Neither place can run it: somebody has said so."""
        for tool in self.leg.tools:
            if tool.code() == 0:
                raise Failed(f"the VM is lost, and {tool.name} ended with 0")
        trip = self.trip
        said = " ".join(line for tool in trip.tools for line in tool.text().splitlines()
                        if line not in trip.before)
        if not any(words in said for words in LOST):
            raise Failed("the VM is lost, and nobody says so")
        return "lost with its QEMU, and announced"

    def right(self, qemu):
        """It runs there with the memory that it should have."""
        trip, leg = self.trip, self.leg
        before = trip.past[:trip.past.index(qemu) + 1] if qemu in trip.past else [*trip.past, qemu]
        beats = qemu.beats()
        until(lambda: qemu.beats() >= beats + BEATS, f"heartbeats of {qemu.name}")
        self.running()
        expect(*before)
        return "at the destination" if qemu is leg.destination.qemu else (
            "at the source" if qemu is leg.source.qemu else "where it was before")

    def work(self):
        """How it ended, in words."""
        trip, leg, loan = self.trip, self.leg, self.loan
        self.settle()
        victim = {"source's QEMU": leg.source.qemu, "destination's QEMU": leg.destination.qemu,
                  "old QEMU": loan and loan.source.qemu}[trip.victim]
        qemu, words = self.running(), ""
        if not qemu and victim is leg.destination.qemu and leg.states() == ("done", "done"):
            expect(*trip.past, victim)
            return f"{trip.victim}: ended with all of its pages"
        if not qemu and victim is leg.destination.qemu:
            if self.roll_back(leg):
                words = "after a rollback "
            elif leg.kind.startswith("return") and "start it from its disk" in self.said:
                words = "pages were at home alone: "
            else:
                raise Failed("the VM could run at the source, which rollback refused")
        elif not qemu and victim is leg.source.qemu and loan:
            if self.roll_back(loan):
                words = "after a rollback "
        elif not qemu and victim is not leg.source.qemu:
            raise Failed("the VM runs nowhere, and its QEMUs live")
        qemu = self.running()
        leg.check_codes()
        how = words + (self.right(qemu) if qemu else self.lost())
        return f"{trip.victim}: {how}"


class Case:
    """One of them."""

    def __init__(self, options, number):
        self.options, self.number = options, number
        everything = list(cases())
        random.Random(options.seed).shuffle(everything)
        self.what = everything[number % len(everything)]

    def __str__(self):
        kinds, state, victim = self.what
        return f"case {self.number}: {', '.join(kinds)}; kill {victim} at {state}"

    def run(self):
        """How it went, in words; again, in a folder of its own, when nobody was struck."""
        top = os.getcwd()
        for left in range(TRIES, 0, -1):
            os.mkdir(os.path.join(top, f"try{left}"))
            os.chdir(os.path.join(top, f"try{left}"))
            try:
                return self.attempt()
            except TooSlow:
                if left == 1:
                    raise
        return None

    def attempt(self):
        """How one went."""
        chance = random.Random(f"{self.options.seed}/{self.number}")
        with told(ThirdTrip(chance, self.options.paths.split(","), *self.what)) as trip:
            trip.all_but_the_last()
            return trip.last()


def main():
    """Exit status."""
    parser = arguments("cases", 4, 2)
    parser.add_argument("--paths", default="shm,tcp,tls")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        for number in range(len(list(cases()))):
            print(Case(options, number))
        return 0
    return run_cases(options, lambda number: Case(options, number))


if __name__ == "__main__":
    sys.exit(main())
