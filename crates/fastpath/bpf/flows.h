/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Flows: what Linux has decided about a connection's packets is repeated here for the ordinary ones of them.
 *
 *     packet -> ruleset as it was? -> ordinary? -> [flows] -> connection as it was? -> routed as translated -> addresses, ports
 *                        '---------------'-------------'------------'--> Linux
 *
 * Linux decides by its rules, which only ask for what all later packets of a flow have in common; control sees to that.
 * FIN and RST end a flow, so that what follows them is Linux's again; so does another state of its connection
 * (flow_check.h). Only programs that are compiled with FLOWS contain any of this; the others need no flows, or leave to
 * Linux what does.
 */
#pragma once

#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "flow.h"
#include "flow_check.h"
#include "flow_lookup.h"
#include "flow_table.h"
#include "kernel.h"
#include "layout.h"
#include "packet.h"
#include "sum.h"

#ifdef FLOWS

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
/* All that tell what a segment does: not PSH, ECE and CWR. */
#define TCP_FLAGS (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK | TCP_URG)

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
 * What follows the IP header, if it is a whole segment or datagram: TCP with flags that connection tracking takes, or UDP.
 * Plain are TCP with ACK alone, and UDP.
 */
enum upper { UPPER_ODD, UPPER_PLAIN, UPPER_URGENT, UPPER_SYN, UPPER_FIN, UPPER_RST };

/* By flags of TCP. A table, since the verifier would follow each case of a switch to the end of the program. */
static const __u8 upper_of_flags[TCP_FLAGS + 1] = {
	[TCP_ACK] = UPPER_PLAIN,
	[TCP_ACK | TCP_URG] = UPPER_URGENT,
	[TCP_SYN] = UPPER_SYN,
	[TCP_SYN | TCP_ACK] = UPPER_SYN,
	[TCP_SYN | TCP_URG] = UPPER_SYN,
	[TCP_FIN | TCP_ACK] = UPPER_FIN,
	[TCP_FIN | TCP_ACK | TCP_URG] = UPPER_FIN,
	[TCP_RST] = UPPER_RST,
	[TCP_RST | TCP_ACK] = UPPER_RST,
};

/* `length` are the bytes behind the IP header, in both. */
static __always_inline enum upper upper_of_tcp(const struct tcp *tcp, __u32 length)
{
	__u32 header = (tcp->offset >> 4) * 4;

	return header < sizeof(*tcp) || header > length ? UPPER_ODD : upper_of_flags[tcp->flags & TCP_FLAGS];
}

static __always_inline enum upper upper_of(const void *upper, const void *end, __u8 protocol, __u32 length)
{
	const struct tcp *tcp = upper;
	const struct udp *udp = upper;
	__u32 header;

	if (protocol == IPPROTO_TCP)
		return (const void *)(tcp + 1) > end ? UPPER_ODD : upper_of_tcp(tcp, length);
	if (protocol != IPPROTO_UDP || (const void *)(udp + 1) > end)
		return UPPER_ODD;
	header = bpf_ntohs(udp->length);
	return header < sizeof(*udp) || header > length ? UPPER_ODD : UPPER_PLAIN;
}

/* The number of the flow of the other direction; 0 if there is none, or its packets come in elsewhere. */
static __noinline __u32 find_reply(const struct flow *flow)
{
	struct flow_key key;

	if (!flow)
		return 0;
	__builtin_memcpy(key.source, flow->new_destination, sizeof(key.source));
	__builtin_memcpy(key.destination, flow->new_source, sizeof(key.destination));
	key.ports = flow->new_ports >> 16 | flow->new_ports << 16;
	key.rest = FLOW_REST(flow->out, flow->family, flow->protocol);
	return find_number(&key);
}

/* The number of the other direction's entry that was found last; 0 for none. */
static __always_inline __u32 reply_of(const struct flow *flow)
{
	return flow->reply_low | (__u32)flow->reply_high << 16;
}

/* The entry of the other direction, looked up anew; NULL if there is none. */
static __always_inline struct flow *renewed_reply(struct flow *flow)
{
	__u32 number = find_reply(flow);

	flow->reply_low = number;
	flow->reply_high = number >> 16;
	return numbered(number);
}

/* Ends both directions. */
static __always_inline void end_flow(struct flow *flow, struct flow *reply, __u8 why)
{
	flow->ended = why;
	if (reply)
		reply->ended = why;
}

/* What connection tracking looks at in a segment. */
struct segment {
	__u32 kind; /* enum upper */
	__u32 sequence;
	__u32 end; /* the number behind its data */
	__u32 acknowledged;
	bool acknowledges;
};

