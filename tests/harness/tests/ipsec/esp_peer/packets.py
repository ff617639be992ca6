"""IP packets as bytes, by the RFCs."""

import socket
import struct

HOP_BY_HOP, ICMP, IPIP, TCP, UDP, IPV6, ROUTING, FRAGMENT, ESP = 0, 1, 4, 6, 17, 41, 43, 44, 50
ICMPV6, NO_NEXT, OPTIONS = 58, 59, 60
DF, MF = 0x4000, 0x2000


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def put(packet, at, new):
    """The packet with other bytes at this place."""
    return packet[:at] + new + packet[at + len(new):]


def flip(packet, bit):
    """The packet with one bit changed, counted from the first."""
    return put(packet, bit // 8, bytes([packet[bit // 8] ^ 0x80 >> bit % 8]))


def summed(packet):
    """An IPv4 packet with the right header checksum."""
    header = put(packet[:header_length(packet)], 10, bytes(2))
    return put(packet, 10, struct.pack(">H", checksum(header)))


def version(packet):
    return packet[0] >> 4


def header_length(packet):
    """Bytes of the IP header without extension headers."""
    return (packet[0] & 15) * 4 if version(packet) == 4 else 40


def address(text):
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def ipv4(source, destination, protocol, payload, tos=0, ident=0, flags=0, ttl=64, options=b""):
    words = len(options) // 4 + 5
    total = words * 4 + len(payload)
    header = struct.pack(">BBHHHBBH", 0x40 | words, tos, total, ident, flags, ttl, protocol, 0)
    return summed(header + address(source) + address(destination) + options + payload)


def ipv6(source, destination, protocol, payload, tos=0, label=0, ttl=64):
    header = struct.pack(">IHBB", 6 << 28 | tos << 20 | label, len(payload), protocol, ttl)
    return header + address(source) + address(destination) + payload


def ip(source, destination, protocol, payload, **more):
    """A packet of the family of these addresses."""
    return (ipv6 if ":" in source else ipv4)(source, destination, protocol, payload, **more)


def upper_checksum(source, destination, protocol, upper):
    """The checksum of TCP, UDP or ICMPv6, with the pseudo-header."""
    length = struct.pack(">I", len(upper)) + struct.pack(">I", protocol)
    return checksum(address(source) + address(destination) + length + upper)


def udp(source, destination, ports, data):
    """A datagram with its checksum, without the IP header."""
    upper = struct.pack(">HHHH", *ports, 8 + len(data), 0) + data
    return put(upper, 6, struct.pack(">H", upper_checksum(source, destination, UDP, upper) or 0xFFFF))


def length(packet):
    """The bytes that the IP header speaks of."""
    return struct.unpack(">H", packet[2:4])[0] if version(packet) == 4 else 40 + struct.unpack(">H", packet[4:6])[0]


def with_length(packet):
    """The packet with the length that it has in its IP header."""
    if version(packet) == 4:
        return summed(put(packet, 2, struct.pack(">H", len(packet))))
    return put(packet, 4, struct.pack(">H", len(packet) - 40))


def traffic_class(packet):
    return packet[1] if version(packet) == 4 else (packet[0] & 15) << 4 | packet[1] >> 4


def with_class(packet, tos):
    if version(packet) == 4:
        return summed(put(packet, 1, bytes([tos])))
    return put(packet, 0, bytes([0x60 | tos >> 4, (tos & 15) << 4 | packet[1] & 15]))


def routed(packet):
    """The packet after one router."""
    if version(packet) == 4:
        return summed(put(packet, 8, bytes([packet[8] - 1])))
    return put(packet, 7, bytes([packet[7] - 1]))


def ends(packet):
    """Source and destination, as text."""
    family, at, size = (socket.AF_INET, 12, 4) if version(packet) == 4 else (socket.AF_INET6, 8, 16)
    return tuple(socket.inet_ntop(family, packet[start:start + size]) for start in (at, at + size))


def fragments(packet, size, ident=7):
    """The packet in fragments with up to `size` bytes of data each, a multiple of 8."""
    start = header_length(packet)
    data, made = packet[start:], []
    for offset in range(0, len(data), size):
        part, more = data[offset:offset + size], offset + size < len(data)
        if version(packet) == 4:
            field = struct.pack(">HH", ident, offset // 8 | (MF if more else 0))
            made.append(with_length(put(packet[:start], 4, field) + part))
        else:
            extension = struct.pack(">BBHI", packet[6], 0, offset | more, ident)
            made.append(with_length(put(packet[:start], 6, bytes([FRAGMENT])) + extension + part))
    return made


def reassembled(parts):
    """The packet whose IPv4 fragments these are, in any order; nothing if some are missing."""
    parts = sorted(parts, key=lambda part: struct.unpack(">H", part[6:8])[0] & 0x1FFF)
    data = b""
    for part in parts:
        field = struct.unpack(">H", part[6:8])[0]
        if (field & 0x1FFF) * 8 != len(data):
            return None
        data += part[header_length(part):]
    if field & MF:
        return None
    return with_length(put(parts[0][:header_length(parts[0])], 6, struct.pack(">H", field & DF)) + data)


def extended(packet, kind, body=b"\x01\x04\0\0\0\0"):
    """An IPv6 packet with another extension header of 8 bytes: unless said otherwise, its option is padding."""
    return with_length(put(packet[:40], 6, bytes([kind])) + bytes([packet[6], 0]) + body + packet[40:])


def with_more(rng, packet):
    """A packet with 8 bytes more, as a fragment, or with options that routers pass over."""
    if version(packet) == 4:
        if rng.random() < 0.5:
            return with_length(put(packet[:20], 0, b"\x47") + b"\x01" * 8 + packet[20:])
        field = rng.choice([MF, MF | 100, 100])
        return with_length(put(packet, 6, struct.pack(">H", field)) + rng.randbytes(8))
    kind = rng.choice([FRAGMENT, HOP_BY_HOP, OPTIONS])
    if kind != FRAGMENT:
        return extended(packet, kind)
    return extended(packet, FRAGMENT, struct.pack(">H", rng.choice([1, 801, 800])) + rng.randbytes(4))


def is_for_slow_path(packet):
    """Whether a router may take longer for it, so that packets behind it overtake it."""
    return packet[0] not in (0x45, *range(0x60, 0x70)) or version(packet) == 6 and packet[6] == HOP_BY_HOP


def some(rng, source, destination, size, is_whole=True):
    """A packet of this size with everything else by the seed: what hosts send, and what only few of them send."""
    room = size - (40 if ":" in source else 20)
    if is_whole or room < 8 or rng.random() < 0.8:
        return ordinary(rng, source, destination, room)
    return with_more(rng, ordinary(rng, source, destination, room - 8))


def ordinary(rng, source, destination, room):
    """A packet with this many bytes behind its header."""
    protocol = rng.choice([UDP, TCP, ICMPV6 if ":" in source else ICMP, 253])
    if room >= 8 and protocol == UDP:
        # Not that of ESP in UDP.
        ports = (rng.randrange(1, 4000), rng.randrange(5000, 65536))
        payload = udp(source, destination, ports, rng.randbytes(room - 8))
    elif room >= 8 and protocol in (ICMP, ICMPV6):
        payload = bytes([8 if protocol == ICMP else 128, 0, 0, 0]) + rng.randbytes(room - 4)
        sum_ = upper_checksum(source, destination, protocol, payload) if ":" in source else checksum(payload)
        payload = put(payload, 2, struct.pack(">H", sum_))
    elif room >= 20 and protocol == TCP:
        payload = put(rng.randbytes(room), 12, bytes([0x50, 0x18, 1, 1, 0, 0, 0, 0]))
        payload = put(payload, 16, struct.pack(">H", upper_checksum(source, destination, TCP, payload)))
    else:
        protocol, payload = 253, rng.randbytes(room)
    more = {"tos": rng.randrange(256), "ttl": rng.randrange(2, 256)}
    if ":" in source:
        return ipv6(source, destination, protocol, payload, label=rng.randrange(1 << 20), **more)
    flags = rng.choice([0, DF])
    return ipv4(source, destination, protocol, payload, ident=rng.randrange(1 << 16), flags=flags, **more)
