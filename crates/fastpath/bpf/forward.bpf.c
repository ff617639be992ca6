// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * The kernel path: IPv4 and IPv6 packets of the common sort go from interface to interface here.
 *
 *     frame -> whose -> sound -> [fib4|fib6] -> [hops] -> [egress] -> one hop less, MACs -> redirect
 *                '--------'-----------'-----------'----------'--> Linux, untouched, with the reason counted
 *
 * Nothing is dropped here but by filters, where there are any (filter.h). What is not plain forwarding
 * (local, options, fragments, used-up TTL, unknown neighbors, no route, too big) goes to Linux, which
 * answers, resolves and drops as it always does. In doubt: XDP_PASS.
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
#include "fib4.h"
#include "fib6.h"
#include "extension.h"
#include "flow.h"
#include "hold.h"
#include "packet.h"
#include "sum.h"
#include "vlan.h"

/*
 * Maps of one value each, as variables: an address in the program's text, where a lookup would be a call that
 * empties registers. Who loads the program puts maps of its own in the place of these.
 */
struct hops hops SEC(".bss.hops");
struct fib4 fib4 SEC(".bss.fib4");
struct fib6 fib6 SEC(".bss.fib6");
struct views views SEC(".bss.views");

/* By our index of the ingress interface. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, INTERFACES);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* One frame, with its bytes as it came in, and as it leaves where it is forwarded. */
static __always_inline void count(__u32 interface, enum verdict verdict, __u32 received, __u32 sent)
{
	struct counts *of = bpf_map_lookup_elem(&counts, &interface);

	/* What a call answered has bounds for the verifier only if they are looked at. */
	if (!of || verdict >= VERDICTS)
		return;
	of->of[verdict]++;
	of->of[RECEIVED_BYTES] += received;
	if (verdict == FORWARDED)
		of->of[FORWARDED_BYTES] += sent;
}

/* How a packet leaves, once the verdict is FORWARDED; not set before, since each check would pay for zeros. */
struct way {
	__u64 entry;
	const struct egress *egress;
};

/* Whether a source may be an address of this machine. */
static __always_inline bool may_be_local(const struct view *view, __u32 address)
{
	__u32 hash = address * LOCAL_HASH >> 20;

	return view->local[hash >> 6 & (LOCAL_BITS / 64 - 1)] >> (hash & 63) & 1;
}

/* Sources that need a second lookup: those that may be this machine's, and all if the reverse path is checked. */
static __noinline int source_is_fine(__u32 source, __u32 asks)
{
	__u32 hop, out, reverse_path = asks >> 16, interface = asks & 0xffff;

	hop = fib4_lookup(&fib4, source);
	out = HOP_INTERFACE(hops.entries[hop & (HOPS - 1)]);
	if (out == HOP_HOST)
		return 0;
	if (reverse_path == REVERSE_PATH_STRICT)
		return out == interface;
	return reverse_path != REVERSE_PATH_LOOSE || out < HOP_SPECIAL || out == HOP_GROUP;
}

/* The action of a next hop that is not a group, and whether the packet fits through its interface. */
static __always_inline enum verdict leave(__u32 hop, struct packet *packet, struct way *way)
{
	__u32 out, mtu;

	hop &= HOPS - 1;
	way->entry = hops.entries[hop];
	out = HOP_INTERFACE(way->entry);
	if (out >= INTERFACES)
		return out == HOP_HOST	      ? PASSED_LOCAL :
		       out == HOP_LINUX_ONLY ? PASSED_FIREWALL :
					       PASSED_UNRESOLVED;
	if (out == packet->ingress->interface)
		return PASSED_SAME_INTERFACE;
	way->egress = &packet->view->egress[out & (INTERFACES - 1)];
	mtu = way->egress->mac_mtu >> 48;
	if (packet->length > mtu)
		return mtu ? PASSED_MTU : PASSED_EGRESS;
	if (hops.mtus[hop] && packet->length > hops.mtus[hop])
		return PASSED_MTU;
	if (!hops.used[hop])
		hops.used[hop] = 1;
	return FORWARDED;
}

static __always_inline bool is_group(__u32 hop)
{
	return HOP_INTERFACE(hops.entries[hop & (HOPS - 1)]) == HOP_GROUP;
}

static __always_inline __u32 member(__u32 hop, __u32 hash)
{
	__u64 group = hops.entries[hop & (HOPS - 1)];
	__u32 count = 1u << (group >> 32 & 31);

	return hops.buckets[((__u32)group + (hash & (count - 1))) & (BUCKETS - 1)];
}

