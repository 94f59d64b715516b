# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# inside.sh: what scripts that run programs in the test guest share: counting, perftest. The script
# sets `build` before, and `scratch`, a folder, in the guest.
# shellcheck disable=SC2154

passed=0 failed=0 skipped=0
# Seconds for one measurement, on a machine that is busy with something else.
readonly step=60

# want PROGRAM...: on the host: these are built.
want() {
    local program
    for program in "$@"; do
        [[ -x $build/$program ]] && continue
        echo "${0##*/}: $build/$program is missing: meson setup $build && ninja -C $build"
        exit 1
    done
}

# patient SECONDS: on the host: multiplies them by how much longer than usual things take now.
patient() { echo $(($1 * $("$(dirname "${BASH_SOURCE[0]}")/../slower"))); }

fail() { failed=$((failed + 1)); echo "FAILED  $*"; }

# summary: the last line, and whether all is well.
summary() {
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}

# count NAME LOG RC: adds what a cmocka program said; one that died names nothing and failed.
count() {
    local name=$1 log=$2 rc=$3 good bad missed
    good=$(grep -ac '^\[ *OK \]' "$log" || true)
    bad=$(grep -aE '^\[ *(FAILED|ERROR) *\] [A-Za-z_]\w*$' "$log" | sort -u | grep -c . || true)
    missed=$(grep -aE '^\[ *SKIPPED *\] [A-Za-z_]\w*$' "$log" | sort -u | grep -c . || true)
    ((rc == 0 || bad)) || bad=1
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + missed))
    if ((bad)); then
        echo "FAILED  $name: $bad failed, exit code $rc"
        # What follows may be other groups of tests.
        grep -aE -B 3 '^\[ *(ERROR|LINE|FAILED) *\]' "$log" | head -n 40 | sed 's/^/        /' ||
            true
        grep -avE '^\[ *(RUN|OK) *\]' "$log" | tail -n 40 | sed 's/^/        /'
    else
        echo "ok      $name: $good tests"
    fi
}

# suite NAME COMMAND...: a cmocka program.
suite() {
    local name=$1 rc=0
    shift
    timeout 600 "$@" >"$scratch/log" 2>&1 || rc=$?
    count "$name" "$scratch/log" "$rc"
}

# Until a process listens on TCP port $1. Read from /proc: starting ss costs more than the test.
wait_listener() {
    local end=$((SECONDS + step)) port
    printf -v port ':%04X 0' "$1"
    until grep -q "$port" /proc/net/tcp /proc/net/tcp6; do
        ((SECONDS < end)) || return 1
        sleep 0.02
    done
}

# perftest_says TOOL OPTIONS...: all that the client prints; server on A, as in our bench. Both
# sides poll, so each gets a processor of its own.
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

# perftest TOOL COLUMN OPTIONS...: a column of the result's only line.
perftest() {
    local tool=$1 column=$2
    shift 2
    perftest_says "$tool" "$@" | awk -v column="$column" \
        '/^ *[0-9]+ +[0-9]+ +[0-9.]/ { print $column }'
}
