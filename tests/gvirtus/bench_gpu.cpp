// SPDX-License-Identifier: LGPL-2.1-or-later
//
// cudaMemcpy as an application under GVirtuS sees it, between two processes of this host, on its
// GPU: the front end's memmove into its buffer, the communicator, and either the handler's cuMemcpy
// or the plugin's own copies. Beside this, the same copies by the driver, without GVirtuS.
//
//   bench_gpu PLUGIN.so [--json FILE] [--time SECONDS] [--paths NAME,...] [--rounds N] [--clients
//   N]
//             [--application PROGRAM,PRELOAD.so,LIBCUDART.so] [--cells NAME=FILE]...
//
// Paths: native (pageable and pinned), stock (GVirtuS's TCP communicator as ib-bw imitates it, and
// the handler), shm-off and tcp-off (the plugin with rdma.gpu : off), shm and tcp. On the last two,
// N clients copy at once as well; their sum is compared with one client's rate. shm-preload and
// tcp-preload are an application's (bench_application.cpp) with libibx-frontend.so before a
// libcudart that does what GVirtuS's does, from pageable and pinned memory. --cells adds what such
// an application has printed elsewhere.
#include "tests/gvirtus/bench_measure.h"
#include "tests/gvirtus/bench_results.h"
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"
#include "tests/fixtures/cuda_application.h"
#include "tools/ib-bw/stream.h"

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace
{

constexpr std::size_t largest = 256u << 20;
double slice = 0.3; // seconds a cell
std::string plugin;
std::vector<std::string> application; // program, preload, libcudart

[[noreturn]] void die(const std::string &why)
{
    std::fprintf(stderr, "bench_gpu: %s\n", why.c_str());
    std::exit(1);
}

void must(int rc, const char *what)
{
    if (rc)
        die(std::string(what) + ": " + std::to_string(rc));
}

std::vector<std::string> split(const std::string &text, char by)
{
    std::vector<std::string> parts;
    for (std::size_t at = 0; at <= text.size();) {
        std::size_t end = std::min(text.find(by, at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

std::uint64_t sum(const char *bytes, std::size_t n)
{
    std::uint64_t hash = 14695981039346656037u;
    for (std::size_t i = 0; i < n; i++)
        hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 1099511628211u;
    return hash;
}

// Memory as malloc gives it for long buffers, with all its pages touched.
char *pages(std::size_t n)
{
    void *memory = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("no memory");
    std::memset(memory, 1, n);
    return static_cast<char *>(memory);
}

/* ------------------------------------------------------------------------ streams */

struct Stream {
    virtual ~Stream() = default;
    virtual bool read(void *to, std::size_t n) = 0;
    virtual void write(const void *from, std::size_t n) = 0;
    virtual void sync() = 0;
};

struct PluginStream final : Stream {
    explicit PluginStream(Communicator *communicator) : over(communicator) {}
    bool read(void *to, std::size_t n) override
    {
        return over->Read(static_cast<char *>(to), n) == n;
    }
    void write(const void *from, std::size_t n) override
    {
        over->Write(static_cast<const char *>(from), n);
    }
    void sync() override { over->Sync(); }
    Communicator *over;
};

struct StockStream final : Stream {
    explicit StockStream(int fd) { must(ibx_bw_stream_of_stock(fd, &stream, nullptr), "stock"); }
    bool read(void *to, std::size_t n) override { return stream->ops->read(stream, to, n) > 0; }
    void write(const void *from, std::size_t n) override { stream->ops->write(stream, from, n); }
    void sync() override { stream->ops->sync(stream); }
    bw_stream *stream = nullptr;
};

/* ----------------------------------------------------------------------- back end */

template <typename T> T field(const char *at)
{
    T value;
    std::memcpy(&value, at, sizeof(value));
    return value;
}

std::atomic<std::uint64_t> handled;

// As in GVirtuS: the input buffer stays, and a payload from the device is copied into a new buffer.
struct Output {
    char *bytes = nullptr;
    std::size_t n = 0;
    ~Output() { std::free(bytes); }
    void host(const void *from, std::size_t length)
    {
        bytes = static_cast<char *>(std::malloc(length + 8));
        std::memcpy(bytes, &length, 8);
        std::memcpy(bytes + 8, from, length);
        n = length + 8;
    }
};

int handle(const std::string &name, const char *in, std::size_t n, Output *out)
{
    const cuda_calls *cuda = cuda_application();
    if (name == "cudaMalloc") {
        std::uint64_t device = 0;
        int rc = cuda->mem_alloc(&device, field<std::uint64_t>(in));
        out->host(&device, 8);
        return rc;
    }
    if (name == "benchHandled") {
        std::uint64_t count = handled;
        out->host(&count, 8);
        return 0;
    }
    if (name == "benchSum") { // of device memory, fetched without the plugin
        auto count = field<std::uint64_t>(in + 8);
        std::vector<char> bytes(count);
        int rc = cuda->from_device(bytes.data(), field<std::uint64_t>(in), count);
        std::uint64_t value = sum(bytes.data(), count);
        out->host(&value, 8);
        return rc;
    }
    if (name != "cudaMemcpy" || n < 12)
        return -1;
    handled++;
    auto count = field<std::uint64_t>(in + n - 12);
    if (field<std::int32_t>(in + n - 4) == 1)
        return cuda->to_device(field<std::uint64_t>(in), in + 16, count);
    char *bytes = new char[count];
    int rc = cuda->from_device(bytes, field<std::uint64_t>(in + 9), count);
    out->host(bytes, count);
    delete[] bytes;
    return rc;
}

void serve(Stream *stream)
{
    cuda_application_use(0);
    char *in = nullptr;
    std::size_t room = 0;
    for (std::string name;; name.clear()) {
        for (char c = 1; c;) {
            if (!stream->read(&c, 1))
                return;
            if (c)
                name.push_back(c);
        }
        std::size_t n = 0;
        stream->read(&n, 8);
        if (n > room)
            in = static_cast<char *>(std::realloc(in, room = n));
        if (n)
            stream->read(in, n);
        Output out;
        std::int32_t code = handle(name, in, n, &out);
        double seconds = 0;
        stream->write(&code, 4);
        stream->write(&seconds, 8);
        stream->write(&out.n, 8);
        if (out.n)
            stream->write(out.bytes, out.n);
        stream->sync();
    }
}

/* ---------------------------------------------------------------------- front end */

class FrontEndOf
{
  public:
    explicit FrontEndOf(Stream *stream) : over(stream)
    {
        in = static_cast<char *>(std::malloc(largest + 64));
        out = static_cast<char *>(std::malloc(largest + 64));
    }
    ~FrontEndOf()
    {
        std::free(in);
        std::free(out);
    }
    std::uint64_t ask(const char *name, std::uint64_t a, std::uint64_t b)
    {
        at = 0;
        put(a);
        put(b);
        must(call(name), name);
        return field<std::uint64_t>(out + 8);
    }
    void to_device(std::uint64_t device, const char *from, std::uint64_t n)
    {
        at = 0;
        put(device);
        put(n);
        std::memmove(in + at, from, n);
        at += n;
        put(n);
        put(std::int32_t{1});
        must(call("cudaMemcpy"), "cudaMemcpy to the device");
    }
    void from_device(char *to, std::uint64_t device, std::uint64_t n)
    {
        at = 0;
        put(std::uint64_t{1});
        put('\0');
        put(device);
        put(n);
        put(std::int32_t{2});
        must(call("cudaMemcpy"), "cudaMemcpy from the device");
        std::memmove(to, out + 8, n);
    }

  private:
    template <typename T> void put(T value)
    {
        std::memcpy(in + at, &value, sizeof(value));
        at += sizeof(value);
    }
    int call(const char *name)
    {
        std::int32_t code = -1;
        double seconds;
        std::size_t n = 0;
        over->write(name, std::strlen(name) + 1);
        over->write(&at, 8);
        over->write(in, at);
        over->sync();
        over->sync();
        if (!over->read(&code, 4) || !over->read(&seconds, 8) || !over->read(&n, 8) ||
            n > largest + 64 || (n && !over->read(out, n)))
            die("the connection broke");
        return code;
    }
    Stream *over;
    char *in, *out;
    std::size_t at = 0;
};

Times measure_calls(Stream *stream)
{
    FrontEndOf front(stream);
    Times times{};
    char *sent = pages(largest), *got = pages(largest);
    std::uint64_t device = front.ask("cudaMalloc", largest, 0);
    for (std::size_t i = 0; i < bench_size_count; i++) {
        std::size_t n = bench_sizes[i];
        fill(sent, n, i + 1);
        times.to[i] = median_of([&] { front.to_device(device, sent, n); }, slice);
        if (front.ask("benchSum", device, n) != sum(sent, n))
            die("the device has other bytes than were sent");
        std::memset(got, 2, n);
        times.from[i] = median_of([&] { front.from_device(got, device, n); }, slice);
        if (std::memcmp(sent, got, n) != 0)
            die("other bytes came back than were sent");
    }
    times.handled = front.ask("benchHandled", 0, 0);
    munmap(sent, largest);
    munmap(got, largest);
    return times;
}

/* ---------------------------------------------------------------------- processes */

int loopback_listener(std::uint16_t *port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    must(bind(fd, reinterpret_cast<sockaddr *>(&address), length), "bind");
    must(listen(fd, 4), "listen");
    getsockname(fd, reinterpret_cast<sockaddr *>(&address), &length);
    *port = ntohs(address.sin_port);
    return fd;
}

int loopback_connect(std::uint16_t port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    must(connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)), "connect");
    return fd;
}

Times stock()
{
    std::uint16_t port;
    int listener = loopback_listener(&port);
    pid_t pid = spawn([&] {
        StockStream stream(accept(listener, nullptr, nullptr));
        serve(&stream);
        return 0;
    });
    StockStream stream(loopback_connect(port));
    Times times = measure_calls(&stream);
    kill(pid, SIGKILL);
    result_of(pid);
    close(listener);
    return times;
}

// The configuration of both ends, in scene.h's form.
const char *configured_with(const std::string &path, bool gpu)
{
    common = "rdma.provider : " + path + "\nrdma.gpu : " + (gpu ? "on\n" : "off\n");
    return "";
}

// With the plugin: one thread for each client, as in GVirtuS.
void serve_clients(std::shared_ptr<Communicator> listening)
{
    listening->Serve();
    for (;;) {
        auto *stream = new PluginStream(const_cast<Communicator *>(listening->Accept()));
        std::thread(serve, stream).detach();
    }
}

Times ours(const std::string &path, bool gpu)
{
    BackEnd back(configured_with(path, gpu), serve_clients);
    auto over = connected(back.port);
    PluginStream stream(over.get());
    return measure_calls(&stream);
}

/* ------------------------------------------------------------------ many at once */

// Eight clients share what one had, so a slice has few copies of each; and threads on one processor
// stay there together for tenths of a second.
constexpr int slices_of_many = 40;

// Bytes a second of one client that copies 16 MiB to the device and back, again and again, between
// the parent's two words.
double one_of_many(const BackEnd &back, int ready, int go)
{
    constexpr std::size_t n = 16u << 20;
    auto over = connected(back.port);
    PluginStream stream(over.get());
    FrontEndOf front(&stream);
    char *sent = pages(n), *got = pages(n), word = 'r';
    std::uint64_t device = front.ask("cudaMalloc", n, 0);
    fill(sent, n, static_cast<std::uint64_t>(getpid()));
    for (int i = 0; i < 3; i++) {
        front.to_device(device, sent, n);
        front.from_device(got, device, n);
    }
    if (write(ready, &word, 1) != 1 || read(go, &word, 1) != 1)
        die("the parent is gone");
    double copied = 0, begin = now();
    while (now() < begin + slices_of_many * slice) {
        front.to_device(device, sent, n);
        front.from_device(got, device, n);
        copied += 2.0 * n;
    }
    double rate = copied / (now() - begin);
    if (std::memcmp(sent, got, n) != 0)
        die("other bytes came back than were sent");
    return rate;
}

std::vector<double> rates_of(const std::string &path, unsigned clients)
{
    BackEnd back(configured_with(path, true), serve_clients);
    int ready[2], go[2], result[2];
    if (pipe(ready) || pipe(go) || pipe(result))
        die("no pipe");
    std::vector<pid_t> pids;
    for (unsigned i = 0; i < clients; i++)
        pids.push_back(spawn([&] {
            close(ready[0]);
            double rate = one_of_many(back, ready[1], go[0]);
            return write(result[1], &rate, sizeof(rate)) != sizeof(rate);
        }));
    close(ready[1]); // so that a client's end is seen
    close(result[1]);
    char word = 'g';
    std::vector<double> rates(clients);
    for (unsigned i = 0; i < clients; i++)
        must(read(ready[0], &word, 1) != 1, "a client");
    for (unsigned i = 0; i < clients; i++)
        must(write(go[1], &word, 1) != 1, "a client");
    for (double &rate : rates)
        must(read(result[0], &rate, sizeof(rate)) != sizeof(rate), "a client");
    for (pid_t pid : pids)
        waitpid(pid, nullptr, 0);
    for (int fd : {ready[0], go[0], go[1], result[0]})
        close(fd);
    return rates;
}

void print_clients(const std::string &path, unsigned clients)
{
    double one = rates_of(path, 1)[0], sum_of_all = 0;
    std::vector<double> rates = rates_of(path, clients);
    for (double rate : rates)
        sum_of_all += rate;
    std::sort(rates.begin(), rates.end());
    std::printf("\n16 MiB there and back over %s: one client %.2f GB/s, %u clients %.2f (x%.2f), "
                "slowest to fastest %.2f\n",
                path.c_str(), one / 1e9, clients, sum_of_all / 1e9, sum_of_all / one,
                rates.front() / rates.back());
    std::fflush(stdout);
}

// In a process of its own: a front end knows no CUDA.
Times native(bool pinned)
{
    int result[2];
    must(pipe(result), "pipe");
    pid_t pid = spawn([&] {
        const cuda_calls *cuda = cuda_application();
        cuda_application_use(0);
        Times times{};
        std::uint64_t device;
        char *memory = pages(largest);
        must(cuda->mem_alloc(&device, largest), "cuMemAlloc");
        if (pinned)
            must(cuda->host_register(memory, largest, 0), "cuMemHostRegister");
        for (std::size_t i = 0; i < bench_size_count; i++) {
            times.to[i] = median_of(
                [&] { must(cuda->to_device(device, memory, bench_sizes[i]), "H2D"); }, slice);
            times.from[i] = median_of(
                [&] { must(cuda->from_device(memory, device, bench_sizes[i]), "D2H"); }, slice);
        }
        return write(result[1], &times, sizeof(times)) != sizeof(times);
    });
    Times times{};
    close(result[1]);
    if (read(result[0], &times, sizeof(times)) != sizeof(times))
        die("the native copies failed");
    close(result[0]);
    waitpid(pid, nullptr, 0);
    return times;
}

/* ------------------------------------------------------------------- applications */

void run_application(const std::string &path, Results *results)
{
    if (application.size() != 3)
        die(path + "-preload needs --application");
    // A back end that has the handlers of all calls that the stub of libcudart makes.
    BackEnd back(configured_with(path, true),
                 [](auto listening) { cuda_back_end_child(listening, true); });
    std::string cells = folder + "/cells", command = "exec " + application[0] + " " +
                                                     application[2] + " " + std::to_string(slice);
    for (std::size_t n : bench_sizes)
        command += " " + std::to_string(n);
    pid_t pid = spawn([&] {
        setenv("STUB_PLUGIN", plugin.c_str(), 1);
        setenv("STUB_PORT", std::to_string(back.port).c_str(), 1);
        setenv("STUB_PROVIDER", path.c_str(), 1);
        setenv("LD_PRELOAD", application[1].c_str(), 1);
        if (std::freopen(cells.c_str(), "w", stdout))
            execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
        return 1;
    });
    result_of(pid);
    std::ifstream in(cells);
    must(!bench_add_cells(path + "-preload", in, results), "the application");
}

void measure_path(const std::string &path, Results *results)
{
    if (path == "shm-preload" || path == "tcp-preload") {
        run_application(path.substr(0, 3), results);
        return;
    }
    if (path == "native") {
        bench_add("native pageable", native(false), results);
        bench_add("native pinned", native(true), results);
        return;
    }
    bool off = path.size() > 4 && path.substr(path.size() - 4) == "-off";
    Times times = path == "stock" ? stock() : ours(path.substr(0, 3), !off);
    bool staged = path != "stock" && !off;
    if (staged == (times.handled != 0))
        die(path + ": GVirtuS's handler ran " + std::to_string(times.handled) + " copies");
    bench_add(path, times, results);
}

} // namespace

int main(int argc, char **argv)
{
    const char *json = nullptr;
    unsigned clients = 8;
    int rounds = 1;
    std::string paths = "native,stock,shm-off,tcp-off,shm,tcp";
    std::vector<std::string> cells;
    if (argc < 2)
        die("usage: bench_gpu PLUGIN.so [--json FILE] [--time SECONDS] [--paths NAME,...] "
            "[--rounds N] [--clients N] [--application PROGRAM,PRELOAD.so,LIBCUDART.so] [--cells "
            "NAME=FILE]");
    plugin = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        std::string option = argv[i];
        if (option == "--json")
            json = argv[i + 1];
        else if (option == "--time")
            slice = std::atof(argv[i + 1]);
        else if (option == "--paths")
            paths = argv[i + 1];
        else if (option == "--rounds")
            rounds = std::atoi(argv[i + 1]);
        else if (option == "--clients")
            clients = static_cast<unsigned>(std::atoi(argv[i + 1]));
        else if (option == "--application")
            application = split(argv[i + 1], ',');
        else if (option == "--cells")
            cells.push_back(argv[i + 1]);
        else
            die("no such option: " + option);
    }
    if (rounds < 1 || clients > 99 || slice <= 0)
        die("--rounds: 1 and more; --clients: 0 to 99; --time: more than 0");
    scene_open(plugin.c_str(), nullptr);
    Results results;
    for (const std::string &named : cells) {
        std::size_t equals = named.find('=');
        std::ifstream in(named.substr(equals + 1));
        must(!bench_add_cells(named.substr(0, equals), in, &results), named.c_str());
    }
    for (int round = 0; round < rounds; round++) {
        for (const std::string &path : split(paths, ',')) {
            if (!path.empty())
                measure_path(path, &results);
        }
    }
    bench_print_table(results, true);
    bench_print_table(results, false);
    for (const char *base : {"native", "gvirtus", "stock"})
        bench_print_beside(results, base);
    if (json)
        bench_write_json(results, json);
    for (const Path &path : results) {
        if (clients && (path.name == "shm" || path.name == "tcp"))
            print_clients(path.name, clients);
    }
    std::string remove = "rm -rf " + folder;
    return std::system(remove.c_str()) != 0;
}
