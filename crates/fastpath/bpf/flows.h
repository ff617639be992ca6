/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Flows: what Linux has decided about a connection's packets is repeated here for the ordinary ones of them.
 *
 *     packet -> ruleset as it was? -> ordinary? -> [flow_slots] -> [flows] -> routed as translated -> addresses, ports
 *                        '---------------'--------------'-----------------'--> Linux
 *
 * Linux decides by its rules, which only ask for what all later packets of a flow have in common; control sees to that.
 * FIN and RST end a flow, so that what follows them is Linux's again. Only programs that are compiled with FLOWS contain
 * any of this; the others need no flows, or leave to Linux what does.
 */
#pragma once

#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "flow.h"
#include "flow_table.h"
#include "kernel.h"
#include "layout.h"
#include "packet.h"

#ifdef FLOWS

/* Numbers of buckets and of flows for which the map has room. */
const volatile struct {
	__u32 buckets;
	__u32 flows;
} room SEC(".rodata.flows") = { 1, 1 };

/* One value: a page with the head, the buckets, and the flows from the next page on. The loader sets its size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_head);
} flows SEC(".maps");

/* TCP (RFC 9293 3.1) and UDP headers, as far as flows need them. */
struct tcp {
	__u32 ports;
	__be32 sequence;
	__be32 acknowledged;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__sum16 checksum;
	__be16 urgent;
};

struct udp {
	__u32 ports;
	__be16 length;
	__sum16 checksum;
};

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16
#define TCP_URG 32

static __always_inline __u32 first_bucket(__u64 hash)
{
	return (hash & 0xffffffff) * room.buckets >> 32;
}

static __always_inline __u32 second_bucket(__u64 hash)
{
	return (hash >> 32) * room.buckets >> 32;
}

static __always_inline __u32 tag_of(__u64 hash)
{
	return hash * FLOW_TAG_HASH >> FLOW_TAG_SHIFT;
}

static __always_inline const struct flow_bucket *bucket_at(const void *table, __u32 at)
{
	return at < room.buckets ? table + sizeof(struct flow_head) + at * sizeof(struct flow_bucket) : NULL;
}

/* The flow with this number; NULL for none. */
static __always_inline struct flow *flow_at(void *table, __u32 number)
{
	__u32 from = (sizeof(struct flow_head) + room.buckets * sizeof(struct flow_bucket) + PAGE - 1) & ~(PAGE - 1);

	number--;
	return number < room.flows ? table + from + number * sizeof(struct flow) : NULL;
}

/* How one of a flow's packets is known: as in its headers, IPv4 addresses in the first words. */
struct flow_key {
	__u32 source[4];
	__u32 destination[4];
	__u32 ports;
	__u32 rest; /* the interface on which it arrives, then family and protocol, as in struct flow */
};

#define FLOW_REST(interface, family, protocol) \
	((__u32)(interface) | (__u32)(protocol) << 16 | (__u32)(family) << 24)

static __always_inline bool is_flow(const struct flow *flow, const struct flow_key *key, __u32 epoch)
{
	__u32 rest = FLOW_REST(flow->interface, flow->family, flow->protocol);

	if (flow->ports != key->ports || rest != key->rest || flow->epoch != epoch ||
	    flow->source[0] != key->source[0] || flow->destination[0] != key->destination[0])
		return false;
	if (key->rest >> 24 == 4)
		return true;
	return flow->source[1] == key->source[1] && flow->source[2] == key->source[2] &&
	       flow->source[3] == key->source[3] && flow->destination[1] == key->destination[1] &&
	       flow->destination[2] == key->destination[2] && flow->destination[3] == key->destination[3];
}

static __always_inline __u64 word_of(const __u32 *words)
{
	return words[0] | (__u64)words[1] << 32;
}

