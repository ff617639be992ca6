// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Forwards frames from other nodes of the cluster by their two MAC addresses.
 *
 *     frame -> via this node? remove it -> for another node? -> [links] -> redirect to the link to that node
 *                                     '-> for this node: [neighbors] -> both MACs -> redirect to the external port
 *                                                    '-> resolve, host: MAC of this interface, to Linux
 *
 * The steps are those of crates/vlb/src/transit.rs for a node that is no relay. IP headers are never read: the input
 * node has checked the packet, looked it up and decremented its TTL.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#include "addresses.h"
#include "layout.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct self);
} self SEC(".maps");

/* By node: the interface of the link to it; NO_INTERFACE while that does not exist, 0: not a member. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NODES);
	__type(key, __u32);
	__type(value, __u32);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NEIGHBORS);
	__type(key, __u32);
	__type(value, struct neighbor);
} neighbors SEC(".maps");

/* By number: the interface of an external port of this node; 0: there is none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PORTS);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

/* Set when a frame is sent to a neighbor; cleared by the daemon, which then makes Linux confirm the neighbor. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NEIGHBORS);
	__type(key, __u32);
	__type(value, __u64);
} used SEC(".maps");

/* By the number of the interface; interfaces without an entry are not fabric links. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, FABRIC_LINKS);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* Plain loads and stores: where two CPUs handle frames of one flow at once, their order has no meaning. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << FOLLOWED_BITS);
	__type(key, __u32);
	__type(value, struct followed);
} order SEC(".maps");

/*
 * Frames for Linux go through this on a veth: an skb that another interface has sent there was marked as one for another
 * host, by its MAC, before this program changed that, and Linux drops it. Here it becomes a new one. Empty otherwise.
 */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 4);
} cpus SEC(".maps");

struct frame {
	struct ethernet *eth;
	__u64 to;   /* the addresses as numbers */
	__u64 from;
	const struct self *self;
};

/* The counter of a frame, and the interface to redirect it to, if any. */
struct decision {
	enum counter counter;
	__u32 ifindex;
};

/* The source address of frames that this node sends itself, which is also the MAC of its fabric interfaces. */
static __always_inline __u64 own_mac(const struct self *self)
{
	return MARK << MARK_AT | LOCAL << LOCAL_AT | (__u64)self->node << INPUT_AT | (__u64)NO_NODE << VIA_AT;
}

static __always_inline __u32 link_to(__u32 node)
{
	__u32 *ifindex = bpf_map_lookup_elem(&links, &node);

	return ifindex ? *ifindex : 0;
}

static __always_inline bool has_port(__u32 port)
{
	__u32 *ifindex = bpf_map_lookup_elem(&ports, &port);

	return ifindex && *ifindex;
}

/* Makes Linux accept a frame as addressed to this machine. */
static __always_inline struct decision to_linux(struct frame *frame, enum counter counter)
{
	write_mac(frame->eth->to, own_mac(frame->self));
	return (struct decision){ counter };
}

static __always_inline struct decision to_neighbor(struct frame *frame)
{
	__u32 index = frame->to & 0xffff, check = frame->to >> PORT_AT & PORT_BITS;
	__u64 to, from;
	struct neighbor *neighbor = bpf_map_lookup_elem(&neighbors, &index);
	__u64 *is_used = bpf_map_lookup_elem(&used, &index);

	if (!neighbor || !neighbor->ifindex || neighbor->check != check)
		return (struct decision){ DROP_NEIGHBOR };
	to = *(volatile __u64 *)&neighbor->to;
	from = *(volatile __u64 *)&neighbor->from;
	__builtin_memcpy(frame->eth->to, &to, 6);
	__builtin_memcpy(frame->eth->from, &from, 6);
	if (is_used && !*is_used)
		*is_used = 1;
	return (struct decision){ OUTPUT, neighbor->ifindex };
}

/* Sends a probe back: it shows its sender that this program runs, with or without a daemon. */
static __always_inline struct decision control(struct frame *frame, __u32 ifindex)
{
	__u32 port = frame->to >> PORT_AT & PORT_BITS;
	__u64 input = frame->from >> INPUT_AT & NODE_BITS;

	if (port != PORT_PROBE)
		return (struct decision){ LINUX_CONTROL };
	write_mac(frame->eth->to, MARK << MARK_AT | LOCAL << LOCAL_AT | (__u64)CONTROL << KIND_AT |
				      (__u64)frame->self->epoch << EPOCH_AT | input << OUTPUT_AT |
				      (__u64)PORT_PROBE_REPLY << PORT_AT);
	write_mac(frame->eth->from, own_mac(frame->self));
	return (struct decision){ PROBES, ifindex };
}

