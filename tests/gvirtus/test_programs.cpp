// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A back end with several processes for its clients (rdma.processes):
//
//   test_programs PLUGIN.so PROVIDER [HOST]
#include "tests/gvirtus/programs_scene.h"

#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>

namespace
{

bool each_has_one()
{
    const Listening back;
    const Program a(back), b(back);
    REQUIRE(a.ask(WORKS) == 1 && b.ask(WORKS) == 1 && back.children().size() == 2);
    const long before = b.ask(ALLOCATIONS);
    REQUIRE(a.ask(ALLOCATES) == 1 && a.ask(ALLOCATES) == 1);
    return HOLDS(b.ask(ALLOCATIONS) == before && a.ask(ALLOCATIONS) >= before + 2);
}

bool threads_share_it()
{
    const Listening back;
    const Program a(back);
    REQUIRE(a.ask(SHARES) == 1 && a.ask(FORKS) == 1);
    return HOLDS(back.children().size() == 1);
}

bool broken_by_one()
{
    const Said said;
    const Listening back;
    Program a(back);
    const Program b(back);
    REQUIRE(a.ask(WORKS) == 1 && b.ask(ALLOCATES) == 1);
    const long had = b.ask(ALLOCATIONS);
    REQUIRE(a.ask(BREAKS) == broken && a.ask(SYNCHRONIZES) == broken);
    REQUIRE(b.ask(WORKS) == 1 && b.ask(ALLOCATIONS) == had && a.ask(SYNCHRONIZES) == broken);
    REQUIRE(a.ask(SHARES) == 0 && back.children().size() == 2); // its new threads see it, too
    a.end();
    REQUIRE(back.has(1) && b.ask(WORKS) == 1);
    const Program c(back);
    REQUIRE(c.ask(WORKS) == 1);
    return HOLDS(said.has("CUDA error 719 of ") && said.has("fail from now on"));
}

bool crashed()
{
    const Said said;
    const Listening back;
    const Program a(back);
    REQUIRE(a.ask(WORKS) == 1);
    const Program b(back);
    REQUIRE(b.ask(ALLOCATES) == 1);
    const long had = b.ask(ALLOCATIONS);
    REQUIRE(kill(back.children().front(), SIGABRT) == 0);
    REQUIRE(becomes_true([&] { return a.ask(SYNCHRONIZES) == lost; }));
    REQUIRE(a.ask(SYNCHRONIZES) == lost);
    REQUIRE(b.ask(WORKS) == 1 && b.ask(ALLOCATIONS) == had && back.has(1));
    return HOLDS(becomes_true([&] { return said.has("has ended by signal 6"); }) &&
                 said.has("others go on"));
}

// A library at the back end ends the process, which must not look like an orderly end.
bool exited()
{
    const Said said;
    const Listening back;
    const Program b(back);
    REQUIRE(b.ask(WORKS) == 1);
    const pid_t a = spawn([&]() -> int { // not here: later programs would be children of this one
        auto over = connected(back.port);
        Remote own(over.get());
        return own.call("testExit", Body().u64(7)) != lost;
    });
    REQUIRE(result_of(a) == 0 && b.ask(WORKS) == 1);
    return HOLDS(becomes_true([&] { return said.has("has ended with status 7"); }) &&
                 said.has("others go on"));
}

bool ends_with_it()
{
    const Listening back(resume);
    std::ptrdiff_t descriptors = 0;
    for (int i = 0; i < 20; i++) {
        Program a(back, resume);
        REQUIRE(a.ask(ALLOCATES) == 1 && back.children().size() == 1);
        a.end(i % 2 ? SIGKILL : 0);
        REQUIRE(back.has(0));
        descriptors = descriptors ? descriptors : back.descriptors();
        REQUIRE(becomes_true([&] { return back.descriptors() <= descriptors; }));
    }
    Program unknown(back, "rdma.resume_seconds : 0\n");
    REQUIRE(unknown.ask(ALLOCATES) == 1 && back.children().size() == 1);
    unknown.end();
    return HOLDS(back.has(0));
}

// A program of another host: about its processes the back end knows only what they say. Here it is
// in another pid namespace. `then`: what it does once it has memory there, before it is killed.
bool of_another_host(const std::function<void(std::shared_ptr<Communicator> &)> &then)
{
    const Listening back(resume);
    int had[2];
    REQUIRE(!pipe2(had, O_CLOEXEC));
    const pid_t program = spawn([&]() -> int {
        if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID))
            return write(had[1], "n", 1) != 1; // this host does not allow it
        return result_of(spawn([&]() -> int {
            auto over = connected(back.port, resume);
            Remote remote(over.get());
            const bool good = works(&remote) == 1 && remote.malloc(some);
            then(over);
            return write(had[1], good ? "g" : "b", 1) != 1 || pause();
        }));
    });
    char what = 0;
    REQUIRE(read(had[0], &what, 1) == 1 && what != 'b');
    REQUIRE(what == 'n' || back.has(1));
    kill(program, SIGKILL); // the other process dies with it
    result_of(program);
    close(had[0]);
    close(had[1]);
    return HOLDS(back.has(0));
}

