/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A child that is forked beside other threads may allocate, as with glibc's own allocator: that of
 * AddressSanitizer before LLVM 18 leaves it every lock that one of those threads had at the fork.
 * It has these functions for LeakSanitizer, which stops all threads in the same way. Programs that
 * are linked with this file have them at each fork; it does nothing without AddressSanitizer.
 */
#if defined(__clang__) && __clang_major__ < 18
#if __has_feature(address_sanitizer)

#include <pthread.h>

#define OF_THE_SANITIZER(name) __asm__(name) __attribute__((weak))

void lock_threads(void) OF_THE_SANITIZER("_ZN6__lsan18LockThreadRegistryEv");
void unlock_threads(void) OF_THE_SANITIZER("_ZN6__lsan20UnlockThreadRegistryEv");
void lock_allocator(void) OF_THE_SANITIZER("_ZN6__lsan13LockAllocatorEv");
void unlock_allocator(void) OF_THE_SANITIZER("_ZN6__lsan15UnlockAllocatorEv");
void lock_stacks(void) OF_THE_SANITIZER("_ZN11__sanitizer17StackDepotLockAllEv");
void unlock_stacks(void) OF_THE_SANITIZER("_ZN11__sanitizer19StackDepotUnlockAllEv");

__attribute__((no_sanitize("address"))) static void before_fork(void)
{
    lock_threads();
    lock_allocator();
    lock_stacks();
}

__attribute__((no_sanitize("address"))) static void after_fork(void)
{
    unlock_stacks();
    unlock_allocator();
    unlock_threads();
}

/* Before the constructors of libraries, so that what these do before a fork comes first, and what
 * they do in a child after this: it may allocate. */
static void begin(void)
{
    if (lock_threads && unlock_threads && lock_allocator && unlock_allocator && lock_stacks &&
        unlock_stacks)
        pthread_atfork(before_fork, after_fork, after_fork);
}

__attribute__((section(".preinit_array"), used)) static void (*const at_start)(void) = begin;

#endif
#endif
