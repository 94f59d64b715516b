# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# migrations.sh: the parts qemu, libvirt, kills and trips, migrations beyond those of meson.

part_qemu() {
    local qemu rc=0 name
    build gcc gcc g++ --werror -Dbuildtype=debug "${everything[@]}" || return 0
    qemu=$(tests/migrations/newer-qemu "$out/newer-qemu" 2>"$logs/qemu-newer.log") || rc=$?
    if ((rc)); then
        skip "qemu: $(tail -n 1 "$logs/qemu-newer.log")"
        return
    fi
    local -x QEMU=$qemu IB_MIGRATE=$out/gcc/tools/ib-migrate
    local -x GUEST_ELF=$out/gcc/tests/migrations/guest/guest.elf \
        GUEST_EXPECT=$out/gcc/tests/migrations/guest/expect
    for name in blockers inject guest_ram move move_end move_held move_killed move_others \
        snapshot freeze_misfortunes
    do
        program "$name with QEMU $("$qemu" --version | sed -n 's/.*version \([0-9.]*\).*/\1/p')" \
            400 "$out/gcc/tests/migrations/test_$name"
    done
}

part_libvirt() {
    local targets=$migration
    build gcc gcc g++ --werror -Dbuildtype=debug "${everything[@]}" || return 0
    [[ -n ${IBX_NO_INSTALL:-} ]] || quietly 'packages' 900 tools/packages libvirt || return 0
    local -x IB_MIGRATE=$out/gcc/tools/ib-migrate
    local -x GUEST_ELF=$out/gcc/tests/migrations/guest/guest.elf \
        GUEST_EXPECT=$out/gcc/tests/migrations/guest/expect
    program 'virsh migrate' 600 tests/libvirt/test_virsh_migrate.py
    program 'virsh migrate while somebody is killed' 900 tests/libvirt/test_virsh_killed.py
    program 'a VM is saved while the tool of its migration stands still' 300 \
        tests/libvirt/test_tool_stopped.py
    program 'a VM is saved right before a freeze' 200 tests/libvirt/test_saved_beside.py
    program 'where the VM goes on is for libvirt to decide' 600 \
        tests/libvirt/test_libvirt_decides.py
    program 'who else has libvirt migrate' 300 tests/libvirt/test_ways.py
    program 'the manual, as printed' 300 tests/libvirt/test_walk_through.py
    program 'what happens to a host meanwhile' 1500 tests/libvirt/faults \
        source:exposing destination:ready source:sending destination:mapped source:serving \
        destination:filling host-off-a host-off-b start-b restart-b crash-a crash-b shutdown-b \
        blockcopy-b suspend-a abort-b
    IBX_VM_CACHE=${IBX_VM_CACHE:-$out/vm-cache} program 'a vhost-user disk' 600 \
        tests/libvirt/test_vhost_user.py
    local qemu
    if qemu=$(tests/migrations/newer-qemu "$out/newer-qemu" 2>"$logs/libvirt-newer.log"); then
        QEMU=$qemu program 'virsh migrate with a newer QEMU' 300 \
            tests/libvirt/test_virsh_migrate.py \
            virsh_migrate_moves_there_and_back pages_come_before_the_stop
        QEMU=$qemu program 'tools that are killed, with a newer QEMU' 300 \
            tests/libvirt/test_virsh_killed.py \
            a_tool_is_killed_before_the_commit
    else
        skip "libvirt: $(tail -n 1 "$logs/libvirt-newer.log")"
    fi
}

# moves_ready: sets what programs of tests/kills read; skips the part where there is no QEMU.
moves_ready() {
    local targets=$migration
    build gcc gcc g++ --werror -Dbuildtype=debug "${everything[@]}" || return
    IB_MIGRATE=$out/gcc/tools/ib-migrate
    GUEST_ELF=$out/gcc/tests/migrations/guest/guest.elf
    GUEST_EXPECT=$out/gcc/tests/migrations/guest/expect
    QEMU=$(command -v qemu-system-x86_64) || {
        skip "$part: needs qemu-system-x86_64"
        return 1
    }
}

# One of them again, by its number: tests/kills/kill_matrix.py --only NUMBER.
part_kills() {
    local -x IB_MIGRATE GUEST_ELF GUEST_EXPECT QEMU MESON_TEST_TIMEOUT_MULTIPLIER=3
    moves_ready || return 0
    counted "$moves cases" $((600 + moves * 30)) tests/kills/kill_matrix.py --moves "$moves"
    if command -v libvirtd >/dev/null; then
        counted "$moves cases of libvirt" $((600 + moves * 60)) tests/kills/libvirt_matrix.py \
            --moves "$moves"
    else
        skip "kills: libvirt's need libvirtd (tests/run libvirt installs it)"
    fi
}

# The same sequence again: tests/kills/trip_matrix.py --seed SEED --only NUMBER.
part_trips() {
    local -x IB_MIGRATE GUEST_ELF GUEST_EXPECT QEMU MESON_TEST_TIMEOUT_MULTIPLIER=3
    moves_ready || return 0
    counted "$sequences sequences" $((600 + sequences * 60)) tests/kills/trip_matrix.py \
        --moves "$sequences"
    # A sample of some hundreds: tests/kills/third_trip.py --list names them, and --only NUMBER
    # repeats one.
    counted "$sequences third trips" $((600 + sequences * 60)) tests/kills/third_trip.py \
        --moves "$sequences"
}
