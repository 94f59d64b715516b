# SPDX-License-Identifier: LGPL-2.1-or-later
"""An operator who has ib-migrate(1): does what it tells to do, by what the tools say and by which
processes live; and a judge, who knows only the guest's heartbeats, the monitors of both QEMUs and
which of them lived when."""
import signal

from remedies import Remedies
from scene import BEATS, Failed, ask, expect, now, pause, until

LOOK = 0.1          # seconds between two looks
STAYING = 70        # ... and for a source that tries to continue the VM, as long as it may
TRIES = 6
AT_MOST = 300       # seconds until all has to be over
STAYS = ("stays here", "goes on here", "runs on here", "stayed here")
COMMITTED = ("may-run", "moved")
OVER = ("kept", "done", "ended", "rolled-back", "given-up", "broken", "")


class Operator(Remedies):
    """Ends a migration in which something broke."""
    patience, most = 4, 90

    def __init__(self, scene):
        super().__init__()
        self.scene, self.before = scene, None
        self.rolled_back = self.fast = False
        self.states, self.sentences = {}, []

    # -------------------------------------------------------------- what can be seen

    def look(self):
        """Who works, who lives and what the records say; since when it is so."""
        scene = self.scene
        self.working = {"source": bool(scene.sender and scene.sender.alive()),
                        "destination": bool(scene.receiver and scene.receiver.alive())}
        lives = scene.a.alive(), scene.b.alive()
        phases = tuple(tool.phase() if tool else None for tool in (scene.sender, scene.receiver))
        seen = (tuple(self.working.items()), lives, phases)
        if seen != self.before or not all(self.working.values()):
            self.states = {side: scene.record(side).get("record", {}).get("state", "")
                           for side in ("source", "destination")}
            seen = (*seen, tuple(self.states.items()))
        if seen[:3] != (self.before or ())[:3]:
            self.since = now()
        self.before = seen[:3]

    # -------------------------------------------------------------- remedies

    def recover(self, side):
        """`recover` on this side."""
        scene = self.scene
        qemu = scene.a if side == "source" else scene.b
        self.did(f"recover on the {side}")
        tool = scene.tool(side, "recover", "--qmp", qemu.socket)
        if side == "source":
            scene.sender = tool
        else:
            scene.receiver = tool
            self.fast = False

    def roll_back(self):
        """The destination is lost for good."""
        scene = self.scene
        self.let_go_both(scene)
        scene.b.end()
        self.did("rollback")
        tool = scene.tool("source", "rollback", "--qmp", scene.a.socket)
        if self.took_back(tool, scene.a):
            self.rolled_back = True

    # -------------------------------------------------------------- decisions

    def is_over(self):
        """Nobody works, and nothing is left to do."""
        here, there = self.states["source"], self.states["destination"]
        return not any(self.working.values()) and (self.rolled_back or (
            here in OVER and here != "broken" and (there in OVER or here == "kept")))

    def destination_lost(self):
        """Its QEMU has ended before it had every page."""
        return (not self.scene.b.alive() and
                self.states["destination"] not in ("complete", "shut-down", "done", "ended"))

    def hopeless(self):
        """Both QEMUs have ended, and neither side can do anything: the VM is lost."""
        return (not any(self.working.values()) and not self.scene.a.alive() and
                (self.destination_lost() or self.states["source"] in ("here", "broken")))

    def of_source(self):
        """What is to be done about the source; True when something was."""
        scene, here, there = self.scene, self.states["source"], self.states["destination"]
        if here == "broken" or (here in COMMITTED and self.destination_lost()):
            if self.working["source"] and not self.waited():
                return False
            self.roll_back()  # which fails where the source's QEMU has ended, too
            return True
        if self.working["source"]:
            if (here in COMMITTED and not self.working["destination"] and
                    there in ("given-up", "") and self.waited(STAYING)):
                self.roll_back()  # nobody there knows it any more
                return True
            return False
        if here == "here" and scene.a.alive() and self.waited():  # the watchdog was killed, too
            self.recover("source")
            return True
        if here == "done" and there == "complete":
            # "On the destination first, then on the source", which sends its confirmation.
            self.recover("source" if self.working["destination"] else "destination")
            return True
        if here in COMMITTED:
            if there in ("given-up", "") and not self.working["destination"] and scene.a.alive():
                self.roll_back()
            else:
                self.recover("source")
            return True
        return False

    def of_destination(self):
        """The same."""
        here, there = self.states["source"], self.states["destination"]
        if self.working["destination"]:
            if not self.working["source"] and self.waited() and here in ("", "kept"):
                self.did("interrupting the receiver")  # it waits for the next VM, or for this one
                self.scene.receiver.signal(signal.SIGINT)
                return True
            return False
        if there in ("complete", "shut-down") or (
                there in ("not-yet", "may-run", "running") and self.scene.b.alive()):
            if there == "not-yet":
                return False  # never ran there, and never will
            self.recover("destination")
            return True
        return False

    def work(self):
        """Until it is over: how it ended, in words."""
        deadline = now() + AT_MOST
        while True:
            self.look()
            if all(self.working.values()) and not self.fast and \
                    self.scene.receiver.phase() == "filling":
                self.scene.fast()
                self.fast = True
            if self.is_over() or self.hopeless():
                break
            if not self.of_source() and not self.of_destination():
                self.check_stuck()
                pause(LOOK)
            if now() > deadline:
                raise Failed(f"not over after {AT_MOST} s: {self.states}, working {self.working}")
        self.prune()
        outcome = Judge(self).verdict()
        return outcome + (f" after {', '.join(self.done)}" if self.done else "")

    def prune(self):
        """Records that are not over, of a QEMU that has ended."""
        scene = self.scene
        for side, qemu in (("source", scene.a), ("destination", scene.b)):
            record = scene.record(side)
            self.states[side] = record.get("record", {}).get("state", "")
            self.sentences.append(record.get("sentence", ""))
            if not qemu.alive():
                ask(side, "prune", "--unfinished", "--qmp", qemu.socket)

    def check_stuck(self):
        """The source's record is not over, and nobody works: the watchdog does, for a while."""
        if not any(self.working.values()) and self.states["source"] == "here" and \
                now() - self.since > 90:
            raise Failed("nobody works on the migration, and the source's record is \"here\"")


