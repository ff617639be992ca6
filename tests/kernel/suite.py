#!/usr/bin/env python3
"""Runs the kernel's selftests on Linux alone and with brickmoon in every router, and prints what differs.

    suite.py --selftests FOLDER --binary FILE --results FOLDER [--ways linux,xdp,tc,workers] [WORD...]

Only tests whose names contain one of the WORDs run. Each run has namespaces of its own (mounts, network, processes), so
that nothing is left behind. The exit status is 1 if a result is not Linux's.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from routers import Routers  # noqa: E402

# How the selftests say what became of a part, in front of its name or behind it.
BEHIND = re.compile(r"^\s*(?:TEST:\s*)?(.*?)\s*\[\s*(OK|FAIL|SKIP|XFAIL)\s*\]\s*$")
BEFORE = re.compile(r"^\s*(PASS|OK|FAIL|ERROR|SKIP|XFAIL)\s*:\s*(.*?)\s*$")
AS = {"PASS": "ok", "OK": "ok", "FAIL": "failed", "ERROR": "failed", "SKIP": "skipped", "XFAIL": "ok"}
# What not every kernel has, and a command that succeeds where it is there.
NEEDS = {
    "dummy": "ip link add name bm0 type dummy",
    "esp": "ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 9 enc aes 0x00112233445566778899aabbccddeeff",
    "gre": "ip link add name bm0 type gre local 192.0.2.1 remote 192.0.2.2",
    "ipip": "ip link add name bm0 type ipip local 192.0.2.1 remote 192.0.2.2",
    "vlan": "ip link add name bm1 type veth && ip link add link bm1 name bm0 type vlan id 9",
    "vrf": "ip link add name bm0 type vrf table 9",
    "vxlan": "ip link add name bm0 type vxlan id 9 dstport 4789",
}
STATUS = {0: "ok", 4: "skipped", 124: "took too long"}


def parts(log):
    """The parts of a test and their results. Names that are made up for a run are made equal."""
    found = {}
    for line in log.splitlines():
        if match := BEHIND.match(line):
            name, result = match.groups()
        elif match := BEFORE.match(line):
            result, name = match.groups()
        else:
            continue
        # mktemp's part of a namespace's name; counts, times and rates.
        name = re.sub(r"\b([a-z]+\d*)-[A-Za-z0-9]{6}\b", r"\1", name)
        name = re.sub(r"\d+(\.\d+)?( ?(packets|bytes|ms|s|seconds|Mbit|kbit))\b", r"N\2", name)
        name = re.sub(r"/tmp/\S+", "FILE", name)
        number = sum(1 for known in found if known.split(" #")[0] == name)
        found[f"{name} #{number + 1}" if number else name] = AS[result]
    return found


def has(need):
    """Whether this kernel has it: it is tried in a namespace of its own, which ends with the command."""
    return subprocess.run(["unshare", "--net", "sh", "-c", NEEDS[need]], capture_output=True).returncode == 0


class Test:
    """A line of the list."""

    def __init__(self, line):
        match = re.match(r"(\S+)(?: \[(.*?)\])?\s+(\S+)\s+(\d+)$", line)
        if match is None:
            raise SystemExit(f"list: not a test: {line}")
        self.file, arguments, needs, seconds = match.groups()
        self.arguments = (arguments or "").split()
        self.needs = [] if needs == "-" else needs.split(",")
        self.seconds = int(float(os.environ.get("BM_PATIENCE", "1")) * int(seconds))
        self.name = " ".join([self.file.removesuffix(".sh"), *self.arguments])

    def run(self, way, options):
        """Runs it once. Returns what `one` below has written."""
        folder = os.path.join(options.results, re.sub(r"\W+", "-", self.name), way)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        command = [
            "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private",
            sys.executable, os.path.abspath(__file__), "one", self.file, *self.arguments,
        ]
        settings = {
            "way": way, "binary": options.binary, "selftests": options.selftests, "folder": folder,
            "seconds": self.seconds,
        }
        subprocess.run(
            command, env={**os.environ, "BM_ONE": json.dumps(settings)}, stdin=subprocess.DEVNULL,
            timeout=self.seconds + 120, check=False,
        )
        try:
            with open(os.path.join(folder, "result.json")) as file:
                return json.load(file)
        except OSError:
            return {"status": None, "parts": {}, "sent": 0, "received": 0, "trouble": ["the run ended without a result"]}


def one(file, arguments):
    """In namespaces of its own: the test itself."""
    settings = json.loads(os.environ["BM_ONE"])
    folder = settings["folder"]
    for kind, place in (("proc", "/proc"), ("sysfs", "/sys"), ("bpf", "/sys/fs/bpf"), ("tmpfs", "/run"), ("tmpfs", "/tmp")):
        subprocess.run(["mount", "-t", kind, kind, place], check=True)
    os.makedirs("/run/netns")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    routers = None
    environment = dict(os.environ)
    if settings["way"] != "linux":
        routers = Routers(settings["way"], settings["binary"], folder + "/daemons", "/run/routers")
        environment = routers.environment()
    status = 124
    with open(folder + "/log", "w+", errors="replace") as log:
        test = subprocess.Popen(
            ["bash", "./" + os.path.basename(file), *arguments], stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            cwd=os.path.join(settings["selftests"], "net", os.path.dirname(file)),
        )
        try:
            status = test.wait(settings["seconds"])
        except subprocess.TimeoutExpired:
            os.killpg(test.pid, signal.SIGKILL)
            test.wait()
    if routers:
        routers.end()
    with open(folder + "/log", errors="replace") as log:
        found = parts(log.read())
    with open(folder + "/result.json", "w") as result:
        json.dump({
            "status": status, "parts": found, "sent": routers.sent if routers else 0,
            "received": routers.received if routers else 0, "trouble": routers.trouble if routers else [],
            "daemons": len(routers.ended) if routers else 0,
        }, result)


def summary(result):
    """A cell of the table."""
    counts = [f"{n} {word}" for word in ("ok", "failed", "skipped")
              if (n := sum(1 for value in result["parts"].values() if value == word))]
    status = STATUS.get(result["status"], f"status {result['status']}")
    return ", ".join(counts) if counts and result["status"] != 124 else ", ".join([*counts, status])


def differences(linux, other):
    """What another way has not as Linux has it: each part, with what is said about it."""
    found = {
        name: f"{name}: {other['parts'].get(name, 'missing')}, Linux: {linux['parts'].get(name, 'missing')}"
        for name in {**linux["parts"], **other["parts"]}
        if linux["parts"].get(name) != other["parts"].get(name)
    }
    if linux["status"] != other["status"]:
        found["status"] = f"exit status {other['status']}, Linux: {linux['status']}"
    return found


def compare(test, way, results, options, remarks):
    """Runs a test in a way. Many of these tests count on time: if a part is not as on Linux, both are run once more, and
    only what is wrong in every pair of runs is wrong."""
    linux, first = results["linux"], test.run(way, options)
    wrong = differences(linux, first)
    if not wrong:
        return first, []
    remarks.add(f"{test.name}, {way}: at first: {'; '.join(wrong.values())}")
    again = test.run(way, options)
    if wrong := {name: line for name, line in differences(linux, again).items() if name in wrong}:
        linux_again = test.run("linux", options)
        by_chance = [differences(linux_again, first), differences(linux_again, again)]
        wrong = {name: line for name, line in wrong.items() if all(name in other for other in by_chance)}
    return again, list(wrong.values())


def tell(*columns):
    print("| " + " | ".join(columns) + " |", flush=True)


class Remarks:
    """What is said below the table. Also in a file, for a run that is interrupted."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.lines, self.file = [], open(os.path.join(folder, "remarks"), "w")

    def add(self, line):
        self.lines.append(line)
        print(line, file=self.file, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--selftests", required=True)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--results", required=True)
    parser.add_argument("--ways", default="linux,xdp,tc,workers")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    with open(os.path.join(HERE, "list")) as file:
        tests = [Test(line) for line in file.read().splitlines() if line and not line.startswith("#")]
    tests = [test for test in tests if not options.words or any(word in test.name for word in options.words)]
    if not tests:
        raise SystemExit("no test has such a name; tests/kernel/list has them all")
    lacking = {need for need in NEEDS if not has(need)}
    ways = options.ways.split(",")
    remarks, failed, skipped = Remarks(options.results), 0, []
    tell("test", *ways, "sent by brickmoon itself")
    tell(*["---"] * (len(ways) + 2))
    for test in tests:
        if missing := sorted(lacking & set(test.needs)):
            skipped.append(f"{test.name}: needs {', '.join(missing)}")
            continue
        if not os.path.exists(os.path.join(options.selftests, "net", test.file)):
            skipped.append(f"{test.name}: not in this kernel's source")
            continue
        results = {}
        for way in ways:
            if way == "linux" or "linux" not in results:
                results[way], wrong = test.run(way, options), []
            else:
                results[way], wrong = compare(test, way, results, options, remarks)
            for line in wrong:
                failed += 1
                remarks.add(f"{test.name}, {way}: NOT AS LINUX: {line}")
            for line in results[way]["trouble"]:
                failed += 1
                remarks.add(f"{test.name}, {way}: {line}")
        sent = ", ".join(str(results[way]["sent"]) for way in ways if way != "linux")
        tell(test.name, *[summary(results[way]) for way in ways], sent)
    print()
    for line in [*remarks.lines, *[f"skipped: {line}" for line in skipped]]:
        print(line)
    print(f"\nkernel {os.uname().release}: {len(tests) - len(skipped)} tests, {len(skipped)} skipped, {failed} not as Linux")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