/* Spreads differences in few bits, such as those between consecutive ports, over all of them. */
static __always_inline __u64 spread(__u64 hash)
{
	hash = (hash ^ hash >> 32) * FLOW_TAG_HASH;
	return hash ^ hash >> 29;
}

static __always_inline __u64 hash_of(const struct flow_head *head, const struct flow_key *key)
{
	__u64 rest = (__u64)key->ports << 32 | (key->rest & 0xffff) << 16 | (key->rest >> 24) << 8 |
		     (key->rest >> 16 & 0xff);
	__u64 hash;

	if (key->rest >> 24 == 4) {
		hash = mix((__u64)key->source[0] << 32 | key->destination[0], head->key[0]);
		return spread(mix(hash ^ rest, head->key[1]));
	}
	hash = mix(word_of(key->source) ^ head->key[0], word_of(key->source + 2) ^ head->key[1]);
	hash = mix(hash ^ word_of(key->destination), word_of(key->destination + 2) ^ head->key[0]);
	return spread(mix(hash ^ rest, head->key[1]));
}

/* The flow of a key among those of a bucket. */
static __always_inline struct flow *in_bucket(void *table, __u32 at, __u32 tag, const struct flow_key *key,
					      __u32 epoch)
{
	const struct flow_bucket *bucket = bucket_at(table, at);
	struct flow *flow;

	if (!bucket)
		return NULL;
	for (int way = 0; way < FLOW_WAYS; way++) {
		__u32 slot = bucket->of[way];

		if (!slot || slot >> FLOW_NUMBER_BITS != tag)
			continue;
		flow = flow_at(table, slot & FLOW_NUMBER_MASK);
		if (flow && is_flow(flow, key, epoch))
			return flow;
	}
	return NULL;
}

/* The flow of a key; NULL if there is none. */
static __noinline struct flow *find_flow(const struct flow_key *key)
{
	__u32 zero = 0, tag, epoch;
	struct flow_head *head = bpf_map_lookup_elem(&flows, &zero);
	struct flow *flow;
	__u64 hash;

	if (!head)
		return NULL;
	hash = hash_of(head, key);
	tag = tag_of(hash);
	epoch = head->epoch;
	flow = in_bucket(head, first_bucket(hash), tag, key, epoch);
	return flow ?: in_bucket(head, second_bucket(hash), tag, key, epoch);
}

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

/* The generation of the ruleset that is in force now, as the kernel itself counts it. */
static __always_inline __u32 ruleset_now(context *ctx)
{
	return device_of(bpf_cast_to_kern_ctx(ctx))->nd_net.net->nft.base_seq;
}

/* Whether packets of a family that arrive on an interface may be forwarded by flow now. */
static __always_inline bool goes_by_flow(context *ctx, const struct packet *packet, __u32 family)
{
	__u32 zero = 0;
	struct flow_head *head;

	if (!(packet->ingress->flags & BY_FLOW))
		return false;
	head = bpf_map_lookup_elem(&flows, &zero);
	return head && head->families & family && (__s32)(head->until - (__u32)bpf_jiffies64()) > 0 &&
	       head->generation == ruleset_now(ctx);
}

/*
 * What follows the IP header, if it is an ordinary segment or datagram of `length` bytes: TCP with ACK alone, or UDP.
 * FIN and RST are told apart, since they end flows.
 */
enum upper { UPPER_ODD, UPPER_PLAIN, UPPER_FIN, UPPER_RST };

static __always_inline enum upper upper_of(void *upper, void *end, __u8 protocol, __u32 length)
{
	struct tcp *tcp = upper;
	struct udp *udp = upper;
	__u32 header, flags;

	if (protocol == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end)
			return UPPER_ODD;
		header = (tcp->offset >> 4) * 4;
		flags = tcp->flags;
		if (header < sizeof(*tcp) || header > length || flags & (TCP_SYN | TCP_URG))
			return UPPER_ODD;
		if (flags & TCP_RST)
			return UPPER_RST;
		if (flags & TCP_FIN)
			return UPPER_FIN;
		return flags & TCP_ACK ? UPPER_PLAIN : UPPER_ODD;
	}
	if (protocol != IPPROTO_UDP || (void *)(udp + 1) > end)
		return UPPER_ODD;
	header = bpf_ntohs(udp->length);
	return header < sizeof(*udp) || header > length ? UPPER_ODD : UPPER_PLAIN;
}

