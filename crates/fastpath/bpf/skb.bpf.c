// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * The kernel path for devices that carry large packets, such as a veth: the same as forward.bpf.c, at tc's ingress.
 *
 *     skb -> headers readable -> filters -> for us? -> forward.h -> decrement TTL, MACs -> redirect
 *                       '------------'----------'---------'--> next program, then Linux: unchanged, reason counted
 *
 * If XDP is attached to a veth, Linux segments each large packet before the program sees it, and a frame that XDP sends
 * loses its offload state. At tc a packet keeps it: 64 KiB of TCP are one packet from end to end.
 *
 * Tagged frames are filtered, then passed to Linux. Claims for workers do not work here.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#include "skb.h"
#include "forward.h"
#include "filter.h"
#include "hold.h"
#include "held.h"
#include "freed.h"

/* In <linux/bpf.h> since Linux 6.6. */
#define TCX_NEXT -1
#define TCX_DROP 2

/* Bands of Linux's rt_tos2priority by the two high bits of the old TOS: best effort, bulk, interactive, both. */
#define TOS_BANDS 0x4620

static __always_inline int freed(context *ctx)
{
	ctx->mark = FREED_BY_BRICKMOON;
	return TCX_DROP;
}

static __always_inline void set_priority(context *ctx, __u8 tos)
{
	ctx->priority = TOS_BANDS >> (tos >> 3 & 3) * 4 & 0xf;
}

/*
 * Sets the size that must fit the MTU: for a packet that will be segmented (GSO), that of its segments. False if only
 * Linux can tell: for protocols other than TCP, and for more than 64 KiB.
 */
static __always_inline bool is_plain_size(context *ctx, struct packet *packet)
{
	struct ethernet *eth = packet->data;
	struct ipv4 *ip4 = (void *)(eth + 1);
	struct ipv6 *ip6 = (void *)(eth + 1);
	__u32 length;

	packet->largest = 0;
	if (!ctx->gso_size)
		return true;
	if (eth->type == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip4 + 1) > packet->end)
			return false;
		length = bpf_ntohs(ip4->total_length);
		packet->largest = segment_length(ctx->gso_size, sizeof(*ip4), ip4->protocol, ip4 + 1, packet->end);
	} else {
		if ((void *)(ip6 + 1) > packet->end)
			return false;
		length = bpf_ntohs(ip6->payload_length) + sizeof(*ip6);
		packet->largest = segment_length(ctx->gso_size, sizeof(*ip6), ip6->next_header, ip6 + 1, packet->end);
	}
	return packet->largest && length + sizeof(*eth) == packet->frame;
}

/*
 * Translates an IPv4 packet. The kernel knows what its checksum has become: complete, left to a device, or summed up by one.
 */
static __always_inline bool translated_skb(context *ctx, const struct way *way)
{
#ifdef FLOWS
	const __u32 upper = sizeof(struct ethernet) + sizeof(struct ipv4);
	const struct flow *flow = way->flow;
	__u64 zero_is_none = 0;
	__u32 checksum;
	struct ipv4 *ip;
	__u32 *ports;

	if (!flow || !(flow->flags & FLOW_TRANSLATES))
		return true;
	checksum = upper + __builtin_offsetof(struct tcp, checksum);
	if (flow->protocol == IPPROTO_UDP) {
		checksum = upper + __builtin_offsetof(struct udp, checksum);
		zero_is_none = BPF_F_MARK_MANGLED_0;
	}
	if (bpf_l4_csum_replace(ctx, checksum, 0, flow->sum_addresses, BPF_F_PSEUDO_HDR | zero_is_none) ||
	    bpf_l4_csum_replace(ctx, checksum, 0, flow->sum_ports, zero_is_none))
		return false;
	ip = (void *)(long)ctx->data + sizeof(struct ethernet);
	ports = (void *)(ip + 1);
	if ((void *)(ports + 1) > (void *)(long)ctx->data_end)
		return false;
	ip->checksum = checksum_after(ip->checksum, flow->sum_addresses);
	ip->source = flow->new_source[0];
	ip->destination = flow->new_destination[0];
	*ports = flow->new_ports;
#endif
	return true;
}

static __always_inline enum verdict send4(context *ctx, const struct packet *packet, const struct way *way)
{
	struct ipv4 *ip = readdressed(ctx, packet, way, sizeof(*ip));

	if (!ip)
		return PASSED_HEADER;
	spend_ttl(ip);
	set_priority(ctx, ip->tos);
	return translated_skb(ctx, way) ? FORWARDED : PASSED_HEADER;
}

/* Whether an IPv6 packet is translated, which is Linux's here: no helper of all kernels can tell a card's sum of it. */
static __always_inline bool is_translated6(const struct way *way)
{
#ifdef FLOWS
	return way->flow && way->flow->flags & FLOW_TRANSLATES;
#endif
	return false;
}

/*
 * CHECKSUM_COMPLETE, the sum that a card computed, must follow the hop limit. In IPv4 the header checksum makes up for
 * the TTL, so that sum stays the same.
 */
