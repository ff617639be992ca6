/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The decisions about a packet, in either program: whether it can be forwarded here, through which interface and to
 * which next hop, and how its headers are rewritten.
 *
 *     forward.bpf.c ─ xdp.h ─┐
 *                            ├─► forward.h: [fib4|fib6] -> [hops] -> [egress]
 *     skb.bpf.c ───── skb.h ─┘                               └─► unresolved.h: control asks for the neighbor
 *
 * xdp.h and skb.h, one of which is included first, have what differs: how long a packet is and whether it fits, whether
 * its checksum is complete, how bytes are read and cut off, and which tag it has.
 */
#pragma once

#include <linux/in.h>
#include <linux/in6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "extension.h"
#include "fib4.h"
#include "fib6.h"
#include "flow.h"
#include "flows.h"
#include "layout.h"
#include "packet.h"
#include "sampled.h"
#include "sum.h"
#include "unresolved.h"

/*
 * Maps with one value each, as variables: their address is in the program's code, whereas a lookup would be a call
 * that clobbers registers. The loader replaces these with its own maps.
 */
struct hops hops SEC(".bss.hops");
struct fib4 fib4 SEC(".bss.fib4");
struct fib6 fib6 SEC(".bss.fib6");
struct views views SEC(".bss.views");

/* By brickmoon's index of the ingress interface. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, INTERFACES);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* A frame, with its length on arrival, and on departure if it is forwarded. */
static __always_inline void count(__u32 interface, enum verdict verdict, __u32 received, __u32 sent)
{
	struct counts *of = bpf_map_lookup_elem(&counts, &interface);

	/* The verifier has bounds for a call's result only if they are checked. */
	if (!of || verdict >= VERDICTS)
		return;
	of->of[verdict]++;
	of->of[RECEIVED_BYTES] += received;
	if (verdict == FORWARDED)
		of->of[FORWARDED_BYTES] += sent;
	has_verdict(verdict);
}

/* How a packet leaves if the verdict is FORWARDED; otherwise not initialized, to save the time. */
struct way {
	__u64 entry;
	const struct egress *egress;
#ifdef FLOWS
	struct flow *flow; /* by which it is forwarded; NULL for others */
#endif
};

/* Whether a source may be an address of this machine. */
static __always_inline bool may_be_local(const struct view *view, __u32 address)
{
	__u32 hash = address * LOCAL_HASH >> 20;

	return view->local[hash >> 6 & (LOCAL_BITS / 64 - 1)] >> (hash & 63) & 1;
}

/* Sources that need a second lookup: those that may be this machine's, and all if the reverse path is checked. */
static __noinline int source_is_fine(__u32 source, __u32 asks)
{
	__u32 hop, out, reverse_path = asks >> 16, interface = asks & 0xffff;

	hop = fib4_lookup(&fib4, source);
	out = HOP_INTERFACE(hops.entries[hop & (HOPS - 1)]);
	if (out == HOP_HOST)
		return 0;
	if (reverse_path == REVERSE_PATH_STRICT)
		return out == interface;
	return reverse_path != REVERSE_PATH_LOOSE || out < HOP_SPECIAL || out == HOP_GROUP;
}

/* Why Linux gets packets to a next hop without an interface of ours; nobody is told about those to a blackhole. */
static __always_inline enum verdict passed_by(__u32 out)
{
	switch (out) {
	case HOP_HOST:
		return PASSED_LOCAL;
	case HOP_LINUX_ONLY:
		return PASSED_FIREWALL;
	case HOP_NONE:
		return PASSED_NO_ROUTE;
	case HOP_BLACKHOLE:
		return DROPPED_BLACKHOLE;
	case HOP_UNREACHABLE:
		return PASSED_UNREACHABLE;
	case HOP_PROHIBIT:
		return PASSED_PROHIBIT;
	}
	return PASSED_UNRESOLVED;
}

/* The action of a next hop that is not a group, and whether the packet fits through its interface. */
static __always_inline enum verdict leave(__u32 hop, struct packet *packet, struct way *way)
{
	__u32 out, mtu;

	hop &= HOPS - 1;
	way->entry = hops.entries[hop];
	out = HOP_INTERFACE(way->entry);
	if (out >= INTERFACES)
		return passed_by(out);
	if (out == packet->ingress->interface)
		return PASSED_SAME_INTERFACE;
	way->egress = &packet->view->egress[out & (INTERFACES - 1)];
	mtu = mtu_of(packet, way->egress, out);
	if (largest_of(packet) > mtu)
		return mtu ? PASSED_MTU : PASSED_EGRESS;
	if (hops.mtus[hop] && largest_of(packet) > hops.mtus[hop])
		return PASSED_MTU;
	if (!hops.used[hop])
		hops.used[hop] = 1;
	return FORWARDED;
}

