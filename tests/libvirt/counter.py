#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""counter.py ADDRESS PORT: the other end of counting.c. Answers each line with that line, and
prints JSON: {"gap": [FROM, TO]} for each pause of more than GAP seconds between two lines, of the
monotonic clock; every SAY seconds {"at": [N, DISK, MEMORY, WRONG], "when": T}; and {"wrong": TEXT}
for a line that does not follow the one before it, and for the end of the connection."""
import json
import socket
import sys
import time

GAP = 0.004
SAY = 0.2


def say(**what):
    """One line."""
    print(json.dumps(what), flush=True)


class Guest:
    """One connection."""

    def __init__(self, connection):
        self.connection = connection
        self.last, self.count, self.said = time.monotonic(), 0, 0

    def line(self, text):
        """One line of it."""
        now = time.monotonic()
        numbers = [int(word) for word in text.split()]
        if numbers[0] != self.count + 1:
            say(wrong=f"line {numbers[0]} after line {self.count}")
        self.count = numbers[0]
        if now - self.last > GAP:
            say(gap=[self.last, now])
        if now - self.said > SAY:
            say(at=numbers, when=now)
            self.said = now
        self.last = now

    def serve(self):
        """Until its end."""
        rest = b""
        while True:
            some = self.connection.recv(4096)
            if not some:
                say(wrong="the connection has ended")
                return
            self.connection.sendall(some)
            *lines, rest = (rest + some).split(b"\n")
            for text in lines:
                self.line(text)


def main(address, port):
    """Serves the one connection: two VMs would send its lines twice."""
    listener = socket.create_server((address, int(port)), backlog=4)
    say(listening=port)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    Guest(connection).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
