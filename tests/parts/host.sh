# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# host.sh: what tests need of this host.

readonly huge_pages=/sys/kernel/mm/hugepages/hugepages-2048kB
huge_pages_added=0

# Tests of memory in pages of 2 MiB are skipped if there are no such pages. As root, this reserves
# as many as tests need at once.
add_huge_pages() {
    local wanted=80 free before
    [[ -z ${IBX_NO_INSTALL:-} && -w $huge_pages/nr_hugepages ]] || return 0
    free=$(<"$huge_pages/free_hugepages") before=$(<"$huge_pages/nr_hugepages")
    ((free < wanted)) || return 0
    trap give_huge_pages_back EXIT
    echo $((before + wanted - free)) >"$huge_pages/nr_hugepages" || return 0
    huge_pages_added=$(($(<"$huge_pages/nr_hugepages") - before))
}

# Some tests become another user, who has to read what was built.
others_enter() {
    local at=$root
    while [[ $at != / && $(stat -c %A "$at") == *[xt] ]]; do at=$(dirname "$at"); done
    [[ $at == / ]] ||
        echo "note: other users cannot enter $at, so tests that become one are skipped"
}

give_huge_pages_back() {
    local now
    now=$(<"$huge_pages/nr_hugepages")
    ((huge_pages_added <= 0)) ||
        echo $((now > huge_pages_added ? now - huge_pages_added : 0)) >"$huge_pages/nr_hugepages"
    huge_pages_added=0
}
