# shellcheck shell=bash
# SPDX-License-Identifier: LGPL-2.1-or-later
#
# lint.sh: the part lint, checks that run no test.

# The files of this tree; sudo's git does not trust another user's folder.
sources() {
    git -c safe.directory="$root" ls-files --cached --others --exclude-standard 2>/dev/null ||
        find . -type f -not -path './build*' -not -path './.git/*'
}

scripts() {
    local file
    sources | while read -r file; do [[ ! -f $file ]] || echo "$file"; done |
        xargs awk '/^#!.*[ \/](ba|da)?sh/ { print FILENAME } { nextfile }'
}

part_lint() {
    local file
    # Lint keeps one processor busy.
    if comes_later asan fuzz; then
        begin_ahead asan build_asan
    elif comes_later rest; then
        begin_ahead asan build_rest
    fi
    for file in $(scripts); do check "shellcheck $file" 60 shellcheck -ax "$file"; done
    for file in docs/man/*.[1-9]; do
        [[ -e $file ]] && check "mandoc $file" 60 mandoc -T lint -W warning "$file"
    done
    check 'tables of the man pages' 60 tests/lint/man-tables
    check 'tools/demo --help does nothing else' 60 tools/demo --help
    for file in tools/bench/*; do
        [[ ! -f $file || ! -x $file ]] || check "$file --help" 60 "$file" --help
    done
    check 'files that documents name' 60 tests/lint/docs-paths
    check "files that folders' headers list" 60 tests/lint/listed-files
    check 'folders that include or call one before them' 60 tests/lint/folder-order
    check 'documents of 100 columns' 60 "$itself" --inside narrow
    check 'sources and scripts of 100 columns' 60 "$itself" --inside narrow_code
    check 'sources of 700 lines, a README of 120' 60 "$itself" --inside lengths
    check "the licence's line is only that" 60 "$itself" --inside licence_lines
    check 'man pages name all options and keys' 60 tests/lint/man-options
    check 'options that sentences name' 60 tests/lint/named-options
    check 'the environment is read with care' 60 tests/lint/plain-getenv
    check 'clang-format' 120 "$itself" --inside formatted
    if [[ -d $aarch64_headers ]]; then
        check 'C for aarch64' 300 "$itself" --inside compiles_for_aarch64
    else
        skip 'lint: sources for aarch64 need libc6-dev-arm64-cross'
    fi
}

readonly aarch64_headers=/usr/aarch64-linux-gnu/include

# All C of the product. The libraries' headers are those of this host. Nothing is linked.
compiles_for_aarch64() {
    local own='^(\./)?(common|transport|gpudirect|userfaultfd|frontend-glue|migrate|tools)/.*\.c$'
    local -a flags=(-I. -std=gnu17 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 '-DIBX_VERSION="1"')
    flags+=(-DIBX_WITH_{SHM,TCP,URING,VERBS,OFI} -Wall -Wextra -Wshadow -Wconversion -Werror)
    flags+=('-DIBX_PLUGIN_DIR="/usr/lib/ibx"' '-DIBX_LIBDIR="lib"')
    sources | grep -E "$own" | xargs -n 25 -P "$jobs" clang --target=aarch64-linux-gnu \
        -isystem "$aarch64_headers" -idirafter /usr/include \
        -idirafter "/usr/include/$(uname -m)-linux-gnu" "${flags[@]}" -fsyntax-only
}

# none_has ARGUMENT...: whether grep finds nothing in the files that its input names, and says
# nothing else. The exit code of xargs does not tell: it is the same if one call of several finds
# nothing.
none_has() {
    local found
    found=$(xargs grep -nH "$@" 2>&1) || true
    echo "$found"
    [[ -z $found ]]
}

# Except rows of tables, and lines with addresses.
narrow() { sources | grep '\.md$' | none_has -P '^(?!.*://)[^|].{100}'; }

# clang-format leaves a line long if it cannot break it, and does not read scripts.
narrow_code() {
    {
        sources | grep -E '\.(c|h|cpp|cu|def|S|py|sh)$|(^|/)meson(\.build|_options\.txt)$'
        sources | grep -v '^tests/fuzz/seeds/' | xargs awk '/^#!/ { print FILENAME } { nextfile }'
    } | none_has '.\{101\}'
}

# A longer file has more than one subject.
lengths() {
    local -r longer='FNR == most + 1 { print FILENAME; any = 1 } END { exit any }'
    sources | grep -E '\.(c|h|cpp|cu)$' | xargs awk -v most=700 "$longer"
    awk -v most=120 "$longer" README.md
}

# clang-format may join this line and a comment that follows it.
licence_lines() { sources | none_has -IE 'SPDX-License-[I]dentifier: [^ ]+ +[^* ]'; }

formatted() {
    sources | grep -E '\.(c|h|cpp)$' | xargs -P "$jobs" -n 40 clang-format --dry-run --Werror
}
