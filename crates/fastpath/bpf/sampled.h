/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Samples of frames on the kernel path, for either program: sample.h says what is sampled. */
#pragma once

#include "layout.h"
#include "sample.h"

/* One frame in so many is sampled; 0 for none, which costs nothing, since such a program does not contain this. */
const volatile __u32 sample_one_in SEC(".rodata.sampling") = 0;

/* By the low bits of an interface's index in Linux. Only a program that samples has these maps. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, INGRESSES);
	__type(key, __u32);
	__type(value, struct sampling);
} sampling SEC(".maps");

/* What happened to the frame that is being handled on this CPU. */
struct sampled_fate {
	__u32 out; /* the interface through which it leaves */
	__u32 drop; /* enum sample_drop */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sampled_fate);
} sampled_fate SEC(".maps");

static __always_inline struct sampled_fate *fate(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sampled_fate, &zero);
}

static __always_inline void leaves_through(__u32 ifindex)
{
	struct sampled_fate *of;

	if (!sample_one_in)
		return;
	of = fate();
	if (of)
		of->out = ifindex;
}

_Static_assert(DROPPED_TINY_FRAGMENT - DROPPED_FILTER == SAMPLE_TINY_FRAGMENT - SAMPLE_FILTER &&
	       DROPPED_REVERSE_PATH - DROPPED_FILTER == SAMPLE_REVERSE_PATH - SAMPLE_FILTER &&
	       DROPPED_RATE_LIMIT - DROPPED_FILTER == SAMPLE_RATE_LIMIT - SAMPLE_FILTER &&
	       DROPPED_BLACKHOLE - DROPPED_FILTER == SAMPLE_BLACKHOLE - SAMPLE_FILTER,
	       "reasons are in the same order");

/* Remembers why the frame is dropped, if it is. */
static __always_inline void has_verdict(enum verdict verdict)
{
	struct sampled_fate *of;

	if (!sample_one_in || verdict < DROPPED_FILTER)
		return;
	of = fate();
	if (of)
		of->drop = verdict - DROPPED_FILTER + SAMPLE_FILTER;
}

/* A sample of a frame that is one of those; NULL for others. */
static __always_inline struct sample *sampled(__u32 ifindex, const void *data, const void *end)
{
	__u32 place = ifindex & (INGRESSES - 1);
	struct sampling *of = bpf_map_lookup_elem(&sampling, &place);
	struct sampled_fate *unknown = fate();

	if (unknown)
		unknown->out = unknown->drop = 0;
	return of && is_sampled(of, sample_one_in) ? begin_sample(of, ifindex, data, end) : NULL;
}

/* Hands a sample out once the frame has been handled. */
static __always_inline void was_handled(struct sample *sample, __u32 length)
{
	struct sampled_fate *of = fate();

	end_sample(sample, length, of ? of->out : 0, of ? of->drop : SAMPLE_NOT_DROPPED);
}
