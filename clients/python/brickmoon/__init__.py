"""Client of the API of brickmoon, a software router for Linux.

    from brickmoon import Router

    router = Router()
    for port in router.ports()["ports"]:
        print(port["name"], port["up"])

A router is addressed by its control socket, or by the URL of its web page, which only answers requests that
read. Replies are dictionaries, as the daemon sends them; a type for each says what is in it. Read fields that
may be absent with `get`. Newer daemons may send more fields.

Methods raise `Error` if the daemon refuses a request, and what Python's `socket` and `http.client` raise
(`OSError`, `HTTPException`) if there is no daemon, or if it does not answer in time.
"""

from __future__ import annotations

import copy
import http.client
import json
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Literal, Mapping, Optional, TypedDict
from typing import TypeVar
from urllib.parse import quote, urlencode, urlsplit

if TYPE_CHECKING:
    import ssl

SOCKET = "/run/brickmoon/api.sock"

_Reply = TypeVar("_Reply")
_Self = TypeVar("_Self", bound="_Connection")


class Error(Exception):
    """The daemon refused a request: why (`message`), how to fix it (`hint`), and the HTTP `status`."""

    def __init__(self, status: int, message: str, hint: Optional[str] = None) -> None:
        super().__init__(message if hint is None else f"{message}: {hint}")
        self.status = status
        self.message = message
        self.hint = hint


