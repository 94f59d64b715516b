# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# guest.sh: the parts vm and guest, real verbs in a QEMU guest.

# guest_ready: the release build and the guest's kernel; skips the part where there can be no guest.
guest_ready() {
    if [[ $(uname -m) != x86_64 ]]; then
        skip "$part: the guest is x86_64 only"
        return 1
    fi
    end_ahead guest wait
    export IBX_VM_CACHE=${IBX_VM_CACHE:-$out/vm-cache} IBX_BUILD=$out/release
    build_release && quietly 'prepare' 900 tests/vm/prepare
}

# The guest's kernel and packages, while others are compiled.
prepare_guest() { IBX_VM_CACHE=${IBX_VM_CACHE:-$out/vm-cache} limited 900 tests/vm/prepare; }

readonly contract_log=$logs/ahead-contract.out contract_rc=$logs/ahead-contract.rc

# The guest takes one processor: what needs several leaves it the time.
contract_ahead() {
    [[ $(uname -m) == x86_64 ]] || return 0
    end_ahead guest wait
    ! build_release || begin_ahead contract run_contract
}

run_contract() {
    local -x IBX_VM_CACHE=${IBX_VM_CACHE:-$out/vm-cache} IBX_BUILD=$out/release
    local rc=0
    limited 900 tests/vm/prepare
    limited "$(patient 700)" tests/vm/verbs --short >"$contract_log" 2>&1 || rc=$?
    echo "$rc" >"$contract_rc"
}

# What was run ahead; without that it is run now.
contract_in_guest() {
    [[ -e $contract_rc ]] || exec tests/vm/verbs --short
    cat "$contract_log"
    return "$(<"$contract_rc")"
}

part_vm() {
    guest_ready || return 0
    end_ahead contract wait
    counted 'the contract and a migration' 700 "$itself" --inside contract_in_guest
    rm -f "$contract_log" "$contract_rc"
}

# in_guest NAME SECONDS COMMAND...: a program in a guest of its own, which has two addresses.
in_guest() {
    local name=$1 seconds=$2
    shift 2
    program "$name" $((seconds + 120)) tests/vm/guest --timeout "$(patient "$seconds")" \
        --cwd "$out" "$@"
}

part_guest() {
    local built=$out/release plugin=$out/release/frontend-glue/libgvirtus-communicators-rdma.so
    guest_ready || return 0
    counted 'smoke' 600 tests/vm/smoke
    counted 'verbs' 1200 tests/vm/verbs
    counted 'moves' 900 tests/vm/moves
    counted "the kernel's TLS" 1800 tests/vm/ktls
    in_guest 'the communicator over verbs' 300 -- sh -c \
        "'$built/tests/gvirtus/test_communicator' '$plugin' verbs \"\$IBX_VM_ADDR_A\""
    in_guest 'copies into the GPU over verbs' 400 \
        --env "IBX_LIBCUDA=$built/tests/doubles/libcuda-double.so" \
        --env "IBX_TEST_CUDART=$built/tests/doubles/libcudart.so" -- sh -c \
        "'$built/tests/gvirtus/test_gpu' '$plugin' verbs \"\$IBX_VM_ADDR_A\""
    in_guest 'a process for each program over verbs' 900 \
        --env "IBX_LIBCUDA=$built/tests/doubles/libcuda-double.so" \
        --env "IBX_TEST_CUDART=$built/tests/doubles/libcudart.so" -- sh -c \
        "'$built/tests/gvirtus/test_programs' '$plugin' verbs \"\$IBX_VM_ADDR_A\""
    in_guest 'sessions over verbs' 200 -- \
        sh -c "'$built/tests/unit/test_session' verbs '*' \"\$IBX_VM_ADDR_A\""
    in_guest 'microVMs whose pages come over verbs' 500 --env IBX_TEST_URIS=verbs://10.77.0.1:0 \
        --env IBX_TEST_ARGUMENTS='--set insecure=yes --set timeout_ms=60000' \
        --env MESON_TEST_TIMEOUT_MULTIPLIER=5 -- \
        "$root/tests/tools/test_ib_migrate_firecracker_served.py" "$built/tools/ib-migrate" \
        "$built/tests/doubles/firecracker" \
        pages_come_from_another_host a_cache_that_has_not_all_pages_serves \
        a_lost_server_is_asked_again a_page_that_was_changed_is_not_placed
    counted 'a snapshot by multicast over verbs' 600 tests/vm/multicast
    program 'a remote GPU whose VM migrates' 400 tests/vm/test_gpu_moves.py \
        "$built/tools/ib-migrate" "$plugin" \
        "$built/tests/gvirtus/moving-application" "$IBX_VM_CACHE" 4
    program 'a remote GPU whose VM migrates to other paths' 400 tests/vm/test_gpu_paths.py \
        "$built/tools/ib-migrate" "$plugin" "$built/tests/gvirtus/moving-application" \
        "$IBX_VM_CACHE"
    in_guest 'sessions that go on over verbs, and to tcp and back' 250 -- sh -c \
        "'$built/tests/unit/test_session_resume' verbs 40 \"\$IBX_VM_ADDR_A\""
    in_guest 'sessions that go on after a cut, and a queue pair in error' 400 -- \
        "$built/tests/unit/test_wire_resume"
    if IBX_VM_CACHE=$IBX_VM_CACHE-newer IBX_VM_KERNEL_SUITE=trixie-backports tests/vm/prepare \
        2>"$logs/guest-newer.log"; then
        IBX_VM_CACHE=$IBX_VM_CACHE-newer IBX_VM_KERNEL_SUITE=trixie-backports \
            in_guest 'sessions that go on after a link was down, with a newer kernel' 200 -- \
            "$built/tests/unit/test_wire_resume" 'link*'
    else
        skip "guest: a newer kernel: $(tail -n 1 "$logs/guest-newer.log")"
    fi
    in_guest 'the wire cut' 200 -- "$built/tests/unit/test_wire_cut"
}