/* Handles a frame whose output node is this node. */
static __always_inline struct decision arrived(struct frame *frame, __u32 ifindex)
{
	__u32 kind = frame->to >> KIND_AT & 3, epoch = frame->to >> EPOCH_AT & 0xff;

	/* Of every epoch, so that nodes with different ones notice it. */
	if (kind == CONTROL)
		return control(frame, ifindex);
	if (epoch != frame->self->epoch && epoch != frame->self->epoch_before)
		return (struct decision){ DROP_EPOCH };
	if (kind == RESOLVE && !has_port(frame->to >> PORT_AT & PORT_BITS))
		return (struct decision){ DROP_NEIGHBOR };
	if (kind == RESOLVE)
		return to_linux(frame, LINUX_RESOLVE);
	if (kind == HOST)
		return to_linux(frame, LINUX_HOST);
	return to_neighbor(frame);
}

static __always_inline struct decision steer(struct frame *frame, __u32 ifindex)
{
	__u32 output = frame->to >> OUTPUT_AT & NODE_BITS, via = frame->from >> VIA_AT & NODE_BITS, out;
	bool was_intermediate = via == frame->self->node;

	if (!link_to(frame->from >> INPUT_AT & NODE_BITS))
		return (struct decision){ DROP_MEMBER };
	if (was_intermediate) {
		frame->from |= (__u64)NO_NODE << VIA_AT;
		via = NO_NODE;
	}
	if (via != NO_NODE)
		return (struct decision){ DROP_STRAY };
	if (output == frame->self->node)
		return arrived(frame, ifindex);
	if (!was_intermediate)
		return (struct decision){ DROP_STRAY };
	out = link_to(output);
	if (!out || out == NO_INTERFACE)
		return (struct decision){ DROP_LINK };
	write_mac(frame->eth->from, frame->from);
	return (struct decision){ TRANSIT, out };
}

static __always_inline struct decision decide(struct frame *frame, __u32 ifindex)
{
	frame->to = read_mac(frame->eth->to);
	frame->from = read_mac(frame->eth->from);
	if (!is_marked(frame->to) || !is_marked(frame->from))
		return (struct decision){ LINUX_OTHER };
	if (is_malformed(frame->to, frame->from))
		return (struct decision){ DROP_MALFORMED };
	return steer(frame, ifindex);
}

/* Counts a frame that leaves, if it is numbered, and whether it is late. The steps are those of OrderCounter. */
static __always_inline void count_order(struct counts *count, __u64 from)
{
	__u32 key = ((from >> INPUT_AT & NODE_BITS) << 8 | (from >> FLOW_AT & 0xff)) + 1;
	__u32 place = (key * 0x9e3779b1U) >> (32 - FOLLOWED_BITS), sequence = from & SEQUENCE_BITS;
	struct followed *followed = bpf_map_lookup_elem(&order, &place);

	if ((from >> KIND_AT & 3) != SAMPLED || !followed)
		return;
	count->of[NUMBERED]++;
	if (followed->key == key && ((sequence - followed->next) & SEQUENCE_BITS) > SEQUENCE_BITS / 2 &&
	    followed->late < LATE_IN_A_ROW) {
		followed->late++;
		count->of[REORDERED]++;
		return;
	}
	*followed = (struct followed){ key, (sequence + 1) & SEQUENCE_BITS };
}

/* The name ends in the version of layout.h, by which the next daemon knows it (../src/pins.rs). */
SEC("xdp.frags")
int bm_fabric_3(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex, first = 0, mtu = 0;
	struct frame frame = { .eth = (void *)(long)ctx->data };
	struct counts *count = bpf_map_lookup_elem(&counts, &ifindex);
	struct decision decision;

	frame.self = bpf_map_lookup_elem(&self, &first);
	if (!count || !frame.self || (void *)(frame.eth + 1) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	count->of[RECEIVED_BYTES] += bpf_xdp_get_buff_len(ctx);
	decision = decide(&frame, ifindex);
	/* What the link cannot take is lost after this program: it is no transit. */
	if (decision.counter == TRANSIT && bpf_check_mtu(ctx, decision.ifindex, &mtu, 0, 0))
		decision = (struct decision){ DROP_LINK };
	if (decision.counter >= COUNTERS)
		return XDP_PASS;
	count->of[decision.counter]++;
	if (decision.counter == OUTPUT)
		count_order(count, frame.from);
	if (decision.counter == PROBES)
		return XDP_TX;
	if (decision.ifindex)
		return bpf_redirect(decision.ifindex, 0);
	if (decision.counter == LINUX_RESOLVE || decision.counter == LINUX_HOST)
		return bpf_redirect_map(&cpus, bpf_get_smp_processor_id(), XDP_PASS);
	return decision.counter >= DROP_MALFORMED ? XDP_DROP : XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
