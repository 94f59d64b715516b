# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits for the steps of a migration; says which step is missing if it does not come."""
import time

WAIT_S = 90      # and as much again for every 4 GiB of RAM
CONVERGE_S = 60  # a pre-copy that takes longer is cancelled


class Failure(Exception):
    pass


def await_value(ready, patience, what, pause):
    """Polls until ready() returns a value, which it returns."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        value = ready()
        if value:
            return value
        time.sleep(pause)
    raise Failure(what)
