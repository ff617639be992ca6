/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What to drop while the filters of an interface are not in place yet. When an interface comes back, our program runs
 * on it before control has configured the program. If it passed all frames until then, Linux would route even those
 * that a filter forbids; so whatever Linux might route is dropped for these few milliseconds.
 */
#pragma once

#include <linux/if_ether.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>

/*
 * Whether Linux might route a frame. It never routes frames sent to a group MAC or packets to a link-local address
 * (fe80::/10, RFC 4291 2.5.6), so ARP, neighbor discovery and routing protocols keep working.
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
