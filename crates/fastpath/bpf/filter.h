/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Filters, ahead of everything else, for what Linux would forward as well: rules, tiny fragments, sources that
 * have no way back, sources that send too much.
 *
 *     frame -> key -> fragments -> source -> rules -> rate -> on to forwarding
 *                '--------'---------'-------'---> for this machine? then Linux has it, else dropped and counted
 *
 * Only in a program that was loaded with filters is any of this left: `filters_on` is known when it is verified,
 * and what it guards is cut out. The same layout is in ../src/filters.rs; the tree is that of crates/filter.
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "layout.h"
#include "vlan.h"

const volatile __u32 filters_on SEC(".rodata.filters") = 0;

#define FILTER_WORDS (1 << 18)
#define FILTER_RULES (1 << 14)
#define FILTER_DEPTH 16
#define FILTER_LEAF (1u << 31)
/* The last counter is that of packets that no rule matches. */
#define FILTER_COUNTERS (FILTER_RULES + 1)
#define FILTER_SOURCES (1 << 16)

/* Words of a key, as crates/filter/src/key.rs has them. */
enum filter_word {
	KEY_SOURCE,
	KEY_DESTINATION = 4,
	KEY_PORTS = 8,
	KEY_PROTOCOL,
	KEY_INTERFACE,
	KEY_KIND,
	KEY_IPV6,
	KEY_FRAGMENT, /* not for rules: whether it is too small for one that may be */
	KEY_LOGICAL,  /* not for rules: the interface of the tag, that of the port where there is none */
	KEY_SET,      /* not for rules: which of the two sets was current when the packet came */
	KEY_WORDS = 16
};

/* An interface that only Linux knows. */
#define NO_INTERFACE 0xffff

enum filter_kind { KIND_PORTS = 1, KIND_LATER = 2, KIND_NONE = 4 };
#define KIND_IPV6_SHIFT 3

struct filter_key {
	__u32 of[KEY_WORDS];
};

struct filter_rule {
	__u32 source, source_mask, destination, destination_mask;
	__u16 ports[4]; /* least and greatest of the source, then of the destination */
	__u16 interface;
	__u16 counter;
	__u8 protocol_least, protocol_greatest;
	__u8 kinds;
	__u8 drops;
	__u32 rest[4][3];
	__u32 unused[4];
};

enum source_check { CHECK_NONE, CHECK_STRICT, CHECK_LOOSE, CHECK_FEASIBLE };

#define DROP_UNMATCHED 1
#define DROP_TINY 2
#define HAS_CLAIMS 4
/* Families whose routes only Linux knows: no way back is asked for. */
#define UNKNOWN_IPV4 8
#define UNKNOWN_IPV6 16

/* Times of the rate limit are in sixteenths of nanoseconds, so that short ones are exact enough. */
#define TICK_SHIFT 4

struct filter_set {
	__u32 root;
	__u32 flags;
	__u64 interval; /* that a packet costs its source; 0 for no limit */
	__u64 depth;	/* that a source may be ahead: a burst less one packet */
	__u32 masks[4]; /* of IPv6 sources */
	__u32 mask;	/* of IPv4 sources */
	__u32 claims;	/* root of the tree of claims */
	__u8 check[INTERFACES];
	__u64 local6[LOCAL_BITS / 64];
	__u32 words[FILTER_WORDS];
	__u64 fill[2];
	struct filter_rule rules[FILTER_RULES];
};

/* Control fills the one that is not current, then flips. */
struct filters {
	__u32 current;
	__u32 unused[15];
	struct filter_set of[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct filters);
} filters SEC(".maps");

/* Claims are in a program of their own sort as well: sockets of workers, by interface and queue. */
const volatile __u32 claims_on SEC(".rodata.claims") = 0;

#define CLAIM_QUEUES 16

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, INGRESSES *CLAIM_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} claims SEC(".maps");

/* Feasible ways back are in a program of their own sort, as filters are. */
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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FILTER_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} filter_counts SEC(".maps");

struct filter_source {
	__u32 words[4];
};

/* When a source's next packet is due if it keeps to its rate. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FILTER_SOURCES);
	__type(key, struct filter_source);
	__type(value, __u64);
} filter_sources SEC(".maps");

/* None where there are no filters: global functions are looked at all the same before Linux 6.8. */
static __always_inline const struct filters *both_sets(void)
{
	__u32 zero = 0;

	return filters_on ? bpf_map_lookup_elem(&filters, &zero) : NULL;
}

