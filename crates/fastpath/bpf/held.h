/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Counts what is dropped on an interface while its filters are not in place yet (hold.h). */
#pragma once

#include <bpf/bpf_helpers.h>
#include "layout.h"

/* Dropped frames of interfaces whose filters are not in place yet, by the interface's index in Linux. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INTERFACES);
	__type(key, __u32);
	__type(value, struct held);
} held SEC(".maps");

static __always_inline void count_held(__u32 ifindex, __u64 bytes)
{
	struct held none = {}, *of;

	bpf_map_update_elem(&held, &ifindex, &none, BPF_NOEXIST);
	of = bpf_map_lookup_elem(&held, &ifindex);
	if (of) {
		__sync_fetch_and_add(&of->frames, 1);
		__sync_fetch_and_add(&of->bytes, bytes);
	}
}
