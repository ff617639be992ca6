// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * A learning bridge (IEEE 802.1Q) among the ports of one switch.
 *
 *     frame -> which VLAN -> learn the source -> [stations] -> one port: redirect
 *                                                    '------> not known, or a group: flood its VLAN
 *
 * Every frame ends under one name of `enum verdict`. Group addresses that no bridge passes on (BPDUs, LLDP,
 * LACP) are Linux's. Frames leave through a map of ports in which each has a program of its own, `leave`: it
 * takes the tag off where the port wants none, and counts. A port's frames must all take that way, since the
 * kernel runs the program of the first frame of a bulk over all of it.
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

/* By number of the interface. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

/* By MAC, and VLAN above it. The daemon sets how many there can be. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct station);
} stations SEC(".maps");

/* By slot. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* By slot: when the next flooded frame would be in time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} flood_due SEC(".maps");

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
	__uint(max_entries, VIDS);
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

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 addresses[2];
} __attribute__((packed));

struct ipv6 {
	__be32 version_class_label;
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__be32 addresses[8];
} __attribute__((packed));

/* What is known of a frame. */
struct frame {
	const struct port *in;
	__u32 slot;
	__u32 length;
	__u32 vlan;
	__u32 to; /* slot of the port that it goes to */
	bool has_tag;
	bool long_; /* in more than one buffer */
};

static __always_inline void add(__u32 slot, __u32 counter, __u64 value)
{
	struct counts *of = bpf_map_lookup_elem(&counts, &slot);

	if (of)
		of->of[counter] += value;
}

static __always_inline bool carries(const struct port *port, __u32 vlan)
{
	__u32 word = vlan >> 6;

	/* Says to the verifier of Linux 6.1 what the compiler knows: a VLAN has 12 bits. */
	asm volatile("" : "+r"(word));
	return !rules.vlans || port->untagged == vlan || port->tagged[word & 63] >> (vlan & 63) & 1;
}

/* A MAC as the low 48 bits, first byte lowest. */
static __always_inline __u64 mac_at(const void *at)
{
	const __u16 *words = at;

	return words[0] | (__u64)words[1] << 16 | (__u64)words[2] << 32;
}

static __always_inline __u64 key(__u64 mac, __u32 vlan)
{
	return mac | (__u64)vlan << 48;
}

static __always_inline bool is_group(__u64 mac)
{
	return mac & 1;
}

/* 01:80:c2:00:00:00 to :0f, which end at every bridge (802.1Q 8.6.3). */
static __always_inline bool is_link_local(__u64 mac)
{
	return (mac & 0xf0ffffffffffull) == 0x0000000000c28001ull;
}

/* The VLAN of a frame; false where its port is not in it. */
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
	}
	if (!frame->vlan)
		frame->vlan = frame->in->untagged;
	return frame->vlan && frame->vlan < VIDS - 1 && carries(frame->in, frame->vlan);
}

static __always_inline void learn(const struct frame *frame, __u64 mac)
{
	__u64 name = key(mac, frame->vlan), now = bpf_ktime_get_coarse_ns();
	struct station *known = bpf_map_lookup_elem(&stations, &name);
	struct station station = { .slot = frame->slot, .seen_ns = now };

	if (!known) {
		add(frame->slot, bpf_map_update_elem(&stations, &name, &station, BPF_ANY) ? TABLE_FULL : LEARNED, 1);
		return;
	}
	if (known->flags & STATION_STATIC)
		return;
	if (known->slot != frame->slot) {
		known->slot = frame->slot;
		known->seen_ns = now;
		add(frame->slot, MOVED, 1);
	} else if (now - known->seen_ns > rules.refresh_ns) {
		known->seen_ns = now; /* not for every frame: other cores read this line */
	}
}

/* Where a station is; false where nobody knows, or knew too long ago. */
static __always_inline bool find(struct frame *frame, __u64 mac)
{
	__u64 name = key(mac, frame->vlan);
	const struct station *known = bpf_map_lookup_elem(&stations, &name);

	if (!known)
		return false;
	if (rules.ageing_ns && !(known->flags & STATION_STATIC) &&
	    (__s64)(bpf_ktime_get_coarse_ns() - known->seen_ns) > (__s64)rules.ageing_ns)
		return false;
	frame->to = known->slot;
	return true;
}

/* Whether a port may flood one more frame now: a virtual schedule (GCRA, ITU-T I.371). */
static __always_inline bool may_flood(const struct frame *frame)
{
	__u64 interval = frame->in->flood_interval_ns, now, due, base;
	__u32 slot = frame->slot;
	__u64 *of = bpf_map_lookup_elem(&flood_due, &slot);

	if (!interval || !of)
		return true;
	now = bpf_ktime_get_ns();
	for (int i = 0; i < TRIES; i++) {
		due = *(volatile __u64 *)of;
		base = (__s64)(due - now) > 0 ? due : now;
		if (base - now > frame->in->flood_burst_ns)
			return false;
		if (__sync_val_compare_and_swap(of, due, base + interval) == due)
			return true;
	}
	return false;
}

