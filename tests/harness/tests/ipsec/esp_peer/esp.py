"""ESP by the RFCs: 4303 (with 4304 for long sequence numbers), 4106, 7634, 3602, 4868, 2404, 3948 and 6040.

Ciphers are those of the package `cryptography`; everything else is here. Nothing is shared with brickmoon.
"""

import hmac
import struct

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from packets import (DF, ESP, IPIP, IPV6, UDP, checksum, ends, header_length, ip, put, summed, traffic_class,
                     upper_checksum, version, with_length)

# Name: the AEAD, or the hash and the bytes of its ICV.
SUITES = {
    "aes128gcm16": AESGCM,
    "aes256gcm16": AESGCM,
    "chacha20poly1305": ChaCha20Poly1305,
    "aes128-sha256": ("sha256", 16),
    "aes256-sha256": ("sha256", 16),
    "aes128-sha1": ("sha1", 12),
    "aes256-sha1": ("sha1", 12),
}
NAT_TRAVERSAL = 4500


class Refused(Exception):
    """A packet that is not as the RFCs want it."""


class Aead:
    """A key with 4 bytes of salt behind it (RFC 4106, RFC 7634)."""

    iv, icv, alignment = 8, 16, 4

    def __init__(self, kind, key):
        self.cipher, self.salt = kind(key[:-4]), key[-4:]

    def seal(self, header, high, iv, plain):
        return self.cipher.encrypt(self.salt + iv, plain, header[:4] + high + header[4:])

    def open(self, header, high, iv, sealed):
        return self.cipher.decrypt(self.salt + iv, sealed, header[:4] + high + header[4:])


class CbcHmac:
    """AES-CBC (RFC 3602), whose packets are authenticated by HMAC (RFC 4868, RFC 2404)."""

    iv, alignment = 16, 16

    def __init__(self, digest, icv, key, integrity):
        self.digest, self.icv, self.key, self.integrity = digest, icv, key, integrity

    def sum(self, data):
        return hmac.digest(self.integrity, data, self.digest)[:self.icv]

    def seal(self, header, high, iv, plain):
        encryptor = Cipher(algorithms.AES(self.key), modes.CBC(iv)).encryptor()
        sealed = encryptor.update(plain) + encryptor.finalize()
        return sealed + self.sum(header + iv + sealed + high)

    def open(self, header, high, iv, sealed):
        sealed, icv = sealed[:-self.icv], sealed[-self.icv:]
        if icv != self.sum(header + iv + sealed + high):
            raise Refused("the ICV is wrong")
        decryptor = Cipher(algorithms.AES(self.key), modes.CBC(iv)).decryptor()
        return decryptor.update(sealed) + decryptor.finalize()


class Window:
    """Which numbers a receiver has got, and which it would refuse (RFC 4303 3.4.3 and A2)."""

    def __init__(self, size, esn):
        self.size, self.esn, self.top, self.seen = size, esn, 0, set()

    def whole(self, low):
        """The number that these low 32 bits stand for (A2.2)."""
        if not self.esn:
            return low
        high, top = divmod(self.top, 1 << 32)
        if top >= self.size - 1:
            high += low < top - self.size + 1
        else:
            high -= low >= (1 << 32) + top - self.size + 1
        return high << 32 | low

    def refuses(self, number):
        return number <= 0 or number <= self.top - self.size or number in self.seen

    def note(self, number):
        self.seen.add(number)
        self.top = max(self.top, number)