static __always_inline struct segment segment_of(const struct tcp *tcp, enum upper kind, __u32 length)
{
	struct segment segment = { .kind = kind, .sequence = bpf_ntohl(tcp->sequence) };

	segment.end = segment.sequence + length - (tcp->offset >> 4) * 4;
	segment.acknowledged = bpf_ntohl(tcp->acknowledged);
	segment.acknowledges = tcp->flags & TCP_ACK && (kind != UPPER_RST || segment.acknowledged);
	return segment;
}

/*
 * Keeps what connection tracking keeps of a connection's packets: the greatest number that those of a direction have
 * acknowledged (td_maxack); and, if the last one of either direction only acknowledges, the number behind it (last_end).
 */
static __always_inline void follow(struct flow *flow, struct flow *reply, const struct segment *segment)
{
	if (reply && reply->follows & FOLLOWS_END)
		reply->follows &= ~FOLLOWS_END;
	/* What was acknowledged before a SYN does not count at the RST that answers it. */
	if (segment->kind == UPPER_SYN) {
		flow->follows = 0;
		if (reply)
			reply->follows = 0;
		return;
	}
	if (segment->acknowledges && (!(flow->follows & FOLLOWS_ACKNOWLEDGED) ||
				      (__s32)(segment->acknowledged - flow->acknowledged) > 0)) {
		flow->acknowledged = segment->acknowledged;
		flow->follows |= FOLLOWS_ACKNOWLEDGED;
	}
	if (segment->kind == UPPER_PLAIN || segment->kind == UPPER_URGENT) {
		flow->end = segment->end;
		flow->follows |= FOLLOWS_END;
	} else {
		flow->follows &= ~FOLLOWS_END;
	}
}

/*
 * Whether an RST ends a connection. Linux keeps one if the number is neither what the other side has acknowledged last
 * (RFC 5961 3.2) nor that behind the packet before it, and does not know these numbers of a flow.
 */
static __always_inline bool ends(const struct flow *flow, const struct flow *reply, __u32 sequence)
{
	return !reply || !(reply->follows & FOLLOWS_ACKNOWLEDGED) || sequence == reply->acknowledged ||
	       (flow->follows & FOLLOWS_END && sequence == flow->end);
}

/* Takes a segment of a flow into account; whether it may go by flow. Not static, so that the verifier looks at it once. */
__noinline int takes(struct flow *flow, const struct segment *segment)
{
	struct flow *reply;

	if (!flow || !segment || flow->ended)
		return 0;
	/* The entry with that number may have become another flow's: what ends flows does not rely on it. */
	if (!reply_of(flow) || segment->kind == UPPER_FIN || segment->kind == UPPER_RST)
		reply = renewed_reply(flow);
	else
		reply = numbered(reply_of(flow));
	if (segment->kind == UPPER_FIN || (segment->kind == UPPER_RST && ends(flow, reply, segment->sequence))) {
		end_flow(flow, reply, FLOW_CLOSED);
		return 0;
	}
	follow(flow, reply, segment);
	return segment->kind == UPPER_PLAIN || segment->kind == UPPER_RST;
}

/* The flow itself if its connection is as it was when it was learned; else NULL, and both directions end. */
static __always_inline struct flow *with_connection(context *ctx, struct flow *flow)
{
	int why;

	if (!is_to_be_checked(flow))
		return flow;
	why = end_by_connection(ctx, flow);
	if (why) {
		end_flow(flow, renewed_reply(flow), why);
		return NULL;
	}
	flow->checked_at = bpf_jiffies64();
	return flow;
}

/*
 * The flow that a key finds, unless it has ended or Linux gets the packet. `upper` follows the IP header with `length`
 * bytes, and has been found to be whole, which the verifier does not know any more.
 */
static __always_inline struct flow *flow_for(context *ctx, const struct flow_key *key, enum upper kind,
					     const void *upper, const void *end, __u32 length)
{
	const struct tcp *tcp = upper;
	struct flow *flow = find_flow(key);
	struct segment segment;

	if (!flow || flow->ended)
		return NULL;
	if (flow->protocol == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > end)
			return NULL;
		segment = segment_of(tcp, kind, length);
		if (!takes(flow, &segment))
			return NULL;
	}
	return with_connection(ctx, flow);
}

