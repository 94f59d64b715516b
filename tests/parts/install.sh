# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# install.sh: the part install, what a release installs.

# exports LIBRARY SYMBOL...: these and nothing else.
exported() {
    nm -D --defined-only "$1" | awk '$2 != "A" { sub("@.*", "", $NF); print $NF }' | LC_ALL=C sort
}

exports() {
    local shown
    shown=$(exported "$1" | xargs)
    echo "$1 exports: $shown"
    [[ $shown == "${*:2}" ]]
}

# Which names of CUDA's there are is what the test names-of-runtime looks at.
exports_besides_cuda() {
    local shown
    shown=$(exported "$1" |
        grep -vE '^((__)?cuda[A-Z]|cu[A-Z]|cu(blas|dnn|fft|rand|sparse|solver)[A-Z]|p?nccl[A-Z])' |
        xargs)
    echo "$1 exports besides CUDA's names: $shown"
    [[ $shown == "${*:2}" ]]
}

# A program outside of this tree, in C and in C++, compiles, links and runs with what pkg-config
# says, and the variable for packagers names the folder of the plugin.
pkg_config_works() {
    local -x PKG_CONFIG_PATH
    local flags folder program=$out/uses-ibx
    PKG_CONFIG_PATH=$(dirname "$(find "$1" -name ibx.pc)")
    pkg-config --validate ibx || return
    folder=$(pkg-config --variable=plugindir ibx)
    [[ -e $1$folder/libgvirtus-communicators-rdma.so ]] ||
        { echo "no plugin in $folder"; return 1; }
    flags=$(PKG_CONFIG_SYSROOT_DIR=$1 pkg-config --cflags --libs ibx) || return
    cat >"$program.c" <<'PROGRAM'
#include "transport/transport.h"
int main(void)
{
    struct ibx_options options;
    struct ibx_listener *listener;
    ibx_options_init(&options);
    if (ibx_listen("tcp://127.0.0.1:0", &options, &listener, NULL))
        return 1;
    puts(ibx_listener_uri(listener));
    ibx_listener_close(listener);
    return 0;
}
PROGRAM
    # shellcheck disable=SC2086 # flags, not one word
    gcc -Wall -Werror -o "$program" "$program.c" $flags && "$program" &&
        gcc -std=c17 -pedantic -Wall -Wextra -Werror -fsyntax-only "$program.c" $flags &&
        g++ -Wall -Werror -x c++ -o "$program" "$program.c" -x none $flags && "$program"
}

# What was installed into a scratch folder finds its own libraries there, not those of the prefix.
# The home is not in the tree: there root would become the user whose tree it is.
moved_installation_is_whole() {
    local home rc=0
    home=$(mktemp -d "${TMPDIR:-/tmp}/ibx-moved-home-XXXXXX")
    installs_from "$1" "$home" || rc=$?
    rm -rf "$home"
    return "$rc"
}

installs_from() {
    local home=$2 said
    mkdir -p "$home/lib" "$home/etc"
    : >"$home/lib/libgvirtus-communicators.so"
    echo '{"communicator": [{"endpoint": {"suite": "tcp/ip", "protocol": "tcp",
        "server_address": "127.0.0.1", "port": "9999"}}]}' >"$home/etc/properties.json"
    "$1/usr/bin/ibx-gvirtus" install --home "$home" --uri "shm://$home/nobody" || return
    said=$("$1/usr/bin/ibx-gvirtus" show --home "$home" 2>/dev/null) && return 1 # no server answers
    echo "$said"
    [[ $said == *"LD_PRELOAD=$1/usr/"*libibx-frontend.so* ]]
}

