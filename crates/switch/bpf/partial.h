/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Finds and completes checksums that a sender has left to its device (sum.h). */
#pragma once

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

/* The checksum field of an incomplete segment with these addresses, protocol and length. */
static __always_inline __u16 pseudo_sum(const __be32 *addresses, int count, __u8 protocol, __u32 length)
{
	__u64 sum = (__u64)bpf_htons(protocol) + bpf_htons(length);

	for (int i = 0; i < count; i++)
		sum += addresses[i];
	return folded(sum);
}

static __always_inline bool is_partial(void *data, void *end, struct segment *segment, __u8 protocol, __u16 sum)
{
	__u32 at = segment->start + (protocol == IPPROTO_TCP ? 16 : 6);
	__u16 *field;

	/* Tells the verifier what the compiler knows: the offset is at most two headers and a bit. */
	asm volatile("" : "+r"(at));
	at &= 0x7f;
	field = data + at;
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || (void *)(field + 1) > end || *field != sum)
		return false;
	segment->field = at;
	segment->udp = protocol == IPPROTO_UDP;
	return true;
}

/* Whether a sender has left a frame's checksum to us. */
static __always_inline bool wants_sum(void *data, void *end, struct segment *segment)
{
	struct tagged *eth = data;
	__be16 protocol = eth->protocol;
	__u32 network = ETH_HLEN;

	if (protocol == bpf_htons(ETH_P_8021Q)) {
		if ((void *)(eth + 1) > end)
			return false;
		protocol = eth->tag.protocol;
		network += sizeof(struct tag);
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = data + network;
		__u32 header;

		if ((void *)(ip + 1) > end || ip->fragment & bpf_htons(0x3fff))
			return false;
		header = (ip->version_ihl & 0xf) * 4;
		if (header < sizeof(*ip) || bpf_ntohs(ip->total_length) <= header)
			return false;
		segment->start = network + header;
		segment->length = bpf_ntohs(ip->total_length) - header;
		return is_partial(data, end, segment, ip->protocol,
				  pseudo_sum(ip->addresses, 2, ip->protocol, segment->length));
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = data + network;

		if ((void *)(ip + 1) > end)
			return false;
		segment->start = network + sizeof(*ip);
		segment->length = bpf_ntohs(ip->payload_length);
		return is_partial(data, end, segment, ip->next_header,
				  pseudo_sum(ip->addresses, 8, ip->next_header, segment->length));
	}
	return false;
}

/* A function of its own, so that the verifier analyses it only once. */
static __noinline int complete_sum(struct xdp_md *ctx, __u32 slot)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct segment segment = {};
	__u16 sum;

	if (data + sizeof(struct ethhdr) > end || !wants_sum(data, end, &segment))
		return 0;
	if (completed(ctx, &segment, &sum) && !bpf_xdp_store_bytes(ctx, segment.field, &sum, sizeof(sum)))
		add(slot, SUMS_COMPLETED, 1);
	return 0;
}