class Sa:
    """One direction between brickmoon and this peer."""

    def __init__(self, of, given, rng):
        self.spi, self.rng = given["spi"], rng
        self.source, self.destination = given["source"], given["destination"]
        self.is_tunnel, self.udp, self.esn = of["mode"] == "tunnel", of["udp"], of["esn"]
        keys = [bytes.fromhex(given[kind]) for kind in ("encryption", "integrity")]
        kind = SUITES[of["suite"]]
        self.cipher = CbcHmac(*kind, *keys) if isinstance(kind, tuple) else Aead(kind, keys[0])
        self.window = Window(of["window"], self.esn)
        self.ivs = set()

    def high(self, number):
        return struct.pack(">I", number >> 32) if self.esn else b""

    def around(self):
        """Bytes around payload and padding, without IP headers."""
        return 8 + self.cipher.iv + 2 + self.cipher.icv + (8 if self.udp else 0)

    def room(self, mtu):
        """The largest payload that fits."""
        left = mtu - self.around() + 2
        if self.is_tunnel:
            left -= 40 if ":" in self.source else 20
        return left // self.cipher.alignment * self.cipher.alignment - 2

    def body(self, payload, next_header, number=None, pad=None, pad_length=None, noted=True):
        """ESP of a payload, with the next number, and padding as RFC 4303 wants it, unless the caller knows better."""
        number = self.window.top + 1 if number is None else number
        if noted:
            self.window.note(number)
        if pad is None:
            least = -(len(payload) + 2) % self.cipher.alignment
            # Up to 255 bytes are allowed.
            longer = self.rng.choice([0, 0, 0, self.cipher.alignment, 240 - self.cipher.alignment])
            pad = bytes(range(1, 1 + least + (longer if len(payload) < 500 else 0)))
        plain = payload + pad + bytes([len(pad) if pad_length is None else pad_length, next_header])
        header = struct.pack(">II", self.spi, number & 0xFFFFFFFF)
        iv = self.rng.randbytes(self.cipher.iv)
        return header + iv + self.cipher.seal(header, self.high(number), iv, plain)

    def outer(self, esp, tos=0):
        """A packet of a tunnel, or of UDP, around ESP."""
        protocol = UDP if self.udp else ESP
        return ip(self.source, self.destination, protocol, self.in_udp(esp), tos=tos)

    def in_udp(self, esp):
        if not self.udp:
            return esp
        datagram = struct.pack(">HHHH", NAT_TRAVERSAL, NAT_TRAVERSAL, 8 + len(esp), 0) + esp
        if ":" not in self.source:
            return datagram
        total = upper_checksum(self.source, self.destination, UDP, datagram)
        return put(datagram, 6, struct.pack(">H", total or 0xFFFF))

    def seal(self, packet, tfc=b"", tos=None, **wrong):
        """An IP packet, protected. `tfc` is put behind it to hide its length, and `wrong` is for `body`."""
        if self.is_tunnel:
            next_header = IPIP if version(packet) == 4 else IPV6
            esp = self.body(packet + tfc, wrong.pop("next_header", next_header), **wrong)
            return self.outer(esp, traffic_class(packet) if tos is None else tos)
        start, at = header_length(packet), 9 if version(packet) == 4 else 6
        esp = self.body(packet[start:], wrong.pop("next_header", packet[at]), **wrong)
        return with_length(put(packet[:start], at, bytes([UDP if self.udp else ESP])) + self.in_udp(esp))

    def unwrapped(self, packet):
        """ESP of a packet from brickmoon, whose IP and UDP headers must be right."""
        start = header_length(packet)
        if version(packet) == 4 and checksum(packet[:start]):
            raise Refused("the header checksum is wrong")
        protocol, rest = packet[9 if version(packet) == 4 else 6], packet[start:]
        if ends(packet) != (self.source, self.destination):
            raise Refused(f"from and to {ends(packet)}")
        if not self.udp:
            if protocol != ESP:
                raise Refused(f"protocol {protocol}")
            return rest
        ports = struct.unpack(">HHHH", rest[:8])
        if protocol != UDP or ports[:3] != (NAT_TRAVERSAL, NAT_TRAVERSAL, len(rest)):
            raise Refused(f"protocol {protocol}, UDP header {ports}")
        if version(packet) == 4 and ports[3]:
            raise Refused("RFC 3948 2.1: over IPv4 the checksum should be 0")
        if version(packet) == 6 and upper_checksum(self.source, self.destination, UDP, rest):
            raise Refused("the checksum of UDP is wrong")
        return rest[8:]

    def open(self, packet):
        """The IP packet of one that brickmoon has protected. Numbers must grow, and no IV be used twice."""
        esp = self.unwrapped(packet)
        header, iv = esp[:8], esp[8:8 + self.cipher.iv]
        spi, low = struct.unpack(">II", header)
        number = self.window.whole(low)
        if spi != self.spi or number <= self.window.top:
            raise Refused(f"SPI {spi:#x} with number {number} after {self.window.top}")
        plain = self.cipher.open(header, self.high(number), iv, esp[8 + self.cipher.iv:])
        if iv in self.ivs:
            raise Refused(f"IV {iv.hex()} twice")
        self.ivs.add(iv)
        self.window.note(number)
        pad, next_header = plain[-2:]
        payload, padding = plain[:-2 - pad], plain[-2 - pad:-2]
        if padding != bytes(range(1, 1 + pad)) or pad >= self.cipher.alignment:
            raise Refused(f"padding {padding.hex()}")
        if not self.is_tunnel:
            start, at = header_length(packet), 9 if version(packet) == 4 else 6
            return with_length(put(packet[:start], at, bytes([next_header])) + payload)
        if next_header != (IPIP if version(payload) == 4 else IPV6):
            raise Refused(f"next header {next_header}")
        self.check_outer(packet, payload)
        return payload

    def check_outer(self, packet, inner):
        """The outer header takes from the inner one what RFC 4301 5.1.2 and RFC 6040 say."""
        if traffic_class(packet) != traffic_class(inner):
            raise Refused(f"traffic class {traffic_class(packet)}, of the inner packet {traffic_class(inner)}")
        if version(packet) == 4:
            is_whole = version(inner) == 6 or struct.unpack(">H", inner[6:8])[0] & DF
            if struct.unpack(">H", packet[6:8])[0] != (DF if is_whole else 0) or packet[8] != 64:
                raise Refused(f"flags {packet[6:8].hex()}, TTL {packet[8]}")
        elif packet[7] != 64:
            raise Refused(f"hop limit {packet[7]}")


def decapsulated(inner, outer):
    """The inner packet behind a tunnel with this outer traffic class; nothing if it must be dropped (RFC 6040 4.2)."""
    ecn, mark = traffic_class(inner) & 3, outer & 3
    if mark == 3:
        if ecn == 0:
            return None
        ecn = 3
    elif mark == 1 and ecn == 2:
        ecn = 1
    tos = traffic_class(inner) & 0xFC | ecn
    if version(inner) == 4:
        return summed(put(inner, 1, bytes([tos])))
    return put(inner, 0, bytes([0x60 | tos >> 4, (tos & 15) << 4 | inner[1] & 15]))
