/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A relay between the two encrypting tools of a migration. All of their bytes go through it; it
 * records them and changes one. No VM ever runs with a wrong page: it stays at the source, or
 * the connection breaks and is made again, and the changed data is sent once more. The recorded
 * bytes contain no guest page.
 *
 * Without encryption but with a key, the relay changes one byte of a known field: of the
 * handshake, of tcp's frames, or of a message of the migration. The result is the same, except
 * where a READ gets another page than it should: that is detected after the commit, and the VM
 * is paused.
 *
 * Or the relay swallows everything from COMMIT or some later point on, or what the page connections
 * bring. Then the source connects again. */
#include "migrate/channel/protocol.h"
#include "tests/migrations/guest/churn.h"
#include "tests/fixtures/tcp_relay.h"

#include "common/clock.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define FLIPS    6u /* IBX_FLIPS in the environment changes the number */
#define RECORDED ((size_t)128 << 20)
#define SAMPLES  16u  /* guest pages that are searched for */
#define STALL_MS 8000 /* if a length is changed, an end waits for bytes that do not come */

#define HANDSHAKE_HEAD 5u /* length and type */
#define FRAME_HEAD     32u
#define FRAME_MESSAGE  1u
#define FRAME_READ     2u
#define READ_ADDRESS   24u /* its offset in the frame */
#define RESULT         7u  /* the last frame of each side's handshake */
#define TYPES          32u

enum layer { HANDSHAKE, FRAME, MESSAGE, LAYERS };
static const char *const layers[] = {"handshake", "tcp", "message"};

/* One byte of the first frame or message of its type. */
struct field {
    enum layer layer;
    bool to_receiver;
    unsigned type;
    size_t at;
};

/* The bytes of one direction of a socket. */
struct way {
    bool frames; /* the handshake is over */
    uint8_t head[FRAME_HEAD];
    size_t have, left; /* bytes of the head so far; bytes that follow it */
    struct field next;
};

/* ------------------------------------------------------------------------- the relay */

/* Of the relay's process, shared with the test. */
static struct wire {
    _Atomic size_t passed; /* bytes of all sockets and both directions, in order of arrival */
    size_t flip;           /* the number of the byte that is changed; SIZE_MAX: none */
    atomic_bool flipped, cut;
    atomic_bool swallows[TCP_RELAY_CONNECTIONS]; /* all of what the connection brings */
    atomic_uint control; /* the connection that has brought COMMIT, if fields are looked for */
    bool looks;          /* whether fields are looked for, and one of them changed in these bits */
    struct field field;
    uint8_t bits;
    /* the length of the longest one of each type; 0: none was sent */
    size_t longest[LAYERS][2][TYPES];
    bool records;
    uint8_t record[RECORDED];
} * wire;

/* The two directions of each connection; the second one is to the receiver. */
static struct way ways[TCP_RELAY_CONNECTIONS][2];

static void one_byte(struct way *way, uint8_t *byte)
{
    const struct field *at = &way->next, *f = &wire->field;
    if (at->type < TYPES) {
        size_t *longest = &wire->longest[at->layer][at->to_receiver][at->type];
        *longest = *longest > at->at ? *longest : at->at + 1;
    }
    if (!wire->flipped && f->layer == at->layer && f->to_receiver == at->to_receiver &&
        f->type == at->type && f->at == at->at) {
        *byte ^= wire->bits;
        wire->flipped = true;
    }
    way->next.at++;
}

/* The length of a handshake frame comes before its type, and is handled with the type. */
static void head_byte(struct way *way, uint8_t *byte)
{
    const size_t head = way->frames ? FRAME_HEAD : HANDSHAKE_HEAD;
    const uint8_t *length = way->head + (way->frames ? 12 : 0);
    way->head[way->have++] = *byte;
    way->next.layer = way->frames ? FRAME : HANDSHAKE;
    way->next.type = way->frames ? way->head[0] : way->have == HANDSHAKE_HEAD ? way->head[4] : 0;
    way->next.at = way->have - 1;
    if (way->have == head) {
        way->left = length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16;
        if (way->frames && way->next.type == FRAME_READ)
            way->left = 0;
        if (!way->frames)
            way->left--;
    }
    one_byte(way, byte);
}

