# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# counting.sh: runs commands, and counts what passes, fails and is skipped.

ok() { passed=$((passed + 1)); echo "ok      $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped $*"; }
bad() { failed=$((failed + 1)); echo "FAILED  $*"; }

# limited SECONDS COMMAND...: in the background, so that a signal to this script reaches it at once.
limited() {
    local rc=0
    timeout -k 10 "$@" </dev/null &
    child=$!
    wait "$child" || rc=$?
    child=''
    return "$rc"
}

show_tail() { tail -n "${2:-40}" "$1" | sed 's/^/        /'; }

why() {
    if (($1 == 124 || $1 == 137)); then echo "took longer than $2 s"; else echo "exit code $1"; fi
}

# quietly NAME SECONDS COMMAND...: output to the part's log; its tail when it fails. Not a test.
quietly() {
    local name=$1 limit=$2 log=$logs/$part-${1//[^A-Za-z0-9._-]/-}.log rc=0
    shift 2
    limited "$limit" "$@" >"$log" 2>&1 || rc=$?
    ((rc)) || return 0
    bad "$part: $name ($(why "$rc" "$limit")), log $log"
    show_tail "$log"
    return 1
}

# check NAME SECONDS COMMAND...: the same as one test.
check() { ! quietly "$1" "$(patient "$2")" "${@:3}" || ok "$part: $1"; }

# patient SECONDS: multiplies them by how much longer than usual things take now.
# Tests multiply their own limits by the same.
patient() { echo $(($1 * $(tests/timeout-multiplier))); }

# counted NAME SECONDS COMMAND...: a program that ends with "N passed, N failed[, N skipped]".
counted() {
    local name=$1 limit log=$logs/$part-${1//[^A-Za-z0-9._-]/-}.log rc=0 line
    limit=$(patient "$2")
    shift 2
    limited "$limit" "$@" >"$log" 2>&1 || rc=$?
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1 || true)
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)? ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
        echo "        $part: $name: $line"
        ((rc == 0 && BASH_REMATCH[2] == 0)) && return
        ((BASH_REMATCH[2])) && { show_tail "$log"; return; }
    fi
    bad "$part: $name ($(why "$rc" "$limit"), no sum of its tests), log $log"
    show_tail "$log"
}

# add_results ARGUMENT...: of count-results; shows what failed.
add_results() {
    local results=$logs/$part-results.log a b c
    tests/count-results "$@" >"$results" || echo "0 1 0" >>"$results"
    sed '$d' "$results"
    read -r a b c <<<"$(tail -n 1 "$results")"
    passed=$((passed + a)) failed=$((failed + b)) skipped=$((skipped + c))
    sums="$a passed, $b failed, $c skipped"
}

# program NAME SECONDS COMMAND...: one that names its tests, as those under meson do.
program() {
    local name=$1 limit log=$logs/$part-${1//[^A-Za-z0-9._-]/-}.log rc=0 sums
    limit=$(patient "$2")
    shift 2
    limited "$limit" "$@" >"$log" 2>&1 || rc=$?
    add_results --log "$log" "$name" "$rc"
    echo "        $part: $name: $sums"
}
