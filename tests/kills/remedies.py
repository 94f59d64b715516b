# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an operator has done about a migration, and the remedies that ib-migrate(1) has for each."""
import signal

from scene import Failed, now, pause, until

WARNINGS = ("interrupt once more", "interrupt to end at once")
WATCHDOG = ("try again", "again in a second", "there is no unfinished", "has ended meanwhile",
            "nothing to roll back any more")


class Remedies:
    """The base of an operator; `patience`: seconds for what a tool does by itself; `most`: remedies
    of one migration, which have to end it."""
    patience = most = 0

    def __init__(self):
        self.done, self.since = [], now()

    def waited(self, seconds=None):
        """Nothing has changed for a while."""
        return now() - self.since > (self.patience if seconds is None else seconds)

    def did(self, what):
        """Notes a remedy, for the words of the case."""
        self.done.append(what)
        self.since = now()
        if len(self.done) > self.most:
            raise Failed("the remedies do not end: " + ", ".join(self.done))

    @staticmethod
    def let_go(tool):
        """Two SIGTERM, as the manual has it for one that looks for its other end."""
        tool.signal(signal.SIGTERM)
        until(lambda: not tool.alive() or any(words in tool.text() for words in WARNINGS),
              "a warning")
        tool.signal(signal.SIGTERM)
        tool.ends()

    def let_go_both(self, migration):
        """Its tools."""
        for tool in (migration.receiver, migration.sender):
            if tool and tool.alive():
                self.let_go(tool)

    @staticmethod
    def took_back(tool, qemu):
        """Waits for a `rollback` into this QEMU: whether the VM is there by it."""
        if tool.ends() == 0:
            return True
        if any(words in tool.said() for words in WATCHDOG):
            pause(1)  # the watchdog brings the VM back, or has just done so
        elif qemu.alive():
            raise Failed(f"rollback failed with {tool.code()}: {tool.text()}")
        return False
