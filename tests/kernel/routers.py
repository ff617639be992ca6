"""brickmoon in every router of a test of others, which knows nothing of it.

A test makes namespaces, switches forwarding on in some of them and sends packets. Programs that send (ping, socat, ...)
and `ip` are preceded in PATH by scripts that ask here first, over a pair of FIFOs:

    test ── ip netns exec h1 ping ── script ── "settle" ──► here: every namespace that forwards gets a daemon
                                       │                          and its new interfaces become ports
                                       └──◄── answer, then the real ping
    test ── ip netns delete r1 ───── script ── "gone r1" ─► here: counters are read, the daemon stops

So brickmoon forwards from the first packet on, and a namespace that is deleted does not live on by its daemon.
"""

import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time

NETNS = "/run/netns"
CLONE_NEWNET = 0x40000000
# What sends packets in the tests.
PROBES = "ping ping6 traceroute traceroute6 socat nc ncat iperf3 mausezahn mz nettest".split()
# `[daemon]` of each path.
PATHS = {
    "xdp": 'path = "kernel"\nattach = "xdp"\n',
    "tc": 'path = "kernel"\nattach = "tc"\n',
    # Many tests have links with an MTU of 2,000.
    "workers": 'path = "user"\nworkers = 1\nslots = 32768\nslot_size = 4096\nring = 1024\n',
}
START_S = float(os.environ.get("BM_START_SECONDS", "30"))

PROBE_SCRIPT = """#!/bin/sh
{{ flock 9; echo settle >{folder}/ask; read -r _ <{folder}/answer; }} 9>>{folder}/lock
exec {real} "$@"
"""

IP_SCRIPT = """#!/bin/sh
gone() {{ {{ flock 9; echo "gone $1" >{folder}/ask; read -r _ <{folder}/answer; }} 9>>{folder}/lock; }}
case " $* " in
*" netns del"*" "* | *" netns pids "*) for last; do :; done; gone "$last" ;;
*" -all netns del"*) gone "*" ;;
esac
exec {real} "$@"
"""


def in_namespace(path, function):
    """What `function` returns in a network namespace: that of the file `path`, or this one for None."""
    if path is None:
        return function()
    result = []

    def work():
        try:
            with open(path) as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0:
                    result.append(function())
        except OSError:
            # It was deleted meanwhile.
            pass

    # A namespace belongs to a thread, so this one ends with it.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return result[0] if result else None


def look():
    """Whether the thread's namespace forwards, and the names of its interfaces."""
    def reads_one(file):
        try:
            with open(file) as text:
                return text.read().strip() == "1"
        except OSError:
            return False

    names = sorted(name for _, name in socket.if_nameindex())
    forwards = any(
        reads_one(f"/proc/sys/net/{family}/conf/{name}/forwarding")
        for family in ("ipv4", "ipv6")
        for name in ["all", *names]
    )
    return forwards, names


def read_links(command):
    """What `ip -j link show` prints. When an interface is deleted meanwhile, that may be no whole list: then once more."""
    for _ in range(5):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            return json.loads(run.stdout or "[]")
        except ValueError:
            pass
    return []


