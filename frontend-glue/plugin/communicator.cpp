// SPDX-License-Identifier: LGPL-2.1-or-later
//
// libgvirtus-communicators-rdma.so: translates between GVirtuS's C++ interface (generations G2 to
// G5) and session.h, and does nothing else.
//
// The classes below repeat GVirtuS's binary interface: the order of virtual functions and the
// offsets of an endpoint's fields (libstdc++'s cxx11 ABI). No header and no symbol of GVirtuS is
// needed, so one binary serves every generation. suite() tells the kind of an endpoint;
// dynamic_cast would need GVirtuS's type information.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <pthread.h>
#include <string>
#include <time.h>
#include <unistd.h>

#include "frontend-glue/plugin/gvirtus_launch.h"
#include "frontend-glue/plugin/uncaught.h"

extern "C" {
#include "common/descriptor.h"
#include "common/handlers.h"
#include "common/log.h"
#include "frontend-glue/back_end_processes/client_processes.h"
#include "frontend-glue/back_end_processes/supervisor.h"
#include "frontend-glue/call_pipeline/pipeline.h"
#include "frontend-glue/device_copies/device_copies.h"
#include "frontend-glue/clients/last_requests.h"
#include "frontend-glue/plugin/attach.h"
#include "frontend-glue/plugin/config.h"
#include "frontend-glue/session/session.h"
#include "transport/core/crypto.h"
}

namespace gvirtus::communicators
{

class Endpoint
{
  public:
    virtual Endpoint &suite(const std::string &suite) = 0;
    virtual const std::string &suite() const = 0;
    virtual Endpoint &protocol(const std::string &protocol) = 0;
    virtual const std::string &protocol() const = 0;
    virtual const std::string to_string() const = 0;

  protected:
    ~Endpoint() = default;

    std::string suite_field;
    std::string protocol_field;
};

// Endpoint_Tcp and Endpoint_Rdma alike.
class AddressEndpoint : public Endpoint
{
  public:
    std::string address_field;
    std::uint16_t port_field;
};

static_assert(sizeof(Endpoint) == 72, "an endpoint's layout is GVirtuS's");
static_assert(sizeof(AddressEndpoint) == 112, "an endpoint's layout is GVirtuS's");

class Communicator
{
  public:
    virtual ~Communicator() = default;
    virtual void Serve() = 0;
    virtual const Communicator *Accept() const = 0;
    virtual void Connect() = 0;
    virtual std::size_t Read(char *buffer, std::size_t size) = 0;
    virtual std::size_t Write(const char *buffer, std::size_t size) = 0;
    virtual void Sync() = 0;
    virtual void Close() = 0;
    virtual std::string to_string() = 0;
    virtual void run() = 0;
};

} // namespace gvirtus::communicators

namespace
{

using gvirtus::communicators::AddressEndpoint;
using gvirtus::communicators::Communicator;
using gvirtus::communicators::Endpoint;

[[gnu::constructor]] void begin()
{
    ibx_log_of_library();
    ibx_descriptors_of_library();
    ibx_crypto_stay();
}

// Thrown by Connect and create_communicator only. G3 catches std::string, G5 std::exception.
class Failure : public std::string, public std::exception
{
  public:
    explicit Failure(const char *text) : std::string(std::string("ibx: ") + text) {}
    const char *what() const noexcept override { return c_str(); }
};

// Around a CUDA call. A thread that is cancelled inside the call ends after it, and handlers of the
// program's signals run after it, or while it waits.
class Inside
{
  public:
    Inside() : inside(ibx_inside_begin()) {}
    ~Inside() { ibx_inside_end(inside); }
    Inside(const Inside &) = delete;
    Inside &operator=(const Inside &) = delete;

  private:
    ibx_inside inside;
};

// Logs too: a front end of G3 crashes on the exception, with GVirtuS's message still in a buffer.
[[noreturn]] void fail(const ibx_error &err)
{
    ibx_log(IBX_LOG_ERROR, "%s", err.message);
    throw Failure(err.message);
}

class RdmaCommunicator final : public Communicator
{
  public:
    RdmaCommunicator(ibx_session *of, bool serves, ibx_pipeline_mode early = IBX_PIPELINE_OFF)
        : session(of), server(serves), mode(early)
    {
    }
    RdmaCommunicator(const RdmaCommunicator &) = delete;
    RdmaCommunicator &operator=(const RdmaCommunicator &) = delete;
    ~RdmaCommunicator() override
    {
        if (ibx_inside_exits()) // GVirtuS destroys it outside of all calls, or in exit(3)
            return;
        Inside hold;
        if (!ibx_detach(attachment, true) && ibx_pipeline_destroy(pipeline))
            ibx_session_destroy(session);
        ibx_last_requests_destroy(last);
    }

    // Runs in the back end's forked child, where an exception would end in abort(3). A message and
    // an exit status serve the operator better.
    void Serve() override
    {
        ibx_error err{};
        if (ibx_session_serve(session, &err)) {
            ibx_log(IBX_LOG_ERROR, "%s", err.message);
            _exit(EXIT_FAILURE);
        }
        ibx_supervise(session);
    }

