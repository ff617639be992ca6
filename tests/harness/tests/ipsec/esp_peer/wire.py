"""Interfaces of the network around the router, and the tunnels whose far end is here."""

import select
import socket
import struct
import time

import packets
from esp import Refused, Sa
from packets import ESP, ICMP, ICMPV6, UDP, header_length, version

PATIENCE = 30
ROUTERS = ["10.1.0.1", "192.0.2.1", "2001:db8:1::1", "2001:db8:f::1"]
PACKET_OUTGOING = 4
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
SO_RCVBUFFORCE = 33


class Wire:
    """One end of a link to the router."""

    def __init__(self, name, router, rng):
        self.router, self.rng = bytes.fromhex(router.replace(":", "")), rng
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.socket.bind((name, 0))
        everything = struct.pack("iHH8s", socket.if_nametoindex(name), PACKET_MR_PROMISC, 0, b"")
        self.socket.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, everything)
        self.mac = self.socket.getsockname()[4]

    def send(self, packet, to=None):
        """A frame with this packet, at times with bytes behind it, which belong to nothing."""
        kind = b"\x86\xdd" if packet and version(packet) == 6 else b"\x08\x00"
        is_whole = len(packet) >= 40 and packets.length(packet) == len(packet) < 1480
        behind = self.rng.randbytes(self.rng.randrange(1, 20)) if is_whole and self.rng.random() < 0.3 else b""
        frame = (to or self.router) + self.mac + kind + packet + behind
        # A frame has at least 60 bytes.
        self.socket.send(frame + bytes(max(0, 60 - len(frame))))

    def receive(self, patience=PATIENCE):
        """The next packet, without what follows it in its frame; nothing if none comes."""
        end = time.monotonic() + patience
        while select.select([self.socket], [], [], max(0, end - time.monotonic()))[0]:
            frame, sender = self.socket.recvfrom(1 << 16)
            packet = frame[14:]
            if sender[2] == PACKET_OUTGOING or frame[12:14] not in (b"\x08\x00", b"\x86\xdd"):
                continue
            # Neighbor discovery and the like.
            if version(packet) == 6 and packet[24] == 0xFF:
                continue
            return packet[:packets.length(packet)]
        return None


class Tunnel:
    """A pair of SAs."""

    def __init__(self, given, rng):
        self.name, self.hosts, self.is_selective = given["name"], given["hosts"], given["selectors"]
        self.is_tunnel, self.udp, self.esn = given["mode"] == "tunnel", given["udp"], given["esn"]
        # `out` is what brickmoon encrypts, `back` what it decrypts.
        self.out, self.back = Sa(given, given["out"], rng), Sa(given, given["in"], rng)
        self.out.window.top = given["begin"]
        self.rng = rng

    def family(self):
        """Of the packets inside."""
        return self.rng.choice(sorted(self.hosts))

    def largest(self, sa, family, mtu=1500):
        """The largest packet that fits in one ESP packet."""
        if self.is_tunnel:
            return sa.room(mtu)
        header = 20 if family == "4" else 40
        return sa.room(mtu - header) + header

    def packet(self, size=None, is_out=False, family=None, mtu=1500):
        """A packet of one of its hosts, of any size that fits, or of this one."""
        family = family or self.family()
        near, far = self.hosts[family]
        least = 20 if family == "4" else 40
        if size is None:
            size = self.rng.randrange(least, self.largest(self.out, family, mtu) + 1)
        ends = (near, far) if is_out else (far, near)
        # Transport mode takes whole packets only (RFC 4303 3.3.4).
        return packets.some(self.rng, *ends, size, is_whole=not self.is_tunnel)


def late(packet):
    """Sorts packets so that only those of the slow path may be in another order."""
    return packet if packets.is_for_slow_path(packet) else b""


class Lab:
    """A host on one side of the router, and a peer on the other one."""

    def __init__(self, lan, wan, rng):
        self.lan, self.wan, self.rng, self.parts, self.tunnels = lan, wan, rng, {}, []

    def by_spi(self, spi):
        return next((tunnel for tunnel in self.tunnels if tunnel.out.spi == spi), None)

    def whole(self, packet):
        """The packet, or that of which it is the last missing fragment."""
        if version(packet) == 6 or not struct.unpack(">H", packet[6:8])[0] & 0x3FFF:
            return packet
        parts = self.parts.setdefault(packet[4:6] + packet[12:20], [])
        parts.append(packet)
        packet = packets.reassembled(parts)
        if packet:
            parts.clear()
        return packet

    def from_router(self, patience=PATIENCE):
        """The next packet that the router has sent to the peer, decrypted, and its tunnel."""
        packet = None
        while packet is None:
            packet = self.wan.receive(patience)
            if packet is None:
                return None
            packet = self.whole(packet)
        start = header_length(packet)
        protocol = packet[9 if version(packet) == 4 else 6]
        if protocol in (ICMP, ICMPV6) and packets.ends(packet)[0] in ROUTERS:
            # What it says to somebody that has sent nonsense.
            return self.from_router(patience)
        at = {ESP: start, UDP: start + 8}.get(protocol)
        tunnel = self.by_spi(struct.unpack(">I", packet[at:at + 4])[0]) if at else None
        if tunnel is None:
            raise Refused(f"the router has sent {packet.hex()}")
        return tunnel, tunnel.out.open(packet)

    def out(self, chosen):
        """Sends packets of the host, of these tunnels; each must come out of its own, in order."""
        expected, count, got = {}, 0, {}
        for tunnel, packet in chosen:
            self.lan.send(packet)
            expected.setdefault(tunnel.name, []).append(packets.routed(packet))
            count += 1
        for _ in range(count):
            received = self.from_router()
            if received is None:
                break
            tunnel, packet = received
            got.setdefault(tunnel.name, []).append(packet)
        self.compare(expected, got)

    def compare(self, expected, got):
        for name in sorted(expected.keys() | got.keys()):
            wanted, came = (sorted(of.get(name, []), key=late) for of in (expected, got))
            if wanted != came:
                missing = [packet.hex() for packet in wanted if packet not in came]
                other = [packet.hex() for packet in came if packet not in wanted]
                raise Refused(f"{name}: of {len(wanted)} packets {len(came)} came\nmissing {missing}\ninstead {other}")

    def back(self, protected, what="valid packets"):
        """Sends packets of the peer, each with what the host must get of it, or nothing, and at times a MAC."""
        expected = []
        for packet, wanted, *to in protected:
            self.wan.send(packet, *to)
            if wanted is not None:
                expected.append(packets.routed(wanted))
        got = [self.lan.receive() for _ in expected]
        # Workers have SAs of their own, so the order between these is not known.
        self.compare({what: sorted(expected)}, {what: sorted(packet for packet in got if packet)})

    def error(self):
        """The MTU in the next ICMP error that the host gets, and the packet that it quotes."""
        packet = self.lan.receive()
        message = packet[header_length(packet):]
        kind = (packet[9], message[0], message[1]) if version(packet) == 4 else (packet[6], message[0], message[1])
        if kind == (ICMP, 3, 4) and not packets.checksum(message):
            return struct.unpack(">H", message[6:8])[0], message[8:]
        if kind == (ICMPV6, 2, 0):
            return struct.unpack(">I", message[4:8])[0], message[8:]
        raise Refused(f"no error about the size, but {packet.hex()}")
