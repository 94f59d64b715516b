# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# sanitizers.sh: the parts unit, asan, rest and tsan, tests under meson.

part_unit() {
    build gcc gcc g++ --werror -Dbuildtype=debug "${everything[@]}" || return 0
    tests_of gcc 3600
    # Distributions' packages are built so.
    local suite=installed targets=''
    ! build lto gcc g++ -Dbuildtype=release -Db_lto=true -Dtests=disabled ||
        ok 'unit: what is installed links with link-time optimization'
}

# Compiles once with clang's sanitizers: the tests except those of `rest` alone, and the fuzzers if
# they run. Code that copies and checks bytes is optimized, which saves more time in tests than it
# takes in the compiler. All other code computes too little for that; without optimization it
# compiles in two fifths of the time. Programs are at fixed addresses: else the loader writes to 800
# pages of the sanitizers' data in each of some thousand processes, a fifth of what starting one
# costs.
build_asan() {
    local suite=$suite targets=$targets
    local stops=-fno-sanitize-recover=all # as halt_on_error=1, in less code
    if [[ -z $suite ]]; then
        suite='not rest'
        if [[ $part == fuzz || $part == long ]] || comes_later fuzz long; then
            targets=fuzzers
        fi
    fi
    end_ahead asan wait
    build asan clang clang++ --werror -Dbuildtype=debug -Doptimization=0 -Dproduct_optimization=1 \
        -Dupper_optimization=0 -Db_sanitize=address,undefined -Db_lundef=false -Dfuzzers=true \
        -Dc_link_args=-no-pie -Dcpp_link_args=-no-pie \
        -Dcpp_args="$lines $stops" \
        -Dc_args="$lines $stops -Wno-error=unused-command-line-argument" "${everything[@]}"
}

# asan_tests [ARGUMENT...]: of meson test; without, the part's tests.
asan_tests() {
    local names=()
    # libfabric loads and unloads libraries: without the last option LeakSanitizer trips over their
    # thread-local storage.
    local -x ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
    ASAN_OPTIONS+=:intercept_tls_get_addr=0
    # First touches of pages cost more time than the tests, so freed memory is reused sooner.
    ASAN_OPTIONS+=:quarantine_size_mb=16:max_uar_stack_size_log=16
    local -x UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    local -x IBX_CONTRACT_SMALL=1 MESON_TEST_TIMEOUT_MULTIPLIER=3
    build_asan || return 0
    check 'every test has a turn' 60 tests/chosen-tests "$out/asan"
    end_ahead guest wait # it installs packages: not while tests run
    compile_ahead
    (($#)) || mapfile -t names < <(tests/chosen-tests "$out/asan" "$part" "$share")
    tests_of asan $((3600 + ${FUZZ_SECONDS:-0})) "$@" "${names[@]}"
    end_ahead builds
}

part_asan() {
    comes_later install tsan || ! comes_later vm || contract_ahead
    asan_tests
}

# Beside asan most has been compiled; alone, what it needs is a third of everything.
build_rest() {
    local suite=rest
    build_asan
}

part_rest() {
    local suite=rest
    local -x FUZZ_SECONDS=20 # that of the environment is for `long`
    asan_tests
}

# Tests wait much of their time. What other parts need is compiled then, and delays none of them.
compile_ahead() {
    local builds=()
    ! comes_later install vm guest || builds+=(build_release)
    ! comes_later tsan || builds+=(build_tsan)
    ((${#builds[@]} == 0)) || begin_ahead builds give_way "${builds[@]}"
}

# ThreadSanitizer cannot live with much randomness in the layout of addresses; setarch takes it
# away where that is allowed.
tsan_runner() {
    local probe=$out/tsan-probe
    if "$probe" >/dev/null 2>&1; then echo env; return; fi
    if setarch -R "$probe" >/dev/null 2>&1; then echo 'setarch -R'; return; fi
    return 1
}

part_tsan() {
    local runner
    echo 'int main(void) { return 0; }' >"$out/tsan-probe.c"
    quietly 'compile with ThreadSanitizer' 60 clang -fsanitize=thread -o "$out/tsan-probe" \
        "$out/tsan-probe.c" || return 0
    if ! runner=$(tsan_runner); then
        skip "tsan: programs with ThreadSanitizer do not start on this kernel, and setarch -R is" \
            'not allowed'
        return
    fi
    ! comes_later vm || contract_ahead # to configure takes one processor, the guest the other
    build_tsan || return 0
    local -x TSAN_OPTIONS=exitcode=66:die_after_fork=0:second_deadlock_stack=1 IBX_CONTRACT_SMALL=1
    local -x MESON_TEST_TIMEOUT_MULTIPLIER=5
    [[ -z $turn ]] || local share=1/1 # three turns of four lack this part
    local suites=(--suite threads)
    ! comes_later rest || suites+=(--suite threads-rest)
    tests_of tsan 1200 "${suites[@]}" --wrapper "$runner"
}

build_tsan() {
    local suite=threads
    ! comes_later rest || suite+=' threads-rest'
    end_ahead tsan wait
    build tsan clang clang++ -Dbuildtype=debug -Db_sanitize=thread -Db_lundef=false \
        -Dc_args="$lines" -Dcpp_args="$lines" "${everything[@]}"
}
