// SPDX-License-Identifier: LGPL-2.1-or-later
// A small program of the tests with the binary interface of classic GVirtuS (G1): the class as its
// front ends and back ends know it, with a stream over TCP as the only communicator. It is built
// without any part of ibx; tests preload libibx-gvirtus-classic.so into it.
#ifndef IBX_TESTS_CLASSIC_TOY_H
#define IBX_TESTS_CLASSIC_TOY_H

#include <cstddef>
#include <string>

class Communicator
{
  public:
    static Communicator *Get(const std::string &communicator);
    virtual ~Communicator();
    virtual void Serve() = 0;
    virtual const Communicator *Accept() const = 0;
    virtual void Connect() = 0;
    virtual std::size_t Read(char *buffer, std::size_t size) = 0;
    virtual std::size_t Write(const char *buffer, std::size_t size) = 0;
    virtual void Sync() = 0;
    virtual void Close() = 0;
};

// The value of `communicator` in a properties file.
std::string toy_communicator(const char *file);

#endif