static __always_inline enum verdict send6(context *ctx, const struct packet *packet, const struct way *way)
{
	struct ipv6 *ip = readdressed(ctx, packet, way, sizeof(*ip));
	__u8 hop_limit;

	if (!ip)
		return PASSED_HEADER;
	hop_limit = ip->hop_limit - 1;
	if (bpf_skb_store_bytes(ctx, sizeof(struct ethernet) + __builtin_offsetof(struct ipv6, hop_limit),
				&hop_limit, sizeof(hop_limit), BPF_F_RECOMPUTE_CSUM))
		return PASSED_HEADER;
	return FORWARDED;
}

static __always_inline enum verdict forward_packet(context *ctx, struct packet *packet, struct way *way)
{
	struct ethernet *eth = packet->data;
	void *ip = eth + 1;
	enum verdict verdict;

	if (ctx->vlan_present)
		return PASSED_OTHER_TYPE;
	if (eth->type != bpf_htons(ETH_P_IP) && eth->type != bpf_htons(ETH_P_IPV6))
		return PASSED_OTHER_TYPE;
	if (!is_plain_size(ctx, packet))
		return PASSED_HEADER;
	if (eth->type == bpf_htons(ETH_P_IP)) {
		if (ip + sizeof(struct ipv4) > packet->end)
			return PASSED_HEADER;
		verdict = route4(ctx, packet, ip, way);
		return verdict == FORWARDED ? send4(ctx, packet, way) : verdict;
	}
	if (ip + sizeof(struct ipv6) > packet->end)
		return PASSED_HEADER;
	verdict = route6(ctx, packet, ip, way);
	if (verdict == FORWARDED && is_translated6(way))
		return PASSED_FIREWALL;
	return verdict == FORWARDED ? send6(ctx, packet, way) : verdict;
}

static __always_inline void look_at(context *ctx, struct packet *packet)
{
	packet->data = (void *)(long)ctx->data;
	packet->end = (void *)(long)ctx->data_end;
	packet->frame = ctx->len;
}

/* What happens to a frame that filters drop or only Linux may handle, which is then counted; FORWARDED for others. */
static __noinline int filters_take(context *ctx)
{
	struct packet packet = {};
	enum verdict verdict;

	look_at(ctx, &packet);
	if (!arrived(ctx, &packet) || packet.data + sizeof(struct ethernet) > packet.end)
		return FORWARDED;
	verdict = filtered(ctx, &packet);
	if (verdict != FORWARDED)
		count(packet.ingress->interface, verdict, packet.frame, 0);
	return verdict;
}

static __always_inline enum verdict forward(context *ctx, struct packet *packet, struct way *way)
{
	if (packet->data + sizeof(struct ethernet) > packet->end)
		return PASSED_OTHER_TYPE;
	if (*(__u64 *)packet->data << 16 != packet->ingress->mac)
		return PASSED_OTHER_MAC;
	if (is_unattended())
		return PASSED_UNATTENDED;
	return forward_packet(ctx, packet, way);
}

/*
 * A large packet of TCP shares its memory with the sender's queue of what is not acknowledged. Linux makes such a packet
 * independent when it forwards it; the receiver can then join its data with what it has not read yet, and frees less.
 * Without memory it leaves as it is.
 */
static __always_inline int send_through(context *ctx, __u32 out)
{
	if (ctx->gso_size)
		bpf_skb_change_head(ctx, 0, 0);
	return bpf_redirect(out, 0);
}

/* Handles a packet whose headers can be read. */
static __always_inline int handle(context *ctx)
{
	struct packet packet;
	enum verdict verdict;
	struct way way;

	if (filters_on) {
		verdict = filters_take(ctx);
		if (verdict != FORWARDED)
			return verdict >= DROPPED_FILTER ? freed(ctx) : TCX_NEXT;
	}
	look_at(ctx, &packet);
	if (!arrived(ctx, &packet))
		return TCX_NEXT;
	verdict = forward(ctx, &packet, &way);
	if (verdict != FORWARDED) {
		count(packet.ingress->interface, verdict, packet.frame, 0);
		return verdict >= DROPPED_FILTER ? freed(ctx) : TCX_NEXT;
	}
	count(packet.ingress->interface, FORWARDED, packet.frame, sizeof(struct ethernet) + packet.length);
	leaves_through(way.egress->ifindex);
	return send_through(ctx, way.egress->ifindex);
}

/* The name of the program of forward.bpf.c with an ending, by which the next daemon recognizes it. */
SEC("tcx/ingress")
int bm_forward_7_tc(context *ctx)
{
	struct sample *sample;
	__u32 length;
	int verdict;

	if (!gathered(ctx))
		return filters_on ? freed(ctx) : TCX_NEXT;
	if (!sample_one_in)
		return handle(ctx);
	length = ctx->len;
	sample = sampled(ctx->ifindex, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	verdict = handle(ctx);
	if (sample)
		was_handled(sample, length);
	return verdict;
}

/* Replaces the forwarding program on an interface that was created again, until control has published it. */
SEC("tcx/ingress")
int bm_hold_tc(context *ctx)
{
	if (!gathered(ctx))
		return freed(ctx);
	if (!ctx->vlan_present && !may_be_routed((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return TCX_NEXT;
	count_held(ctx->ifindex, ctx->len);
	return freed(ctx);
}

char LICENSE[] SEC("license") = "GPL";
