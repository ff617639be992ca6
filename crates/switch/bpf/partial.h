/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Finds and completes checksums that a sender has left to its device (sum.h). There is one in a frame:
 *
 *     IP -> TCP or UDP                          recognized by its value, the sum of the pseudo-header
 *     IP -> extension headers -> TCP or UDP     the same
 *     IP -> UDP, GRE, IP, .. -> IP -> TCP       the packet inside is searched: inside.h
 *     the same with SCTP                        recognized by a checksum of zero: crc.h
 *
 * A tunnel's own checksum fits the complete packet inside, so packets are completed from the innermost outwards.
 */
#pragma once

#include "crc.h"

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 addresses[2];
} __attribute__((packed));

struct ipv6 {
	__be32 version_class_label;
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__be32 addresses[8];
} __attribute__((packed));

/* The sum of a pseudo-header, as it is in the field of an incomplete segment. */
static __always_inline __u16 pseudo_sum(const __be32 *addresses, int count, __u8 protocol, __u32 length)
{
	__u64 sum = (__u64)bpf_htons(protocol) + bpf_htons(length);

	for (int i = 0; i < count; i++)
		sum += addresses[i];
	return folded(sum);
}

#include "inside.h"

/* Finds what follows the outermost IP header, which is at `network`; false if it is none, or a fragment. */
static __always_inline bool find_segment(void *data, void *end, struct segment *segment, __u32 *network)
{
	struct tagged *eth = data;
	__be16 protocol = eth->protocol;

	*network = ETH_HLEN;
	if (protocol == bpf_htons(ETH_P_8021Q)) {
		if ((void *)(eth + 1) > end)
			return false;
		protocol = eth->tag.protocol;
		*network += sizeof(struct tag);
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = data + *network;
		__u32 header;

		if ((void *)(ip + 1) > end || ip->fragment & bpf_htons(0x3fff))
			return false;
		header = (ip->version_ihl & 0xf) * 4;
		if (header < sizeof(*ip) || bpf_ntohs(ip->total_length) <= header)
			return false;
		segment->start = *network + header;
		segment->length = bpf_ntohs(ip->total_length) - header;
		segment->protocol = ip->protocol;
		segment->pseudo = pseudo_sum(ip->addresses, 2, ip->protocol, segment->length);
		return true;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = data + *network;

		if ((void *)(ip + 1) > end)
			return false;
		segment->start = *network + sizeof(*ip);
		segment->length = bpf_ntohs(ip->payload_length);
		segment->protocol = ip->next_header;
		segment->pseudo = pseudo_sum(ip->addresses, 8, ip->next_header, segment->length);
		return true;
	}
	return false;
}

/* The value of the checksum field of a TCP or UDP segment; 0 if it has none, which no incomplete one has. */
static __always_inline __u16 field_of(void *data, void *end, struct segment *segment)
{
	__u32 at = segment->start + (segment->protocol == IPPROTO_TCP ? 16 : 6);
	__u16 *field;

	/* Tells the verifier what the compiler knows: the offset is at most two headers and a bit. */
	asm volatile("" : "+r"(at));
	at &= 0x7f;
	field = data + at;
	if ((void *)(field + 1) > end)
		return 0;
	segment->field = at;
	return *field;
}

/* Whether a UDP datagram with this checksum has nothing inside to complete. */
static __always_inline bool is_whole(struct xdp_md *ctx, const struct segment *segment, __u16 field)
{
	__u16 sum;

	return field && summed(ctx, segment->start, segment->length, &sum) && folded((__u64)sum + segment->pseudo) == 0xffff;
}

/* Completes what a frame has, which is counted. */
__noinline int complete_sum(struct xdp_md *ctx, __u32 slot)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct segment segment = {};
	bool has_room, is_partial = false;
	__u32 network, searched = SEARCHED_MAX;
	int done = 0;

	if (data + sizeof(struct ethhdr) > end || !find_segment(data, end, &segment, &network))
		return 0;
	has_room = segment.protocol != IPPROTO_TCP && segment.protocol != IPPROTO_SCTP &&
		   (segment.protocol != IPPROTO_UDP || segment.length >= UDP_HEADER + PACKET_MIN);
	if (segment.protocol == IPPROTO_TCP || segment.protocol == IPPROTO_UDP) {
		__u16 field = field_of(data, end, &segment);

		is_partial = field && field == segment.pseudo;
		if (is_partial)
			searched = SEARCHED_BY_CHANCE;
		else if (!has_room || is_whole(ctx, &segment, field))
			return 0;
	}
	if (is_complete_inside(segment.protocol))
		return 0;
	if (has_room)
		done = complete_inside(ctx, segment.start, segment.start + segment.length, searched);
	if (is_partial)
		done |= complete_segment(ctx, segment.start, segment.length, segment.field);
	else
		done |= complete_packet(ctx, network, segment.start + segment.length);
	if (done)
		add(slot, SUMS_COMPLETED, 1);
	return 0;
}
