#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ibx_gvirtus_root.py IBX-GVIRTUS PLUGIN NO-PLUGIN CRASH GVIRTUS.PROPERTIES.5 IB-BW [TEST...]

Root at work in GVirtuS homes that others can change."""
import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys

from gvirtus_home import CONFIG, Home, LIBRARY, PLUGIN, PROPERTIES, STOCK
from harness import Skip, equal, run_all, test

NOBODY = 65534
STATE = "lib/ibx-gvirtus.json"
BACKUP, TEMPORARY = ".before-ibx", ".ibx-tmp"
DENIED = "Permission denied: done as user 65534, who can change "
IRREGULAR = "is not a regular file"
OUTSIDE = "which is outside of the home: where that is right, give it by --config or --properties"
ROOTS = (("secret", 0o640), ("secret" + BACKUP, 0o640), ("set-uid", 0o4755),
         ("properties.json", 0o644), ("gvirtus.properties", 0o644),
         ("lib/libgvirtus-communicators.so", 0o644))


class TheirHome(Home):
    """A home of nobody's, in which root is at work, and files of root's that nobody may touch."""

    def __init__(self, scene):
        if os.geteuid() or not shutil.which("setpriv"):
            raise Skip("needs root and setpriv")
        for name in ("home", "outside"):
            shutil.rmtree(scene.path(name), ignore_errors=True)
        super().__init__(scene)
        os.makedirs(scene.path("outside/lib"))
        for name, mode in ROOTS:
            with open(self.outside(name), "w", encoding="ascii") as file:
                file.write(STOCK if name.endswith("json") else "# root's\n")
            os.chmod(file.name, mode)
        os.chmod(scene.path(""), 0o755)
        self.plugin = shutil.copy(PLUGIN, scene.path("plugin.so"))
        for folder, _, names in os.walk(self.folder):
            for name in (".", *names):
                os.chown(os.path.join(folder, name), NOBODY, NOBODY)
        if subprocess.run(["setpriv", f"--reuid={NOBODY}", "--clear-groups", scene.program,
                           "--version"], check=False, capture_output=True).returncode:
            raise Skip("needs a build that others can run")

    def outside(self, name):
        return self.scene.path("outside/" + name)

    def link(self, path, name):
        """To one of root's."""
        os.symlink(self.outside(name), path)

    def hard_link(self, path):
        os.link(self.outside("secret"), path)

    def roots(self):
        """What root's files hold, and whose they are."""
        found = {}
        for folder, folders, names in os.walk(self.scene.path("outside")):
            for path in (os.path.join(folder, name) for name in folders + names):
                st = os.lstat(path)
                found[path] = [st.st_ino, st.st_mode, st.st_uid, st.st_gid]
                if stat.S_ISREG(st.st_mode):
                    with open(path, "rb") as file:
                        found[path].append(file.read())
        return found

    def tool(self, command, *args):
        """As sudo runs it. LeakSanitizer cannot look into a process that was root."""
        if command == "install":
            args = ("--library", self.plugin, *args)
        return self.bare(command, *args, ASAN_OPTIONS="detect_leaks=0")

    def tries(self, command, expected, *words):
        """The exit status; what was said; and root's files are as they were."""
        before = self.roots()
        status = self.tool(command, "--home", self.folder)
        equal((words, status, self.said.count("\n") if status else 1), (words, expected, 1))
        self.says(*words)
        equal(self.roots(), before)

    def replace(self, name, make, *args):
        """By something else of nobody's."""
        path = self.path(name)
        if self.exists(name):
            (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)
        make(path, *args)
        if make != self.hard_link:
            os.lchown(path, NOBODY, NOBODY)


def null(path):
    os.mknod(path, 0o644 | stat.S_IFCHR, os.makedev(1, 3))


@test
def root_is_the_owner_of_a_home(scene):
    home = TheirHome(scene)
    before = home.snapshot()
    home.tries("install", 0)
    for name in (LIBRARY, CONFIG, PROPERTIES, STATE, CONFIG + BACKUP):
        st = os.stat(home.path(name))
        equal((name, st.st_uid, st.st_gid), (name, NOBODY, NOBODY))
    home.tries("remove", 0)
    equal(home.snapshot(), before)


