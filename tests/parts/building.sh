# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# building.sh: compiles for the parts, perhaps ahead of them, and runs `meson test`.

# begin_ahead NAME FUNCTION...: runs the functions in the background; their output goes to a log.
# The part that needs their results does what is left, and counts it.
begin_ahead() {
    run_ahead "${@:2}" </dev/null >"$logs/ahead-$1.log" 2>&1 &
    ahead[$1]=$!
}

run_ahead() {
    local part=ahead suite='' targets='' one
    trap '[[ -z $child ]] || { kill "$child"; wait "$child"; } 2>/dev/null; exit 143' TERM
    for one in "$@"; do "$one" || true; done
}

# What follows runs only while a processor is idle otherwise.
give_way() {
    chrt --idle --pid 0 "$BASHPID" 2>/dev/null || renice -n 19 "$BASHPID" >/dev/null 2>&1
}

# end_ahead NAME [wait]: stops what begin_ahead has begun, or waits for its end.
end_ahead() {
    local pid=${ahead[$1]:-}
    [[ -n $pid ]] || return 0
    [[ ${2:-} == wait ]] || kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    unset "ahead[$1]"
}

# comes_later PART...: whether one of these parts runs later.
comes_later() {
    local one
    for one in "$@"; do [[ " ${later[*]} " != *" $one "* ]] || return 0; done
    return 1
}

# ---- building ----

# build DIR CC CXX ARGUMENT...: configures once for each set of arguments, and compiles $targets and
# what $suite needs, or everything. clang's programs are many and large: its own linker takes half
# the time that the system's takes.
build() {
    local name=$1 dir=$out/$1 cc=$2 cxx=$3 targets=$targets linker='' wish
    shift 3
    [[ $cc != clang ]] || ! command -v ld.lld >/dev/null || linker=lld
    wish="$cc $cxx $linker $*"
    if [[ ! -e $dir/build.ninja || $(cat "$dir/wish" 2>/dev/null) != "$wish" ]]; then
        rm -rf "$dir"
        quietly "configure $name" 600 env CC="$cc" CXX="$cxx" \
            ${linker:+CC_LD="$linker" CXX_LD="$linker"} \
            meson setup "$dir" "$@" || return
        echo "$wish" >"$dir/wish"
    fi
    # shellcheck disable=SC2086 # several names, "not rest" is two words
    [[ -z $suite ]] || targets+=" $(tests/ninja-targets "$dir" $suite)"
    # shellcheck disable=SC2086 # several names
    quietly "build $name" 3600 ninja -C "$dir" -j "$jobs" ${targets:-}
}

# A sanitizer's report needs only these debugging data; the others take a fifth of the compiler's
# time.
readonly lines=-gline-tables-only
readonly everything=(-Dverbs=enabled -Dofi=enabled -During=enabled -Dtests=enabled)

# tests_of DIR SECONDS ARGUMENT...: `meson test`, counted by single tests. Their limits are
# multiplied by MESON_TEST_TIMEOUT_MULTIPLIER, and by more if this machine is busy.
tests_of() {
    local multiplier=${MESON_TEST_TIMEOUT_MULTIPLIER:-1}
    local dir=$out/$1 limit log=$logs/$part-tests.log
    limit=$(patient "$2")
    local -x MESON_TEST_TIMEOUT_MULTIPLIER IBX_TEST_SHARE=$share
    MESON_TEST_TIMEOUT_MULTIPLIER=$(tests/timeout-multiplier "$multiplier")
    shift 2
    rm -f "$dir"/meson-logs/testlog*.json
    limited "$limit" meson test -C "$dir" --no-rebuild --num-processes "$tests_at_once" \
        --timeout-multiplier "$MESON_TEST_TIMEOUT_MULTIPLIER" "$@" >"$log" 2>&1 || true
    # With a wrapper its name is part of the log's.
    local found=("$dir"/meson-logs/testlog*.json)
    if [[ ! -e ${found[0]} ]]; then
        bad "$part: meson test ran nothing, log $log"
        show_tail "$log"
        return
    fi
    cp "${found[0]%.json}.txt" "$logs/$part-tests-full.log" 2>/dev/null || true
    add_results "${found[0]}"
    # meson's own end: cut off by the limit, it has not run everything.
    grep -q '^Ok: ' "$log" || bad "$part: the tests took longer than $limit s together, log $log"
}
