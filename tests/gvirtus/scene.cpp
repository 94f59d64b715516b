// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/scene.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/random_fill.h"
#include "tests/fixtures/thread_state.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void remove_folder()
{
    const std::string remove = "rm -rf " + folder;
    if (std::system(remove.c_str()))
        std::perror(folder.c_str());
}

// A child removes the folder when the test has ended, in whatever way. It has a session of its own,
// and no pipe that somebody reads this test's output from.
static void remove_folder_after_the_end()
{
    const int test = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    if (test < 0 || fork() != 0) {
        close(test);
        return;
    }
    setsid();
    const int none = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(none, fd);
    pollfd ended = {test, POLLIN, 0};
    while (poll(&ended, 1, -1) < 0 && errno == EINTR)
        ;
    remove_folder();
    std::_Exit(0);
}

void scene_open(const char *plugin, const char *the_provider, const char *the_host)
{
    create = load_plugin(plugin);
    folder = "/tmp/test_gvirtus-" + std::to_string(getpid()) + "-XXXXXX";
    if (!mkdtemp(folder.data()))
        std::abort();
    remove_folder_after_the_end();
    provider = the_provider ? the_provider : provider;
    host = the_host ? the_host : host;
    common = "rdma.provider : " + provider + "\nrdma.timeout_ms : 60000\n";
    // A process is there before the first connection, as by default: BackEnd::serving() is one.
    if (const char *const wanted = getenv("IBX_TEST_PROCESSES"))
        processes = std::string("rdma.processes : ") + wanted + "\nrdma.spare_processes : 1\n";
    // In the guest the client's address is not the server's; the tests with keys have keys.
    if (host != "127.0.0.1")
        common += "rdma.insecure : yes\n";
}

int scene_close()
{
    remove_folder();
    failed += selection_unmatched();
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

void write_file(const std::string &file, const std::string &text, mode_t mode)
{
    int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        std::abort();
    fchmod(fd, mode);
    close(fd);
}

void configure(const std::string &more)
{
    std::string file = folder + "/" + std::to_string(getpid()) + ".properties";
    // Only a key's first line counts. A back end touches all its pinned memory at first; with the
    // default of 64M, that would be a seventh of the cost of the tests' many processes.
    write_file(file, common + more + processes + "rdma.gpu_memory : 8M\n");
    setenv("GVIRTUS_RDMA_PROPERTIES", file.c_str(), 1);
}

std::shared_ptr<Communicator> connected(std::uint16_t port, const std::string &more,
                                        const char *suite, const char *protocol)
{
    configure(more);
    auto communicator = make_communicator(create, suite, protocol, host, port);
    communicator->Connect();
    return communicator;
}

pid_t spawn(const std::function<int()> &body)
{
    std::fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        std::_Exit(body());
    }
    return pid;
}

int result_of(pid_t pid)
{
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void exit_with(std::shared_ptr<Communicator> over, int status)
{
    until_exit.push_back(std::move(over));
    std::exit(status);
}

std::uint16_t free_port()
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof(address);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address));
    getsockname(fd, reinterpret_cast<sockaddr *>(&address), &length);
    return ntohs(address.sin_port);
}

static void wait_until_open(std::uint16_t port)
{
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, host.c_str(), &address.sin_addr);
    for (unsigned left = patience_ms(2000); left; left--) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int rc = connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address));
        close(fd);
        if (!rc)
            return;
        usleep(5000); // one poll's pause
    }
    std::fprintf(stderr, "the back end does not open port %u\n", port);
    std::exit(1);
}

BackEnd::BackEnd(const std::string &more,
                 const std::function<void(std::shared_ptr<Communicator>)> &serve, std::uint16_t at)
    : port(at ? at : free_port())
{
    configure(more + "rdma.log : error\n"); // no warnings about those of wait_until_open()
    auto listening = make_communicator(create, "tcp/ip", "oldtcp", host, port);
    pid = spawn([&]() -> int {
        serve(listening);
        return 1;
    });
    wait_until_open(port);
    configure(more);
}

