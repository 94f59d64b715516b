#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compares each state machine's diagram with its table; common/state_machine.h says how both look.

usage: test_state_diagrams.py ROOT

A diagram is the part of a comment after "state machine: NAME". The table is the array of struct
ibx_state that IBX_STATE_TABLE("NAME", ARRAY) names. The enumerators of a table are the names of its
states behind a common prefix. It also finds a table without a diagram, a state that cannot be
reached, a state that is neither final nor left, and code that writes the state of a machine itself.
"""
import os
import re
import sys

FOLDERS = ("common", "transport", "gpudirect", "userfaultfd", "migrate", "frontend-glue", "tools")


def sources(root):
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(root, folder)):
            for name in names:
                if name.endswith((".c", ".h", ".cpp")):
                    file = os.path.join(path, name)
                    with open(file, encoding="utf-8") as text:
                        yield os.path.relpath(file, root), text.read()


def diagram_edges(lines):
    """The moves that the lines of a diagram draw; [*] is the world outside."""
    edges = set()
    for line in lines:
        drawn = re.split(r"\s{2,}", line.strip())[0]
        groups = [[name.strip() for name in group.split("|")] for group in drawn.split("->")]
        for before, after in zip(groups, groups[1:]):
            edges |= {(a, b) for a in before for b in after}
    return edges


def diagrams_of(text):
    for comment in re.findall(r"/\*.*?\*/", text, re.S):
        lines = [re.sub(r"^\s*(/\*+|\*+/?)?", "", line).replace("*/", "").rstrip()
                 for line in comment.split("\n")]
        for number, line in enumerate(lines):
            found = re.match(r"\s*state machine: ([\w -]+)$", line)
            if not found:
                continue
            drawn = []
            for row in lines[number + 1:]:
                if "->" not in row:
                    break
                drawn.append(row)
            yield found[1].strip(), diagram_edges(drawn)


def prefix_of(names):
    prefix = os.path.commonprefix(names)
    return prefix[:prefix.rfind("_") + 1]


def tables_of(text):
    """(machine, edges) of each table in a file."""
    for machine, array in re.findall(r'IBX_STATE_TABLE\(\s*"([^"]+)",\s*(\w+)\)', text):
        body = re.search(r"struct ibx_state " + array + r"\[\w*\] = \{(.*?)\};", text, re.S)
        if not body:
            yield machine, None
            continue
        entries = re.findall(r'\[(\w+)\] =\s*\{\s*"[^"]*",(.*?)\}(?=,\s*\[|,?\s*$)', body[1], re.S)
        prefix = prefix_of([name for name, _ in entries])
        edges = set()
        for name, rest in entries:
            short = name[len(prefix):]
            edges |= {(short, to[len(prefix):]) for to in re.findall(r"IBX_TO\((\w+)\)", rest)}
            if "IBX_STATE_INITIAL" in rest:
                edges.add(("[*]", short))
            if "IBX_STATE_FINAL" in rest:
                edges.add((short, "[*]"))
        yield machine, edges


def faults_of(machine, edges):
    """What is wrong with a table by itself."""
    states = {state for edge in edges for state in edge} - {"[*]"}
    reached, grown = set(), {"[*]"}
    while grown - reached:
        reached |= grown
        grown = {b for a, b in edges if a in reached}
    for state in sorted(states - reached):
        yield f"{machine}: {state} cannot be reached"
    for state in sorted(states - {a for a, _ in edges}):
        yield f"{machine}: {state} is neither final nor left"


def shown(edges):
    return ", ".join(sorted(f"{a} -> {b}" for a, b in edges))


def check(root):
    diagrams, tables, failures = {}, {}, []
    for file, text in sources(root):
        if file == os.path.join("common", "state_machine.h"):
            diagrams_of(text)
            continue
        for machine, edges in diagrams_of(text):
            if machine in diagrams:
                failures.append(f"{file}: a second diagram of {machine}")
            diagrams[machine] = edges
        for machine, edges in tables_of(text):
            if edges is None:
                failures.append(f"{file}: the table of {machine} is not in the same file")
                continue
            tables[machine] = edges
            failures += faults_of(machine, edges)
        if re.search(r"(?:\.|->)(?:state|machine)\.now\s*=[^=]", text):
            failures.append(f"{file}: writes the state of a machine; ibx_state_move() does that")
    for machine in sorted(set(diagrams) | set(tables)):
        drawn, table = diagrams.get(machine), tables.get(machine)
        if drawn is None or table is None:
            failures.append(f"{machine}: has no {'diagram' if drawn is None else 'table'}")
        elif drawn != table:
            failures.append(f"{machine}: only in the diagram: {shown(drawn - table) or 'nothing'}; "
                            f"only in the table: {shown(table - drawn) or 'nothing'}")
    return len(tables), failures


EXAMPLE = """
/*
 * state machine: lid
 *   [*] -> CLOSED -> OPEN -> CLOSED
 *   CLOSED | OPEN -> BROKEN -> [*]   somebody -> kicks it
 */
static const struct ibx_state lid_states[] = {
    [LID_CLOSED] = {"closed", IBX_TO(LID_OPEN) | IBX_TO(LID_BROKEN), IBX_STATE_INITIAL},
    [LID_OPEN] = {"open", IBX_TO(LID_CLOSED) | IBX_TO(LID_BROKEN), 0},
    [LID_BROKEN] = {"broken", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table lid_table = IBX_STATE_TABLE("lid", lid_states);
"""


def check_itself():
    """This test can fail: an arrow more or less on either side is seen."""
    (_, drawn), = diagrams_of(EXAMPLE)
    (_, table), = tables_of(EXAMPLE)
    assert drawn == table and len(table) == 6, (drawn, table)
    (_, less), = tables_of(EXAMPLE.replace(" | IBX_TO(LID_BROKEN), 0", ", 0"))
    assert table - less == {("OPEN", "BROKEN")}, less
    (_, more), = diagrams_of(EXAMPLE.replace("CLOSED | OPEN -> BROKEN",
                                             "CLOSED | OPEN -> BROKEN -> OPEN"))
    assert ("BROKEN", "OPEN") in more, more
    assert list(faults_of("lid", table - {("CLOSED", "OPEN")})) == ["lid: OPEN cannot be reached"]
    assert (list(faults_of("lid", table - {("BROKEN", "[*]")}))
            == ["lid: BROKEN is neither final nor left"])


def main():
    check_itself()
    count, failures = check(sys.argv[1])
    for failure in failures:
        print(failure)
    print(f"{count} state machines")
    print(f"{int(not failures)} passed, {int(bool(failures))} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
