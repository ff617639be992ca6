/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Packets inside others: of any tunnel, since they are found by their IP header, whose length fits what follows.
 * crates/wire/src/offload.rs does the same for workers.
 */
#pragma once

/* The shortest packet with a checksum that can be left to a device: an IPv4 and a UDP header. */
#define PACKET_MIN 28
#define PADDING_MAX (46 - PACKET_MIN) /* behind a packet inside: an Ethernet frame has at least 46 bytes */
#define UDP_HEADER 8
#define EXTENSIONS_MAX 8
#define PACKETS_MAX 8 /* places that are looked at: by chance a payload has one at most */
#define OSPF 89

#define SEARCH_CHUNK 64 /* bytes that are searched at once */
#define SEARCHED_MAX 512 /* chunks: 64 KiB */
/* Enough for all usual tunnels, where one checksum in 65,536 looks as if it were the incomplete one. */
#define SEARCHED_BY_CHANCE 1

struct extension {
	__u8 next_header;
	__u8 units; /* of 8 bytes, without the first */
	__u8 unused[6];
};

struct search {
	struct xdp_md *ctx;
	__u32 start;
	__u32 end;
	__u32 before; /* only places before this one */
	__u32 chunks;
	__u32 found; /* an IP header; 0 for none */
};

/* What is never left to a device, whatever it quotes: Linux computes it, and encrypts only what is complete. */
static __always_inline bool is_complete_inside(__u8 protocol)
{
	return protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6 || protocol == IPPROTO_ESP ||
	       protocol == IPPROTO_FRAGMENT || protocol == OSPF;
}

/* All ones if `left`, from a word to the end less the word itself, cannot be that of a length in an IP header. */
static __always_inline __s32 misfit(__u32 left)
{
	/* The second word of an IPv4 header counts from the one before it on, padding may follow. */
	__s32 misfit4 = (PADDING_MAX - (__s32)(__u16)(left + 2)) >> 31;
	/* The third of an IPv6 header counts what begins 36 bytes behind it. */
	__s32 misfit6 = -(__s32)(__u16)(left ^ 36) >> 31;

	return misfit4 & misfit6;
}

/*
 * Searches one chunk for the last word that could be the length in an IP header. Without branches, each of which the
 * verifier would have to follow.
 */
static long search_chunk(__u32 index, void *context)
{
	struct search *of = context;
	__u32 zero = 0, base = of->start + (of->chunks - 1 - index) * SEARCH_CHUNK, size, last = 0;
	__u16 *words = bpf_map_lookup_elem(&scratch, &zero);

	if (!words || base >= of->before)
		return !words;
	size = of->end - base < SEARCH_CHUNK ? of->end - base : SEARCH_CHUNK;
	asm volatile("" : "+r"(size));
	size = ((size - 1) & (SEARCH_CHUNK - 1)) + 1;
	if (bpf_xdp_load_bytes(of->ctx, base, words, size))
		return 1;
	/* Unrolled, it would need too much of the stack. */
#pragma nounroll
	for (int i = 0; i < SEARCH_CHUNK / 2; i++) {
		__u32 at = base + 2 * i;
		__s32 miss = misfit(of->end - at - bpf_ntohs(words[i])) | (__s32)(of->before - 1 - at) >> 31;

		asm volatile("" : "+r"(miss));
		last = (last & miss) | (at & ~miss);
	}
	if (!last)
		return 0;
	words = (void *)words + ((last - base) & (SEARCH_CHUNK - 2));
	of->found = (__u16)(of->end - last - bpf_ntohs(*words)) == 36 ? last - 4 : last - 2;
	of->before = last;
	return 1;
}

/* Completes the segment behind an IPv6 header, if it needs it: its pseudo-header has one of two destinations. */
static __always_inline int complete_tcp_udp(struct xdp_md *ctx, struct segment *segment, __u64 addresses, __u64 others)
{
	__u16 field, length, sum;

	segment->field = segment->start + (segment->protocol == IPPROTO_TCP ? 16 : 6);
	if (segment->protocol == IPPROTO_UDP) {
		if (bpf_xdp_load_bytes(ctx, segment->start + 4, &length, sizeof(length)) ||
		    bpf_ntohs(length) < UDP_HEADER || bpf_ntohs(length) > segment->length)
			return false;
		segment->length = bpf_ntohs(length);
	}
	if (bpf_xdp_load_bytes(ctx, segment->field, &field, sizeof(field)) || !field)
		return false;
	sum = folded((__u64)bpf_htons(segment->protocol) + bpf_htons(segment->length));
	if (field != folded(addresses + sum) && field != folded(others + sum))
		return false;
	return complete_segment(ctx, segment->start, segment->length, segment->field);
}

