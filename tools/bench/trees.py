# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tree of caches that tools/bench/clone builds and tools/bench/clone-tree simulates. Host 0 has
the snapshot, the others a cache each."""


def servers(host, fan_out):
    """Whom a host's cache asks, in the order of its --cache: the host above it, of which fan_out
    hosts read, and in case that is lost the snapshot's. fan_out 0: all read from the snapshot."""
    above = 0 if not fan_out else (host - 1) // fan_out
    return [above] + ([0] if above else [])
