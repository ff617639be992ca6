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
#include "hold.h"
#include "held.h"

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

#include "tagged.h"

/* Sends a frame that arrived untagged with a tag. */
static __always_inline enum verdict send_untagged(struct xdp_md *ctx, const struct packet *packet,
						  const struct way *way, __be16 type)
{
	return send_tagged(ctx, FRAME(packet, type, 0, sizeof(struct ethernet)), way->entry, way->egress);
}

/* The XDP action, or the negative reason why Linux gets the packet. */
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

/* Whether tags are parsed: only if there are interfaces with tags, since it costs a call. */
const volatile __u32 tags_on SEC(".rodata.tags") = 0;

/* Handles frames without a tag; frames with one are left to Linux. */
static __always_inline int forward(struct xdp_md *ctx, bool filters)
{
	enum verdict verdict;
	struct packet packet;
	__u32 received;
	int done;

	packet.data = (void *)(long)ctx->data;
	packet.end = (void *)(long)ctx->data_end;
	packet.frame = frame_bytes(packet.data, packet.end);
	if (!arrived(ctx, &packet))
		return XDP_PASS;
	if (packet.data + sizeof(struct ethernet) > packet.end)
		done = -PASSED_OTHER_TYPE;
	else if (filters && (verdict = filtered(ctx, &packet)) != FORWARDED)
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
	received = bpf_xdp_get_buff_len(ctx);
	/* Only its first buffer can be read here. At tc it can be forwarded (../src/kernel/adapt.rs). */
	if (done == -PASSED_HEADER && received != packet.frame)
		done = -PASSED_MTU;
	/* Linux 6.1 does not track bounds of a negated value. */
	count(packet.ingress->interface, -done & 31, received, 0);
	return -done >= DROPPED_FILTER ? XDP_DROP : XDP_PASS;
}

static __noinline int forward_untagged(struct xdp_md *ctx)
{
	return forward(ctx, false);
}

/* The XDP action for a frame that filters drop or pass or workers claim, which is then counted; 0 for others. */
static __noinline int filters_take(struct xdp_md *ctx)
{
	struct packet packet = { .data = (void *)(long)ctx->data, .end = (void *)(long)ctx->data_end };
	enum verdict verdict;

	if (!arrived(ctx, &packet) || packet.data + sizeof(struct ethernet) > packet.end)
		return 0;
	verdict = filtered(ctx, &packet);
	if (verdict == FORWARDED)
		return 0;
	if (claims_on && verdict == CLAIMED)
		return claimed(ctx, &packet);
	count(packet.ingress->interface, verdict, bpf_xdp_get_buff_len(ctx), 0);
	return verdict >= DROPPED_FILTER ? XDP_DROP : XDP_PASS;
}

/* With and without tags: calls, since the stack has no room for both in one function. */
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
