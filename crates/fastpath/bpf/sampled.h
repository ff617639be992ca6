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

/* The interface through which the frame that is being handled on this CPU leaves. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sampled_out SEC(".maps");

static __always_inline void leaves_through(__u32 ifindex)
{
	__u32 zero = 0, *out;

	if (!sample_one_in)
		return;
	out = bpf_map_lookup_elem(&sampled_out, &zero);
	if (out)
		*out = ifindex;
}

/* A sample of a frame that is one of those; NULL for others. */
static __always_inline struct sample *sampled(__u32 ifindex, const void *data, const void *end)
{
	__u32 place = ifindex & (INGRESSES - 1);
	struct sampling *of = bpf_map_lookup_elem(&sampling, &place);

	leaves_through(0);
	return of && is_sampled(of, sample_one_in) ? begin_sample(of, ifindex, data, end) : NULL;
}

/* Hands a sample out once the frame has been handled. */
static __always_inline void was_handled(struct sample *sample, __u32 length, bool dropped)
{
	__u32 zero = 0, *out = bpf_map_lookup_elem(&sampled_out, &zero);
	__u32 through = out ? *out : 0;

	end_sample(sample, length, through, dropped && !through);
}
