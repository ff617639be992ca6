// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * A learning bridge (IEEE 802.1Q) among the ports of one switch.
 *
 *     frame -> find its VLAN -> learn the source -> [fdb] -> known destination: redirect to its port
 *                                                     '----> unknown or group address: flood the VLAN
 *
 * Every frame is counted under one name of `enum verdict`. Frames to group addresses that a bridge never forwards are
 * passed to Linux if they are of a protocol that uses these (BPDUs, LLDP, LACP). Frames leave through a device map in which each port has a program of its
 * own, `leave`, which removes the tag where the port is untagged, and counts. All frames of a port must take that way,
 * since the kernel runs the program of the first frame of a bulk on the whole bulk.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#include "layout.h"
#include "sum.h"

#define TRIES 4

const volatile struct rules rules;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* By interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

/* By slot. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* By slot: the earliest time for the next flooded frame, and for the next MAC address that moves here. */
struct due {
	__u64 flood;
	__u64 move;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct due);
} due SEC(".maps");

/* Ports by slot. */
struct members {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
};

struct members everyone SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, VIDS * FLOOD_SETS);
	__type(key, __u32);
	__array(values, struct members);
} vlans SEC(".maps");

struct tag {
	__be16 control; /* priority, and the VLAN in 12 bits */
	__be16 protocol; /* of what follows */
} __attribute__((packed));

struct tagged {
	__u8 macs[2 * ETH_ALEN];
	__be16 protocol;
	struct tag tag;
} __attribute__((packed));

/* What is known about a frame. */
struct frame {
	const struct port *in;
	__u32 slot;
	__u32 length;
	__u32 vlan;
	__u32 to; /* slot of the port that it goes to */
	__u32 members; /* index of the ports that it is flooded to */
	bool has_tag;
	bool long_; /* in more than one buffer */
};

static __always_inline void add(__u32 slot, __u32 counter, __u64 value)
{
	struct counts *of = bpf_map_lookup_elem(&counts, &slot);

	if (of)
		of->of[counter] += value;
}

#include "learned.h"
#include "partial.h"

static __always_inline bool carries(const struct port *port, __u32 vlan)
{
	__u32 word = vlan >> 6;

	/* Tells the verifier of Linux 6.1 what the compiler knows: a VLAN id has 12 bits. */
	asm volatile("" : "+r"(word));
	return !rules.vlans || port->untagged == vlan || port->tagged[word & 63] >> (vlan & 63) & 1;
}

/* A MAC address in the low 48 bits, first byte lowest. */
static __always_inline __u64 mac_at(const void *at)
{
	const __u16 *words = at;

	return words[0] | (__u64)words[1] << 16 | (__u64)words[2] << 32;
}

static __always_inline __u64 key(__u64 mac, __u32 vlan)
{
	return mac | (__u64)vlan << 48;
}

static __always_inline bool is_tag(__be16 protocol)
{
	return protocol == bpf_htons(ETH_P_8021Q) || protocol == bpf_htons(ETH_P_8021AD);
}

static __always_inline bool is_group(__u64 mac)
{
	return mac & 1;
}

#include "reserved.h"

/* Finds the VLAN of a frame; false if its port is not a member of it. */
static __always_inline bool classify(struct frame *frame, void *data, void *end)
{
	struct tagged *eth = data;

	frame->vlan = ALL_VLANS;
	if (!rules.vlans)
		return true;
	if (eth->protocol == bpf_htons(ETH_P_8021Q)) {
		if ((void *)(eth + 1) > end)
			return false;
		frame->has_tag = true;
		frame->vlan = bpf_ntohs(eth->tag.control) & 0xfff;
		/* Behind a tag that is removed another one would be the VLAN for the next switch (802.1Q 6.9). */
		if (frame->in->flags & PORT_UNTAGGED && is_tag(eth->tag.protocol))
			return false;
	}
	if (!frame->vlan)
		frame->vlan = frame->in->untagged;
	return frame->vlan && frame->vlan < VIDS - 1 && carries(frame->in, frame->vlan);
}

/* Whether an event is within its rate limit, by virtual scheduling (GCRA, ITU-T I.371). */
static __always_inline bool in_time(__u64 *of, __u64 interval, __u64 burst)
{
	__u64 now, due, base;

	if (!interval)
		return true;
	now = bpf_ktime_get_ns();
	for (int i = 0; i < TRIES; i++) {
		due = *(volatile __u64 *)of;
		base = (__s64)(due - now) > 0 ? due : now;
		if (base - now > burst)
			return false;
		if (__sync_val_compare_and_swap(of, due, base + interval) == due)
			return true;
	}
	return false;
}

