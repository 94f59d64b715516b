// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Variables of the device: the preload has the back end find them by their names.
#include "tests/fixtures/denied_call.h"
#include "tests/gvirtus/application.h"
#include "tests/gvirtus/graph_calls.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <vector>
#include <unistd.h>

namespace
{

constexpr std::size_t page = 4096;

int to_symbol(const void *symbol, const void *from, std::size_t n, std::size_t offset = 0,
              int kind = H2D)
{
    return preloaded<int(const void *, const void *, std::size_t, std::size_t, int)>(
        "cudaMemcpyToSymbol")(symbol, from, n, offset, kind);
}

int from_symbol(void *to, const void *symbol, std::size_t n, std::size_t offset = 0, int kind = D2H)
{
    return preloaded<int(void *, const void *, std::size_t, std::size_t, int)>(
        "cudaMemcpyFromSymbol")(to, symbol, n, offset, kind);
}

int address_of(char **address, const void *symbol)
{
    return preloaded<int(char **, const void *)>("cudaGetSymbolAddress")(address, symbol);
}

// As code of nvcc's does it: a module, a kernel of it (or another address), variables.
void register_kernel(void **module, const void *kernel)
{
    preloaded<void(void **, const void *, char *, const char *, int, void *, void *, void *, void *,
                   int *)>("__cudaRegisterFunction")(module, kernel, nullptr, "kernel", -1, nullptr,
                                                     nullptr, nullptr, nullptr, nullptr);
}

void register_variable(void **module, char *symbol, const char *name)
{
    preloaded<void(void **, char *, char *, const char *, int, std::size_t, int, int)>(
        "__cudaRegisterVar")(module, symbol, symbol, name, 0, 1, 0, 0);
}

void register_managed(void **module, void *pointer, const char *name, std::size_t n)
{
    preloaded<void(void **, void *, char *, const char *, int, std::size_t, int, int)>(
        "__cudaRegisterManagedVar")(module, pointer, nullptr, name, 0, n, 0, 0);
}

// Of as many bytes as its module has for it.
void register_managed(void **module, void *pointer, const char *name)
{
    register_managed(module, pointer, name, std::strtoul(std::strrchr(name, '.') + 1, nullptr, 10));
}

void unload(void **module)
{
    preloaded<void(void **)>("__cudaUnregisterFatBinary")(module);
}

bool plain()
{
    static void *module[1], *other[1];
    static char a[1], b[1], c[1], stranger[1], lonely[1];
    std::vector<char> there(4000), back(4000);
    char *at = nullptr;
    std::size_t n = 0;
    register_variable(module, a, "v0.0.4000");
    register_variable(module, b, "v0.4100.100");
    register_variable(module, c, "v1.16.8");
    register_kernel(module, &stub_kernel);
    register_variable(other, lonely, "v1.100.8");
    auto *name_of = preloaded<int(const char **, const void *)>("cudaFuncGetName");
    const char *name = nullptr;
    REQUIRE(name_of(&name, &stub_kernel) == 0 && !std::strcmp(name, "kernel"));
    REQUIRE(fails(name_of(nullptr, &stub_kernel), 1) && fails(name_of(&name, &n), 400));
    REQUIRE(fails(name_of(&name, nullptr), 98));
    // Several variables: each has its own bytes.
    random_fill(there.data(), there.size(), 1);
    REQUIRE(to_symbol(a, there.data(), 4000) == 0);
    REQUIRE(to_symbol(b, there.data() + 7, 90, 10, DEFAULT) == 0);
    REQUIRE(to_symbol(c, there.data() + 50, 8) == 0);
    REQUIRE(from_symbol(back.data(), a, 4000) == 0 && back == there);
    REQUIRE(from_symbol(back.data(), b, 80, 20, DEFAULT) == 0);
    REQUIRE(!std::memcmp(back.data(), there.data() + 17, 80));
    REQUIRE(from_symbol(back.data(), c, 8) == 0);
    REQUIRE(!std::memcmp(back.data(), there.data() + 50, 8));
    REQUIRE(address_of(&at, b) == 0 && device_has(at + 10, there.data() + 7, 90));
    REQUIRE(preloaded<int(std::size_t *, const void *)>("cudaGetSymbolSize")(&n, b) == 0);
    REQUIRE(n == 100);
    // Within the device, and in a stream.
    void *stream = nullptr;
    using Async = int(const void *, const void *, std::size_t, std::size_t, int, void *);
    auto *async = preloaded<Async>("cudaMemcpyToSymbolAsync");
    REQUIRE(to_symbol(b, at + 10, 8, 30, D2D) == 0 && cudaDeviceSynchronize() == 0);
    REQUIRE(device_has(at + 30, there.data() + 7, 8) && cudaStreamCreate(&stream) == 0);
    REQUIRE(async(a, there.data() + 9, 50, 1, H2D, stream) == 0);
    REQUIRE(cudaStreamSynchronize(stream) == 0 && from_symbol(back.data(), a, 50, 1) == 0);
    REQUIRE(!std::memcmp(back.data(), there.data() + 9, 50));
    // What is wrong.
    REQUIRE(fails(to_symbol(b, there.data(), 101), 1) &&
            fails(to_symbol(b, back.data(), 1, 100), 1));
    REQUIRE(fails(from_symbol(back.data(), c, 1, 8), 1));
    REQUIRE(fails(to_symbol(a, there.data(), 1, 0, D2H), 21));
    REQUIRE(fails(from_symbol(back.data(), a, 1, 0, H2D), 21));
    const std::uint64_t answered_before = stub_remote()->handled();
    REQUIRE(fails(to_symbol(stranger, there.data(), 1), 13)); // GVirtuS is not asked
    REQUIRE(stub_remote()->handled() == answered_before && to_symbol(lonely, there.data(), 1) != 0);
    cudaGetLastError();
    // Another module may come to lie there, with another variable under that address.
    unload(module);
    register_kernel(module, &stub_kernel);
    register_variable(module, a, "v2.0.16");
    REQUIRE(fails(to_symbol(a, there.data(), 17), 1) && to_symbol(a, there.data(), 16) == 0);
    REQUIRE(device_has(at - 4100, there.data(), 1)); // where it was before
    register_variable(module, c, "no.such");
    REQUIRE(fails(to_symbol(c, there.data(), 1), 13));
    unload(module);
    return true;
}

// Whether the back end is told that the module is no more.
bool goes(void **module)
{
    const std::uint64_t before = stub_unloads();
    unload(module);
    return stub_unloads() == before + 1;
}

// Only the modules that a child may still use stay at the back end.
bool unloads_and_forks()
{
    static void *modules[5][1];
    int hold[2];
    char byte;
    for (unsigned i = 0; i < 4; i++)
        register_kernel(modules[i], &stub_kernel);
    REQUIRE(pipe(hold) == 0 && goes(modules[0]));
    const pid_t child = fork();
    if (!child) {
        close(hold[1]);
        const bool parents = !goes(modules[1]);
        register_kernel(modules[4], &stub_kernel);
        const bool own = goes(modules[4]);
        _exit(read(hold[0], &byte, 1) || !parents || !own);
    }
    register_kernel(modules[4], &stub_kernel);
    const bool kept = !goes(modules[2]) && goes(modules[4]);
    close(hold[0]);
    close(hold[1]);
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
    return HOLDS(kept && goes(modules[3]));
}

// Waited for by nobody, or gone for good.
bool ended(pid_t process)
{
    const char state = thread_state(process, process);
    return !state || state == 'Z';
}

// Modules that a grandchild may use stay, too, though its parent has ended, as a daemon's does.
bool unloads_and_grandchildren()
{
    static void *modules[2][1];
    int hold[2], born[2];
    char byte;
    register_kernel(modules[0], &stub_kernel);
    REQUIRE(pipe(hold) == 0 && pipe(born) == 0);
    const pid_t child = fork();
    if (!child) {
        close(hold[1]);
        const pid_t grandchild = fork();
        if (!grandchild)
            _exit(read(hold[0], &byte, 1) < 0);
        _exit(write(born[1], &grandchild, sizeof(grandchild)) != sizeof(grandchild));
    }
    int status = 1;
    pid_t grandchild;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
    REQUIRE(read(born[0], &grandchild, sizeof(grandchild)) == sizeof(grandchild));
    register_kernel(modules[1], &stub_kernel);
    const bool kept = !goes(modules[0]), own = goes(modules[1]);
    for (int fd : {hold[0], hold[1], born[0], born[1]})
        close(fd);
    while (!ended(grandchild)) // or the next step finds the module in use, too
        usleep(100);
    return HOLDS(kept && own);
}

// A program whose grandchild ends.
bool unloads_beside_zombie(int pids[2], const int ends[2])
{
    static void *module[1];
    pid_t zombie;
    char byte;
    register_kernel(module, &stub_kernel);
    const pid_t child = fork();
    if (!child) {
        close(ends[1]);
        zombie = fork();
        if (!zombie)
            _exit(read(ends[0], &byte, 1) != 0);
        _exit(write(pids[1], &zombie, sizeof(zombie)) != sizeof(zombie));
    }
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
    REQUIRE(read(pids[0], &zombie, sizeof(zombie)) == sizeof(zombie));
    close(ends[1]);
    while (thread_state(zombie, zombie) != 'Z')
        usleep(100);
    return HOLDS(goes(module));
}

// A grandchild that has ended uses nothing, also if no init waits for it, as in a container.
bool unloads_and_zombies()
{
    int ends[2], pids[2], status = 1;
    REQUIRE(pipe(ends) == 0 && pipe(pids) == 0);
    const pid_t init = fork();
    if (!init) {
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        const pid_t program = fork();
        if (!program)
            _exit(!unloads_beside_zombie(pids, ends));
        close(ends[1]);
        _exit(waitpid(program, &status, 0) != program || status);
    }
    for (int fd : {ends[0], ends[1], pids[0], pids[1]})
        close(fd);
    return HOLDS(waitpid(init, &status, 0) == init && status == 0);
}

// If the fork of a grandchild has failed, it uses nothing.
bool unloads_and_failed_forks()
{
    const pid_t child = fork();
    if (!child) {
        static void *module[1];
        register_kernel(module, &stub_kernel);
        const bool failed = deny_call(SYS_clone, EAGAIN) && fork() == -1 && errno == EAGAIN;
        _exit(!(failed && goes(module)));
    }
    int status = 1;
    return HOLDS(waitpid(child, &status, 0) == child && status == 0);
}

// Modules that a child registers by `first` and again by `second`, and whether it gives them back.
bool registers(void **own, void **shared, const std::string &expected, bool (*first)(),
               bool (*second)())
{
    const pid_t child = fork();
    if (!child) {
        const std::string before = stub_registered();
        const bool none = cudaGetLastError() == 0 && before == stub_registered();
        const bool good = first() && stub_registered() == before + expected && second() &&
                          stub_registered() == before + expected;
        const std::uint64_t unloads = stub_unloads();
        unload(shared);
        const bool kept = stub_unloads() == unloads;
        unload(own);
        _exit(!(none && good && kept && stub_unloads() == unloads + 1));
    }
    int status = 1;
    return waitpid(child, &status, 0) == child && !status;
}

char own_variable[1];

bool uses_variable()
{
    return to_symbol(own_variable, "12345678", 8) == 0;
}

bool uses_kernel()
{
    static char *memory = device_memory();
    return stub_launch(memory + 8, memory, 8, nullptr) == 0;
}

} // namespace

