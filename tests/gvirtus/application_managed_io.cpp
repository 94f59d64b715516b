// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Managed memory that the kernel reads or writes for the program.
#include "tests/gvirtus/application.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace
{

constexpr std::size_t KIB = 1024;

// The kernel reads and writes it for the program.
bool system_calls()
{
    constexpr std::size_t n = 200 * KIB;
    char *m = managed_memory(n), *other = managed_memory(n);
    const std::vector<char> bytes = random_bytes(n, 3);
    std::vector<char> back(n);
    std::FILE *file = std::tmpfile();
    REQUIRE(m && other && file);
    for (int i = 0; i < 3; i++) {
        std::memset(m, i, n);
        REQUIRE(stub_launch(m + 1, m, 1, nullptr) == 0); // and it is the device's
        std::rewind(file);
        REQUIRE(i != 1 || std::fwrite(bytes.data(), 1, n, file) == n);
        REQUIRE(i != 1 || !std::fflush(file));
        if (!i)
            REQUIRE(pwrite(fileno(file), m, n, 0) == ssize_t(n));
        REQUIRE(cudaMemset(m, 7, n) == 0);
        std::rewind(file);
        REQUIRE(i == 2 ? std::fread(m, 1, n, file) == n : read(fileno(file), m, n) == ssize_t(n));
        REQUIRE(i ? has(m, bytes) : m[0] == 0 && m[n - 1] == 0);
        REQUIRE(stub_launch(other, m, n, nullptr) == 0); // the device has it, too
        REQUIRE(i ? has(other, bytes) : other[n - 1] == 0);
    }
    // A part of it, with more behind.
    REQUIRE(cudaMemset(m, 7, n) == 0 && pwrite(fileno(file), m + 10, 100, 0) == 100);
    REQUIRE(cudaMemset(m, 8, n) == 0 && pread(fileno(file), m + 70 * KIB, 100, 0) == 100);
    REQUIRE(m[70 * KIB] == 7 && m[70 * KIB + 99] == 7 && m[70 * KIB + 100] == 8);
    // dlerror(3) speaks only of the program's own calls.
    REQUIRE(!dlopen("/none", RTLD_LAZY) && readv(-1, nullptr, 0) == -1 && dlerror());
    return HOLDS(!std::fclose(file) && cudaFree(m) == 0 && cudaFree(other) == 0);
}

// Calls `call` in a thread, and `meanwhile` when it waits in there.
bool while_it_waits(const std::function<bool()> &call, const std::function<bool()> &meanwhile)
{
    std::atomic<pid_t> caller{0};
    bool good = false;
    std::thread thread([&] {
        caller = gettid();
        good = call();
    });
    while (!caller || thread_state(getpid(), caller) != 'S')
        usleep(1000);
    const bool both = meanwhile();
    thread.join();
    return good && both;
}

// By another thread's work, memory that the kernel has to reach becomes the device's while the
// kernel waits in the call.
bool system_calls_that_wait()
{
    constexpr std::size_t n = 200 * KIB;
    char *m = managed_memory(n), *other = managed_memory(n);
    const std::vector<char> sent = random_bytes(n, 4), ninety(90, 9);
    std::vector<char> got(n);
    int ends[2];
    iovec parts[2] = {{m + 10, 40}, {m + 70 * KIB, 50}};
    std::memset(m, 1, n);
    REQUIRE(m && other && pipe(ends) == 0);
    const auto work_and_send = [&] {
        return cudaMemset(other, 1, n) == 0 && write(ends[1], ninety.data(), 90) == 90;
    };
    REQUIRE(while_it_waits([&] { return read(ends[0], m + 10, 100) == 90; }, work_and_send));
    REQUIRE(m[9] == 1 && m[10] == 9 && m[99] == 9 && m[100] == 1);
    REQUIRE(while_it_waits([&] { return readv(ends[0], parts, 2) == 90; }, work_and_send));
    REQUIRE(m[70 * KIB] == 9 && m[70 * KIB + 49] == 9 && m[70 * KIB + 50] == 1);
    // A buffer that goes on behind the allocation is touched before.
    iovec over[2] = {{m, 40}, {m + n - 20, 40}};
    REQUIRE(cudaMemset(m, 1, n) == 0 && write(ends[1], ninety.data(), 60) == 60);
    REQUIRE(readv(ends[0], over, 2) == 60);
    REQUIRE(m[39] == 9 && m[40] == 1 && m[n - 21] == 1 && m[n - 20] == 9 && m[n - 1] == 9);
    std::memcpy(m, sent.data(), n);
    REQUIRE(while_it_waits([&] { return write(ends[1], m, n) == ssize_t(n); },
                           [&] {
                               std::size_t all = 0;
                               ssize_t some = cudaMemset(other, 2, n) ? 0 : 1;
                               for (; some > 0 && all < n; all += std::size_t(some))
                                   some = read(ends[0], got.data() + all, n - all);
                               return all == n;
                           }));
    REQUIRE(got == sent && close(ends[0]) == 0 && close(ends[1]) == 0);
    return HOLDS(cudaFree(m) == 0 && cudaFree(other) == 0);
}

// With MSG_TRUNC, TCP counts the bytes that it throws away, and writes them nowhere; for a datagram
// the call returns its whole length.
bool truncated_messages()
{
    char *m = managed_memory(KIB);
    const std::vector<char> sent(100, 's'), before(KIB, 1);
    const auto discarded = [&](int from, int to, std::size_t n) {
        REQUIRE(m && cudaMemset(m, 1, KIB) == 0 && send(from, sent.data(), 100, 0) == 100);
        return recv(to, m, n, MSG_TRUNC) == 100;
    };
    int pair[2], listening = socket(AF_INET, SOCK_STREAM, 0),
                 from = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at = {};
    socklen_t length = sizeof(at);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto *address = reinterpret_cast<sockaddr *>(&at);
    REQUIRE(bind(listening, address, length) == 0 && listen(listening, 1) == 0);
    REQUIRE(getsockname(listening, address, &length) == 0 && connect(from, address, length) == 0);
    const int to = accept(listening, nullptr, nullptr);
    REQUIRE(to >= 0 && discarded(from, to, 100) && !std::memcmp(m, before.data(), KIB));
    REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && discarded(pair[0], pair[1], 60));
    REQUIRE(!std::memcmp(m, sent.data(), 60) && m[60] == 1);
    for (int fd : {listening, from, to, pair[0], pair[1]})
        close(fd);
    return HOLDS(cudaFree(m) == 0);
}

