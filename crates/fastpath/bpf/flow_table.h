/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What becomes of packets of flows that Linux has already forwarded. The same layout is in ../../flows/src/layout.rs.
 *
 * One area, the only value of a map that control has mapped: head, buckets, and from the next page on entries, which are
 * numbered from 1. Control's thread for flows writes all of it but what a comment gives to the program. An entry is
 * complete before its number is in a bucket, and is not written anew before an RCU grace period after it was taken out.
 */
#pragma once

#include <linux/types.h>

#define FLOW_WAYS 8
#define FLOW_NUMBER_BITS 22 /* of a word in a bucket; above them is FLOW_SPILLS, then a tag, nine bits of the hash */
#define FLOW_NUMBER_MASK ((1u << FLOW_NUMBER_BITS) - 1)
#define FLOW_SPILLS (1u << FLOW_NUMBER_BITS) /* in the first word: flows of this bucket may be in their other one */
#define FLOW_TAG_AT 23
#define FLOW_TAG_HASH 0x9e3779b97f4a7c15ull /* times the hash, the high nine bits: the tag */
#define FLOW_TAG_SHIFT 55
#define FOLLOWS_ACKNOWLEDGED 1
#define FOLLOWS_END 2
#define FLOW_TRANSLATES 1 /* in flow.flags: addresses or ports change */
#define FLOW_TRACKED 2	  /* packets belong to a connection of Linux, which must still be as it was learned */
#define FLOWS_IPV4 1 /* in flow_head.families */
#define FLOWS_IPV6 2

struct flow_head {
	__u32 generation; /* of nftables that entries hold for; compared with the kernel's own */
	__u32 epoch;	  /* entries of another one are void; never 0 */
	__u32 families;	  /* whose packets may use flows now */
	__u32 until;	  /* jiffies (low 32 bits) from which on no flow is used, unless the thread renews it */
	__u64 key[2]; /* secret of the hash, odd */
	__u8 rest[4096 - 32];
};

struct flow_bucket {
	__u32 of[FLOW_WAYS]; /* without a number: free; else the number of an entry, and above it the tag */
};

/* Two cache lines: whether it is the flow of a packet, then what becomes of that. Fields are as in packets (network order). */
struct flow {
	__u32 source[4]; /* IPv4 in [0], the others 0 */
	__u32 destination[4];
	__u32 ports;     /* source, then destination */
	__u16 interface; /* on which it arrives: brickmoon's index */
	__u8 protocol;
	__u8 family;	/* 4 or 6 */
	__u32 epoch;	/* 0 once it is taken out */
	__u16 out;	/* brickmoon's index of the interface that Linux sent it through */
	__u8 flags;
	__u8 ended;	  /* why it is no longer used (enum flow_end), by the program */
	__u32 used_at;	  /* jiffies (low 32 bits) of the last packet, by the program */
	__u16 reply_low;  /* the number of the other direction's entry, by the program; 0 if it knows none */
	__u8 reply_high;
	__u8 follows; /* which of `acknowledged` and `end` are known, by the program */
	__u64 packets; /* by the program */

	__u64 bytes; /* of frames as they arrive, by the program */
	__u32 new_source[4];
	__u32 new_destination[4];
	__u32 new_ports;
	__u16 sum_addresses; /* by which the ones' complement sum (words as in memory) of the addresses grows */
	__u16 sum_ports;     /* by which that of the ports grows */
	__u32 acknowledged; /* of TCP: the greatest number that its packets have acknowledged, by the program */
	__u32 end;	    /* the number behind the data of its last packet, if it is the connection's last one; likewise */
	__u32 mark;	    /* of the connection */
	__u16 zone;	    /* of the connection, in this direction */
	__u16 checked_at;   /* jiffies (low 16 bits) when the connection was last looked up, by the program */
};

/* Why a flow is no longer used. */
enum flow_end {
	FLOW_CLOSED = 1, /* by FIN or RST */
	FLOW_GONE = 2,	 /* Linux has forgotten the connection */
	FLOW_CHANGED = 3 /* its mark, its state or its translation is another one */
};

_Static_assert(sizeof(struct flow_head) == 4096, "the head is a page");
_Static_assert(sizeof(struct flow_bucket) == 32, "two buckets in a cache line");
_Static_assert(sizeof(struct flow) == 128 && __builtin_offsetof(struct flow, bytes) == 64, "two cache lines");
