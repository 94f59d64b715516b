// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The plugin between processes of a test: one back end, and front ends that connect to it.
#ifndef TESTS_GVIRTUS_SCENE_H
#define TESTS_GVIRTUS_SCENE_H

#include "tests/doubles/gvirtus/gvirtus.h"
#include "tests/gvirtus/checks.h"

#include <atomic>
#include <functional>
#include <memory>
#include <sys/types.h>
#include <thread>
#include <vector>

inline Create create;
inline std::string provider = "auto", host = "127.0.0.1", folder;
// What both ends are configured with. 64 processes that ask libfabric at once for its providers
// take longer than the default time on two cores.
inline std::string common;
// rdma.processes, where a test does not say it. IBX_TEST_PROCESSES in the environment is another
// one.
constexpr const char *one_process = "rdma.processes : one\n";
inline std::string processes = "rdma.processes : program\n";

// Loads the plugin and makes `folder`.
void scene_open(const char *plugin, const char *the_provider, const char *the_host = nullptr);
// Removes the folder and prints the totals. The test's exit status.
int scene_close();

void write_file(const std::string &file, const std::string &text, mode_t mode = 0600);
// What this process's next communicator, and processes that it starts, read.
void configure(const std::string &more);
std::shared_ptr<Communicator> connected(std::uint16_t port, const std::string &more = "",
                                        const char *suite = "tcp/ip",
                                        const char *protocol = "oldtcp");

// Runs `body` in a process of its own that dies with this one; its exit status is the result.
pid_t spawn(const std::function<int()> &body);
int result_of(pid_t pid);

// As GVirtuS's front end, which closes what is there when the process ends: a back end on another
// host waits for one that ends otherwise.
inline std::vector<std::shared_ptr<Communicator>> until_exit;
[[noreturn]] void exit_with(std::shared_ptr<Communicator> over, int status);

// A port that is free until somebody who sets SO_REUSEADDR listens there, as back ends do: this
// process keeps a socket bound to it, so that the kernel gives it to nobody else.
std::uint16_t free_port();

// The parent creates, the forked child serves, as GVirtuS does. Its port is open.
struct BackEnd {
    pid_t pid; // the supervisor
    std::uint16_t port;

    explicit BackEnd(
        const std::string &more = "",
        const std::function<void(std::shared_ptr<Communicator>)> &serve = back_end_child,
        std::uint16_t at = 0); // a port; 0: any
    BackEnd(const BackEnd &) = delete;
    BackEnd &operator=(const BackEnd &) = delete;
    ~BackEnd() { end(); }
    void end();
    bool alive() const;
    pid_t serving() const; // its child, at present
    // In the order in which they were made.
    std::vector<pid_t> children() const;
    // Waits until all threads of the child sleep: what was sent to it has been taken.
    void settle() const;
};

// Hears what the processes of a back end write to standard error, and passes it on: they say how
// they end, which nobody else but their supervisor learns.
class Overheard
{
  public:
    Overheard();
    Overheard(const Overheard &) = delete;
    Overheard &operator=(const Overheard &) = delete;
    void speaks() const; // in the back end's first process
    void listens();      // in the test's, after that process has begun
    // How many of the processes have ended by a fault. It waits until there are none.
    unsigned faults();

  private:
    int ends[2];
    pid_t listener;
};

// A call in a thread of its own, which may have to wait in the back end.
class Calling
{
  public:
    Calling(const BackEnd &back, std::function<int()> call);
    ~Calling() { result(); }
    // Waits until it has returned, or until its thread and all of the back end's sleep.
    void settle();
    bool returned() const { return returned_; }
    int result(); // waits for it

  private:
    const BackEnd &back_;
    std::atomic<pid_t> id_{0};
    std::atomic<bool> returned_{false};
    int code_ = -1;
    std::thread thread_;
};

std::vector<char> random_bytes(std::size_t n, unsigned seed);

#endif
