// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/doubles/gvirtus/gvirtus.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <new>
#include <stdexcept>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

using namespace gvirtus::communicators;

Create load_plugin(const char *file)
{
    void *library = dlopen(file, RTLD_LAZY);
    void *symbol = library ? dlsym(library, "create_communicator") : nullptr;
    if (!symbol) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(1);
    }
    return reinterpret_cast<Create>(symbol);
}

std::shared_ptr<Communicator> make_communicator(Create create, const std::string &suite,
                                                const std::string &protocol,
                                                const std::string &address, std::uint16_t port)
{
    auto endpoint = std::make_shared<AddressEndpoint>();
    endpoint->suite(suite).protocol(protocol);
    endpoint->address = address;
    endpoint->port = port;
    return create(endpoint);
}

/* ------------------------------------------------------------------- front end */

static constexpr std::size_t longest_reply = 4ull << 30;

void FrontEnd::step()
{
    if (die_at_step >= 0 && die_at_step-- == 0)
        raise(SIGKILL);
}

int FrontEnd::call(const char *name, const Body &body)
{
    std::size_t length = body.bytes.size();
    step();
    over->Write(name, std::strlen(name) + 1);
    step();
    over->Write(reinterpret_cast<char *>(&length), sizeof(length));
    step();
    over->Write(body.bytes.data(), length);
    step();
    over->Sync();
    over->Sync();
    step();
    exit_code = -1;
    over->Read(reinterpret_cast<char *>(&exit_code), sizeof(exit_code));
    step();
    if (timed)
        over->Read(reinterpret_cast<char *>(&seconds), sizeof(seconds));
    step();
    length = 0;
    over->Read(reinterpret_cast<char *>(&length), sizeof(length));
    step();
    if (length > longest_reply) // where operator new throws this, a sanitizer's ends the process
        throw std::bad_alloc();
    out.resize(length);
    if (length)
        over->Read(out.data(), length);
    return exit_code;
}

int FrontEnd::take_out(int rc, void *to, std::size_t n)
{
    std::uint64_t said = 0;
    if (rc)
        return rc;
    if (out.size() != n + 8)
        return -2;
    std::memcpy(&said, out.data(), 8);
    if (n)
        std::memcpy(to, out.data() + 8, n);
    return said == n ? 0 : -3;
}

void append(std::vector<char> *to, const void *from, std::size_t n)
{
    const std::size_t at = to->size();
    if (to->capacity() < at + n) // with room for the few numbers behind a payload
        to->reserve(std::max(2 * to->capacity(), at + n + 64));
    to->resize(at + n);
    if (n)
        std::memcpy(to->data() + at, from, n);
}

/* -------------------------------------------------------------------- back end */

void (*take_result)(struct gvirtus_result *) = nullptr;

// A malformed request would crash a real back end. Here it gets exit code 1.
static int execute(const std::string &name, const std::vector<char> &in, char *device, Body *out)
{
    std::int32_t kind = 0;
    std::uint64_t n = 0, at = 0;
    if (name == "throws")
        throw std::runtime_error("thrown by a handler");
    if (name == "returns-nothing")
        take_result(nullptr);
    if (name == "heap") {
        std::uint64_t bytes = mallinfo2().uordblks;
        out->host(&bytes, sizeof(bytes));
        return 0;
    }
    if (name != "cudaMemcpy" || in.size() < 20)
        return 1;
    std::memcpy(&kind, in.data() + in.size() - 4, 4);
    std::memcpy(&n, in.data() + in.size() - 12, 8);
    std::memcpy(&at, in.data() + (kind == H2D ? 0 : 9), 8);
    if (at > device_bytes || n > device_bytes - at)
        return 11;
    if (kind == H2D && in.size() == n + 28) {
        std::memcpy(device + at, in.data() + 16, n);
        return 0;
    }
    if (kind != D2H)
        return 21;
    out->host(device + at, n);
    return 0;
}

static bool read_name(Communicator *client, std::string *name)
{
    name->clear();
    for (char c = 1; c;) {
        if (client->Read(&c, 1) != 1)
            return false;
        if (c)
            name->push_back(c);
    }
    return true;
}

// As GVirtuS: only a Read of a name can end the client's thread, and neither Close nor delete is
// ever called. With a request that is not complete GVirtuS would go on, and end every client: this
// function aborts, which does the same.
static void serve_client(Communicator *client, const std::function<Handler()> &make_handler,
                         bool timed)
{
    Handler handle = make_handler();
    std::vector<char> in;
    std::string name;
    while (read_name(client, &name)) {
        std::size_t length = 0;
        if (client->Read(reinterpret_cast<char *>(&length), sizeof(length)) != sizeof(length))
            std::abort();
        in.resize(length);
        if (client->Read(in.data(), length) != length)
            std::abort();
        Body out; // fresh for each call
        int exit_code = handle(name, in, &out);
        double seconds = 0;
        length = out.bytes.size();
        client->Write(reinterpret_cast<char *>(&exit_code), sizeof(exit_code));
        if (timed)
            client->Write(reinterpret_cast<char *>(&seconds), sizeof(seconds));
        client->Write(reinterpret_cast<char *>(&length), sizeof(length));
        if (length)
            client->Write(out.bytes.data(), length);
        client->Sync();
    }
}

void serve_clients(std::shared_ptr<Communicator> listening,
                   const std::function<Handler()> &make_handler, bool timed)
{
    listening->Serve();
    for (;;) {
        auto *client = const_cast<Communicator *>(listening->Accept());
        std::thread(serve_client, client, make_handler, timed).detach();
    }
}

void back_end_child(std::shared_ptr<Communicator> listening)
{
    if (listening->to_string() != "tcpcommunicator")
        std::_Exit(3);
    serve_clients(
        listening,
        []() -> Handler {
            // Mapped, so that pages to which no client copies are never touched. For memory of the
            // heap AddressSanitizer would write 8 MiB of shadow memory, when it is allocated and
            // when it is freed.
            void *pages = mmap(nullptr, device_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (pages == MAP_FAILED)
                throw std::bad_alloc();
            std::shared_ptr<char> device(static_cast<char *>(pages),
                                         [](char *all) { munmap(all, device_bytes); });
            return [device](const std::string &name, const std::vector<char> &in, Body *out) {
                return execute(name, in, device.get(), out);
            };
        },
        true);
}
