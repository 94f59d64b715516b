// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The application's tests with a back end that lies: liar.c falsifies some of what it sends. An
// application may then report what it likes, and its checks may fail; but it does not touch memory
// that is not its own, which AddressSanitizer notices, and it ends: if not by itself, then when the
// back end does.
//
//   test_liar PLUGIN.so LYING_PLUGIN.so PRELOAD.so APPLICATION LIBCUDART.so PROVIDER [TEST SEED]
//
// FUZZ_SECONDS in the environment is how long it goes on (20). With TEST and SEED, the same lies
// once more, as far as threads allow.
#include "tests/fixtures/patience.h"
#include "tests/gvirtus/frontend_scene.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <vector>

namespace
{

using Clock = std::chrono::steady_clock;

// Those that need nothing but a back end, take a second at most, and do not wait without end for
// something but a call.
const char tests[] =
    "sizes rows threads threads-end no-copy remapped memory-that-ends freed-beside-captures "
    "driver-values host-register stale-registration captures-of-planes managed "
    "signals-in-calls short-copies async sent-on forked left-beside-child forked-exit "
    "closes-at-exit default launches launches-of-new-threads launches-unseen launch arrays "
    "libraries math-libraries dnn-graphs dnn-tensors dnn-values dnn-addresses dnn-networks "
    "dnn-without-number lt-library math-settings mipmaps planes planes-of-memory "
    "array-to-array textures descriptions textures-beyond capture-modes pools meanwhile "
    "cooperative nodes-of-graphs questions-about-graphs kernels-of-graphs kernels-set-again "
    "attributes-of-nodes events-and-functions-of-nodes graphs-of-nodes "
    "parameters-of-all-kinds objects-of-graphs drawings-of-graphs stream-of-thread queries "
    "launches-of-many-bytes nodes-of-many-bytes host-functions-at-exit driver-begins "
    "driver-contexts driver-context-of-threads driver-and-runtime driver-errors-apart "
    "driver-memory driver-modules driver-streams driver-planes driver-arrays driver-graphs "
    "driver-pools driver-textures driver-shares driver-hints driver-pointer-answers "
    "driver-odd-answers driver-launch-answers driver-sets-elements driver-maps-memory "
    "driver-maps-tensors driver-maps-nothing driver-lone-variables driver-without-context "
    "driver-packed-nodes driver-tells-late-errors driver-keeps-order-of-errors "
    "driver-compiler-says pointers printed printed-told symbols variables modules-of-ended on-host "
    "devices "
    "memory-after-reset pools-of-devices managed-on-devices exits errors libraries-again "
    "nccl-asked page-locked-in-place cooperative-again calls-of-cuda-12 calls-after-cuda-13 "
    "driver-after-cuda-13";

bool ends_within(pid_t process, unsigned ms)
{
    siginfo_t ended{};
    const auto until = Clock::now() + std::chrono::milliseconds(patience_ms(ms));
    while (!ended.si_pid && Clock::now() < until) {
        if (waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOHANG | WNOWAIT))
            return true;
        usleep(1000);
    }
    return ended.si_pid != 0;
}

// A fault of the program, whatever it has been told; but not that it has touched managed memory
// whose bytes are lost with the back end, which ends it by SIGSEGV.
bool faulty(int status, const std::string &said)
{
    const bool lost = lines_with(said, "the program reads managed memory") ||
                      lines_with(said, "managed memory cannot be read behind");
    const std::size_t touched = lost ? lines_with(said, "ERROR: AddressSanitizer: SEGV on") : 0;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE})
        if (status == 128 + signal && !(lost && signal == SIGSEGV))
            return true;
    // GVirtuS cannot report that a reply broke off, and throws if it is too short or too long.
    if (status == 128 + SIGABRT && !lines_with(said, "the connection broke inside a reply") &&
        !lines_with(said, "terminate called after throwing"))
        return true;
    return lines_with(said, "ERROR: AddressSanitizer") > touched ||
           lines_with(said, ": runtime error: ");
}

unsigned deceived; // applications whose checks have failed

bool lied_to_in(const char *test, unsigned seed)
{
    setenv("IBX_TEST_LIES", std::to_string(seed).c_str(), 1);
    GpuBackEnd back;
    Application app(&back, application, test, "taken");
    if (!ends_within(app.pid, 1500))
        back.end();
    const bool ends = ends_within(app.pid, 20000);
    if (!ends)
        kill(app.pid, SIGKILL);
    const int status = app.ended();
    if (!ends || faulty(status, app.said()))
        std::fprintf(stderr, "the seed of %s is %u\n", test, seed);
    deceived += status != 0;
    REQUIRE(ends && status != 2); // 2: it has no such test
    return HOLDS(!faulty(status, app.said()));
}

bool all_the_time()
{
    const char *wanted = std::getenv("FUZZ_SECONDS");
    const auto until = Clock::now() + std::chrono::seconds(wanted ? std::atoi(wanted) : 20);
    std::istringstream names(tests);
    const std::vector<std::string> all{std::istream_iterator<std::string>(names), {}};
    std::random_device seeds;
    bool good = true;
    for (unsigned rounds = 0; Clock::now() < until || rounds < 10; rounds++) {
        const unsigned seed = seeds();
        good = lied_to_in(all[seed % all.size()].c_str(), seed) && good;
    }
    return HOLDS(good && deceived);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 7) {
        std::fprintf(stderr, "usage: test_liar PLUGIN.so LYING_PLUGIN.so PRELOAD.so APPLICATION "
                             "LIBCUDART.so PROVIDER [TEST SEED]\n");
        return 2;
    }
    plugin = argv[1], preload = argv[3], application = argv[4], cudart = argv[5];
    scene_open(argv[2], argv[6]); // back ends have the plugin that lies
    common += "rdma.timeout_ms : 3000\n";
    const std::string options = std::getenv("ASAN_OPTIONS") ? std::getenv("ASAN_OPTIONS") : "";
    setenv("ASAN_OPTIONS", (options + ":detect_leaks=0:handle_abort=0").c_str(), 1);
    if (argc > 8)
        check("the same lies again", [&] {
            return lied_to_in(argv[7], static_cast<unsigned>(std::strtoul(argv[8], nullptr, 0)));
        });
    else
        check("back ends that lie", all_the_time);
    return scene_close();
}
