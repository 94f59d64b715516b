// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A libcudart of the tests that does what GVirtuS's does: every call is a frame over the thread's
// connection, which create_communicator() of a plugin has made. Types are those of CUDA's header.
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
int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, std::size_t n,
                        void *stream);
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

// The rest exists only in this library. A kernel that copies within the device, launched as GVirtuS
// does it.
int stub_launch(void *to, const void *from, std::size_t n, void *stream);
// The function by which an application names this kernel; its arguments are pointers to `to`,
// `from` and `n`.
extern char stub_kernel;
// Names in modules that are loaded: of this kernel, of one that CUDA cannot compile, and of one for
// which the device has no memory now.
#define STUB_LIBRARY_KERNEL "library_kernel"
#define STUB_STRANGE_KERNEL "strange_kernel"
#define STUB_LARGE_KERNEL   "large_kernel"
// Whether this library takes the kernel, as G5 does, for an earlier one of the same name that had
// only the first two arguments.
void stub_takes_for_another(bool takes);
struct StubDim3 {
    unsigned x, y, z;
};
int cudaLaunchKernel(const void *function, StubDim3 grid, StubDim3 block, void **arguments,
                     std::size_t shared, void *stream);
// Kernels whose names are the numbers of IBX_DOUBLE_WIDE: up to this one the library knows their
// arguments. It takes others for kernels without arguments, as G5 does.
#define STUB_WIDE_KNOWN 4000u
// Launches of all threads that have reached this library.
std::uint64_t stub_launches();
// How many modules GVirtuS would have unloaded at the back end; and what was registered, as
// cudart_modules.cpp notes it.
std::uint64_t stub_unloads();
const char *stub_registered();
// How many functions of modules; for threads that must not read the text meanwhile.
std::uint64_t stub_functions();
// While `held`, a thread that has registered a module stays in that call. Whether one does.
void stub_hold_registered(bool held);
bool stub_holds_registered();
// From now on registrations go to the back end, as GVirtuS sends them, for modules of n bytes.
void stub_registers(std::size_t n);
// Calls of all threads that copied memory and have reached this library.
std::uint64_t stub_copies();
// Calls for page-locked memory, or that freed it (the library has no cudaHostRegister).
std::uint64_t stub_hosts();
// Calls that selected a device.
std::uint64_t stub_selections();
// How many threads have connected at the same time, at most.
unsigned stub_connecting_most();
int stub_endpoint(const char *path);
unsigned stub_endpoints_read();
// All calls that went over a connection, except those by stub_remote().
std::uint64_t stub_calls();
unsigned stub_unlocked_looks(); // front_end.cpp
// Has the library take this thread for one that has ended, as if it had that thread's number.
void stub_same_number(pid_t ended);
// The mode of this thread's captures.
int cudaThreadExchangeStreamCaptureMode(int *mode);
int stub_capture_mode();
unsigned stub_capture_modes_set();
// A function that the library's destructor calls.
void stub_at_end(void (*function)());
// Ends this thread's connection, as GVirtuS's destructors do.
void stub_close();
// Only closes it; it stays this thread's.
void stub_disconnect();
// This thread's connection.
Remote *stub_remote();
}

#endif