// Natively each child has variables of its own. Modules without any are the same for all. In a
// process of its own, since from then on the back end takes only kernels that it knows.
bool variables_in_children()
{
    static std::uint64_t wrappers[2][8];
    static const char own_kernel[1] = {};
    auto *add = preloaded<void **(void *)>("__cudaRegisterFatBinary");
    stub_registers(64u << 10); // the back end knows these
    void **module = add(wrappers[0]), **other = add(wrappers[1]);
    REQUIRE(module && other);
    register_kernel(other, own_kernel); // stub_kernel has another name at the back end
    register_kernel(other, &stub_kernel);
    register_kernel(module, &stub_kernel);
    register_variable(module, own_variable, "v5.0.64");
    REQUIRE(uses_variable());
    const std::string again = "Mk(kernel)v(v5.0.64,1)E";
    REQUIRE(registers(module, other, again, uses_variable, uses_kernel));
    REQUIRE(registers(module, other, again, uses_kernel, uses_variable));
    const pid_t child = fork(); // and those of a child
    if (!child)
        _exit(!(uses_kernel() && registers(module, other, again, uses_variable, uses_kernel)));
    int status = 1;
    REQUIRE(waitpid(child, &status, 0) == child && !status);
    const std::string before = stub_registered();
    REQUIRE(uses_variable() && uses_kernel() && stub_registered() == before);
    unload(module);
    unload(other);
    return true;
}