def watch(ask: Callable[[], _Reply], seconds: float = 1.0) -> Iterator[_Reply]:
    """Asks again and again, and waits this long in between: `for drops in watch(router.drops): ..`"""
    while True:
        yield ask()
        time.sleep(seconds)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("brickmoon", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError as error:
            self.close()
            # Python names no file in errors of sockets.
            raise OSError(error.errno, error.strerror or str(error), self._path) from None


class _Connection:
    """How requests reach the router. Each has a connection of its own, so threads may share an object."""

    def __init__(
        self,
        address: str = SOCKET,
        token: Optional[str] = None,
        timeout: float = 30.0,
        context: Optional[ssl.SSLContext] = None,
    ) -> None:
        """A router by its control socket or URL.

        - `address`: path of the control socket, or URL of the web page, such as `http://192.0.2.1:9480`
        - `token`: contents of the file that `web_token` in `[daemon]` names
        - `timeout`: how long to wait for an answer, in seconds
        - `context`: which certificates to accept, for https
        """
        self._url = urlsplit(address)
        if self._url.scheme not in ("", "http", "https") or (self._url.scheme and not self._url.hostname):
            raise ValueError(f"{address!r} is neither the path of a socket nor the URL of a web page")
        self._address = address
        self._token = token
        self._timeout = timeout
        self._context = context
        self._node = ""

    def node(self: _Self, name: str) -> _Self:
        """Another node of the cluster, which this one asks. It answers only requests that read."""
        other = copy.copy(self)
        other._node = f"/v1/nodes/{quote(name, safe='')}"
        return other

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._context)
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        return _UnixConnection(self._address, self._timeout)

    def _ask_for_text(self, method: str, path: str, parameters: Optional[Mapping[str, object]] = None) -> str:
        if self._node and method != "GET":
            raise ValueError("another node answers only requests that read")
        # The path of a URL is for a proxy in front of several routers.
        before = self._url.path.rstrip("/") if self._url.scheme else ""
        given = {name: _text(value) for name, value in (parameters or {}).items() if value is not None}
        target = before + self._node + path + ("?" + urlencode(given) if given else "")
        headers = {"Accept": "*/*", "Connection": "close"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.strip()}"
        connection = self._connect()
        try:
            connection.request(method, target, headers=headers)
            reply = connection.getresponse()
            text = reply.read().decode("utf-8", "replace")
        finally:
            connection.close()
        if reply.status != 200:
            raise _error(reply.status, text)
        return text

    def _ask(self, method: str, path: str, parameters: Optional[Mapping[str, object]] = None) -> Any:
        return json.loads(self._ask_for_text(method, path, parameters))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(status: int, text: str) -> Error:
    try:
        body = json.loads(text)
        return Error(status, body["message"], body.get("hint"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Error(status, text.strip() or f"the daemon answered with HTTP status {status}")


# All of the following is generated by `cargo xtask openapi`.


class Account(TypedDict):
    """Account of frames. When no frame is in motion, `received + originated` equals the sum of all others."""
    # Frames received.
    received: int
    # Frames created by brickmoon, such as ICMP errors and fragments, and those that Linux sends through
    # the host TAP of a port.
    originated: int
    # Frames sent.
    sent: int
    # Frames handed to Linux.
    host: int
    # Frames passed to an app with an account of its own.
    passed: int
    # Frames that are waiting here, such as for a neighbor.
    held: int
    # Frames that ended here without being sent or dropped, such as those answered by an ICMP error.
    consumed: int
    # Frames dropped, in total.
    dropped: int
    # Frames dropped, by reason; reasons without frames are absent.
    drops: Dict[str, int]
    # Bytes received; 0 if they are not counted.
    received_bytes: int
    # Bytes sent; 0 if they are not counted.
    sent_bytes: int


# What happens to a packet.
#
# - `forward`: Sent to the next hop.
# - `host`: Handed to Linux.
# - `resolve`: Held in the slow path until the MAC of the neighbor is known.
# - `blackhole`: Dropped silently.
# - `unreachable`: Dropped, with an ICMP error: host unreachable.
# - `prohibit`: Dropped, with an ICMP error: administratively prohibited.
# - `group`: Distributed among the members of a group.
# - `no-route`: Dropped, with an ICMP error: no route to destination.
Action = Literal["forward", "host", "resolve", "blackhole", "unreachable", "prohibit", "group", "no-route"]


class _App(TypedDict):
    # Name of the app.
    name: str
    # Account of its frames.
    account: Account


class App(_App, total=False):
    """A step of processing on a worker, with its packet account."""
    # Number of the worker that runs it; absent for the slow path, which has its own thread, and for sums
    # over several workers.
    worker: int


class AppTime(TypedDict):
    """The time that a worker has spent in one of its apps."""
    # Name of the app.
    app: str
    # Time in nanoseconds.
    ns: int


class Apps(TypedDict):
    """Reply to `GET /v1/apps`."""
    # The apps, by worker and name.
    apps: List[App]


# Which tables differ.
#
# - `mirror`: The mirror differs from the kernel.
# - `compiled`: A compiled table differs from the mirror.
# - `refused`: A route could not be compiled.
# - `firewall`: The list of packets that only Linux may handle differs from the kernel's settings.
# - `programs`: An XDP program on a port has other settings than it should.
Area = Literal["mirror", "compiled", "refused", "firewall", "programs"]


class Bypassed(TypedDict):
    """A key of `[firewall]` that is set to `bypass`."""
    # The key.
    setting: str
    # Packets that are forwarded by brickmoon at present although Linux would handle them differently.
    packets: List[LinuxOnly]


class Carried(TypedDict):
    """Frames that the peer has sent over a link. Sent frames that are neither in `arrived` nor in `lost` are
    on their way; more can have arrived than were sent when the peer last reported its count.
    """
    # Counted by the interface of the peer.
    sent: int
    # Counted by the fabric program of this node.
    arrived: int
    # Neither arrived nor on their way.
    lost: int


class _Cleared(TypedDict):
    ports: Ports
    drops: Drops


class Cleared(_Cleared, total=False):
    """What the counters were when they were cleared last; everything is empty if they were not."""
    # Seconds since then; absent if the counters have not been cleared since the start of the daemon.
    ago_s: int


class ClearedFlows(TypedDict):
    """The flows that a request has cleared."""
    # How many there were.
    flows: int


class _Cluster(TypedDict):
    # Name of this node.
    name: str
    # Its number.
    node: int
    # Number of the membership, 0 to 255.
    epoch: int
    # Number of members, this node among them.
    members: int
    # Names of the members, with their numbers.
    member_list: Dict[str, int]
    # Nodes to which this one has a fabric link, and which are not members (yet).
    not_members: List[str]
    # Neighbors of this node's external ports that have an index, so that other nodes can send to them.
    neighbors: int
    # Neighbors without an index, because all of this epoch are used.
    neighbors_without_index: int
    # Routes in Linux that lead to other nodes.
    routes: int
    # Whether other nodes send nothing over this one: `brickmoon cluster drain`.
    drained: bool
    # How workers distribute packets for other nodes: `direct`, `vlb` or `classic`.
    balancing: str
    # What the external ports of this node receive together at most, in Mbit/s.
    speed: int
    # The gap after which a flow may take another way, in microseconds.
    flowlet_gap_us: int
    # What workers have done with packets for other nodes: `direct`, sent straight to their output node;
    # `intermediate`, over another node; `flowlets`, first packets of flowlets; `split`, moved to another
    # way within a flowlet; `over_share`, sent over a node that had more than its share; `sampled`,
    # numbered. Empty without workers.
    balanced: Dict[str, int]
    # Links, in the order of the configuration.
    links: List[FabricLink]


class Cluster(_Cluster, total=False):
    """This node as part of a cluster. Without `[cluster]` in the configuration, `members` is 0."""
    # The store from which the members come; without one they are configured.
    store: ClusterStore


class _ClusterStore(TypedDict):
    # The endpoint that was asked last.
    endpoint: str
    # Whether it answers. While it does not, the members stay as they are.
    connected: bool
    # The nodes whose daemons run and reach the store.
    registered: List[RegisteredNode]
    # Names of registrations that were made with another key.
    other_key: List[str]


class ClusterStore(_ClusterStore, total=False):
    """The store of the members."""
    # What is wrong.
    trouble: str


class Collector(TypedDict):
    """A collector. The counters start from zero when `[sampling]` or a collector changes."""
    # `sflow` or `ipfix`.
    format: str
    # Address and UDP port.
    address: str
    # Samples put into datagrams.
    samples: int
    # Samples that the format cannot describe: IPFIX describes IP packets only.
    unfit: int
    # Datagrams sent.
    sent: int
    # Datagrams that were answered with ICMP port unreachable, and count as sent, too.
    refused: int
    # Datagrams not sent because the buffer of the socket was full.
    full: int
    # Datagrams not sent for another reason, such as no route to the collector.
    failed: int


class _Collectors(TypedDict):
    # Sampling rate: one received packet in this many is sampled; 0 if none is.
    one_in: int
    # Ports whose packets are sampled.
    ports: List[str]
    # Samples taken.
    samples: int
    # Samples lost because the daemon did not read them in time.
    lost: int
    collectors: List[Collector]


class Collectors(_Collectors, total=False):
    """All collectors, and what is sampled for them."""
    # Why nothing is sampled although there are collectors.
    trouble: str


# Who counts the packets of a port.
#
# - `linux`: Linux, for the interface of the port: the numbers of `ip -s link`.
# - `driver`: The driver of a DPDK device.
# - `brickmoon`: brickmoon: a TAP, whose numbers in Linux are the same with rx and tx exchanged, or a
#   capture file.
CountedBy = Literal["linux", "driver", "brickmoon"]


class Difference(TypedDict):
    """An object that the daemon's tables and the kernel's disagree about."""
    # Which tables differ.
    area: Area
    # What differs, as a sentence without a full stop.
    message: str


class Drop(TypedDict):
    """Frames dropped for one reason."""
    # Name, such as `ttl_exceeded`.
    reason: str
    # Meaning of the reason.
    meaning: str
    # Number of dropped frames.
    frames: int
    # Where they were dropped, most frames first.
    at: List[DropAt]


class DropAt(TypedDict):
    """Frames dropped for one reason at one app."""
    # Name of the app.
    app: str
    # Number of frames dropped there.
    frames: int


class _Drops(TypedDict):
    # Reasons, most frames first.
    drops: List[Drop]
    # Total number of dropped frames.
    total: int


class Drops(_Drops, total=False):
    """All drops, by reason."""
    # What Linux dropped of the packets that came in on ports, most frames first.
    by_linux: List[LinuxDrop]
    # Why it is not known what Linux dropped.
    by_linux_unknown: str
    # What the kernel path left to Linux, by cause, most frames first. Linux may have forwarded, answered
    # or dropped it.
    left_to_linux: List[Drop]


class _Explanation(TypedDict):
    # The frame as it arrives, in hexadecimal.
    frame: str
    # The port it arrives on.
    port: str
    # The interface in Linux.
    interface: str
    # The path of packets that arrive there: `kernel` or `user`.
    path: str
    # What was decided about it, in order.
    steps: List[Step]
    fate: Fate
    # The frames that leave: the packet, its fragments, or an ICMP error about it. For a packet that Linux
    # gets, or that goes by its flow, none.
    sent: List[SentFrame]


class Explanation(_Explanation, total=False):
    """What becomes of a packet. Nothing was sent, counted or changed to find out."""
    # Why it is dropped or left to Linux: a name of `show drops`, or a cause of `show ports`.
    reason: str
    # The route; absent if none was looked up.
    route: Route


class _FabricLink(TypedDict):
    # Name of the interface.
    device: str
    # Name of the node at the other end.
    peer: str
    # Its number.
    node: int
    # `up`; `no-daemon`: only the fabric program of the peer answers; `no-program`: only its daemon;
    # `down`; `missing`: there is no interface, or it cannot be used.
    state: str
    # Whether the peer is drained: nothing is sent over it to other nodes.
    drained: bool
    # After how long without an answer to a probe the link counts as down, in microseconds.
    timeout_us: int
    # How often it was found down since the daemon has started.
    failures: int
    # Frames that workers of this node have sent by the link.
    sent: int
    # Their bytes.
    sent_bytes: int
    # Account of frames received from the peer. `passed`: sent to another node, or out of an external port;
    # `host`: handed to Linux; `consumed`: probes, which are sent back.
    account: Account
    # Frames received from the peer in detail: `transit`, `output`, `linux_resolve`, `linux_host`,
    # `linux_control`, `linux_other`, `probes`; of `output`, `sampled`: numbered by their input node, and
    # `reordered`: arrived after a later one of their flow.
    counters: Dict[str, int]


class FabricLink(_FabricLink, total=False):
    """A link of this node to another node of the cluster."""
    # The peer's epoch, if it differs from this node's: it has not changed yet. Nothing is lost meanwhile.
    epoch: int
    # Frames that the peer has sent over the link since both ends compare their counters; absent before
    # that.
    from_peer: Carried
    # Round-trip time of the last probe, in microseconds.
    round_trip_us: int
    # What is wrong.
    trouble: str


# The end of a packet's way.
#
# - `sent`: Sent, possibly in fragments.
# - `encrypted`: Encrypted, and sent to the peer of an SA.
# - `decrypted`: Decrypted; what comes out is routed anew.
# - `linux`: Left or given to Linux, which decides what becomes of it.
# - `held`: It waits for a neighbor, and is sent once that has answered.
# - `dropped`: Dropped, possibly with an ICMP error.
Fate = Literal["sent", "encrypted", "decrypted", "linux", "held", "dropped"]


class Filter(TypedDict):
    """All rules with one name."""
    # Name of the rules.
    name: str
    # Action of the first of them: `accept` or `drop`.
    action: str
    # Match of the first of them, such as `tcp from 192.0.2.0/24 to any port 23`.
    expression: str
    # Number of rules with this name.
    rules: int
    # Packets that these rules have matched.
    packets: int


class Filters(TypedDict):
    """All filter rules, by name."""
    # Rules by name, in the order of the configuration.
    filters: List[Filter]
    # Claims: rules that select packets for workers on ports of the kernel path.
    claims: List[Filter]
    # Action for packets that no rule matches: `accept` or `drop`.
    unmatched: str
    # Packets that no rule matched.
    unmatched_packets: int
    # Ports for which the configuration sets a source check.
    sources: List[SourceCheck]


class Firewall(TypedDict):
    """Packets that Linux's firewall, IPsec policies or traffic control may drop, change, delay or count."""
    # Packets that are left to Linux.
    linux_only: List[LinuxOnly]
    # Keys of `[firewall]` that are set to `bypass`, even if there is nothing to bypass at present.
    bypassed: List[Bypassed]


class _Flow(TypedDict):
    # `tcp`, `udp` or a number.
    protocol: str
    # The interface that its packets arrive on.
    input: str
    # The interface that they leave by.
    output: str
    # Addresses and ports of its packets as they arrive.
    arrives: FlowTuple
    # Packets that brickmoon has forwarded. Those that Linux forwarded, such as the first ones, are not
    # among them.
    packets: int
    # Bytes of these packets as they arrived.
    bytes: int
    # Seconds since the flow was learned.
    age_s: int
    # Seconds since brickmoon last forwarded a packet of it.
    idle_s: int
    # Whether a FIN or RST was seen: its packets go to Linux from then on.
    ended: bool


class Flow(_Flow, total=False):
    """One direction of a connection, or packets of one tuple that Linux does not track."""
    # As they leave; absent if nothing is translated.
    leaves: FlowTuple


class FlowTuple(TypedDict):
    """Source and destination of packets."""
    # The address that they come from.
    source: str
    # Of TCP or UDP.
    source_port: int
    # The address that they go to.
    destination: str
    # Of TCP or UDP.
    destination_port: int


class Flows(TypedDict):
    """Flows of connections that Linux has accepted."""
    # As many of those that were asked for as the reply may have.
    flows: List[Flow]
    # Number of flows that were asked for.
    matching: int
    # Number of all flows, and what became of earlier ones.
    state: FlowsState


class _FlowsState(TypedDict):
    # Families whose packets are forwarded by flow at present: `ipv4`, `ipv6`.
    families: List[str]
    # Number of flows.
    flows: int
    # Maximum number of flows: `max` in `[flows]`; 0 if there is no table.
    max: int
    # Flows learned since the start.
    learned: int
    # Flows that have ended since the start, by reason: `connection` (Linux has forgotten the connection),
    # `changed` (its mark or state has changed), `rules` (rules, routes or interfaces have changed), `room`
    # (other flows took its place), `lost` (events were lost), `idle`, `cleared`.
    ended: Dict[str, int]
    # Reports of packets that no flow was made of, by reason.
    not_learned: Dict[str, int]
    # Flows that found no room.
    full: int


class FlowsState(_FlowsState, total=False):
    """State of the table of flows."""
    # Why flows are not in use; absent if they are.
    why_not: str


class Hook(TypedDict):
    """A hook. Counters are summed over all threads and versions."""
    name: str
    # Path of its Lua file.
    file: str
    # Stages that it runs at.
    stages: List[str]
    # State of the newest version: `active`, `failed`, `ejected` or `hung`.
    state: str
    # Number of the newest version; increases each time hooks are loaded.
    version: int
    # The version that runs; `null` if none does.
    running: Optional[int]
    # Calls, one per burst.
    calls: int
    # Frames in these bursts.
    frames: int
    # Average processor cycles per frame.
    cycles_per_frame: float
    # Maximum cycles per frame, in CPU time; 0 for no limit.
    budget: int
    # The share of a core, in percent, below which it may take more.
    budget_percent: int
    # What happens to its packets while none of its versions runs: `pass`, `drop` or `linux`.
    on_failure: str
    # Errors that the hook did not catch.
    errors: int
    # How often it was ejected for exceeding its budget.
    ejections: int
    # How often it was aborted because it hung.
    hangs: int
    # Frames that it dropped, by reason.
    drops: Dict[str, int]
    # Its own counters.
    counters: Dict[str, int]
    # The last error, with its traceback.
    last_error: Optional[str]


class Hooks(TypedDict):
    """All hooks, in the order they run."""
    hooks: List[Hook]


class _Hop(TypedDict):
    # Name of the interface in Linux.
    interface: str
    # Number of the interface in Linux.
    ifindex: int


class Hop(_Hop, total=False):
    """Interface and neighbor that packets are sent to."""
    # Address of the gateway; absent if the destinations are on the link.
    gateway: str
    # MAC of the neighbor; absent while unknown.
    mac: Mac


class _Interface(TypedDict):
    # Index of the interface in brickmoon.
    index: int
    # Name in Linux.
    name: str
    # Number in Linux.
    ifindex: int
    mac: Mac
    # MTU: size of the largest IP packet, in bytes.
    mtu_bytes: int
    # Whether it is up and has a carrier.
    up: bool
    # Whether IPv4 packets that arrive here are forwarded.
    forward_ipv4: bool
    # Whether IPv6 packets that arrive here are forwarded.
    forward_ipv6: bool
    # Reverse path filter for IPv4 sources.
    reverse_path: ReversePath
    # IP addresses with prefix lengths, such as `192.0.2.1/24`.
    addresses: List[str]


class Interface(_Interface, total=False):
    """A logical interface."""
    # VLAN tag; absent for untagged frames.
    vlan: Vlan
    # Name of its VRF; absent if it is in none.
    vrf: str


class IpsecPolicies(TypedDict):
    """What `show policies` prints: which packets are encrypted, dropped or left as they are."""
    # By direction and priority.
    policies: List[IpsecPolicy]


class IpsecPolicy(TypedDict):
    """Which packets it selects, and what is done with them."""
    # `out` or `in`.
    direction: str
    # Policies with lower values are compared first.
    priority: int
    # The IPsec interface whose packets it is for; empty for packets of none. `if_id:N` if no interface has
    # its number.
    interface: str
    # Prefix, or `any`.
    source: str
    # Prefix, or `any`.
    destination: str
    # Protocol number; `null` for any.
    protocol: Optional[int]
    # Such as `1024-65535`; empty for any.
    source_ports: str
    # Such as `1024-65535`; empty for any.
    destination_ports: str
    # `protect`, `discard` or `bypass`.
    action: str
    # Name of the SA of `protect`, the first one if there are several; otherwise empty.
    sa: str
    # Names of all SAs of `protect`: each worker encrypts with one, the first worker with the first.
    sas: List[str]
    # The packets' mark and the bits of it that are compared, such as `0x2a/0xff`; `null` for any. Packets
    # that workers handle have the mark 0.
    mark: Optional[str]


class Link(TypedDict):
    """A link between two apps."""
    # Name, such as `eth0.output -> router.eth0`.
    name: str
    # Number of its worker.
    worker: int
    # Frames that the sending app transmitted into the link.
    tx: int
    # Bytes of these frames.
    tx_bytes: int
    # Frames that the receiving app took out of the link.
    rx: int
    # Bytes of these frames.
    rx_bytes: int
    # Frames dropped because the link was full.
    dropped: int
    # Frames in the link now.
    waiting: int


class Links(TypedDict):
    """All links between apps."""
    # The links, by worker and name.
    links: List[Link]


class LinuxDrop(TypedDict):
    """Packets that Linux dropped for one reason."""
    # Name, such as `firewall`.
    reason: str
    # Meaning of the reason.
    meaning: str
    # Number of dropped packets.
    frames: int
    # Where they came in, most packets first.
    at: List[LinuxDropAt]


class LinuxDropAt(TypedDict):
    """Packets that Linux dropped for one of its reasons, of one port."""
    # Name of the port on which they came in.
    port: str
    # The kernel's own name of the reason, such as `NETFILTER_DROP`.
    kernel_reason: str
    # Number of dropped packets.
    frames: int


class _LinuxOnly(TypedDict):
    # The part of Linux: `nftables`, `iptables`, `netfilter`, `xfrm`, `shaping`, `tc filter`, `setting` or
    # `interface`.
    feature: str
    # Which packets, in words.
    packets: str
    # What is configured in Linux, in the terms of `nft`, `iptables`, `ip xfrm` or `tc`.
    why: str
    # The key of `[firewall]` that bypasses it; empty if there is none.
    setting: str
    # Whether Linux only gets the first packets of each flow, and brickmoon repeats what it decided about
    # them.
    first_packets: bool


class LinuxOnly(_LinuxOnly, total=False):
    """Packets that only Linux may handle."""
    # Names of the ports that such packets arrive on or leave by; empty for all ports.
    ports: List[str]


class LinuxOnlyTo(TypedDict):
    """Packets to an address that only Linux may handle."""
    # Whether this covers all packets to the address.
    all: bool
    # Which packets, and why.
    entry: LinuxOnly


class Lookup(TypedDict):
    """A lookup structure for addresses."""
    # `ipv4` or `ipv6`.
    family: str
    # Name, as in `[fib]` of the configuration.
    structure: str
    # Version of its lookup function on this CPU: `scalar`, `avx2` or `avx512`.
    version: str
    # Kind of the memory pages of its largest array.
    pages: str
    # Memory use in bytes.
    memory_bytes: int


class Lua(TypedDict):
    """Figures of LuaJIT on a worker since the start, summed over its Lua states."""
    # Traces compiled.
    traces: int
    # Aborted trace recordings.
    aborts: int
    # How often all traces of a state were flushed.
    flushes: int
    # Size of the machine code of the current traces, in bytes.
    code_bytes: int
    # Size of the garbage-collected heaps, in bytes.
    heap_bytes: int


# A MAC address.
Mac = str


class _MacEntry(TypedDict):
    # Name of the switch.
    switch: str
    # The MAC address.
    mac: Mac
    # The port where it was learned.
    port: str


class MacEntry(_MacEntry, total=False):
    """A MAC address that a switch has learned or that is configured."""
    # Time since its last frame, in milliseconds; absent for static entries.
    age_ms: int
    # VLAN ID; absent if the switch is not VLAN-aware.
    vlan: int


class Macs(TypedDict):
    """The MAC addresses of all switches."""
    # The addresses, by switch, VLAN and MAC.
    macs: List[MacEntry]


class Mirror(TypedDict):
    """State of the mirror of the kernel's tables."""
    # Whether the tables of the workers reflect all messages of the kernel: no lost messages still to be
    # made up for by a dump, and no changes that could not be applied.
    synced: bool
    # Netlink messages received.
    messages: int
    # Changes in these messages.
    changes: int
    # How often the kernel dropped messages because the socket buffer was full.
    overruns: int
    # Full dumps after the first one.
    resyncs: int
    # Differences that the periodic comparison found and corrected.
    repaired: int
    # Malformed messages; the tables are compared with the kernel after each.
    malformed: int
    # How often settings in `/proc/sys/net` could not be read; the previous values stay in use.
    unread: int
    # Duration of the first dump and its compilation, in milliseconds.
    first_sync_ms: int
    # Duration of compiling the latest batch of changes, in microseconds.
    last_batch_us: int
    # Number of changes in the latest batch.
    last_batch_changes: int


class _Neighbor(TypedDict):
    # IP address.
    address: str
    # Name of the interface in Linux.
    interface: str
    # Number of the interface in Linux.
    ifindex: int
    # State, as `ip neigh` names it in lower case: `reachable`, `stale`, ...
    state: str
    # Whether packets can be sent to it now.
    usable: bool
    # Whether it has announced itself as a router (IPv6).
    router: bool
    # Whether packets were sent to it since the last check, a few seconds ago.
    used: bool


class Neighbor(_Neighbor, total=False):
    """A neighbor of the kernel."""
    # MAC; absent while unknown.
    mac: Mac
    # Number of the next hop that sends to it, if any.
    next_hop: int


class Neighbors(TypedDict):
    """All neighbors on brickmoon's interfaces."""
    # The neighbors, by interface and address.
    neighbors: List[Neighbor]


class _NextHop(TypedDict):
    # Its number: `next_hop` of routes.
    index: int
    # What currently happens to packets.
    action: Action
    # MTU of the routes that use it, in bytes; 0 for that of the interface.
    mtu_bytes: int
    # Number of routes, groups and neighbors that use it.
    users: int


class NextHop(_NextHop, total=False):
    """A next hop: what the fast path does with packets whose route leads to it."""
    # Where packets are sent; absent for groups and for other actions than forwarding.
    hop: Hop
    # Members of a group, without unusable ones.
    members: List[Share]
    # ID of the kernel's nexthop object that it was made from (`ip nexthop`).
    object: int


class NextHops(TypedDict):
    """All next hops in use."""
    # The next hops, by number.
    next_hops: List[NextHop]
    # Maximum number of next hops.
    capacity: int


class _Port(TypedDict):
    # Index of the port, from 0, in the order of the configuration.
    index: int
    # Name of the port; that of its Linux interface, if it has one.
    name: str
    # Device as in the configuration, such as `xdp:eth0`.
    device: str
    # Whether it is up and has a carrier.
    up: bool
    # Whether brickmoon takes its packets; otherwise Linux gets all of them.
    active: bool
    # Whether the port has its interface.
    state: PortState
    # How frames get from the device to the workers.
    mode: PortMode
    # Path of its packets: `kernel` or `user`.
    path: str
    queues: List[Queue]
    # Logical interfaces: the port's own, and VLANs on it.
    interfaces: List[Interface]
    # Who counts `rx` and `tx`.
    counted_by: CountedBy
    # Sums over its queues.
    account: Account
    # Counters of the device by name, such as `receive_ring_full`, in frames.
    device_counters: Dict[str, int]
    # Counters of the kernel path by name, in frames: `forwarded`, and `linux_` with a reason. On the user
    # path only those of the steering program, such as `linux_firewall` for frames that only Linux may
    # handle.
    kernel_counters: Dict[str, int]


class Port(_Port, total=False):
    """An interface or device that the daemon forwards between, with its state and counters."""
    # What the kernel path is attached to: `xdp` or `tc`; absent where it is not attached.
    attach: str
    # Why it is attached there; absent if the configuration sets it.
    attach_reason: str
    # All counters of the hardware or its driver, by the driver's names (DPDK's xstats); absent without
    # any.
    hardware_counters: Dict[str, int]
    # Packets that arrive or leave here and that only Linux may handle.
    linux_only: List[LinuxOnly]
    # Why the mode is not the best one; absent if it is.
    mode_reason: str
    # Why this path was chosen; absent if the configuration sets it.
    path_reason: str
    # Ring size of each queue in frames (AF_XDP only); frames beyond that are lost.
    ring: int
    # Packets received from the wire, as `counted_by` counts them. Absent while the port has no interface.
    rx: Traffic
    # Why it has no interface, or what is wrong with the device.
    state_reason: str
    # Packets sent to the wire.
    tx: Traffic


# How frames get from a device to the workers.
#
# - `memory`: In memory: capture files, ports of tests.
# - `zero-copy`: AF_XDP in zero-copy mode: the device writes into our frames.
# - `copy`: AF_XDP in copy mode: the kernel copies each frame.
# - `tap`: A TAP device, with one system call per frame.
# - `dpdk`: DPDK drives the device.
# - `kernel`: Not at all: the kernel path forwards them.
PortMode = Literal["memory", "zero-copy", "copy", "tap", "dpdk", "kernel"]


# Whether a port has its interface. Ports follow their interfaces by name.
#
# - `attached`: The port has its interface.
# - `missing`: No interface has its name.
# - `refused`: The interface exists but cannot be used: Linux gets its packets, and it is tried again.
PortState = Literal["attached", "missing", "refused"]


class Ports(TypedDict):
    """All ports, in the order of the configuration."""
    ports: List[Port]


class Queue(TypedDict):
    """One queue of a port."""
    # Number of the queue on the device.
    queue: int
    # Number of the worker that owns it.
    worker: int
    # Account of its received frames.
    account: Account


class RegisteredNode(TypedDict):
    """A node whose daemon runs and reaches the store."""
    name: str
    node: int
    # Its current epoch.
    epoch: int
    # Its external ports with their numbers.
    ports: Dict[str, int]


class Reloaded(TypedDict):
    """Result of a reload."""
    # Changed settings that are now in effect, such as `slow_path.queue`.
    changed: List[str]
    # Changed settings that are now in effect after a restart of the workers.
    restarted: List[str]
    # Changed settings that need a restart of the daemon and are not in effect.
    needs_restart: List[str]


# Reverse path filter (RFC 3704).
#
# - `off`: Source addresses are not checked.
# - `strict`: The route to the source must lead through the same interface.
# - `loose`: There must be a route to the source.
ReversePath = Literal["off", "strict", "loose"]


class _Route(TypedDict):
    # Destination, such as `192.0.2.0/24`.
    prefix: str
    # What the entry is in the kernel.
    state: RouteState
    # ID of the kernel's routing table; 0 for a neighbor.
    table: int
    # The kernel's type: `unicast`, `local`, `blackhole`, ...
    kind: str
    # Protocol as in `ip route`: `kernel`, `static`, `bgp`, ...
    protocol: str
    # Metric as in `ip route`.
    metric: int
    # Number of its next hop.
    next_hop: int
    # What currently happens to packets.
    action: Action
    # Where packets are sent: one hop, or the usable members of a group.
    hops: List[Hop]
    # MTU of the route in bytes; 0 for that of the interface.
    mtu_bytes: int


class Route(_Route, total=False):
    """A prefix, and what the fast path does with packets to it."""
    # Why packets of a route that Linux forwards are left to Linux; absent otherwise.
    reason: str


# What an entry of our table is in the kernel.
#
# - `neighbor`: A neighbor on the link, whose MAC is known.
# - `refused`: A route that brickmoon cannot handle: its packets go to Linux.
RouteState = Literal["route", "neighbor", "refused"]


class _Routes(TypedDict):
    routes: List[Route]
    # Total number of IPv4 routes of the table.
    total_ipv4: int
    # Total number of IPv6 routes of the table.
    total_ipv6: int
    # Lookup structures of the table, IPv4 first; only for the requested families.
    lookup: List[Lookup]


class Routes(_Routes, total=False):
    """Routes of one routing table, in order of address, IPv4 first."""
    # With `address`: packets to it that only Linux may handle.
    linux_only: List[LinuxOnlyTo]
    # Value of `after` for the next reply; absent in the last one.
    next: str


class Sa(TypedDict):
    """A security association. Keys are never shown."""
    # As in the configuration; `reqid:N` for one that a program has added.
    name: str
    # `out` or `in`.
    direction: str
    # Security parameters index.
    spi: int
    source: str
    destination: str
    # `tunnel` or `transport`.
    mode: str
    # The IPsec interface that it belongs to; empty for none. `if_id:N` if no interface has its number.
    interface: str
    # Encryption and integrity, such as `aes128gcm16`.
    suite: str
    # Which library encrypts or decrypts, by the size of packets if it is not the same for all, such as
    # `ipsec-mb-avx2, ring from 640 bytes`.
    library: str
    # Number of the worker that has it.
    worker: int
    # The CPU that an IKE daemon has added it for (RFC 9611); `null` for all.
    cpu: Optional[int]
    # Packets that other workers have handed to this one, since they have no SA of their own for them, or
    # received ESP of this SA.
    handed: int
    # Packets encrypted or decrypted.
    packets: int
    # Bytes of their inner packets.
    bytes: int
    # Packets that could not be encrypted or decrypted; `show drops` has the reasons.
    failures: int
    # The next sequence number to send, or the highest received.
    sequence: int
    # The largest ESP packet, as routers on the way have told in the last ten minutes; `null` if none has.
    path_mtu: Optional[int]
    # Seconds since it was added.
    age_s: int
    # `valid`, `expiring` after a soft lifetime, `expired` after a hard one, `exhausted` without a sequence
    # number left; `idle` if there are more SAs for a policy than workers, and this one was not needed yet.
    state: str


class Sas(TypedDict):
    """Security associations."""
    # SAs of the configuration in its order, then SAs that programs have added.
    sas: List[Sa]


_SentFrame = TypedDict(
    "_SentFrame",
    {
        # Name of the port that it leaves through.
        "port": "str",
        # Destination MAC.
        "to": "Mac",
        # Source MAC.
        "from": "Mac",
        # All of it, in hexadecimal.
        "frame": "str",
    },
)


class SentFrame(_SentFrame, total=False):
    """A frame that leaves."""
    vlan: Vlan


class _Share(TypedDict):
    # Number of the next hop.
    index: int
    # Weight within the group.
    weight: int


class Share(_Share, total=False):
    """A member of a group."""
    # Where packets are sent.
    hop: Hop


class SourceCheck(TypedDict):
    """Source address check of a port (RFC 3704)."""
    # Name of the port.
    port: str
    # `strict`, `feasible`, `loose`, or `off`.
    check: str


class _Status(TypedDict):
    # Version of brickmoon.
    version: str
    # Process ID.
    pid: int
    # Time since the start, in seconds.
    uptime_s: int
    # Whether the tables are complete and ports forward.
    ready: bool
    # Path in use: `user`, `kernel`, `mixed` if ports have different paths, or `lua` for a Lua program.
    path: str
    # Number of workers.
    workers: int
    # Number of ports.
    ports: int
    # Number of switches.
    switches: int
    # Number of ports of all switches.
    switch_ports: int
    # IPv4 routes in the fast path, in all VRFs.
    routes_ipv4: int
    # IPv6 routes in the fast path, in all VRFs.
    routes_ipv6: int
    # Routes and neighbors that brickmoon cannot handle: Linux forwards their packets.
    routes_refused: int
    # The kernel's neighbors on brickmoon's interfaces.
    neighbors: int
    # Next hops in use.
    next_hops: int
    # Maximum number of next hops: `next_hops` in `[fib]`.
    next_hops_max: int
    # Resident memory of the process, in bytes.
    memory_bytes: int
    # Memory of the lookup structures, in bytes.
    tables_bytes: int
    # Lookup structures of the main tables, IPv4 first.
    lookup: List[Lookup]
    # State of the mirror of the kernel's tables.
    mirror: Mirror
    # Packets that only Linux may handle, and those that bypass it.
    firewall: Firewall
    # Flows of connections that Linux has accepted.
    flows: FlowsState
    # Number of threads of the daemon that make no progress; 0 if all is well.
    silent_threads: int
    # Number of ports where Linux forwards packets without `[filter]`; `notes` name them.
    unfiltered_ports: int
    # Number of ports without their interface where nftables applies the rules of `[filter]`; `notes` name
    # them.
    nftables_ports: int
    # Number of outbound SAs of IPsec without a sequence number left, which send nothing; `notes` name
    # them.
    exhausted_sas: int
    # Lua hooks, by name, and whether a version of each runs; `notes` say what happens to the packets of
    # one that does not.
    hooks: Dict[str, bool]
    # Remarks for the operator, such as unsupported rules or missing huge pages.
    notes: List[str]


class Status(_Status, total=False):
    """State of the daemon."""
    # The configuration file in use.
    config: str
    # Why this path was chosen; absent if the configuration sets it.
    path_reason: str
    # The process that watches the kernel path's tables after the daemon has ended, and makes Linux forward
    # after the first change: `process 1234`. Absent if nothing outlives the daemon.
    tables_watched_by: str
    # URL of the web page; absent if it is off.
    web: str


class Step(TypedDict):
    """A decision about a packet."""
    # `packet`, `filters`, `claim`, `linux`, `route`, `next hop`, `neighbor`, `mtu`, `ipsec`, `hooks`,
    # `apps`, `flow`, `icmp`, `result`.
    step: str
    text: str


class Stopping(TypedDict):
    """Reply to the stop request: the daemon ends now."""
    # Process ID of the daemon, for waiting for its end.
    pid: int
    # Whether the kernel path keeps forwarding.
    kept: bool


class _Switch(TypedDict):
    name: str
    # Whether the switch is VLAN-aware.
    vlans: bool
    # Ageing time of learned MAC addresses, in seconds; 0 for no ageing.
    ageing_s: int
    # Number of MAC addresses in the table.
    macs: int
    # Maximum number of MAC addresses.
    macs_max: int
    # Ports, by interface index.
    ports: List[SwitchPort]
    # Interfaces that should be ports but cannot, with the reason.
    refused: Dict[str, str]


class Switch(_Switch, total=False):
    """A learning bridge, with its ports."""
    # The interface that connects Linux to the switch.
    interface: str


class SwitchPort(TypedDict):
    """An interface that belongs to a switch, with its state and counters."""
    # Name of the interface.
    name: str
    # Index of the interface in Linux.
    ifindex: int
    # Whether it is up.
    up: bool
    # Whether its device accepts frames from XDP; a veth does if the other end has GRO on.
    takes_frames: bool
    # Whether XDP runs in generic mode.
    generic: bool
    # MTU in bytes.
    mtu_bytes: int
    # VLANs in the form of `show switch`: `10` untagged, `20t` tagged; `-` if the switch is not VLAN-aware.
    vlans: str
    # Account of received frames; `passed` counts those that were forwarded or flooded.
    account: Account
    # Frames sent through this port; a flooded frame counts at each port.
    sent: int
    # Bytes of these frames.
    sent_bytes: int
    # Flags that differ from the defaults, in the terms of `bridge link`, such as `isolated on`.
    flags: List[str]
    # Maximum number of MAC addresses learned on this port.
    fdb_max_learned: int
    # Further counters by name: `forwarded`, `flooded`, `learned`, `moved`, `move_refused`, `evicted`,
    # `table_full`, `sums_completed`.
    counters: Dict[str, int]


class Switches(TypedDict):
    """All switches, in the order of the configuration."""
    switches: List[Switch]


class _Traffic(TypedDict):
    packets: int
    # Bytes of the frames, without the frame check sequence.
    bytes: int
    # Frames that the device found broken, or could not send.
    errors: int
    # Frames that the device or its driver dropped or missed.
    dropped: int


class Traffic(_Traffic, total=False):
    """Packets of a port in one direction since its interface was created, on every path."""
    # Bits a second, likewise.
    bits_per_s: int
    # Packets a second, over the last one to two seconds; absent until that is known.
    packets_per_s: int


class Verify(TypedDict):
    """Result of a comparison."""
    # Whether there are no differences; `notes` do not count.
    equal: bool
    # The differences; not all if there are very many.
    differences: List[Difference]
    # Total number of differences.
    differences_total: int
    # What brickmoon leaves to Linux: unsupported rules, routes through other interfaces.
    notes: List[str]
    # Number of compared objects of the kernel.
    compared: int
    # Duration in milliseconds.
    took_ms: int


class Vlan(TypedDict):
    """A VLAN tag without its priority."""
    # Ethertype of the tag: 33024 (0x8100) or 34984 (0x88a8).
    protocol: int
    # VLAN ID, 1 to 4094.
    id: int


class _Worker(TypedDict):
    # Number of the worker, from 0.
    worker: int
    # Whether its thread runs.
    alive: bool
    # Real-time priority (SCHED_FIFO); 0 for normal priority.
    priority: int
    # Its queues, such as `eth0/3`.
    queues: List[str]
    # Breaths: rounds through its apps.
    breaths: int
    # Frames moved, counted once for each link or port.
    moves: int
    # How often it slept.
    sleeps: int
    # How often it was restarted after a panic or a hang.
    restarts: int
    # Size of the frame memory, which all workers share, in frames.
    frames: int
    # Free frames in it.
    frames_free: int


class Worker(_Worker, total=False):
    """A forwarding thread."""
    # Its apps with the time spent in each on frames, estimated from some of its breaths; empty where it is
    # not measured.
    apps: List[AppTime]
    # Time spent on frames, in nanoseconds; absent where it is not measured.
    busy_ns: int
    # Core that it is pinned to; absent if the system chooses.
    core: int
    # Figures of LuaJIT for its hooks and apps; absent without any.
    lua: Lua


class Workers(TypedDict):
    """Reply to `GET /v1/workers`."""
    # The workers, by number.
    workers: List[Worker]


class Router(_Connection):
    """A running router, with a method for each request."""

    def apps(self) -> Apps:
        """Apps and their packet accounts."""
        reply: Apps = self._ask("GET", "/v1/apps")
        return reply

    def clear(self, *, undo: bool = False) -> Cleared:
        """Makes `show ports` and `show drops` count from now on. The counters stay as they are.

        - `undo`: Whether displays show all counts again.
        """
        reply: Cleared = self._ask("POST", "/v1/clear", {"undo": undo})
        return reply

    def cleared(self) -> Cleared:
        """What the counters were when they were cleared last."""
        reply: Cleared = self._ask("GET", "/v1/cleared")
        return reply

    def cluster(self) -> Cluster:
        """This node of a cluster, its links and their accounts."""
        reply: Cluster = self._ask("GET", "/v1/cluster")
        return reply

    def cluster_drain(self) -> Cluster:
        """Makes other nodes of the cluster send nothing over this one any more."""
        reply: Cluster = self._ask("POST", "/v1/cluster/drain")
        return reply

    def cluster_join(self) -> Cluster:
        """Makes other nodes of the cluster send packets over this one again."""
        reply: Cluster = self._ask("POST", "/v1/cluster/join")
        return reply

    def cluster_remove(self, name: str) -> Cluster:
        """Removes a node from the members in etcd.

        - `name`: The node to remove.
        """
        reply: Cluster = self._ask("POST", "/v1/cluster/remove", {"name": name})
        return reply

    def collectors(self) -> Collectors:
        """Collectors of sFlow and IPFIX, with what was sent to each."""
        reply: Collectors = self._ask("GET", "/v1/collectors")
        return reply

    def drops(self) -> Drops:
        """Drops by reason."""
        reply: Drops = self._ask("GET", "/v1/drops")
        return reply

    def explain(
        self,
        *,
        destination_port: Optional[int] = None,
        frame: Optional[str] = None,
        from_: Optional[str] = None,
        length: Optional[int] = None,
        port: Optional[str] = None,
        protocol: Optional[str] = None,
        source_port: Optional[int] = None,
        to: Optional[str] = None,
        ttl: Optional[int] = None,
        vrf: Optional[str] = None,
    ) -> Explanation:
        """What becomes of a packet, and why. Nothing is sent or counted.

        - `destination_port`: Destination port; 33434 if absent.
        - `frame`: The whole frame in hexadecimal, without its check sequence. Needs `port`, and no other
          field.
        - `from_`: Source; absent for an address on the link of the port.
        - `length`: Bytes of the IP packet; 64 if absent.
        - `port`: The port it arrives on, or an interface of one, such as a VLAN; absent for that of the
          route to `from`.
        - `protocol`: `udp`, `tcp`, `icmp` or a number; UDP if absent.
        - `source_port`: Source port of TCP and UDP; 40000 if absent.
        - `to`: Destination.
        - `ttl`: TTL or hop limit; 64 if absent.
        - `vrf`: Only interfaces in this VRF, if there is no `port`.
        """
        reply: Explanation = self._ask("GET", "/v1/explain", {
            "destination_port": destination_port,
            "frame": frame,
            "from": from_,
            "length": length,
            "port": port,
            "protocol": protocol,
            "source_port": source_port,
            "to": to,
            "ttl": ttl,
            "vrf": vrf,
        })
        return reply

    def filters(self) -> Filters:
        """Filter rules and how many packets they have matched."""
        reply: Filters = self._ask("GET", "/v1/filters")
        return reply

    def flows(
        self,
        *,
        filter: Optional[str] = None,
        limit: Optional[int] = None,
        sort: Optional[str] = None,
    ) -> Flows:
        """Flows of connections that Linux has accepted, with their translation of addresses.

        - `filter`: Which flows, in words of tcpdump's language: `host`, `net` and `port`, each with `src`
          or `dst` before it, `tcp`, `udp`, `ip`, `ip6`, and `in` or `out` with a port; joined by `and`,
          and with `not` before any of them. Addresses and ports count as they arrive and as they leave.
          Absent for all flows.
        - `limit`: Maximum number of flows; 10,000 if absent, and at most. 0 only counts them.
        - `sort`: The order: `packets` or `bytes`, most first, or `idle`, least first; absent for that in
          which the table has them.
        """
        reply: Flows = self._ask("GET", "/v1/flows", {"filter": filter, "limit": limit, "sort": sort})
        return reply

    def flows_clear(self) -> ClearedFlows:
        """Forgets all flows. Linux forwards the next packets of each, from which flows are learned again."""
        reply: ClearedFlows = self._ask("POST", "/v1/flows/clear")
        return reply

    def hooks(self) -> Hooks:
        """Lua hooks with their counters and last errors."""
        reply: Hooks = self._ask("GET", "/v1/hooks")
        return reply

    def links(self) -> Links:
        """Links between apps."""
        reply: Links = self._ask("GET", "/v1/links")
        return reply

    def macs(self) -> Macs:
        """MAC addresses that switches have learned."""
        reply: Macs = self._ask("GET", "/v1/macs")
        return reply

    def metrics(self) -> str:
        """Metrics in the OpenMetrics text format."""
        reply: str = self._ask_for_text("GET", "/v1/metrics")
        return reply

    def neighbors(self) -> Neighbors:
        """Neighbors on ports."""
        reply: Neighbors = self._ask("GET", "/v1/neighbors")
        return reply

    def nexthops(self) -> NextHops:
        """Next hops and next-hop groups."""
        reply: NextHops = self._ask("GET", "/v1/nexthops")
        return reply

    def policies(self) -> IpsecPolicies:
        """IPsec policies."""
        reply: IpsecPolicies = self._ask("GET", "/v1/policies")
        return reply

    def ports(self) -> Ports:
        """Ports and their interfaces, with counters and rates."""
        reply: Ports = self._ask("GET", "/v1/ports")
        return reply

    def reload(self) -> Reloaded:
        """Reads the configuration file again."""
        reply: Reloaded = self._ask("POST", "/v1/reload")
        return reply

    def routes(
        self,
        *,
        address: Optional[str] = None,
        after: Optional[str] = None,
        family: Optional[int] = None,
        limit: Optional[int] = None,
        prefix: Optional[str] = None,
        vrf: Optional[str] = None,
    ) -> Routes:
        """Routes as the fast path uses them.

        - `address`: Only the route that packets to this IPv4 or IPv6 address take.
        - `after`: Only routes after this prefix: `next` of the previous reply.
        - `family`: 4 or 6; absent for both.
        - `limit`: Maximum number of routes; 10,000 if absent, and at most.
        - `prefix`: Only this prefix and longer ones within it.
        - `vrf`: Name of a VRF; absent for the main table.
        """
        reply: Routes = self._ask("GET", "/v1/routes", {
            "address": address,
            "after": after,
            "family": family,
            "limit": limit,
            "prefix": prefix,
            "vrf": vrf,
        })
        return reply

    def sas(self) -> Sas:
        """IPsec security associations."""
        reply: Sas = self._ask("GET", "/v1/sas")
        return reply

    def status(self) -> Status:
        """State of the daemon."""
        reply: Status = self._ask("GET", "/v1/status")
        return reply

    def stop(self, *, keep: bool = False) -> Stopping:
        """Ends the daemon. Linux forwards from then on.

        - `keep`: Whether the kernel path keeps forwarding with its last tables for its grace time.
        """
        reply: Stopping = self._ask("POST", "/v1/stop", {"keep": keep})
        return reply

    def switches(self) -> Switches:
        """Switches, their ports and accounts."""
        reply: Switches = self._ask("GET", "/v1/switches")
        return reply

    def verify(self) -> Verify:
        """Compares all tables with the kernel's. Takes seconds with a full table."""
        reply: Verify = self._ask("POST", "/v1/verify")
        return reply

    def workers(self) -> Workers:
        """Workers."""
        reply: Workers = self._ask("GET", "/v1/workers")
        return reply
