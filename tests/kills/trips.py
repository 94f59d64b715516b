# SPDX-License-Identifier: LGPL-2.1-or-later
"""One VM that goes from host to host in all the ways that ib-migrate knows, and the tools that are
killed meanwhile: which steps there are, and where the VM has to be after each. The hosts are two
folders of records on this machine. leg.py drives the tools, and trip_operator.py is who mends."""
import os
import re
import signal

from leg import OVER, PATHS, PORT, Leg, Place
from scene import BEATS, Failed, Qemu, Tool, ask, expect, now, pause, printed, until
from trip_operator import AT_MOST, LOOK, Operator

HOSTS = ("here", "there")
TRIES = 5
KEY = "a-key"
KNOWS_WRITES = tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2]) >= (6, 7)


class Strike:
    """Who is killed, and when; or stopped for a while."""

    def __init__(self, random, kind, has_loan):
        source = "asking exposing starting stopped sending committed serving".split()
        destination = "joining ready mapped waiting resuming filling".split()
        if kind not in ("send", "borrow", "borrow --fill") or has_loan:
            source.append("warming")
        if kind in ("send", "send --warm", "return"):
            source += ["confirming", "done"]
            destination += ["complete", "done"]
        victims = ["sender", "receiver"] + (["old sender", "old receiver"] if has_loan else [])
        self.state = random.choice([f"source:{name}" for name in source] +
                                   [f"destination:{name}" for name in destination])
        self.after = None if random.random() < 0.6 else random.uniform(0, 1.2)
        if self.after is not None:
            self.state = ""
        self.victims = random.sample(victims, 1 if random.random() < 0.75 else 2)
        self.seconds = random.choice((0.2, 2, 5)) if random.random() < 0.15 else None

    def __str__(self):
        when = f"at {self.state}" if self.state else f"after {self.after:.2f} s"
        what = f"stop for {self.seconds} s" if self.seconds else "kill"
        return f"{what} {' and '.join(self.victims)} {when}"

    def hit(self, leg, loan):
        """The signals."""
        stopped = None
        if self.state:
            stopped = leg.sender if self.state.startswith("source") else leg.receiver
            try:
                stopped.stopped()
            except Failed:
                if leg.was_slow() or any(tool.code() for tool in leg.tools):
                    return  # it did not come to that
                raise
        else:
            pause(self.after)
        tools = {"sender": leg.sender, "receiver": leg.receiver,
                 "old sender": loan and loan.sender, "old receiver": loan and loan.receiver}
        for victim in self.victims:
            tools[victim].signal(signal.SIGSTOP if self.seconds else signal.SIGKILL)
        if stopped and stopped not in [tools[victim] for victim in self.victims]:
            stopped.signal(signal.SIGCONT)
        if self.seconds:
            pause(self.seconds)
        for victim in self.victims:
            if not self.seconds:
                tools[victim].process.wait()
            tools[victim].signal(signal.SIGCONT)