/* The set that a packet meets: the one of its key, since another may be current by now. */
static __always_inline const struct filter_set *filter_set(const struct filter_key *key)
{
	const struct filters *both = both_sets();

	return both ? &both->of[key->of[KEY_SET] & 1] : NULL;
}

/* --- the key --- */

static __always_inline bool has_port_numbers(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_DCCP ||
	       protocol == IPPROTO_SCTP || protocol == IPPROTO_UDPLITE;
}

/* Bytes of a TCP header up to and with its flags, which a first fragment must hold (RFC 1858). */
#define TCP_FLAGS_END 16

static __always_inline void filter_ports(struct filter_key *key, struct xdp_md *ctx, __u32 at, __u32 room)
{
	__be32 ports;

	if (has_port_numbers(key->of[KEY_PROTOCOL]) && room >= sizeof(ports) &&
	    !bpf_xdp_load_bytes(ctx, at, &ports, sizeof(ports))) {
		key->of[KEY_PORTS] = bpf_ntohl(ports);
		key->of[KEY_KIND] = KIND_PORTS;
	}
}

/* False for what no router passes on: Linux drops it. `at` is where the header is in the frame. */
static __noinline int filter_key4(struct xdp_md *ctx, struct filter_key *key, __u32 at)
{
	struct ipv4 ip;
	__u32 header, length, fragment;

	if (!key || bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)))
		return 0;
	header = (ip.version_ihl & 0xf) * 4;
	length = bpf_ntohs(ip.total_length);
	fragment = bpf_ntohs(ip.fragment);
	if (ip.version_ihl >> 4 != 4 || header < sizeof(ip) || length < header)
		return 0;
	key->of[KEY_SOURCE] = bpf_ntohl(ip.source);
	key->of[KEY_DESTINATION] = bpf_ntohl(ip.destination);
	key->of[KEY_PROTOCOL] = ip.protocol;
	if (fragment & 0x1fff) {
		key->of[KEY_KIND] = KIND_LATER;
		key->of[KEY_FRAGMENT] = ip.protocol == IPPROTO_TCP && (fragment & 0x1fff) == 1;
		return 1;
	}
	key->of[KEY_FRAGMENT] = ip.protocol == IPPROTO_TCP && fragment & 0x2000 &&
				length - header < TCP_FLAGS_END;
	filter_ports(key, ctx, at + header, length - header);
	return 1;
}

/* An extension header; a fragment header has its offset in `rest`. */
struct extension {
	__u8 next;
	__u8 length;
	__be16 rest;
};

#define EXTENSIONS_MAX 8

static __always_inline bool is_extension(__u32 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS ||
	       next == IPPROTO_FRAGMENT || next == IPPROTO_AH;
}

/* What a first fragment must hold of the header behind the extensions (RFC 7112). */
static __always_inline __u32 least_of(__u32 protocol)
{
	return protocol == IPPROTO_TCP ? 20 : protocol == IPPROTO_UDP || protocol == IPPROTO_ICMPV6 ? 8 : 0;
}

/*
 * Follows a chain of extension headers to what rules ask for. Where it cannot be followed to its end, the last
 * next header counts as the protocol, without ports.
 */
static __noinline int filter_chain(struct xdp_md *ctx, struct filter_key *key, __u32 at, __u32 room)
{
	struct extension header;
	__u32 size, first = 0;

	if (!key)
		return 0;
	for (int i = 0; i < EXTENSIONS_MAX && is_extension(key->of[KEY_PROTOCOL]); i++) {
		at &= 0xffff;
		if (room < 8 || bpf_xdp_load_bytes(ctx, at, &header, sizeof(header))) {
			key->of[KEY_FRAGMENT] = first;
			return 0;
		}
		size = header.length * 8 + 8;
		if (key->of[KEY_PROTOCOL] == IPPROTO_AH)
			size = header.length * 4 + 8;
		if (key->of[KEY_PROTOCOL] == IPPROTO_FRAGMENT) {
			size = 8;
			first = !!(bpf_ntohs(header.rest) & 1);
			if (bpf_ntohs(header.rest) & 0xfff8) {
				key->of[KEY_PROTOCOL] = header.next;
				key->of[KEY_KIND] = KIND_LATER;
				return 0;
			}
		}
		key->of[KEY_PROTOCOL] = header.next;
		at += size;
		if (size > room) {
			key->of[KEY_FRAGMENT] = first;
			return 0;
		}
		room -= size;
	}
	key->of[KEY_FRAGMENT] = first && (is_extension(key->of[KEY_PROTOCOL]) || room < least_of(key->of[KEY_PROTOCOL]));
	filter_ports(key, ctx, at & 0xffff, room);
	return 0;
}

