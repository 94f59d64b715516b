// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Page-locked memory as arguments of kernels, above all what the program has registered: what is
// said, and what is left.
#include "tests/gvirtus/frontend_scene.h"

namespace
{

// A client whose sessions are not known to be those of one program.
bool of_unknown()
{
    GpuBackEnd back(true, "rdma.resume_seconds : 0\n");
    Application app(&back, application, "kernels-and-page-locked");
    REQUIRE(app.good() && !has_maps(back));
    return HOLDS(lines_with(app.said(), "kernels do not reach") == 1);
}

// There is no memory for mappings at times, which is said once for each direction.
bool beside_others()
{
    GpuBackEnd back;
    Application app(&back, application, "registered-beside-others", "taken");
    REQUIRE(app.good());
    const std::size_t told = lines_with(app.said(), "kernels do not reach");
    const std::size_t left = lines_with(app.said(), "stay in memory that is shared");
    REQUIRE(told == 1 && left == (provider == "shm"));
    return HOLDS(lines_with(app.said(), "ibx:") == told + left);
}

// Each allocation is pinned for kernels and for copies, and what copies had of the one before may
// be pinned still.
bool within_pins()
{
    GpuBackEnd back(true, "rdma.pins : 14M\n");
    Application app(&back, application, "page-locked-again", "taken");
    return HOLDS(app.good() && lines_with(app.said(), "ibx:") == 0);
}

// The back end has no room to pin the memory of one launch, which is said once.
bool one_has_no_room(const char *test, const char *settings)
{
    GpuBackEnd back(true, settings);
    Application app(&back, application, test, "taken");
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "kernels do not reach") == 1 &&
                 lines_with(app.said(), "ibx:") == 1);
}

bool places_in_children(const char *test)
{
    GpuBackEnd back;
    Application app(&back, application, test, "taken");
    REQUIRE(app.good());
    const std::size_t told = lines_with(app.said(), "in place of which a handler");
    const std::size_t others = lines_with(app.said(), "kernels do not reach");
    return HOLDS(told == (provider == "shm") && others == (provider != "shm") &&
                 lines_with(app.said(), "ibx:") == told + others);
}

} // namespace

bool reach(const char *test, bool taken)
{
    GpuBackEnd back(taken);
    Application app(&back, application, test, taken ? "taken" : nullptr);
    REQUIRE(app.good());
    while (has_maps(back)) // the test's limit ends it otherwise
        usleep(1000);
    REQUIRE(lines_with(app.said(), "ibx:") == lines_with(app.said(), "kernels do not reach"));
    return HOLDS(lines_with(app.said(), "ibx:") <= 1);
}

void check_registered()
{
    check("... of a client that is not known", of_unknown);
    for (const bool taken : {true, false})
        check("registered memory in kernels",
              [=] { return reach("registered-in-kernels", taken); });
    check("registered memory that threads write to", beside_others);
    check("registered memory and forks", [] { return reach("registered-and-forks", true); });
    check("registered memory where a child has something",
          [] { return places_in_children("registered-and-handlers-of-forks"); });
    check("registered memory where the back end has something",
          [] { return reach("registered-anywhere", true); });
    check("registered memory beyond pins",
          [] { return one_has_no_room("registered-beyond-pins", "rdma.pins : 6M\n"); });
    check("page-locked memory within pins", within_pins);
    check("page-locked memory that ends beside streams with work",
          [] { return reach("page-locked-ends", true); });
    // There is room for each allocation once, so a launch takes that of the pin for copies, but for
    // one beside work that does not end. Over others the back end has no pages of the program's.
    if (provider == "shm")
        check("... that have room for it once", [] {
            return one_has_no_room("page-locked-in-turn",
                                   "rdma.pins : 6M\nrdma.tenant_share : 100\n");
        });
}