# loader_searches BUILD: where it installs libraries, so that `LD_PRELOAD=libibx-frontend.so` finds
# one.
loader_searches() {
    local folder searched
    folder=$(meson introspect --buildoptions "$1" |
        python3 -c 'import json, sys; o = {i["name"]: i["value"] for i in json.load(sys.stdin)}
print(o["prefix"] + "/" + o["libdir"])')
    # A folder that does not exist yet is named, too.
    searched=$(ldconfig -v -N -X 2>&1 | grep -E '^/|stat')
    echo "libraries go to $folder; ldconfig searches $searched"
    [[ $searched == *"$folder:"* ]]
}

# compiles_no_tests BUILD: neither `ninja` nor `meson install` takes time for what is not installed.
compiles_no_tests() {
    local inputs
    inputs=$(ninja -C "$1" -t inputs all) || return
    ! grep -E '^(\.\./)*tests/' <<<"$inputs"
}

# Each program has a man page, each man page was installed, bash completes its options, and --help
# is no error.
tools_are_documented() {
    local tool name rc=0
    for tool in "$1"/usr/bin/*; do
        name=${tool##*/}
        [[ -n $(find "$1/usr/share/man" -name "$name.1*") ]] ||
            { echo "$name has no man page"; rc=1; }
        [[ -e $1/usr/share/bash-completion/completions/$name ]] ||
            { echo "bash does not complete $name"; rc=1; }
        timeout 60 "$tool" --help >/dev/null || { echo "$name --help exits with $?"; rc=1; }
    done
    return "$rc"
}

# What programs need that start tools and QEMUs by themselves.
readonly migration='tools/ib-migrate tests/migrations/guest/guest.elf tests/migrations/guest/expect'

# Compiles what is installed, and what the part vm runs in the guest, or everything with `guest`.
# Tests compile in a third of the time with optimization=0.
build_release() {
    local suite=installed targets=''
    [[ $(uname -m) != x86_64 ]] ||
        targets="$migration tests/contract/contract tests/unit/test_multicast \
        tests/unit/test_regcache tests/vm/test_verbs tests/vm/test_vm_move tests/vm/verbs_bench"
    if [[ $part == guest ]] || comes_later guest; then suite='' targets=''; fi
    build release gcc g++ --werror -Dbuildtype=release -Doptimization=0 -Dproduct_optimization=3 \
        --prefix=/usr "${everything[@]}"
}

part_install() {
    local dest=$out/dest plugin frontend setup
    read -ra setup < <(sed -n 's/^meson setup build \(.*\) && ninja.*/\1/p' README.md)
    begin_ahead release build_release # to configure takes one processor
    # As users build it, and tools/demo does, also where cmocka is installed.
    rm -rf "$out/untested"
    check "README's meson setup" 120 meson setup "$out/untested" "${setup[@]}"
    check "README's build compiles nothing of the tests" 60 "$itself" \
        --inside compiles_no_tests "$out/untested"
    check 'the loader finds what is installed' 60 "$itself" --inside loader_searches \
        "$out/untested"
    end_ahead release wait
    build_release || return 0
    ! comes_later tsan || begin_ahead tsan build_tsan # what follows takes one processor, too
    rm -rf "$dest"
    quietly 'meson install' 120 meson install -C "$out/release" --no-rebuild --destdir "$dest" ||
        return 0
    ok 'install: meson install'
    plugin=$(find "$dest" -name libgvirtus-communicators-rdma.so)
    check 'the plugin exports one function' 60 "$itself" --inside exports "$plugin" \
        create_communicator
    frontend=$(find "$dest" -name libibx-frontend.so)
    check 'the preload exports names of CUDA and what it takes over' 60 "$itself" \
        --inside exports_besides_cuda "$frontend" _ZN7gvirtus8frontend8Frontend7PrepareEv \
        __cxa_atexit __fread_chk __ppoll_chk __pread64_chk __pread_chk __read_chk __recv_chk \
        __recvfrom_chk __sigaction __sigsuspend __sysv_signal bsd_signal dlsym epoll_pwait \
        epoll_pwait2 exit fork fread fwrite getrandom ibx_frontend_attach ibx_frontend_attempt \
        ibx_frontend_begins madvise mremap ppoll pread pread64 preadv preadv2 preadv64 preadv64v2 \
        pselect pthread_attr_setsigmask_np pthread_sigmask pwrite pwrite64 pwritev pwritev2 \
        pwritev64 pwritev64v2 quick_exit read readv recv recvfrom recvmsg send sendmsg sendto \
        sigaction sigblock sighold sigignore signal sigprocmask sigrelse sigset sigsetmask \
        sigsuspend ssignal sysv_signal write writev
    check 'ibx.pc' 60 "$itself" --inside pkg_config_works "$dest"
    check 'a moved installation is whole' 60 "$itself" \
        --inside moved_installation_is_whole "$dest"
    check 'every tool has a man page and --help' 300 "$itself" \
        --inside tools_are_documented "$dest"
}
