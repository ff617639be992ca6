/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * IPv6 lookup in `range6`, whose layout is drawn in crates/fib/src/range6.rs: a root of 16 bits, then for each
 * window of 32 bits forks and a leaf, one cache line per step. A place in a line is found by binary search without
 * branches, and a mask keeps each index in bounds.
 */
#pragma once

#include "layout.h"

#define TREE (1u << 31)
#define TREE_LINE ((1u << 28) - 1)
#define HEIGHT_MAX 7
#define WINDOWS 4

/* Address in host order: the first eight bytes, and the last. */
struct address6 {
	__u64 high;
	__u64 low;
};

static __always_inline const __u32 *fib6_line(const struct fib6 *fib, __u32 line)
{
	return fib->cells + (line & (FIB6_LINES - 1)) * FIB6_CELLS;
}

/* 1 if `end` is before `key`, without a branch. */
static __always_inline __u64 is_past(__u32 end, __u32 key)
{
	return ((__u64)end - key) >> 63;
}

/* How many of fifteen ends a key is past. */
static __always_inline __u64 ends_of_fork(const __u32 *cells, __u32 key)
{
	__u64 n = is_past(cells[7], key) << 3;

	n += is_past(cells[n + 3], key) << 2;
	n += is_past(cells[n + 1], key) << 1;
	return n + is_past(cells[n], key);
}

/* How many of ten. */
static __always_inline __u64 ends_of_leaf(const __u32 *cells, __u32 key)
{
	__u64 n = is_past(cells[4], key) * 5;

	n += is_past(cells[n + 2], key) * 3;
	n += is_past(cells[n], key);
	return n + is_past(cells[n], key);
}

/* How many of seven. */
static __always_inline __u64 ends_of_wide_leaf(const __u32 *cells, __u32 key)
{
	__u64 n = is_past(cells[3], key) << 2;

	n += is_past(cells[n + 1], key) << 1;
	return n + is_past(cells[n], key);
}

/* The next hop in a leaf for a key: two bytes, or a word if the leaf is wide. */
static __always_inline __u32 fib6_leaf(const __u32 *cells, __u32 key)
{
	__u64 n;

	if (cells[15] >> 16 != 0xffff)
		return cells[8 + ends_of_wide_leaf(cells, key)];
	n = ends_of_leaf(cells, key);
	return cells[10 + (n >> 1)] >> 16 * (n & 1) & 0xffff;
}

/* One window: the word of the range that `key` is in. */
static __always_inline __u32 fib6_descend(const struct fib6 *fib, __u32 word, __u32 key)
{
	__u32 height = word >> 28 & 7, line = word & TREE_LINE;
	const __u32 *cells;

	for (int level = 0; level < HEIGHT_MAX; level++) {
		if (level >= height)
			break;
		cells = fib6_line(fib, line);
		line = cells[15] + ends_of_fork(cells, key);
	}
	return fib6_leaf(fib6_line(fib, line), key);
}

/* The window of 32 bits from bit 16 + 32 * depth on. */
static __always_inline __u32 fib6_key(struct address6 address, int depth)
{
	switch (depth) {
	case 0:
		return address.high >> 16;
	case 1:
		return address.high << 16 | address.low >> 48;
	case 2:
		return address.low >> 16;
	default:
		return address.low << 16;
	}
}

static __always_inline __u32 fib6_lookup(const struct fib6 *fib, struct address6 address)
{
	__u32 word = fib->root[address.high >> 48];

	for (int depth = 0; depth < WINDOWS; depth++) {
		if (!(word & TREE))
			return word;
		word = fib6_descend(fib, word, fib6_key(address, depth));
	}
	return word & TREE ? 0 : word;
}
