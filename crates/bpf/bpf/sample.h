/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Samples of received frames, for sFlow and IPFIX: one in so many, at random, goes through a ring to the daemon with its
 * first bytes. A full ring loses samples and counts them; frames are never delayed.
 *
 *     frame -> is_sampled -> begin_sample -> (the program handles the frame) -> end_sample -> samples, a ring
 */
#pragma once

#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#define SAMPLE_BYTES 128
#define SAMPLE_RING (256 * 1024) /* the same in samples.rs */

/* Why a frame was dropped. The same numbers and the same layout are in ../src/samples.rs. */
enum sample_drop {
	SAMPLE_NOT_DROPPED,
	SAMPLE_FILTER,
	SAMPLE_TINY_FRAGMENT,
	SAMPLE_REVERSE_PATH,
	SAMPLE_RATE_LIMIT,
	SAMPLE_BLACKHOLE
};

struct sample {
	__u32 ifindex;
	__u32 out;	/* the interface through which the frame left; 0 if that is not known, or it did not leave */
	__u32 length;	/* of the whole frame */
	__u32 frames;	/* received since the last sample of this interface on this CPU, this one included */
	__u32 missed;	/* samples since then that found no room in the ring */
	__u16 captured; /* bytes of the frame that follow */
	__u16 drop;	/* enum sample_drop */
	__u8 header[SAMPLE_BYTES];
};

/* Shared by all programs of the process. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SAMPLE_RING);
} samples SEC(".maps");

/* Of an interface on a CPU. */
struct sampling {
	__u32 left;    /* frames up to the next sample */
	__u32 drawn;   /* what that was after the last one */
	__u32 carried; /* frames from before that, which no sample has reported */
	__u32 missed;
};

/* 1 to 2n - 1, so n on average. */
static __always_inline __u32 drawn_from(__u32 one_in)
{
	return 1 + bpf_get_prandom_u32() % (2 * one_in - 1);
}

/* Whether a frame is one of those. */
static __always_inline bool is_sampled(struct sampling *of, __u32 one_in)
{
	/* The first frame, or fewer are to be skipped than before. */
	if (!of->left || of->left >= 2 * one_in) {
		of->carried += of->drawn - of->left;
		of->left = of->drawn = drawn_from(one_in);
	}
	if (--of->left)
		return false;
	of->carried += of->drawn;
	of->left = of->drawn = drawn_from(one_in);
	return true;
}

/* Writes into a sample what is known before anything is done with the frame. */
static __always_inline void fill_sample(struct sample *sample, struct sampling *of, __u32 ifindex, const void *data,
					const void *end)
{
	long size = end - data;

	/* The verifier wants the difference of the two pointers by itself. */
	asm volatile("" : "+r"(size));
	if (size > SAMPLE_BYTES)
		size = SAMPLE_BYTES;
	if (size < 0)
		size = 0;
	sample->ifindex = ifindex;
	sample->frames = of->carried;
	sample->missed = of->missed;
	sample->captured = size;
	bpf_probe_read_kernel(sample->header, size, data);
	of->carried = of->missed = 0;
}

/* A sample in the ring, for a frame that is handled at once; NULL if there is no room. */
static __always_inline struct sample *begin_sample(struct sampling *of, __u32 ifindex, const void *data, const void *end)
{
	struct sample *sample = bpf_ringbuf_reserve(&samples, sizeof(*sample), 0);

	if (!sample) {
		of->missed++;
		return NULL;
	}
	fill_sample(sample, of, ifindex, data, end);
	return sample;
}

static __always_inline void end_sample(struct sample *sample, __u32 length, __u32 out, enum sample_drop drop)
{
	sample->length = length;
	sample->out = out;
	sample->drop = drop;
	bpf_ringbuf_submit(sample, 0);
}
