# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two VMs' memory: whether there is room for it, and huge pages."""
import mmap
import os
import re
import shutil
import subprocess
import tempfile

from moves.methods import OURS
from moves.waiting import Failure

ROOM_MIB = 256   # what both QEMUs and tools need besides the VMs' RAM and its page tables


def written_mib(size):
    """How many MiB of its RAM the guest writes; the rest stays zero."""
    return size // 2


def need_mib(size, methods):
    """How much memory both ends need at the same time. QEMU's own methods fill the RAM's files at
    both ends: the source reads holes when it looks for zero pages, and the destination places the
    zero pages."""
    each = size if set(methods) - OURS else written_mib(size)
    return 2 * each + ROOM_MIB + size // 32


def check_room(size, methods):
    with open("/proc/meminfo", encoding="ascii") as info:
        memory = int(re.search(r"MemAvailable:\s*(\d+)", info.read())[1]) >> 10
    shm = os.statvfs("/dev/shm")
    need, free = need_mib(size, methods), min(memory, shm.f_bavail * shm.f_frsize >> 20)
    if need <= free:
        return
    ibx = need_mib(size, ["ibx"])
    raise Failure(f"two VMs of {size} MiB need {need} MiB of memory by {','.join(methods)}, and "
                  f"{free} MiB are free (RAM, and /dev/shm): take smaller --sizes"
                  + (f", or --methods ibx, which needs {ibx} MiB" if ibx <= free else ""))


class HugePages:
    """Huge pages for two VMs, reserved while migrations need them, and a folder of them."""
    COUNT = "/sys/kernel/mm/hugepages/hugepages-2048kB/"

    def __init__(self):
        self.folder, self.added = None, 0

    def read(self, name):
        with open(self.COUNT + name, encoding="ascii") as count:
            return int(count.read())

    def write(self, pages):
        with open(self.COUNT + "nr_hugepages", "w", encoding="ascii") as count:
            count.write(str(pages))

    def reserve(self, size):
        """Reserves what two VMs need, in addition to what others have reserved."""
        missing = size - self.added  # two VMs of `size` MiB, in pages of 2 MiB
        if missing > 0:
            before = self.read("nr_hugepages")
            self.write(before + missing)
            got = self.read("nr_hugepages") - before
            self.added += got
            if got < missing:
                self.release()
                raise Failure(f"{size} huge pages are needed for two VMs of {size} MiB, and this "
                              f"kernel can give {missing - got} fewer: free memory, or leave 2m "
                              "out of --pages")
        if not self.folder:
            folder = tempfile.mkdtemp(prefix="ibx-bench-huge-")
            done = subprocess.run(["mount", "-t", "hugetlbfs", "none", folder], text=True,
                                  capture_output=True, check=False)
            if done.returncode:
                os.rmdir(folder)
                self.release()
                raise Failure(f"huge pages cannot be mounted: {done.stderr.strip()}: leave 2m out "
                              "of --pages")
            self.folder = folder
        if missing > 0:
            self.touch(2 * size)
        return self.folder

    def touch(self, mib):
        """Touches memory once. In a virtual machine, the first touch of memory takes about twice as
        long, because its host then gives it the memory: the first method would look slower."""
        name, block = self.folder + "/touched", b"x" * (2 << 20)
        with open(name, "w+b") as file:
            file.truncate(mib << 20)
            with mmap.mmap(file.fileno(), mib << 20) as memory:
                for at in range(0, mib << 20, len(block)):
                    memory[at:at + len(block)] = block
        os.unlink(name)

    def release(self):
        if self.folder:
            subprocess.run(["umount", self.folder], check=True)
            shutil.rmtree(self.folder, ignore_errors=True)  # libvirtd may have made a folder in it
            self.folder = None
        if self.added:
            self.write(max(0, self.read("nr_hugepages") - self.added))
            self.added = 0