    const Communicator *Accept() const override
    {
        ibx_error err{};
        ibx_session *peer = nullptr;
        ibx_uncaught_prepare();
        if (ibx_session_accept(session, &peer, &err)) {
            ibx_log(IBX_LOG_ERROR, "%s", err.message);
            _exit(EXIT_FAILURE);
        }
        return new RdmaCommunicator(peer, true);
    }

    // GVirtuS ends the program if this fails. So in a thread of the preload's own, which can report
    // the failure of a call, the first Write connects. So it does where other threads wait until
    // GVirtuS has made this one's front end.
    void Connect() override
    {
        Inside hold;
        ibx_error err{};
        lacks_connection = ibx_attach_attempt() != 0;
        is_held = !lacks_connection && ibx_attach_holds();
        if (!lacks_connection && !is_held && connect_now(&err))
            fail(err);
    }

    std::size_t Read(char *buffer, std::size_t size) override
    {
        if (ibx_inside_cut_off()) {
            ibx_session_answer_unloading(buffer, size);
            return size;
        }
        Inside hold;
        if (!size || !session)
            return size ? read_last(buffer, size) : 0;
        if (server)
            ibx_uncaught_ends(handler_failed, this);
        if (pipeline ? ibx_pipeline_read(pipeline, buffer, size)
                     : ibx_session_read(session, buffer, size) == static_cast<ssize_t>(size)) {
            ibx_attachment_on_read(attachment, buffer, size);
            return size;
        }
        if (server)
            return server_ended(buffer, size);
        ibx_session_answer(session, buffer, size);
        // GVirtuS gives the program a null handle for an error, and uses it at the module's end.
        if (registers && !ibx_attachment_preloaded(attachment))
            ibx_session_answer_registration(buffer, size);
        ibx_attachment_on_read(attachment, buffer, size);
        return size;
    }

    // A failure shows in the next Read.
    std::size_t Write(const char *buffer, std::size_t size) override
    {
        if (ibx_inside_cut_off())
            return size;
        if (is_held)
            connect_held();
        Inside hold;
        const bool tries = lacks_connection && last_attempt != ibx_attach_attempt();
        if (tries || ibx_attachment_ended(attachment))
            begin_anew();
        if (begins)
            registers = size == sizeof(registration) && !std::memcmp(buffer, registration, size);
        begins = false;
        ibx_attachment_on_write(attachment, buffer, size);
        if (pipeline)
            ibx_pipeline_write(pipeline, buffer, size);
        else if (session)
            ibx_session_write(session, buffer, size);
        return size;
    }

    void Sync() override
    {
        if (ibx_inside_cut_off())
            return;
        Inside hold;
        begins = true;
        if (pipeline)
            ibx_pipeline_sync(pipeline);
        else if (session)
            ibx_session_sync(session);
        ibx_last_requests_answered(last);
    }

    void Close() override
    {
        if (ibx_inside_cut_off())
            return;
        Inside hold;
        ibx_pipeline_finish_last(pipeline);
        ibx_pipeline_lock(pipeline);
        if (session)
            ibx_session_close(session);
        ibx_pipeline_unlock(pipeline);
    }

    // With this answer the back end reads a routine's name byte by byte; others end its child.
    std::string to_string() override { return "tcpcommunicator"; }

    void run() override {}

  private:
    int connect_now(ibx_error *err)
    {
        ibx_attach_begins();
        if (const int rc = ibx_session_connect(session, err))
            return rc;
        pipeline = ibx_pipeline_create(session, mode);
        attachment = ibx_attach(session, pipeline, ibx_launch_by_gvirtus);
        return 0;
    }

    // Ends the program as GVirtuS does if Connect fails.
    void connect_held()
    {
        is_held = false;
        ibx_attach_lets();
        ibx_error err{};
        int rc = 0;
        {
            Inside hold;
            rc = connect_now(&err);
        }
        if (!rc)
            return;
        ibx_log(IBX_LOG_ERROR, "%s", err.message);
        end_program();
    }

    // One thread at a time: of several in exit(3) one may end the process while the program's
    // destructors run in another. The first one may wait for this one, so not for ever.
    [[noreturn]] static void end_program()
    {
        static pthread_mutex_t ends = PTHREAD_MUTEX_INITIALIZER;
        timespec until{};
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += 3;
        pthread_mutex_clocklock(&ends, CLOCK_MONOTONIC, &until);
        std::exit(EXIT_FAILURE);
    }

    // GVirtuS knows a thread by its number, which the system uses again. A failure shows in the
    // next Read.
    void begin_anew()
    {
        ibx_error err{};
        ibx_session *fresh = nullptr;
        ibx_attach_lets();
        ibx_attach_begins();
        ibx_detach(attachment, false);
        attachment = nullptr;
        last_attempt = ibx_attach_attempt();
        int rc = ibx_session_create_like(session, &fresh, &err);
        if (!rc) {
            if (ibx_pipeline_destroy(pipeline))
                ibx_session_destroy(session);
            pipeline = nullptr;
            session = fresh;
            rc = ibx_session_connect(session, &err);
        }
        lacks_connection = rc != 0;
        if (rc) {
            ibx_log(IBX_LOG_ERROR, "%s", err.message);
            ibx_session_reason_logged(session);
            return;
        }
        pipeline = ibx_pipeline_create(session, mode);
        attachment = ibx_attach(session, pipeline, ibx_launch_by_gvirtus);
    }

