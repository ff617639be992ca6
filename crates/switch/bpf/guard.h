/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What a port may claim to be: which addresses it may send from, and whether it may be a DHCP server or a router.
 * Frames whose headers cannot be read to the end are dropped (RFC 7113). What is read must be in the packet: behind it
 * there is a trailer, which receivers ignore, so headers there are not those of a packet whose others follow in another
 * fragment.
 */
#pragma once

#define TAGS 2 /* number of VLAN tags that are skipped */
#define SNAP_HEADER 6
#define EXTENSIONS 4 /* number of IPv6 extension headers that are skipped */
#define ICMPV6_ROUTER_ADVERTISEMENT 134
#define ICMPV6_NEIGHBOR_ADVERTISEMENT 136
#define ICMPV6_REDIRECT 137
#define BOOTP_SERVER 67
#define BOOTP_CLIENT 68
#define BOOTREQUEST 1
#define DHCPV6_CLIENT 546
#define DHCPV6_SERVER 547
/* Messages that DHCPv6 servers send (RFC 8415 7.3), a bit for each. */
#define DHCPV6_OF_SERVERS (1 << 2 | 1 << 7 | 1 << 10 | 1 << 13)

/* An IP address that a MAC address may send from, behind its port; IPv4 as ::ffff:a.b.c.d. */
struct binding {
	__u32 slot;
	__u32 unused;
	__u64 mac;
	__u8 address[16];
};

/* The daemon sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct binding);
	__type(value, __u32);
} bindings SEC(".maps");

struct arp {
	__u8 kinds[8];
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
};

/* The sender of a frame that is checked. */
struct suspect {
	__u32 slot;
	__u32 flags; /* of its port */
	__u64 mac;
	__u32 end; /* of its packet */
	bool is_fragment; /* the first one of several */
};

/* Reads from the packet; false if it ends before. */
static __always_inline bool read(struct xdp_md *ctx, const struct suspect *of, __u32 at, void *to, __u32 size)
{
	return at + size <= of->end && !bpf_xdp_load_bytes(ctx, at, to, size);
}

static __always_inline bool is_same(const __u8 *one, const __u8 *two)
{
	__u8 differs = 0;

	for (int i = 0; i < 16; i++)
		differs |= one[i] ^ two[i];
	return !differs;
}

static __always_inline bool may_be(const struct suspect *of, const __u8 *address)
{
	struct binding binding = { .slot = of->slot, .mac = of->mac };

	__builtin_memcpy(binding.address, address, sizeof(binding.address));
	return bpf_map_lookup_elem(&bindings, &binding);
}

static __always_inline bool may_be_ipv4(const struct suspect *of, const void *address)
{
	__u8 mapped[16] = { [10] = 0xff, [11] = 0xff };

	__builtin_memcpy(mapped + 12, address, 4);
	return may_be(of, mapped);
}

/* The link-local address derived from its MAC needs no entry (RFC 4291, appendix A). */
static __always_inline bool may_be_ipv6(const struct suspect *of, const __u8 *address)
{
	__u64 mac = of->mac;
	__u8 own[16] = { 0xfe, 0x80, 0, 0, 0, 0, 0, 0, (mac & 0xff) ^ 2, mac >> 8,
			 mac >> 16, 0xff, 0xfe, mac >> 24, mac >> 32, mac >> 40 };

	return is_same(own, address) || may_be(of, address);
}

static __always_inline int guard_arp(struct xdp_md *ctx, const struct suspect *of, __u32 at)
{
	struct arp arp;
	__u32 sender;

	if (!(of->flags & PORT_SOURCE_GUARD))
		return FORWARDED;
	if (bpf_xdp_load_bytes(ctx, at, &arp, sizeof(arp)) || mac_at(arp.sender_mac) != of->mac)
		return DROP_SOURCE_GUARD;
	/* A probe has no sender address (RFC 5227). */
	__builtin_memcpy(&sender, arp.sender, sizeof(sender));
	return !sender || may_be_ipv4(of, arp.sender) ? FORWARDED : DROP_SOURCE_GUARD;
}

