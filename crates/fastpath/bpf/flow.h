/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Which flow a packet is of, for groups of next hops: the same number as crates/wire/src/flow.rs gives. */
#pragma once

#include "layout.h"

static const __u64 flow_salt[6] = {
	0x6a09e667f3bcc909ull, 0xbb67ae8584caa73bull, 0x3c6ef372fe94f82bull,
	0xa54ff53a5f1d36f1ull, 0x510e527fade682d1ull, 0x9b05688c2b3e6c1full,
};

/* The product's high half folded onto its low one; BPF multiplies to 64 bits only. */
static __always_inline __u64 mix(__u64 a, __u64 b)
{
	__u64 a0 = (__u32)a, a1 = a >> 32, b0 = (__u32)b, b1 = b >> 32;
	__u64 low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (__u32)middle;

	return (a * b) ^ (a1 * b1 + (middle >> 32) + (other >> 32));
}

/* `a` and `b` are the ends of the flow, `rest` what both directions share. */
static __always_inline __u32 flow_hash(__u64 a, __u64 b, __u64 rest, __u64 seed)
{
	__u64 first = a < b ? a : b, second = a < b ? b : a, key;

	seed *= flow_salt[5];
	key = mix(first ^ rest ^ flow_salt[0] ^ seed, second ^ flow_salt[1] ^ (seed << 32 | seed >> 32));
	return mix(key, flow_salt[4] ^ seed) >> 32;
}

static __always_inline __u32 flow_hash4(__u32 source, __u32 destination, __u32 ports, __u8 protocol, __u64 seed)
{
	__u64 a = (__u64)source << 16 | ports >> 16, b = (__u64)destination << 16 | (ports & 0xffff);

	return flow_hash(a, b, (__u64)protocol << 48, seed);
}

static __always_inline __u64 flow_end6(struct address6 address, __u16 port, __u64 seed)
{
	return mix(address.high ^ flow_salt[2], address.low ^ flow_salt[3] ^ seed * flow_salt[5]) +
	       port * flow_salt[4];
}
