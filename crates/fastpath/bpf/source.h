/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Whether there is a reverse path to a source (RFC 3704): the best one in the routing table, then, if any feasible one
 * is enough, those in separate tables.
 *
 *     source -> fib -> next hop, or each member of a group -> leads out of the interface it came in on?
 *            '-> sources4, sources6 -> set of interfaces ---'
 */
#pragma once

#include "rules.h"

enum source_check { CHECK_NONE, CHECK_STRICT, CHECK_LOOSE, CHECK_FEASIBLE };

/* Only a program that is loaded with feasible reverse paths has these maps, as for filters. */
const volatile __u32 feasible_on SEC(".rodata.feasible") = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sources4);
} sources4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sources6);
} sources6 SEC(".maps");

/* The word of the next hop towards an address of the key. */
static __always_inline __u64 hop_towards(const struct filter_key *key, __u32 from)
{
	struct address6 address;
	__u32 hop;

	from &= 4;
	if (key->of[KEY_IPV6]) {
		address.high = (__u64)key->of[from] << 32 | key->of[from + 1];
		address.low = (__u64)key->of[from + 2] << 32 | key->of[from + 3];
		hop = fib6_lookup(&fib6, address);
	} else {
		hop = fib4_lookup(&fib4, key->of[from]);
	}
	return hops.entries[hop & (HOPS - 1)];
}

struct way_back {
	__u64 group;
	__u32 interface;
	__u32 found;
};

static __always_inline bool leads_out(__u64 entry, __u32 interface)
{
	__u32 out = HOP_INTERFACE(entry);

	return out == interface ||
	       ((out == HOP_RESOLVE || out == HOP_LINUX_ONLY) && (entry & 0xffff) == interface);
}

static long try_member(__u32 at, struct way_back *back)
{
	__u32 hop = hops.buckets[((__u32)back->group + at) & (BUCKETS - 1)];
	back->found = leads_out(hops.entries[hop & (HOPS - 1)], back->interface);
	return back->found;
}

/* Sources that have no route: DHCP's 0.0.0.0, and link-local ones. */
static __always_inline bool is_unasked(const struct filter_key *key)
{
	__u32 first = key->of[KEY_SOURCE];

	if (!key->of[KEY_IPV6])
		return !first;
	return first >> 22 == 0x3fa || !(first | key->of[1] | key->of[2] | key->of[3]);
}

/* Whether a set of interfaces contains one. */
static __always_inline int is_in_set(const __u64 *sets, __u32 set, __u32 interface)
{
	__u32 word = (set & (SETS - 1)) * SET_WORDS + (interface >> 6 & (SET_WORDS - 1));

	/* Linux 6.1 does not track bounds of such a sum: a final check, which clang considers useless, sets them. */
	asm volatile("" : "+r"(word));
	word &= SETS * SET_WORDS - 1;
	return sets[word] >> (interface & 63) & 1;
}

/* Whether a worse route to the source's prefix leads out of the interface it came in on (RFC 3704 2.3). */
__noinline int comes_feasibly(const struct filter_key *key)
{
	struct address6 address;
	__u32 zero = 0;

	/* Linux before 6.8 verifies a global function even if it is never called, and then these maps do not exist. */
	if (!feasible_on || !key)
		return 0;
	if (key->of[KEY_IPV6]) {
		const struct sources6 *ipv6 = bpf_map_lookup_elem(&sources6, &zero);

		address.high = (__u64)key->of[0] << 32 | key->of[1];
		address.low = (__u64)key->of[2] << 32 | key->of[3];
		return ipv6 && is_in_set(ipv6->sets, fib6_lookup(&ipv6->routes, address), key->of[KEY_LOGICAL]);
	} else {
		const struct sources4 *ipv4 = bpf_map_lookup_elem(&sources4, &zero);

		return ipv4 && is_in_set(ipv4->sets, fib4_lookup(&ipv4->routes, key->of[0]), key->of[KEY_LOGICAL]);
	}
}

/* Whether the source passes the configured reverse path check (RFC 3704). */
__noinline int best_leads_back(const struct filter_key *key, __u32 check)
{
	struct way_back back = {};
	__u64 entry;
	__u32 out;

	if (!key || is_unasked(key))
		return 1;
	entry = hop_towards(key, KEY_SOURCE);
	out = HOP_INTERFACE(entry);
	if (out >= HOP_SPECIAL && out != HOP_HOST && out != HOP_RESOLVE && out != HOP_GROUP &&
	    out != HOP_LINUX_ONLY)
		return 0;
	if (check == CHECK_LOOSE)
		return 1;
	back.interface = key->of[KEY_LOGICAL];
	if (out != HOP_GROUP)
		return leads_out(entry, back.interface);
	back.group = entry;
	bpf_loop(1u << (entry >> 32 & 31), try_member, &back, 0);
	return back.found;
}

/* The same; if any feasible path is enough, the best one is checked first. */
static __always_inline int source_comes_back(const struct filter_key *key, __u32 check)
{
	return best_leads_back(key, check) || (feasible_on && check == CHECK_FEASIBLE && comes_feasibly(key));
}

/* How the source of a packet is checked: not at all if it arrived on an unknown interface. */
static __always_inline __u32 check_of(const struct filter_set *set, const struct filter_key *key)
{
	__u32 logical = key->of[KEY_LOGICAL];

	if (logical >= INTERFACES || set->flags & (key->of[KEY_IPV6] ? UNKNOWN_IPV6 : UNKNOWN_IPV4))
		return CHECK_NONE;
	return set->check[logical & (INTERFACES - 1)];
}
