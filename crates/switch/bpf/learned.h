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

/* Keys of the MAC addresses that one port has learned, by index. */
struct learned_macs {
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
	__array(values, struct learned_macs);
} learned SEC(".maps");

/* By slot: the index at which the next search starts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} search_start SEC(".maps");

/* How many MAC addresses have an index beyond RESERVED_MACS of their ports. The daemon recounts them now and then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} shared SEC(".maps");

/* Gives back the share of the table of a MAC address with this index. */
static __always_inline void give_back_share(__u32 index)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&shared, &zero);

	if (count && index >= RESERVED_MACS)
		__sync_fetch_and_add(count, -1);
}

/* Whether a MAC address may have this free index; takes a share of the table for it. */
static __always_inline bool take_share(__u32 index)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&shared, &zero);

	if (index < RESERVED_MACS)
		return true;
	if (!count || *(volatile __u64 *)count >= rules.table)
		return false;
	__sync_fetch_and_add(count, 1);
	return true;
}

/* The entry with this index; NULL if the index is free. */
static __always_inline struct fdb_entry *entry_at(__u32 slot, __u32 index, __u64 name)
{
	struct fdb_entry *known = name ? bpf_map_lookup_elem(&fdb, &name) : NULL;

	if (!known || known->slot != slot || known->index != index || known->flags & FDB_STATIC)
		return NULL;
	return known;
}

/* A free index, or among those tried the one whose MAC address was seen longest ago. */
static __always_inline __u32 choose(void *macs, __u32 slot, __u32 learned_max, __u32 start)
{
	__u32 oldest = 0, index;
	__u64 seen = ~0ull;

	for (__u32 i = 0; i < INDEXES_TRIED; i++) {
		struct fdb_entry *known;
		__u64 *at;

		index = (start + i) % learned_max;
		at = bpf_map_lookup_elem(macs, &index);
		if (!at)
			break;
		known = entry_at(slot, index, *at);
		if (!known) {
			if (take_share(index))
				return index;
		} else if (known->seen_ns < seen) {
			seen = known->seen_ns;
			oldest = index;
		}
	}
	/* Even if MAC addresses of other ports fill the table, a port has RESERVED_MACS. */
	return seen != ~0ull ? oldest : start % (learned_max < RESERVED_MACS ? learned_max : RESERVED_MACS);
}

/*
 * Takes an index for a MAC address, evicting another one of the port if none is free. Returns false if another core
 * took the index at the same moment.
 */
static __always_inline bool take_index(__u32 slot, __u32 learned_max, __u64 name, __u32 *index)
{
	void *macs = bpf_map_lookup_elem(&learned, &slot);
	__u32 *start = bpf_map_lookup_elem(&search_start, &slot);
	bool evicts;
	__u64 *at, old;

	if (!macs || !start || !learned_max)
		return false;
	*index = choose(macs, slot, learned_max, __sync_fetch_and_add(start, 1));
	at = bpf_map_lookup_elem(macs, index);
	if (!at)
		return false;
	old = *(volatile __u64 *)at;
	evicts = old != name && entry_at(slot, *index, old);
	if (__sync_val_compare_and_swap(at, old, name) != old) {
		if (!evicts)
			give_back_share(*index);
		return false;
	}
	if (evicts && !bpf_map_delete_elem(&fdb, &old))
		add(slot, EVICTED, 1);
	return true;
}

/* Learns a source address on its port. */
static __always_inline void learn_at(__u32 slot, __u32 learned_max, __u64 name, __u64 now)
{
	struct fdb_entry entry = { .slot = slot, .seen_ns = now };
	long failed;

	if (!take_index(slot, learned_max, name, &entry.index)) {
		add(slot, TABLE_FULL, 1);
		return;
	}
	failed = bpf_map_update_elem(&fdb, &name, &entry, BPF_NOEXIST);
	if (!failed) {
		add(slot, LEARNED, 1);
		return;
	}
	give_back_share(entry.index);
	/* Another core may have learned it at the same moment. */
	if (failed != -EEXIST)
		add(slot, TABLE_FULL, 1);
}
