/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Reports next hops without a MAC. Linux asks for a neighbor when it sends it a packet, but rules that brickmoon bypasses
 * may drop the packet before that. So control reads the reports and makes Linux ask.
 *
 *     packet -> reported within the last second, or too many others? -> unresolved, a ring -> control -> Linux
 */
#pragma once

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define UNRESOLVED_RING (64 * 1024) /* the same in unresolved.rs, and the layout of a report */

struct unresolved {
	__u64 high; /* the destination, in host order; IPv4 as ::ffff:0:0/96 */
	__u64 low;
	__u32 hop;
	__u32 at; /* when it was reported, in units of 2^20 ns, about a millisecond */
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, UNRESOLVED_RING);
} unresolved SEC(".maps");

/* How soon the same is reported again on a CPU, and how many reports there may be in a window, about 1,000 a second. */
#define REPORT_AGAIN 1000
#define REPORTS_WINDOW_SHIFT 6
#define REPORTS_MAX 64

/* The last reports of a CPU, by a hash of the destination: a newer one replaces an older one. */
#define REPORTED_SHIFT 8
struct reported {
	__u32 window;
	__u32 reports; /* in this window */
	struct unresolved last[1 << REPORTED_SHIFT];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct reported);
} reported SEC(".maps");

/* A function, so that packets with a known MAC do not pay for it. */
static __noinline int report_unresolved(__u32 hop, __u64 high, __u64 low)
{
	__u32 zero = 0, now = bpf_ktime_get_ns() >> 20;
	struct reported *of = bpf_map_lookup_elem(&reported, &zero);
	struct unresolved *last, *report;

	if (!of)
		return 0;
	last = &of->last[(high ^ low) * 0x9e3779b97f4a7c15ull >> (64 - REPORTED_SHIFT)];
	if (last->hop == hop && last->high == high && last->low == low && now - last->at < REPORT_AGAIN)
		return 0;
	if (of->window != now >> REPORTS_WINDOW_SHIFT) {
		of->window = now >> REPORTS_WINDOW_SHIFT;
		of->reports = 0;
	}
	if (of->reports >= REPORTS_MAX)
		return 0;
	of->reports++;
	report = bpf_ringbuf_reserve(&unresolved, sizeof(*report), 0);
	if (!report)
		return 0;
	last->high = high;
	last->low = low;
	last->hop = hop;
	last->at = now;
	*report = *last;
	bpf_ringbuf_submit(report, 0);
	return 0;
}
