/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Internet checksums (RFC 1071).
 *
 * A sender on a veth with checksum offload leaves the pseudo-header's sum in the field, and no card adds the
 * rest. Linux marks such a packet in a way that XDP does not see and that a redirect would lose; but the value shows
 * it. One correct packet in 65,536 has this value by chance, and is left to Linux as well.
 */
#pragma once

#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>

/* Whether a sum of a few words, not 0, is all ones in 16 bits: a multiple of them, with 17 bits left here. */
static __always_inline bool is_ones(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff || sum == 2 * 0xffff;
}

/* Whether the checksum of a TCP or UDP segment is only that of its pseudo-header, whose addresses sum to `sum`. */
static __always_inline bool is_partial(__u64 sum, __u8 protocol, void *segment, __u32 length, void *end)
{
	__u16 *field = segment + (protocol == IPPROTO_TCP ? 16 : 6);

	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || (void *)(field + 1) > end)
		return false;
	return *field && is_ones(sum + bpf_htons(protocol) + bpf_htons(length) + (0xffff - *field));
}
