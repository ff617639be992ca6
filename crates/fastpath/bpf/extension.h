/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Extension headers of IPv6. */
#pragma once

#include <linux/in.h>
#include <linux/types.h>

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

/* Whether a chain of headers has a fragment header, or cannot be followed to its end. */
static __noinline int may_be_fragment(void *header, void *end, __u32 next)
{
	for (int i = 0; i < EXTENSIONS_MAX && is_extension(next); i++) {
		struct extension *extension = header;

		if (next == IPPROTO_FRAGMENT || (void *)(extension + 1) > end)
			return 1;
		header += next == IPPROTO_AH ? extension->length * 4 + 8 : extension->length * 8 + 8;
		next = extension->next;
	}
	return is_extension(next);
}
