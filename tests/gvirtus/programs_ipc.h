// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Programs that each have a process of the back end, and what they share with each other.
#ifndef TESTS_GVIRTUS_PROGRAMS_IPC_H
#define TESTS_GVIRTUS_PROGRAMS_IPC_H

#include "tests/gvirtus/programs_scene.h"

#include <cstring>
#include <list>
#include <sys/socket.h>

namespace programs_ipc
{

constexpr std::size_t bytes_shared = 100000;
constexpr int bad_value = 1, no_memory = 2, no_handle = 400, not_ready = 600, os_failed = 304;
constexpr std::uint64_t differ = 256; // Program::reads(): bytes that are not all the same
constexpr unsigned interprocess = 6;  // an event's flags: for other processes, and without timing
constexpr char memory_kind = 0, event_kind = 1, pool_kind = 2;

// ------------------------------------------------ a communicator that is another process's

struct Order {
    char what; // W: write the n bytes that follow; R: read n bytes; S: Sync
    std::uint64_t n;
};

inline bool move_all(int socket, void *bytes, std::size_t n, bool send)
{
    auto *at = static_cast<char *>(bytes);
    while (n) {
        const ssize_t moved = send ? ::send(socket, at, n, MSG_NOSIGNAL) : read(socket, at, n);
        if (moved <= 0)
            return false;
        at += moved;
        n -= static_cast<std::size_t>(moved);
    }
    return true;
}

class Forwarded : public Communicator
{
  public:
    int socket = -1;
    std::size_t Read(char *buffer, std::size_t size) override
    {
        std::uint64_t n = 0;
        return order('R', size) && move_all(socket, &n, sizeof(n), false) && n <= size &&
                       move_all(socket, buffer, n, false)
                   ? n
                   : 0;
    }
    std::size_t Write(const char *buffer, std::size_t size) override
    {
        std::vector<char> bytes(buffer, buffer + size);
        return order('W', size) && move_all(socket, bytes.data(), size, true) ? size : 0;
    }
    void Sync() override { order('S', 0); }
    void Serve() override {}
    const Communicator *Accept() const override { return nullptr; }
    void Connect() override {}
    void Close() override {}
    std::string to_string() override { return "forwarded"; }
    void run() override {}

  private:
    bool order(char what, std::uint64_t n)
    {
        Order order{what, n};
        return move_all(socket, &order, sizeof(order), true);
    }
};

// Runs in the other process, until the other end of the socket is closed.
inline void forward(int socket, Communicator *over)
{
    std::list<std::vector<char>> written; // kept until the reply, as GVirtuS keeps its buffers
    for (Order order; move_all(socket, &order, sizeof(order), false);) {
        std::vector<char> bytes(order.n);
        if (order.what == 'S') {
            over->Sync();
        } else if (order.what == 'W') {
            if (!move_all(socket, bytes.data(), bytes.size(), false))
                return;
            written.push_back(std::move(bytes));
            over->Write(written.back().data(), written.back().size());
        } else {
            std::uint64_t n = over->Read(bytes.data(), bytes.size());
            written.clear();
            move_all(socket, &n, sizeof(n), true);
            move_all(socket, bytes.data(), n, true);
        }
    }
}

// For a forked child. It does not call exit(3), where LeakSanitizer would report what its parent
// has.
[[noreturn]] inline void serve_orders(int socket, std::uint16_t port, const std::string &options)
{
    auto over = connected(port, options);
    forward(socket, over.get());
    over.reset();
    std::_Exit(0);
}

// ------------------------------------------------------------------------------- programs

using Handle = std::vector<char>;

// A client's process, and the connection by which this process makes its calls.
struct One {
    Forwarded over;
    Remote remote{&over};
    int theirs = -1; // the socket's other end

    One()
    {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
            std::abort();
        over.socket = ends[0];
        theirs = ends[1];
    }
    ~One()
    {
        close(over.socket);
        close(theirs);
    }
    One(const One &) = delete;
    One &operator=(const One &) = delete;
    void end() const { shutdown(over.socket, SHUT_RDWR); }