// Many programs come and go at once, some end before they are served.
bool many_at_once()
{
    const Listening back;
    std::vector<pid_t> clients;
    for (int i = 0; i < 24; i++) {
        clients.push_back(spawn([&]() -> int {
            auto over = connected(back.port);
            Remote remote(over.get());
            return i % 3 ? works(&remote) != 1 : 0;
        }));
    }
    for (const pid_t client : clients)
        REQUIRE(result_of(client) == 0);
    return HOLDS(back.has(0));
}

// `options` of both ends.
bool goes_on(const std::string &options)
{
    const Listening back(options);
    const Program a(back, options), b(back, options);
    REQUIRE(a.ask(ALLOCATES) == 1 && b.ask(WORKS) == 1);
    const long had = a.ask(ALLOCATIONS);
    for (int i = 0; i < 3; i++) {
        REQUIRE(a.ask(CUTS) > 0 && a.ask(ALLOCATIONS) == had && a.ask(WORKS) == 1);
    }
    return HOLDS(b.ask(WORKS) == 1 && back.children().size() == 2);
}

bool goes_on_encrypted()
{
    const std::string key = folder + "/key";
    write_file(key, "00112233445566778899aabbccddeeff\n");
    return goes_on("rdma.encryption : required\nrdma.key_file : " + key + "\n");
}

// A program with its own keys, but another program's number.
bool impostor()
{
    const std::string file = keys_of_two();
    const Listening back(file);
    return HOLDS(0 == result_of(spawn([&]() -> int {
                     auto over = connected(back.port, file + "rdma.name : alice\n");
                     Remote alice(over.get());
                     if (!alice.malloc(some) || back.children().size() != 1)
                         return 1;
                     return result_of(spawn([&]() -> int {
                         auto its = connected(back.port, file + "rdma.name : bob\n");
                         Remote bob(its.get());
                         return works(&bob) != 1 || back.children().size() != 2;
                     }));
                 })));
}

// A user without processes, since the system counts what all processes of a user have.
uid_t unused_user()
{
    return 100000 + static_cast<uid_t>(getpid());
}

