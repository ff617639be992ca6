/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Return addresses, found by call frame information (.eh_frame), as a signal handler may: without locks or memory. */
#pragma once

#include <stdint.h>

/* Registers by their numbers in DWARF (System V ABI for x86-64, figure 3.36). */
enum { BM_RSP = 7, BM_RIP = 16, BM_REGISTERS = 17 };

struct bm_frame {
	uintptr_t registers[BM_REGISTERS];
	uintptr_t stack_end; /* nothing is read beyond */
	int is_caller;       /* its address follows a call, so what was called is before it */
};

/*
 * Goes from a frame to its caller's. Returns where the return address is, or NULL if it cannot be found; then the frame
 * is not changed.
 */
uintptr_t *bm_unwind(struct bm_frame *frame);
