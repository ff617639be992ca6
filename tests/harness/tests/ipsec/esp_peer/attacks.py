"""What somebody on the way may send, who has no keys, and a peer that has them and breaks the rules.

An attack is a generator of packets, each with the reason for which it must be dropped, or with what the host must get
of it. Valid packets stand between the others: if one of these has changed anything, a valid one is lost.
"""

import copy
import struct

import packets
from esp import decapsulated
from packets import (FRAGMENT, HOP_BY_HOP, IPIP, IPV6, NO_NEXT, OPTIONS, ROUTING, UDP, extended, flip, fragments,
                     header_length, put, summed, version, with_class, with_length)

# Why a packet is dropped, in the words of the RFCs.
REPLAY, INTEGRITY, SHORT, PADDING = "replay", "integrity", "short", "padding"
NEXT_HEADER, SELECTOR, POLICY, DUMMY = "next header", "selector", "policy", "dummy"
FRAGMENTED, NO_SA, ENCAPSULATION, CONGESTION = "fragment", "no SA", "encapsulation", "congestion"
# An IP header that no router accepts; one that may also be that of a packet in clear; any of the reasons of a packet
# that was changed at random.
HEADER, HEADER_OR_POLICY, CHANGED = "header", "header or policy", "changed"
# Not for an SA at all, so Linux or another router may have it; but no host gets it.
OTHERS = "others"
VALID = None

NAMES = []


class Attack:
    """A packet, why it is dropped, or else what passes of it."""

    def __init__(self, packet, why, passes=None, to=None):
        self.packet, self.why, self.passes, self.to = packet, why, passes, to


def attack(suits=lambda tunnel: True):
    """Lists the function as an attack on the tunnels that it suits."""
    def listed(function):
        function.suits = suits
        NAMES.append(function.__name__)
        return function
    return listed


def is_tunnel(tunnel):
    return tunnel.is_tunnel


def valid(tunnel, packet=None, **more):
    packet = packet or tunnel.packet(tunnel.rng.randrange(60, 200))
    return Attack(tunnel.back.seal(packet, **more), VALID, packet)


def esp_of(tunnel, packet):
    """The ESP in a protected packet."""
    return packet[header_length(packet) + (8 if tunnel.udp else 0):]


def with_esp(tunnel, packet, esp):
    """A protected packet with other ESP, and the lengths that it has then."""
    return with_length(packet[:header_length(packet)] + tunnel.back.in_udp(esp))


def unmarked(tunnel):
    """Why a datagram that may be IKE's is dropped: it is not, unless it has the addresses of packets inside."""
    return OTHERS if tunnel.is_tunnel else POLICY


def of_length(tunnel, length):
    """Why ESP of this length is refused, if its ICV is wrong."""
    cipher = tunnel.back.cipher
    sealed = length - 8 - cipher.iv - cipher.icv
    return SHORT if sealed < 2 or sealed % cipher.alignment else INTEGRITY


def of_number(tunnel, low):
    """Why ESP with this number is refused, if its ICV is wrong."""
    window = tunnel.back.window
    return REPLAY if window.refuses(window.whole(low)) else INTEGRITY


@attack()
def replays(tunnel, lab):
    first = [valid(tunnel) for _ in range(20)]
    yield from first
    for one in tunnel.rng.sample(first, len(first)):
        yield Attack(one.packet, REPLAY)
    for one in first:
        # The number is looked at before the ICV.
        yield Attack(put(one.packet, len(one.packet) - 1, bytes([one.packet[-1] ^ 1])), REPLAY)
    # Other packets with these numbers.
    for number in range(tunnel.back.window.top - 19, tunnel.back.window.top + 1):
        yield Attack(tunnel.back.seal(tunnel.packet(), number=number), REPLAY)