/* What a segment of these addresses, protocol and length has in its checksum's field while it is not complete. */
static __always_inline __u16 pseudo_sum(const __be32 *addresses, int count, __u8 protocol, __u32 length)
{
	__u64 sum = (__u64)bpf_htons(protocol) + bpf_htons(length);

	for (int i = 0; i < count; i++)
		sum += addresses[i];
	return folded(sum);
}

static __always_inline bool is_partial(void *data, void *end, struct segment *segment, __u8 protocol, __u16 sum)
{
	__u32 at = segment->start + (protocol == IPPROTO_TCP ? 16 : 6);
	__u16 *field;

	/* Says to the verifier what the compiler knows: two headers and a bit. */
	asm volatile("" : "+r"(at));
	at &= 0x7f;
	field = data + at;
	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || (void *)(field + 1) > end || *field != sum)
		return false;
	segment->field = at;
	segment->udp = protocol == IPPROTO_UDP;
	return true;
}

/* Whether a sender has left a frame's checksum to us. */
static __always_inline bool wants_sum(void *data, void *end, struct segment *segment)
{
	struct tagged *eth = data;
	__be16 protocol = eth->protocol;
	__u32 network = ETH_HLEN;

	if (protocol == bpf_htons(ETH_P_8021Q)) {
		if ((void *)(eth + 1) > end)
			return false;
		protocol = eth->tag.protocol;
		network += sizeof(struct tag);
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = data + network;
		__u32 header;

		if ((void *)(ip + 1) > end || ip->fragment & bpf_htons(0x3fff))
			return false;
		header = (ip->version_ihl & 0xf) * 4;
		if (header < sizeof(*ip) || bpf_ntohs(ip->total_length) <= header)
			return false;
		segment->start = network + header;
		segment->length = bpf_ntohs(ip->total_length) - header;
		return is_partial(data, end, segment, ip->protocol,
				  pseudo_sum(ip->addresses, 2, ip->protocol, segment->length));
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = data + network;

		if ((void *)(ip + 1) > end)
			return false;
		segment->start = network + sizeof(*ip);
		segment->length = bpf_ntohs(ip->payload_length);
		return is_partial(data, end, segment, ip->next_header,
				  pseudo_sum(ip->addresses, 8, ip->next_header, segment->length));
	}
	return false;
}

/* A function of its own, so that the verifier walks through it once. */
static __noinline int complete_sum(struct xdp_md *ctx, __u32 slot)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct segment segment = {};
	__u16 sum;

	if (data + sizeof(struct ethhdr) > end || !wants_sum(data, end, &segment))
		return 0;
	if (completed(ctx, &segment, &sum) && !bpf_xdp_store_bytes(ctx, segment.field, &sum, sizeof(sum)))
		add(slot, SUMS_COMPLETED, 1);
	return 0;
}

/* Gives a frame its VLAN's tag. */
static __always_inline bool tag(struct xdp_md *ctx, struct frame *frame)
{
	struct tagged *eth;
	struct ethhdr old;
	__be16 control = bpf_htons(frame->vlan);

	if (frame->has_tag) {
		eth = (void *)(long)ctx->data;
		if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
			return false;
		/* VLAN 0 is only a priority; that stays. */
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
	/* Without a tag to without a tag is the common way, and needs none in between. */
	if (rules.vlans && (frame->has_tag || out->untagged != frame->vlan) && !tag(ctx, frame))
		return DROP_HEADROOM;
	return FORWARDED;
}

static __always_inline enum verdict flood(struct xdp_md *ctx, struct frame *frame)
{
	/* The kernel's copies hold the first buffer alone. */
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
		return LINUX_LINK_LOCAL;
	if (!classify(frame, data, end))
		return DROP_VLAN;
	learn(frame, source);
	if (is_group(destination) || !find(frame, destination))
		return flood(ctx, frame);
	out = bpf_map_lookup_elem(&ports, &frame->to);
	/* Its port has left. */
	if (!out || !out->ifindex)
		return flood(ctx, frame);
	return forward(ctx, frame, out);
}

static __always_inline int sent_to_vlan(__u32 vlan)
{
	void *members = bpf_map_lookup_elem(&vlans, &vlan);

	return members ? bpf_redirect_map(members, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS) : XDP_DROP;
}

/* The name ends in the version of layout.h, by which the next daemon knows it (../src/pins.rs). */
SEC("xdp.frags")
int bm_switch_1(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex, *slot = bpf_map_lookup_elem(&slots, &ifindex);
	struct frame frame = {};
	enum verdict verdict;
	struct counts *of;

	if (!slot)
		return XDP_PASS; /* not a port now */
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
	if (verdict == FORWARDED)
		return bpf_redirect_map(&everyone, frame.to, XDP_DROP);
	if (verdict == FLOODED)
		return sent_to_vlan(frame.vlan);
	return verdict == LINUX_LINK_LOCAL ? XDP_PASS : XDP_DROP;
}

/* Takes the tag off. */
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

/* A frame on its way out of a port, its own copy of it. */
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