static __always_inline struct flow *flow_of4(context *ctx, const struct packet *packet, struct ipv4 *ip)
{
	struct flow_key key = { .source = { ip->source }, .destination = { ip->destination } };
	enum upper upper = upper_of(ip + 1, packet->end, ip->protocol, packet->length - sizeof(*ip));

	if (upper == UPPER_ODD)
		return NULL;
	key.ports = *(__u32 *)(ip + 1);
	key.rest = FLOW_REST(packet->ingress->interface, 4, ip->protocol);
	return flow_for(ctx, &key, upper, ip + 1, packet->end, packet->length - sizeof(*ip));
}

static __always_inline struct flow *flow_of6(context *ctx, const struct packet *packet, struct ipv6 *ip)
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
	return flow_for(ctx, &key, upper, ip + 1, packet->end, packet->length - sizeof(*ip));
}

/* The sum of an IPv4 header with its options, at a place in a frame; 0 if it is not all there. */
static __noinline __u64 sum_of_header(context *ctx, __u32 at, __u32 bytes)
{
	__u32 words[15] = {};
	__u64 sum = 0;

	if (bytes > sizeof(words) || !bytes || load_bytes(ctx, at, words, bytes))
		return 0;
	for (int i = 0; i < 15; i++)
		sum += words[i];
	return sum;
}

/* Takes a segment of a flow into account that goes to Linux, `length` bytes at a place in a frame. */
static __noinline int follow_segment(context *ctx, __u32 at, __u32 length, struct flow *flow)
{
	struct segment segment;
	enum upper kind;
	struct tcp tcp;

	if (!flow || length < sizeof(tcp) || load_bytes(ctx, at, &tcp, sizeof(tcp)))
		return 0;
	kind = upper_of_tcp(&tcp, length);
	if (kind == UPPER_ODD)
		return 0;
	segment = segment_of(&tcp, kind, length);
	return takes(flow, &segment);
}

/* The flow of a packet that goes to Linux, whose headers are at these places in a frame. */
static __noinline struct flow *flow_left4(context *ctx, __u32 at, __u32 upper, __u32 interface)
{
	struct flow_key key = { .rest = FLOW_REST(interface, 4, IPPROTO_TCP) };

	at += __builtin_offsetof(struct ipv4, source);
	if (load_bytes(ctx, at, key.source, 4) || load_bytes(ctx, at + 4, key.destination, 4) ||
	    load_bytes(ctx, upper, &key.ports, sizeof(key.ports)))
		return NULL;
	return find_flow(&key);
}

static __noinline struct flow *flow_left6(context *ctx, __u32 at, __u32 interface)
{
	struct flow_key key = { .rest = FLOW_REST(interface, 6, IPPROTO_TCP) };

	/* Addresses and ports follow each other there as here. */
	at += __builtin_offsetof(struct ipv6, source);
	return load_bytes(ctx, at, &key, __builtin_offsetof(struct flow_key, rest)) ? NULL : find_flow(&key);
}

/*
 * Takes a segment into account that Linux gets because of its IP header: options, or no hop left. Connection tracking sees it
 * as any other. Its header is at a place in the frame, and `room` bytes of the packet are there. Not static, so that the
 * verifier looks at it once.
 */
__noinline int follow_left4(context *ctx, __u32 at, __u32 room, __u32 interface)
{
	__u32 header, length;
	struct ipv4 ip;

	if (load_bytes(ctx, at, &ip, sizeof(ip)))
		return 0;
	header = (ip.version_ihl & 15) * 4;
	length = bpf_ntohs(ip.total_length);
	if (ip.version_ihl >> 4 != 4 || header < sizeof(ip) || length < header || length > room ||
	    ip.fragment & bpf_htons(0x3fff) || ip.protocol != IPPROTO_TCP ||
	    !is_ones(sum_of_header(ctx, at, header)))
		return 0;
	return follow_segment(ctx, at + header, length - header, flow_left4(ctx, at, at + header, interface));
}

/* Likewise in IPv6, without a hop left; those behind extension headers are not followed. */
__noinline int follow_left6(context *ctx, __u32 at, __u32 interface)
{
	struct ipv6 ip;

	if (load_bytes(ctx, at, &ip, sizeof(ip)) || ip.next_header != IPPROTO_TCP)
		return 0;
	return follow_segment(ctx, at + sizeof(ip), bpf_ntohs(ip.payload_length), flow_left6(ctx, at, interface));
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
	if (!(flow->flags & FLOW_TRANSLATES))
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
	if (!(flow->flags & FLOW_TRANSLATES))
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

static __always_inline int follow_left4(context *ctx, __u32 at, __u32 room, __u32 interface)
{
	return 0;
}

static __always_inline int follow_left6(context *ctx, __u32 at, __u32 interface)
{
	return 0;
}

#endif