// Calls with many parts, with addresses, and with messages; the bytes of each go both ways through
// memory that is the device's.
bool system_calls_of_parts_and_messages()
{
    constexpr std::size_t n = 130 * KIB;
    char *m = managed_memory(n), *other = managed_memory(n);
    std::FILE *file = std::tmpfile();
    int pair[2];
    REQUIRE(m && other && file && socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    const int fd = fileno(file);
    iovec from[2] = {{m, 40 * KIB}, {m + 70 * KIB, 30 * KIB}};
    iovec to[2] = {{other, 30 * KIB}, {other + 70 * KIB, 40 * KIB}};
    const auto moves = [&](const char *what, std::size_t all, const std::function<ssize_t()> &out,
                           const std::function<ssize_t()> &in) {
        const std::vector<char> bytes = random_bytes(n, unsigned(all));
        std::memcpy(m, bytes.data(), n);
        // All of it becomes the device's.
        REQUIRE(cudaMemset(other, 1, n) == 0);
        const ssize_t gone = out();
        REQUIRE(cudaMemset(other, 2, n) == 0);
        const ssize_t come = in();
        const bool whole = gone == ssize_t(all) && come == ssize_t(all);
        if (!whole)
            std::fprintf(stderr, "%s: %zd, %zd: %s\n", what, gone, come, std::strerror(errno));
        REQUIRE(whole && !std::memcmp(other, bytes.data(), 30 * KIB));
        REQUIRE(other[30 * KIB] == (all > 70 * KIB ? bytes[30 * KIB] : 2));
        REQUIRE(all != 70 * KIB ||
                (!std::memcmp(other + 70 * KIB, bytes.data() + 30 * KIB, 10 * KIB) &&
                 !std::memcmp(other + 80 * KIB, bytes.data() + 70 * KIB, 30 * KIB)));
        return true;
    };
    REQUIRE(moves(
        "pwritev, preadv", 70 * KIB, [&] { return pwritev(fd, from, 2, 5); },
        [&] { return preadv(fd, to, 2, 5); }));
    REQUIRE(moves(
        "pwritev2, preadv2", 70 * KIB, [&] { return pwritev2(fd, from, 2, 9, 0); },
        [&] { return preadv2(fd, to, 2, 9, 0); }));
    REQUIRE(moves(
        "sendto, recvfrom", 30 * KIB, [&] { return sendto(pair[0], m, 30 * KIB, 0, nullptr, 0); },
        [&] { return recvfrom(pair[1], other, 40 * KIB, 0, nullptr, nullptr); }));
    msghdr sent = {}, come = {};
    sent.msg_iov = from;
    come.msg_iov = to;
    sent.msg_iovlen = come.msg_iovlen = 2;
    REQUIRE(moves(
        "sendmsg, recvmsg", 70 * KIB, [&] { return sendmsg(pair[0], &sent, 0); },
        [&] { return recvmsg(pair[1], &come, 0); }));
    REQUIRE(come.msg_iov == to && come.msg_iovlen == 2 && !come.msg_namelen && !come.msg_flags);
    to[1].iov_len = 5 * KIB; // a message that is longer
    REQUIRE(cudaMemset(other, 3, n) == 0 && sendmsg(pair[0], &sent, 0) == 70 * KIB);
    REQUIRE(recvmsg(pair[1], &come, 0) == 35 * KIB && come.msg_flags == MSG_TRUNC);
    REQUIRE(other[70 * KIB] == m[30 * KIB] && other[75 * KIB] == 3);
    // Random bytes differ from those that were there.
    REQUIRE(cudaMemset(other, 0, n) == 0 && getrandom(other + 10, 100, 0) == 100);
    REQUIRE(!other[9] && !other[110] && !has(other + 10, std::vector<char>(100)));
    REQUIRE(close(pair[0]) == 0 && close(pair[1]) == 0 && !std::fclose(file));
    return HOLDS(cudaFree(m) == 0 && cudaFree(other) == 0);
}

} // namespace

bool managed_system_calls()
{
    REQUIRE(system_calls_that_wait() && truncated_messages());
    return HOLDS(system_calls() && system_calls_of_parts_and_messages());
}
