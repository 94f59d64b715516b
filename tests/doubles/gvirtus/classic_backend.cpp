// SPDX-License-Identifier: LGPL-2.1-or-later
// The back end of classic_toy.h: accepts in the parent, forks a child for each client, and reads
// names byte by byte. Prints "ready" when it listens, and "bye NUMBER" when a child has served
// NUMBER calls.
#include "classic_toy.h"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

static bool read_name(Communicator *c, std::string &name)
{
    char character = 0;
    name.clear();
    while (c->Read(&character, 1) == 1) {
        if (!character)
            return true;
        name += character;
    }
    return false;
}

static void reply(Communicator *c, std::int32_t code, const std::vector<char> &output)
{
    std::size_t length = output.size();
    c->Write(reinterpret_cast<char *>(&code), sizeof(code));
    c->Write(reinterpret_cast<char *>(&length), sizeof(length));
    c->Write(output.data(), length);
    c->Sync();
}

static void serve(Communicator *c)
{
    std::string name;
    std::vector<char> input;
    int calls = 0;
    while (read_name(c, name)) {
        std::size_t length = 0;
        c->Read(reinterpret_cast<char *>(&length), sizeof(length));
        input.resize(length);
        c->Read(input.data(), length);
        if (name == "Die")
            std::raise(SIGKILL);
        calls++;
        reply(c, name == "Echo" ? 0 : -1, name == "Echo" ? input : std::vector<char>());
    }
    std::printf("bye %d\n", calls);
    std::fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    try {
        Communicator::Get("bogus://first");
    } catch (const char *) {
        // Whatever the outcome, this call reached the program's own Get; later calls do not.
    }
    try {
        // Never deleted, as in GVirtuS; static, so that it is not a leak if Serve throws.
        static Communicator *c = Communicator::Get(toy_communicator(argv[1]));
        c->Serve();
        std::puts("ready");
        std::fflush(stdout);
        std::signal(SIGCHLD, SIG_IGN);
        for (;;) {
            Communicator *client = const_cast<Communicator *>(c->Accept());
            pid_t child = fork();
            if (child < 0)
                throw "toy: cannot fork";
            if (!child) {
                serve(client);
                std::exit(0);
            }
        }
    } catch (const char *text) {
        std::printf("exception %s\n", text);
        return 1;
    }
}
