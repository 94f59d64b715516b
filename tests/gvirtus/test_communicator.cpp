// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The plugin as GVirtuS sees it: a back-end process and front-end processes that use only its C++
// interface.
//
//   test_communicator PLUGIN.so [PROVIDER [HOST]]
#include "tests/gvirtus/scene.h"

#include <arpa/inet.h>
#include <atomic>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <thread>
#include <unistd.h>

namespace
{

unsigned client_count = 64;

// Copies to the device and back, with a gap on both sides that has to stay as it was.
bool round_trip(FrontEnd *front, std::uint64_t at, std::size_t n, unsigned seed)
{
    std::vector<char> sent = random_bytes(n, seed), got(n + 2, 'x');
    REQUIRE(front->to_device(at, sent.data(), n) == 0);
    REQUIRE(front->from_device(got.data() + 1, at, n) == 0);
    REQUIRE(n == 0 || std::memcmp(sent.data(), got.data() + 1, n) == 0);
    REQUIRE(got.front() == 'x' && got.back() == 'x');
    return true;
}

bool all_sizes(std::uint16_t port, const char *suite, const char *protocol)
{
    auto over = connected(port, "", suite, protocol);
    FrontEnd front(over.get());
    unsigned seed = 1;
    for (std::size_t n : std::initializer_list<std::size_t>{
             0,     1,      4,      100,    4095,   4096,    16000,   16384,   16385,    65536,
             65537, 100001, 262144, 600000, 600001, 1048576, 1048577, 4194304, 16777216, 50331649})
        REQUIRE(round_trip(&front, n % 977, n, seed++));
    REQUIRE(front.to_device(device_bytes, "x", 1) == 11);
    REQUIRE(round_trip(&front, 0, 4, seed));
    return true;
}

// They connect eight at a time: a back end gives each two seconds for that, which on a busy machine
// would not be enough for all at once.
bool many_clients()
{
    BackEnd back;
    std::vector<pid_t> clients;
    int turns[2];
    REQUIRE(pipe(turns) == 0 && write(turns[1], "12345678", 8) == 8);
    for (unsigned i = 0; i < client_count; i++)
        clients.push_back(spawn([&]() -> int {
            char turn;
            if (read(turns[0], &turn, 1) != 1)
                return 2;
            auto over = connected(back.port);
            if (write(turns[1], &turn, 1) != 1)
                return 3;
            FrontEnd front(over.get());
            for (unsigned round = 0; round < 20; round++) {
                if (!round_trip(&front, round, (round % 4 == 3 ? 300000 : 10) + round * i,
                                i * 100 + round))
                    return 1;
            }
            return 0;
        }));
    unsigned failed = 0;
    for (pid_t pid : clients)
        failed += result_of(pid) != 0;
    close(turns[0]);
    close(turns[1]);
    REQUIRE(failed == 0 && back.alive());
    return true;
}

// A front end is killed before each of its steps, with short and long payloads: nobody else
// notices.
bool killed_at_every_step()
{
    BackEnd back;
    // Another client, connected all the time. Not with verbs: a process forked from one that holds
    // verbs objects, as each victim would be, cannot use verbs itself; so there it is a new one.
    std::shared_ptr<Communicator> over;
    if (provider != "verbs")
        over = connected(back.port);
    auto others_notice_nothing = [&](std::size_t n, unsigned seed) {
        if (over) {
            FrontEnd witness(over.get());
            return round_trip(&witness, 5, n, seed);
        }
        return result_of(spawn([&]() -> int {
                   auto mine = connected(back.port);
                   FrontEnd witness(mine.get());
                   return !round_trip(&witness, 5, n, seed);
               })) == 0;
    };
    for (std::size_t n : {std::size_t{64}, std::size_t{3} << 20}) {
        const int steps = 16; // of the two calls of a round trip
        for (int step = 0; step < steps + 2; step++) {
            pid_t pid = spawn([&]() -> int {
                auto mine = connected(back.port);
                FrontEnd front(mine.get());
                front.die_at_step = step;
                return !round_trip(&front, 0, n, 7);
            });
            int rc = result_of(pid);
            REQUIRE(rc == (step < steps ? 128 + SIGKILL : 0));
            REQUIRE(others_notice_nothing(n, static_cast<unsigned>(step)));
        }
    }
    // In the middle of a long copy, wherever the signal finds it.
    for (int i = 0; i < 10; i++) {
        int ready[2];
        REQUIRE(pipe(ready) == 0);
        pid_t pid = spawn([&]() -> int {
            auto mine = connected(back.port);
            FrontEnd front(mine.get());
            char c = 0;
            if (write(ready[1], &c, 1) != 1)
                return 1;
            for (unsigned round = 0;; round++)
                round_trip(&front, 0, 8 << 20, round);
        });
        char c;
        REQUIRE(read(ready[0], &c, 1) == 1);
        REQUIRE(others_notice_nothing(100000, static_cast<unsigned>(i)));
        kill(pid, SIGKILL);
        REQUIRE(result_of(pid) == 128 + SIGKILL);
        close(ready[0]);
        close(ready[1]);
        REQUIRE(others_notice_nothing(100000, static_cast<unsigned>(i)));
    }
    REQUIRE(back.alive());
    return true;
}

// The back end's heap, asked for by a process of its own, as in killed_at_every_step().
std::uint64_t heap_of(const BackEnd &back)
{
    int answer[2];
    std::uint64_t bytes = 0;
    if (pipe(answer))
        std::abort();
    result_of(spawn([&]() -> int {
        auto over = connected(back.port);
        FrontEnd front(over.get());
        bytes = front.heap_in_use();
        exit_with(std::move(over), write(answer[1], &bytes, sizeof(bytes)) != sizeof(bytes));
    }));
    close(answer[1]);
    if (read(answer[0], &bytes, sizeof(bytes)) != sizeof(bytes))
        bytes = UINT64_MAX;
    close(answer[0]);
    return bytes;
}

// Nobody deletes an accepted communicator: what it needed for a client has to go with the client.
bool nothing_stays_of_clients()
{
    BackEnd back;
    auto visit = [&] {
        return result_of(spawn([&]() -> int {
                   auto over = connected(back.port);
                   FrontEnd front(over.get());
                   exit_with(std::move(over), !round_trip(&front, 0, 100, 1));
               })) == 0;
    };
    for (unsigned i = 0; i < 4; i++)
        REQUIRE(visit());
    std::uint64_t before = heap_of(back), after = 0;
    REQUIRE(before != UINT64_MAX);
    for (unsigned i = 0; i < client_count; i++)
        REQUIRE(visit());
    // The back end notices the last ones in its own time.
    for (int tries = 0; tries < 2000; tries++) {
        after = heap_of(back);
        if (after <= before + (64 + client_count) * 1024) // what libraries keep, and 1 KiB a client
            return true;
        usleep(5000); // one poll's pause
    }
    std::fprintf(stderr, "%llu bytes of heap became %llu\n",
                 static_cast<unsigned long long>(before), static_cast<unsigned long long>(after));
    return false;
}

std::ptrdiff_t open_descriptors()
{
    using files = std::filesystem::directory_iterator;
    return std::distance(files("/proc/self/fd"), files());
}

// GVirtuS keeps a thread's communicator for ever, and takes a later thread with the same number for
// that thread.
bool threads_that_end()
{
    BackEnd back;
    std::vector<std::shared_ptr<Communicator>> kept;
    unsigned right = 0;
    auto visit = [&] {
        std::thread([&] {
            kept.push_back(connected(back.port));
            FrontEnd front(kept.back().get());
            right += round_trip(&front, 0, 100000, 1);
        }).join();
    };
    return result_of(spawn([&]() -> int {
               for (unsigned i = 0; i < 2; i++) // what libraries open once
                   visit();
               std::ptrdiff_t before = open_descriptors();
               for (unsigned i = 0; i < 4; i++)
                   visit();
               std::ptrdiff_t after = open_descriptors();
               for (auto &over : kept) {
                   FrontEnd front(over.get());
                   right += round_trip(&front, 0, 100000, 2);
               }
               if (after > before)
                   std::fprintf(stderr, "%td descriptors became %td\n", before, after);
               return after > before || right != 12;
           })) == 0;
}

// The application must never take an old success for the answer of a dead back end.
bool back_end_killed()
{
    BackEnd back;
    auto over = connected(back.port);
    FrontEnd front(over.get());
    REQUIRE(round_trip(&front, 0, 1000, 1));
    back.end();
    std::vector<char> bytes(1 << 20);
    for (int i = 0; i < 3; i++) {
        REQUIRE(front.to_device(0, bytes.data(), 4) == 999);
        REQUIRE(front.to_device(0, bytes.data(), bytes.size()) == 999);
        REQUIRE(front.from_device(bytes.data(), 0, bytes.size()) == 999);
    }
    return true;
}

// GVirtuS's front end gives a program that registers a module a null handle for any error, and uses
// it at the end of the module. So the program would end there by SIGSEGV, in a constructor, instead
// of by what it does about the failure of its first call.
bool registers_after_the_end()
{
    BackEnd back;
    auto over = connected(back.port);
    FrontEnd front(over.get());
    REQUIRE(round_trip(&front, 0, 1000, 1));
    back.end();
    for (int i = 0; i < 2; i++) {
        REQUIRE(front.call("cudaRegisterFatBinary", Body()) == 0 && front.out.empty());
        REQUIRE(front.call("cudaRegisterFatBinaryEnd", Body()) == 999);
        REQUIRE(front.call("cudaMalloc", Body()) == 999);
    }
    return true;
}

// What `act` makes appear on standard error, a file that is opened with these flags.
std::string said_by(const std::function<void()> &act, int flags = O_APPEND)
{
    std::string file = folder + "/said", text;
    int before = dup(STDERR_FILENO),
        said = open(file.c_str(), O_CREAT | O_RDWR | O_TRUNC | flags, 0600);
    dup2(said, STDERR_FILENO);
    act();
    dup2(before, STDERR_FILENO);
    close(before);
    char part[4096];
    lseek(said, 0, SEEK_SET);
    for (ssize_t n; (n = read(said, part, sizeof(part))) > 0;)
        text.append(part, static_cast<std::size_t>(n));
    close(said);
    unlink(file.c_str());
    return text;
}

// The catch clauses of both generations have to get the sentence, and so has standard error: G3's
// front end crashes before its own words are out.
bool throws_both(const std::function<void()> &act, const char *part)
{
    bool as_string = false, as_exception = false;
    std::string said = said_by([&] {
        try {
            act();
        } catch (const std::exception &) {
        }
    });
    if (said.find(part) == std::string::npos) {
        std::fprintf(stderr, "on standard error: %s\n", said.c_str());
        return false;
    }
    try {
        act();
    } catch (const std::string &text) {
        as_string = text.find(part) != std::string::npos;
    }
    try {
        act();
    } catch (const std::exception &e) {
        as_exception = std::string(e.what()).find(part) != std::string::npos;
        if (!as_exception)
            std::fprintf(stderr, "said: %s\n", e.what());
    }
    return as_string && as_exception;
}

// Forwards connections, each in a process of its own, and cuts each after some bytes sent to the
// server.
void relay(int listening, std::uint16_t port)
{
    std::uint64_t random = 1;
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int client = accept(listening, nullptr, nullptr), server = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in to = {};
        to.sin_family = AF_INET;
        to.sin_port = htons(port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        random = random * 6364136223846793005u + 1442695040888963407u;
        // Now and then a payload has to pass in one connection.
        long most = random & (1u << 20) ? 1500000 : 30000;
        long left = static_cast<long>(random >> 33) % most;
        if (fork()) {
            close(client);
            close(server);
            continue;
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (connect(server, reinterpret_cast<sockaddr *>(&to), sizeof(to)))
            _exit(1);
        pollfd wait[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
        for (ssize_t n = 1; n > 0 && left >= 0;) {
            char bytes[1500];
            poll(wait, 2, -1);
            bool forth = wait[0].revents != 0;
            n = read(forth ? client : server, bytes, sizeof(bytes));
            left -= forth ? n : 0;
            if (n > 0 && write(forth ? server : client, bytes, static_cast<std::size_t>(n)) != n)
                break;
        }
        _exit(0);
    }
}

// What clients have sent, for later connections.
struct Recording {
    std::atomic<std::size_t> length;
    char bytes[1u << 17];
};

int connected_to(std::uint16_t port)
{
    sockaddr_in to = {};
    int server = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(server, reinterpret_cast<sockaddr *>(&to), sizeof(to)))
        _exit(1);
    return server;
}

// One connection of the relay below, cut after so many bytes to the server.
void pass_on(int client, std::uint16_t port, long left, unsigned mischief, Recording *own,
             const Recording *other)
{
    const int server = connected_to(port), beside = mischief ? connected_to(port) : -1;
    pollfd wait[3] = {{client, POLLIN, 0}, {server, POLLIN, 0}, {beside, POLLIN, 0}};
    if (mischief == 3) // a later connection goes first
        poll(nullptr, 0, 30);
    if (mischief == 2) { // what another connection has sent, once more
        const std::size_t n = other->length < sizeof(other->bytes) ? other->length.load() : 0;
        if (write(beside, other->bytes, n) < 0)
            wait[2].fd = -1;
    }
    for (ssize_t n = 1; n > 0 && left >= 0;) {
        char bytes[1500];
        poll(wait, 3, -1);
        if (wait[2].revents && read(beside, bytes, sizeof(bytes)) <= 0)
            wait[2].fd = -1;
        const bool forth = wait[0].revents != 0;
        if (!forth && !wait[1].revents)
            continue;
        n = read(forth ? client : server, bytes, sizeof(bytes));
        left -= forth ? n : 0;
        if (n > 0 && write(forth ? server : client, bytes, static_cast<std::size_t>(n)) != n)
            break;
        if (n > 0 && forth && mischief == 1 && wait[2].fd >= 0 && // twice
            write(beside, bytes, static_cast<std::size_t>(n)) < 0)
            wait[2].fd = -1;
        if (n > 0 && forth && own->length + static_cast<std::size_t>(n) < sizeof(own->bytes)) {
            std::memcpy(own->bytes + own->length, bytes, static_cast<std::size_t>(n));
            own->length += static_cast<std::size_t>(n);
        }
    }
    _exit(0);
}

// Cuts connections, sends once more what they have sent to the server, on others, at the same time
// or later, and lets later connections go before earlier ones.
void hostile_relay(int listening, std::uint16_t port)
{
    constexpr unsigned recordings = 8;
    std::uint64_t random = 2;
    void *shared = mmap(nullptr, recordings * sizeof(Recording), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto *all = static_cast<Recording *>(shared);
    signal(SIGCHLD, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    for (unsigned i = 0;; i++) {
        int client = accept(listening, nullptr, nullptr);
        random = random * 6364136223846793005u + 1442695040888963407u;
        const long most = random & (1u << 20) ? 1500000 : 30000;
        const long left = static_cast<long>(random >> 33) % most;
        Recording *own = &all[i % recordings], *other = &all[(random >> 25) % recordings];
        own->length = 0;
        if (!fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pass_on(client, port, left, (random >> 21) % 4, own, other);
        }
        close(client);
    }
}

// Each call is answered once, with its own bytes, although the link breaks all the time.
bool link_between(void (*relays)(int, std::uint16_t), const std::string &options, unsigned times)
{
    BackEnd back(options);
    sockaddr_in at = {};
    socklen_t length = sizeof(at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(!bind(listening, reinterpret_cast<sockaddr *>(&at), sizeof(at)) &&
            !listen(listening, 64) &&
            !getsockname(listening, reinterpret_cast<sockaddr *>(&at), &length));
    pid_t between = spawn([&]() -> int {
        relays(listening, back.port);
        return 0;
    });
    close(listening);
    int rc = result_of(spawn([&]() -> int {
        std::shared_ptr<Communicator> over;
        for (int tries = 0; tries < 50 && !over; tries++) { // the first connection may be cut, too
            try {
                over = connected(ntohs(at.sin_port), options);
            } catch (const std::string &) {
                usleep(1000);
            }
        }
        FrontEnd front(over.get());
        for (unsigned i = 0; i < times; i++) {
            if (!round_trip(&front, i % 4096, i % 8 ? 1 + i % 200 * 37 : 300000, i))
                return 1;
        }
        return 0;
    }));
    kill(between, SIGKILL);
    result_of(between);
    return HOLDS(rc == 0);
}

bool link_that_breaks()
{
    return link_between(relay, "rdma.insecure : yes\n", 200);
}

// The same with an attacker in between that has no key, and sends again what it has heard.
bool link_that_is_replayed()
{
    const std::string file = folder + "/of_both";
    write_file(file, "alice:0123456789abcdef0123456789abcdef\n");
    const std::string options = "rdma.key_file : " + file + "\n";
    return link_between(hostile_relay, options, 100) &&
           link_between(hostile_relay, options + "rdma.encryption : required\n", 60);
}

// An exception that a handler does not catch ends its client's session and thread, and nobody
// else's. So does a handler that returns no result.
bool handlers_that(const char *fail)
{
    BackEnd back;
    auto over = connected(back.port);
    FrontEnd witness(over.get());
    REQUIRE(round_trip(&witness, 0, 100, 1));
    for (unsigned i = 0; i < 20; i++) {
        REQUIRE(result_of(spawn([&]() -> int {
                    auto mine = connected(back.port);
                    FrontEnd front(mine.get());
                    return !round_trip(&front, 0, 100, i) || front.call(fail, Body()) != 999 ||
                           front.call("heap", Body()) != 999;
                })) == 0);
        REQUIRE(back.alive() && round_trip(&witness, 0, 100000, i));
    }
    const std::string tasks = "/proc/" + std::to_string(back.serving()) + "/task";
    auto threads = [&] { return std::distance(std::filesystem::directory_iterator(tasks), {}); };
    for (unsigned i = 0; i < 10000 && threads() > 10; i++) // they end a moment later
        usleep(1000);
    REQUIRE(threads() <= 10);
    return true;
}

bool nobody_there()
{
    std::uint16_t port = free_port();
    REQUIRE(throws_both([&] { connected(port); }, "no server answers"));
    return true;
}

bool keys()
{
    std::string right = folder + "/right", wrong = folder + "/wrong", open = folder + "/open";
    write_file(right, "0123456789abcdef0123456789abcdef\n");
    write_file(wrong, "fedcba9876543210fedcba9876543210\n");
    write_file(open, "0123456789abcdef0123456789abcdef\n", 0644);
    BackEnd back("rdma.key_file : " + right + "\n");
    {
        auto over = connected(back.port, "rdma.key_file : " + right + "\n");
        FrontEnd front(over.get());
        REQUIRE(round_trip(&front, 0, 100000, 3));
    }
    REQUIRE(throws_both([&] { connected(back.port, "rdma.key_file : " + wrong + "\n"); },
                        "key differs from the server's"));
    REQUIRE(throws_both([&] { connected(back.port); }, "a key is required"));
    REQUIRE(
        throws_both([&] { connected(back.port, "rdma.key_file : " + open + "\n"); }, "chmod 600"));
    REQUIRE(back.alive());
    auto again = connected(back.port, "rdma.key_file : " + right + "\n");
    FrontEnd front(again.get());
    REQUIRE(round_trip(&front, 0, 4, 3));
    return true;
}

// A file that the program has opened in place of its standard error gets none of our lines.
bool program_without_standard_error()
{
    const auto act = [] {
        try {
            connected(1, "rdma.no_such : 1\n");
        } catch (const std::exception &) {
        }
    };
    REQUIRE(said_by(act).find("no_such") != std::string::npos);
    return HOLDS(said_by(act, 0).empty());
}

bool bad_properties()
{
    REQUIRE(throws_both([&] { connected(1, "rdma.chunk : banana\n"); }, "banana"));
    REQUIRE(throws_both([&] { connected(1, "rdma.no_such : 1\n"); }, "no_such"));
    return true;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2) {
        std::fprintf(stderr, "usage: test_communicator PLUGIN.so [PROVIDER [HOST]]\n");
        return 2;
    }
    scene_open(argv[1], argc > 2 ? argv[2] : nullptr, argc > 3 ? argv[3] : nullptr);
    // libfabric's emulations hold some 150 MB a connection.
    if (provider == "ofi")
        client_count = 12;

    check("requests and replies of all sizes arrive unchanged (tcp/ip, oldtcp)", [] {
        BackEnd back;
        return all_sizes(back.port, "tcp/ip", "oldtcp");
    });
    check("requests and replies of all sizes arrive unchanged (infiniband-rdma, ib)", [] {
        BackEnd back;
        return all_sizes(back.port, "infiniband-rdma", "ib");
    });
    check((std::to_string(client_count) + " clients at the same time").c_str(), many_clients);
    check("the back end keeps serving when a client is killed at any step", killed_at_every_step);
    check("clients that have ended leave no memory behind", nothing_stays_of_clients);
    check("a connection is closed when its thread ends", threads_that_end);
    check("calls return error 999 after the back end was killed", back_end_killed);
    check("modules can be registered after the back end was killed", registers_after_the_end);
    if (provider == "tcp") { // only this goes through a relay
        check("each call is answered once although connections break", link_that_breaks);
        check("... and although somebody replays what clients sent", link_that_is_replayed);
    }
    check("an exception in a handler ends the session of its client alone",
          [] { return handlers_that("throws"); });
    take_result = gvirtus_take_result;
    check("... and so does a handler that returns no result",
          [] { return handlers_that("returns-nothing"); });
    check("without a back end connecting fails with one sentence", nobody_there);
    check("keys that are wrong, missing or readable by others are refused", keys);
    check("bad keys and values in gvirtus.properties are refused by name", bad_properties);
    check("a program that has closed its standard error gets no messages",
          program_without_standard_error);

    return scene_close();
}