class Judge:
    """Whether it is true."""

    def __init__(self, operator):
        self.scene, self.operator = operator.scene, operator

    def verdict(self):
        """Where the guest is, in words; raises Failed."""
        a, b = self.scene.a, self.scene.b
        here, there = a.runs(), b.runs()
        if here and there:
            raise Failed("the VM runs twice")
        if self.scene.guest_ends and not here and not there:
            return self.ended()
        if not here and not there:
            return self.lost()
        self.claims(here)
        if there:
            b.goes_on()
            if a.runs():
                raise Failed("the VM runs twice")
            expect(a, b)
            if not self.operator.states["destination"] in ("done", "ended"):
                raise Failed(f"the VM runs there, and the record says {self.operator.states}")
            return self.nothing_left("runs at the destination")
        a.goes_on()
        if b.beats() and not self.operator.rolled_back:
            raise Failed("the VM runs at the source, and has run at the destination")
        expect(a)
        return self.again("goes on at the source")

    def claims(self, here):
        """What the tools said with their exit statuses."""
        for tool in self.scene.tools:
            if tool.command in ("send", "receive", "recover") and tool.code() == 0 and here:
                raise Failed(f"{tool.name} ended with 0, and the VM is at the source")
            said = self.scene.said_since(tool)
            if tool.command == "send" and tool.code() == 1 and not here and \
                    "has ended with it" not in said and any(
                    words in said for words in STAYS):
                raise Failed(f"{tool.name} said that the VM stays, and it does not run")
            # No VM had come, though it may be lost at the source; or it stays there.
            none = tool.command == "receive" and (here or "no VM had come" in tool.said())
            most = 5 if none else 4
            if tool.code() is not None and tool.code() > most:
                raise Failed(f"{tool.name} ended with {tool.code()}")
            if tool.code() is not None and tool.code() < 0 and -tool.code() not in tool.ends_by:
                raise Failed(f"{tool.name} was ended by signal {-tool.code()}")

    def ended(self):
        """The guest has shut the VM down: nothing is lost, and neither side may run it again."""
        if any(tool.code() == 4 for tool in self.scene.tools) or \
                "ended" in self.operator.states.values():
            expect(self.scene.a, self.scene.b)
            return "ended by its guest"
        raise Failed(f"the guest has shut the VM down, and nobody says so: {self.operator.states}")

    def lost(self):
        """Neither runs it: there has to be a reason, and it was said."""
        a, b, states = self.scene.a, self.scene.b, self.operator.states
        self.claims(False)
        if a.alive() and b.alive():
            raise Failed(f"the VM runs nowhere, and both QEMUs live: {a.execute('query-status')}, "
                         f"{b.execute('query-status')}, {states}")
        completed = states["destination"] in ("done", "complete") or states["source"] == "done"
        if completed:
            expect(a, b)
            return "was there with all of its pages when its QEMU was ended"
        if a.alive():
            raise Failed(f"the VM could go on at the source, and does not: {states}")
        if b.alive() and states["destination"] in ("may-run", "running"):
            raise Failed(f"the VM could go on at the destination, and does not: {states}")
        if any(tool.command != "rollback" and tool.code() == 0 for tool in self.scene.tools):
            raise Failed("the VM is lost, and a tool ended with 0")
        said = [tool.text() for tool in self.scene.tools if tool.side == "source"]
        said += self.operator.sentences
        if not any(words in text for text in said
                   for words in ("has ended", "cannot connect to the QMP socket")):
            raise Failed("the VM is lost with its QEMU, and nobody says so")
        return "lost with the QEMU that had it, and announced"

    def nothing_left(self, outcome):
        """Of the migration, when it is over."""
        left = self.scene.left_over()
        if left:
            raise Failed(f"{outcome}, but left behind: {', '.join(left)}")
        return outcome

    def again(self, outcome):
        """The VM stays: its migration can be made again."""
        scene = self.scene
        scene.b.end()
        self.operator.prune()
        self.nothing_left(outcome)
        for left in range(TRIES, 0, -1):
            scene.new_destination()
            scene.receive()
            scene.send()
            if scene.sender.ends() and scene.receiver.phase() == "waiting":
                scene.receiver.signal(signal.SIGINT)  # nobody has come to it
            codes = scene.sender.code(), scene.receiver.ends()
            if codes == (0, 0):
                break
            if left == 1 or not scene.was_slow():
                raise Failed(f"{outcome}, and the next migration ended with {codes}")
        until(lambda: scene.b.beats() >= BEATS, "heartbeats at the destination")
        if scene.a.runs() or not scene.b.runs():
            raise Failed(f"{outcome}, and after the next migration it runs in the wrong place")
        expect(scene.a, scene.b)
        return self.nothing_left(outcome + ", and migrates then")
