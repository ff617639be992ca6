/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Checksums that a sender has left to its device (RFC 1071).
 *
 * On a veth or TAP there is no device to compute them. XDP cannot see the kernel's mark on such a frame, and a redirect
 * drops the mark, so the checksum is completed here. The field of an incomplete segment holds the sum of the
 * pseudo-header alone. One correct segment in 65,536 has that value by chance: completing it gives the same value.
 */
#pragma once

#include <linux/in.h>
#include <stdbool.h>

#define SUM_CHUNK 512 /* what bpf_csum_diff accepts at once on Linux 6.1 */
#define SUM_CHUNKS 129 /* 64 KiB, and the rest */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[SUM_CHUNK + 8]); /* larger than needed: the verifier rounds up as we do */
} scratch SEC(".maps");

/* What follows an IP header. */
struct segment {
	__u32 start; /* from the start of the frame */
	__u32 length;
	__u32 field; /* of the checksum, from the start of the frame */
	__u16 pseudo; /* the sum of the pseudo-header */
	__u8 protocol;
};

/* Folds a sum to 16 bits, without complementing it. */
static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

struct summing {
	struct xdp_md *ctx;
	__u32 at;
	__u32 left;
	__u32 sum;
	int failed;
};

static long sum_chunk(__u32 index, void *context)
{
	struct summing *of = context;
	__u32 zero = 0, size = of->left < SUM_CHUNK ? of->left : SUM_CHUNK;
	__u8 *chunk = bpf_map_lookup_elem(&scratch, &zero);
	__s64 sum;

	if (!chunk || !size)
		return 1;
	/* Tells the verifier (also that of Linux 6.1) what the line above ensures: 1 to SUM_CHUNK. */
	asm volatile("" : "+r"(size));
	size = ((size - 1) & (SUM_CHUNK - 1)) + 1;
	if (size < SUM_CHUNK) {
		/* bpf_csum_diff sums whole words, so the last one is padded with zeros. */
		__u32 last = (size - 1) & (SUM_CHUNK - 4);

		*(__u32 *)(chunk + last) = 0;
	}
	if (bpf_xdp_load_bytes(of->ctx, of->at, chunk, size)) {
		of->failed = 1;
		return 1;
	}
	sum = bpf_csum_diff(NULL, 0, (__be32 *)chunk, (size + 3) & ~3u, of->sum);
	of->sum = sum;
	of->failed = sum < 0;
	of->at += size;
	of->left -= size;
	return of->failed || !of->left;
}

/* Adds the bytes of a segment, without the pseudo-header; false if the frame is shorter than its headers say. */
static __always_inline bool summed(struct xdp_md *ctx, __u32 start, __u32 length, __u16 *sum)
{
	struct summing of = { .ctx = ctx, .at = start, .left = length };

	bpf_loop(SUM_CHUNKS, sum_chunk, &of, 0);
	*sum = folded(of.sum);
	return !of.failed && !of.left;
}

/*
 * Completes a segment whose field has the sum of the pseudo-header. Like others below, it is no static function, so that
 * the verifier analyses it only once, whatever its callers know.
 */
__noinline int complete_segment(struct xdp_md *ctx, __u32 start, __u32 length, __u32 field)
{
	__u16 sum;

	if (!summed(ctx, start, length, &sum))
		return false;
	sum = ~sum;
	/* In UDP, 0 means that there is no checksum (RFC 768). Linux writes 0xffff for TCP as well (skb_checksum_help). */
	if (!sum)
		sum = 0xffff;
	return !bpf_xdp_store_bytes(ctx, field, &sum, sizeof(sum));
}
