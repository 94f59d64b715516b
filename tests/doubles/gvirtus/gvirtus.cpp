// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/doubles/gvirtus/gvirtus.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
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

void FrontEnd::step()
{
    if (die_at_step >= 0 && die_at_step-- == 0)
        raise(SIGKILL);
}

int FrontEnd::call(const char *name, const std::vector<char> &in, std::vector<char> *out)
{
    std::size_t length = in.size();
    step();
    over->Write(name, std::strlen(name) + 1);
    step();
    over->Write(reinterpret_cast<char *>(&length), sizeof(length));
    step();
    over->Write(in.data(), length);
    step();
    over->Sync();
    over->Sync();
    step();
    int exit_code = -1;
    double seconds = 0;
    over->Read(reinterpret_cast<char *>(&exit_code), sizeof(exit_code));
    step();
    over->Read(reinterpret_cast<char *>(&seconds), sizeof(seconds));
    step();
    over->Read(reinterpret_cast<char *>(&length), sizeof(length));
    step();
    out->resize(length);
    if (length)
        over->Read(out->data(), length);
    return exit_code;
}

void append(std::vector<char> *to, const void *from, std::size_t n)
{
    const std::size_t at = to->size();
    to->resize(at + n);
    if (n)
        std::memcpy(to->data() + at, from, n);
}

template <typename T> static void put(std::vector<char> *to, const T &value)
{
    append(to, &value, sizeof(value));
}

int FrontEnd::copy_to(std::uint64_t device, const void *from, std::uint64_t n)
{
    std::vector<char> in, out;
    put(&in, device);
    put(&in, n);
    append(&in, from, n);
    put(&in, n);
    put(&in, std::int32_t{1});
    return call("cudaMemcpy", in, &out);
}

int FrontEnd::copy_from(std::uint64_t device, void *to, std::uint64_t n)
{
    std::vector<char> in, out;
    put(&in, std::uint64_t{1});
    put(&in, '\0');
    put(&in, device);
    put(&in, n);
    put(&in, std::int32_t{2});
    int rc = call("cudaMemcpy", in, &out);
    if (!rc && out.size() == n + 8)
        std::memcpy(to, out.data() + 8, n);
    return rc || out.size() == n + 8 ? rc : -2;
}

std::uint64_t FrontEnd::heap_in_use()
{
    std::vector<char> out;
    std::uint64_t bytes = 0;
    if (!call("heap", {}, &out) && out.size() == sizeof(bytes))
        std::memcpy(&bytes, out.data(), sizeof(bytes));
    return bytes;
}

/* -------------------------------------------------------------------- back end */

// The reply to one request; a malformed one would crash a real back end, here it says 1.
static int execute(const std::string &name, const std::vector<char> &in, char *device,
                   std::vector<char> *out)
{
    std::int32_t kind = 0;
    std::uint64_t n = 0, at = 0;
    if (name == "heap") {
        put(out, static_cast<std::uint64_t>(mallinfo2().uordblks));
        return 0;
    }
    if (name != "cudaMemcpy" || in.size() < 20)
        return 1;
    std::memcpy(&kind, in.data() + in.size() - 4, 4);
    std::memcpy(&n, in.data() + in.size() - 12, 8);
    std::memcpy(&at, in.data() + (kind == 1 ? 0 : 9), 8);
    if (at > device_bytes || n > device_bytes - at)
        return 11;
    if (kind == 1 && in.size() == n + 28) {
        std::memcpy(device + at, in.data() + 16, n);
        return 0;
    }
    if (kind != 2)
        return 21;
    put(out, n);
    out->insert(out->end(), device + at, device + at + n);
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

// As GVirtuS: only the name's Read ends it, and neither Close nor delete is ever called. Where
// GVirtuS would go on with a request of which it has not all, and take every client with it, this
// one does.
static void serve_client(Communicator *client)
{
    // Pages that no client copies to are never touched.
    std::unique_ptr<char, void (*)(void *)> device(
        static_cast<char *>(std::calloc(1, device_bytes)), std::free);
    std::vector<char> in;
    std::string name;
    while (read_name(client, &name)) {
        std::size_t length = 0;
        if (client->Read(reinterpret_cast<char *>(&length), sizeof(length)) != sizeof(length))
            std::abort();
        in.resize(length);
        if (client->Read(in.data(), length) != length)
            std::abort();
        std::vector<char> out; // fresh for each call
        int exit_code = execute(name, in, device.get(), &out);
        double seconds = 0;
        length = out.size();
        client->Write(reinterpret_cast<char *>(&exit_code), sizeof(exit_code));
        client->Write(reinterpret_cast<char *>(&seconds), sizeof(seconds));
        client->Write(reinterpret_cast<char *>(&length), sizeof(length));
        if (length)
            client->Write(out.data(), length);
        client->Sync();
    }
}

void back_end_child(std::shared_ptr<Communicator> listening)
{
    if (listening->to_string() != "tcpcommunicator")
        std::_Exit(3);
    listening->Serve();
    for (;;) {
        auto *client = const_cast<Communicator *>(listening->Accept());
        std::thread(serve_client, client).detach();
    }
}