// A back end of another user, with the keys of alice and bob. Only root can begin one.
struct OfAnotherUser : BackEnd {
    static std::string options(uid_t user)
    {
        keys_of_two();
        const std::string its = folder + "/keys-of-" + std::to_string(user);
        std::filesystem::copy_file(folder + "/keys", its,
                                   std::filesystem::copy_options::overwrite_existing);
        if (chown(its.c_str(), user, user) || chmod(folder.c_str(), 0711))
            std::abort();
        return "rdma.log : warn\nrdma.processes : program\nrdma.spare_processes : 0\n"
               "rdma.key_file : " +
               its + "\n" + resume;
    }
    OfAnotherUser(uid_t user, __rlimit_resource_t what, rlim_t most)
        : BackEnd(options(user), [=](auto listening) {
              if (!become(user, what, most))
                  std::_Exit(3);
              cuda_back_end_child(listening, true);
          })
    {
    }
    static bool become(uid_t user, __rlimit_resource_t what, rlim_t most)
    {
        const rlimit few = {most, most};
        return !setrlimit(what, &few) && !setresuid(user, user, user) &&
               !prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
};

// The system lets a user who is not root have only so many descriptors on their way between
// processes as one process may open: a process that takes none leaves some to others.
bool many_on_their_way()
{
    if (geteuid())
        return true;
    const Said said;
    const std::string file = keys_of_two();
    const OfAnotherUser back(unused_user(), RLIMIT_NOFILE, 60);
    const Program alice(back, file + "rdma.name : alice\n" + resume);
    REQUIRE(alice.ask(WORKS) == 1);
    const pid_t stopped = back.children().front();
    REQUIRE(kill(stopped, SIGSTOP) == 0 && alice.begin(CONNECTS));
    REQUIRE(becomes_true(
        [&] { return said.has("have come to no process yet as rdma.tenant_share of "); }));
    const Program bob(back, file + "rdma.name : bob\n" + resume);
    const bool good = bob.ask(WORKS) == 1;
    REQUIRE(kill(stopped, SIGCONT) == 0 && alice.answer() < at_once);
    // Alice's process keeps the descriptors of connections for a while after their clients have
    // ended: if it had no descriptor to watch a client's end, until the client can no longer come
    // back.
    return HOLDS(good && becomes_true([&] { return alice.ask(WORKS) == 1; }));
}

// How often these bytes are in memory that the process can write to.
long has_in_memory(pid_t process, const std::vector<unsigned char> &bytes)
{
    const std::string proc = "/proc/" + std::to_string(process);
    std::ifstream maps(proc + "/maps"), memory(proc + "/mem", std::ios::binary);
    std::string line;
    long n = 0;
    while (std::getline(maps, line)) {
        unsigned long from = 0, to = 0;
        if (line.find(" rw-p ") == std::string::npos ||
            std::sscanf(line.c_str(), "%lx-%lx", &from, &to) != 2 || to - from > 100UL << 20)
            continue;
        std::vector<unsigned char> all(to - from);
        memory.clear();
        memory.seekg(static_cast<std::streamoff>(from));
        memory.read(reinterpret_cast<char *>(all.data()), static_cast<std::streamsize>(all.size()));
        const unsigned char *at = all.data(), *const end = at + memory.gcount();
        // std::search takes seventeen times as long in a test with sanitizers.
        while ((at = static_cast<const unsigned char *>(
                    memmem(at, static_cast<std::size_t>(end - at), bytes.data(), bytes.size())))) {
            n++;
            at++;
        }
    }
    return n;
}

// Kernels may reach all memory of their process, but find no keys of others there.
bool has_no_keys()
{
    const std::string file = keys_of_two();
    const Listening back(file);
    // Only now: the child has the memory that was here before.
    const std::vector<unsigned char> bobs = {0x81, 0x14, 0x07, 0xf1, 0x0d, 0x6c, 0x0f, 0x49,
                                             0xa0, 0x56, 0xcc, 0x8c, 0x01, 0xa1, 0x5e, 0x42};
    const Program alice(back, file + "rdma.name : alice\n"), bob(back, file + "rdma.name : bob\n");
    REQUIRE(alice.ask(WORKS) == 1 && bob.ask(WORKS) == 1 && back.children().size() == 2);
    REQUIRE(has_in_memory(back.pid, bobs) > 0);
    for (const pid_t child : back.children())
        REQUIRE(has_in_memory(child, bobs) == 0);
    return true;
}

// What one program uses, others of its name cannot use; and it is free again when the process ends,
// in whatever way.
bool limits_are_shared()
{
    const Listening back("rdma.device_memory : 1M\nrdma.sessions : 4\nrdma.tenant_share : 100\n");
    Program a(back);
    REQUIRE(a.ask(FILLS) == 1);
    const Program b(back);
    REQUIRE(b.ask(WORKS) == 1 && b.ask(FILLS) == 0);
    const pid_t of_a = back.children().front();
    REQUIRE(kill(of_a, SIGKILL) == 0 && becomes_true([&] { return b.ask(FILLS) == 1; }));
    // Its connections, too.
    const Program c(back), d(back), e(back);
    REQUIRE(c.ask(WORKS) == 1 && d.ask(WORKS) == 1);
    return HOLDS(e.ask(WORKS) == 1 && Program(back).ask(WORKS) != 1);
}

// A short copy of one program comes between the pieces into which long copies of others are cut.
bool takes_turns()
{
    const Listening back;
    const Program greedy(back);
    Program small(back);
    REQUIRE(small.ask(COPIES_SHORT) == 1);
    const auto are_cut = [&] { return greedy.ask(COPIES_LONG) >= long_bytes / piece; };
    REQUIRE(becomes_true([&] {
        const bool begun = small.begin(COPIES_SHORT), cut = are_cut();
        return begun && small.answer() == 1 && cut;
    }));
    small.end(SIGKILL);
    REQUIRE(back.has(1));
    return HOLDS(greedy.ask(COPIES_LONG) > 0 && becomes_true([&] { return !are_cut(); }));
}

bool waits_for_its_turn(const Listening &back, const Program &a, const Program &other)
{
    REQUIRE(kill(back.children().front(), SIGSTOP) == 0 && a.begin(CONNECTS));
    // The process that listens does not wait for the other process: connections of others come
    // after those.
    REQUIRE(other.ask(CONNECTS) == at_once);
    REQUIRE(kill(back.children().front(), SIGCONT) == 0);
    return HOLDS(a.answer() == at_once);
}

bool a_process_that_waits()
{
    const Listening back;
    Program a(back);
    const Program other((a.ask(WORKS), back));
    REQUIRE(other.ask(WORKS) == 1 && back.children().size() == 2);
    REQUIRE(waits_for_its_turn(back, a, other) && a.ask(WORKS) == 1);
    a.end();
    return HOLDS(back.has(1));
}

// A process is stopped at any time, with sessions that come and go: others begin, run, share and
// end.
bool stopped_at_any_time()
{
    const Listening back(resume);
    const Program a(back, resume);
    REQUIRE(a.ask(WORKS) == 1);
    const pid_t stopped = back.children().front();
    const unsigned times = provider == "shm" ? 4 : 10; // shm is what CI runs
    for (unsigned i = 0; i < times; i++) {
        REQUIRE(a.begin(CONNECTS) && kill(stopped, SIGSTOP) == 0);
        for (const bool forks : {false, true}) {
            Program b(back, resume);
            REQUIRE(b.ask(WORKS) == 1 && b.ask(forks ? FORKS : SHARES) == 1);
            b.end();
            REQUIRE(back.has(1));
        }
        REQUIRE(kill(stopped, SIGCONT) == 0 && a.answer() == at_once);
    }
    return HOLDS(a.ask(WORKS) == 1);
}

// If a process has no descriptor for a connection, that is lost; the process still sees its end.
// Meanwhile it waits for the next one, though poll(2) takes no descriptor, either.
bool out_of_descriptors()
{
    const Said said;
    const Listening back;
    Program a(back);
    REQUIRE(a.ask(WORKS) == 1);
    const pid_t child = back.children().front();
    rlimit before{};
    REQUIRE(prlimit(child, RLIMIT_NOFILE, nullptr, &before) == 0);
    const rlimit none = {0, before.rlim_max};
    REQUIRE(prlimit(child, RLIMIT_NOFILE, &none, nullptr) == 0);
    REQUIRE(a.ask(FORKS) == 0);
    REQUIRE(becomes_true([&] { return said.has("waiting at "); }));
    REQUIRE(prlimit(child, RLIMIT_NOFILE, &before, nullptr) == 0);
    REQUIRE(a.ask(FORKS) == 1 && a.ask(WORKS) == 1);
    a.end();
    return HOLDS(back.has(0));
}

// A connection without a thread is lost; what its program has stays. `fewer` threads of somebody
// else end then, so that some connections have one, and threads that copy or clear memory begin
// beside them: none may take the one that was there for a connection.
bool threads_run_out(unsigned fewer)
{
    const uid_t user = unused_user();
    constexpr rlim_t most = 50;
    if (geteuid())
        return true;
    const Said said;
    const std::string file = keys_of_two();
    const OfAnotherUser back(user, RLIMIT_NPROC, most);
    const Program bob(back, file + "rdma.name : bob\n");
    REQUIRE(bob.ask(WORKS) == 1 && bob.ask(ALLOCATES) == 1);
    int full[2], ends[2];
    REQUIRE(!pipe2(full, O_CLOEXEC) && !pipe2(ends, O_CLOEXEC));
    const pid_t others = spawn([&]() -> int {
        if (!OfAnotherUser::become(user, RLIMIT_NPROC, most))
            return 1;
        close(ends[1]);
        try {
            for (unsigned i = 0;; i++)
                std::thread([&, i] {
                    char none;
                    if (i < fewer && read(ends[0], &none, 1) == 0)
                        return;
                    pause();
                }).detach();
        } catch (const std::system_error &) {
            return write(full[1], "f", 1) != 1 || pause();
        }
    });
    char byte;
    close(full[1]);
    close(ends[0]);
    REQUIRE(read(full[0], &byte, 1) == 1);
    close(ends[1]);
    const long connected = bob.ask(CONNECTS);
    REQUIRE(bob.ask(ALLOCATIONS) >= 1 && (fewer || connected < at_once));
    // The client sees the end of its connection before that is logged.
    REQUIRE(connected == at_once ||
            becomes_true([&] { return said.has("there is no thread for it"); }));
    REQUIRE(kill(others, SIGKILL) == 0 && result_of(others) == 128 + SIGKILL);
    close(full[0]);
    return HOLDS(bob.ask(WORKS) == 1);
}

bool out_of_threads()
{
    bool good = threads_run_out(0);
    for (unsigned i = 0; i < 4; i++)
        good = threads_run_out(3) && good;
    return good;
}

// Processes are killed at any time: before they have taken a connection, in a handshake, with
// sessions.
bool killed_at_any_time(std::size_t spares)
{
    const Said nothing_here;
    const Listening back("", spares);
    std::vector<pid_t> clients;
    REQUIRE(Program(back).ask(WORKS) == 1);
    REQUIRE(back.has(0));
    const std::ptrdiff_t descriptors = back.descriptors();
    for (unsigned i = 0, killed = 0; i < 60 || !killed; i++) {
        clients.push_back(spawn([&]() -> int {
            auto over = connected(back.port, resume);
            Remote own(over.get());
            return works(&own) != 1;
        }));
        for (const pid_t child : back.children())
            killed += i % 3 == static_cast<unsigned>(child) % 3 && !kill(child, SIGKILL);
    }
    for (const pid_t client : clients)
        result_of(client);
    REQUIRE(becomes_true([&] { return back.children().size() <= spares; }));
    REQUIRE(Program(back).ask(WORKS) == 1); // spare ones that were killed are there again
    REQUIRE(back.has(0));
    return HOLDS(becomes_true([&] { return back.descriptors() <= descriptors; }));
}

// A spare process becomes the program's, and another one takes its place.
bool spare_is_taken()
{
    const Listening back("", 1);
    REQUIRE(back.has(0));
    const pid_t first = back.children().front();
    const Program a(back), b((a.ask(WORKS), back));
    REQUIRE(a.ask(WORKS) == 1 && b.ask(WORKS) == 1 && back.has(2));
    const long had = b.ask(ALLOCATIONS);
    REQUIRE(a.ask(ALLOCATES) == 1 && b.ask(ALLOCATIONS) == had);
    REQUIRE(kill(first, SIGKILL) == 0);
    REQUIRE(becomes_true([&] { return a.ask(SYNCHRONIZES) == lost; }));
    return HOLDS(b.ask(WORKS) == 1 && back.has(1));
}

bool spare_has_a_context()
{
    const Said said;
    const Listening back("rdma.log : info\n", 2);
    const auto ready = [&](pid_t process) {
        return becomes_true([&] {
            return said.has("process " + std::to_string(process) + " has a context on GPU 0");
        });
    };
    REQUIRE(back.has(0));
    for (const pid_t spare : back.children())
        REQUIRE(ready(spare));
    Program a(back);
    REQUIRE(a.ask(WORKS) == 1 && back.has(1));
    for (const pid_t child : back.children())
        REQUIRE(ready(child));
    a.end();
    return HOLDS(back.has(0));
}

// A program is killed beside its kernel that never ends, perhaps because it waits for a word of the
// program's. `maps`: it has page-locked memory that kernels use.
bool killed_beside_its_endless_work(bool maps)
{
    Listening back;
    const pid_t pid = spawn([&back, maps]() -> int {
        auto over = connected(back.port);
        Remote own(over.get());
        own.get_last_error();
        own.set_device(0);
        const Body map =
            number(IBX_EXT_HOST_MAP).u64(0x230000000000).u64(8192).u64(IBX_EXT_OWN_PAGES);
        if (maps && own.call("ibxRuntime", map) != 0)
            return 1;
        const std::uint64_t to = own.malloc(some), from = own.malloc(some),
                            stream = own.stream_create(1);
        own.hold_stream(stream);
        if (own.call("cudaLaunchKernel", kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, some)))
            return 2;
        return raise(SIGKILL);
    });
    REQUIRE(result_of(pid) == 128 + SIGKILL);
    return HOLDS(back.has(0));
}