@test
def root_of_a_container_whose_folders_are_an_outer_roots(scene):
    """A user namespace with one user: / and the like belong to nobody in it, and nobody here can
    become their owner."""
    home = TheirHome(scene)
    before = home.snapshot()
    inside = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "unshare",
              "-Ur"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        raise Skip("needs user namespaces")
    for command in ("install", "remove"):
        args = ("--library", home.plugin) if command == "install" else ()
        run = subprocess.run([*inside, scene.program, command, "--home", home.folder, *args],
                             check=False, capture_output=True, text=True,
                             env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        equal((run.stderr, run.returncode), ("", 0))
    equal(home.snapshot(), before)


@test
def a_home_that_takes_no_files_is_told_with_what_to_do(scene):
    """A full disk, and one that is mounted for reading only. Nothing has changed."""
    home = Home(scene)
    install = ("install", "--library", PLUGIN)
    for mount, command, words in (
            ("mount -t tmpfs -o size=4k,mode=755 none etc", install,
             "No space left on device: free space there\n"),
            ("mount --bind lib lib && mount -o remount,bind,ro lib", install,
             "Read-only file system: mount its file system for writing, too (mount -o "),
            ("mount --bind lib lib && mount -o remount,bind,ro lib", ("remove",),
             "Read-only file system: mount its file system for writing, too (mount -o ")):
        if command[0] == "remove":
            home.install()
        before = home.snapshot()
        done = subprocess.run(["unshare", "-m", "sh", "-c",
                               f'cd "$0" && {{ {mount}; }} || exit 77; shift; exec "$@"',
                               home.folder, "-", scene.program, *command, "--home", home.folder],
                              check=False, capture_output=True, text=True)
        if done.returncode == 77:
            raise Skip("needs mount namespaces")
        equal((done.returncode, done.stderr.count("\n")), (1, 1))
        assert words in done.stderr, done.stderr
        equal(home.snapshot(), before)


@test
def root_is_not_led_out_of_a_home_by_install(scene):
    for name, kind, words in (
            ("etc", "", f"outside/properties.json: {DENIED}"),
            ("lib", "lib", f"home/lib/ibx-gvirtus.json: {DENIED}"),
            (CONFIG, "secret", DENIED), (PROPERTIES, "secret", DENIED), (STATE, "secret", DENIED),
            (CONFIG, None, DENIED), (PROPERTIES, None, DENIED), (STATE, None, DENIED),
            (CONFIG, os.mkfifo, IRREGULAR), (PROPERTIES, os.mkfifo, IRREGULAR),
            (STATE, os.mkfifo, IRREGULAR), (LIBRARY, os.mkfifo, IRREGULAR),
            (CONFIG, null, IRREGULAR), (LIBRARY, null, IRREGULAR)):
        home = TheirHome(scene)
        if kind is None:
            home.replace(name, home.hard_link)
        elif callable(kind):
            home.replace(name, kind)
        else:
            home.replace(name, home.link, kind)
        home.tries("install", 1, words, os.path.basename(name) if "/" in name else "")


@test
def what_lies_in_the_way_of_an_install_is_not_followed(scene):
    for name in (STATE, LIBRARY, CONFIG, PROPERTIES):
        for hard in (False, True):
            home = TheirHome(scene)
            home.replace(name + TEMPORARY, *((home.hard_link,) if hard else (home.link, "secret")))
            home.tries("install", 0)
            home.tries("remove", 0)
    # A program that runs as root: neither it nor what replaces it gets its rights.
    home = TheirHome(scene)
    os.link(home.outside("set-uid"), home.path(LIBRARY))
    home.tries("install", 0)
    st = os.stat(home.path(LIBRARY))
    equal((st.st_uid, st.st_mode & 0o7000), (NOBODY, 0))
    home.tries("remove", 0)


@test
def root_is_not_led_out_of_a_home_by_its_state(scene):
    for path, existed, words in (
            (scene.path("outside/secret"), True, OUTSIDE),
            (scene.path("outside/secret"), False, OUTSIDE),
            (scene.path("home/../outside/secret"), True, OUTSIDE),
            (scene.path("home/etc/../../outside/secret"), False, OUTSIDE),
            ("/\033]0;title\007", True, "names /?]0;title?, which")):
        home = TheirHome(scene)
        home.tries("install", 0)
        state = json.loads(home.read(STATE))
        state["files"][1].update(path=path, existed=existed)
        home.write(STATE, json.dumps(state))
        home.tries("remove", 1, words)
        home.tries("install", 1, words)


@test
def root_is_not_led_out_of_a_home_by_remove(scene):
    for name, kind, words in (("etc", "", "before-ibx is gone"),
                              ("lib", "lib", "nothing is installed there"),
                              (STATE, "secret", DENIED), (STATE, os.mkfifo, IRREGULAR)):
        home = TheirHome(scene)
        home.tries("install", 0)
        home.replace(name, *((kind,) if callable(kind) else (home.link, kind)))
        home.tries("remove", 1, words)


@test
def root_sees_of_a_home_what_its_owner_sees(scene):
    home = TheirHome(scene)
    home.tries("install", 0)
    before = home.roots()
    equal(home.tool("show", "--home", home.folder), 1)
    home.says("oldtcp.so (as installed by ibx-gvirtus)\n", "is not reachable: ")
    for name in (PROPERTIES, CONFIG):
        home.replace(name, home.link, "secret")
        equal((name, home.tool("show", "--home", home.folder)), (name, 1))
        home.says(f"cannot open {home.path(name)}: Permission denied")
    equal(home.roots(), before)


@test
def a_backup_that_is_something_else_does_no_harm(scene):
    """It is the user's again, as the user wanted it."""
    for make in ("link", "hard_link", "mkfifo"):
        home = TheirHome(scene)
        home.tries("install", 0)
        home.replace(CONFIG + BACKUP, getattr(home, make, None) or getattr(os, make),
                     *(("secret",) if make == "link" else ()))
        home.tries("remove", 0)
    home = TheirHome(scene)
    home.tries("install", 0)
    home.replace(CONFIG + BACKUP, os.mkdir)
    equal(home.tool("remove", "--home", home.folder), 1)
    home.says("cannot restore ", "etc/properties.json: Not a directory\n")


@test
def the_way_to_a_home_is_not_trusted_either(scene):
    """Root's own home, in a folder of nobody's and behind a link of nobody's."""
    home = TheirHome(scene)
    for folder in ("lib", "etc"):
        shutil.copytree(home.path(folder), scene.path("roots/" + folder))
    link = scene.path("link")
    os.rename(scene.path("roots"), home.path("roots"))
    os.symlink(home.path("roots"), link)
    equal(home.tool("install", "--home", link), 1)
    home.says(DENIED + home.folder + ": install GVirtuS as that user, or in a folder that only ")
    os.rename(home.path("roots"), scene.path("roots"))
    os.unlink(link)
    os.symlink(scene.path("roots"), link)
    os.lchown(link, NOBODY, NOBODY)
    equal(home.tool("install", "--home", link), 1)
    home.says(DENIED + link)
    os.symlink("link", scene.path("again"))
    os.lchown(link, 0, 0)
    equal(home.tool("install", "--home", scene.path("again")), 0)
    equal(os.stat(scene.path("roots/" + CONFIG)).st_uid, 0)
    os.symlink("loop", scene.path("loop"))
    equal(home.tool("install", "--home", scene.path("loop")), 1)
    home.says("Too many levels of symbolic links")
    # Root's link, in a folder like /tmp: anybody may have made it of one of root's.
    shared = scene.path("shared")
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    os.symlink(scene.path("roots"), shared + "/link")
    equal(home.tool("show", "--home", shared + "/link"), 1)
    home.says("leads through the link link in a folder that others can write: give the path")


@test
def a_home_of_root_has_no_folders_of_others(scene):
    if os.geteuid():
        raise Skip("needs root")
    home = Home(scene)
    os.mkdir(home.path("conf"))
    home.write("conf/gpu.json", STOCK)
    elsewhere = ("--config", home.path("conf/gpu.json"))
    for name, args in (("lib", ()), ("etc", ()), ("conf", elsewhere)):
        path = home.path(name)
        os.chown(path, NOBODY, 0)
        home.fails_to_install(f"user 65534 can change {path}, and the GVirtuS home ", *args)
        os.chown(path, 0, 0)
        for mode in (0o775, 0o757, 0o1777):
            os.chmod(path, mode)
            home.fails_to_install(f"others than root can write {path}: chmod go-w it", *args)
        os.chmod(path, 0o755)
    os.chown(home.path(CONFIG), NOBODY, 0)
    home.fails_to_install("belongs to user 65534, not to user 0 or root: chown it")
    os.chown(home.path(CONFIG), 0, 0)
    home.install()
    os.chown(home.path("etc"), NOBODY, 0)
    home.fails("user 65534 can change ", "remove")
    os.chown(home.path("etc"), 0, 0)
    os.chown(home.path(STATE), NOBODY, 0)
    home.fails("belongs to user 65534, not to root", "remove")


@test
def root_removes_outside_of_a_home_what_it_is_told_to(scene):
    if os.geteuid():
        raise Skip("needs root")
    home = Home(scene)
    config = scene.path("elsewhere.json")
    shutil.copy(home.path(CONFIG), config)
    home.install("--config", config)
    home.fails(OUTSIDE, "remove")
    equal(home.run("remove", "--config", config), 0)
    with open(config, encoding="ascii") as file:
        equal(file.read(), STOCK)


@test
def a_link_that_comes_and_goes_leads_nowhere(scene):
    """Nobody swaps folders of the home and links to root's while root is at work."""
    home = TheirHome(scene)
    home.replace("etc.link", home.link, "")
    home.replace("lib.link", home.link, "lib")
    before = home.roots()
    swapper = os.fork()
    if not swapper:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        libc, folder = ctypes.CDLL(None), os.fsencode(home.folder)
        while True:
            for name in (b"/etc", b"/lib"):  # AT_FDCWD, RENAME_EXCHANGE
                libc.renameat2(-100, folder + name, -100, folder + name + b".link", 2)
    try:
        done = [home.tool(command, "--home", home.folder) for _ in range(25)
                for command in ("install", "remove")]
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    assert 1 in done, done  # it was in the way
    equal(home.roots(), before)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[7:]))