static void parse(unsigned connection, bool to_receiver, uint8_t *bytes, size_t n)
{
    struct way *way = &ways[connection][to_receiver];
    for (size_t i = 0; i < n; i++) {
        const size_t head = way->frames ? FRAME_HEAD : HANDSHAKE_HEAD;
        if (way->have < head) {
            head_byte(way, &bytes[i]);
        } else {
            if (way->next.layer == FRAME && way->next.type == FRAME_MESSAGE) {
                way->next.layer = MESSAGE;
                way->next.type = bytes[i];
                if (to_receiver && bytes[i] == IBX_MIGRATE_COMMIT)
                    wire->control = connection;
                way->next.at = 0;
            }
            one_byte(way, &bytes[i]);
            way->left--;
        }
        if (way->have == head && !way->left) {
            way->frames = way->frames || way->next.type == RESULT;
            way->have = 0;
        }
    }
}

static void begin_ways(unsigned connection)
{
    wire->swallows[connection] = false;
    ways[connection][false] = (struct way){.next.to_receiver = false};
    ways[connection][true] = (struct way){.next.to_receiver = true};
}

static void change_and_record(unsigned connection, bool to_receiver, uint8_t *bytes, size_t n)
{
    const size_t passed = wire->passed;
    if (wire->looks)
        parse(connection, to_receiver, bytes, n);
    if (wire->flip - passed < n) {
        bytes[wire->flip - passed] ^= 0x10;
        wire->flipped = true;
    }
    if (wire->records && passed + n <= RECORDED)
        memcpy(wire->record + passed, bytes, n);
    wire->passed = passed + n;
}

static bool swallows(unsigned connection, bool to_receiver)
{
    (void)to_receiver;
    return wire->swallows[connection];
}

static bool cut_once(void)
{
    return atomic_exchange(&wire->cut, false);
}

static void relay_begin(size_t flip, bool records)
{
    static const struct tcp_relay relay = {
        .begins = begin_ways, .passes = change_and_record, .swallows = swallows, .cuts = cut_once};
    wire->passed = 0;
    wire->flip = flip;
    wire->flipped = wire->cut = false;
    wire->records = records;
    tcp_relay_begin(&receiver, &relay);
}

static int end(void **state)
{
    tcp_relay_end();
    return mover_end_all(state);
}

/* ---------------------------------------------------------------------- a migration */

static uint8_t samples[SAMPLES][256];

/* Hashes some of the guest's pages at the source; nothing changes them after the stop. */
static void take_samples(void)
{
    int fd = open(vms[0].ram, O_RDONLY | O_CLOEXEC);
    for (unsigned i = 0; i < SAMPLES; i++) {
        const off_t page = (off_t)i * (CHURN_MIB << 20 >> 12) / SAMPLES + 7;
        assert_int_equal(pread(fd, samples[i], sizeof(samples[i]), CHURN_BASE + (page << 12)),
                         sizeof(samples[i]));
    }
    close(fd);
}

static unsigned samples_recorded(void)
{
    unsigned found = 0;
    static const uint8_t zeros[sizeof(samples[0])];
    size_t have = wire->passed < RECORDED ? wire->passed : RECORDED;
    for (unsigned i = 0; i < SAMPLES; i++)
        found += memcmp(samples[i], zeros, sizeof(zeros)) != 0 &&
                 memmem(wire->record, have, samples[i], sizeof(samples[i])) != NULL;
    return found;
}

static void begin(const char *encryption, size_t flip, bool records)
{
    static char key[128], command[256];
    const char *const more[] = {"--key-file", key, "--set", encryption, NULL};
    pair_start(&(struct vm_options){.append = "idle=20000000"});
    snprintf(key, sizeof(key), "%s/key", mover_folder);
    snprintf(command, sizeof(command), "umask 077; openssl rand -hex 32 > %s", key);
    assert_int_equal(system(command), 0);
    pair_receive(more);
    relay_begin(flip, records);
    pair_send(more);
}

/* Waits for the sender's end. Returns its status. If nothing is sent any more, the relay cuts
 * all connections. */