// A killed spare process is not replaced at once: the next could end, too.
bool spare_is_killed()
{
    const Said said;
    const Listening back("", 1);
    REQUIRE(back.has(0));
    REQUIRE(kill(back.children().front(), SIGKILL) == 0);
    REQUIRE(becomes_true([&] { return said.has("which waited for clients, has ended by"); }));
    REQUIRE(back.children().empty());
    const Program a(back);
    return HOLDS(a.ask(WORKS) == 1 && back.has(1));
}

// The service begins before the driver is loaded: a process in which the driver has found no GPU
// finds none later, either.
bool spare_without_a_gpu()
{
    const Said said;
    const std::string gpu = "/tmp/test_programs-gpu-" + std::to_string(getpid());
    setenv("IBX_DOUBLE_ABSENT", gpu.c_str(), 1);
    const Listening back("rdma.log : warn\n", 1);
    unsetenv("IBX_DOUBLE_ABSENT");
    REQUIRE(becomes_true(
        [&] { return said.has("was waiting for clients, ends: there is no GPU yet"); }));
    REQUIRE(becomes_true([&] { return back.children().empty(); }));
    REQUIRE(std::ofstream(gpu).good());
    const bool works = Program(back).ask(WORKS) == 1;
    unlink(gpu.c_str());
    return HOLDS(works);
}