class Daemon:
    """A daemon in a namespace."""

    def __init__(self, routers, name, path):
        self.routers, self.name, self.path = routers, name, path
        self.ports, self.seen, self.process, self.starts = [], None, None, 0
        number = len(routers.ended) + len(routers.running)
        self.base = os.path.join(routers.folder, str(number))
        self.log = os.path.join(routers.logs, f"{number}-{name or 'here'}.log")

    def enter(self, *command):
        return [*(["nsenter", f"--net={self.path}", "--"] if self.path else []), *command]

    def links(self):
        """The interfaces that a router has: veths of others, and those in a VRF if they lead to another namespace."""
        links = read_links(self.enter(self.routers.ip, "-j", "-d", "link", "show"))
        kinds = {link["ifname"]: link.get("linkinfo", {}).get("info_kind") for link in links}
        for link in links:
            master = link.get("master")
            if kinds[link["ifname"]] != "veth" or "UP" not in link.get("flags", []):
                continue
            if master is None or (kinds.get(master) == "vrf" and "link_netnsid" in link):
                yield link["ifname"]

    def arrange(self, names):
        """Starts the daemon, or gives it the ports that are new."""
        ports = sorted({*self.ports, *self.links()})
        if ports == self.ports and (self.process is None or self.process.poll() is None):
            return
        if self.routers.way == "xdp":
            self.routers.gro()
        if ports != self.ports:
            self.starts = 0
        self.ports = ports
        with open(self.base + ".toml", "w") as file:
            file.write(f'[daemon]\nsocket = "{self.base}.sock"\n{PATHS[self.routers.way]}')
            file.writelines(f'[[port]]\ndevice = "xdp:{port}"\n' for port in ports)
        if self.process is None or self.process.poll() is not None:
            self.starts += 1
            # Twice with the same ports, since many tests count on time.
            if self.starts <= 2:
                self.start()
        elif self.ask("reload") is None:
            self.routers.note(f"{self.name}: reload with {ports} failed")

    def start(self):
        if self.process is not None:
            self.routers.note(f"{self.name}: the daemon ended with status {self.process.returncode}")
        log = open(self.log, "ab")
        self.process = subprocess.Popen(
            self.enter(self.routers.binary, "up", "--config", self.base + ".toml"),
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with open(self.log, errors="replace") as text:
                if "\nready" in "\n" + text.read():
                    return
            time.sleep(0.01)
        self.routers.note(f"{self.name}: brickmoon up is not ready; its log is {self.log}")

    def ask(self, *words):
        try:
            run = subprocess.run(
                self.enter(self.routers.binary, *words, "--socket", self.base + ".sock"),
                capture_output=True, text=True, check=False, timeout=20,
            )
        except subprocess.TimeoutExpired:
            return None
        return run.stdout if run.returncode == 0 else None

    def stop(self):
        """Ends the daemon. Counts the packets that it sent by itself; before, its tables must be Linux's."""
        if self.process is None:
            return
        if self.process.poll() is not None:
            self.routers.note(f"{self.name}: the daemon had ended with status {self.process.returncode}; its log is {self.log}")
            return
        ports = json.loads(self.ask("show", "ports", "--json") or '{"ports": []}')["ports"]
        self.routers.sent += sum(port["account"]["sent"] for port in ports)
        self.routers.received += sum(port["account"]["received"] for port in ports)
        deadline = time.monotonic() + 3
        while self.ask("verify") is None:
            if time.monotonic() > deadline:
                self.routers.note(f"{self.name}: verify finds differences")
                break
            time.sleep(0.1)
        self.process.terminate()
        try:
            if self.process.wait(15) != 0:
                self.routers.note(f"{self.name}: status {self.process.returncode} at its end")
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self.routers.note(f"{self.name}: SIGTERM did not end it")


class Routers:
    """The daemons of one run of one test."""

    def __init__(self, way, binary, logs, folder):
        self.way, self.binary, self.logs, self.folder = way, binary, logs, folder
        self.ip = shutil.which("ip")
        self.running, self.ended, self.trouble = {}, [], []
        self.sent = self.received = 0
        self.lock = threading.RLock()
        os.makedirs(logs)
        os.makedirs(os.path.join(folder, "bin"))
        for fifo in ("ask", "answer"):
            os.mkfifo(os.path.join(folder, fifo))
        for program in PROBES:
            if real := shutil.which(program):
                self.script(program, PROBE_SCRIPT.format(folder=folder, real=real))
        self.script("ip", IP_SCRIPT.format(folder=folder, real=self.ip))
        self.over = threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()
        threading.Thread(target=self.watch, daemon=True).start()

    def note(self, line):
        """What is wrong, once. The end of a namespace's name is another one in each run."""
        line = re.sub(r"^([A-Za-z_]+\d*)-\w{6}:", r"\1:", line)
        if line not in self.trouble:
            self.trouble.append(line)

    def script(self, name, text):
        file = os.path.join(self.folder, "bin", name)
        with open(file, "w") as script:
            script.write(text)
        os.chmod(file, 0o755)

    def environment(self):
        """What the test needs to find the scripts."""
        return {**os.environ, "PATH": os.path.join(self.folder, "bin") + ":" + os.environ["PATH"]}

    def serve(self):
        while True:
            with open(os.path.join(self.folder, "ask")) as ask:
                words = ask.read().split()
            try:
                if words[:1] == ["settle"]:
                    self.settle()
                elif words[:1] == ["gone"]:
                    self.gone(words[1])
            except Exception as error:  # The test must get its answer.
                self.note(f"{type(error).__name__}: {error}")
            with open(os.path.join(self.folder, "answer"), "w") as answer:
                answer.write("ok\n")

    def watch(self):
        """Also programs that are not in PROBES send."""
        while not self.over.wait(1):
            try:
                self.settle()
            except Exception as error:
                self.note(f"{type(error).__name__}: {error}")

    def settle(self):
        """A daemon for every namespace that forwards, and every interface a port."""
        with self.lock:
            if self.over.is_set():
                return
            for name in [None, *(os.listdir(NETNS) if os.path.isdir(NETNS) else [])]:
                path = None if name is None else os.path.join(NETNS, name)
                state = in_namespace(path, look)
                if state is None:
                    continue
                forwards, names = state
                daemon = self.running.get(name)
                if daemon is None:
                    if not forwards or names == ["lo"]:
                        continue
                    daemon = self.running[name] = Daemon(self, name, path)
                # Interfaces that come up later are seen when more than names has changed.
                links = sorted(daemon.links())
                if (names, links) != daemon.seen or daemon.process is None or daemon.process.poll() is not None:
                    daemon.seen = (names, links)
                    if links or daemon.process:
                        daemon.arrange(names)

    def gro(self):
        """A veth takes frames from XDP only if its far end has GRO."""
        for name in [None, *(os.listdir(NETNS) if os.path.isdir(NETNS) else [])]:
            enter = [] if name is None else ["nsenter", f"--net={NETNS}/{name}", "--"]
            for link in read_links([*enter, self.ip, "-j", "link", "show", "type", "veth"]):
                subprocess.run([*enter, "ethtool", "-K", link["ifname"], "gro", "on"], capture_output=True)

    def gone(self, name):
        with self.lock:
            for known in list(self.running):
                if name == "*" or known == name:
                    daemon = self.running.pop(known)
                    daemon.stop()
                    self.ended.append(daemon)

    def end(self):
        self.over.set()
        self.gone("*")
