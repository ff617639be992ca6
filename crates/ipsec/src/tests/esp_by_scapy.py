#!/usr/bin/env python3
"""Prints ESP packets as Scapy makes them, an independent implementation of RFC 4303: one of each suite, mode, family of
the outer header, with and without UDP encapsulation and ESN. `esp_by_scapy.txt` is what it printed.

    SUITE MODE NUMBER ESN|- UDP|- ENCRYPTION-KEY INTEGRITY-KEY|- PLAIN ESP          all bytes in hexadecimal
"""
import struct
import sys

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scapy.config import conf

conf.verb = 0
from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.layers.ipsec import ESP, SecurityAssociation  # noqa: E402
from scapy.packet import Raw  # noqa: E402

# Name; cipher and integrity as Scapy names them; bytes of both keys.
SUITES = [
    ("aes128gcm16", "AES-GCM", None, 20, 0),
    ("aes256gcm16", "AES-GCM", None, 36, 0),
    ("chacha20poly1305", "CHACHA20-POLY1305", None, 36, 0),
    ("aes128-sha256", "AES-CBC", "SHA2-256-128", 16, 32),
    ("aes256-sha256", "AES-CBC", "SHA2-256-128", 32, 32),
    ("aes128-sha1", "AES-CBC", "HMAC-SHA1-96", 16, 20),
    ("aes256-sha1", "AES-CBC", "HMAC-SHA1-96", 32, 20),
]
SPI = 0x12345678
OUTER = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}
INNER = {4: ("10.1.0.1", "10.2.0.1"), 6: ("2001:db8:1::1", "2001:db8:2::1")}


def plain(addresses, family, index):
    source, destination = addresses[family]
    payload = UDP(sport=1000 + index, dport=2000) / Raw(bytes(range(index % 37)))
    if family == 4:
        flags = "DF" if index % 3 == 0 else 0
        return IP(src=source, dst=destination, tos=index * 4 & 0xFC | index % 3, id=index, ttl=63, flags=flags) / payload
    return IPv6(src=source, dst=destination, tc=index * 4 & 0xFC | index % 3, hlim=63, fl=index) / payload


def tunnel_header(family, packet, number):
    source, destination = OUTER[family]
    inner = packet.tos if IP in packet else packet.tc
    if family == 6:
        return IPv6(src=source, dst=destination, tc=inner, hlim=64, fl=0)
    flags = packet.flags if IP in packet else "DF"
    return IP(src=source, dst=destination, tos=inner, ttl=64, id=number & 0xFFFF, flags=flags)


def initialization_vector(cipher, key, number):
    counter = struct.pack(">Q", number)
    if cipher != "AES-CBC":
        return counter
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return encryptor.update(counter + bytes(8))


def line(index, suite, mode, family, udp, esn):
    name, cipher, integrity, key_length, integrity_length = suite
    key, integrity_key = bytes(range(1, 1 + key_length)), bytes(range(101, 101 + integrity_length))
    number = (index << 32 if esn else 0) | (index * 977 + 1)
    packet = plain(INNER, [4, 6][index // 2 % 2], index) if mode == "tunnel" else plain(OUTER, family, index)
    packet = type(packet)(bytes(packet))
    sa = SecurityAssociation(
        ESP, spi=SPI, crypt_algo=cipher, crypt_key=key, auth_algo=integrity, auth_key=integrity_key or None,
        tunnel_header=tunnel_header(family, packet, number) if mode == "tunnel" else None,
        nat_t_header=UDP(sport=4500, dport=4500) if udp else None, esn_en=esn, esn=number >> 32,
    )
    iv = initialization_vector(cipher, key, number)
    sent = sa.encrypt(packet, seq_num=number & 0xFFFFFFFF, iv=iv, esn_en=esn, esn=number >> 32)
    if udp and family == 6:
        # UDP over IPv6 must have a checksum (RFC 8200 8.1).
        del sent[UDP].chksum
    fields = [name, mode, str(number), "esn" if esn else "-", "udp" if udp else "-", key.hex(), integrity_key.hex() or "-"]
    return " ".join(fields + [bytes(packet).hex(), bytes(sent).hex()])


def main():
    index = 0
    for suite in SUITES:
        for mode in ("tunnel", "transport"):
            for family in (4, 6):
                for udp in (False, True):
                    for esn in (False, True):
                        index += 1
                        print(line(index, suite, mode, family, udp, esn))


if __name__ == "__main__":
    sys.exit(main())