/* The plain sum of a header's ten words, which is all ones if the header is whole (RFC 1071). */
static __always_inline bool is_whole(const struct ipv4 *ip)
{
	const __u32 *words = (const void *)ip;
	__u64 sum = (__u64)words[0] + words[1] + words[2] + words[3] + words[4];

	return is_ones(sum);
}

/* Neither 0/8, 127/8, multicast nor broadcast; the rest of 255/8 is not worth a closer look. */
static __always_inline bool is_single_host(__u32 address)
{
	__u32 first = address >> 24;

	return (__u8)(first + 1) > 1 && first != 127 && first >> 4 != 0xe;
}

static __always_inline enum verdict route4(struct packet *packet, struct ipv4 *ip, struct way *way)
{
	const struct ingress *ingress = packet->ingress;
	__u32 source, destination, hop, hash;

	if (!(ingress->flags & FORWARD_IPV4))
		return ingress->flags & LINUX_ONLY_IPV4 ? PASSED_FIREWALL : PASSED_INACTIVE;
	packet->length = bpf_ntohs(ip->total_length);
	source = bpf_ntohl(ip->source);
	destination = bpf_ntohl(ip->destination);
	if (ip->version_ihl != 0x45 || packet->length < sizeof(*ip) ||
	    packet->length > packet->end - (void *)ip || ip->fragment & bpf_htons(0x3fff) || !is_whole(ip) ||
	    !is_single_host(source) || !is_single_host(destination))
		return PASSED_HEADER;
	if (ip->ttl <= 1)
		return PASSED_HOPS;
	if (ingress->flags & PARTIAL_SUMS &&
	    is_partial((__u64)ip->source + ip->destination, ip->protocol, ip + 1, packet->length - sizeof(*ip),
		       packet->end))
		return PASSED_PARTIAL_SUM;
	hop = fib4_lookup(&fib4, destination);
	if (ingress->reverse_path || (!(ingress->flags & ACCEPT_LOCAL) && may_be_local(packet->view, source))) {
		if (!source_is_fine(source, (__u32)ingress->reverse_path << 16 | ingress->interface))
			return PASSED_SOURCE;
	}
	if (is_group(hop)) {
		if (!flow4(packet, ip, &hash))
			return PASSED_FLOW;
		hop = member(hop, hash);
	}
	return leave(hop, packet, way);
}

/* 2000::/3 or fc00::/7, where nothing is special. */
static __always_inline bool is_plain(__u64 high)
{
	return high >> 61 == 1 || high >> 57 == 0x7e;
}

static __always_inline __u64 sum_of_addresses(const struct ipv6 *ip)
{
	const __u32 *words = (const void *)ip->source;
	__u64 sum = 0;

	for (int i = 0; i < 8; i++)
		sum += words[i];
	return sum;
}

static __always_inline enum verdict route6(struct packet *packet, struct ipv6 *ip, struct way *way)
{
	struct address6 source, destination;
	__u32 hop, hash;

	if ((packet->ingress->flags & (FORWARD_IPV6 | LINUX_ONLY_FRAGMENTS_IPV6)) != FORWARD_IPV6) {
		if (!(packet->ingress->flags & FORWARD_IPV6))
			return packet->ingress->flags & LINUX_ONLY_IPV6 ? PASSED_FIREWALL : PASSED_INACTIVE;
		if (may_be_fragment(ip + 1, packet->end, ip->next_header))
			return PASSED_FIREWALL;
	}
	packet->length = bpf_ntohs(ip->payload_length) + sizeof(*ip);
	source.high = bpf_be64_to_cpu(ip->source[0]);
	source.low = bpf_be64_to_cpu(ip->source[1]);
	destination.high = bpf_be64_to_cpu(ip->destination[0]);
	destination.low = bpf_be64_to_cpu(ip->destination[1]);
	if ((ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000) ||
	    packet->length > packet->end - (void *)ip || ip->next_header == IPPROTO_HOPOPTS ||
	    !is_plain(source.high) || !is_plain(destination.high))
		return PASSED_HEADER;
	if (ip->hop_limit <= 1)
		return PASSED_HOPS;
	if (packet->ingress->flags & PARTIAL_SUMS &&
	    is_partial(sum_of_addresses(ip), ip->next_header, ip + 1, packet->length - sizeof(*ip), packet->end))
		return PASSED_PARTIAL_SUM;
	hop = fib6_lookup(&fib6, destination);
	if (is_group(hop)) {
		if (!flow6(packet, ip, source, destination, &hash))
			return PASSED_FLOW;
		hop = member(hop, hash);
	}
	return leave(hop, packet, way);
}