// Programs that come at the same time get the spare processes, and the others new ones.
bool more_than_spare()
{
    const Listening back("", 2);
    std::vector<std::unique_ptr<Program>> all;
    for (int i = 0; i < 6; i++)
        all.push_back(std::make_unique<Program>(back));
    for (const auto &program : all)
        REQUIRE(program->ask(WORKS) == 1);
    REQUIRE(back.has(6));
    for (const auto &program : all) {
        const long had = program->ask(ALLOCATIONS);
        REQUIRE(program->ask(ALLOCATES) == 1 && program->ask(ALLOCATIONS) == had + 1);
    }
    all.clear();
    return HOLDS(back.has(0));
}

// A process that was a spare one counts as its program's.
bool spare_and_limits()
{
    const std::string file = keys_of_two();
    const Listening back(file + "rdma.device_memory : 1M\nrdma.tenant_share : 100\n", 3);
    const Program a(back, file + "rdma.name : alice\n"), b(back, file + "rdma.name : alice\n");
    REQUIRE(a.ask(FILLS) == 1 && b.ask(WORKS) == 1 && b.ask(FILLS) == 0);
    return HOLDS(back.has(2));
}

bool with_its_listener()
{
    Listening back;
    const Program a(back);
    REQUIRE(a.ask(WORKS) == 1);
    const pid_t child = back.children().front();
    REQUIRE(kill(back.pid, SIGTERM) == 0);
    REQUIRE(becomes_true([&] { return a.ask(SYNCHRONIZES) == lost; }));
    return HOLDS(becomes_true([&] { return kill(child, 0) < 0; }));
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_programs PLUGIN.so PROVIDER [HOST]\n");
        return 2;
    }
    scene_open(argv[1], argv[2], argc > 3 ? argv[3] : nullptr);
    if (provider == "verbs") // the ends of its clients are not seen as those on this host are
        common += resume;
    check("each program has a process", each_has_one);
    check("its threads and children share it", threads_share_it);
    check("a context that one program has broken", broken_by_one);
    check("a program whose process crashes", crashed);
    check("a program whose process a library ends", exited);
    check("a process ends with its program", ends_with_it);
    check("... of another host that is killed", [] { return of_another_host([](auto &) {}); });
    check("... without a thread that calls CUDA",
          [] { return of_another_host([](auto &over) { over.reset(); }); });
    check("many programs at once", many_at_once);
    check("a session goes on in its program's process", [] { return goes_on(""); });
    if (provider != "verbs") // it does not encrypt
        check("... with TLS", goes_on_encrypted);
    check("a program with another one's number", impostor);
    check_programs_crowds();
    if (provider != "verbs") { // its clients are on another host
        check("many connections on their way", many_on_their_way);
        check("a process without threads", out_of_threads);
    }
    check("a process without keys", has_no_keys);
    check("limits are of all programs", limits_are_shared);
    check("turns are of all programs", takes_turns);
    check("a process that does not take its connections", a_process_that_waits);
    check("a process stopped at any time", stopped_at_any_time);
    check("a process without descriptors", out_of_descriptors);
    check("processes that are killed at any time", [] { return killed_at_any_time(0); });
    check("... and spare ones", [] { return killed_at_any_time(2); });
    check("a spare process becomes a program's", spare_is_taken);
    check("a spare process has a context", spare_has_a_context);
    check("a spare process is killed", spare_is_killed);
    check("a program that is killed beside its endless work",
          [] { return killed_beside_its_endless_work(false); });
    check("... that may use its page-locked memory",
          [] { return killed_beside_its_endless_work(true); });
    check("a spare process without a GPU", spare_without_a_gpu);
    check("more programs than spare processes", more_than_spare);
    check("a spare process and limits", spare_and_limits);
    check("the process that listens ends", with_its_listener);
    check_programs_ipc();
    check_programs_pools();
    check_programs_tenants();
    return scene_close();
}
