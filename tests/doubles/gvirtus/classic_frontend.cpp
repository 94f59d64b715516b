// SPDX-License-Identifier: LGPL-2.1-or-later
// The front-end library of classic_toy.h: connects in a static initialiser, as classic GVirtuS does
// when a CUDA program starts.
#include "classic_toy.h"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace
{

struct Frontend {
    Communicator *communicator = nullptr;

    Frontend()
    {
        try {
            const char *file = std::getenv("CONFIG_FILE");
            communicator = Communicator::Get(toy_communicator(file ? file : "/nonexistent"));
            communicator->Connect();
        } catch (const char *text) {
            std::printf("exception %s\n", text);
            std::fflush(stdout);
            _Exit(1);
        }
    }
} frontend;

} // namespace

// As classic GVirtuS, ignores what Read returns, and keeps the last exit code. "Cut" is a call in
// which the application dies inside the request.
extern "C" int toy_call(const char *routine, const char *in, std::size_t in_length, char *out,
                        std::size_t *out_length)
{
    static std::int32_t code = -1;
    Communicator *c = frontend.communicator;
    c->Write(routine, std::strlen(routine) + 1);
    if (!std::strcmp(routine, "Cut")) {
        c->Sync();
        std::raise(SIGKILL);
    }
    c->Write(reinterpret_cast<char *>(&in_length), sizeof(in_length));
    c->Write(in, in_length);
    c->Sync();
    c->Sync();
    c->Read(reinterpret_cast<char *>(&code), sizeof(code));
    c->Read(reinterpret_cast<char *>(out_length), sizeof(*out_length));
    if (*out_length > 0)
        c->Read(out, *out_length);
    return code;
}
