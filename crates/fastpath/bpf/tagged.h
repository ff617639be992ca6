/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * How frames leave, and those that arrive or leave with a VLAN tag. They are routed like all others; only the offset of
 * the network header differs, and what is written in front of it.
 *
 *     tag -> interface (number 0: the port's own) -> route -> tag of the interface it leaves by, same priority
 *
 * Both are separate functions and take numbers: a variable whose address is taken is kept in memory, and frames
 * without a tag should not pay for that.
 */
#pragma once

#include "forward.h"
#include "vlan.h"

/* Length of a frame as it leaves, including its tag. */
static __always_inline __u32 sent_bytes(const struct packet *packet, const struct way *way)
{
	return sizeof(struct ethernet) + packet->length + (way->egress->tag ? sizeof(struct vlan_tag) : 0);
}

/* Counts a frame and redirects it. */
static __always_inline int departed(const struct packet *packet, const struct way *way)
{
	count(packet->ingress->interface, FORWARDED, packet->frame, sent_bytes(packet, way));
	leaves_through(way->egress->ifindex);
	return bpf_redirect(way->egress->ifindex, 0);
}

/* What send_tagged must know about a frame, in one number. */
#define FRAME(packet, type, priority, head) \
	((__u64)(packet)->length | (__u64)(head) << 16 | (__u64)(priority) << 32 | (__u64)(type) << 48)

/* Prepares a frame to leave through `egress`: MACs, its tag or none, no padding, TTL decremented. */
static __noinline int send_tagged(struct xdp_md *ctx, __u64 frame, __u64 entry, const struct egress *egress)
{
	__u32 head = frame >> 16 & 0xffff, tag, new_head;
	__be16 type = frame >> 48;
	struct way way = { .entry = entry, .egress = egress };
	struct vlan_tag *written;
	struct ethernet *eth;
	int shift;
	void *ip;

	if (!egress)
		return PASSED_HEADER;
	tag = egress->tag;
	new_head = tag ? sizeof(*eth) + sizeof(*written) : sizeof(*eth);
	shift = (int)head - (int)new_head;
	if (!cut_padding(ctx, head + (frame & 0xffff)) || (shift && bpf_xdp_adjust_head(ctx, shift)))
		return PASSED_HEADER;
	eth = (void *)(long)ctx->data;
	ip = (void *)eth + new_head;
	if (ip + sizeof(struct ipv4) > (void *)(long)ctx->data_end)
		return PASSED_HEADER;
	write_macs(eth, &way);
	eth->type = type;
	if (tag) {
		written = (void *)(eth + 1);
		eth->type = bpf_htons(tag >> 16);
		written->priority_id = bpf_htons((frame >> 32 & VLAN_PRIORITY) | (tag & VLAN_ID));
		written->type = type;
	}
	if (type == bpf_htons(ETH_P_IP))
		spend_ttl(ip);
	else
		((struct ipv6 *)ip)->hop_limit--;
	return FORWARDED;
}

/* Translates a frame that is ready to leave, if it is forwarded by flow. */
static __always_inline enum verdict translate_tagged(struct xdp_md *ctx, const struct way *way, bool ipv4)
{
#ifdef FLOWS
	__u32 head = sizeof(struct ethernet) + (way->egress->tag ? sizeof(struct vlan_tag) : 0);
	void *ip = (void *)(long)ctx->data + head, *end = (void *)(long)ctx->data_end;

	if (way->flow && (ip + (ipv4 ? sizeof(struct ipv4) : sizeof(struct ipv6)) > end ||
			  !translated(ip, end, way, ipv4)))
		return PASSED_HEADER;
#endif
	return FORWARDED;
}

/* Who a tagged frame is for, and on which interface: as in Linux, a VLAN accepts its own MAC and the port's. */
static __always_inline const struct ingress *tagged_ingress(const struct packet *packet, const struct ingress *port,
							    __u32 tag)
{
	__u64 mac = *(__u64 *)packet->data << 16;
	const struct ingress *ingress = port;

	if (tag & VLAN_ID)
		ingress = vlan_ingress(packet->view, port->ifindex, tag);
	return ingress && (mac == ingress->mac || mac == port->mac) ? ingress : NULL;
}

/* Routes a tagged frame of `port`, and sends it. */
static __always_inline enum verdict route_tagged(struct xdp_md *ctx, struct packet *packet, struct way *way)
{
	struct ethernet *eth = packet->data;
	struct vlan_tag *tag = (void *)(eth + 1);
	const struct ingress *ingress;
	void *ip = tag + 1;
	enum verdict verdict = PASSED_OTHER_TYPE;
	__u32 number, priority;
	__be16 type;

	if (ip > packet->end)
		return PASSED_OTHER_TYPE;
	number = bpf_ntohs(tag->priority_id);
	ingress = tagged_ingress(packet, packet->ingress,
				 (__u32)bpf_ntohs(eth->type) << 16 | (number & VLAN_ID));
	if (!ingress)
		return PASSED_OTHER_TYPE;
	packet->ingress = ingress;
	priority = number & VLAN_PRIORITY;
	type = tag->type;
	if (type == bpf_htons(ETH_P_IP) && ip + sizeof(struct ipv4) <= packet->end)
		verdict = route4(ctx, packet, ip, way);
	else if (type == bpf_htons(ETH_P_IPV6) && ip + sizeof(struct ipv6) <= packet->end)
		verdict = route6(ctx, packet, ip, way);
	if (verdict != FORWARDED)
		return verdict;
	verdict = send_tagged(ctx, FRAME(packet, type, priority, sizeof(*eth) + sizeof(*tag)), way->entry, way->egress);
	return verdict == FORWARDED ? translate_tagged(ctx, way, type == bpf_htons(ETH_P_IP)) : verdict;
}

/* Handles a tagged frame; returns what happened to it. */
static __noinline int forward_tagged(struct xdp_md *ctx)
{
	struct packet packet = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	__u32 ifindex = ctx->ingress_ifindex;
	struct way way = {};
	enum verdict verdict;

	if (packet.data + sizeof(struct ethernet) > packet.end)
		return XDP_PASS;
	packet.frame = frame_bytes(packet.data, packet.end);
	packet.view = &views.of[views.current & 1];
	packet.ingress = &packet.view->ingress[ifindex & (INGRESSES - 1)];
	if (packet.ingress->ifindex != ifindex)
		return XDP_PASS;
	verdict = is_unattended() ? PASSED_UNATTENDED : route_tagged(ctx, &packet, &way);
	if (verdict != FORWARDED || !way.egress) {
		count(packet.ingress->interface, verdict, bpf_xdp_get_buff_len(ctx), 0);
		return verdict >= DROPPED_FILTER ? XDP_DROP : XDP_PASS;
	}
	return departed(&packet, &way);
}