/* The flow of the other direction; NULL if there is none, or its packets come in elsewhere. */
static __noinline struct flow *reply_of(struct flow *flow)
{
	struct flow_key key;

	if (!flow)
		return NULL;
	__builtin_memcpy(key.source, flow->new_destination, sizeof(key.source));
	__builtin_memcpy(key.destination, flow->new_source, sizeof(key.destination));
	key.ports = flow->new_ports >> 16 | flow->new_ports << 16;
	key.rest = FLOW_REST(flow->out, flow->family, flow->protocol);
	return find_flow(&key);
}

/*
 * Keeps what connection tracking keeps of a flow's packets: the greatest number that they have acknowledged (td_maxack), and
 * the number behind the last one, which has `length` bytes (last_end).
 */
static __always_inline void follow(struct flow *flow, const struct tcp *tcp, __u32 length)
{
	__u32 acknowledged = bpf_ntohl(tcp->acknowledged);

	if (!(flow->follows & FOLLOWS_ACKNOWLEDGED) || (__s32)(acknowledged - flow->acknowledged) > 0)
		flow->acknowledged = acknowledged;
	flow->end = bpf_ntohl(tcp->sequence) + length - (tcp->offset >> 4) * 4;
	flow->follows = FOLLOWS_ACKNOWLEDGED | FOLLOWS_END;
}

/*
 * Whether FIN or RST ends a connection. Linux keeps one that gets an RST whose number is neither what the other side has
 * acknowledged last (RFC 5961 3.2) nor that behind the packet before it, and does not know these numbers of a flow.
 */
static __always_inline bool ends(struct flow *flow, enum upper upper, const struct tcp *tcp)
{
	struct flow *reply = reply_of(flow);
	__u32 sequence = bpf_ntohl(tcp->sequence);

	if (upper == UPPER_RST && reply && reply->follows & FOLLOWS_ACKNOWLEDGED && sequence != reply->acknowledged &&
	    !(flow->follows & FOLLOWS_END && sequence == flow->end))
		return false;
	flow->ended = 1;
	if (reply)
		reply->ended = 1;
	return true;
}

/*
 * The flow that a key finds, unless it has ended or the packet ends it. `upper` follows the IP header with `length` bytes, and
 * has been found to be whole, which the verifier does not know any more.
 */
static __always_inline struct flow *flow_for(const struct flow_key *key, enum upper kind, const void *upper,
					     const void *end, __u32 length)
{
	const struct tcp *tcp = upper;
	struct flow *flow = find_flow(key);

	if (!flow || flow->ended)
		return NULL;
	if (flow->protocol != IPPROTO_TCP)
		return flow;
	if ((void *)(tcp + 1) > end)
		return NULL;
	if (kind != UPPER_PLAIN)
		return ends(flow, kind, tcp) ? NULL : flow;
	follow(flow, tcp, length);
	return flow;
}

static __always_inline struct flow *flow_of4(const struct packet *packet, struct ipv4 *ip)
{
	struct flow_key key = { .source = { ip->source }, .destination = { ip->destination } };
	enum upper upper = upper_of(ip + 1, packet->end, ip->protocol, packet->length - sizeof(*ip));

	if (upper == UPPER_ODD)
		return NULL;
	key.ports = *(__u32 *)(ip + 1);
	key.rest = FLOW_REST(packet->ingress->interface, 4, ip->protocol);
	return flow_for(&key, upper, ip + 1, packet->end, packet->length - sizeof(*ip));
}

