// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/programs_scene.h"
#include "tests/fixtures/open_fds.h"

#include <arpa/inet.h>
#include <netinet/in.h>

namespace
{

long break_context(Remote *remote)
{
    const std::vector<char> bytes(100000);
    const std::uint64_t memory = remote->malloc(bytes.size());
    remote->inject("dma", 1, broken, true);
    return memory ? remote->to_device(memory, bytes.data(), bytes.size()) : -1;
}

long copies(Remote *remote, std::uint64_t memory, Remote *back)
{
    const std::vector<char> bytes = random_bytes(100000, 1);
    std::vector<char> got(bytes.size());
    return memory && !remote->to_device(memory, bytes.data(), bytes.size()) &&
           !back->from_device(got.data(), memory, got.size()) && got == bytes;
}

// In how many pieces the GPU gets a long copy.
long pieces_of_a_long_copy(Remote *remote)
{
    static const std::vector<char> bytes(long_bytes);
    const std::uint64_t memory = (remote->get_last_error(), remote->malloc(bytes.size()));
    const unsigned long before = remote->stats().copies_async;
    const bool done = memory && !remote->to_device(memory, bytes.data(), bytes.size());
    const unsigned long after = remote->stats().copies_async;
    return done && !remote->free(memory) ? static_cast<long>(after - before) : -1;
}

// Makes short copies for a while.
long copies_short(Remote *remote)
{
    const char bytes[64] = "";
    const std::uint64_t memory = (remote->get_last_error(), remote->malloc(sizeof(bytes)));
    bool good = memory;
    for (int i = 0; i < 300 && good; i++)
        good = !remote->to_device(memory, bytes, sizeof(bytes));
    return good && !remote->free(memory);
}

// Cuts connections, as a broken link would.
long cut(std::uint16_t port)
{
    long n = 0;
    for (int fd = open_fd_from(3); fd >= 0; fd = open_fd_from(fd + 1)) {
        sockaddr_in peer{};
        socklen_t length = sizeof(peer);
        if (!getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &length) &&
            peer.sin_family == AF_INET && ntohs(peer.sin_port) == port)
            n += !shutdown(fd, SHUT_RDWR);
    }
    return n;
}

// If a process waits, its connections wait, too. A child without threads forks all of these
// processes: see tests/fixtures/asan_forks.c.
long connects_at_once(std::uint16_t port, const std::string &options, int n)
{
    return result_of(spawn([&]() -> int {
        std::vector<pid_t> clients;
        int good = 0;
        for (int i = 0; i < n; i++)
            clients.push_back(spawn([&]() -> int {
                auto over = connected(port, options);
                Remote own(over.get());
                return !own.malloc(some);
            }));
        for (const pid_t client : clients)
            good += result_of(client) == 0;
        return good;
    }));
}

} // namespace

std::string keys_of_two()
{
    const std::string keys = folder + "/keys";
    write_file(keys,
               "alice:00112233445566778899aabbccddeeff\nbob:ffeeddccbbaa99887766554433221100\n");
    return "rdma.key_file : " + keys + "\n";
}

bool as_another_user(const BackEnd &back, const std::function<bool(Remote *)> &body)
{
    configure("");
    return geteuid() != 0 || result_of(spawn([&]() -> int {
                                 const auto over =
                                     make_communicator(create, "tcp/ip", "oldtcp", host, back.port);
                                 if (setresuid(12345, 12345, 12345))
                                     return 2;
                                 over->Connect();
                                 Remote remote(over.get());
                                 return !body(&remote);
                             })) == 0;
}

long works(Remote *remote)
{
    const std::uint64_t memory = (remote->get_last_error(), remote->malloc(100000));
    return copies(remote, memory, remote) && !remote->free(memory) && !remote->device_synchronize();
}

long carry_out(Order order, Remote *remote, std::uint16_t port, const std::string &options)
{
    switch (order) {
    case WORKS:
        return works(remote);
    case ALLOCATES:
        return remote->malloc(some) != 0;
    case FILLS: // so much that two of these do not fit
        return remote->malloc(700000) != 0;
    case ALLOCATIONS:
        return static_cast<long>(remote->stats().allocations);
    case BREAKS:
        return break_context(remote);
    case SYNCHRONIZES:
        return remote->device_synchronize();
    case CUTS:
        return cut(port);
    case SHARES: { // its threads share them
        auto over = connected(port, options);
        Remote other(over.get());
        return copies(remote, remote->malloc(100000), &other);
    }
    case COPIES_LONG:
        return pieces_of_a_long_copy(remote);
    case COPIES_SHORT:
        return copies_short(remote);
    case CONNECTS:
        return connects_at_once(port, options, at_once);
    case FORKS: // the child uses none of its parent's memory, as natively
        return result_of(spawn([&]() -> int {
                   auto over = connected(port, options);
                   Remote own(over.get());
                   return !copies(&own, own.malloc(100000), &own);
               })) == 0;
    }
    return -1;
}