    std::uint64_t malloc() { return (remote.get_last_error(), remote.malloc(bytes_shared)); }
    std::uint64_t event()
    {
        Body flags;
        std::uint64_t made = 0;
        flags.put(interprocess);
        if (!remote.call("cudaEventCreateWithFlags", flags) && remote.out.size() == 16)
            std::memcpy(&made, remote.out.data() + 8, 8);
        return made;
    }
    int fill(std::uint64_t memory, unsigned char byte)
    {
        const std::vector<char> bytes(bytes_shared, static_cast<char>(byte));
        return remote.to_device(memory, bytes.data(), bytes.size());
    }
    // The byte that all bytes of the memory are; or 1000 + the error.
    std::uint64_t reads(std::uint64_t memory)
    {
        std::vector<char> got(bytes_shared, 99);
        const int code = remote.from_device(got.data(), memory, got.size());
        const bool same = got == std::vector<char>(bytes_shared, got[0]);
        return code   ? 1000u + static_cast<unsigned>(code)
               : same ? static_cast<unsigned char>(got[0])
                      : differ;
    }
    // Empty: it has failed.
    Handle handle(unsigned request, std::uint64_t of)
    {
        const int code = remote.call("ibxRuntime", number(request).u64(of));
        return !code && remote.out.size() == 64 ? remote.out : Handle();
    }
    int open(unsigned request, const Handle &handle, std::uint64_t *opened = nullptr)
    {
        Body body = number(request);
        append(&body.bytes, handle.data(), handle.size());
        const int code = remote.call("ibxRuntime", body);
        if (!code && opened && remote.out.size() >= 8)
            std::memcpy(opened, remote.out.data(), 8);
        return code;
    }
    int open_memory(const Handle &handle, std::uint64_t *opened = nullptr)
    {
        return open(IBX_EXT_IPC_OPEN_MEMORY, handle, opened);
    }
    int close_it(char kind, std::uint64_t value)
    {
        Body body = number(IBX_EXT_IPC_CLOSE);
        body.put(kind);
        return remote.call("ibxRuntime", body.u64(value));
    }
    int launch(std::uint64_t stream, std::uint64_t to, std::uint64_t from)
    {
        return remote.call("cudaLaunchKernel",
                           kernel(IBX_DOUBLE_KERNEL, 32, stream, to, from, bytes_shared));
    }
    // Makes a pool that other processes may open; `handles` 0: that they may not open.
    std::uint64_t pool(char handles = 1)
    {
        Body create = number(IBX_EXT_POOL_CREATE);
        create.i32(0).u64(0).put(static_cast<std::uint16_t>(0));
        create.put(handles);
        return remote.address("ibxRuntime", create);
    }
    int allocate(std::uint64_t in_pool, std::uint64_t *memory)
    {
        const Body body = number(IBX_EXT_MALLOC_FROM_POOL).u64(bytes_shared).u64(in_pool).u64(0);
        const int code = remote.call("ibxRuntime", body);
        if (!code)
            std::memcpy(memory, remote.out.data(), 8);
        return code;
    }
    int open_pointer(std::uint64_t pool, const Handle &handle, std::uint64_t *opened = nullptr)
    {
        Body body = number(IBX_EXT_IPC_OPEN_POINTER).u64(pool);
        append(&body.bytes, handle.data(), handle.size());
        const int code = remote.call("ibxRuntime", body);
        if (!code && opened)
            std::memcpy(opened, remote.out.data(), 8);
        return code;
    }
    int with_event(const char *name, std::uint64_t first, std::uint64_t second)
    {
        return remote.call(name, Body().u64(first).u64(second));
    }
};

// A program, and a process that it has forked.
struct Program : One {
    One child;
    pid_t pid;

    explicit Program(const BackEnd &back, const std::string &options = "")
        : pid(spawn([&]() -> int { serve(back.port, options); }))
    {
    }
    // Forks before it has threads, since with threads AddressSanitizer's allocator may stay locked
    // in the child; but after a first connection, which makes this process a program.
    [[noreturn]] void serve(std::uint16_t port, const std::string &options)
    {
        close(over.socket);
        close(child.over.socket);
        auto first = connected(port, of_another_program + options);
        const pid_t its = spawn([&]() -> int { serve_orders(child.theirs, port, options); });
        close(child.theirs);
        child.theirs = -1;
        auto mine = connected(port, options);
        first.reset();
        forward(theirs, mine.get());
        until_exit.push_back(std::move(mine));
        result_of(its);
        std::exit(0);
    }
    ~Program() { end(); }
    void end(int signal = 0)
    {
        if (pid < 0)
            return;
        if (signal)
            kill(pid, signal); // its forked process dies with it
        One::end();
        child.end();
        result_of(pid);
        pid = -1;
    }
};

} // namespace programs_ipc

#endif
