/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Checksums that a sender has left to its device (RFC 1071).
 *
 * On a veth or TAP there is no device to fill them in. The kernel's mark of such a frame is not to be seen from
 * XDP and does not survive a redirect, so the sum is completed here. The field then holds the sum of the
 * pseudo-header alone. One good segment in 65,536 has that value by chance: completing it gives the same value.
 */
#pragma once

#include <linux/in.h>
#include <stdbool.h>

#define SUM_CHUNK 512 /* what bpf_csum_diff takes at once on Linux 6.1 */
#define SUM_CHUNKS 129 /* 64 KiB, and the end */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[SUM_CHUNK + 8]); /* more than fits: the verifier rounds up as we do */
} scratch SEC(".maps");

/* A TCP or UDP segment whose checksum is not complete. */
struct segment {
	__u32 start; /* from the frame's begin */
	__u32 length;
	__u32 field; /* of the checksum, from the frame's begin */
	bool udp;
};

/* To 16 bits, not complemented. */
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
	/* Says to the verifier, that of Linux 6.1 too, what the line above says: 1 to SUM_CHUNK. */
	asm volatile("" : "+r"(size));
	size = ((size - 1) & (SUM_CHUNK - 1)) + 1;
	if (size < SUM_CHUNK) {
		/* A whole number of words is summed, the last one filled up with zeros. */
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

/* Works out a segment's checksum as its field should hold it; false if the frame is shorter than it says. */
static __always_inline bool completed(struct xdp_md *ctx, const struct segment *segment, __u16 *sum)
{
	struct summing of = { .ctx = ctx, .at = segment->start, .left = segment->length };

	bpf_loop(SUM_CHUNKS, sum_chunk, &of, 0);
	if (of.failed || of.left)
		return false;
	*sum = ~folded(of.sum);
	/* To UDP, 0 says that there is none (RFC 768). To TCP it is a sum as any other. */
	if (segment->udp && !*sum)
		*sum = 0xffff;
	return true;
}