/*
 * Whether a UDP datagram is from a DHCP server. To clients everything is: they do not look at the port it came from. What
 * goes to servers and relays must be a request; one in fragments could be completed as something else.
 */
static __always_inline bool is_of_dhcp_server(struct xdp_md *ctx, const struct suspect *of, __u32 at, const __be16 *ports)
{
	__u8 operation;

	if (ports[0] == bpf_htons(BOOTP_SERVER) || ports[1] == bpf_htons(BOOTP_CLIENT))
		return true;
	return ports[1] == bpf_htons(BOOTP_SERVER) &&
	       (of->is_fragment || !read(ctx, of, at + 8, &operation, 1) || operation != BOOTREQUEST);
}

static __always_inline bool is_of_dhcpv6_server(struct xdp_md *ctx, const struct suspect *of, __u32 at,
						const __be16 *ports)
{
	__u8 message;

	if (ports[0] == bpf_htons(DHCPV6_SERVER) || ports[1] == bpf_htons(DHCPV6_CLIENT))
		return true;
	return ports[1] == bpf_htons(DHCPV6_SERVER) && (of->is_fragment || !read(ctx, of, at + 8, &message, 1) ||
							(message < 32 && DHCPV6_OF_SERVERS >> message & 1));
}

static __always_inline int guard_ipv4(struct xdp_md *ctx, struct suspect *of, __u32 at)
{
	__be16 ports[4] = {};
	struct ipv4 ip;
	__u32 header;
	bool asks;

	if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)))
		return DROP_SOURCE_GUARD;
	header = (ip.version_ihl & 0xf) * 4;
	of->end = at + bpf_ntohs(ip.total_length);
	of->is_fragment = ip.fragment & bpf_htons(0x2000);
	at += header;
	if (ip.version_ihl >> 4 != 4 || header < sizeof(ip) || at > of->end)
		return DROP_SOURCE_GUARD;
	if (ip.protocol == IPPROTO_UDP && !(ip.fragment & bpf_htons(0x1fff))) {
		if (!read(ctx, of, at, ports, sizeof(ports)))
			return DROP_SOURCE_GUARD;
		if (of->flags & PORT_DHCP_GUARD && is_of_dhcp_server(ctx, of, at, ports))
			return DROP_DHCP_GUARD;
	}
	/* A client without an address may ask for one. */
	asks = !ip.addresses[0] && ports[1] == bpf_htons(BOOTP_SERVER);
	if (of->flags & PORT_SOURCE_GUARD && !asks && !may_be_ipv4(of, &ip.addresses[0]))
		return DROP_SOURCE_GUARD;
	return FORWARDED;
}

/* The upper-layer protocol and its offset, behind IPv6 extension headers; 256 if they cannot be parsed. */
static __always_inline __u32 upper_layer(struct xdp_md *ctx, struct suspect *of, __u32 protocol, __u32 *at)
{
	for (int i = 0; i <= EXTENSIONS; i++) {
		__u8 header[4];

		if (protocol != IPPROTO_HOPOPTS && protocol != IPPROTO_ROUTING && protocol != IPPROTO_DSTOPTS &&
		    protocol != IPPROTO_FRAGMENT && protocol != IPPROTO_AH)
			return protocol;
		if (!read(ctx, of, *at, header, sizeof(header)))
			break;
		if (protocol == IPPROTO_FRAGMENT) {
			/* A later fragment cannot be checked, but it is useless without the first one. */
			if (header[2] || header[3] & 0xf8)
				return IPPROTO_NONE;
			of->is_fragment |= header[3] & 1;
			*at += 8;
		} else {
			*at += protocol == IPPROTO_AH ? (header[1] + 2) * 4 : (header[1] + 1) * 8;
		}
		protocol = header[0];
	}
	return 256;
}

