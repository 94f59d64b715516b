#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""test_ibx_gvirtus.py IBX-GVIRTUS PLUGIN NO-PLUGIN CRASH GVIRTUS.PROPERTIES.5 IB-BW [TEST...]

ibx-gvirtus on GVirtuS homes of our own making; ib-bw is the back end that answers."""
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys

from gvirtus_home import (CONFIG, CRASH, ENVIRONMENT, Home, LIBRARY, MANUAL, NO_PLUGIN, PLUGIN,
                          PROPERTIES, STOCK)
from harness import Skip, equal, free_port, need_for_all, run_all, test


@test
def install_and_remove(scene):
    home = Home(scene)
    before = home.snapshot()
    home.install()
    home.expect("tcp/ip", "oldtcp", "10.1.2.3", "8888", "rdma://10.1.2.3:8888")
    now, stock = json.loads(home.read(CONFIG)), json.loads(STOCK)
    now["communicator"][0]["endpoint"]["protocol"] = "tcp"
    equal(now, stock)  # nothing else was touched
    equal(stat.S_IMODE(os.stat(home.path(LIBRARY)).st_mode), 0o755)
    home.remove()
    home.says("properties.json: restored\n", "gvirtus.properties: removed\n")
    equal(home.snapshot(), before)
    home.fails("nothing is installed", "remove")


@test
def generated_keys_work_and_are_in_the_manual(scene):
    home = Home(scene)
    home.install("--uri", f"rdma://127.0.0.1:{free_port()}")
    text = home.read(PROPERTIES)
    keys = sorted(re.findall(r"^#rdma\.(\w+)", text, re.M))
    with open(MANUAL, encoding="utf-8") as manual:
        equal(keys, sorted(re.findall(r"^\.It Cm rdma\.(\w+)$", manual.read(), re.M)))
    assert {"memory", "gpu", "gpu_memory", "log", "chunk"} <= set(keys), keys
    home.write(PROPERTIES, re.sub(r"^#rdma\.", "rdma.", text, flags=re.M))
    home.write("etc/ibx.key", f"alice:{'a1' * 32}\nbob:{'b2' * 32}\n")
    os.chmod(home.path("etc/ibx.key"), 0o600)
    equal(home.run("show", "--all"), 1)
    home.says("is not reachable: ")  # and all of it was read
    equal(sorted(re.findall(r"rdma\.(\w+) :", home.said)), keys)
    home.remove()
    home.says("gvirtus.properties: removed; what was changed since")
    assert home.exists(PROPERTIES + ".with-ibx") and not home.exists(PROPERTIES)


@test
def what_was_there_is_kept(scene):
    home = Home(scene)
    ib = "lib/libgvirtus-communicators-ib.so"
    home.write(ib + ".1", "upstream ib")
    os.symlink("libgvirtus-communicators-ib.so.1", home.path(ib))
    home.write(PROPERTIES, "# mine\ncommunicator : tcp://gpu-1:7\nfoo : bar\nrdma.slots : 5\n"
                           "communicator : second")
    os.chmod(home.path(PROPERTIES), 0o640)
    if not os.geteuid():
        os.chown(home.path(PROPERTIES), 0, 65534)
    before = home.snapshot()
    group = os.stat(home.path(PROPERTIES)).st_gid
    home.install("--slot", "ib")
    # The same place, no longer by GVirtuS's own tcp.
    home.expect("infiniband-rdma", "ib", "10.1.2.3", "7", "rdma://gpu-1:7")
    equal(home.read(PROPERTIES), "# mine\n# communicator : tcp://gpu-1:7\n"
          "communicator : rdma://gpu-1:7\nfoo : bar\nrdma.slots : 5\ncommunicator : second\n")
    st = os.stat(home.path(PROPERTIES))
    equal((stat.S_IMODE(st.st_mode), st.st_gid), (0o640, group))
    equal(home.read(ib + ".1"), "upstream ib")  # the link was replaced, not its target
    home.remove()
    equal(home.snapshot(), before)


@test
def uris(scene):
    home = Home(scene)
    for uri, address, port in (("verbs://[fe80::1]:4321", "10.1.2.3", "4321"),
                               ("rdma://192.0.2.9:1?chunk=1M", "192.0.2.9", "1")):
        home.install("--uri", uri)
        home.expect("tcp/ip", "oldtcp", address, port, uri)
        home.remove()
    # Who has chosen a path already keeps it.
    home.write(PROPERTIES, "communicator : verbs://gpu-1:7?rails=2")
    home.install()
    home.expect("tcp/ip", "oldtcp", "10.1.2.3", "7", "verbs://gpu-1:7?rails=2")
    home.remove()
    home.unlink(PROPERTIES)
    for uri, words in (("rdma://host", "has no port"), ("rdma://host:0", "port 0"),
                       ("ucx://host:1", "use rdma, shm, verbs, ofi or tcp"),
                       ("rdma://host:1?slots=x", 'slots: "x"'),
                       # The file would have another path, or more lines.
                       ("shm:///run/a#b", 'would be read as "shm:///run/a"'),
                       ("shm:///run/a ", 'would be read as "shm:///run/a"'),
                       ("shm:///run/a\nrdma.insecure : on", 'would be read as "shm:///run/a"'),
                       ("shm:///run/a\nb", 'is not an entry'),
                       ("rdma://host:1?key_file=k", "give an absolute path")):
        home.fails_to_install(words, "--uri", uri)
    # Nothing is configured yet: GVirtuS's defaults, and the plugins of a gvirtus.properties.
    home.unlink(CONFIG)
    home.write(PROPERTIES, "plugins : cudart,cufft\n")
    home.install()
    home.expect("tcp/ip", "oldtcp", "127.0.0.1", "9999", "rdma://127.0.0.1:9999")
    assert '"cufft"' in home.read(CONFIG)
    home.remove()
    assert not home.exists(CONFIG)


@test
def other_places(scene):
    home = Home(scene)
    os.mkdir(home.path("conf"))
    home.write("conf/gpu.json", STOCK)
    before = home.snapshot()
    home.install("--config", home.path("bin/../conf/gpu.json"), "--properties", home.path("bin/p"))
    home.says("GVIRTUS_RDMA_PROPERTIES=", "GVIRTUS_CONFIG=" + home.path("conf/gpu.json") + " in ")
    assert home.exists("bin/p") and home.exists("conf/gpu.json.before-ibx")
    home.remove()
    equal(home.snapshot(), before)
    home.fails_to_install("/none/x.json has no directory: ", "--config", "/none/x.json")
    home.install("--config", home.path("bin/../" + CONFIG))
    assert "GVIRTUS_CONFIG" not in home.said, home.said


@test
def refusals(scene):
    home = Home(scene)
    for library, words in ((NO_PLUGIN, "has no create_communicator"),
                           (home.path(CONFIG), "cannot be loaded here"),
                           ("/nonexistent", "cannot be found")):
        home.fails(words, "install", "--library", library)
    home.write(LIBRARY + ".before-ibx", "precious")
    home.fails_to_install("is a backup that would be overwritten")
    home.unlink(LIBRARY + ".before-ibx")
    home.install()
    home.fails_to_install('installed there already, as "oldtcp"', "--slot", "ib")
    home.remove()
    for text, words in (('{\n"communicator": oops\n}', "etc/properties.json line 2 is not JSON"),
                        ('{"communicator": {}}', "no communicator[0].endpoint"),
                        ('{"communicator":[{"endpoint":{}}],"secure_application":true}',
                         "secure_application")):
        home.write(CONFIG, text)
        home.fails_to_install(words)
    home.write(CONFIG, STOCK)
    # With each of these GVirtuS would not start.
    for text, words in (("communicator\n", "gvirtus.properties line 1"),
                        ("foo : bar\nrdma.slots2 : 9\n", "line 2 (rdma.slots2): there is no"),
                        ("rdma.chunk : 9T\n", 'line 1 (rdma.chunk): chunk: "9T" is not accepted'),
                        ("Communicator : rdma://gpu:1\n", "line 1 (Communicator): this is no key"),
                        ("rdma.tuning : none-there\n", "line 1 (rdma.tuning): tuning: there is no"),
                        ("rdma.memory : 1M\ncommunicator : rdma://gpu:1?slots=1024\n",
                         "rdma.memory allows 1048576")):
        home.write(PROPERTIES, text)
        home.fails_to_install(words)
    for name in (PROPERTIES, CONFIG):
        os.chmod(home.path(name), 0o664)
        home.fails_to_install("has mode 0664, so others can change it: chmod go-w it")
        os.chmod(home.path(name), 0o644)


@test
def a_home_that_was_copied_or_moved_is_meant_itself(scene):
    home, copied = Home(scene), Home(scene, "copied")
    shutil.rmtree(copied.folder)
    before = home.contents()
    home.install("--uri", "rdma://gpu:9999")
    installed = home.contents()
    shutil.copytree(home.folder, copied.folder)
    copied.fails_to_install("it is installed there already")
    copied.run("show")
    copied.says(f"{copied.path(LIBRARY)} (as installed by ibx-gvirtus)")
    copied.remove()
    equal((home.contents(), copied.contents()), (installed, before))
    os.rename(home.folder, scene.path("moved"))
    home.folder = scene.path("moved")
    home.remove()
    equal(home.contents(), before)
    # Files outside of it may be the original's.
    shared = scene.path("shared.json")
    shutil.copy(home.path(CONFIG), shared)
    home.install("--config", shared, "--properties", home.path(PROPERTIES))
    shutil.copytree(home.folder, copied.folder, dirs_exist_ok=True)
    copied.fails("outside of the home: where that is right, give it by --config", "remove")
    equal(copied.run("remove", "--config", shared), 0)
    assert not copied.exists(LIBRARY) and not copied.exists(PROPERTIES), copied.said


@test
def homes(scene):
    home = Home(scene)
    home.write("lib/libgvirtus-communicators-ucx.so", "")
    home.fails_to_install("UCX")
    for name in ("-ucx", "", "-tcp"):
        home.unlink(f"lib/libgvirtus-communicators{name}.so")
    home.fails_to_install("is not a GVirtuS home")
    home.write("bin/gvirtus-backend", "")
    home.fails_to_install("classic GVirtuS")
    equal(home.bare("install", "--home", home.path("bin/gvirtus-backend")), 1)
    home.says("is not a directory")
    equal(home.bare("remove", "--home", home.path("none")), 1)
    home.says("none: No such file or directory; correct the path\n")


@test
def a_home_of_root_is_not_nobodys(scene):
    home = Home(scene)
    os.chmod(scene.path(""), 0o755)
    nobody = ["setpriv", "--reuid=65534", "--clear-groups", scene.program]
    if os.geteuid() or not shutil.which("setpriv") or subprocess.run(
            [*nobody, "--version"], check=False, capture_output=True).returncode:
        raise Skip("needs root, setpriv, and a build that others can run")
    need_for_all(PLUGIN)
    before = home.snapshot()
    done = subprocess.run([*nobody, "install", "--library", PLUGIN, "--home", home.folder],
                          env=ENVIRONMENT, capture_output=True, text=True, check=False)
    equal((done.returncode, done.stderr.count("\n")), (1, 1))
    assert "Permission denied: run it as the owner, or with sudo" in done.stderr, done.stderr
    equal(home.snapshot(), before)


@test
def a_file_that_was_edited_since_is_kept(scene):
    home = Home(scene)
    before = home.snapshot()
    home.install()
    home.write(CONFIG, '{"mine": 1}')
    os.rename(home.path(CONFIG + ".before-ibx"), home.path("bin/b"))
    home.fails("before-ibx is gone", "remove")  # nothing was begun
    os.rename(home.path("bin/b"), home.path(CONFIG + ".before-ibx"))
    home.remove()
    home.says("properties.json: restored; what was changed since")
    equal(home.read(CONFIG + ".with-ibx"), '{"mine": 1}')
    home.unlink(CONFIG + ".with-ibx")
    # What each of several installations was edited to is kept.
    endings = (".with-ibx", ".with-ibx.2", ".with-ibx.3")
    for ending in endings:
        home.install()
        home.write(PROPERTIES, f"rdma.slots : {ending}\n")
        home.remove()
        home.says(f"gvirtus.properties: removed; what was changed since is in the file ending in "
                  f"{ending}\n")
    for ending in endings:
        equal(home.read(PROPERTIES + ending), f"rdma.slots : {ending}\n")
        home.unlink(PROPERTIES + ending)
    equal(home.snapshot(), before)


@test
def a_state_file_of_another_kind_is_refused(scene):
    home = Home(scene)
    home.install()
    file = {"path": "/x", "existed": True, "sha256": "0" * 64}
    whole = {"version": 1, "phase": "installed", "slot": "ib", "files": [file] * 3}
    for bad in ("", "[]", '{"version": 2}', json.dumps({**whole, "version": 2}),
                json.dumps({**whole, "files": [file] * 2}),
                json.dumps({**whole, "files": [{"path": "/x", "existed": True}] * 3}),
                json.dumps({**whole, "files": [{**file, "path": "x"}] * 3})):
        home.write("lib/ibx-gvirtus.json", bad)
        home.fails("is not a state file", "remove")
        home.fails_to_install("is not a state file")


# --------------------------------------------------------------------------------------- crashes


def home_for_crashes(scene):
    """A home where one file is replaced, one edited and one made; and what it holds."""
    home = Home(scene)
    home.write(LIBRARY, "somebody's")
    return home, home.snapshot()


def struck(home, mode, number, *args):
    """Runs a command that is struck at its n-th change of the file system: whether it had so many,
    and its exit status."""
    mark = home.scene.path("mark")
    if os.path.exists(mark):
        os.unlink(mark)
    library = ("--library", PLUGIN) if args[0] == "install" else ()
    status = home.run(*args, *library, CRASH_AT=str(number), CRASH_MODE=mode,
                      CRASH_MARK=mark, LD_PRELOAD=CRASH, ASAN_OPTIONS="verify_asan_link_order=0")
    return os.path.exists(mark), status


def each_strike(home, mode, least, *args):
    """The command struck at one change after the other, until it has no more: number and status."""
    for number in range(1, 1000):
        hit, status = struck(home, mode, number, *args)
        if not hit:
            break
        yield number, status
    equal((status, number > least), (0, True))


@test
def an_install_that_fails_puts_everything_back(scene):
    home, before = home_for_crashes(scene)
    for _, status in each_strike(home, "fail", 20, "install"):
        if not status:  # it did not need that one
            home.remove()
        else:
            equal(status, 1)
            home.says("Input/output error")
        equal(home.snapshot(), before)


@test
def either_command_mends_an_install_that_was_killed(scene):
    home, before = home_for_crashes(scene)
    olds = {name: home.read(name) for name in (LIBRARY, CONFIG)}
    for number, status in each_strike(home, "kill", 20, "install", "--uri", "rdma://9.8.7.6:5555"):
        equal(status, -9)
        for name, old in olds.items():  # whole, old or new
            text = open(home.path(name), "rb").read()
            assert text == old.encode() or text.startswith((b"\x7fELF", b"{\n")), name
        if number & 1:
            if home.run("install", "--library", PLUGIN):  # struck after the very last file
                home.says("installed there already")
            else:  # nothing is left of what the other was told
                home.expect("tcp/ip", "oldtcp", "10.1.2.3", "8888", "rdma://10.1.2.3:8888")
        if home.run("remove"):
            home.says("nothing is installed")
        equal(home.snapshot(), before)


@test
def remove_completes_one_that_was_killed(scene):
    home, before = home_for_crashes(scene)

    def install():
        home.install()
        home.write(PROPERTIES, "rdma.slots : 7\n")

    install()
    for _ in each_strike(home, "kill", 8, "remove"):
        if home.run("remove"):
            home.says("nothing is installed")
        equal(home.read(PROPERTIES + ".with-ibx"), "rdma.slots : 7\n")
        home.unlink(PROPERTIES + ".with-ibx")
        equal(home.snapshot(), before)
        install()


@test
def without_hard_links_and_with_short_reads(scene):
    home, before = home_for_crashes(scene)
    for mode, number in (("nolink", 1000), ("short", 0)):
        equal((mode, *struck(home, mode, number, "install")), (mode, False, 0))
        home.expect("tcp/ip", "oldtcp", "10.1.2.3", "8888", "rdma://10.1.2.3:8888")
        equal(os.path.getsize(home.path(LIBRARY)), os.path.getsize(PLUGIN))
        equal((mode, *struck(home, mode, number, "remove")), (mode, False, 0))
        equal((mode, home.snapshot()), (mode, before))


# ------------------------------------------------------------------------------------------ show


@test
def show_says_what_is_selected(scene):
    home = Home(scene)
    equal(home.run("show"), 1)
    home.says('ibx-gvirtus: GVirtuS\'s own communicator "tcp" is selected in ',
              "run ibx-gvirtus install\n")
    home.install("--uri", "rdma://127.0.0.1:9")
    # As an installation of GVirtuS over this one leaves it: install alone refuses there.
    selected = home.read(CONFIG)
    home.write(CONFIG, selected.replace("oldtcp", "tcp"))
    equal(home.run("show"), 1)
    home.says('own communicator "tcp" is selected in ',
              ", though ibx was installed: run ibx-gvirtus remove, then install\n")
    equal(home.run("install"), 1)
    home.says("run ibx-gvirtus remove first")
    home.write(CONFIG, selected)
    home.unlink(LIBRARY)
    equal(home.run("show"), 1)
    home.says("libgvirtus-communicators-oldtcp.so (missing)",
              "ibx-gvirtus: oldtcp is selected, but there is no ",
              ", though ibx was installed: run ibx-gvirtus remove, then install\n")
    home.write(LIBRARY, "another")
    equal(home.run("show"), 1)
    home.says("(not installed by ibx-gvirtus)")
    home.write(CONFIG, selected.replace("oldtcp", "oldtpc"))
    equal(home.run("show"), 1)
    home.says("ibx-gvirtus: oldtpc is selected, but there is no ")


@test
def show_says_with_what_no_gvirtus_starts(scene):
    home = Home(scene)
    home.install()
    selected = home.read(CONFIG)
    for was, becomes, words in (
            ('"tcp/ip"', '"tcp"', 'GVirtuS has no suite "tcp", and does not start: write tcp/ip '),
            ('"8888"', "8888", '"port" of the first endpoint is no text'),
            ('"server_address"', '"address"',
             '"server_address" of the first endpoint is missing'),
            ("false", "true", "secure_application : true, with which GVirtuS refuses")):
        assert was in selected, selected
        home.write(CONFIG, selected.replace(was, becomes))
        home.fails(words, "show")


@test
def show_of_a_back_end_that_is_not_there(scene):
    home = Home(scene)
    port = free_port()
    uri = f"rdma://127.0.0.1:{port}"
    home.install("--uri", uri)
    home.write(PROPERTIES, "rdma.slots : 9\n", "a")
    equal(home.run("show"), 1)
    home.says("oldtcp.so (as installed by ibx-gvirtus)\n", "options       rdma.slots : 9\n",
              "IBX_LOG=error in the environment wins over rdma.log\n",
              f"ibx-gvirtus: the back end at {uri} is not reachable: no server answers at "
              f"127.0.0.1 port {port}: Connection refused; start the server there, or correct the "
              "URI\n")
    others = re.search(r"^ {14}(\d+) others at their defaults, see --all$", home.said, re.M)
    equal((re.findall(r"rdma\.(\w+) :", home.said), "(default)" in home.said), (["slots"], False))
    equal(home.run("show", "--all"), 1)
    equal(home.said.count("(default)"), int(others[1]))
    home.says("rdma.slots : 9\n", "rdma.message : 16K (default)\n", "rdma.device : (default)\n",
              "rdma.memory : (default)\n", "rdma.log : warn (default)\n",
              "rdma.gpu : auto (default)\n", "rdma.gpu_memory : 64M (default)\n",
              "rdma.gpu_threads : 0 (default)\n")
    assert "--all" not in home.said, home.said
    # Below each key its unit, and what a 0 or an empty value means.
    home.says("rdma.chunk : 0 (default)\n" + " " * 16 + "bytes of one bulk work request; 0: ",
              "rdma.spin_us : 50 (default)\n" + " " * 16 + "microseconds of busy polling ",
              "rdma.device : (default)\n" + " " * 16 + "verbs devices, one for each rail; empty: ",
              "rdma.slots : 9\n" + " " * 16 + "messages in flight each way",
              "rdma.pins : (default)\n" + " " * 16 + "bytes of clients' memory that ",
              "rdma.gpu_threads : 0 (default)\n" + " " * 16 + "threads that copy for one conn")
    equal(len(re.findall(r"^(?:options| ) +rdma\.\w+ : [^\n]*\n {16}[^ \n]", home.said, re.M)),
          int(others[1]) + 1)
    home.write(PROPERTIES, "rdma.memory : 1M\nrdma.log : info\nrdma.gpu_memory : 2M\n", "a")
    equal(home.run("show"), 1)
    home.says("rdma.memory : 1M\n", "rdma.log : info\n", "rdma.gpu_memory : 2M\n")
    names = ",".join(f"client{i}" for i in range(50))
    home.write(PROPERTIES, f"rdma.allow : {names}\n", "a")
    equal(home.run("show"), 1)
    home.says(f"rdma.allow : {names}\n")
    query = "slots=11&pipeline=off&chunk=1M"
    home.write("etc/query", f"communicator : tcp://127.0.0.1:{port}?{query}\nrdma.slots : 9\n")
    equal(home.run("show", "--properties", home.path("etc/query")), 1)
    home.says("options       ", *(
        f"rdma.{key} (by the communicator, which wins)\n"
        for key in ("provider : tcp", "slots : 11", "chunk : 1M", "pipeline : off")))
    home.write(PROPERTIES, "rdma.slots2 : 9\n", "a")
    equal(home.run("show"), 1)
    home.says('(rdma.slots2): there is no option "slots2"')


@test
def show_of_a_back_end_that_answers(scene):
    home = Home(scene)
    uri = home.serve()[1]
    port = uri.rsplit(":", 1)[1]
    home.install("--uri", uri)
    home.write(PROPERTIES, "rdma.provider : verbs,tcp\n", "a")
    equal(home.run("show"), 0)
    home.says(f"communicator  {uri} (line ", "connection    tcp", ", to 127.0.0.1",
              "refused       verbs: ",
              "sessions      0 that survive the loss of a connection, 0 of them")
    equal(len(re.findall(r"rdma\.[a-z_]+ : ", home.said)), 1)
    home.write("etc/none", f"communicator : {uri}\n")
    equal(home.bare("show", "--properties", home.path("etc/none")), 0)
    home.says("options       all at their defaults, see --all\n")
    # A properties file by its name says all that a classic GVirtuS has.
    equal(home.bare("show", "--properties", home.path(PROPERTIES)), 0)
    home.says("connection    tcp")
    home.write("etc/silent", "rdma.slots : 9\n")
    equal(home.bare("show", "--properties", home.path("etc/silent")), 1)
    home.says('etc/silent does not name the back end: write "communicator')
    missing = home.path("etc/missing")
    equal(home.bare("show", "--properties", missing), 1)
    home.says(f"--properties: {missing} cannot be found: No such file or directory; correct "
              "the path, or give --home alone, whose gvirtus.properties is read then\n")
    # Without the line the endpoint says where.
    home.write(PROPERTIES, "rdma.provider : tcp\n")
    equal(home.run("show"), 0)
    home.says(" (from the endpoint)\n", f"endpoint      127.0.0.1 port {port}\n")
    # The communicator moves the back end; the endpoint does not follow and does not count.
    home.remove()
    home.install("--uri", "rdma://127.0.0.1:9")
    home.write(PROPERTIES, f"communicator : {uri}\n")
    equal(home.run("show"), 0)
    home.says("endpoint      127.0.0.1 port 9, not used: the communicator below overrides it\n")
    assert "ignored" not in home.said, home.said
    home.write(PROPERTIES, "communicator : rdma://127.0.0.1:9\n", "a")
    equal(home.run("show"), 0)
    home.says("ignored       line 2: communicator is in line 1 already, which counts\n")


@test
def show_with_keys(scene):
    home = Home(scene)
    for name, digits in (("key", "a1" * 32), ("other", "b2" * 32)):
        home.write(name, digits)
        os.chmod(home.path(name), 0o600)
    uri = home.serve("--key-file", home.path("key"))[1]
    home.install("--uri", uri)
    for more in ("", f"rdma.key_file : {home.path('other')}\n"):
        home.write(PROPERTIES, more, "a")
        equal(home.run("show"), 1)
        home.says("is not reachable: ")
    home.write("etc/right", f"communicator : {uri}\nrdma.key_file : ../key\n")
    equal(home.run("show", "--properties", home.path("etc/right")), 0)
    os.chmod(home.path("key"), 0o644)
    equal(home.run("show", "--properties", home.path("etc/right")), 1)
    home.says("chmod 600")


@test
def show_says_what_to_preload(scene):
    home = Home(scene)
    os.mkdir(home.path("ibx"))
    plugin = shutil.copy(PLUGIN, home.path("ibx/plugin.so"))
    server, uri = home.serve()
    home.install("--uri", uri)
    equal(home.run("show", "--library", plugin), 0)
    home.says(f"preload       there is no libibx-frontend.so with {plugin}: ")
    home.write("libibx-frontend.so", "")
    line = f"preload       LD_PRELOAD={os.path.realpath(home.path('libibx-frontend.so'))} program\n"
    equal(home.run("show", "--library", plugin), 0)
    home.says(line, "the back end supports its copies\n")
    assert "LD_LIBRARY_PATH" not in home.said  # classic GVirtuS has no lib/frontend
    os.mkdir(home.path("lib/frontend"))
    equal(home.run("show", "--library", plugin), 0)
    home.says(line, f"LD_LIBRARY_PATH={home.path('lib/frontend')}:{home.path('lib')}:"
              "$LD_LIBRARY_PATH as well, where programs do not find GVirtuS's libcudart yet\n")
    os.mkdir(home.path("ibx/driver"))
    home.write("ibx/driver/libcuda.so.1", "")
    folder = os.path.realpath(home.path("ibx/driver"))
    equal(home.run("show", "--library", plugin), 0)
    home.says(line, f"LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH as well, if a program that uses "
              "the driver API finds no libcuda.so.1\n")
    home.write("libibx-search.so", "")
    search = os.path.realpath(home.path("libibx-search.so"))
    equal(home.run("show", "--library", plugin), 0)
    home.says(line, f"LD_AUDIT={search} as well, if a program brings NVIDIA's libraries and finds "
              "these first, as PyTorch, CuPy and JAX do\n")
    home.write("ibx/plugin.so", "of another build")
    equal(home.run("show", "--library", plugin), 0)
    home.says(line, "it may not fit the plugin in the home")
    server.kill()
    server.wait()
    shutil.copy(PLUGIN, plugin)
    equal(home.run("show", "--library", plugin), 1)
    home.says(line, "whether the back end supports its copies is known when it answers\n",
              "is not reachable: ")


# ----------------------------------------------------------------------------------------- usage


@test
def a_full_disk_is_the_reason(scene):
    home = Home(scene)
    with open("/dev/full", "w", encoding="ascii") as full:
        for args in (("install", "--library", PLUGIN), ("remove",), ("--help",)):
            done = subprocess.run([scene.program, "--home", home.folder, *args], stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                                  env=ENVIRONMENT)
            equal((done.returncode, done.stderr),
                  (1, "ibx-gvirtus: standard output could not be written\n"))


@test
def a_limit_on_the_size_of_files_is_the_reason(scene):
    home = Home(scene)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, os.path.getsize(PLUGIN) - 1):  # the state file is too large, the plugin alone
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            home.fails_to_install("File too large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    home.install()


@test
def usage(scene):
    home = Home(scene)
    for args, words in (((), "give install, remove or show"),
                        (("install", "remove"), '"remove" is one argument too many'),
                        (("instal",), 'no command "instal"'),
                        (("install", "--all"), "--all"), (("show", "--uri", "rdma://h:1"), "--uri"),
                        (("remove", "--slot", "ib"), "--slot"),
                        (("remove", "--library", PLUGIN), "--library"),
                        (("install", "--frob"), "unrecognized option '--frob'"),
                        (("install", "--uri"), "option '--uri' requires an argument")):
        equal(home.run(*args), 2)
        home.says(words)
    # As in the other tools, what is missing is wrong usage, and a bad value is a failure.
    for args in (("install",), ("remove",), ("show",)):
        equal(home.bare(*args), 2)
        home.says("which GVirtuS? Give --home DIR or set GVIRTUS_HOME\nTry `ibx-gvirtus ")
    equal(home.run("install", "--slot", "ucx"), 1)
    home.says('--slot: "ucx" is not accepted: give oldtcp or ib\n')
    equal(home.run("--help"), 0)
    home.says("Usage: ibx-gvirtus [OPTION...] install\n")
    equal(home.run("--version"), 0)
    assert re.fullmatch(r"ibx-gvirtus \d+\.\d+\.\d+\n", home.said), home.said


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[1], sys.argv[7:]))
