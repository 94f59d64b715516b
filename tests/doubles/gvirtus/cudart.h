// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A libcudart of the tests' own that does what GVirtuS's does: every call is a frame that goes
// through create_communicator of a plugin, over one connection a thread. Types as in CUDA's header.
#ifndef TESTS_FRONTEND_CUDART_H
#define TESTS_FRONTEND_CUDART_H

#include <cstddef>
#include <cstdint>
#include <sys/types.h>

class Remote;

extern "C" {
int cudaMalloc(void **device, std::size_t n);
int cudaFree(void *device);
int cudaMemcpy(void *to, const void *from, std::size_t n, int kind);
int cudaMemcpyAsync(void *to, const void *from, std::size_t n, int kind, void *stream);
int cudaMallocPitch(void **device, std::size_t *pitch, std::size_t width, std::size_t height);
int cudaMemcpy2D(void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch,
                 std::size_t width, std::size_t height, int kind);
int cudaMemcpy2DAsync(void *to, std::size_t to_pitch, const void *from, std::size_t from_pitch,
                      std::size_t width, std::size_t height, int kind, void *stream);
int cudaGetSymbolAddress(void **address, const void *symbol);
int cudaMemcpyToSymbol(const void *symbol, const void *from, std::size_t n, std::size_t offset,
                       int kind);
int cudaStreamCreate(void **stream);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaGraphLaunch(void *exec, void *stream);
int cudaStreamSynchronize(void *stream);
int cudaStreamQuery(void *stream);
int cudaEventCreate(void **event);
int cudaEventCreateWithFlags(void **event, unsigned flags);
int cudaEventDestroy(void *event);
int cudaDeviceReset();
int cudaEventRecord(void *event, void *stream);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int cudaEventQuery(void *event);
int cudaMemset(void *to, int value, std::size_t n);
int cudaMemsetAsync(void *to, int value, std::size_t n, void *stream);
int cudaEventSynchronize(void *event);
int cudaGetLastError();
int cudaPeekAtLastError();
int cudaDeviceSynchronize();
int cudaSetDevice(int device);
int cudaGetDevice(int *device);
int cudaGetDeviceCount(int *count);
int cudaDeviceGetAttribute(int *value, int attribute, int device);
int cudaDeviceCanAccessPeer(int *can, int device, int peer);
int cudaDeviceEnablePeerAccess(int peer, unsigned flags);
int cudaDeviceDisablePeerAccess(int peer);
int cudaMallocHost(void **address, std::size_t n);
int cudaHostAlloc(void **address, std::size_t n, unsigned flags);
int cudaFreeHost(void *address);

// What only this one has: a kernel that copies within the device, launched as GVirtuS does it ...
int stub_launch(void *to, const void *from, std::size_t n, void *stream);
// ... the function by which an application names it, with pointers to these three as arguments ...
extern char stub_kernel;
// ... and this is what a module that is loaded calls it.
#define STUB_LIBRARY_KERNEL "library_kernel"
#define STUB_STRANGE_KERNEL "strange_kernel"
// ... which it takes, as G5, for one of that name that it has seen before, and that had the first
// two arguments alone ...
void stub_takes_for_another(bool takes);
struct StubDim3 {
    unsigned x, y, z;
};
int cudaLaunchKernel(const void *function, StubDim3 grid, StubDim3 block, void **arguments,
                     std::size_t shared, void *stream);
// ... kernels that are named by the numbers of IBX_DOUBLE_WIDE; it knows the arguments of those up
// to here, and takes others for kernels that have none, as G5 ...
#define STUB_WIDE_KNOWN 4000u
// ... the launches that have reached it, of all threads ...
std::uint64_t stub_launches();
// ... the modules that GVirtuS would take from the back end ...
std::uint64_t stub_unloads();
const char *stub_registered();
// ... whether who has registered a module stays there, and whether one does ...
void stub_hold_registered(bool held);
bool stub_holds_registered();
// ... from now on it tells the back end of all these, as GVirtuS does, of modules with n bytes ...
void stub_registers(std::size_t n);
// ... the calls that copied memory and have reached it, likewise ...
std::uint64_t stub_copies();
// ... those that asked for page-locked memory or gave it back (it has no cudaHostRegister) ...
std::uint64_t stub_hosts();
// ... those that selected a device ...
std::uint64_t stub_selections();
// ... how many threads have connected at once, at most ...
unsigned stub_connecting_most();
// ... all that went over a connection, but for those by stub_remote() ...
std::uint64_t stub_calls();
unsigned stub_unlocked_looks(); // front_end.cpp
// ... that this thread has the number of one that has ended, as far as it tells them apart ...
void stub_same_number(pid_t ended);
// ... the mode of this thread's captures ...
int cudaThreadExchangeStreamCaptureMode(int *mode);
int stub_capture_mode();
// ... a function that its destructor calls ...
void stub_at_end(void (*function)());
// ... the end of this thread's connection, as of GVirtuS's destructors ...
void stub_close();
// ... and this thread's connection.
Remote *stub_remote();
}

#endif