// Its present parent may not have waited for it yet.
static bool has_ended(pid_t process)
{
    const char state = thread_state(process, process);
    return !state || state == 'Z';
}

// The child ends with the supervisor, a moment later.
void BackEnd::end()
{
    if (pid > 0) {
        kill(pid, SIGSTOP); // so that it makes no more processes
        const std::vector<pid_t> all = children();
        kill(pid, SIGKILL);
        result_of(pid);
        for (const pid_t child : all)
            while (!has_ended(child))
                usleep(1000);
    }
    pid = -1;
}

std::vector<pid_t> BackEnd::children() const
{
    const std::string task = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid);
    std::ifstream list(task + "/children");
    return {std::istream_iterator<pid_t>(list), {}};
}

// A back end that has ended alone has none.
pid_t BackEnd::serving() const
{
    for (; alive(); usleep(1000)) {
        const std::vector<pid_t> all = children();
        if (!all.empty())
            return all.front();
    }
    return pid;
}

bool BackEnd::alive() const
{
    siginfo_t ended{};
    return waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           ended.si_pid == 0;
}

// A sanitizer ends a process by a status. The first line of its report says so.
static bool tells_of_fault(const std::string &line)
{
    for (const char *part : {" has ended by signal ", " has ended with status ", "ERROR: Address",
                             "ERROR: Leak", "WARNING: Thread", ": runtime error: "})
        if (line.find(part) != std::string::npos)
            return true;
    return false;
}

static int pass_on(int from)
{
    unsigned told = 0;
    std::string line;
    char text[4096];
    for (ssize_t n; (n = read(from, text, sizeof(text))) > 0;) {
        for (ssize_t at = 0; at < n; at++) {
            line += text[at];
            if (text[at] != '\n')
                continue;
            told += tells_of_fault(line);
            line.clear();
        }
        if (write(STDERR_FILENO, text, static_cast<std::size_t>(n)) != n)
            return 100;
    }
    return static_cast<int>(std::min(told, 100u));
}

// The listener outlives a test that is killed: what the back end has said comes out.
Overheard::Overheard()
{
    if (pipe2(ends, O_CLOEXEC))
        std::abort();
    std::fflush(stdout);
    listener = fork();
    if (listener == 0) {
        close(ends[1]);
        std::_Exit(pass_on(ends[0]));
    }
    close(ends[0]);
}

void Overheard::speaks() const
{
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
}

void Overheard::listens()
{
    close(ends[1]);
}

unsigned Overheard::faults()
{
    return static_cast<unsigned>(result_of(listener));
}

// A thread may sleep for a moment, as for a lock: so they are looked at three times.
static void settles(const std::function<bool()> &sleeping)
{
    unsigned looks = 0;
    for (unsigned left = patience_ms(10000); looks < 3; left--) {
        if (!left) {
            std::fprintf(stderr, "not all threads of the back end come to sleep\n");
            std::exit(1);
        }
        looks = sleeping() ? looks + 1 : 0;
        usleep(1000);
    }
}

void BackEnd::settle() const
{
    settles([this] { return threads_are(serving(), 'S', 0); });
}

Calling::Calling(const BackEnd &back, std::function<int()> call) : back_(back)
{
    thread_ = std::thread([this, call] {
        id_ = static_cast<pid_t>(syscall(SYS_gettid));
        code_ = call();
        returned_ = true;
    });
}

void Calling::settle()
{
    settles([this] {
        return returned_ ||
               (id_ && thread_state(getpid(), id_) == 'S' && threads_are(back_.serving(), 'S', 0));
    });
}

int Calling::result()
{
    if (thread_.joinable())
        thread_.join();
    return code_;
}

std::vector<char> random_bytes(std::size_t n, unsigned seed)
{
    std::vector<char> bytes(n);
    random_fill(bytes.data(), n, seed);
    return bytes;
}
