// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The interface that GVirtuS (G2 to G5) shows to a communicator, and the calls that its front end
// and back end make on one. For tests; written from the facts of the binary interface.
#ifndef TESTS_COMMUNICATOR_GVIRTUS_H
#define TESTS_COMMUNICATOR_GVIRTUS_H

#include <cstdint>
#include <functional>
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
using Create = std::shared_ptr<Communicator> (*)(std::shared_ptr<gvirtus::communicators::Endpoint>);

// Loads a plugin as GVirtuS does (RTLD_LAZY, local) and calls create_communicator.
Create load_plugin(const char *file);
std::shared_ptr<Communicator> make_communicator(Create create, const std::string &suite,
                                                const std::string &protocol,
                                                const std::string &address, std::uint16_t port);

// (vector::insert makes gcc 12 warn of overflows that are none.)
void append(std::vector<char> *to, const void *from, std::size_t n);

// A body, put together as GVirtuS's Buffer does.
struct Body {
    std::vector<char> bytes;
    template <typename T> Body &put(const T &value)
    {
        append(&bytes, &value, sizeof(value));
        return *this;
    }
    Body &u64(std::uint64_t value) { return put(value); }
    Body &i32(std::int32_t value) { return put(value); }
    // Buffer::AddString().
    Body &string(const std::string &text)
    {
        return u64(text.size() + 1).host(text.c_str(), text.size() + 1);
    }
    Body &host(const void *from, std::size_t n)
    {
        u64(n);
        append(&bytes, from, n);
        return *this;
    }
};

enum { H2D = 1, D2H = 2, D2D = 3 };

// The front end of one connection. For a call it calls the communicator exactly as GVirtuS does.
// Before each of these calls `die_at_step` is counted down; at 0 the process kills itself.
class FrontEnd
{
  public:
    // `timed`: replies carry seconds, as from G2 on.
    explicit FrontEnd(Communicator *communicator, bool with_seconds = true)
        : over(communicator), timed(with_seconds)
    {
    }
    // The exit code; `out` gets the reply's buffer.
    int call(const char *name, const Body &body);
    std::vector<char> out;
    double seconds = 0;
    int exit_code = 0; // of the last one

    int to_device(std::uint64_t to, const void *from, std::size_t n)
    {
        return call("cudaMemcpy", Body().u64(to).host(from, n).u64(n).i32(H2D));
    }
    int from_device(void *to, std::uint64_t from, std::size_t n)
    {
        return take_out(call("cudaMemcpy", Body().host("", 1).u64(from).u64(n).i32(D2H)), to, n);
    }
    // Bytes of heap that the back end has; 0 where a sanitizer keeps the heap.
    std::uint64_t heap_in_use() { return value("heap", Body()); }

    int die_at_step = -1;

  protected:
    // The payload of a reply: n, and n bytes.
    int take_out(int rc, void *to, std::size_t n);
    std::uint64_t value(const char *name, const Body &body, std::uint64_t otherwise = 0)
    {
        std::uint64_t got = 0;
        return take_out(call(name, body), &got, 8) ? otherwise : got;
    }

  private:
    void step();
    Communicator *over;
    bool timed;
};

// Runs one request; the exit code.
using Handler = std::function<int(const std::string &name, const std::vector<char> &in, Body *out)>;

// results.c, in a library of its own: takes what a handler has returned; null: it has returned
// nothing.
struct gvirtus_result;
extern "C" void gvirtus_take_result(struct gvirtus_result *result);
// ... to be set for the request "returns-nothing".
extern void (*take_result)(struct gvirtus_result *result);

// What the back end does in its forked child: it calls Serve, and then makes a detached thread for
// each connection, which has a handler of its own. Never returns.
[[noreturn]] void serve_clients(std::shared_ptr<Communicator> listening,
                                const std::function<Handler()> &make_handler, bool timed);
// The same, with handlers whose "device memory" is 64 MiB of host memory for each connection.
[[noreturn]] void back_end_child(std::shared_ptr<Communicator> listening);

constexpr std::uint64_t device_bytes = 64u << 20;

#endif
