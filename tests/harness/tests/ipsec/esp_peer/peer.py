"""The network around the router: a host behind it, and an ESP peer at the far end of its tunnels.

    peer.py SEED LAN MAC WAN MAC            interfaces here, and MAC addresses of the router's ends of these links

Each line on standard input is a request as JSON, `{"do": NAME, ..}`, which is answered by a line. If anything is not as
the RFCs want it, the program says what and ends.
"""

import json
import random
import select
import sys

import attacks
import packets
from esp import Refused
from packets import UDP
from wire import PATIENCE, Lab, Tunnel, Wire

# Few enough for every queue on the way, however busy the machine is.
BURST = 32
LEAST = {"4": 20, "6": 40}


class Peer(Lab):
    """What can be asked for: each method whose name begins with `do_`."""

    # Without a buffer, in which `select` would not see a line.
    requests = open(0, "rb", buffering=0)

    def do_tunnels(self, tunnels):
        """Begins with these SAs, or keeps those that are there already."""
        known = {tunnel.name: tunnel for tunnel in self.tunnels}
        self.given = [known.get(given["name"]) or Tunnel(given, self.rng) for given in tunnels]
        self.tunnels = list(self.given)

    def bursts(self, tunnels):
        for at in range(0, len(tunnels), BURST):
            yield tunnels[at:at + BURST]

    def do_exchange(self, rounds):
        """Packets of all kinds through all tunnels, in both directions."""
        for _ in range(rounds):
            self.rng.shuffle(self.tunnels)
            for burst in self.bursts(self.tunnels):
                self.out((tunnel, tunnel.packet(is_out=True)) for tunnel in burst)
                self.back(self.valid(tunnel) for tunnel in burst)
        return 2 * rounds * len(self.tunnels)

    def valid(self, tunnel):
        """A protected packet, at times with bytes behind the inner one that hide its length (RFC 4303 2.7)."""
        packet = tunnel.packet()
        room = tunnel.largest(tunnel.back, "4") - len(packet)
        hides = tunnel.is_tunnel and self.rng.random() < 0.3 and room > 300
        return tunnel.back.seal(packet, self.rng.randbytes(self.rng.randrange(room - 280)) if hides else b""), packet

    def do_sizes(self, step):
        """Every size from the least to the largest that fits, and what is said about the next one."""
        count = 0
        for tunnel in self.tunnels:
            for family in sorted(tunnel.hosts):
                largest = tunnel.largest(tunnel.out, family)
                sizes = sorted({*range(LEAST[family], largest, step), *range(LEAST[family], LEAST[family] + 40),
                                *range(largest - 40, largest + 1)})
                for burst in self.bursts(sizes):
                    self.out((tunnel, tunnel.packet(size, True, family)) for size in burst)
                    given = [tunnel.packet(size, False, family) for size in burst]
                    self.back((tunnel.back.seal(packet), packet) for packet in given)
                count += 2 * len(sizes)
                self.too_large(tunnel, family, largest)
        return count

    def too_large(self, tunnel, family, largest):
        near, far = tunnel.hosts[family]
        packet = packets.some(self.rng, near, far, largest + 1)
        if family == "4":
            packet = packets.summed(packets.put(packet, 6, b"\0\0"))
            # As it may be fragmented, the peer gets the ESP packet in fragments.
            if ":" not in tunnel.out.source and tunnel.is_tunnel:
                self.out([(tunnel, packet)])
            packet = packets.summed(packets.put(packet, 6, b"\x40\0"))
        if not tunnel.is_tunnel:
            # Here its own header is that of the ESP packet, for which the link is too small.
            return
        self.lan.send(packet)
        mtu, quoted = self.error()
        if mtu != largest or packet[:7] != quoted[:7]:
            raise Refused(f"{tunnel.name}: an MTU of {mtu} instead of {largest} for {quoted.hex()}")

    def do_high_half(self):
        """ESN: the peer's numbers begin below 2^32, and pass it (RFC 4304)."""
        for tunnel in self.tunnels:
            start = (1 << 32) - 200
            packet = tunnel.packet()
            self.back([(tunnel.back.seal(packet, number=start), packet)])
            numbers = list(range(start + 1, (1 << 32) + 300))
            for burst in self.bursts(numbers):
                # Within a window they may come in any order, also around 2^32.
                self.rng.shuffle(burst)
                given = [(tunnel.packet(), number) for number in burst]
                self.back((tunnel.back.seal(packet, number=number), packet) for packet, number in given)
                # What came before is refused.
                self.back([(tunnel.back.seal(packet, number=number), None) for packet, number in given[:3]])
        return len(self.tunnels)

    def do_attack(self, name, tunnel):
        """Packets of somebody who knows everything but the keys, or of a peer that breaks rules, and valid ones between
        them: how many there were of each sort. `tunnel` is one of these by number."""
        attack, tunnel = getattr(attacks, name), self.given[tunnel]
        if not attack.suits(tunnel):
            return {}
        counted, burst = {}, []
        for one in attack(tunnel, self):
            counted[one.why] = counted.get(one.why, 0) + 1
            burst.append((one.packet, one.passes, one.to))
            if len(burst) == BURST:
                self.survives(name, tunnel, burst)
                burst = []
        self.survives(name, tunnel, burst)
        counted.pop(attacks.VALID, None)
        return counted

    def survives(self, name, tunnel, burst):
        """Sends what an attack consists of; when the valid packet behind it has come, all before it has as well."""
        packet = tunnel.packet()
        self.back([*burst, (tunnel.back.seal(packet), packet)], f"after `{name}` through {tunnel.name}")

    def do_attacks(self):
        return attacks.NAMES

    def do_stream(self):
        """Sends packets of the host until the next line comes. Any number of them may be lost meanwhile, but whatever
        the router sends of them must be right. Returns how many came."""
        before = self.received()
        while not select.select([self.requests], [], [], 0)[0]:
            tunnel = self.rng.choice(self.tunnels)
            self.lan.send(tunnel.packet(is_out=True, mtu=1400))
            while self.from_router(0.0005) is not None:
                pass
        self.requests.readline()
        for tunnel in self.tunnels:
            self.settle(tunnel)
        return self.received() - before

    def settle(self, tunnel):
        """Waits for a last packet of this tunnel, which is sent again until it comes."""
        last = tunnel.packet(100, is_out=True)
        for _ in range(PATIENCE):
            self.lan.send(last)
            while (received := self.from_router(1)) is not None:
                if received == (tunnel, packets.routed(last)):
                    return
        raise Refused(f"nothing comes out of {tunnel.name}")

    def received(self):
        return sum(len(tunnel.out.window.seen) for tunnel in self.tunnels)

    def do_remember(self):
        """Valid packets, which are kept for `repeat`."""
        self.kept = []
        for tunnel in self.given:
            given = [self.valid(tunnel) for _ in range(20)]
            self.back(given)
            self.kept.append([(packet, None) for packet, _ in given])

    def do_repeat(self):
        """Sends them once more, each of which must be refused; returns how many there are."""
        for tunnel, packets_ in zip(self.given, self.kept):
            self.survives("repeat", tunnel, packets_)
        return sum(len(packets_) for packets_ in self.kept)

    def do_ike(self):
        """Datagrams of the port of ESP in UDP that are none: of IKE, which the router must get, and keepalives."""
        for source, destination in [("198.51.100.1", "192.0.2.1"), ("2001:db8:e::1", "2001:db8:f::1")]:
            for data in (bytes(4) + b"IKE", b"\xff"):
                datagram = packets.udp(source, destination, (4500, 4500), data)
                self.wan.send(packets.ip(source, destination, UDP, datagram))

    def do_numbers(self):
        """The highest number that each outbound SA has used, by its SPI."""
        return {str(tunnel.out.spi): tunnel.out.window.top for tunnel in self.tunnels}


def main():
    seed, lan, lan_mac, wan, wan_mac = sys.argv[1:]
    rng = random.Random(int(seed))
    peer = Peer(Wire(lan, lan_mac, rng), Wire(wan, wan_mac, rng), rng)
    print(json.dumps("ready"), flush=True)
    while line := peer.requests.readline():
        request = json.loads(line)
        answer = getattr(peer, "do_" + request.pop("do"))(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
