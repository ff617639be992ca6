/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* The MAC address table, and the entries that each port has in it (layout.h). */
#pragma once

#define EEXIST 17

/* By MAC address, with the VLAN above it. The daemon sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct fdb_entry);
} fdb SEC(".maps");

/* Keys of the MAC addresses in the places of one port. */
struct of_port {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_INNER_MAP); /* the port's limit sets the size */
	__type(key, __u32);
	__type(value, __u64);
};

/* By slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__array(values, struct of_port);
} places SEC(".maps");

/* By slot: the place at which the next search starts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} hands SEC(".maps");

/* How many MAC addresses have places beyond the OWN_PLACES of their ports. The daemon recounts them now and then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} shared SEC(".maps");

/* Marks the place of a MAC address as free. */
static __always_inline void give_back(__u32 place)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&shared, &zero);

	if (count && place >= OWN_PLACES)
		__sync_fetch_and_add(count, -1);
}

/* Whether a MAC address may have this free place. */
static __always_inline bool may_take(__u32 place)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&shared, &zero);

	if (place < OWN_PLACES)
		return true;
	if (!count || *(volatile __u64 *)count >= rules.table)
		return false;
	__sync_fetch_and_add(count, 1);
	return true;
}

/* The entry that occupies a place; NULL if it is free. */
static __always_inline struct fdb_entry *tenant(__u32 slot, __u32 place, __u64 name)
{
	struct fdb_entry *known = name ? bpf_map_lookup_elem(&fdb, &name) : NULL;

	if (!known || known->slot != slot || known->place != place || known->flags & FDB_STATIC)
		return NULL;
	return known;
}

/* A free place, or among those tried the one whose MAC address was seen longest ago. */
static __always_inline __u32 choose(void *of, __u32 slot, __u32 places, __u32 hand)
{
	__u32 oldest = 0, place;
	__u64 seen = ~0ull;

	for (__u32 i = 0; i < PLACES_TRIED; i++) {
		struct fdb_entry *known;
		__u64 *at;

		place = (hand + i) % places;
		at = bpf_map_lookup_elem(of, &place);
		if (!at)
			break;
		known = tenant(slot, place, *at);
		if (!known) {
			if (may_take(place))
				return place;
		} else if (known->seen_ns < seen) {
			seen = known->seen_ns;
			oldest = place;
		}
	}
	/* Even if MAC addresses of other ports fill the table, a port has places of its own. */
	return seen != ~0ull ? oldest : hand % (places < OWN_PLACES ? places : OWN_PLACES);
}

/*
 * Takes a place for a MAC address, evicting another one of the port if none is free. Returns false if another core
 * took the place at the same moment.
 */
static __always_inline bool take_place(__u32 slot, __u32 places_here, __u64 name, __u32 *place)
{
	void *of = bpf_map_lookup_elem(&places, &slot);
	__u32 *hand = bpf_map_lookup_elem(&hands, &slot);
	bool evicts;
	__u64 *at, old;

	if (!of || !hand || !places_here)
		return false;
	*place = choose(of, slot, places_here, __sync_fetch_and_add(hand, 1));
	at = bpf_map_lookup_elem(of, place);
	if (!at)
		return false;
	old = *(volatile __u64 *)at;
	evicts = old != name && tenant(slot, *place, old);
	if (__sync_val_compare_and_swap(at, old, name) != old) {
		if (!evicts)
			give_back(*place);
		return false;
	}
	if (evicts && !bpf_map_delete_elem(&fdb, &old))
		add(slot, EVICTED, 1);
	return true;
}

/* Learns a source address on its port. */
static __always_inline void learn_at(__u32 slot, __u32 places_here, __u64 name, __u64 now)
{
	struct fdb_entry entry = { .slot = slot, .seen_ns = now };
	long failed;

	if (!take_place(slot, places_here, name, &entry.place)) {
		add(slot, TABLE_FULL, 1);
		return;
	}
	failed = bpf_map_update_elem(&fdb, &name, &entry, BPF_NOEXIST);
	if (!failed) {
		add(slot, LEARNED, 1);
		return;
	}
	give_back(entry.place);
	/* Another core may have learned it at the same moment. */
	if (failed != -EEXIST)
		add(slot, TABLE_FULL, 1);
}
