// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * The kernel path: forwards ordinary IPv4 and IPv6 packets from interface to interface.
 *
 *     frame -> for us? -> valid? -> [fib4|fib6] -> [hops] -> [egress] -> decrement TTL, MACs -> redirect
 *               '----------'-----------'-----------'----------'--> Linux, unchanged, with the reason counted
 *
 * Only filters (filter.h) and blackhole routes drop packets here. Whatever needs more than forwarding (local destination, options,
 * fragments, expired TTL, unknown neighbor, no route, too big) is passed to Linux, which answers, resolves and drops as
 * usual. In doubt: XDP_PASS. The decisions are made in forward.h, which skb.bpf.c includes as well.
 * With FLOWS defined it repeats decisions of Linux's firewall (flows.h).
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#include "xdp.h"
#include "forward.h"
#include "filter.h"
#include "tagged.h"
#include "hold.h"
#include "held.h"

/* Decrements the TTL of an untagged frame, and writes its MACs. `type` is constant where this is inlined. */
static __always_inline enum verdict send_plain(struct xdp_md *ctx, const struct packet *packet, const struct way *way,
					       __be16 type)
{
	bool ipv4 = type == bpf_htons(ETH_P_IP);
	void *ip = readdressed(ctx, packet, way, ipv4 ? sizeof(struct ipv4) : sizeof(struct ipv6));

	if (!ip)
		return PASSED_HEADER;
	if (ipv4)
		spend_ttl(ip);
	else
		((struct ipv6 *)ip)->hop_limit--;
	return translated(ip, (void *)(long)ctx->data_end, way, ipv4) ? FORWARDED : PASSED_HEADER;
}

/* Forwards an untagged packet of the family with this type, which is constant where this is inlined. */
static __always_inline enum verdict forward_family(struct xdp_md *ctx, struct packet *packet, __be16 type, int *action)
{
	bool ipv4 = type == bpf_htons(ETH_P_IP);
	void *ip = packet->data + sizeof(struct ethernet);
	enum verdict verdict;
	struct way way;

	if (ip + (ipv4 ? sizeof(struct ipv4) : sizeof(struct ipv6)) > packet->end)
		return PASSED_HEADER;
	verdict = ipv4 ? route4(ctx, packet, ip, &way) : route6(ctx, packet, ip, &way);
	if (verdict != FORWARDED)
		return verdict;
	if (way.egress->tag) {
		verdict = send_tagged(ctx, FRAME(packet, type, 0, sizeof(struct ethernet)), way.entry, way.egress);
		if (verdict == FORWARDED)
			verdict = translate_tagged(ctx, &way, ipv4);
	} else {
		verdict = send_plain(ctx, packet, &way, type);
	}
	if (verdict == FORWARDED)
		*action = departed(packet, &way);
	return verdict;
}

/* Why Linux gets a packet; FORWARDED if it leaves with the XDP action that is stored. */
static __always_inline enum verdict forward_packet(struct xdp_md *ctx, struct packet *packet, int *action)
{
	const struct ethernet *eth = packet->data;

	if (eth->type == bpf_htons(ETH_P_IP))
		return forward_family(ctx, packet, bpf_htons(ETH_P_IP), action);
	if (eth->type == bpf_htons(ETH_P_IPV6))
		return forward_family(ctx, packet, bpf_htons(ETH_P_IPV6), action);
	return PASSED_OTHER_TYPE;
}

/* Sends a claimed frame to the worker of its queue; Linux gets it if there is none, or no slot that AF_XDP could put it in. */
static __always_inline int claimed(struct xdp_md *ctx, const struct packet *packet)
{
	__u32 queue = ctx->rx_queue_index, length = bpf_xdp_get_buff_len(ctx), place;
	int verdict = XDP_PASS;

	place = (ctx->ingress_ifindex & (INGRESSES - 1)) * CLAIM_QUEUES + queue;
	if (queue < CLAIM_QUEUES && length <= claims_on)
		verdict = bpf_redirect_map(&claims, place, XDP_PASS);
	count(packet->ingress->interface, verdict == XDP_REDIRECT ? CLAIMED : PASSED_NO_WORKER, length, 0);
	return verdict;
}