@attack()
def old_numbers(tunnel, lab):
    window, why = tunnel.back.window, INTEGRITY if tunnel.esn else REPLAY
    # Nothing between has been received.
    yield valid(tunnel, number=window.top + 2 * window.size + 100)
    yield valid(tunnel, number=window.top - window.size + 1)
    far_back = [tunnel.rng.randrange(window.size, window.top) for _ in range(20)]
    for back in [*range(window.size, window.size + 40), *far_back]:
        # With ESN it is taken for a number of the next 2^32.
        yield Attack(tunnel.back.seal(tunnel.packet(), number=window.top - back), why)
    for back in tunnel.rng.sample(range(8, window.size - 8), 40):
        if not window.refuses(window.top - back):
            yield valid(tunnel, number=window.top - back)
    if not tunnel.esn:
        yield Attack(tunnel.back.seal(tunnel.packet(), number=0), REPLAY)


@attack()
def numbers_far_ahead(tunnel, lab):
    top = tunnel.back.window.top
    for ahead in [1, 2, 63, 64, 65, 4096, 1 << 20, 1 << 30, (1 << 31) - 1]:
        sealed = tunnel.back.seal(tunnel.packet(), number=top + ahead, noted=False)
        yield Attack(put(sealed, len(sealed) - 1, bytes([sealed[-1] ^ 1])), INTEGRITY)
        yield valid(tunnel)
    yield valid(tunnel, number=top + 100_000)
    yield valid(tunnel)


@attack()
def truncated(tunnel, lab):
    whole = valid(tunnel)
    esp = esp_of(tunnel, whole.packet)
    for length in range(len(esp)):
        # In UDP, what is too short for an SPI belongs to nobody.
        why = unmarked(tunnel) if tunnel.udp and length < 4 else of_length(tunnel, length)
        yield Attack(with_esp(tunnel, whole.packet, esp[:length]), why)
    for length in range(len(whole.packet)):
        yield Attack(whole.packet[:length], HEADER)
    for more in range(1, 40):
        yield Attack(with_esp(tunnel, whole.packet, esp + bytes(more)), of_length(tunnel, len(esp) + more))
    yield whole


@attack()
def flipped_bits(tunnel, lab):
    whole = valid(tunnel)
    esp = esp_of(tunnel, whole.packet)
    bits = len(esp) * 8
    head = 8 * (8 + tunnel.back.cipher.iv)
    inside = tunnel.rng.sample(range(head, bits), 100)
    for bit in [*range(head), *range(bits - 8 * tunnel.back.cipher.icv, bits), *inside]:
        bad = flip(esp, bit)
        spi, low = struct.unpack(">II", bad[:8])
        why = NO_SA if spi != tunnel.back.spi else INTEGRITY if bit >= 64 else of_number(tunnel, low)
        yield Attack(with_esp(tunnel, whole.packet, bad), why)
    yield whole


@attack(lambda tunnel: ":" not in tunnel.back.source)
def headers_with_a_wrong_checksum(tunnel, lab):
    whole = valid(tunnel)
    # With bit 2 it would be sent as IPv6.
    for bit in [0, 1, *range(3, 160)]:
        changed = flip(whole.packet, bit)
        # Multicast is Linux's.
        why = OTHERS if changed[16] >= 224 else HEADER if tunnel.is_tunnel else HEADER_OR_POLICY
        yield Attack(changed, why)
    yield whole


@attack(is_tunnel)
def outer_headers(tunnel, lab):
    """What the ICV does not protect, and what the RFCs want the receiver to ignore."""
    is_ipv6 = ":" in tunnel.back.source
    if is_ipv6:
        # Flow label, hop limit, half of the source.
        fields = [*range(12, 32), *range(56, 64), *range(128, 192)]
    else:
        # Identification, DF, TTL, half of the source.
        fields = [*range(32, 48), 49, *range(64, 72), *range(112, 128)]
    for bit in fields:
        if is_ipv6 and tunnel.udp and bit >= 128:
            # The checksum of UDP is over it.
            continue
        one = valid(tunnel)
        changed = flip(one.packet, bit)
        yield Attack(changed if is_ipv6 else summed(changed), VALID, one.passes)
    if is_ipv6:
        one = valid(tunnel)
        for bit in range(4):
            yield Attack(flip(one.packet, bit), HEADER)
        yield one
        return
    one = valid(tunnel)
    for bit in range(50, 64):
        yield Attack(summed(flip(one.packet, bit)), OTHERS if tunnel.udp and bit > 50 else FRAGMENTED)
    yield one