static __always_inline int guard_icmpv6(struct xdp_md *ctx, const struct suspect *of, __u32 at)
{
	__u8 message[24] = {};

	if (!read(ctx, of, at, message, 4))
		return DROP_SOURCE_GUARD;
	if (of->flags & PORT_RA_GUARD &&
	    (message[0] == ICMPV6_ROUTER_ADVERTISEMENT || message[0] == ICMPV6_REDIRECT))
		return DROP_RA_GUARD;
	if (of->flags & PORT_SOURCE_GUARD && message[0] == ICMPV6_NEIGHBOR_ADVERTISEMENT &&
	    (of->is_fragment || !read(ctx, of, at, message, sizeof(message)) || !may_be_ipv6(of, message + 8)))
		return DROP_SOURCE_GUARD;
	return FORWARDED;
}

static __always_inline int guard_ipv6(struct xdp_md *ctx, struct suspect *of, __u32 at)
{
	__u8 nobody[16] = {};
	__be16 ports[4] = {};
	struct ipv6 ip;
	__u32 protocol;

	if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)) ||
	    (ip.version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
		return DROP_SOURCE_GUARD;
	if (of->flags & PORT_SOURCE_GUARD && !is_same((const __u8 *)ip.addresses, nobody) &&
	    !may_be_ipv6(of, (const __u8 *)ip.addresses))
		return DROP_SOURCE_GUARD;
	at += sizeof(ip);
	of->end = at + bpf_ntohs(ip.payload_length);
	protocol = upper_layer(ctx, of, ip.next_header, &at);
	if (protocol > 255)
		return DROP_SOURCE_GUARD;
	if (protocol == IPPROTO_ICMPV6)
		return guard_icmpv6(ctx, of, at);
	if (protocol != IPPROTO_UDP)
		return FORWARDED;
	if (!read(ctx, of, at, ports, sizeof(ports)))
		return DROP_SOURCE_GUARD;
	return of->flags & PORT_DHCP_GUARD && is_of_dhcpv6_server(ctx, of, at, ports) ? DROP_DHCP_GUARD : FORWARDED;
}

/* Whether an EtherType follows behind an 802.2 header (RFC 1042), which some receivers accept for IP. */
static __always_inline bool is_snap(struct xdp_md *ctx, __u32 at, __be16 length)
{
	__u8 header[SNAP_HEADER];

	return bpf_ntohs(length) < ETH_P_802_3_MIN && !bpf_xdp_load_bytes(ctx, at, header, sizeof(header)) &&
	       header[0] == 0xaa && header[1] == 0xaa && header[2] == 3 && !header[3] && !header[4] &&
	       (!header[5] || header[5] == 0xf8);
}

/* FORWARDED, or why a frame is dropped. Only called for ports with a guard. */
static __noinline int guard(struct xdp_md *ctx, __u32 slot, __u32 flags, __u64 mac)
{
	struct suspect of = { .slot = slot, .flags = flags, .mac = mac, .end = 0 };
	__u32 at = 2 * ETH_ALEN;
	__be16 protocol;

	for (int i = 0; i <= TAGS; i++) {
		if (bpf_xdp_load_bytes(ctx, at, &protocol, sizeof(protocol)))
			return DROP_SOURCE_GUARD;
		at += sizeof(protocol);
		if (protocol == bpf_htons(ETH_P_ARP))
			return guard_arp(ctx, &of, at);
		if (protocol == bpf_htons(ETH_P_IP))
			return guard_ipv4(ctx, &of, at);
		if (protocol == bpf_htons(ETH_P_IPV6))
			return guard_ipv6(ctx, &of, at);
		if (is_tag(protocol))
			at += sizeof(protocol);
		else if (is_snap(ctx, at, protocol))
			at += SNAP_HEADER;
		else
			return FORWARDED;
	}
	return DROP_SOURCE_GUARD;
}
