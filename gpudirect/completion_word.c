/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/completion_word.h"

#include "common/clock.h"
#include "common/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ASK_NS       ((uint64_t)100000) /* of polling before the driver is asked about the stream */
#define ASK_MOST_NS  ((uint64_t)1000000) /* longest time between two such questions */
#define SPIN_NS      ((uint64_t)10000000)
#define REST_MOST_NS ((uint64_t)1000000)

struct page {
    void *context;
    uint8_t *bytes;
    struct ibx_word words[IBX_WORD_COUNT];
};

/* The mutex is not held while the driver is called, which may take long. */
static struct {
    pthread_mutex_t mutex;
    pid_t owner; /* a child forked since has neither the pages nor a context */
    struct page pages[IBX_WORD_CONTEXTS];
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool usable(const struct ibx_cuda *cuda)
{
    int device, one_address = 0;
    return cuda->stream_write_value32 && ibx_thread_may_spin() && !cuda->ctx_get_device(&device) &&
           !cuda->device_get_attribute(&one_address, IBX_CUDA_DEVICE_HOST_POINTER, device) &&
           one_address;
}

/* The caller holds the mutex. */
static bool map_page(struct page *page, void *context)
{
    uint8_t *bytes = mmap(NULL, IBX_WORD_PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (bytes == MAP_FAILED)
        return false;
    madvise(bytes, IBX_WORD_PAGE, MADV_DONTFORK);
    *page = (struct page){.context = context, .bytes = bytes};
    for (unsigned i = 0; i < IBX_WORD_COUNT; i++)
        page->words[i].at = (_Atomic uint32_t *)(void *)(bytes + (size_t)i * IBX_WORD_LINE);
    return true;
}

/* The context's page, or a new one; NULL: all pages belong to other contexts. The caller holds the
 * mutex. */
static struct page *find_page(void *context)
{
    if (pool.owner != getpid()) {
        memset(pool.pages, 0, sizeof(pool.pages));
        pool.owner = getpid();
    }
    struct page *page = pool.pages, *const end = page + IBX_WORD_CONTEXTS;
    while (page < end && page->bytes && page->context != context)
        page++;
    return page < end && (page->bytes || map_page(page, context)) ? page : NULL;
}

/* Marks words that nobody has taken as written: the context that was told to write them is gone.
 * The caller holds the mutex. */
static void settle(struct page *page)
{
    for (unsigned i = 0; i < IBX_WORD_COUNT; i++) {
        struct ibx_word *word = &page->words[i];
        if (!word->taken)
            atomic_store(word->at, word->told);
    }
}

/* The caller holds the mutex. */
static struct ibx_word *take(struct page *page)
{
    for (unsigned i = 0; i < IBX_WORD_COUNT; i++) {
        struct ibx_word *word = &page->words[i];
        if (word->taken || atomic_load(word->at) != word->told)
            continue;
        word->taken = true;
        return word;
    }
    return NULL;
}

struct ibx_word *ibx_word_take(const struct ibx_cuda *cuda, void *context)
{
    if (!usable(cuda))
        return NULL;
    pthread_mutex_lock(&pool.mutex);
    struct page *page = find_page(context);
    pthread_mutex_unlock(&pool.mutex);
    if (!page)
        return NULL;
    const int rc =
        cuda->mem_host_register(page->bytes, IBX_WORD_PAGE, IBX_CUDA_HOST_REGISTER_PORTABLE);
    if (rc && rc != IBX_CUDA_HOST_MEMORY_REGISTERED)
        return NULL;
    pthread_mutex_lock(&pool.mutex);
    if (!rc)
        settle(page);
    struct ibx_word *word = take(page);
    pthread_mutex_unlock(&pool.mutex);
    return word;
}

void ibx_word_give(struct ibx_word *word)
{
    if (!word || pool.owner != getpid()) /* a forked child may have inherited a locked mutex */
        return;
    pthread_mutex_lock(&pool.mutex);
    word->taken = false;
    pthread_mutex_unlock(&pool.mutex);
}

int ibx_word_set(const struct ibx_cuda *cuda, struct ibx_word *word, void *stream)
{
    const int rc =
        cuda->stream_write_value32(stream, (uint64_t)(uintptr_t)word->at, word->told + 1, 0);
    word->told += !rc;
    return rc;
}

/* After SPIN_NS, sleeps for a hundredth of the time waited so far. */
static void rest(uint64_t waited)
{
    if (waited < SPIN_NS)
        return;
    const uint64_t ns = waited / 100 < REST_MOST_NS ? waited / 100 : REST_MOST_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

/* Asks the driver whether the work of the stream has ended. 0, IBX_CUDA_NOT_READY or an error. */
static int ask_driver(const struct ibx_cuda *cuda, void *stream, void *event, bool *recorded)
{
    if (stream && stream != IBX_CUDA_STREAM_LEGACY)
        return cuda->stream_query(stream);
    const int rc = *recorded ? 0 : cuda->event_record(event, stream);
    if (rc)
        return ibx_cuda_is_of_capture(rc) ? IBX_CUDA_NOT_READY : rc;
    *recorded = true;
    return cuda->event_query(event);
}

/* The word may keep another value than the newest one, if an older value is written after it (which
 * happens if waiting for an earlier copy, in another stream, had failed). Then the driver's 0 ends
 * the wait: all work of the stream is over. */
int ibx_word_wait(const struct ibx_cuda *cuda, const struct ibx_word *word, void *stream,
                  void *event)
{
    bool recorded = false;
    const uint64_t began = ibx_now_ns();
    uint64_t now = began, ask = began + ASK_NS;
    for (unsigned i = 1; atomic_load_explicit(word->at, memory_order_acquire) != word->told; i++) {
        ibx_cpu_relax();
        if (i % 64 || (now = ibx_now_ns()) < ask)
            continue;
        const int rc = ask_driver(cuda, stream, event, &recorded);
        if (rc != IBX_CUDA_NOT_READY)
            return rc;
        rest(now - began);
        ask = now + (now - began);
        ask = ask < now + ASK_MOST_NS ? ask : now + ASK_MOST_NS;
    }
    return 0;
}
