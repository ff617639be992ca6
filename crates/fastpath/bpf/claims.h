/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Packets that are claimed for workers: searched as rules are, in a tree of their own, and sent to the socket that
 * the worker of the queue has bound. Linux has them where there is none.
 */
#pragma once

#include "rules.h"

/* Claims are in a program of their own sort as well: sockets of workers, by interface and queue. */
const volatile __u32 claims_on SEC(".rodata.claims") = 0;

#define CLAIM_QUEUES 16

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, INGRESSES *CLAIM_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} claims SEC(".maps");

/* Whether a packet is claimed for workers: one more than the claim's counter, or 0. */
__noinline int asked_claims(const struct filter_key *key)
{
	const struct filter_set *set;
	__u32 found;

	if (!key)
		return 0;
	set = filter_set(key);
	if (!set || !(set->flags & HAS_CLAIMS))
		return 0;
	found = filter_first(set, filter_leaf(set, set->claims, key), key);
	return found ? (found & 0xffff) + 1 : 0;
}

/* Whether workers may have a frame: it is for us, of an interface that is forwarded from, and a daemon lives. */
static __always_inline bool is_claimable(const struct packet *packet, const struct ingress *logical, bool ipv6)
{
	__u64 mac = *(__u64 *)packet->data << 16;

	return logical && logical->flags & (ipv6 ? FORWARD_IPV6 : FORWARD_IPV4) &&
	       (mac == logical->mac || mac == packet->ingress->mac) && !is_unattended();
}

/* Sends a claimed frame to the worker of its queue; Linux has it where there is none. */
static __always_inline int claimed(struct xdp_md *ctx, const struct packet *packet)
{
	__u32 queue = ctx->rx_queue_index, place;
	int verdict = XDP_PASS;

	place = (ctx->ingress_ifindex & (INGRESSES - 1)) * CLAIM_QUEUES + queue;
	if (queue < CLAIM_QUEUES)
		verdict = bpf_redirect_map(&claims, place, XDP_PASS);
	count(packet->ingress->interface, verdict == XDP_REDIRECT ? CLAIMED : PASSED_NO_WORKER,
	      bpf_xdp_get_buff_len(ctx), 0);
	return verdict;
}

/* Whether a frame lies in several buffers, which no worker's socket takes. */
static __always_inline bool is_in_pieces(struct xdp_md *ctx)
{
	long length = (void *)(long)ctx->data_end - (void *)(long)ctx->data;

	/* The verifier wants the difference of the two pointers by itself. */
	asm volatile("" : "+r"(length));
	return bpf_xdp_get_buff_len(ctx) > (__u64)length;
}
