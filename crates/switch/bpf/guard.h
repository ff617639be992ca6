/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What a port may claim to be: which addresses it may send from, and whether it may be a DHCP server or a router.
 * Frames whose headers cannot be read to the end are dropped (RFC 7113).
 */
#pragma once

#define TAGS 2 /* number of VLAN tags that are skipped */
#define EXTENSIONS 4 /* number of IPv6 extension headers that are skipped */
#define ICMPV6_ROUTER_ADVERTISEMENT 134
#define ICMPV6_NEIGHBOR_ADVERTISEMENT 136
#define ICMPV6_REDIRECT 137
#define BOOTP_SERVER 67
#define DHCPV6_SERVER 547

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
};

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

static __always_inline int guard_ipv4(struct xdp_md *ctx, const struct suspect *of, __u32 at)
{
	__be16 ports[2] = {};
	struct ipv4 ip;
	bool asks;

	if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)))
		return DROP_SOURCE_GUARD;
	if (ip.protocol == IPPROTO_UDP && !(ip.fragment & bpf_htons(0x1fff)) &&
	    bpf_xdp_load_bytes(ctx, at + (ip.version_ihl & 0xf) * 4, ports, sizeof(ports)))
		return DROP_SOURCE_GUARD;
	if (of->flags & PORT_DHCP_GUARD && ports[0] == bpf_htons(BOOTP_SERVER))
		return DROP_DHCP_GUARD;
	/* A client without an address may ask for one. */
	asks = !ip.addresses[0] && ports[1] == bpf_htons(BOOTP_SERVER);
	if (of->flags & PORT_SOURCE_GUARD && !asks && !may_be_ipv4(of, &ip.addresses[0]))
		return DROP_SOURCE_GUARD;
	return FORWARDED;
}

/* The upper-layer protocol and its offset, behind IPv6 extension headers; 256 if they cannot be parsed. */
static __always_inline __u32 upper_layer(struct xdp_md *ctx, __u32 protocol, __u32 *at)
{
	for (int i = 0; i <= EXTENSIONS; i++) {
		__u8 header[4];

		if (protocol != IPPROTO_HOPOPTS && protocol != IPPROTO_ROUTING && protocol != IPPROTO_DSTOPTS &&
		    protocol != IPPROTO_FRAGMENT)
			return protocol;
		if (bpf_xdp_load_bytes(ctx, *at, header, sizeof(header)))
			break;
		/* A later fragment cannot be checked, but it is useless without the first one. */
		if (protocol == IPPROTO_FRAGMENT && (header[2] || header[3] & 0xf8))
			return IPPROTO_NONE;
		*at += protocol == IPPROTO_FRAGMENT ? 8 : (header[1] + 1) * 8;
		protocol = header[0];
	}
	return 256;
}

static __always_inline int guard_ipv6(struct xdp_md *ctx, const struct suspect *of, __u32 at)
{
	__u8 nobody[16] = {}, message[24] = {};
	__be16 ports[2] = {};
	struct ipv6 ip;
	__u32 protocol;

	if (bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)))
		return DROP_SOURCE_GUARD;
	if (of->flags & PORT_SOURCE_GUARD && !is_same((const __u8 *)ip.addresses, nobody) &&
	    !may_be_ipv6(of, (const __u8 *)ip.addresses))
		return DROP_SOURCE_GUARD;
	at += sizeof(ip);
	protocol = upper_layer(ctx, ip.next_header, &at);
	if (protocol > 255)
		return DROP_SOURCE_GUARD;
	if (protocol == IPPROTO_UDP && bpf_xdp_load_bytes(ctx, at, ports, sizeof(ports)))
		return DROP_SOURCE_GUARD;
	if (of->flags & PORT_DHCP_GUARD && ports[0] == bpf_htons(DHCPV6_SERVER))
		return DROP_DHCP_GUARD;
	if (protocol != IPPROTO_ICMPV6)
		return FORWARDED;
	if (bpf_xdp_load_bytes(ctx, at, message, 4))
		return DROP_SOURCE_GUARD;
	if (of->flags & PORT_RA_GUARD &&
	    (message[0] == ICMPV6_ROUTER_ADVERTISEMENT || message[0] == ICMPV6_REDIRECT))
		return DROP_RA_GUARD;
	if (of->flags & PORT_SOURCE_GUARD && message[0] == ICMPV6_NEIGHBOR_ADVERTISEMENT &&
	    (bpf_xdp_load_bytes(ctx, at, message, sizeof(message)) || !may_be_ipv6(of, message + 8)))
		return DROP_SOURCE_GUARD;
	return FORWARDED;
}

/* FORWARDED, or why a frame is dropped. Only called for ports with a guard. */
static __noinline int guard(struct xdp_md *ctx, __u32 slot, __u32 flags, __u64 mac)
{
	struct suspect of = { .slot = slot, .flags = flags, .mac = mac };
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
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			return FORWARDED;
		at += sizeof(protocol);
	}
	return DROP_SOURCE_GUARD;
}
