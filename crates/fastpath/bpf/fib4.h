/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * IPv4 lookup in `chunk17`, whose layout is drawn in crates/fib/src/chunk.rs: one load of the root, three of a block,
 * one of the next hop. No step branches or loops, and a mask keeps each index in bounds.
 */
#pragma once

#include "layout.h"

#define BLOCK (1u << 31)
#define DEEP (1u << 30)
#define OFFSET ((1u << 22) - 1)
#define DEEP_WORDS 2
#define KEYS 128

static __always_inline __u64 fib4_word(const struct fib4 *fib, __u32 at)
{
	return fib->words[at & (FIB4_WORDS - 1)];
}

/* Bits set in each byte of a word: BPF has no instruction for it. */
static __always_inline __u64 ones_by_byte(__u64 word)
{
	word -= word >> 1 & 0x5555555555555555ull;
	word = (word & 0x3333333333333333ull) + (word >> 2 & 0x3333333333333333ull);
	return (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0full;
}

/* The sum of a word's bytes, up to 255. */
static __always_inline __u32 sum_of_bytes(__u64 word)
{
	return word * 0x0101010101010101ull >> 56;
}

static __always_inline __u32 fib4_half(const struct fib4 *fib, __u32 block, __u32 half)
{
	return fib4_word(fib, block + (half >> 2)) >> 16 * (half & 3) & 0xffff;
}

/* The two bytes that a block has for a key of seven bits. */
static __always_inline __u32 fib4_find(const struct fib4 *fib, __u32 block, __u32 key)
{
	__u64 mask = (2ull << (key & 63)) - 1, second = -(__u64)(key >> 6);
	__u64 ones = ones_by_byte(fib4_word(fib, block) & (mask | second)) +
		     ones_by_byte(fib4_word(fib, block + 1) & mask & second);

	return fib4_half(fib, block, 7 + sum_of_bytes(ones));
}

/* The two bytes that a wide block has for a key of eight bits. */
static __always_inline __u32 fib4_find_wide(const struct fib4 *fib, __u32 block, __u32 key)
{
	__u32 at = key >> 6;
	__u64 starts = fib4_word(fib, block + at) & ((2ull << (key & 63)) - 1);
	__u32 before = fib4_word(fib, block + 4) >> 8 * at & 0xff;

	return fib4_half(fib, block, 17 + before + sum_of_bytes(ones_by_byte(starts)));
}

/* The next hop of an address in host order. */
static __always_inline __u32 fib4_lookup(const struct fib4 *fib, __u32 address)
{
	__u32 entry = fib->root[address >> FIB4_SHIFT], block, hop, key = address >> 8 & (KEYS - 1);

	if (!(entry & BLOCK))
		return entry;
	block = entry & OFFSET;
	if (!(entry & DEEP))
		return fib4_find(fib, block, key);
	hop = fib4_find(fib, block + DEEP_WORDS, key);
	if (fib4_word(fib, block + (key >> 6)) >> (key & 63) & 1)
		hop = fib4_find_wide(fib, block + hop, address & 0xff);
	return hop;
}
