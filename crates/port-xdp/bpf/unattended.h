/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Whether the worker of a queue fetches its frames.
 */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#define UNATTENDED_NS (40 * 1000 * 1000) /* on a busy machine a live worker may have to wait for 20 ms */

/*
 * Since when frames have been waiting for the worker of a queue; 0 while it fetches them. A killed process keeps its
 * sockets until its memory is freed, and a worker may hang forever: meanwhile Linux takes over. One cache line per
 * queue, as in heartbeat.rs.
 */
struct heartbeat {
	__u64 since;
	__u64 unused[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set to the number of queues at load */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct heartbeat);
} heartbeats SEC(".maps");

/* Whether frames of the queue have waited so long that its worker does not seem to run. */
static __always_inline bool is_unattended(__u32 queue)
{
	struct heartbeat *heartbeat = bpf_map_lookup_elem(&heartbeats, &queue);
	__u64 now, since;

	if (!heartbeat)
		return false;
	now = bpf_ktime_get_coarse_ns();
	since = *(volatile __u64 *)&heartbeat->since;
	if (!since)
		*(volatile __u64 *)&heartbeat->since = now;
	return since && (__s64)(now - since) > UNATTENDED_NS;
}