/* Learns a source address that is new on its port; false if its frame must not pass. Rarely called. */
static __noinline int learn_anew(const struct frame *frame, __u64 name, __u64 now)
{
	struct fdb_entry *known = bpf_map_lookup_elem(&fdb, &name);
	const struct port *in = frame->in;
	__u32 slot = frame->slot, index = 0;
	struct due *of = bpf_map_lookup_elem(&due, &slot);

	if (in->flags & (PORT_LOCKED | PORT_NO_LEARNING))
		return !(in->flags & PORT_LOCKED);
	if (!known) {
		learn_at(slot, in->learned_max, name, now);
		return true;
	}
	if (known->flags & FDB_STATIC || !of ||
	    !in_time(&of->move, in->move_interval_ns, in->move_burst_ns) ||
	    !take_index(slot, in->learned_max, name, &index)) {
		add(slot, MOVE_REFUSED, 1);
		return true;
	}
	give_back_share(known->index);
	known->index = index;
	known->slot = slot;
	known->seen_ns = now;
	add(slot, MOVED, 1);
	return true;
}

/* Learns the source address; false if the frame must not pass. */
static __always_inline bool learn(const struct frame *frame, __u64 mac)
{
	__u64 name = key(mac, frame->vlan), now = bpf_ktime_get_coarse_ns();
	struct fdb_entry *known = bpf_map_lookup_elem(&fdb, &name);

	if (!known || known->slot != frame->slot)
		return learn_anew(frame, name, now);
	if (now - known->seen_ns > rules.refresh_ns)
		known->seen_ns = now; /* not for every frame: other cores read this cache line */
	return true;
}

/* Looks up a MAC address; false if it is unknown, or was seen too long ago. */
static __always_inline bool find(struct frame *frame, __u64 mac)
{
	__u64 name = key(mac, frame->vlan);
	const struct fdb_entry *known = bpf_map_lookup_elem(&fdb, &name);

	if (!known)
		return false;
	if (rules.ageing_ns && !(known->flags & FDB_STATIC) &&
	    (__s64)(bpf_ktime_get_coarse_ns() - known->seen_ns) > (__s64)rules.ageing_ns)
		return false;
	frame->to = known->slot;
	return true;
}

/* Whether a port may flood another frame now. */
static __always_inline bool may_flood(const struct frame *frame)
{
	__u32 slot = frame->slot;
	struct due *of = bpf_map_lookup_elem(&due, &slot);

	return !of || in_time(&of->flood, frame->in->flood_interval_ns, frame->in->flood_burst_ns);
}

/* Adds the tag of the frame's VLAN. */
static __always_inline bool tag(struct xdp_md *ctx, struct frame *frame)
{
	struct tagged *eth;
	struct ethhdr old;
	__be16 control = bpf_htons(frame->vlan);

	if (frame->has_tag) {
		eth = (void *)(long)ctx->data;
		if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
			return false;
		/* A tag with VLAN 0 carries only a priority, which is kept. */
		eth->tag.control = (eth->tag.control & bpf_htons(0xf000)) | control;
		return true;
	}
	if ((void *)(long)ctx->data + sizeof(old) > (void *)(long)ctx->data_end)
		return false;
	old = *(struct ethhdr *)(long)ctx->data;
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(struct tag)))
		return false;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(eth->macs, &old, sizeof(eth->macs));
	eth->protocol = bpf_htons(ETH_P_8021Q);
	eth->tag.control = control;
	eth->tag.protocol = old.h_proto;
	return true;
}

static __always_inline enum verdict forward(struct xdp_md *ctx, struct frame *frame, const struct port *out)
{
	__u32 header = sizeof(struct ethhdr) + (frame->has_tag ? sizeof(struct tag) : 0);

	if (frame->to == frame->slot)
		return DROP_SAME_PORT;
	if (!carries(out, frame->vlan))
		return DROP_VLAN;
	if (rules.isolation && frame->in->flags & out->flags & PORT_ISOLATED)
		return DROP_ISOLATED;
	if (!(out->flags & PORT_UP))
		return DROP_PORT_DOWN;
	if (!(out->flags & PORT_TAKES_FRAMES))
		return DROP_FAR_END;
	if (frame->long_ && !(out->flags & PORT_TAKES_LONG))
		return DROP_LONG;
	if (frame->length > out->mtu + header)
		return DROP_MTU;
	if (frame->in->flags & PORT_PARTIAL_SUMS)
		complete_sum(ctx, frame->slot);
	/* The common case is from untagged to untagged, which needs no tag in between. */
	if (rules.vlans && (frame->has_tag || out->untagged != frame->vlan) && !tag(ctx, frame))
		return DROP_HEADROOM;
	return FORWARDED;
}

/* The ports to which a frame is flooded; false if there are none. */
static __always_inline bool has_members(struct frame *frame, __u64 destination)
{
	__u32 set = 0;

	frame->members = frame->vlan;
	if (!rules.isolation && !rules.flood_kinds)
		return true;
	if (rules.flood_kinds && is_group(destination))
		set = 2 * (destination == 0xffffffffffffull ? FLOOD_BROADCAST : FLOOD_MULTICAST);
	if (rules.isolation && frame->in->flags & PORT_ISOLATED)
		set++;
	frame->members += VIDS * set;
	return bpf_map_lookup_elem(&vlans, &frame->members);
}