static int sender_wait(unsigned *stalled)
{
    siginfo_t ended = {0};
    uint64_t limit = ibx_deadline_in_ms(STALL_MS);
    size_t passed = 0;
    while (!waitid(P_PID, (id_t)sender.pid, &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid) {
        if (passed != wire->passed)
            limit = ibx_deadline_in_ms(STALL_MS);
        passed = wire->passed;
        if (ibx_now_ns() >= limit) {
            wire->cut = true;
            *stalled += 1;
            limit = ibx_deadline_in_ms(STALL_MS);
        }
        poll(NULL, 0, 20);
    }
    return mover_wait(&sender);
}

/* The VM stays at the source. The destination, unless it has ended, waits for it or another VM
 * until it is told to end. */
static void receiver_gives_up(void)
{
    const uint64_t deadline = vm_soon();
    siginfo_t ended = {0};
    bool again = false;
    mover_kill(&receiver, SIGINT);
    while (!waitid(P_PID, (id_t)receiver.pid, &ended, WEXITED | WNOHANG | WNOWAIT) &&
           !ended.si_pid && ibx_now_ns() < deadline) {
        if (!again && mover_printed(&receiver, "never ran here")) {
            again = true;
            mover_kill(&receiver, SIGINT);
        }
        poll(NULL, 0, 20);
    }
    assert_int_not_equal(mover_wait(&receiver), 0);
}

/* Checks that the VM is where the tools say. Returns whether it is at the destination. */
static bool check_the_end(int status)
{
    if (status) {
        receiver_gives_up();
        pair_stays();
        mover_heartbeats((const struct vm *[]){&vms[0], NULL}, "");
    } else {
        mover_ends(&receiver, 0);
        pair_moved("");
    }
    return !status;
}

/* Returns how many of the sampled pages were seen. */
static unsigned found_in_a_move(const char *encryption)
{
    begin(encryption, SIZE_MAX, true);
    pair_done();
    assert_true(wire->passed > 1 << 20);
    take_samples();
    unsigned found = samples_recorded();
    print_message("%s: %zu bytes, %u of %u pages found\n", encryption, wire->passed, found,
                  SAMPLES);
    pair_moved("");
    return found;
}

static void test_a_recorder_finds_no_guest_page(void)
{
    assert_true(found_in_a_move("encryption=off") > SAMPLES / 2); /* shows that the search works */
    end(NULL);
    assert_int_equal(found_in_a_move("encryption=required"), 0);
}

static void test_no_changed_byte_is_taken(void)
{
    const char *number = getenv("IBX_FLIPS");
    const unsigned flips = number ? (unsigned)atoi(number) : FLIPS;
    unsigned flipped = 0, stayed = 0, again = 0, unnoticed = 0, stalled = 0;
    begin("encryption=required", SIZE_MAX, false);
    pair_done();
    const size_t total = wire->passed;
    end(NULL);
    srand((unsigned)time(NULL));
    /* A byte after the end of this migration, which may be shorter than the first one, is not
     * changed. */
    for (unsigned i = 0; flipped < flips && i < 2 * flips; i++) {
        /* Every other change is during handshakes and control messages, which are only a small
         * part. */
        const size_t flip = ((size_t)rand() << 16 ^ (size_t)rand()) % (i % 2 ? total : 16384);
        begin("encryption=required", flip, false);
        const int status = sender_wait(&stalled);
        const bool broke = mover_printed(&sender, "reconnecting") ||
                           mover_printed(&sender, "made again") ||
                           mover_printed(&receiver, "reconnecting") || stalled;
        print_message("byte %zu of %zu: the sender ended with %d%s\n", flip, total, status,
                      broke ? ", after a break" : "");
        check_the_end(status);
        flipped += wire->flipped;
        stayed += status != 0;
        again += !status && broke;
        unnoticed += wire->flipped && !status && !broke;
        end(NULL);
    }
    print_message("%u changed; %u stayed at the source, %u broke and came again, %u unnoticed; "
                  "%u times nothing went on\n",
                  flipped, stayed, again, unnoticed, stalled);
    assert_int_equal(flipped, flips);
    /* The last frames of an end: nothing depends on them. */
    assert_true(unnoticed <= flips / 8);
}

/* Collects the fields of a migration. Returns their number. */
static size_t find_fields(struct field *all, size_t most)
{
    size_t n = 0;
    wire->looks = true;
    wire->field = (struct field){.layer = LAYERS};
    memset(wire->longest, 0, sizeof(wire->longest));
    begin("encryption=off", SIZE_MAX, false);
    pair_done();
    end(NULL);
    for (unsigned layer = 0; layer < LAYERS; layer++) {
        for (unsigned type = 0; type < 2 * TYPES; type++) {
            const size_t length = wire->longest[layer][type % 2][type / 2];
            const size_t last = layer == FRAME && length > FRAME_HEAD ? FRAME_HEAD : length;
            for (size_t at = 0; at < last && n<most; at += last> 256 ? last / 16 : 1)
                all[n++] = (struct field){layer, type % 2, type / 2, at};
        }
    }
    return n;
}

/* Returns whether the field was sent; another frame of its type may come first. */
static bool change_field(const struct field *f)
{
    unsigned stalled = 0;
    wire->field = *f;
    wire->bits = (uint8_t)(1u << rand() % 8);
    begin("encryption=off", SIZE_MAX, false);
    const int status = sender_wait(&stalled);
    const bool elsewhere = f->layer == FRAME && f->type == FRAME_READ && f->at >= READ_ADDRESS,
               paused = status && mover_printed(&sender, "is broken");
    print_message("byte %zu of %s %u %s the receiver, bits %#x: the sender ended with %d%s%s\n",
                  f->at, layers[f->layer], f->type, f->to_receiver ? "to" : "from", wire->bits,
                  status, paused ? ", broken" : "", wire->flipped ? "" : " (it did not come)");
    if (paused && elsewhere)
        mover_must_print(&sender, "with memory that is not what it was here");
    else
        check_the_end(status);
    end(NULL);
    return wire->flipped;
}

static void test_no_changed_field_is_taken(void)
{
    static struct field all[4096];
    const char *number = getenv("IBX_FLIPS");
    const unsigned flips = number ? (unsigned)atoi(number) : FLIPS;
    const size_t count = find_fields(all, sizeof(all) / sizeof(all[0]));
    unsigned flipped = 0;
    assert_true(count > 500);
    srand((unsigned)time(NULL));
    for (unsigned i = 0; flipped < flips && i < 2 * flips; i++)
        flipped += change_field(&all[(size_t)rand() % count]);
    print_message("%u changed, of %zu\n", flipped, count);
    assert_int_equal(flipped, flips);
    wire->looks = false;
}

/* Both tools with a key, and the relay between them. */
static void begin_swallowed(const char *encryption, const char *stop_at)
{
    static char key[128], command[256];
    pair_start(&(struct vm_options){.append = "idle=20000000"});
    snprintf(key, sizeof(key), "%s/key", mover_folder);
    snprintf(command, sizeof(command), "umask 077; openssl rand -hex 32 > %s", key);
    assert_int_equal(system(command), 0);
    pair_timeout = PAIR_TIMEOUT_SHORT;
    pair_receive(
        (const char *[]){"--key-file", key, "--set", encryption, "--max-bandwidth", HARDLY, NULL});
    relay_begin(SIZE_MAX, false);
    if (stop_at)
        mover_stop_next(stop_at);
    pair_send((const char *[]){"--key-file", key, "--set", encryption, NULL});
}

/* From now on, until a new connection has the number. */
static void swallow_all(void)
{
    for (unsigned i = 0; i < TCP_RELAY_CONNECTIONS; i++)
        wire->swallows[i] = true;
}

/* A VM waits for pages whose connections stand. */
static void test_all_is_swallowed_after_the_commit(void)
{
    begin_swallowed("encryption=required", NULL);
    mover_await(&receiver, "filling", 0);
    swallow_all();
    mover_await_silent(&receiver);
    mover_await_words(&sender, "connected again");
    mover_must_print(&sender, "no sign of life");
    pair_filled();
}

/* A VM waits for pages. Each side still hears of the other over the control connection. */
static void test_the_page_connections_are_swallowed(void)
{
    wire->looks = true;
    wire->field = (struct field){.layer = LAYERS};
    begin_swallowed("encryption=off", NULL);
    mover_await(&receiver, "filling", 0);
    wire->looks = false;
    swallow_all();
    wire->swallows[wire->control] = false;
    mover_await_words(&sender, "connected again");
    mover_must_print(&receiver, "no more pages come: Connection timed out");
    pair_filled();
}

/* COMMIT itself is swallowed, and the VM runs nowhere. */
static void test_the_commit_is_swallowed(void)
{
    begin_swallowed("encryption=required", "source:committed");
    mover_await_stop(&sender);
    swallow_all();
    mover_kill(&sender, SIGCONT);
    mover_await_words(&sender, "connected again");
    mover_must_print(&sender, "no sign of life");
    pair_filled();
}

int main(void)
{
    pair_beats = 40; /* the guest visits every page */
    wire = mmap(NULL, sizeof(*wire), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (wire == MAP_FAILED)
        return 1;
    static const struct vm_test tests[] = {VM_TEST(test_a_recorder_finds_no_guest_page),
                                           VM_TEST(test_no_changed_byte_is_taken),
                                           VM_TEST(test_no_changed_field_is_taken),
                                           VM_TEST(test_all_is_swallowed_after_the_commit),
                                           VM_TEST(test_the_page_connections_are_swallowed),
                                           VM_TEST(test_the_commit_is_swallowed),
                                           {0}};
    return vm_tests(tests, end);
}