@attack(is_tunnel)
def congestion_marks(tunnel, lab):
    for inner in range(4):
        for outer in range(4):
            packet = with_class(tunnel.packet(100), tunnel.rng.randrange(64) << 2 | inner)
            tos = tunnel.rng.randrange(64) << 2 | outer
            passes = decapsulated(packet, tos)
            yield Attack(tunnel.back.seal(packet, tos=tos), VALID if passes else CONGESTION, passes)


@attack()
def wrong_padding(tunnel, lab):
    alignment = tunnel.back.cipher.alignment
    for length in range(60, 60 + 2 * alignment):
        packet = tunnel.packet(length, family="4" if "4" in tunnel.hosts else "6")
        if version(packet) == 6:
            packet = tunnel.packet(length + 20, family="6")
        payload = packet if tunnel.is_tunnel else packet[header_length(packet):]
        pad = bytes(range(1, 1 + -(len(payload) + 2) % alignment + alignment))
        at = tunnel.rng.randrange(len(pad))
        for wrong in (put(pad, at, bytes([pad[at] ^ 1 << tunnel.rng.randrange(8)])), bytes(len(pad)), pad[::-1]):
            yield Attack(tunnel.back.seal(packet, pad=wrong), PADDING)
        yield Attack(tunnel.back.seal(packet, pad=pad, pad_length=len(payload) + len(pad) + 1), PADDING)
        yield Attack(tunnel.back.seal(packet, pad=pad, pad_length=len(pad) + 1), PADDING)
        yield Attack(tunnel.back.seal(packet, pad=pad), VALID, packet)


@attack(is_tunnel)
def wrong_next_headers(tunnel, lab):
    for next_header in range(256):
        for family in sorted(tunnel.hosts):
            packet = tunnel.packet(100, family=family)
            is_right = next_header == (IPIP if family == "4" else IPV6)
            why = VALID if is_right else DUMMY if next_header == NO_NEXT else NEXT_HEADER
            yield Attack(tunnel.back.seal(packet, next_header=next_header), why, packet if is_right else None)


@attack()
def dummies(tunnel, lab):
    for length in [0, 1, 2, 3, 4, 20, 40, *(tunnel.rng.randrange(1300) for _ in range(10))]:
        esp = tunnel.back.body(tunnel.rng.randbytes(length), NO_NEXT)
        yield Attack(with_esp(tunnel, valid(tunnel).packet, esp), DUMMY)
        yield valid(tunnel)


@attack(is_tunnel)
def malformed_inner_packets(tunnel, lab):
    seal = tunnel.back.seal
    packet = tunnel.packet(100, family="4")
    for length in range(20):
        yield Attack(tunnel.back.outer(tunnel.back.body(packet[:length], IPIP)), NEXT_HEADER)
    for length in [*range(20), 101, 200, 65535]:
        yield Attack(seal(summed(put(packet, 2, struct.pack(">H", length)))), NEXT_HEADER)
    for first in range(256):
        if first >> 4 != 4 or not 5 <= first & 15:
            esp = tunnel.back.body(put(packet, 0, bytes([first])), IPIP)
            yield Attack(tunnel.back.outer(esp), NEXT_HEADER)
    for bit in range(80, 96):
        yield Attack(seal(flip(packet, bit)), HEADER)
    packet = tunnel.packet(100, family="6")
    for length in range(40):
        yield Attack(tunnel.back.outer(tunnel.back.body(packet[:length], IPV6)), NEXT_HEADER)
    for length in [61, 200, 65535]:
        yield Attack(seal(put(packet, 4, struct.pack(">H", length))), NEXT_HEADER)
    yield valid(tunnel)