    // When this function returns, the thread ends.
    static void handler_failed(void *communicator, const char *what)
    {
        auto *mine = static_cast<RdmaCommunicator *>(communicator);
        if (mine->session) {
            ibx_log(IBX_LOG_WARN,
                    "the session of %s ends: GVirtuS's handler of its request failed: %s",
                    ibx_session_path(mine->session)->peer, what);
            ibx_session_abandon(mine->session);
        }
        ibx_session_destroy(mine->session);
        mine->session = nullptr;
        ibx_last_requests_destroy(mine->last);
        mine->last = nullptr;
    }

    // Between requests a read of 0 ends this client's thread and nothing else. Inside a request
    // GVirtuS ignores the 0 and runs the routine on whatever its buffer holds, which can end every
    // other client; so the thread, which serves only this client, ends here. GVirtuS never deletes
    // what Accept returned, so everything but this object is freed now. Before the thread gets the
    // 0, GVirtuS's handlers in it run the last requests of clients that have ended.
    std::size_t server_ended(char *buffer, std::size_t size)
    {
        bool in_frame = ibx_session_in_frame(session);
        ibx_uncaught_ends(nullptr, nullptr);
        ibx_session_destroy(session);
        session = nullptr;
        if (in_frame)
            pthread_exit(nullptr);
        last = ibx_last_requests_create();
        return read_last(buffer, size);
    }

    std::size_t read_last(char *buffer, std::size_t size)
    {
        if (!last)
            return 0;
        ibx_uncaught_ends(handler_failed, this);
        const std::size_t n = ibx_last_requests_read(last, buffer, size);
        if (!n) {
            ibx_uncaught_ends(nullptr, nullptr);
            ibx_last_requests_destroy(last);
            last = nullptr;
        }
        return n;
    }

    static constexpr char registration[] = "cudaRegisterFatBinary";

    ibx_session *session; // null: it was accepted, and its client has gone
    bool server;
    ibx_pipeline_mode mode;
    ibx_pipeline *pipeline = nullptr;     // of a client's session
    ibx_attachment *attachment = nullptr; // to the thread that connected
    bool begins = true;                   // the next write begins a request
    bool registers = false;               // the present request is a registration
    bool is_held = false;                 // a front end's: its first Write connects
    bool lacks_connection = false;        // a front end's, until an attempt succeeds
    std::uint64_t last_attempt = 0;       // ibx_attach_attempt() when begin_anew() last tried
    ibx_last_requests *last = nullptr;    // of a server's thread whose client has gone
};

} // namespace

// GVirtuS declares a C++ type behind a C name, of which clang warns.
#ifdef __clang__
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#endif

// GVirtuS calls it in the parent of the serving process, and on the client inside a static
// initialiser: so it only reads the configuration.
extern "C" __attribute__((visibility("default"))) std::shared_ptr<Communicator>
create_communicator(std::shared_ptr<Endpoint> endpoint)
{
    std::string address;
    std::uint16_t port = 0;
    if (endpoint && (endpoint->suite() == "tcp/ip" || endpoint->suite() == "infiniband-rdma")) {
        auto *with_address = static_cast<AddressEndpoint *>(endpoint.get());
        address = with_address->address_field;
        port = with_address->port_field;
    }
    ibx_error err{};
    ibx_session *session = nullptr;
    auto config = std::make_unique<ibx_glue_config>();
    const auto load = ibx_attach_attempt() ? ibx_glue_config_load_again : ibx_glue_config_load;
    if (load(address.c_str(), port, config.get(), &err) ||
        ibx_session_create(config->uri, &config->options, &session, &err))
        fail(err);
    if (ibx_device_copies_attach(session, &config->gpu, &err)) {
        ibx_session_destroy(session);
        fail(err);
    }
    const auto share = config->gpu.limits.share;
    ibx_processes processes{};
    processes.each = config->processes;
    processes.required = config->processes_given;
    processes.share = static_cast<unsigned>(share ? share : IBX_TENANT_SHARE);
    processes.own_share = static_cast<unsigned>(share ? share : 100);
    processes.most = static_cast<unsigned>(config->most_processes);
    processes.spares = static_cast<unsigned>(config->spare_processes);
    processes.idle_seconds = static_cast<unsigned>(config->idle_seconds);
    ibx_session_set_processes(session, &processes, &ibx_client_processes_admission);
    ibx_session_keep(session, static_cast<unsigned>(config->resume_seconds));
    // "server" only decides how a Read reports failures, and the listening object never reads.
    return std::make_shared<RdmaCommunicator>(session, false, config->pipeline);
}
