/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Frames that a worker hands back to Linux, many in one system call. BPF_PROG_TEST_RUN runs a program many times over
 * the same bytes, and each time the program replaces them by the next frame. The program is `steer` itself: the kernel
 * waits for 10 ms before and after running a program that is not attached anywhere.
 *
 * Native mode only: in generic mode such a frame would pass through `steer` again. Needs Linux 5.18.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

/* batch.rs has the same values, and the same layout of `queue`. */
#define FRAMES 64
#define FRAME_MAX 3500
#define BY_HAND 28 /* size of the metadata that tells such a run from a frame of the driver */

struct held {
	__u32 length;
	__u8 data[FRAME_MAX];
};

struct queue {
	__u64 passed; /* a bit for each frame that was passed on to Linux */
	__u32 next;
	__u32 count; /* 0 unless this is a test run of the program */
	struct held of[FRAMES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct queue);
} queue SEC(".maps");

static __always_inline bool is_by_hand(const struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *meta = (void *)(long)ctx->data_meta;
	long length = data - meta;

	/* The verifier needs the difference of the two pointers in a register of its own. */
	asm volatile("" : "+r"(length));
	return length == BY_HAND;
}

static __noinline int deliver_next(struct xdp_md *ctx)
{
	__u32 zero = 0, place, length;
	__u64 bytes;
	struct queue *all = bpf_map_lookup_elem(&queue, &zero);
	struct held *held;

	if (!all || all->next >= all->count)
		return XDP_DROP;
	place = all->next++;
	if (place >= FRAMES)
		return XDP_DROP;
	held = &all->of[place & (FRAMES - 1)];
	length = *(volatile __u32 *)&held->length;
	if (length < sizeof(struct ethhdr) || length > FRAME_MAX)
		return XDP_DROP;
	if (bpf_xdp_adjust_tail(ctx, (int)length - (int)bpf_xdp_get_buff_len(ctx)))
		return XDP_DROP;
	/* Again, and in the register that is passed on: the verifier of Linux 6.1 forgets the bounds of `length`. */
	bytes = length;
	asm volatile("" : "+r"(bytes));
	if (bytes > FRAME_MAX)
		return XDP_DROP;
	asm volatile("" : "+r"(bytes));
	if (bytes < sizeof(struct ethhdr))
		return XDP_DROP;
	if (bpf_xdp_store_bytes(ctx, 0, held->data, bytes) || bpf_xdp_adjust_meta(ctx, BY_HAND))
		return XDP_DROP;
	all->passed |= 1ull << place;
	return XDP_PASS;
}
