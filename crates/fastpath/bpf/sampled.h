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

/*
 * The sample of the frame that is being handled on this CPU, if it is one; of every frame, what happened to it. It is put
 * into the ring at the end: the verifier of Linux 6.1 refuses to keep room in the ring while a frame is handled.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sample);
} sample_of_cpu SEC(".maps");

static __always_inline struct sample *current_sample(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&sample_of_cpu, &zero);
}

static __always_inline void leaves_through(__u32 ifindex)
{
	struct sample *sample;

	if (!sample_one_in)
		return;
	sample = current_sample();
	if (sample)
		sample->out = ifindex;
}

_Static_assert(DROPPED_TINY_FRAGMENT - DROPPED_FILTER == SAMPLE_TINY_FRAGMENT - SAMPLE_FILTER &&
	       DROPPED_REVERSE_PATH - DROPPED_FILTER == SAMPLE_REVERSE_PATH - SAMPLE_FILTER &&
	       DROPPED_RATE_LIMIT - DROPPED_FILTER == SAMPLE_RATE_LIMIT - SAMPLE_FILTER &&
	       DROPPED_BLACKHOLE - DROPPED_FILTER == SAMPLE_BLACKHOLE - SAMPLE_FILTER,
	       "reasons are in the same order");

/* Remembers why the frame is dropped, if it is. */
static __always_inline void has_verdict(enum verdict verdict)
{
	struct sample *sample;

	if (!sample_one_in || verdict < DROPPED_FILTER)
		return;
	sample = current_sample();
	if (sample)
		sample->drop = verdict - DROPPED_FILTER + SAMPLE_FILTER;
}

/* The sample of a frame that is one of those; NULL for others. */
static __always_inline struct sample *sampled(__u32 ifindex, const void *data, const void *end)
{
	__u32 place = ifindex & (INGRESSES - 1);
	struct sampling *of = bpf_map_lookup_elem(&sampling, &place);
	struct sample *sample = current_sample();

	if (!of || !sample)
		return NULL;
	sample->out = 0;
	sample->drop = SAMPLE_NOT_DROPPED;
	if (!is_sampled(of, sample_one_in))
		return NULL;
	fill_sample(sample, of, ifindex, data, end);
	return sample;
}

/* Hands a sample out once the frame has been handled. */
static __always_inline void was_handled(struct sample *sample, __u32 length)
{
	__u32 place = sample->ifindex & (INGRESSES - 1);
	struct sampling *of;

	sample->length = length;
	if (!bpf_ringbuf_output(&samples, sample, sizeof(*sample), 0))
		return;
	/* No room: the next sample reports these frames. */
	of = bpf_map_lookup_elem(&sampling, &place);
	if (of) {
		of->carried += sample->frames;
		of->missed += sample->missed + 1;
	}
}