static __always_inline struct flow *flow_of6(const struct packet *packet, struct ipv6 *ip)
{
	const __u32 *words = (const void *)ip->source;
	enum upper upper = upper_of(ip + 1, packet->end, ip->next_header, packet->length - sizeof(*ip));
	struct flow_key key;

	if (upper == UPPER_ODD)
		return NULL;
	__builtin_memcpy(key.source, words, sizeof(key.source));
	__builtin_memcpy(key.destination, words + 4, sizeof(key.destination));
	key.ports = *(__u32 *)(ip + 1);
	key.rest = FLOW_REST(packet->ingress->interface, 6, ip->next_header);
	return flow_for(&key, upper, ip + 1, packet->end, packet->length - sizeof(*ip));
}

/* Where IPv6 packets of a flow go. */
static __always_inline struct address6 new_destination6(const struct flow *flow)
{
	__u64 high = word_of(flow->new_destination), low = word_of(flow->new_destination + 2);

	return (struct address6){ .high = bpf_be64_to_cpu(high), .low = bpf_be64_to_cpu(low) };
}

/* Whether a packet leaves where Linux sent those before it. */
static __always_inline bool leaves_as_before(const struct flow *flow, __u64 entry)
{
	return HOP_INTERFACE(entry) == flow->out;
}

/* Counts a packet that is sent. One more or less on another CPU is the price of not locking the line. */
static __always_inline void used(struct flow *flow, __u32 bytes)
{
	__u32 now = bpf_jiffies64();

	if (flow->used_at != now)
		flow->used_at = now;
	flow->packets++;
	flow->bytes += bytes;
}

/*
 * A checksum after what it covers has grown by `sum` (RFC 1624). As in Linux, the sum has bits above the lowest 16 all
 * along, so that the result is never the zero that is written as all ones.
 */
static __always_inline __sum16 checksum_after(__sum16 checksum, __u32 sum)
{
	__u64 total = (__u64)(__u32)~(__u32)checksum + sum;

	total = (total & 0xffff) + (total >> 16);
	total = (total & 0xffff) + (total >> 16);
	total = (total & 0xffff) + (total >> 16);
	return ~total;
}

/* Writes ports and the checksum of what follows the IP header; false if that is not there. */
static __always_inline bool translate_upper(void *upper, void *end, const struct flow *flow)
{
	__u32 sum = flow->sum_addresses + flow->sum_ports;
	struct tcp *tcp = upper;
	struct udp *udp = upper;

	if (flow->protocol == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end)
			return false;
		tcp->ports = flow->new_ports;
		tcp->checksum = checksum_after(tcp->checksum, sum);
		return true;
	}
	if ((void *)(udp + 1) > end)
		return false;
	udp->ports = flow->new_ports;
	/* None in IPv4 (RFC 768); and one that comes out as zero is sent as all ones. */
	if (udp->checksum)
		udp->checksum = checksum_after(udp->checksum, sum) ?: 0xffff;
	return true;
}

static __always_inline bool translate4(struct ipv4 *ip, void *end, const struct flow *flow)
{
	if (!flow->translates)
		return true;
	if (!translate_upper(ip + 1, end, flow))
		return false;
	ip->checksum = checksum_after(ip->checksum, flow->sum_addresses);
	ip->source = flow->new_source[0];
	ip->destination = flow->new_destination[0];
	return true;
}

static __always_inline bool translate6(struct ipv6 *ip, void *end, const struct flow *flow)
{
	if (!flow->translates)
		return true;
	if (!translate_upper(ip + 1, end, flow))
		return false;
	__builtin_memcpy(ip->source, flow->new_source, sizeof(flow->new_source));
	__builtin_memcpy(ip->destination, flow->new_destination, sizeof(flow->new_destination));
	return true;
}

#else

static __always_inline bool goes_by_flow(context *ctx, const struct packet *packet, __u32 family)
{
	return false;
}

#endif
