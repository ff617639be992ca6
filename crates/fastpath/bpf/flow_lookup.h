/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Finds flows in their table (flow_table.h), by a keyed hash in two buckets, of which the second is rarely looked at. What
 * it finds may be used until the program ends: an entry is written anew only after an RCU grace period.
 */
#pragma once

#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "flow.h"
#include "flow_table.h"
#include "layout.h"

#ifdef FLOWS

/* Numbers of buckets and of flows for which the map has room; and after how many jiffies a connection is looked up again. */
const volatile struct {
	__u32 buckets;
	__u32 flows;
	__u32 check_every;
} room SEC(".rodata.flows") = { 1, 1, 1 };

/* One value: a page with the head, the buckets, and the flows from the next page on. The loader sets its size. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_head);
} flows SEC(".maps");

static __always_inline __u32 first_bucket(__u64 hash)
{
	return (hash & 0xffffffff) * room.buckets >> 32;
}

static __always_inline __u32 second_bucket(__u64 hash)
{
	return (hash >> 32) * room.buckets >> 32;
}

static __always_inline __u32 tag_of(__u64 hash)
{
	return hash * FLOW_TAG_HASH >> FLOW_TAG_SHIFT;
}

static __always_inline const struct flow_bucket *bucket_at(const void *table, __u32 at)
{
	return at < room.buckets ? table + sizeof(struct flow_head) + at * sizeof(struct flow_bucket) : NULL;
}

/* The flow with this number; NULL for none. */
static __always_inline struct flow *flow_at(void *table, __u32 number)
{
	__u32 from = (sizeof(struct flow_head) + room.buckets * sizeof(struct flow_bucket) + PAGE - 1) & ~(PAGE - 1);

	number--;
	return number < room.flows ? table + from + number * sizeof(struct flow) : NULL;
}

/* How one of a flow's packets is known: as in its headers, IPv4 addresses in the first words. */
struct flow_key {
	__u32 source[4];
	__u32 destination[4];
	__u32 ports;
	__u32 rest; /* the interface on which it arrives, then family and protocol, as in struct flow */
};

#define FLOW_REST(interface, family, protocol) \
	((__u32)(interface) | (__u32)(protocol) << 16 | (__u32)(family) << 24)

static __always_inline bool is_flow(const struct flow *flow, const struct flow_key *key, __u32 epoch)
{
	__u32 rest = FLOW_REST(flow->interface, flow->family, flow->protocol);

	if (flow->ports != key->ports || rest != key->rest || flow->epoch != epoch ||
	    flow->source[0] != key->source[0] || flow->destination[0] != key->destination[0])
		return false;
	if (key->rest >> 24 == 4)
		return true;
	return flow->source[1] == key->source[1] && flow->source[2] == key->source[2] &&
	       flow->source[3] == key->source[3] && flow->destination[1] == key->destination[1] &&
	       flow->destination[2] == key->destination[2] && flow->destination[3] == key->destination[3];
}

static __always_inline __u64 word_of(const __u32 *words)
{
	return words[0] | (__u64)words[1] << 32;
}

/* Spreads differences in few bits, such as those between consecutive ports, over all of them. */
static __always_inline __u64 spread(__u64 hash)
{
	hash = (hash ^ hash >> 32) * FLOW_TAG_HASH;
	return hash ^ hash >> 29;
}

static __always_inline __u64 hash_of(const struct flow_head *head, const struct flow_key *key)
{
	__u64 rest = (__u64)key->ports << 32 | (key->rest & 0xffff) << 16 | (key->rest >> 24) << 8 |
		     (key->rest >> 16 & 0xff);
	__u64 hash;

	if (key->rest >> 24 == 4) {
		hash = mix((__u64)key->source[0] << 32 | key->destination[0], head->key[0]);
		return spread(mix(hash ^ rest, head->key[1]));
	}
	hash = mix(word_of(key->source) ^ head->key[0], word_of(key->source + 2) ^ head->key[1]);
	hash = mix(hash ^ word_of(key->destination), word_of(key->destination + 2) ^ head->key[0]);
	return spread(mix(hash ^ rest, head->key[1]));
}

/* The number of a key's flow among those of a bucket; 0 if there is none. */
static __always_inline __u32 in_bucket(void *table, const struct flow_bucket *bucket, __u32 tag,
				       const struct flow_key *key, __u32 epoch)
{
	struct flow *flow;

	if (!bucket)
		return 0;
	for (int way = 0; way < FLOW_WAYS; way++) {
		__u32 slot = bucket->of[way];

		if (!(slot & FLOW_NUMBER_MASK) || slot >> FLOW_TAG_AT != tag)
			continue;
		flow = flow_at(table, slot & FLOW_NUMBER_MASK);
		if (flow && is_flow(flow, key, epoch))
			return slot & FLOW_NUMBER_MASK;
	}
	return 0;
}

/* The number of a key's flow; 0 if there is none. */
static __noinline __u32 find_number(const struct flow_key *key)
{
	__u32 zero = 0, tag, epoch, number;
	struct flow_head *head = bpf_map_lookup_elem(&flows, &zero);
	const struct flow_bucket *bucket;
	__u64 hash;

	if (!head)
		return 0;
	hash = hash_of(head, key);
	tag = tag_of(hash);
	epoch = head->epoch;
	bucket = bucket_at(head, first_bucket(hash));
	number = in_bucket(head, bucket, tag, key, epoch);
	if (number || !bucket || !(bucket->of[0] & FLOW_SPILLS))
		return number;
	return in_bucket(head, bucket_at(head, second_bucket(hash)), tag, key, epoch);
}

static __always_inline struct flow *numbered(__u32 number)
{
	__u32 zero = 0;
	void *table = bpf_map_lookup_elem(&flows, &zero);

	return table && number ? flow_at(table, number) : NULL;
}

/* The flow of a key; NULL if there is none. */
static __always_inline struct flow *find_flow(const struct flow_key *key)
{
	return numbered(find_number(key));
}

#endif
