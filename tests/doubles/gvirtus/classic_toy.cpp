// SPDX-License-Identifier: LGPL-2.1-or-later
// What classic GVirtuS links into both ends: Get and a communicator of its own.
#include "classic_toy.h"

#include <arpa/inet.h>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace
{

class TcpToy : public Communicator
{
  public:
    explicit TcpToy(std::uint16_t at) : port(at) {}
    TcpToy(int connected, bool) : fd(connected) {}

    void Serve() override
    {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        sockaddr_in a = address();
        if (bind(fd, reinterpret_cast<sockaddr *>(&a), sizeof(a)) || listen(fd, 5))
            throw "toy: cannot listen";
    }

    const Communicator *Accept() const override
    {
        return new TcpToy(accept(fd, nullptr, nullptr), true);
    }

    void Connect() override
    {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in a = address();
        if (connect(fd, reinterpret_cast<sockaddr *>(&a), sizeof(a)))
            throw "toy: cannot connect";
    }

    std::size_t Read(char *buffer, std::size_t size) override
    {
        for (std::size_t have = 0; have < size;) {
            ssize_t n = read(fd, buffer + have, size - have);
            if (n <= 0)
                return 0;
            have += static_cast<std::size_t>(n);
        }
        return size;
    }

    std::size_t Write(const char *buffer, std::size_t size) override
    {
        for (std::size_t done = 0; done < size;) {
            ssize_t n = send(fd, buffer + done, size - done, MSG_NOSIGNAL);
            if (n <= 0)
                return size;
            done += static_cast<std::size_t>(n);
        }
        return size;
    }

    void Sync() override {}
    void Close() override {}

  private:
    sockaddr_in address() const
    {
        sockaddr_in a{};
        a.sin_family = AF_INET;
        a.sin_port = htons(port);
        a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return a;
    }

    int fd = -1;
    std::uint16_t port = 0;
};

} // namespace

Communicator::~Communicator() {}

Communicator *Communicator::Get(const std::string &communicator)
{
    if (communicator.compare(0, 6, "tcp://"))
        throw "toy: not a valid communicator type";
    return new TcpToy(
        static_cast<std::uint16_t>(std::atoi(communicator.c_str() + communicator.rfind(':') + 1)));
}

std::string toy_communicator(const char *file)
{
    std::ifstream in(file);
    const std::string key = "communicator : ";
    for (std::string line; std::getline(in, line);) {
        if (!line.compare(0, key.size(), key))
            return line.substr(key.size());
    }
    throw "toy: no communicator";
}
