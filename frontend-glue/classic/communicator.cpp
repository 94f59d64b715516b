// SPDX-License-Identifier: LGPL-2.1-or-later
//
// classic/: libibx-gvirtus-classic.so, preloaded (LD_PRELOAD) into classic GVirtuS (G1). It adds
// rdma://, verbs:// and ofi:// to Communicator::Get. Other communicators still come from GVirtuS.
//
//   front end   its shared library calls Get through the PLT: the symbol below wins
//   back end    the executable calls its own Get directly: patch.c writes a jump over it
//
// The class repeats classic GVirtuS's binary interface (the order of virtual functions). It throws
// `const char *` only, since classic GVirtuS catches nothing else.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <list>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <unistd.h>

extern "C" {
#include "common/descriptor.h"
#include "common/log.h"
#include "frontend-glue/classic/patch.h"
#include "frontend-glue/device_copies/device_copies.h"
#include "frontend-glue/plugin/config.h"
#include "frontend-glue/session/session.h"
}

namespace
{

[[noreturn]] void fail(const char *message)
{
    thread_local char text[IBX_ERROR_MAX + 8]; // outlives the throw
    std::strcpy(text, "ibx: ");
    std::strncat(text, message, IBX_ERROR_MAX);
    throw static_cast<const char *>(text);
}

// Forks of this process so far, counted in the parent.
unsigned forks;

class ClassicCommunicator
{
  public:
    ClassicCommunicator(ibx_session *of, bool serves)
        : session(of), server(serves), owner(getpid()), forks_before(forks)
    {
    }
    ClassicCommunicator(const ClassicCommunicator &) = delete;
    ClassicCommunicator &operator=(const ClassicCommunicator &) = delete;

    // From here on GVirtuS defines the order.
    virtual ~ClassicCommunicator() { ibx_session_destroy(session); }

    virtual void Serve()
    {
        ibx_error err{};
        if (ibx_session_serve(session, &err))
            fail(err.message);
        pthread_atfork(
            nullptr, [] { forks++; }, nullptr);
    }

    // Runs in the parent, which then forks a child that uses the returned object.
    virtual const ClassicCommunicator *Accept() const
    {
        drop_forked();
        ibx_error err{};
        ibx_session *peer = nullptr;
        if (ibx_session_accept(session, &peer, &err))
            fail(err.message);
        auto *accepted = new ClassicCommunicator(peer, true);
        accepted->listening = this;
        children.push_back(accepted);
        return accepted;
    }

    virtual void Connect()
    {
        ibx_error err{};
        if (ibx_session_connect(session, &err))
            fail(err.message);
    }

    virtual std::size_t Read(char *buffer, std::size_t size)
    {
        if (server && !used)
            take_over();
        if (!size)
            return 0;
        if (session && ibx_session_read(session, buffer, size) == static_cast<ssize_t>(size))
            return size;
        if (server)
            return server_ended();
        ibx_session_answer(session, buffer, size);
        return size;
    }

    // A failure shows in the next Read.
    virtual std::size_t Write(const char *buffer, std::size_t size)
    {
        if (session)
            ibx_session_write(session, buffer, size);
        return size;
    }

    virtual void Sync()
    {
        if (session)
            ibx_session_sync(session);
    }

    virtual void Close()
    {
        if (session)
            ibx_session_close(session);
    }

  private:
    // In the parent: frees connections that a child has got by a fork. The parent's copies of their
    // sockets would keep them open, for the client too.
    void drop_forked() const
    {
        children.remove_if([](ClassicCommunicator *child) {
            if (child->used || child->forks_before == forks)
                return child->used;
            ibx_session_destroy(child->session);
            child->session = nullptr;
            return true;
        });
    }

    // In the child, at its first read: it serves this client and stops listening.
    void take_over()
    {
        used = true;
        if (getpid() != owner && listening)
            ibx_session_close(listening->session);
    }

    // Between requests a read of 0 ends the child and nothing else. Inside a request GVirtuS
    // ignores the 0 and runs the routine on whatever its buffer holds; so the process (in older
    // versions the thread) that serves this client ends here.
    std::size_t server_ended()
    {
        if (!session)
            return 0;
        bool in_frame = ibx_session_in_frame(session);
        if (in_frame && getpid() != owner)
            _exit(EXIT_FAILURE);
        ibx_session_destroy(session); // GVirtuS does not delete this object
        session = nullptr;
        if (in_frame)
            pthread_exit(nullptr);
        return 0;
    }

