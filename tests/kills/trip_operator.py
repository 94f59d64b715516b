# SPDX-License-Identifier: LGPL-2.1-or-later
"""An operator who has ib-migrate(1), at a VM that goes from host to host: does what it tells to do,
by what the tools say and what `status` tells."""
import os
import signal

from leg import OVER
from remedies import Remedies
from scene import SLOWER, TIMEOUT, Failed, Tool, now, pause

LOOK = 0.1
PATIENCE = 5 * SLOWER   # seconds for what a tool does by itself before the operator does something
AT_MOST = 240 * SLOWER  # seconds until a step has to be over
BEFORE = ("", "here", "kept", "rolled-back")  # records of a source: the VM is there
COMMITTED = ("may-run", "moved")


class Operator(Remedies):
    """Ends a step: what was killed is continued, or what was not committed is given up."""
    patience, most = PATIENCE, 12

    def __init__(self, leg, loan):
        super().__init__()
        self.leg, self.loan, self.before = leg, loan, None

    def did(self, what):
        """Notes a remedy."""
        self.leg.trip.note(f"      {what}")
        super().did(what)

    def recover(self, leg, side):
        """`recover` on this side."""
        self.did(f"recover at the {side} of {leg.kind}")
        leg.start(side, "recover")

    def roll_back(self):
        """The VM never ran there, and never will."""
        leg = self.leg
        self.let_go_both(leg)
        leg.destination.qemu.end()
        self.did("rollback")
        tool = Tool(leg.source.host, "rollback", "--yes", "--qmp",
                    os.path.abspath(leg.source.qemu.socket), "--json", "--set", TIMEOUT)
        leg.trip.tools.append(tool)
        if self.took_back(tool, leg.source.qemu):
            leg.rolled_back = True

    # ------------------------------------------------------------ decisions

    def look(self):
        """What is so now."""
        self.here, self.there = self.leg.states()
        self.sends, self.receives = self.leg.works()
        seen = (self.here, self.there, self.sends, self.receives,
                self.loan and self.loan.works(), self.leg.sender and self.leg.sender.phase())
        if seen != self.before:
            self.since = now()
        self.before = seen

    def arrived(self):
        """The VM is there as it should be."""
        if self.leg.is_loan:
            over = self.here in OVER and self.there in OVER  # interrupted, with all of its pages
            return (over and not self.sends and not self.receives) or (
                self.here == "moved" and self.there == "running" and self.leg.fills())
        return self.here in OVER and self.there in OVER and not self.sends and not self.receives

    def stayed(self):
        """The VM is where it was, and nobody works on that."""
        return self.here in BEFORE and self.here != "here" and not self.sends

    def act(self):
        """One remedy, if there is one."""
        leg = self.leg
        if "broken" in (self.here, self.there):
            raise Failed("the migration is broken")
        if self.here in COMMITTED:
            if not self.waited(1):
                return
            if not self.receives and not leg.destination.qemu.alive() and \
                    self.there in ("not-yet", "may-run"):
                self.roll_back()
            elif not self.receives and self.there in ("may-run", "running", "complete"):
                self.recover(leg, "destination")
            elif not self.sends and (self.receives or self.there not in ("given-up", "")):
                self.recover(leg, "source")
            elif not self.sends:
                self.roll_back()
            elif not self.receives and self.waited(2 * PATIENCE):
                self.roll_back()
        elif self.here == "done" and self.there == "complete":
            if not self.receives:
                self.recover(leg, "destination")
            elif not self.sends and self.waited():
                self.recover(leg, "source")
        elif self.here in BEFORE and self.sends and not self.receives and self.waited():
            self.did("interrupting the source")
            leg.sender.signal(signal.SIGINT)
        elif self.here == "here" and not self.sends and self.waited(90):
            raise Failed("nobody works on the migration, and the source's record is \"here\"")

    def work(self):
        """Until it is over: whether the VM has gone."""
        deadline = now() + AT_MOST
        while True:
            self.look()
            if self.arrived():
                break
            if self.stayed():
                self.give_up()
                return False
            self.act()
            pause(LOOK)
            if now() > deadline:
                raise Failed(f"not over after {AT_MOST} s: {self.here} and {self.there}")
        if self.loan:
            self.end_loan()
        self.leg.check_codes()
        return True

    def give_up(self):
        """The destination is of no use any more."""
        if self.leg.receiver.alive():
            self.let_go(self.leg.receiver)
        self.leg.destination.qemu.end()
        self.leg.destination.prune()
        self.leg.check_codes()
        for tool in (self.leg.sender, self.leg.receiver):
            if tool and tool.code() == 0:
                raise Failed(f"{tool.name} ended with 0, and the VM has not gone")

    def end_loan(self):
        """The VM has left where it was borrowed: both tools of that end, by themselves if they
        live."""
        loan, deadline = self.loan, now() + AT_MOST
        self.since = now()
        while True:
            here, there = loan.states()
            sends, receives = loan.works()
            if not sends and not receives and here in OVER and there in OVER:
                break
            if not receives and there not in OVER:
                self.recover(loan, "destination")
            elif not sends and here not in OVER:
                self.recover(loan, "source")
            else:
                pause(LOOK)
            if now() > deadline:
                raise Failed(f"the tools of {loan.kind} have not ended after {AT_MOST} s: {here} "
                             f"and {there}")
        loan.check_codes()

    def continue_loan(self):
        """The VM is still borrowed: both sides are served again."""
        loan, deadline = self.loan, now() + AT_MOST
        while not loan.fills():
            sends, receives = loan.works()
            if not receives:
                self.recover(loan, "destination")
            elif not sends:
                self.recover(loan, "source")
            pause(LOOK)
            if now() > deadline:
                raise Failed(f"{loan.kind} does not go on: {loan.states()}, {loan.works()}")