static __always_inline enum verdict flood(struct xdp_md *ctx, struct frame *frame, __u64 destination)
{
	if (!has_members(frame, destination))
		return DROP_NO_FLOOD;
	/* The kernel's copies of a frame contain only the first buffer. */
	if (frame->long_)
		return DROP_LONG;
	if (!may_flood(frame))
		return DROP_FLOOD_LIMIT;
	if (frame->in->flags & PORT_PARTIAL_SUMS)
		complete_sum(ctx, frame->slot);
	if (rules.vlans && !tag(ctx, frame))
		return DROP_HEADROOM;
	return FLOODED;
}

#include "guard.h"

static __always_inline enum verdict bridge(struct xdp_md *ctx, struct frame *frame)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u64 destination, source;
	const struct port *out;

	if (data + sizeof(struct ethhdr) > end)
		return DROP_SHORT;
	destination = mac_at(data);
	source = mac_at(data + ETH_ALEN);
	if (is_group(source) || !source)
		return DROP_SOURCE;
	if (is_link_local(destination))
		return of_link(ctx, frame, ((struct ethhdr *)data)->h_proto, source);
	if (!classify(frame, data, end))
		return DROP_VLAN;
	if (rules.guards && frame->in->flags & PORT_GUARDED) {
		int verdict = guard(ctx, frame->slot, frame->in->flags, source);

		if (verdict)
			return verdict;
	}
	if (!learn(frame, source))
		return DROP_LOCKED;
	if (is_group(destination) || !find(frame, destination))
		return flood(ctx, frame, destination);
	out = bpf_map_lookup_elem(&ports, &frame->to);
	/* The destination's port was removed from the switch. */
	if (!out || !out->ifindex)
		return flood(ctx, frame, destination);
	return forward(ctx, frame, out);
}

static __always_inline int sent_to_many(__u32 set)
{
	void *members = bpf_map_lookup_elem(&vlans, &set);

	return members ? bpf_redirect_map(members, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS) : XDP_DROP;
}

/* The name ends in the version of layout.h, by which a later daemon recognizes it (../src/pins.rs). */
SEC("xdp.frags")
int bm_switch_3(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex, *slot = bpf_map_lookup_elem(&slots, &ifindex);
	struct frame frame = {};
	enum verdict verdict;
	struct counts *of;

	if (!slot)
		return XDP_PASS; /* no longer a port */
	frame.slot = *slot;
	frame.in = bpf_map_lookup_elem(&ports, &frame.slot);
	of = bpf_map_lookup_elem(&counts, &frame.slot);
	if (!frame.in || frame.in->ifindex != ifindex || !of)
		return XDP_PASS;
	frame.length = bpf_xdp_get_buff_len(ctx);
	frame.long_ = frame.length > ctx->data_end - ctx->data;
	verdict = bridge(ctx, &frame);
	of->of[verdict]++;
	of->of[RECEIVED_BYTES] += frame.length;
	if (verdict == FORWARDED) {
		int action = bpf_redirect_map(&everyone, frame.to, XDP_DROP);

		/* Keeps this call separate from the flooding one: a call with a single map compiles to a direct call. */
		asm volatile("" : "+r"(action));
		return action;
	}
	if (verdict == FLOODED)
		return sent_to_many(frame.members);
	return verdict == LINUX_LINK_LOCAL ? XDP_PASS : XDP_DROP;
}

/* Removes the tag. */
static __always_inline bool untag(struct xdp_md *ctx)
{
	struct tagged *eth = (void *)(long)ctx->data;
	struct ethhdr plain;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(&plain, eth->macs, sizeof(eth->macs));
	plain.h_proto = eth->tag.protocol;
	if (bpf_xdp_adjust_head(ctx, sizeof(struct tag)) ||
	    (void *)(long)ctx->data + sizeof(plain) > (void *)(long)ctx->data_end)
		return false;
	*(struct ethhdr *)(long)ctx->data = plain;
	return true;
}

/* Runs on each frame that leaves through a port, on the port's own copy. */
SEC("xdp.frags/devmap")
int leave(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->egress_ifindex, *slot = bpf_map_lookup_elem(&slots, &ifindex);
	struct tagged *eth = (void *)(long)ctx->data;
	const struct port *port;
	struct counts *of;

	if (!slot)
		return XDP_DROP;
	port = bpf_map_lookup_elem(&ports, slot);
	of = bpf_map_lookup_elem(&counts, slot);
	if (!port || !of)
		return XDP_DROP;
	if (rules.vlans && (void *)(eth + 1) <= (void *)(long)ctx->data_end &&
	    eth->protocol == bpf_htons(ETH_P_8021Q) &&
	    (bpf_ntohs(eth->tag.control) & 0xfff) == port->untagged && !untag(ctx))
		return XDP_DROP;
	of->of[SENT]++;
	of->of[SENT_BYTES] += bpf_xdp_get_buff_len(ctx);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