/* Whether filters drop or pass a frame or workers claim it, which is then counted; stores the XDP action. */
static __always_inline bool filters_take(struct xdp_md *ctx, const struct packet *packet, int *action)
{
	enum verdict verdict = filtered(ctx, packet);

	if (verdict == FORWARDED)
		return false;
	if (claims_on && verdict == CLAIMED) {
		*action = claimed(ctx, packet);
		return true;
	}
	count(packet->ingress->interface, verdict, bpf_xdp_get_buff_len(ctx), 0);
	*action = verdict >= DROPPED_FILTER ? XDP_DROP : XDP_PASS;
	return true;
}

/* Whether tags are parsed: only if there are interfaces with tags, since it costs a call. */
const volatile __u32 tags_on SEC(".rodata.tags") = 0;

/* Handles frames without a tag; frames with one are left to Linux. */
static __always_inline int forward(struct xdp_md *ctx, bool filters)
{
	enum verdict verdict;
	struct packet packet;
	int action = XDP_PASS;
	__u32 received;

	packet.data = (void *)(long)ctx->data;
	packet.end = (void *)(long)ctx->data_end;
	packet.frame = frame_bytes(packet.data, packet.end);
	if (!arrived(ctx, &packet))
		return XDP_PASS;
	if (packet.data + sizeof(struct ethernet) > packet.end)
		verdict = PASSED_OTHER_TYPE;
	else if (filters && filters_take(ctx, &packet, &action))
		return action; /* also without a daemon: what Linux forwards then is filtered as before */
	else if (*(__u64 *)packet.data << 16 != packet.ingress->mac)
		verdict = PASSED_OTHER_MAC;
	else if (is_unattended())
		verdict = PASSED_UNATTENDED;
	else
		verdict = forward_packet(ctx, &packet, &action);
	if (verdict == FORWARDED)
		return action;
	received = bpf_xdp_get_buff_len(ctx);
	/* Only its first buffer can be read here. At tc it can be forwarded (../src/kernel/adapt.rs). */
	if (verdict == PASSED_HEADER && received != packet.frame)
		verdict = PASSED_MTU;
	count(packet.ingress->interface, verdict, received, 0);
	return verdict >= DROPPED_FILTER ? XDP_DROP : XDP_PASS;
}

static __noinline int forward_untagged(struct xdp_md *ctx)
{
	return forward(ctx, false);
}

/* The XDP action for a frame that filters or workers take; 0 for others. */
static __noinline int filter_all(struct xdp_md *ctx)
{
	struct packet packet = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	int action;

	if (!arrived(ctx, &packet) || packet.data + sizeof(struct ethernet) > packet.end)
		return 0;
	return filters_take(ctx, &packet, &action) ? action : 0;
}

/* With and without tags: calls, since the stack has no room for both in one function. */
static __always_inline int forward_all(struct xdp_md *ctx)
{
	struct ethernet *eth = (void *)(long)ctx->data;
	int action = filters_on ? filter_all(ctx) : 0;

	if (action)
		return action;
	if ((void *)(eth + 1) <= (void *)(long)ctx->data_end && is_tag(eth->type))
		return forward_tagged(ctx);
	return forward_untagged(ctx);
}

static __always_inline int handle(struct xdp_md *ctx)
{
	return tags_on ? forward_all(ctx) : forward(ctx, filters_on);
}

/*
 * The name ends in the version of layout.h, by which the next daemon recognizes it (../src/pins.rs). Frames in several
 * buffers (jumbo frames on a veth) arrive too: they are longer than the first buffer, so they are left to Linux.
 */
SEC("xdp.frags")
int bm_forward_7(struct xdp_md *ctx)
{
	struct sample *sample;
	__u32 length;
	int verdict;

	if (!sample_one_in)
		return handle(ctx);
	length = bpf_xdp_get_buff_len(ctx);
	sample = sampled(ctx->ingress_ifindex, (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	verdict = handle(ctx);
	if (sample)
		was_handled(sample, length);
	return verdict;
}

/* Replaces the forwarding program on an interface that was created again, until control has published it. */
SEC("xdp.frags")
int bm_hold(struct xdp_md *ctx)
{
	if (!may_be_routed((void *)(long)ctx->data, (void *)(long)ctx->data_end))
		return XDP_PASS;
	count_held(ctx->ingress_ifindex, bpf_xdp_get_buff_len(ctx));
	return XDP_DROP;
}

/* Run by the daemon: extends the time for which tables are valid. Jiffies can only be read here. */
SEC("syscall")
int beat(void *ctx)
{
	views.alive_until = bpf_jiffies64() + views.grace_jiffies;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