@attack(lambda tunnel: tunnel.is_tunnel and tunnel.is_selective)
def packets_outside_of_the_selectors(tunnel, lab):
    for family in sorted(tunnel.hosts):
        near, far = tunnel.hosts[family]
        others = [other.hosts[family][1] for other in lab.tunnels if other is not tunnel and family in other.hosts]
        outside = ["203.0.113.9", "10.1.0.9"] if family == "4" else ["2001:db8:77::9", "2001:db8:1::9"]
        for source in tunnel.rng.sample(others, min(5, len(others))) + outside:
            yield Attack(tunnel.back.seal(packets.some(tunnel.rng, source, near, 100)), SELECTOR)
        for destination in outside[:1] + others[:1]:
            yield Attack(tunnel.back.seal(packets.some(tunnel.rng, far, destination, 100)), SELECTOR)


@attack(lambda tunnel: tunnel.is_tunnel and not tunnel.is_selective)
def packets_of_other_policies(tunnel, lab):
    for family in sorted(tunnel.hosts):
        others = [other.hosts[family][1] for other in lab.tunnels if other is not tunnel and family in other.hosts]
        for source in tunnel.rng.sample(others, min(10, len(others))):
            yield Attack(tunnel.back.seal(packets.some(tunnel.rng, source, tunnel.hosts[family][0], 100)), POLICY)
            yield valid(tunnel)


@attack()
def packets_in_clear(tunnel, lab):
    for family in sorted(tunnel.hosts):
        near, far = tunnel.hosts[family]
        for target in (near, near[:-1] + "1"):
            for _ in range(10):
                yield Attack(packets.some(tunnel.rng, far, target, tunnel.rng.randrange(60, 1400)), POLICY)
            datagram = packets.ip(far, target, UDP, packets.udp(far, target, (7, 7777), bytes(400)))
            yield Attack(datagram, POLICY)
            for fragment in fragments(datagram, 128):
                yield Attack(fragment, POLICY)
            if family == "6":
                for kind in (HOP_BY_HOP, OPTIONS):
                    yield Attack(extended(datagram, kind), POLICY)


@attack()
def wrong_spis(tunnel, lab):
    whole = valid(tunnel)
    esp = esp_of(tunnel, whole.packet)
    for spi in [*range(0, 256, 17), *(tunnel.rng.randrange(1 << 32) for _ in range(20)), 0xFFFFFFFF, tunnel.out.spi]:
        # In UDP, 0 is the marker of IKE.
        why = unmarked(tunnel) if tunnel.udp and spi == 0 else NO_SA
        yield Attack(with_esp(tunnel, whole.packet, struct.pack(">I", spi) + esp[4:]), why)
    yield whole


@attack(is_tunnel)
def wrong_encapsulation(tunnel, lab):
    other = copy.copy(tunnel.back)
    other.udp = not other.udp
    for _ in range(10):
        whole = valid(tunnel)
        yield Attack(other.outer(esp_of(tunnel, whole.packet)), ENCAPSULATION)
        yield whole


@attack()
def wrong_keys(tunnel, lab):
    for other in tunnel.rng.sample(lab.tunnels, min(10, len(lab.tunnels))):
        strange = copy.copy(tunnel.back)
        # Each direction of this tunnel has keys of its own, so those of the other one are wrong, too.
        strange.cipher = (other.out if other is tunnel else other.back).cipher
        if strange.cipher.alignment == tunnel.back.cipher.alignment and strange.cipher.icv == tunnel.back.cipher.icv:
            yield Attack(strange.seal(tunnel.packet(), noted=False), INTEGRITY)
            yield valid(tunnel)


