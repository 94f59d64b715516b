/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ISLAND: where neither the kernel nor a sanitizer puts anything by itself, so that what a test
 * unmaps stays so, or it can map it again. (Thread sanitizers allow less.) */
#ifndef IBX_TESTS_SCENES_ISLAND_H
#define IBX_TESTS_SCENES_ISLAND_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#elif __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define ISLAND 0x2000000000ull
#else
#define ISLAND 0x200000000000ull
#endif

#endif
