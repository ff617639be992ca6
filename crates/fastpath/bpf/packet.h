/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Headers as they are in frames, and what is known about a frame during processing. */
#pragma once

#include <linux/types.h>
#include "layout.h"

/* Which bytes of a frame are read, and what is known about it. */
struct packet {
	void *data;
	void *end;
	const struct view *view;
	const struct ingress *ingress;
	__u32 length; /* of the packet, padding not counted */
	__u32 frame;  /* bytes of the frame as it came in */
	__u32 largest; /* only in skb.bpf.c: of a packet that is cut up on the way out, the longest that comes of it */
};

/* Bytes from one pointer to the other. */
static __always_inline __u32 frame_bytes(const void *data, const void *end)
{
	long length = end - data;

	/* The verifier wants the difference of the two pointers by itself. */
	asm volatile("" : "+r"(length));
	return length;
}

/*
 * Headers as they are in frames. None is `packed`: clang would read such a field byte by byte, and CPUs that run XDP
 * can load words from any address.
 */
struct ethernet {
	__u16 to[3];
	__u16 from[3];
	__be16 type;
};

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_length;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 source;
	__be32 destination;
};

struct ipv6 {
	__be32 version_class_label;
	__be16 payload_length;
	__u8 next_header;
	__u8 hop_limit;
	__be64 source[2];
	__be64 destination[2];
};