/* Frames of real wires are padded to 60 bytes, and what Linux forwards is not: padding goes. */
static __always_inline int unpadded(struct xdp_md *ctx, __u32 frame)
{
	__u32 length = frame_bytes((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	return length > frame ? bpf_xdp_adjust_tail(ctx, (int)frame - (int)length) : 0;
}

/* Twelve bytes in two stores; the word of an egress begins with its MAC. */
static __always_inline void write_macs(struct ethernet *eth, const struct way *way)
{
	__u64 own = way->egress->mac_mtu;

	*(__u64 *)eth->to = (way->entry & 0xffffffffffff) | own << 48;
	*(__u32 *)&eth->from[1] = own >> 16;
}

/* TTL is a word's high byte in wire order: the sum grows by what that word shrinks (RFC 1624). */
static __always_inline void spend_ttl(struct ipv4 *ip)
{
	__u32 sum = ip->checksum + (__u32)bpf_htons(0x0100);

	ip->checksum = sum + (sum >= 0xffff);
	ip->ttl--;
}

/*
 * Takes padding off and writes the MACs; returns where the network header of `size` bytes begins, or NULL if
 * the frame cannot be cut.
 */
static __always_inline void *readdressed(struct xdp_md *ctx, const struct packet *packet, const struct way *way,
					 __u32 size)
{
	struct ethernet *eth;

	if (unpadded(ctx, sizeof(*eth) + packet->length))
		return NULL;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) + size > (void *)(long)ctx->data_end)
		return NULL;
	write_macs(eth, way);
	return eth + 1;
}

static __always_inline enum verdict send4(struct xdp_md *ctx, const struct packet *packet, const struct way *way)
{
	struct ipv4 *ip = readdressed(ctx, packet, way, sizeof(*ip));

	if (!ip)
		return PASSED_HEADER;
	spend_ttl(ip);
	return FORWARDED;
}

static __always_inline enum verdict send6(struct xdp_md *ctx, const struct packet *packet, const struct way *way)
{
	struct ipv6 *ip = readdressed(ctx, packet, way, sizeof(*ip));

	if (!ip)
		return PASSED_HEADER;
	ip->hop_limit--;
	return FORWARDED;
}

/* Whether no daemon has said for longer than the grace time that the tables are good. */
static __always_inline bool is_unattended(void)
{
	return views.grace_jiffies && (__s64)(bpf_jiffies64() - views.alive_until) > 0;
}

/* Bytes of a frame as it leaves, its tag among them. */
static __always_inline __u32 sent_bytes(const struct packet *packet, const struct way *way)
{
	return sizeof(struct ethernet) + packet->length + (way->egress->tag ? sizeof(struct vlan_tag) : 0);
}

/* On the way out: the last that is done with a frame. */
static __always_inline int departed(const struct packet *packet, const struct way *way)
{
	count(packet->ingress->interface, FORWARDED, packet->frame, sent_bytes(packet, way));
	return bpf_redirect(way->egress->ifindex, 0);
}

#include "tagged.h"

/* A frame that has come without a tag, and leaves with one. */
static __always_inline enum verdict send_untagged(struct xdp_md *ctx, const struct packet *packet,
						  const struct way *way, __be16 type)
{
	return send_tagged(ctx, FRAME(packet, type, 0, sizeof(struct ethernet)), way->entry, way->egress);
}


/* What XDP is to do, or why it is Linux's, less than 0: so what a frame that leaves needs ends here. */
static __always_inline int forward_packet(struct xdp_md *ctx, struct packet *packet)
{
	struct ethernet *eth = packet->data;
	enum verdict verdict;
	struct way way;

	if (eth->type == bpf_htons(ETH_P_IP)) {
		struct ipv4 *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > packet->end)
			return -PASSED_HEADER;
		verdict = route4(packet, ip, &way);
		if (verdict != FORWARDED)
			return -verdict;
		verdict = way.egress->tag ? send_untagged(ctx, packet, &way, eth->type) : send4(ctx, packet, &way);
		return verdict == FORWARDED ? departed(packet, &way) : -verdict;
	}
	if (eth->type == bpf_htons(ETH_P_IPV6)) {
		struct ipv6 *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > packet->end)
			return -PASSED_HEADER;
		verdict = route6(packet, ip, &way);
		if (verdict != FORWARDED)
			return -verdict;
		verdict = way.egress->tag ? send_untagged(ctx, packet, &way, eth->type) : send6(ctx, packet, &way);
		return verdict == FORWARDED ? departed(packet, &way) : -verdict;
	}
	return -PASSED_OTHER_TYPE;
}

#include "filter.h"

