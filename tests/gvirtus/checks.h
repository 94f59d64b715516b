// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What the programs share that test the plugin between processes of their own: a test is a function
// that says whether it passed, and each prints a line that tests/count-results counts.
#ifndef TESTS_COMMUNICATOR_CHECKS_H
#define TESTS_COMMUNICATOR_CHECKS_H

#include <cstdint>
#include <cstdio>
#include <functional>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

inline int passed, failed;

inline void check(const char *name, const std::function<bool()> &test)
{
    bool good = test();
    std::printf("%s %s\n", good ? "ok  " : "FAIL", name);
    std::fflush(stdout);
    (good ? passed : failed)++;
}

// A port that is free until who sets SO_REUSEADDR listens there, as back ends do: this process
// keeps a socket at it, so that the kernel gives it to nobody else meanwhile.
inline std::uint16_t free_port()
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof(address);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address));
    getsockname(fd, reinterpret_cast<sockaddr *>(&address), &length);
    return ntohs(address.sin_port);
}

#endif