/* The verdict on a packet that is forwarded by flow, from that of its next hop: it must leave where Linux sent the others. */
static __always_inline enum verdict verdict_by_flow(enum verdict verdict, const struct packet *packet,
						    const struct way *way)
{
#ifdef FLOWS
	if (verdict == FORWARDED && !leaves_as_before(way->flow, way->entry))
		return PASSED_FIREWALL;
	if (verdict == FORWARDED)
		used(way->flow, packet->frame);
#endif
	return verdict;
}

static __always_inline bool is_group(__u32 hop)
{
	return HOP_INTERFACE(hops.entries[hop & (HOPS - 1)]) == HOP_GROUP;
}

static __always_inline __u32 member(__u32 hop, __u32 hash)
{
	__u64 group = hops.entries[hop & (HOPS - 1)];
	__u32 count = 1u << (group >> 32 & 31);

	return hops.buckets[((__u32)group + (hash & (count - 1))) & (BUCKETS - 1)];
}

/* The plain sum of a header's ten words, which is all ones if the header is whole (RFC 1071). */
static __always_inline bool is_whole(const struct ipv4 *ip)
{
	const __u32 *words = (const void *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	return is_ones(sum);
}

/* Neither 0/8, 127/8, multicast nor broadcast; other addresses in 255/8 are not distinguished. */
static __always_inline bool is_single_host(__u32 address)
{
	__u32 first = address >> 24;

	return (__u8)(first + 1) > 1 && first != 127 && first >> 4 != 0xe;
}

static __always_inline enum verdict route4(context *ctx, struct packet *packet, struct ipv4 *ip, struct way *way)
{
	const struct ingress *ingress = packet->ingress;
	bool by_flow = !(ingress->flags & FORWARD_IPV4);
	__u32 source, destination, hop, hash;
	enum verdict verdict;

	if (by_flow && !goes_by_flow(ctx, packet, FLOWS_IPV4))
		return ingress->flags & LINUX_ONLY_IPV4 ? PASSED_FIREWALL : PASSED_INACTIVE;
	packet->length = bpf_ntohs(ip->total_length);
	source = bpf_ntohl(ip->source);
	destination = bpf_ntohl(ip->destination);
	if (ip->version_ihl != 0x45 || packet->length < sizeof(*ip) ||
	    packet->length > room_from(packet, ip) || ip->fragment & bpf_htons(0x3fff) || !is_whole(ip) ||
	    !is_single_host(source) || !is_single_host(destination))
		verdict = PASSED_HEADER;
	else if (ip->ttl <= 1)
		verdict = PASSED_HOPS;
	else if (sums_may_be_partial(packet) &&
		 may_be_partial((__u64)ip->source + ip->destination, ip->protocol, ip + 1,
				packet->length - sizeof(*ip), packet->end))
		verdict = PASSED_PARTIAL_SUM;
	else
		verdict = FORWARDED;
	if (verdict != FORWARDED) {
		if (by_flow)
			follow_left4(ctx, frame_bytes(packet->data, ip), room_from(packet, ip), ingress->interface);
		return verdict;
	}
#ifdef FLOWS
	way->flow = by_flow ? flow_of4(ctx, packet, ip) : NULL;
	if (by_flow && !way->flow)
		return PASSED_FIREWALL;
	if (by_flow)
		destination = bpf_ntohl(way->flow->new_destination[0]);
#endif
	hop = fib4_lookup(&fib4, destination);
	if (ingress->reverse_path || may_be_local(packet->view, source)) {
		if (!source_is_fine(source, (__u32)ingress->reverse_path << 16 | ingress->interface))
			return PASSED_SOURCE;
	}
	if (is_group(hop)) {
		if (!flow4(packet, ip, &hash))
			return PASSED_FLOW;
		hop = member(hop, hash);
	}
	verdict = leave(hop, packet, way);
	if (verdict == PASSED_UNRESOLVED && ingress->flags & REPORT_UNRESOLVED)
		report_unresolved(hop, 0, 0xffffull << 32 | destination);
	return by_flow ? verdict_by_flow(verdict, packet, way) : verdict;
}

/* 2000::/3 or fc00::/7, where nothing is special. */
static __always_inline bool is_plain(__u64 high)
{
	return high >> 61 == 1 || high >> 57 == 0x7e;
}

static __always_inline __u64 sum_of_addresses(const struct ipv6 *ip)
{
	const __u32 *words = (const void *)ip->source;
	__u64 sum = 0;

	for (int i = 0; i < 8; i++)
		sum += words[i];
	return sum;
}

static __always_inline enum verdict route6(context *ctx, struct packet *packet, struct ipv6 *ip, struct way *way)
{
	struct address6 source, destination;
	enum verdict verdict;
	bool by_flow = false;
	__u32 hop, hash;

	if ((packet->ingress->flags & (FORWARD_IPV6 | LINUX_ONLY_FRAGMENTS_IPV6)) != FORWARD_IPV6) {
		by_flow = !(packet->ingress->flags & FORWARD_IPV6);
		if (by_flow && !goes_by_flow(ctx, packet, FLOWS_IPV6))
			return packet->ingress->flags & LINUX_ONLY_IPV6 ? PASSED_FIREWALL : PASSED_INACTIVE;
		if (may_be_fragment(ip + 1, packet->end, ip->next_header))
			return PASSED_FIREWALL;
	}
	packet->length = bpf_ntohs(ip->payload_length) + sizeof(*ip);
	source.high = bpf_be64_to_cpu(ip->source[0]);
	source.low = bpf_be64_to_cpu(ip->source[1]);
	destination.high = bpf_be64_to_cpu(ip->destination[0]);
	destination.low = bpf_be64_to_cpu(ip->destination[1]);
	if ((ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000) ||
	    packet->length > room_from(packet, ip) || ip->next_header == IPPROTO_HOPOPTS ||
	    !is_plain(source.high) || !is_plain(destination.high))
		return PASSED_HEADER;
	if (ip->hop_limit <= 1) {
		if (by_flow)
			follow_left6(ctx, frame_bytes(packet->data, ip), packet->ingress->interface);
		return PASSED_HOPS;
	}
	if (sums_may_be_partial(packet) &&
	    may_be_partial(sum_of_addresses(ip), ip->next_header, ip + 1, packet->length - sizeof(*ip), packet->end)) {
		if (by_flow)
			follow_left6(ctx, frame_bytes(packet->data, ip), packet->ingress->interface);
		return PASSED_PARTIAL_SUM;
	}
#ifdef FLOWS
	way->flow = by_flow ? flow_of6(ctx, packet, ip) : NULL;
	if (by_flow && !way->flow)
		return PASSED_FIREWALL;
	if (by_flow)
		destination = new_destination6(way->flow);
#endif
	hop = fib6_lookup(&fib6, destination);
	if (is_group(hop)) {
		if (!flow6(packet, ip, source, destination, &hash))
			return PASSED_FLOW;
		hop = member(hop, hash);
	}
	verdict = leave(hop, packet, way);
	if (verdict == PASSED_UNRESOLVED && packet->ingress->flags & REPORT_UNRESOLVED)
		report_unresolved(hop, destination.high, destination.low);
	return by_flow ? verdict_by_flow(verdict, packet, way) : verdict;
}

/* Twelve bytes in two stores; the word of an egress begins with its MAC. */
static __always_inline void write_macs(struct ethernet *eth, const struct way *way)
{
	__u64 own = way->egress->mac_mtu;

	*(__u64 *)eth->to = (way->entry & 0xffffffffffff) | own << 48;
	*(__u32 *)&eth->from[1] = own >> 16;
}

/*
 * Cuts padding off and writes the MACs. Returns the network header, which has at least `size` bytes; NULL if the frame
 * cannot be cut.
 */
static __always_inline void *readdressed(context *ctx, const struct packet *packet, const struct way *way, __u32 size)
{
	struct ethernet *eth;

	if (!cut_padding(ctx, sizeof(*eth) + packet->length))
		return NULL;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) + size > (void *)(long)ctx->data_end)
		return NULL;
	write_macs(eth, way);
	return eth + 1;
}