class Trip:
    """A VM, where it is and where it was."""

    def __init__(self, random, paths):
        self.random, self.paths = random, paths
        self.ports = self.count = 0
        self.tools, self.qemus, self.notes = [], [], []
        self.loan = None
        for host in HOSTS:
            os.makedirs(host, exist_ok=True)
        with open(KEY, "w", encoding="ascii") as key:
            key.write("5a" * 32 + "\n")
        os.chmod(KEY, 0o600)
        self.at = Place(random.choice(HOSTS), self.qemu(False))
        self.past = [self.at.qemu]
        until(lambda: self.at.qemu.beats() >= BEATS, "the guest's first heartbeats")

    def note(self, text):
        """What happened, for a person."""
        self.notes.append(text)

    def key(self, path):
        """Options for both ends; verbs does not encrypt."""
        encryption = {"tls": "required", "verbs": "off"}.get(path)
        return ("--key-file", KEY, "--encryption", encryption) if encryption else ()

    def qemu(self, incoming=True, private=False):
        """Another one."""
        self.count += 1
        self.qemus.append(Qemu(f"Q{self.count}", "", incoming, private))
        return self.qemus[-1]

    def forget(self, qemu):
        """It is not needed any more, and runs nothing."""
        if qemu.runs():
            raise Failed(f"QEMU {qemu.name} runs the VM, which runs somewhere else")
        qemu.end()
        self.qemus.remove(qemu)
        for name in os.listdir("/dev/shm"):
            if name == qemu.name:
                os.unlink(f"/dev/shm/{name}")

    # ------------------------------------------------------------ steps

    def choices(self):
        """Kinds of steps that are possible, as often as they should be chosen."""
        if not self.loan and not KNOWS_WRITES:
            return ["send", "send --warm", "clone"]
        if not self.loan:
            return ["send", "send --warm", "send --warm", "borrow", "borrow", "borrow --fill",
                    "clone"]
        kept = self.loan.kind == "return --keep-warm"
        steps = (["borrow", "borrow", "borrow --fill"] if kept else
                 ["return", "return", "return --keep-warm", "return --keep-warm"])
        return steps + ["idle"] + (["stay"] if self.loan.kind != "borrow" else [])

    def choose_path(self, kind):
        """One that a VM of which pages are missing can return by."""
        if self.loan and self.loan.kind == "borrow":
            return self.random.choice([path for path in self.paths if path != "verbs"] or ["tcp"])
        if self.loan and "verbs" in self.paths:
            until(self.loan.is_whole, "all pages")
        return self.random.choice(self.paths)

    def step(self):
        """One."""
        kind = self.random.choice(self.choices())
        if kind == "clone":
            return self.clone()
        if kind == "stay":
            return self.stay()
        if kind == "idle":
            return self.idle()
        return self.go(kind)

    def go(self, kind):
        """To the other host."""
        strike = Strike(self.random, kind, bool(self.loan)) if self.random.random() < 0.6 else None
        path = self.choose_path(kind)
        for left in range(TRIES, 0, -1):
            home = self.loan.source.host if self.loan else HOSTS[self.at.host == HOSTS[0]]
            leg = Leg(self, kind, self.at, Place(home, self.qemu()), path)
            self.note(f"  {kind} over {path}: {leg.source.host}, QEMU {leg.source.qemu.name} to "
                      f"{leg.destination.qemu.name}" + (f"; {strike}" if strike else ""))
            if not self.begin(leg, strike):
                continue
            if strike:
                strike.hit(leg, self.loan)
            operator = Operator(leg, self.loan)
            if operator.work():
                break
            self.note("      stayed")
            self.qemus.remove(leg.destination.qemu)
            if leg.destination.qemu.beats():
                raise Failed("the VM stayed, and has run at the destination")
            if self.loan:
                operator.continue_loan()
            self.check(self.at)
            if left == 1 or (not strike and not leg.was_slow()):
                raise Failed("the VM stayed, and nobody was killed")
            strike = None
        else:
            raise Failed("no QEMU answers at the destination")
        self.arrive(leg)
        return None

    def begin(self, leg, strike):
        """Both commands: whether the destination's QEMU had time to answer."""
        try:
            leg.begin(bool(self.loan), strike.state if strike else "")
            return True
        except Failed:
            if leg.sender or not leg.was_slow():
                raise
        self.note("      a QEMU that did not answer")
        leg.destination.qemu.end()
        self.qemus.remove(leg.destination.qemu)
        return False

    def arrive(self, leg):
        """It is there."""
        loan, self.loan = self.loan, leg if leg.is_loan else None
        self.at = leg.destination
        self.past.append(self.at.qemu)
        self.check(self.at)
        if loan:
            self.forget(loan.source.qemu)
        if not leg.is_loan:
            self.forget(leg.source.qemu)
        elif leg.states()[0] in OVER:
            raise Failed(f"{leg.kind} is over at once")

    def stay(self):
        """A VM with all of its pages does not go back."""
        loan = self.loan
        until(loan.is_whole, "all pages")
        self.note("  stays")
        loan.receiver.signal(signal.SIGINT)
        if self.random.random() < 0.4:
            victim = self.random.choice((loan.sender, loan.receiver))
            pause(self.random.uniform(0, 0.3))
            self.note(f"      kill {victim.name}")
            victim.signal(signal.SIGKILL)
        deadline = now() + AT_MOST
        operator = Operator(loan, None)
        while not (all(state in OVER for state in loan.states()) and not any(loan.works())):
            sends, receives = loan.works()
            here, there = loan.states()
            if not receives and there not in OVER:
                operator.recover(loan, "destination")
                until(lambda: not loan.receiver.alive() or loan.is_whole(), "all pages")
                loan.receiver.signal(signal.SIGINT)
            elif not sends and here not in OVER:
                operator.recover(loan, "source")
            elif not sends and there == "complete":
                operator.recover(loan, "source")
            pause(LOOK)
            if now() > deadline:
                raise Failed(f"a VM that stays is not done after {AT_MOST} s: {loan.states()}, "
                             f"{loan.works()}")
        loan.check_codes()
        self.loan = None
        self.check(self.at)
        self.forget(loan.source.qemu)

    def idle(self):
        """Nothing, but for a tool that is killed."""
        loan = self.loan
        victims = self.random.choice([["sender"], ["receiver"], ["sender", "receiver"]])
        self.note(f"  waits; kill {' and '.join(victims)} of {loan.kind}")
        for victim in victims:
            tool = getattr(loan, victim)
            tool.signal(signal.SIGKILL)
            tool.process.wait()
        Operator(loan, loan).continue_loan()
        self.check(self.at)

    # ------------------------------------------------------------ clones

    def clone(self):
        """A snapshot of the VM, which goes on, and a child of it."""
        qemu, folder = self.at.qemu, f"snapshot{self.count}"
        self.note(f"  freeze, clone of QEMU {qemu.name}")
        for _ in range(TRIES):
            folder += "x"
            tool = self.tool(self.at.host, "freeze", "--resume", folder, "--qmp",
                             os.path.abspath(qemu.socket), "--json")
            self.maybe_kill(tool, 0.25)
            if tool.ends() == 0:
                break
            pause(1)
            if tool.code() != -9 and "a migration of this QEMU is under way" not in tool.said():
                raise Failed(f"freeze ended with {tool.code()}")
            until(qemu.runs, "the VM, whose freeze was killed, to go on")
        else:
            raise Failed("a VM whose freeze was killed cannot be frozen")
        self.check(self.at)
        if self.random.random() < 0.5:
            folder = self.cache(folder)
        for _ in range(TRIES):
            child = self.qemu(private=True)
            tool = self.tool(self.at.host, "clone", folder, "--qmp",
                             os.path.abspath(child.socket), "--json")
            self.maybe_kill(tool, 0.2)
            code = tool.ends()
            if code == 0:
                break
            if code != -9:
                raise Failed(f"clone ended with {code}")
            self.qemus.remove(child)
            child.end()
        if code:
            return
        child.goes_on()
        self.check_child(child)
        self.qemus.remove(child)
        child.end()
        for tool in self.tools:
            if tool.command == "serve" and tool.alive():
                tool.signal(signal.SIGINT)
                tool.ends()

    def tool(self, host, *arguments):
        """Not of a migration."""
        self.tools.append(Tool(host, *arguments))
        return self.tools[-1]

    def maybe_kill(self, tool, longest):
        """Or not: whether it was."""
        if self.random.random() >= 0.4:
            return False
        seconds = self.random.uniform(0, longest)
        self.note(f"      kill {tool.command} after {seconds:.2f} s")
        pause(seconds)
        tool.signal(signal.SIGKILL)
        return True

    def cache(self, folder):
        """Another host's copy of the snapshot, which fills while a child runs; its name."""
        self.ports += 1
        path = self.random.choice([path for path in self.paths if path != "tls"] or ["tcp"])
        uri = f"{PATHS[path]}:{PORT + self.ports}"
        name = f"/dev/shm/cache{self.count}"
        serve = ("serve", "--json", "--listen", uri, folder, *self.key(path))
        fill = ("serve", "--json", "--cache", uri, name, *self.key(path))
        self.note(f"    a cache over {path}")
        self.tool(self.at.host, *serve).says('"serving"')
        filler = self.tool(self.at.host, *fill)
        if self.maybe_kill(filler, 0.3):
            filler.process.wait()
            filler = self.tool(self.at.host, *fill)
        until(lambda: not filler.alive() or '"serving"' in filler.text(), "the cache")
        if not filler.alive() and "has all pages" not in filler.said():
            raise Failed(f"the cache ended with {filler.code()}")
        return name

    def check_child(self, child):
        """It goes on from some heartbeat of its parent."""
        theirs = printed(child)
        first = re.search(rb"^beat 0 ([0-9a-f]{8}) ", theirs, re.M)
        before = [line for line in printed(*self.past).splitlines(True) if line.endswith(b"\n") and
                  (found := re.match(rb"beat 0 ([0-9a-f]{8}) ", line)) and
                  found.group(1) < first.group(1)]
        expect(text=b"".join(before) + theirs[first.start():])

    # ------------------------------------------------------------ what is true

    def check(self, place):
        """The VM runs there, and nowhere else; all that it has printed is right."""
        running = [qemu for qemu in self.qemus if qemu.runs()]
        if running != [place.qemu]:
            raise Failed(f"the VM runs in {[qemu.name for qemu in running]}, and should in "
                         f"{place.qemu.name}")
        place.qemu.goes_on()
        expect(*self.past)

    def nothing_left(self):
        """Of migrations that are over."""
        left = [name for name in os.listdir("/dev/shm") if name.startswith("ibx-")]
        if left and not self.loan:
            raise Failed(f"left behind: {', '.join(left)}")

    def story(self):
        """What everybody said, for a person."""
        lines = list(self.notes)
        for tool in self.tools:
            said = tool.said().strip().replace("\n", "\n        ")
            lines.append(f"    {tool.name} ({tool.side}): exit {tool.code()}\n        {said}")
        for host in HOSTS:
            for one in ask(host, "status"):
                record = one.get("record") or {}
                lines.append(f"    record at {host}: {os.path.basename(record.get('qmp', ''))} "
                             f"{record.get('role')} {record.get('state')}: {one.get('sentence')}")
        for qemu in self.qemus:
            lines.append(f"    QEMU {qemu.name}: {'lives' if qemu.alive() else 'ended'}, "
                         f"{qemu.beats()} heartbeats")
        return "\n".join(lines)

    def end(self):
        """All that it has started."""
        for process in (*self.tools, *self.qemus):
            process.process.kill()
            process.process.wait()