static __noinline int filter_key6(struct xdp_md *ctx, struct filter_key *key, __u32 at)
{
	struct ipv6 ip;
	__u32 *words = (void *)ip.source, room;

	if (!key || bpf_xdp_load_bytes(ctx, at, &ip, sizeof(ip)) ||
	    (ip.version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
		return 0;
	for (int i = 0; i < 8; i++)
		key->of[KEY_SOURCE + i] = bpf_ntohl(words[i]);
	key->of[KEY_PROTOCOL] = ip.next_header;
	key->of[KEY_IPV6] = 1;
	room = bpf_ntohs(ip.payload_length);
	if (is_extension(ip.next_header))
		filter_chain(ctx, key, at + sizeof(ip), room);
	else
		filter_ports(key, ctx, at + sizeof(ip), room);
	key->of[KEY_KIND] <<= KIND_IPV6_SHIFT;
	return 1;
}

/* The same for the common sort, in one go: no tag, no options, no fragment, ports within the packet. */
static __always_inline bool filter_quick(const struct packet *packet, struct filter_key *key)
{
	const struct ethernet *eth = packet->data;
	const struct ipv4 *ip = (void *)(eth + 1);
	const __be32 *ports = (void *)(ip + 1);

	if (eth->type != bpf_htons(ETH_P_IP) || (void *)(ports + 1) > packet->end || ip->version_ihl != 0x45 ||
	    ip->fragment & bpf_htons(0x3fff) || bpf_ntohs(ip->total_length) < sizeof(*ip) + sizeof(*ports))
		return false;
	key->of[KEY_SOURCE] = bpf_ntohl(ip->source);
	key->of[KEY_DESTINATION] = bpf_ntohl(ip->destination);
	key->of[KEY_PROTOCOL] = ip->protocol;
	key->of[KEY_KIND] = KIND_NONE;
	if (has_port_numbers(ip->protocol)) {
		key->of[KEY_PORTS] = bpf_ntohl(*ports);
		key->of[KEY_KIND] = KIND_PORTS;
	}
	return true;
}

/* What rules ask of a frame; false if it is none of theirs. Tags are looked through, as Linux does. */
static __noinline int filter_key(struct xdp_md *ctx, __be16 type, struct filter_key *key)
{
	__u32 at = sizeof(struct ethernet);
	struct vlan_tag tag;

	if (!key)
		return 0;
	key->of[KEY_KIND] = KIND_NONE;
	for (int i = 0; i < 2 && is_tag(type); i++, at += sizeof(tag)) {
		if (bpf_xdp_load_bytes(ctx, at, &tag, sizeof(tag)))
			return 0;
		type = tag.type;
	}
	if (type == bpf_htons(ETH_P_IP))
		return filter_key4(ctx, key, at);
	return type == bpf_htons(ETH_P_IPV6) ? filter_key6(ctx, key, at) : 0;
}

/* --- the rules --- */

struct filter_search {
	const struct filter_key *key;
	__u32 list;
	__u32 found; /* counter and, above, whether it drops */
};

#define FOUND 0x80000000u
#define FOUND_DROPS 0x10000u

static __always_inline bool rule_matches(const struct filter_rule *rule, const struct filter_key *key)
{
	__u32 from = key->of[KEY_PORTS] >> 16, to = key->of[KEY_PORTS] & 0xffff;
	__u32 protocol = key->of[KEY_PROTOCOL], interface = rule->interface, differs = 0;

	if ((key->of[KEY_SOURCE] ^ rule->source) & rule->source_mask ||
	    (key->of[KEY_DESTINATION] ^ rule->destination) & rule->destination_mask ||
	    !(rule->kinds & key->of[KEY_KIND]) || from < rule->ports[0] || from > rule->ports[1] ||
	    to < rule->ports[2] || to > rule->ports[3] || protocol < rule->protocol_least ||
	    protocol > rule->protocol_greatest || (interface != 0xffff && interface != key->of[KEY_INTERFACE]))
		return false;
	if (!key->of[KEY_IPV6])
		return true;
	for (int i = 0; i < 3; i++) {
		differs |= (key->of[KEY_SOURCE + 1 + i] ^ rule->rest[0][i]) & rule->rest[1][i];
		differs |= (key->of[KEY_DESTINATION + 1 + i] ^ rule->rest[2][i]) & rule->rest[3][i];
	}
	return !differs;
}

/* Looks at one rule of a list; what it says, or 0. */
static __always_inline __u32 filter_rule_says(const struct filter_set *set, __u32 at, const struct filter_key *key)
{
	const struct filter_rule *rule =
		&set->rules[set->words[at & (FILTER_WORDS - 1)] & (FILTER_RULES - 1)];

	return rule_matches(rule, key) ? FOUND | rule->counter | (rule->drops ? FOUND_DROPS : 0) : 0;
}

static long filter_try(__u32 at, struct filter_search *search)
{
	const struct filter_set *set = filter_set(search->key);

	if (set)
		search->found = filter_rule_says(set, search->list + at, search->key);
	return !set || search->found;
}

/* Rules of a leaf that are looked at without a call for each: most have no more. */
#define FILTER_NEAR 4

/* The first of a leaf's rules that matches; what it says, or 0. */
static __always_inline __u32 filter_first(const struct filter_set *set, __u32 leaf, const struct filter_key *key)
{
	__u32 count = set->words[leaf & (FILTER_WORDS - 1)], found;
	struct filter_search search = { .key = key, .list = leaf + 1 + FILTER_NEAR };

	for (int i = 0; i < FILTER_NEAR; i++) {
		if (i >= count)
			return 0;
		found = filter_rule_says(set, leaf + 1 + i, key);
		if (found)
			return found;
	}
	if (count > FILTER_NEAR)
		bpf_loop(count - FILTER_NEAR, filter_try, &search, 0);
	return search.found;
}

/* The leaf that a key belongs to. */
static __always_inline __u32 filter_leaf(const struct filter_set *set, __u32 word, const struct filter_key *key)
{
	__u32 field;

	for (int i = 0; i < FILTER_DEPTH; i++) {
		if (word & FILTER_LEAF)
			break;
		field = key->of[word >> 18 & (KEY_WORDS - 1)] >> (word >> 22 & 31);
		field &= (2u << (word >> 27 & 7)) - 1;
		word = set->words[(word + field) & (FILTER_WORDS - 1)];
	}
	return word & (FILTER_WORDS - 1);
}

/*
 * What the rules say: a counter's number, and whether it is dropped. This function and others that search are not
 * static: so each is verified by itself and once, whatever the searches before it found.
 */
__noinline int asked_rules(const struct filter_key *key)
{
	const struct filter_set *set;
	__u32 found;

	if (!key)
		return 0;
	set = filter_set(key);
	if (!set)
		return 0;
	found = filter_first(set, filter_leaf(set, set->root, key), key);
	if (!found)
		found = FILTER_RULES | (set->flags & DROP_UNMATCHED ? FOUND_DROPS : 0);
	return found & (FOUND_DROPS | 0xffff);
}

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

static __always_inline void count_rule(__u32 counter)
{
	__u64 *count = bpf_map_lookup_elem(&filter_counts, &counter);

	if (count)
		*count += 1;
}

/* --- sources --- */

__noinline int source_over_rate(const struct filter_key *key)
{
	const struct filter_set *set;
	struct filter_source source = {};
	__u64 now, due, from, *at;

	if (!key)
		return 0;
	set = filter_set(key);
	if (!set || !set->interval)
		return 0;
	if (key->of[KEY_IPV6]) {
		for (int i = 0; i < 4; i++)
			source.words[i] = key->of[KEY_SOURCE + i] & set->masks[i];
	} else {
		source.words[2] = 0xffff; /* ::ffff:0:0/96, where no IPv6 packet comes from */
		source.words[3] = key->of[KEY_SOURCE] & set->mask;
	}
	now = bpf_ktime_get_ns() << TICK_SHIFT;
	at = bpf_map_lookup_elem(&filter_sources, &source);
	if (!at) {
		due = now + set->interval;
		bpf_map_update_elem(&filter_sources, &source, &due, BPF_NOEXIST);
		return 0;
	}
	due = *at;
	from = due > now ? due : now;
	if (from - now > set->depth)
		return 1;
	/* Another processor may have charged it meanwhile: then this packet is charged on top. */
	if (__sync_val_compare_and_swap(at, due, from + set->interval) != due)
		__sync_fetch_and_add(at, set->interval);
	return 0;
}

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

	return out == interface || (out == HOP_RESOLVE && (entry & 0xffff) == interface);
}

static long try_member(__u32 at, struct way_back *back)
{
	__u32 hop = hops.buckets[((__u32)back->group + at) & (BUCKETS - 1)];
	back->found = leads_out(hops.entries[hop & (HOPS - 1)], back->interface);
	return back->found;
}

/* Sources that no route can be asked for: DHCP's 0.0.0.0, and those of the link. */
static __always_inline bool is_unasked(const struct filter_key *key)
{
	__u32 first = key->of[KEY_SOURCE];

	if (!key->of[KEY_IPV6])
		return !first;
	return first >> 22 == 0x3fa || !(first | key->of[1] | key->of[2] | key->of[3]);
}

/* Whether a set of interfaces holds one. */
static __always_inline int is_in_set(const __u64 *sets, __u32 set, __u32 interface)
{
	__u32 word = (set & (SETS - 1)) * SET_WORDS + (interface >> 6 & (SET_WORDS - 1));

	/* Linux 6.1 knows no bounds of such a sum: it is told at the end, where clang sees no need. */
	asm volatile("" : "+r"(word));
	word &= SETS * SET_WORDS - 1;
	return sets[word] >> (interface & 63) & 1;
}

/* Whether a worse route to the source's prefix leads out of the interface it came in on (RFC 3704 2.3). */
__noinline int comes_feasibly(const struct filter_key *key)
{
	struct address6 address;
	__u32 zero = 0;

	/* Linux before 6.8 looks at a global function though nobody calls it, and then these maps are not there. */
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

/* Whether there is a way back to the source, as the configuration wants it (RFC 3704). */
__noinline int best_leads_back(const struct filter_key *key, __u32 check)
{
	struct way_back back = {};
	__u64 entry;
	__u32 out;

	if (!key || is_unasked(key))
		return 1;
	entry = hop_towards(key, KEY_SOURCE);
	out = HOP_INTERFACE(entry);
	if (out >= HOP_SPECIAL && out != HOP_HOST && out != HOP_RESOLVE && out != HOP_GROUP)
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

/* The same; where any feasible way will do, the best is asked for first. */
static __always_inline int source_comes_back(const struct filter_key *key, __u32 check)
{
	return best_leads_back(key, check) || (feasible_on && check == CHECK_FEASIBLE && comes_feasibly(key));
}

/* --- all of it --- */

/* Whether a packet is for this machine or its link: Linux's own filters are there for those. */
__noinline int is_for_linux(const struct filter_key *key, __u32 may_be_local)
{
	__u32 first;

	if (!key)
		return 1;
	first = key->of[KEY_DESTINATION];
	if (key->of[KEY_IPV6] ? first >> 24 == 0xff || first >> 22 == 0x3fa : !is_single_host(first))
		return 1;
	return may_be_local && HOP_INTERFACE(hop_towards(key, KEY_DESTINATION)) == HOP_HOST;
}

/* Whether an IPv6 destination may be an address of ours; the hash is that of ../src/filters.rs. */
static __always_inline bool may_be_local6(const struct filter_set *set, const struct filter_key *key)
{
	__u32 hash = (key->of[4] ^ key->of[5] ^ key->of[6] ^ key->of[7]) * LOCAL_HASH >> 20;

	return set->local6[hash >> 6 & (LOCAL_BITS / 64 - 1)] >> (hash & 63) & 1;
}

/* How the source of a packet is checked: not at all where it came in on no interface of ours. */
static __always_inline __u32 check_of(const struct filter_set *set, const struct filter_key *key)
{
	__u32 logical = key->of[KEY_LOGICAL];

	if (logical >= INTERFACES || set->flags & (key->of[KEY_IPV6] ? UNKNOWN_IPV6 : UNKNOWN_IPV4))
		return CHECK_NONE;
	return set->check[logical & (INTERFACES - 1)];
}

static __always_inline enum verdict filter_verdict(const struct filter_set *set, const struct filter_key *key)
{
	__u32 check, found;

	if (key->of[KEY_FRAGMENT] && set->flags & DROP_TINY)
		return DROPPED_TINY_FRAGMENT;
	check = check_of(set, key);
	if (check != CHECK_NONE && !source_comes_back(key, check))
		return DROPPED_REVERSE_PATH;
	found = asked_rules(key);
	if (!(found & FOUND_DROPS))
		count_rule(found & 0xffff);
	if (found & FOUND_DROPS)
		return DROPPED_FILTER + (found << 8);
	return set->interval && source_over_rate(key) ? DROPPED_RATE_LIMIT : FORWARDED;
}

/* The interface that a frame came in on; NULL where Linux alone knows it. */
static __always_inline const struct ingress *logical_interface(const struct packet *packet)
{
	const struct ethernet *eth = packet->data;
	const struct vlan_tag *tag = (void *)(eth + 1);
	__u32 number;

	if (!is_tag(eth->type) || (void *)(tag + 1) > packet->end)
		return packet->ingress;
	number = bpf_ntohs(tag->priority_id) & VLAN_ID;
	if (!number)
		return packet->ingress;
	if (is_tag(tag->type))
		return NULL;
	return vlan_ingress(packet->view, packet->ingress->ifindex,
			    (__u32)bpf_ntohs(eth->type) << 16 | number);
}

/* Whether workers may have a frame: it is for us, of an interface that is forwarded from, and a daemon lives. */
static __always_inline bool is_claimable(const struct packet *packet, const struct ingress *logical, bool ipv6)
{
	__u64 mac = *(__u64 *)packet->data << 16;

	return logical && logical->flags & (ipv6 ? FORWARD_IPV6 : FORWARD_IPV4) &&
	       (mac == logical->mac || mac == packet->ingress->mac) && !is_unattended();
}

/* Whether filters are asked about a frame: Linux takes tagged ones for the MACs of its VLANs as well. */
static __always_inline bool is_filtered(const struct packet *packet)
{
	const struct ethernet *eth = packet->data;

	return *(__u64 *)eth << 16 == packet->ingress->mac || is_tag(eth->type);
}

/* Sends a claimed frame to the worker of its queue; Linux has it where there is none. */
static __always_inline int claimed(struct xdp_md *ctx, const struct packet *packet)
{
	__u32 queue = ctx->rx_queue_index, place;
	int verdict = XDP_PASS;

	place = (ctx->ingress_ifindex & (INGRESSES - 1)) * CLAIM_QUEUES + queue;
	if (queue < CLAIM_QUEUES)
		verdict = bpf_redirect_map(&claims, place, XDP_PASS);
	count(packet->ingress->interface, verdict == XDP_REDIRECT ? CLAIMED : PASSED_NO_WORKER, 0);
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

/* What filters say of a frame: FORWARDED, CLAIMED, or why it is dropped. */
static __always_inline enum verdict filtered(struct xdp_md *ctx, const struct packet *packet)
{
	const struct filters *both = both_sets();
	const struct ethernet *eth = packet->data;
	const struct filter_set *set;
	const struct ingress *logical;
	struct filter_key key = {};
	__u32 verdict, local, claim = 0;

	if (!both || (!filter_quick(packet, &key) && !filter_key(ctx, eth->type, &key)))
		return FORWARDED;
	/* Read once: control may make the other set current at any time, and a packet meets one of them whole. */
	key.of[KEY_SET] = *(volatile const __u32 *)&both->current & 1;
	set = &both->of[key.of[KEY_SET] & 1];
	logical = logical_interface(packet);
	key.of[KEY_INTERFACE] = packet->ingress->interface;
	key.of[KEY_LOGICAL] = logical ? logical->interface : NO_INTERFACE;
	verdict = filter_verdict(set, &key);
	if (verdict == FORWARDED) {
		if (claims_on && is_claimable(packet, logical, key.of[KEY_IPV6]))
			claim = asked_claims(&key);
		if (!claim || is_in_pieces(ctx))
			return FORWARDED;
	}
	local = key.of[KEY_IPV6] ? may_be_local6(set, &key) :
				   may_be_local(packet->view, key.of[KEY_DESTINATION]);
	if (is_for_linux(&key, local))
		return FORWARDED;
	if (claim) {
		count_rule(claim - 1);
		return CLAIMED;
	}
	if ((verdict & 0xff) == DROPPED_FILTER)
		count_rule(verdict >> 8 & 0xffff);
	return verdict & 0xff;
}
