/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Packets that are claimed for workers: searched like rules, in a separate tree, and sent to the socket that
 * the worker of the queue has bound. If there is none, Linux gets them.
 */
#pragma once

#include "rules.h"

/*
 * The largest frame that fits into a slot of workers, in bytes; 0 without claims. Only a program that is loaded with claims has
 * this map: sockets of workers, by interface and queue.
 */
const volatile __u32 claims_on SEC(".rodata.claims") = 0;

#define CLAIM_QUEUES 16

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, INGRESSES *CLAIM_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} claims SEC(".maps");

/* Whether a packet is claimed for workers: the claim's counter plus one, or 0. */
__noinline int asked_claims(const struct filter_key *key)
{
	const struct filter_set *set;
	__u32 found;

	if (!key)
		return 0;
	set = filter_set(key);
	if (!set || !(set->flags & HAS_CLAIMS))
		return 0;
	found = filter_find(set, set->claims, key);
	return found ? filter_rule_of(set, found)->counter + 1 : 0;
}

/* Whether workers may get a frame: it is for this machine's MAC, its interface forwards, and a daemon is alive. */
static __always_inline bool is_claimable(const struct packet *packet, const struct ingress *logical, bool ipv6)
{
	__u64 mac = *(__u64 *)packet->data << 16;

	return logical && logical->flags & (ipv6 ? FORWARD_IPV6 : FORWARD_IPV4) &&
	       (mac == logical->mac || mac == packet->ingress->mac) && !is_unattended();
}

/* Whether a frame is in several buffers, which AF_XDP sockets do not accept. */
static __always_inline bool is_in_pieces(context *ctx)
{
	long length = (void *)(long)ctx->data_end - (void *)(long)ctx->data;

	/* The verifier wants the difference of the two pointers by itself. */
	asm volatile("" : "+r"(length));
	return whole_length(ctx) > (__u64)length;
}
