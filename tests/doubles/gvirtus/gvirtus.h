// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The interface that GVirtuS (G2 to G5) shows a communicator, and the calls that its front end and
// back end make on one, for tests: written from the facts of its binary interface.
#ifndef TESTS_COMMUNICATOR_GVIRTUS_H
#define TESTS_COMMUNICATOR_GVIRTUS_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gvirtus::communicators
{

class Endpoint
{
  public:
    virtual Endpoint &suite(const std::string &text)
    {
        suite_field = text;
        return *this;
    }
    virtual const std::string &suite() const { return suite_field; }
    virtual Endpoint &protocol(const std::string &text)
    {
        protocol_field = text;
        return *this;
    }
    virtual const std::string &protocol() const { return protocol_field; }
    virtual const std::string to_string() const { return suite_field + protocol_field; }

  protected:
    std::string suite_field;
    std::string protocol_field;
};

class AddressEndpoint final : public Endpoint
{
  public:
    std::string address;
    std::uint16_t port = 0;
};

class Communicator
{
  public:
    virtual ~Communicator() = default;
    virtual void Serve() = 0;
    virtual const Communicator *Accept() const = 0;
    virtual void Connect() = 0;
    virtual std::size_t Read(char *buffer, std::size_t size) = 0;
    virtual std::size_t Write(const char *buffer, std::size_t size) = 0;
    virtual void Sync() = 0;
    virtual void Close() = 0;
    virtual std::string to_string() = 0;
    virtual void run() = 0;
};

} // namespace gvirtus::communicators

using gvirtus::communicators::Communicator;
// (vector::insert makes gcc 12 warn of overflows that are none.)
void append(std::vector<char> *to, const void *from, std::size_t n);

using Create = std::shared_ptr<Communicator> (*)(std::shared_ptr<gvirtus::communicators::Endpoint>);

// Loads a plugin as GVirtuS does (RTLD_LAZY, local) and calls create_communicator.
Create load_plugin(const char *file);
std::shared_ptr<Communicator> make_communicator(Create create, const std::string &suite,
                                                const std::string &protocol,
                                                const std::string &address, std::uint16_t port);

// One remote call of the front end, in its very sequence of calls on the communicator. Before each
// of those calls, `step` is counted down and at 0 the process kills itself.
class FrontEnd
{
  public:
    explicit FrontEnd(Communicator *communicator) : over(communicator) {}
    // The exit code; `out` gets the reply's buffer.
    int call(const char *name, const std::vector<char> &in, std::vector<char> *out);
    int copy_to(std::uint64_t device, const void *from, std::uint64_t n);
    int copy_from(std::uint64_t device, void *to, std::uint64_t n);
    // Bytes of heap that the back end has; 0 where a sanitizer keeps the heap.
    std::uint64_t heap_in_use();

    int die_at_step = -1;

  private:
    void step();
    Communicator *over;
};

// What the back end does in its forked child: Serve, then a detached thread a connection. "Device
// memory" is 64 MiB of host memory a connection. Never returns.
[[noreturn]] void back_end_child(std::shared_ptr<Communicator> listening);

constexpr std::uint64_t device_bytes = 64u << 20;

#endif
