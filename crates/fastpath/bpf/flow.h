/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The flow of a packet, for groups of next hops: the same number as in crates/wire/src/flow.rs, or none if only Linux
 * can tell.
 */
#pragma once

#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include "fib6.h"
#include "layout.h"
#include "packet.h"

static const __u64 flow_salt[6] = {
	0x6a09e667f3bcc909ull, 0xbb67ae8584caa73bull, 0x3c6ef372fe94f82bull,
	0xa54ff53a5f1d36f1ull, 0x510e527fade682d1ull, 0x9b05688c2b3e6c1full,
};

/* The product's high half folded onto its low one; BPF multiplies to 64 bits only. */
static __always_inline __u64 mix(__u64 a, __u64 b)
{
	__u64 a0 = (__u32)a, a1 = a >> 32, b0 = (__u32)b, b1 = b >> 32;
	__u64 low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (__u32)middle;

	return (a * b) ^ (a1 * b1 + (middle >> 32) + (other >> 32));
}

/* `a` and `b` are the ends of the flow, `rest` is the same for both directions. */
static __always_inline __u32 flow_hash(__u64 a, __u64 b, __u64 rest, __u64 seed)
{
	__u64 first = a < b ? a : b, second = a < b ? b : a, key;

	seed *= flow_salt[5];
	key = mix(first ^ rest ^ flow_salt[0] ^ seed, second ^ flow_salt[1] ^ (seed << 32 | seed >> 32));
	return mix(key, flow_salt[4] ^ seed) >> 32;
}

static __always_inline __u32 flow_hash4(__u32 source, __u32 destination, __u32 ports, __u8 protocol, __u64 seed)
{
	__u64 a = (__u64)source << 16 | ports >> 16, b = (__u64)destination << 16 | (ports & 0xffff);

	return flow_hash(a, b, (__u64)protocol << 48, seed);
}

static __always_inline __u64 flow_end6(struct address6 address, __u16 port, __u64 seed)
{
	return mix(address.high ^ flow_salt[2], address.low ^ flow_salt[3] ^ seed * flow_salt[5]) +
	       port * flow_salt[4];
}

/* Protocols whose first four bytes are ports, or an SPI, which also distinguishes flows. */
static __always_inline bool has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_ESP ||
	       protocol == IPPROTO_DCCP || protocol == IPPROTO_SCTP || protocol == IPPROTO_UDPLITE;
}

/* Ports of a packet in host order, source first; 0 if it has none. */
static __always_inline __u32 ports_at(void *at, void *end, __u32 room)
{
	__be32 *ports = at;

	return (void *)(ports + 1) <= end && room >= sizeof(*ports) ? bpf_ntohl(*ports) : 0;
}

/* The flow of an IPv4 packet; false if only Linux can tell. */
static __always_inline bool flow4(const struct packet *packet, const struct ipv4 *ip, __u32 *hash)
{
	__u32 policy = packet->view->policy_ipv4, ports = 0;
	__u8 protocol = 0;

	if (policy == POLICY_INNER)
		return false;
	if (policy == POLICY_PORTS) {
		protocol = ip->protocol;
		if (protocol == IPPROTO_AH)
			return false;
		if (has_ports(protocol))
			ports = ports_at((void *)(ip + 1), packet->end, packet->length - sizeof(*ip));
	} else if (ip->protocol == IPPROTO_ICMP) {
		return false; /* an error counts as what it is about */
	}
	*hash = flow_hash4(bpf_ntohl(ip->source), bpf_ntohl(ip->destination), ports, protocol,
			   packet->view->flow_seed);
	return true;
}

/* The flow of an IPv6 packet; false if only Linux can tell. */
static __always_inline bool flow6(const struct packet *packet, const struct ipv6 *ip, struct address6 source,
				  struct address6 destination, __u32 *hash)
{
	__u32 policy = packet->view->policy_ipv6, ports = 0, label = 0;
	__u64 seed = packet->view->flow_seed;
	__u8 next = ip->next_header;

	if (policy == POLICY_INNER)
		return false;
	if (policy == POLICY_PORTS) {
		if (has_ports(next))
			ports = ports_at((void *)(ip + 1), packet->end, packet->length - sizeof(*ip));
		else if (next != IPPROTO_ICMPV6)
			return false; /* extension headers before the ports */
	} else {
		if (next == IPPROTO_ICMPV6)
			return false; /* an error counts as what it is about */
		label = bpf_ntohl(ip->version_class_label) & 0xfffff;
	}
	*hash = flow_hash(flow_end6(source, ports >> 16, seed), flow_end6(destination, ports, seed),
			  (__u64)label << 44 | (__u64)next << 36, seed);
	return true;
}