    ibx_session *session; // null in the parent once a child has it, and once the client has gone
    bool server;
    pid_t owner; // the process that made this object
    unsigned forks_before;
    const ClassicCommunicator *listening = nullptr;    // of an accepted one
    mutable std::list<ClassicCommunicator *> children; // accepted, perhaps not yet taken over
    bool used = false;                                 // something was read, in this process
};

// ------------------------------------------------------------------------------ Communicator::Get

// For both ABIs of std::string, cxx11 and the one before. Either type begins with a pointer to its
// NUL-terminated characters; no more has to be known here.
constexpr const char *get_symbols[] = {
    "_ZN12Communicator3GetERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    "_ZN12Communicator3GetERKSs",
};
using Get = void *(const void *string);

ibx_classic_patch patches[2]; // of a back end's executable
const char *sole_argument;    // of the back end: its properties file

bool ours(const char *communicator)
{
    for (const char *scheme : {"rdma://", "verbs://", "ofi://"}) {
        if (!std::strncmp(communicator, scheme, std::strlen(scheme)))
            return true;
    }
    return false;
}

void *make(const char *communicator, bool back_end)
{
    const char *own_file = back_end ? sole_argument : secure_getenv("CONFIG_FILE");
    ibx_error err{};
    ibx_session *session = nullptr;
    auto config = std::make_unique<ibx_glue_config>();
    if (ibx_glue_config_load_classic(communicator, own_file, config.get(), &err) ||
        ibx_session_create(config->uri, &config->options, &session, &err))
        fail(err.message);
    if (ibx_device_copies_attach(session, &config->gpu, &err)) {
        ibx_session_destroy(session);
        fail(err.message);
    }
    return new ClassicCommunicator(session, false);
}

// Calls the executable's own Get, with the jump removed meanwhile.
void *call_patched(const ibx_classic_patch &patch, const void *string)
{
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    struct Lifted {
        const ibx_classic_patch &patch;
        ~Lifted() { ibx_classic_patch_switch(&patch, 1, nullptr); }
    };
    ibx_error err{};
    if (ibx_classic_patch_switch(&patch, 0, &err))
        fail(err.message);
    Lifted lifted{patch};
    return reinterpret_cast<Get *>(patch.function)(string);
}

// The Get of the calling library. dlsym(RTLD_NEXT) alone does not find it in a library that was
// loaded with RTLD_LOCAL.
Get *original_of(const void *caller, const char *symbol, const void *self)
{
    Dl_info info;
    void *found = nullptr;
    if (dladdr(caller, &info)) {
        if (void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) {
            found = dlsym(library, symbol);
            dlclose(library);
        }
    }
    if (!found || found == self)
        found = dlsym(RTLD_NEXT, symbol);
    return found == self ? nullptr : reinterpret_cast<Get *>(found);
}

void *get(unsigned abi, const void *string, const void *caller, const void *self)
{
    const char *communicator = *static_cast<const char *const *>(string);
    bool back_end = patches[abi].function;
    if (ours(communicator))
        return make(communicator, back_end);
    if (back_end)
        return call_patched(patches[abi], string);
    if (Get *original = original_of(caller, get_symbols[abi], self))
        return original(string);
    fail("GVirtuS's own Communicator::Get cannot be found, so only rdma:// can be used");
}

} // namespace

// The functions have hidden names too, since in a back end the exported name means the
// executable's.
extern "C" __attribute__((visibility("hidden"))) void *ibx_classic_get_cxx11(const void *string)
{
    return get(0, string, __builtin_return_address(0),
               reinterpret_cast<void *>(ibx_classic_get_cxx11));
}

extern "C" __attribute__((visibility("hidden"))) void *ibx_classic_get_old(const void *string)
{
    return get(1, string, __builtin_return_address(0),
               reinterpret_cast<void *>(ibx_classic_get_old));
}

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED __attribute__((alias("ibx_classic_get_cxx11"))) Get exported_get_cxx11 __asm__(
    "_ZN12Communicator3GetERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
EXPORTED __attribute__((alias("ibx_classic_get_old")))
Get exported_get_old __asm__("_ZN12Communicator3GetERKSs");

// Runs before the executable's constructors and main, while there is one thread. A front end may
// call Get earlier: nothing is patched there, and all of the above is initialised statically.
__attribute__((constructor)) static void begin(int argc, char **argv)
{
    ibx_log_of_library();
    ibx_descriptors_of_library();
    Get *const replacements[] = {ibx_classic_get_cxx11, ibx_classic_get_old};
    sole_argument = argc == 2 ? argv[1] : nullptr;
    for (unsigned abi = 0; abi < 2; abi++) {
        std::size_t length;
        void *function = ibx_classic_executable_symbol(get_symbols[abi], &length);
        ibx_error err{};
        if (function && ibx_classic_patch_apply(&patches[abi], function, length,
                                                reinterpret_cast<void *>(replacements[abi]), &err))
            ibx_log(IBX_LOG_ERROR, "this back end cannot use rdma://: %s", err.message);
    }
}
