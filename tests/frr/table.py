#!/usr/bin/env python3
"""Prints the results of tests/frr/run as a table, and every test that did not end as on Linux alone.

    table.py VERSION WAYS FOLDER TEST...
"""

import glob
import json
import os
import sys
import xml.etree.ElementTree as xml


def parts(folder):
    """The parts of a test and their results."""
    found = {}
    try:
        cases = xml.parse(os.path.join(folder, "junit.xml")).iter("testcase")
    except (OSError, xml.ParseError):
        return found
    for case in cases:
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "ok"
        found[case.get("name")] = result
    return found


def sent(folder):
    """Packets that brickmoon sent by itself, as each daemon said before its end."""
    total = 0
    for file in glob.glob(os.path.join(folder, "*.ports")):
        with open(file) as text:
            total += sum(port["account"]["sent"] for port in json.load(text)["ports"])
    return total


def main():
    version, ways, results, *tests = sys.argv[1:]
    ways, remarks, failed = ways.split(","), [], 0
    print("| test | " + " | ".join(ways) + " | sent by brickmoon itself |")
    print("| --- " * (len(ways) + 2) + "|")
    for test in tests:
        folders = {way: os.path.join(results, test, way) for way in ways}
        found = {way: parts(folder) for way, folder in folders.items()}
        cells = []
        for way in ways:
            words = ("ok", "failed", "skipped")
            counts = [f"{n} {word}" for word in words if (n := list(found[way].values()).count(word))]
            cells.append(", ".join(counts) or "no result")
            wrong = [
                f"{name}: {found[way].get(name, 'missing')}, Linux: {found[ways[0]].get(name, 'missing')}"
                for name in {**found[ways[0]], **found[way]}
                if found[way].get(name) != found[ways[0]].get(name)
            ]
            try:
                with open(os.path.join(folders[way], "trouble")) as file:
                    wrong += file.read().splitlines()
            except OSError:
                pass
            failed += len(wrong)
            remarks += [f"{test}, {way}: {line}" for line in wrong]
        numbers = ", ".join(str(sent(folders[way])) for way in ways if way != "linux")
        print(f"| {test} | " + " | ".join(cells) + f" | {numbers} |")
    print()
    print("\n".join(remarks))
    print(f"FRR {version}, kernel {os.uname().release}: {len(tests)} tests, {failed} not as Linux")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
