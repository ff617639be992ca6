/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* The two addresses of a frame as numbers, for the programs of nodes and of relays. */
#pragma once

#include <linux/types.h>
#include <stdbool.h>

#include "layout.h"

struct ethernet {
	__u8 to[6];
	__u8 from[6];
	__be16 type;
} __attribute__((packed));

static __always_inline __u64 read_mac(const __u8 *mac)
{
	return (__u64)mac[0] << 40 | (__u64)mac[1] << 32 | (__u64)mac[2] << 24 | (__u64)mac[3] << 16 |
	       (__u64)mac[4] << 8 | mac[5];
}

static __always_inline void write_mac(__u8 *mac, __u64 bits)
{
	mac[0] = bits >> 40;
	mac[1] = bits >> 32;
	mac[2] = bits >> 24;
	mac[3] = bits >> 16;
	mac[4] = bits >> 8;
	mac[5] = bits;
}

static __always_inline bool is_marked(__u64 bits)
{
	return bits >> MARK_AT == MARK && (bits >> LOCAL_AT & 3) == LOCAL;
}

/* Whether reserved bits are set, or a number that no node has. */
static __always_inline bool is_malformed(__u64 to, __u64 from)
{
	__u32 kind = to >> KIND_AT & 3, sampled = from >> KIND_AT & 3;

	return (to >> OUTPUT_AT & NODE_BITS) == NO_NODE || (from >> INPUT_AT & NODE_BITS) == NO_NODE ||
	       (kind != NEIGHBOR && (to & 0xffff)) || (sampled & 1) || (sampled != SAMPLED && (from & SAMPLE_BITS));
}
