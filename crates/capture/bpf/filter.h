/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* The filter of a capture: room that ../src/filter.rs fills with instructions before the program is loaded. */
#pragma once

#include <linux/types.h>
#include <stdbool.h>

#define LOOKED_AT_MAX 256 /* the same in brickmoon/filter/bpf.lua */
/*
 * As many instructions as a filter may have, less one. The room begins with one instruction that is nowhere else; then
 * come jumps to the next instruction, which the kernel removes.
 */
#define ROOM_MARK 0x626d6669

/*
 * The filter: r1 points to a frame of r2 bytes, the first r3 of which are there. It uses r0, r4, r5 and the stack, and
 * leaves in r0 whether the frame matches.
 */
static __attribute__((naked, noinline, used)) void filter(void)
{
	asm volatile("r0 = %[mark]\n"
		     ".rept 2047\n"
		     "goto +0\n"
		     ".endr\n"
		     "exit\n"
		     :
		     : [mark] "i"(ROOM_MARK));
}

/* Whether a frame matches. Of its `length` bytes the first `copied` are at `frame`. */
static __always_inline bool matches(const __u8 *frame, __u64 length, __u64 copied)
{
	__u64 matched;

	/* Not a call in C: the compiler would see a function without parameters and without a result. */
	asm volatile("r1 = %[frame]\n"
		     "r2 = %[length]\n"
		     "r3 = %[copied]\n"
		     "call filter\n"
		     "%[matched] = r0\n"
		     : [matched] "=r"(matched)
		     : [frame] "r"(frame), [length] "r"(length), [copied] "r"(copied)
		     : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
	return matched;
}