@attack()
def esp_in_fragments(tunnel, lab):
    for size in (16, 64, 256):
        whole = valid(tunnel, tunnel.packet(tunnel.rng.randrange(400, 1000)))
        parts = fragments(whole.packet, size)
        first = parts[0]
        tunnel.rng.shuffle(parts)
        for part in parts:
            # The later ones of a datagram may as well be of IKE.
            yield Attack(part, unmarked(tunnel) if tunnel.udp and part is not first else FRAGMENTED)
        # A whole packet that says that it is a fragment.
        if version(whole.packet) == 6:
            yield Attack(extended(whole.packet, FRAGMENT, bytes(6)), FRAGMENTED)
        yield whole


@attack()
def replays_in_fragments(tunnel, lab):
    for size in (16, 64, 256):
        whole = valid(tunnel, tunnel.packet(tunnel.rng.randrange(400, 1000)))
        yield whole
        for at, part in enumerate(fragments(whole.packet, size)):
            yield Attack(part, unmarked(tunnel) if tunnel.udp and at > 0 else FRAGMENTED)


@attack(lambda tunnel: tunnel.is_tunnel and ":" in tunnel.back.source)
def extension_headers(tunnel, lab):
    """ESP may stand behind others (RFC 4303 3.1.2)."""
    for kinds in ([HOP_BY_HOP], [OPTIONS], [OPTIONS, HOP_BY_HOP], [OPTIONS] * 5):
        one = valid(tunnel)
        packet, bad = one.packet, put(one.packet, len(one.packet) - 1, bytes([one.packet[-1] ^ 1]))
        for kind in kinds:
            packet, bad = extended(packet, kind), extended(bad, kind)
        yield Attack(bad, INTEGRITY)
        yield Attack(packet, VALID, one.passes)
        # RFC 8200 4.2: an unknown option whose first bits are not 00 must not be skipped.
        one = valid(tunnel)
        for action in (0x40, 0x80, 0xC0):
            option = bytes([action | 0x1E, 4]) + bytes(4)
            yield Attack(extended(one.packet, kinds[-1], option), OTHERS)
        # RFC 8200 4.4: a routing header is skipped if no segments are left, and only then.
        yield Attack(extended(one.packet, ROUTING, b"\xfd\x01" + bytes(4)), OTHERS)
        yield Attack(extended(one.packet, ROUTING, b"\xfd\x00" + bytes(4)), VALID, one.passes)


@attack(lambda tunnel: tunnel.is_tunnel and ":" in tunnel.back.source)
def replays_behind_extension_headers(tunnel, lab):
    whole = valid(tunnel)
    yield whole
    packet = whole.packet
    for count in range(1, 12):
        # Of more than eight headers it is not known what is behind them.
        yield Attack(extended(packet, HOP_BY_HOP), REPLAY if count <= 8 else OTHERS)
        packet = extended(packet, OPTIONS)
        yield Attack(packet, REPLAY if count <= 8 else OTHERS)


@attack()
def frames_for_others(tunnel, lab):
    for to in (b"\x02\x02\x02\x02\x02\x02", b"\xff" * 6, b"\x01\x00\x5e\x01\x01\x01", b"\x33\x33\0\0\0\x01"):
        one = valid(tunnel)
        yield Attack(one.packet, OTHERS, to=to)
        yield one
        yield Attack(one.packet, OTHERS, to=to)


@attack()
def changed_at_random(tunnel, lab):
    for _ in range(100):
        one = valid(tunnel)
        esp = esp_of(tunnel, one.packet)
        bad = esp
        while bad == esp:
            for _ in range(tunnel.rng.randrange(1, 4)):
                at, length = tunnel.rng.randrange(len(bad)), tunnel.rng.randrange(1, 9)
                new = tunnel.rng.randbytes(tunnel.rng.choice([0, length, length, tunnel.rng.randrange(1, 9)]))
                bad = bad[:at] + new + bad[at + length:]
                bad = bad if len(bad) > 8 else esp
        if bad[:4] != bytes(4):
            yield Attack(with_esp(tunnel, one.packet, bad), CHANGED)
        yield one
