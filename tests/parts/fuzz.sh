# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# fuzz.sh: the parts fuzz and long, parsers with inputs of libFuzzer.

# fuzz_one NAME: output and exit code go to files. For CI the inputs are the seeds and the first of
# a sequence that only the seeds and the code decide: a change is not refused because of a fault
# that it has not brought and that luck has found. libFuzzer takes what the code compares into its
# inputs, so addresses are to be the same each time: those on the stack depend on the lengths of
# arguments and environment, too. It reads a folder in the file system's order, and a list as it is.
fuzz_one() {
    local name=$1 rc=0 corpus=$out/corpus/$1 seeds=tests/fuzz/seeds/$1 limit=$((FUZZ_SECONDS + 120))
    local same=() inputs=("$seeds" "-max_total_time=$FUZZ_SECONDS") files
    mkdir -p "$seeds"
    if [[ $part == fuzz ]]; then
        limit=$(patient 120)
        files=("$seeds"/*)
        corpus=$out/corpus-of-seeds/$name
        rm -rf "$corpus" "$corpus.seeds"
        mkdir -p "$corpus"
        (IFS=, && printf '%s' "${files[*]}") >"$corpus.seeds"
        inputs=(-seed=1 "-runs=$((${#files[@]} + FUZZ_INPUTS))")
        [[ ! -e ${files[0]} ]] || inputs+=("-seed_inputs=@${corpus#"$root/"}.seeds")
        same=(env -i PATH=/usr/bin:/bin "UBSAN_OPTIONS=$UBSAN_OPTIONS")
        ! setarch -R true 2>/dev/null || same+=(setarch -R)
    fi
    mkdir -p "$corpus"
    timeout --foreground -k 10 "$limit" "${same[@]}" "${out#"$root/"}/asan/tests/fuzz/fuzz_$name" \
        "${corpus#"$root/"}" "${inputs[@]}" "-timeout=$(printf %04d "$(patient 10)")" \
        -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="${logs#"$root/"}/$name-" \
        >"$logs/$part-$name.log" 2>&1 || rc=$?
    echo "$rc" >"$logs/$part-$name.exit"
}

# fuzz_all NAME...: runs as many at once as there are processors.
fuzz_all() {
    printf '%s\n' "$@" | xargs -P "$jobs" -I '{}' env "part=$part" "$itself" \
        --inside fuzz_one '{}'
}

# fuzz_each HOW: all fuzzers; `how` follows their names in what is printed.
fuzz_each() {
    local how=$1 target name names=() rc
    build_asan || return 0
    local -x UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
    for target in "$out"/asan/tests/fuzz/fuzz_*; do
        [[ -f $target && -x $target ]] || continue
        names+=("${target##*/fuzz_}")
    done
    rm -f "$logs/$part"-*.exit
    limited $((${#names[@]} * (FUZZ_SECONDS + 130))) env "part=$part" "$itself" \
        --inside fuzz_all "${names[@]}" || true
    for name in "${names[@]}"; do
        rc=$(cat "$logs/$part-$name.exit" 2>/dev/null || echo 124)
        if ((rc == 0)); then
            ok "$part: $name $how"
        else
            bad "$part: $name $how ($(why "$rc" $((FUZZ_SECONDS + 120))))," \
                "log $logs/$part-$name.log"
            show_tail "$logs/$part-$name.log"
        fi
    done
}

part_fuzz() {
    local -x FUZZ_INPUTS=${FUZZ_INPUTS:-500} FUZZ_SECONDS=0
    fuzz_each "with its seeds and $FUZZ_INPUTS inputs"
}

part_long() {
    local -x FUZZ_SECONDS=${FUZZ_SECONDS:-60}
    fuzz_each "for $FUZZ_SECONDS s"
    local suite=long
    # Their own limits know nothing of FUZZ_SECONDS.
    asan_tests --suite long --timeout-multiplier 0
}
