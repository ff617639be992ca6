// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Relays frames between nodes of a cluster that have no link to each other, by their two MAC addresses.
 *
 *     frame -> intermediate named? that node, else the output node -> [towards] -> redirect to the link to it
 *                                          '-> this server's node -> [arrivals] by input node -> redirect to its end
 *
 * No frame is changed: a relay has no part in a frame's path, and no state. The steps are those of
 * crates/vlb/src/transit.rs for a relay.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

#include "addresses.h"
#include "layout.h"

/* The node of the cluster on this server; NO_NODE: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} own SEC(".maps");

/* By node: the interface by which frames for it leave; 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NODES);
	__type(key, __u32);
	__type(value, __u32);
} towards SEC(".maps");

/* For frames to this server's node, by input node: the interface at whose other end is its fabric link; 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NODES);
	__type(key, __u32);
	__type(value, __u32);
} arrivals SEC(".maps");

/* By the number of the interface that a frame comes from. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, FABRIC_LINKS);
	__type(key, __u32);
	__type(value, struct relay_counts);
} relay_counts SEC(".maps");

static __always_inline __u32 find(void *map, __u32 node)
{
	__u32 *ifindex = bpf_map_lookup_elem(map, &node);

	return ifindex ? *ifindex : 0;
}

static __always_inline __u32 next_link(__u64 to, __u64 from)
{
	__u32 via = from >> VIA_AT & NODE_BITS, target = via, first = 0;
	__u32 *node = bpf_map_lookup_elem(&own, &first);

	if (via == NO_NODE)
		target = to >> OUTPUT_AT & NODE_BITS;
	if (node && *node == target)
		return find(&arrivals, from >> INPUT_AT & NODE_BITS);
	return find(&towards, target);
}

/* The name ends in the version of layout.h. */
SEC("xdp.frags")
int bm_relay_1(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex, out;
	struct ethernet *eth = (void *)(long)ctx->data;
	struct relay_counts *count = bpf_map_lookup_elem(&relay_counts, &ifindex);
	__u64 to, from;

	if (!count || (void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	to = read_mac(eth->to);
	from = read_mac(eth->from);
	if (!is_marked(to) || !is_marked(from)) {
		count->of[RELAY_OTHER]++;
		return XDP_PASS;
	}
	if (is_malformed(to, from)) {
		count->of[RELAY_MALFORMED]++;
		return XDP_DROP;
	}
	out = next_link(to, from);
	/* Back where it came from, it would come again: tables of two relays contradict each other. */
	if (!out || out == ifindex) {
		count->of[RELAY_NO_LINK]++;
		return XDP_DROP;
	}
	count->of[(to >> KIND_AT & 3) == CONTROL ? RELAY_CONTROL : RELAY_PACKETS]++;
	count->of[RELAY_BYTES] += bpf_xdp_get_buff_len(ctx);
	return bpf_redirect(out, 0);
}

char LICENSE[] SEC("license") = "GPL";
