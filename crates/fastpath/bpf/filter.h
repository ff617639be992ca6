/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Filters, before everything else, for packets that Linux would forward as well: rules, tiny fragments, sources
 * without a reverse path, sources that send too much.
 *
 *     frame -> key -> fragments -> source -> rules -> rate -> Linux only? then Linux has it -> on to forwarding
 *                '--------'---------'-------'---> for this machine? then Linux has it, else dropped and counted
 *
 * Steps are in separate files (key.h, source.h, rules.h, rate.h); packets that pass may be claimed for workers (claims.h).
 * Only a program that was loaded with filters contains any of this: `filters_on` is known when it is verified,
 * and code that it guards is removed.
 */
#pragma once

#include "claims.h"
#include "key.h"
#include "layout.h"
#include "rate.h"
#include "rules.h"
#include "source.h"

/*
 * Whether a packet is for this machine or its link: Linux's own filters apply to those. A route that leads to Linux may be
 * one that Linux forwards by, or stand for routes that are not known.
 */
__noinline int is_for_linux(const struct filter_key *key, __u32 may_be_own)
{
	__u32 first;
	__u64 hop;

	if (!key)
		return 1;
	first = key->of[KEY_DESTINATION];
	if (key->of[KEY_IPV6] ? first >> 24 == 0xff || first >> 22 == 0x3fa : !is_single_host(first))
		return 1;
	hop = hop_towards(key, KEY_DESTINATION);
	return hop == HOP_LOCAL || (may_be_own && HOP_INTERFACE(hop) == HOP_HOST);
}

/*
 * Whether a destination may be an address of an interface; the hash is that of ../src/filters.rs. Of IPv4 only the first
 * word is not 0.
 */
static __always_inline bool may_be_own(const struct filter_set *set, const struct filter_key *key)
{
	__u32 hash = (key->of[4] ^ key->of[5] ^ key->of[6] ^ key->of[7]) * LOCAL_HASH >> 20;

	return set->own[hash >> 6 & (LOCAL_BITS / 64 - 1)] >> (hash & 63) & 1;
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

/*
 * Whether a frame is for the port's own MAC, or tagged. Filters apply to others too, since Linux may also forward those:
 * it takes frames for the MACs of interfaces on the port (macvlan), any unicast frame where there is one in passthru
 * mode, and those for the port's new MAC before control has learned it.
 */
static __always_inline bool is_for_port(context *ctx, const struct packet *packet)
{
	const struct ethernet *eth = packet->data;

	return *(__u64 *)eth << 16 == packet->ingress->mac || is_tagged(ctx, packet);
}

/* Linux's rules refer to the VLAN on which a packet arrived, those of the configuration to the port. */
static __always_inline bool is_linux_only(struct filter_key *key)
{
	__u32 port = key->of[KEY_INTERFACE], found;

	key->of[KEY_INTERFACE] = key->of[KEY_LOGICAL];
	found = asked_linux_only(key);
	key->of[KEY_INTERFACE] = port;
	return found;
}

/* The result of filters for a frame: FORWARDED, CLAIMED, PASSED_FIREWALL, or why it is dropped. */
static __always_inline enum verdict filtered(context *ctx, const struct packet *packet)
{
	const struct filters *both = both_sets();
	const struct ethernet *eth = packet->data;
	const struct filter_set *set;
	const struct ingress *logical;
	struct filter_key key = {};
	__u32 verdict, claim = 0, known = 1;

	if (!both)
		return FORWARDED;
	if (!filter_quick(packet, &key))
		known = filter_key(ctx, eth->type, &key);
	if (!known)
		return FORWARDED;
	/* Read once: control may switch sets at any time, and each packet must be matched with only one of them. */
	key.of[KEY_SET] = *(volatile const __u32 *)&both->current & 1;
	set = &both->of[key.of[KEY_SET] & 1];
	if (known == KEY_UNKNOWN)
		return set->flags & MAY_DROP ? DROPPED_FILTER : FORWARDED;
	/* Frames to a group MAC are routed only if a rule of Linux makes them unicast. All others use up no rate. */
	if (*(__u8 *)eth & 1 && is_for_linux(&key, 1))
		return FORWARDED;
	logical = logical_interface(ctx, packet);
	key.of[KEY_INTERFACE] = packet->ingress->interface;
	key.of[KEY_LOGICAL] = logical ? logical->interface : NO_INTERFACE;
	verdict = filter_verdict(set, &key);
	if (verdict == FORWARDED && !is_for_port(ctx, packet))
		return FORWARDED;
	if (verdict == FORWARDED) {
		if (set->flags & HAS_LINUX_ONLY && is_linux_only(&key))
			return PASSED_FIREWALL;
		if (claims_on && is_claimable(packet, logical, key.of[KEY_IPV6]))
			claim = asked_claims(&key);
		if (!claim || is_in_pieces(ctx))
			return FORWARDED;
	}
	if (is_for_linux(&key, may_be_own(set, &key)))
		return FORWARDED;
	if (claim) {
		count_rule(claim - 1);
		return CLAIMED;
	}
	if ((verdict & 0xff) == DROPPED_FILTER)
		count_rule(verdict >> 8 & 0xffff);
	return verdict & 0xff;
}