static __always_inline __u64 words_sum(const __be32 *words, int count)
{
	__u64 sum = 0;

	for (int i = 0; i < count; i++)
		sum += words[i];
	return sum;
}

/*
 * Passes the extension headers of an IPv6 packet; false if there is a fragment. `destination` becomes the sum of the
 * final one, if there is a routing header: SRv6's is the first address there (RFC 8754 2).
 */
static __always_inline bool pass_extensions(struct xdp_md *ctx, struct segment *segment, __u64 *destination)
{
	struct extension extension;
	__be32 address[4];
	__u32 length;

	for (int i = 0; i < EXTENSIONS_MAX; i++) {
		__u8 kind = segment->protocol;

		if (kind != IPPROTO_HOPOPTS && kind != IPPROTO_ROUTING && kind != IPPROTO_DSTOPTS)
			return kind != IPPROTO_FRAGMENT;
		if (bpf_xdp_load_bytes(ctx, segment->start, &extension, sizeof(extension)))
			return false;
		length = (extension.units + 1) * 8;
		if (kind == IPPROTO_ROUTING && extension.units >= 2 &&
		    !bpf_xdp_load_bytes(ctx, segment->start + 8, address, sizeof(address)))
			*destination = words_sum(address, 4);
		if (length > segment->length)
			return false;
		segment->start += length;
		segment->length -= length;
		segment->protocol = extension.next_header;
	}
	return false;
}

/* Completes the checksum of the IP packet at `at`, if it is incomplete; returns whether it was. */
__noinline int complete_packet(struct xdp_md *ctx, __u32 at, __u32 end)
{
	struct segment segment = {};
	__u64 source, destination, last;
	struct ipv6 ip6;
	struct ipv4 ip4;
	__u32 header;

	if (bpf_xdp_load_bytes(ctx, at, &ip4, sizeof(ip4)))
		return false;
	if (ip4.version_ihl >> 4 == 4) {
		header = (ip4.version_ihl & 0xf) * 4;
		segment.length = bpf_ntohs(ip4.total_length);
		/* What only looks like a packet hardly has a right header checksum. */
		if (header < sizeof(ip4) || segment.length < header || at + segment.length > end ||
		    ip4.fragment & bpf_htons(0x3fff) ||
		    (header == sizeof(ip4) && folded(words_sum((__be32 *)&ip4, 5)) != 0xffff))
			return false;
		segment.length -= header;
		segment.start = at + header;
		segment.protocol = ip4.protocol;
		source = ip4.addresses[0];
		destination = last = ip4.addresses[1];
	} else {
		if (ip4.version_ihl >> 4 != 6 || bpf_xdp_load_bytes(ctx, at, &ip6, sizeof(ip6)))
			return false;
		segment.length = bpf_ntohs(ip6.payload_length);
		segment.start = at + sizeof(ip6);
		segment.protocol = ip6.next_header;
		source = words_sum(ip6.addresses, 4);
		destination = last = words_sum(ip6.addresses + 4, 4);
		if (segment.start + segment.length > end || !pass_extensions(ctx, &segment, &last))
			return false;
	}
	if (segment.protocol == IPPROTO_SCTP)
		return complete_sctp(ctx, segment.start, segment.length);
	if (segment.protocol != IPPROTO_TCP && segment.protocol != IPPROTO_UDP)
		return false;
	return complete_tcp_udp(ctx, &segment, source + destination, source + last);
}

/* Completes packets that begin at even bytes from `start` on, the last one first; returns whether there were any. */
__noinline int complete_inside(struct xdp_md *ctx, __u32 start, __u32 end, __u32 chunks_max)
{
	struct search of = { .ctx = ctx, .start = start, .end = end, .before = end };
	int done = 0;

	of.chunks = (end - start + SEARCH_CHUNK - 1) / SEARCH_CHUNK;
	if (of.chunks > chunks_max)
		of.chunks = chunks_max;
	for (int i = 0; i < PACKETS_MAX; i++) {
		of.found = 0;
		bpf_loop(of.chunks, search_chunk, &of, 0);
		if (of.found < start)
			break;
		done |= complete_packet(ctx, of.found, end);
	}
	return done;
}
