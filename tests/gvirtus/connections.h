// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Breaks connections of this process, as a link would.
#ifndef IBX_TESTS_GVIRTUS_CONNECTIONS_H
#define IBX_TESTS_GVIRTUS_CONNECTIONS_H

#include "tests/fixtures/open_fds.h"

#include <set>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

// The connections that this process makes from here on. cut() breaks them.
class Connections
{
    std::set<int> before;

  public:
    static std::set<int> sockets()
    {
        std::set<int> found;
        struct stat st;
        for (int fd = open_fd_from(STDERR_FILENO + 1); fd >= 0; fd = open_fd_from(fd + 1))
            if (!fstat(fd, &st) && S_ISSOCK(st.st_mode))
                found.insert(fd);
        return found;
    }
    Connections() : before(sockets()) {}
    void cut() const
    {
        for (int fd : sockets())
            if (!before.count(fd))
                shutdown(fd, SHUT_RDWR);
    }
    // Whether there are connections, and all of them live.
    bool live() const
    {
        std::size_t count = 0;
        char byte;
        for (int fd : sockets()) {
            if (before.count(fd))
                continue;
            count++;
            if (!recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT))
                return false;
        }
        return count;
    }
};

#endif
