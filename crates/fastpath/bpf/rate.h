/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * How much each source may send: a bucket of packets that refills with time, stored as the time when its next packet
 * is due (the generic cell rate algorithm, ITU-T I.371). The least recently seen sources are forgotten.
 */
#pragma once

#include "rules.h"

#define FILTER_SOURCES (1 << 16)

/* Times of the rate limit are in sixteenths of nanoseconds, so that short ones are accurate enough. */
#define TICK_SHIFT 4

struct filter_source {
	__u32 words[4];
};

/* When a source's next packet is due if it keeps to its rate. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FILTER_SOURCES);
	__type(key, struct filter_source);
	__type(value, __u64);
} filter_sources SEC(".maps");

__noinline int source_over_rate(const struct filter_key *key)
{
	const struct filter_set *set;
	struct filter_source source = {};
	__u64 now, due, from, *at;

	if (!key)
		return 0;
	set = filter_set(key);
	if (!set || !set->interval)
		return 0;
	if (key->of[KEY_IPV6]) {
		for (int i = 0; i < 4; i++)
			source.words[i] = key->of[KEY_SOURCE + i] & set->masks[i];
	} else {
		source.words[2] = 0xffff; /* ::ffff:0:0/96, where no IPv6 packet comes from */
		source.words[3] = key->of[KEY_SOURCE] & set->mask;
	}
	now = bpf_ktime_get_ns() << TICK_SHIFT;
	at = bpf_map_lookup_elem(&filter_sources, &source);
	if (!at) {
		due = now + set->interval;
		bpf_map_update_elem(&filter_sources, &source, &due, BPF_NOEXIST);
		return 0;
	}
	due = *at;
	from = due > now ? due : now;
	if (from - now > set->depth)
		return 1;
	/* Another processor may have charged it meanwhile: then this packet is added to that. */
	if (__sync_val_compare_and_swap(at, due, from + set->interval) != due)
		__sync_fetch_and_add(at, set->interval);
	return 0;
}