/* TTL is a word's high byte in network order: the checksum grows by what that word shrinks (RFC 1624). */
static __always_inline void spend_ttl(struct ipv4 *ip)
{
	__u32 sum = ip->checksum + (__u32)bpf_htons(0x0100);

	ip->checksum = sum + (sum >= 0xffff);
	ip->ttl--;
}

/* Translates a packet that is forwarded by flow; `ip` is its header, of which the fixed part can be accessed. */
static __always_inline bool translated(void *ip, void *end, const struct way *way, bool ipv4)
{
#ifdef FLOWS
	if (way->flow)
		return ipv4 ? translate4(ip, end, way->flow) : translate6(ip, end, way->flow);
#endif
	return true;
}

/* Whether the daemon has not confirmed the tables for longer than the grace time. */
static __always_inline bool is_unattended(void)
{
	return views.grace_jiffies && (__s64)(bpf_jiffies64() - views.alive_until) > 0;
}

/* A frame of an interface of brickmoon; false if it is not one now, which is not counted. */
static __always_inline bool arrived(context *ctx, struct packet *packet)
{
	__u32 ifindex = arrival_of(ctx);

	packet->view = &views.of[views.current & 1];
	packet->ingress = &packet->view->ingress[ifindex & (INGRESSES - 1)];
	return packet->ingress->ifindex == ifindex;
}