namespace
{

struct Variables {
    char *first, *second, *long_one;
};

void register_all(void **module, Variables *v)
{
    *v = {};
    register_kernel(module, &stub_kernel);
    register_managed(module, &v->second, "m3.5000.5000");
    register_managed(module, &v->first, "m3.4196.8");
    register_managed(module, &v->long_one, "l4.4096.300000");
}

// The variables of a second module: in the hole between two of the first module's, and from that
// one's last page on into others.
void register_beside(void **module, Variables *v)
{
    *v = {};
    register_kernel(module, &stub_kernel);
    register_managed(module, &v->first, "m3.4500.8");
    register_managed(module, &v->second, "m3.10100.9000");
}

// Another process, which has none of this one's managed memory.
bool another_writes(char *device, char mark)
{
    const std::string bytes(20, mark);
    const pid_t child = fork();
    if (!child)
        _exit(cudaMemcpy(device, bytes.c_str(), 20, H2D) || cudaDeviceSynchronize());
    int status = 0;
    return waitpid(child, &status, 0) == child && !status;
}

// A library that the program opens has its variables in the same pages as the program's. The first
// module may go before the library.
bool beside(void **module, Variables *v, char (*init)(void **), char *piece)
{
    static void *opened[1];
    static Variables w;
    auto *advise = preloaded<int(const void *, std::size_t, int, std::uint64_t)>("cudaMemAdvise");
    std::vector<char> bytes(9000);
    random_fill(bytes.data(), bytes.size(), 3);
    register_beside(opened, &w);
    v->first[1] = 'f'; // which the device does not have yet
    REQUIRE(another_writes(piece + 404, 'd') && init(opened) == 1);
    REQUIRE(w.first == piece + 404 && w.second == piece + 6004 && v->first[1] == 'f');
    REQUIRE(!std::memcmp(w.first, "dddddddd", 8));
    for (unsigned round = 0; round < 3; round++) {
        const char mark = static_cast<char>('0' + round);
        std::memcpy(w.second, bytes.data(), bytes.size());
        w.first[round] = v->first[round] = v->second[20] = mark;
        REQUIRE(another_writes(piece + 430, mark)); // beside both
        REQUIRE(stub_launch(v->second + 100, w.second + round, 4000, nullptr) == 0);
        REQUIRE(stub_launch(w.second + 5000, w.first, 8, nullptr) == 0);
        REQUIRE(!std::memcmp(v->second + 100, bytes.data() + round, 4000));
        REQUIRE(w.second[5000 + round] == mark && w.first[round] == mark);
        REQUIRE(v->first[round] == mark && v->second[20] == mark);
        REQUIRE(!std::memcmp(w.second, bytes.data(), 5000));
        REQUIRE(device_has(piece + 430, std::string(20, mark).c_str(), 20));
    }
    REQUIRE(advise(w.second, 9000, 1, 1) == 0 && advise(w.second, 9001, 1, 1) == 1);
    REQUIRE(cudaGetLastError() == 1);
    unload(module);
    w.first[0] = 'z';
    w.second[8000] = 'y';
    REQUIRE(stub_launch(w.second + 1, w.first, 1, nullptr) == 0 && w.second[1] == 'z');
    REQUIRE(w.second[8000] == 'y' && device_has(w.second + 8000, "y", 1));
    register_all(module, v);
    REQUIRE(init(module) == 1 && v->first == piece + 100 && v->first[2] == '2');
    unload(opened);
    v->first[3] = 'q';
    REQUIRE(stub_launch(v->second + 9, v->first + 3, 1, nullptr) == 0 && v->second[9] == 'q');
    return true;
}

// Before anything touches the variables they have the device's bytes; bytes beside them are not the
// variables'.
bool managed_variables()
{
    static void *module[1];
    static Variables v;
    auto *init = preloaded<char(void **)>("__cudaInitModule");
    std::vector<char> bytes(300000);
    char *piece = nullptr;
    random_fill(bytes.data(), bytes.size(), 2);
    register_all(module, &v);
    REQUIRE(address_of(&piece, &v.first) == 0);
    piece -= 100;
    REQUIRE(cudaMemcpy(piece, bytes.data(), 3 * page, H2D) == 0);
    REQUIRE(init(module) == 1 && v.first == piece + 100 && v.second == piece + 904 && v.long_one);
    REQUIRE(!std::memcmp(v.first, bytes.data() + 100, 8));
    REQUIRE(!std::memcmp(v.second, bytes.data() + 904, 5000));
    // Both sides write; bytes that others write beside them meanwhile stay.
    for (unsigned round = 0; round < 4; round++) {
        const char mark = static_cast<char>('A' + round);
        v.first[round] = mark;
        std::memset(v.second + 10, mark, 4900);
        std::memcpy(v.long_one, bytes.data(), bytes.size());
        REQUIRE(another_writes(piece + 50, mark) && another_writes(piece + 904 + 5000, mark));
        REQUIRE(another_writes(piece + 400, mark)); // between two of one page
        REQUIRE(stub_launch(v.second, v.first, 8, nullptr) == 0);
        REQUIRE(stub_launch(v.long_one + 200000, v.long_one + round, 999, nullptr) == 0);
        REQUIRE(v.second[round] == mark && v.second[10] == mark && v.first[round] == mark);
        REQUIRE(!std::memcmp(v.long_one + 200000, bytes.data() + round, 999));
        REQUIRE(device_has(piece + 50, std::string(20, mark).c_str(), 20));
        REQUIRE(device_has(piece + 904 + 5000, std::string(20, mark).c_str(), 20));
        REQUIRE(device_has(piece + 400, std::string(20, mark).c_str(), 20));
        REQUIRE(device_has(piece, bytes.data(), 50));
    }
    // A variable is managed memory that may not be freed.
    struct {
        int type, device;
        void *more[12];
    } is = {};
    auto *advise = preloaded<int(const void *, std::size_t, int, std::uint64_t)>("cudaMemAdvise");
    REQUIRE(preloaded<int(void *, const void *)>("cudaPointerGetAttributes")(&is, v.second) == 0);
    REQUIRE(is.type == 3 && cudaFree(v.second) != 0 && cudaFree(piece) != 0);
    cudaGetLastError();
    REQUIRE(advise(v.first, 8, 1, 1) == 0 && advise(piece, 8, 1, 1) == 1);
    REQUIRE(cudaGetLastError() == 1 && v.first[0] == 'A');
    std::size_t n = 0;
    REQUIRE(preloaded<int(std::size_t *, const void *)>("cudaGetSymbolSize")(&n, v.second) == 0);
    REQUIRE(n == 5000 && fails(to_symbol(v.first, "123456789", 9), 1));
    REQUIRE(beside(module, &v, init, piece));
    REQUIRE(to_symbol(v.first, "12345678", 8) == 0 && !std::memcmp(v.first, "12345678", 8));
    // After a reset the variables have what the host, or the device, has written last.
    REQUIRE(stub_launch(v.long_one, v.long_one + 777, 500, nullptr) == 0);
    std::memcpy(v.first, "abcdefgh", 8);
    REQUIRE(cudaDeviceReset() == 0 && !std::memcmp(v.first, "abcdefgh", 8));
    REQUIRE(!std::memcmp(v.long_one, v.long_one + 777, 500));
    REQUIRE(stub_launch(v.second, v.first, 8, nullptr) == 0);
    REQUIRE(!std::memcmp(v.second, "abcdefgh", 8) && to_symbol(v.first, "12345678", 8) == 0);
    // The module goes, and comes again.
    unload(module);
    register_all(module, &v);
    REQUIRE(init(module) == 1 && v.first == piece + 100 && !std::memcmp(v.first, "12345678", 8));
    return true;
}

// A module without a kernel: nothing says where its variables are. And a back end's variable that
// is shorter than the program's: what lies behind it is the program's, and stays where it is.
bool not_found()
{
    static void *modules[2][1];
    static char *pointers[2];
    auto *init = preloaded<char(void **)>("__cudaInitModule");
    register_managed(modules[0], &pointers[0], "m3.0.8");
    REQUIRE(init(modules[0]) == 1 && !pointers[0]);
    register_kernel(modules[1], &stub_kernel);
    register_managed(modules[1], &pointers[1], "m3.20480.8", 5000);
    REQUIRE(init(modules[1]) == 1 && !pointers[1] && cudaGetLastError() == 13);
    return true;
}

// Memory of a graph goes with it, which no call shows. A variable may be where it was: false if
// something else of the back end has come to be there.
bool is_where_graph_was(void **module, char *variable, char **at)
{
    void *node = nullptr;
    graph_calls::Graph graph;
    graph_calls::Allocation a = {};
    a.kind = a.location = 1;
    a.n = (1 << 20) - 2000; // as many pages as the double has for the variable
    using Add = int(void **, void *, void *const *, std::size_t, graph_calls::Allocation *);
    REQUIRE(preloaded<Add>("cudaGraphAddMemAllocNode")(&node, graph.handle, nullptr, 0, &a) == 0);
    REQUIRE(a.address && graph.destroy() == 0);
    register_variable(module, variable, "v5.1044576.4000");
    register_kernel(module, &stub_kernel);
    REQUIRE(address_of(at, variable) == 0);
    return *at == static_cast<char *>(a.address) + 1044576;
}

bool where_graph_was()
{
    static void *modules[8][1];
    static char variables_of[8][1];
    const std::vector<char> bytes(4000, 'v');
    char *at = nullptr;
    unsigned i = 0;
    while (i < 8 && !is_where_graph_was(modules[i], variables_of[i], &at))
        i++;
    REQUIRE(i < 8 && cudaMemcpy(at, bytes.data(), bytes.size(), H2D) == 0);
    return HOLDS(device_has(at, bytes.data(), bytes.size()));
}

} // namespace

bool variables()
{
    return HOLDS(plain() && unloads_and_forks() && unloads_and_failed_forks() &&
                 unloads_and_grandchildren() && unloads_and_zombies() && managed_variables() &&
                 not_found() && where_graph_was());
}
