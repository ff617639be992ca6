/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Sets of rules, and the search for the first rule that matches. The same layout is in ../src/filters.rs; the tree
 * is that of crates/filter.
 *
 *     key -> cuts, from the root to a leaf -> its rules, one by one -> the first that matches: drops or not, a counter
 *
 * A root may stand for several trees: then the first rule of all that they find counts.
 *
 * There are two sets. A packet is matched with the set that is current when it arrives, whatever control does meanwhile.
 */
#pragma once

#include "key.h"
#include "layout.h"

const volatile __u32 filters_on SEC(".rodata.filters") = 0;

#define FILTER_WORDS (1 << 18)
#define FILTER_RULES (1 << 14)
#define FILTER_DEPTH 16
#define FILTER_LEAF (1u << 31)
#define FILTER_FORK (FILTER_LEAF | 1u << 30)
#define FILTER_TREES 4
/* The last counter is that of packets that no rule matches. */
#define FILTER_COUNTERS (FILTER_RULES + 1)

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

#define DROP_UNMATCHED 1
#define DROP_TINY 2
#define HAS_CLAIMS 4
/* Families whose routes only Linux knows: the reverse path is not checked. */
#define UNKNOWN_IPV4 8
#define UNKNOWN_IPV6 16
#define HAS_LINUX_ONLY 32
/* Whether some packet may be dropped: by a rule, as a tiny fragment, by its source or by the rate. */
#define MAY_DROP 64

struct filter_set {
	__u32 root;
	__u32 flags;
	__u64 interval; /* that a packet costs its source; 0 for no limit */
	__u64 depth;	/* that a source may be ahead: a burst less one packet */
	__u32 masks[4]; /* of IPv6 sources */
	__u32 mask;	/* of IPv4 sources */
	__u32 claims;	/* root of the tree of claims */
	__u32 linux_only; /* root of the tree of what only Linux may handle */
	__u32 unused;
	__u8 check[INTERFACES];
	__u64 own[LOCAL_BITS / 64];
	__u32 words[FILTER_WORDS];
	__u64 fill;
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

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FILTER_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} filter_counts SEC(".maps");

/* None without filters: before Linux 6.8, global functions are verified even if they are never called. */
static __always_inline const struct filters *both_sets(void)
{
	__u32 zero = 0;

	return filters_on ? bpf_map_lookup_elem(&filters, &zero) : NULL;
}

/* The set for a packet: that of its key, since another one may be current by now. */
static __always_inline const struct filter_set *filter_set(const struct filter_key *key)
{
	const struct filters *both = both_sets();

	return both ? &both->of[key->of[KEY_SET] & 1] : NULL;
}

struct filter_search {
	const struct filter_key *key;
	__u32 list;
	__u32 found; /* as of filter_rule_says */
};

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

/* Compares one rule of a list; one more than its number if it matches, otherwise 0. */
static __always_inline __u32 filter_rule_says(const struct filter_set *set, __u32 at, const struct filter_key *key)
{
	__u32 number = set->words[at & (FILTER_WORDS - 1)] & (FILTER_RULES - 1);

	return rule_matches(&set->rules[number], key) ? number + 1 : 0;
}

static long filter_try(__u32 at, struct filter_search *search)
{
	const struct filter_set *set = filter_set(search->key);

	if (set)
		search->found = filter_rule_says(set, search->list + at, search->key);
	return !set || search->found;
}

/* Rules of a leaf that are compared without a call for each: most leaves have no more. */
#define FILTER_NEAR 4

/* The first of a leaf's rules that matches: one more than its number, or 0. */
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
 * The first rule of a tree that matches: one more than its number, or 0. This function and others that search are not
 * static: so each is verified separately and only once, whatever the searches before it found.
 */
__noinline int asked_tree(const struct filter_key *key, __u32 root)
{
	const struct filter_set *set;

	if (!key)
		return 0;
	set = filter_set(key);
	return set ? filter_first(set, filter_leaf(set, root, key), key) : 0;
}

/* The same for a root that may stand for several trees. */
static __always_inline __u32 filter_find(const struct filter_set *set, __u32 root, const struct filter_key *key)
{
	__u32 count, found, first = 0;

	if ((root & FILTER_FORK) != FILTER_FORK)
		return asked_tree(key, root);
	count = set->words[root & (FILTER_WORDS - 1)];
	for (int i = 0; i < FILTER_TREES; i++) {
		if (i >= count)
			break;
		found = asked_tree(key, set->words[(root + 1 + i) & (FILTER_WORDS - 1)]);
		if (found && (!first || found < first))
			first = found;
	}
	return first;
}

/* The rule that was found. */
static __always_inline const struct filter_rule *filter_rule_of(const struct filter_set *set, __u32 found)
{
	return &set->rules[(found - 1) & (FILTER_RULES - 1)];
}

/* The result of the rules: a counter's number, and whether the packet is dropped. */
__noinline int asked_rules(const struct filter_key *key)
{
	const struct filter_rule *rule;
	const struct filter_set *set;
	__u32 found;

	if (!key)
		return 0;
	set = filter_set(key);
	if (!set)
		return 0;
	found = filter_find(set, set->root, key);
	if (!found)
		return FILTER_RULES | (set->flags & DROP_UNMATCHED ? FOUND_DROPS : 0);
	rule = filter_rule_of(set, found);
	return rule->counter | (rule->drops ? FOUND_DROPS : 0);
}

/* Whether only Linux may handle a packet, whose key has its logical interface: searched in a separate tree. */
__noinline int asked_linux_only(const struct filter_key *key)
{
	const struct filter_set *set;

	if (!key)
		return 0;
	set = filter_set(key);
	if (!set || !(set->flags & HAS_LINUX_ONLY))
		return 0;
	return filter_find(set, set->linux_only, key) != 0;
}

static __always_inline void count_rule(__u32 counter)
{
	__u64 *count = bpf_map_lookup_elem(&filter_counts, &counter);

	if (count)
		*count += 1;
}