/* Whether tags are looked at: only where there are interfaces with tags, since it costs a call. */
const volatile __u32 tags_on SEC(".rodata.tags") = 0;

/* A frame of one of our interfaces; false if it is not one now, which is not counted. */
static __always_inline bool arrived(struct xdp_md *ctx, struct packet *packet)
{
	__u32 ifindex = ctx->ingress_ifindex;

	packet->view = &views.of[views.current & 1];
	packet->ingress = &packet->view->ingress[ifindex & (INGRESSES - 1)];
	return packet->ingress->ifindex == ifindex;
}

/* Frames without a tag; with one they are Linux's. */
static __always_inline int forward(struct xdp_md *ctx, bool filters)
{
	enum verdict verdict;
	struct packet packet;
	int done;

	packet.data = (void *)(long)ctx->data;
	packet.end = (void *)(long)ctx->data_end;
	packet.frame = frame_bytes(packet.data, packet.end);
	if (!arrived(ctx, &packet))
		return XDP_PASS;
	if (packet.data + sizeof(struct ethernet) > packet.end)
		done = -PASSED_OTHER_TYPE;
	else if (filters && is_filtered(&packet) && (verdict = filtered(ctx, &packet)) != FORWARDED)
		done = -verdict; /* also without a daemon: what Linux forwards then is filtered as before */
	else if (*(__u64 *)packet.data << 16 != packet.ingress->mac)
		done = -PASSED_OTHER_MAC;
	else if (is_unattended())
		done = -PASSED_UNATTENDED;
	else
		done = forward_packet(ctx, &packet);
	if (done >= 0)
		return done;
	if (filters && claims_on && done == -CLAIMED)
		return claimed(ctx, &packet);
	/* Linux 6.1 knows no bounds of what was negated. */
	count(packet.ingress->interface, -done & 31, bpf_xdp_get_buff_len(ctx), 0);
	return -done >= DROPPED_FILTER ? XDP_DROP : XDP_PASS;
}

static __noinline int forward_untagged(struct xdp_md *ctx)
{
	return forward(ctx, false);
}

/* What XDP is to do with a frame that filters drop or pass, or workers claim, which is counted then; 0 for others. */
static __noinline int filters_take(struct xdp_md *ctx)
{
	struct packet packet = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	enum verdict verdict;

	if (!arrived(ctx, &packet) || packet.data + sizeof(struct ethernet) > packet.end ||
	    !is_filtered(&packet))
		return 0;
	verdict = filtered(ctx, &packet);
	if (verdict == FORWARDED)
		return 0;
	if (claims_on && verdict == CLAIMED)
		return claimed(ctx, &packet);
	count(packet.ingress->interface, verdict, bpf_xdp_get_buff_len(ctx), 0);
	return verdict >= DROPPED_FILTER ? XDP_DROP : XDP_PASS;
}

/* With and without tags: calls, since the stack has no room for all of it in one. */
static __always_inline int forward_all(struct xdp_md *ctx)
{
	struct ethernet *eth = (void *)(long)ctx->data;

	int taken = filters_on ? filters_take(ctx) : 0;

	if (taken)
		return taken;
	if ((void *)(eth + 1) <= (void *)(long)ctx->data_end && is_tag(eth->type))
		return forward_tagged(ctx);
	return forward_untagged(ctx);
}

/*
 * The name ends in the version of layout.h, by which the next daemon knows it (../src/pins.rs). Frames in several
 * buffers (jumbo frames on a veth) come too: they are longer than what lies here, so they are Linux's.
 */
SEC("xdp.frags")
int bm_forward_5(struct xdp_md *ctx)
{
	return tags_on ? forward_all(ctx) : forward(ctx, filters_on);
}

/* Frames of interfaces whose filters are not in place yet that were dropped, by the interface's number in Linux. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, INTERFACES);
	__type(key, __u32);
	__type(value, struct held);
} held SEC(".maps");

/* Replaces the forwarding program on an interface that was created again, until control has published it. */
SEC("xdp.frags")
int bm_hold(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex;
	struct held none = {}, *of;

	if (!may_be_routed((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	bpf_map_update_elem(&held, &ifindex, &none, BPF_NOEXIST);
	of = bpf_map_lookup_elem(&held, &ifindex);
	if (of) {
		__sync_fetch_and_add(&of->frames, 1);
		__sync_fetch_and_add(&of->bytes, bpf_xdp_get_buff_len(ctx));
	}
	return XDP_DROP;
}

/* Run by the daemon: the tables are good for another grace time. Only here can jiffies be read. */
SEC("syscall")
int beat(void *ctx)
{
	views.alive_until = bpf_jiffies64() + views.grace_jiffies;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
