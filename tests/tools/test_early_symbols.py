#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the preload runs in the loader calls nothing that the loader might not have relocated yet,
or that a sanitizer, or the program's allocator, has in its place."""
import subprocess
import sys

# The loader's list, this library's place in it, and what is no function, or the compiler's own.
ALLOWED = {"_r_debug", "_DYNAMIC", "_GLOBAL_OFFSET_TABLE_", "__clear_cache"}


def main():
    undefined = set()
    for archive in sys.argv[1:]:
        names = subprocess.run(["nm", "-u", archive], check=True, capture_output=True, text=True)
        undefined |= {line.split()[1] for line in names.stdout.splitlines()
                      if line.startswith(" ")}
    foreign = {name for name in undefined if not name.startswith("ibx_")} - ALLOWED
    if foreign or "_r_debug" not in undefined:
        sys.exit(f"calls of foreign functions: {sorted(foreign)}")


main()
