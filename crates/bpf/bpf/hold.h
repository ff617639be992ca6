/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What to drop while the filters of an interface are not in place yet. An interface that comes back runs a program
 * of ours before control has told that program about it. Frames that only passed then would be routed by Linux,
 * also those that a filter forbids; so whatever Linux might route is dropped for these few milliseconds.
 */
#pragma once

#include <linux/if_ether.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>

/*
 * Whether Linux might route a frame. It never routes what came by a group MAC or goes to a link-local address
 * (fe80::/10, RFC 4291 2.5.6), so ARP, neighbor discovery and routing protocols work meanwhile.
 */
static __always_inline bool may_be_routed(const void *data, const void *end)
{
	const struct ethhdr *eth = data;
	const __be16 *destination6 = (const void *)(eth + 1) + 24;

	if ((const void *)(eth + 1) > end || eth->h_dest[0] & 1)
		return false;
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return (const void *)(destination6 + 1) > end ||
		       (*destination6 & bpf_htons(0xffc0)) != bpf_htons(0xfe80);
	return eth->h_proto == bpf_htons(ETH_P_IP) || eth->h_proto == bpf_htons(ETH_P_8021Q) ||
	       eth->h_proto == bpf_htons(ETH_P_8021AD);
}
