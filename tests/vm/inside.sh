# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# inside.sh: what scripts that run programs in the test guest share: counting, perftest. The script
# sets `build` before, and `scratch`, a folder, in the guest.
# shellcheck disable=SC2154

passed=0 failed=0 skipped=0
# Time limit of one measurement in seconds, on a machine that is busy with other work.
readonly step=60

# want PROGRAM...: on the host: builds these programs.
want() {
    local program
    for program in "$@"; do
        [[ -x $build/$program ]] && continue
        echo "${0##*/}: $build/$program is missing: meson setup $build && ninja -C $build"
        exit 1
    done
}

# patient SECONDS: on the host: multiplies the seconds by how much longer than usual things take
# now.
patient() { echo $(($1 * $("$(dirname "${BASH_SOURCE[0]}")/../timeout-multiplier"))); }

fail() { failed=$((failed + 1)); echo "FAILED  $*"; }

# summary: prints the last line, and returns whether everything passed.
summary() {
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}

# count NAME LOG RC: adds the results of a cmocka program. One that has ended early names no tests
# and counts as failed.
count() {
    local name=$1 log=$2 rc=$3 good bad missed
    good=$(grep -ac '^\[ *OK \]' "$log" || true)
    bad=$(grep -aE '^\[ *(FAILED|ERROR) *\] [A-Za-z_]\w*$' "$log" | sort -u | grep -c . || true)
    missed=$(grep -aE '^\[ *SKIPPED *\] [A-Za-z_]\w*$' "$log" | sort -u | grep -c . || true)
    ((rc == 0 || bad)) || bad=1
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + missed))
    if ((bad)); then
        echo "FAILED  $name: $bad failed, exit code $rc"
        # Other groups of tests may follow.
        grep -aE -B 3 '^\[ *(ERROR|LINE|FAILED) *\]' "$log" | head -n 40 | sed 's/^/        /' ||
            true
        grep -avE '^\[ *(RUN|OK) *\]' "$log" | tail -n 40 | sed 's/^/        /'
    else
        echo "ok      $name: $good tests"
    fi
}

# suite NAME COMMAND...: runs a cmocka program.
suite() {
    local name=$1 rc=0
    shift
    timeout 600 "$@" >"$scratch/log" 2>&1 || rc=$?
    count "$name" "$scratch/log" "$rc"
}

# Waits until a process listens on TCP port $1. Reads /proc, because starting ss would take longer
# than the test.
wait_listener() {
    local end=$((SECONDS + step)) port
    printf -v port ':%04X 0' "$1"
    until grep -q "$port" /proc/net/tcp /proc/net/tcp6; do
        ((SECONDS < end)) || return 1
        sleep 0.02
    done
}

# perftest_says TOOL OPTIONS...: prints all output of the client. The server is on A, as in
# verbs_bench. Both sides poll, so each gets a processor of its own.
perftest_says() {
    local tool=$1 server
    shift
    taskset -c 1 timeout "$step" "$tool" -d "$IBX_VM_RXE_A" -x 1 -F "$@" >/dev/null 2>&1 &
    server=$!
    # shellcheck disable=SC2015 # nothing to print is the caller's "did not run"
    wait_listener 18515 &&
        taskset -c 0 timeout "$step" "$tool" -d "$IBX_VM_RXE_B" -x 1 -F "$@" "$IBX_VM_ADDR_A" \
            2>/dev/null || true
    wait "$server" || true
}

# perftest TOOL COLUMN OPTIONS...: prints a column of the result's only line.
perftest() {
    local tool=$1 column=$2
    shift 2
    perftest_says "$tool" "$@" | awk -v column="$column" \
        '/^ *[0-9]+ +[0-9]+ +[0-9.]/ { print $column }'
}
