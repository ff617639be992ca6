/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Shared by the program and ../src/layout.rs. A change needs a new version in the program's name. */
#pragma once

#include <linux/types.h>

/* Fields of the two addresses, as 48-bit numbers; crates/vlb/src/address.rs draws them. */
#define MARK 0xbULL
#define MARK_AT 44
#define LOCAL_AT 40
#define LOCAL 2ULL
#define KIND_AT 42
#define EPOCH_AT 32
#define OUTPUT_AT 21
#define PORT_AT 16
#define INPUT_AT 29
#define VIA_AT 18
#define NODE_BITS 0x7ffULL
#define PORT_BITS 0x1f
#define SAMPLE_BITS 0x3ffffULL
#define FLOW_AT 10
#define SEQUENCE_BITS 0x3ff
#define SAMPLED 2
#define NO_NODE 0x7ff

enum kind { NEIGHBOR, RESOLVE, HOST, CONTROL };

/* In place of the external port in frames of kind CONTROL. */
#define PORT_PROBE 1
#define PORT_PROBE_REPLY 2

#define NODES 2048
#define PORTS 32
#define NEIGHBORS 65536
#define FABRIC_LINKS 2048
#define NO_EPOCH 0x100
#define NO_INTERFACE 0xffffffff

/* This node. */
struct self {
	__u32 node;
	__u32 epoch;
	__u32 epoch_before; /* NO_EPOCH: none */
	__u32 unused;
};

/*
 * A neighbor of an external port of this node, by its index. Its MAC may change while frames are sent to it: each MAC is the
 * first six bytes of a number that is read at once.
 */
struct neighbor {
	__u64 to;
	__u64 from;
	__u32 ifindex; /* 0: no such neighbor */
	__u32 check;   /* what frames to it have in place of the external port */
	__u32 port;    /* from here on only for the daemon: which neighbor it is */
	__u32 family;
	__u8 address[16];
};

/* The flows whose order is watched: one at each place (../../vlb/src/reorder.rs, whose numbers these are). */
#define FOLLOWED_BITS 12
#define LATE_IN_A_ROW 32
struct followed {
	__u32 key; /* input node and flow, plus one; 0: none */
	__u16 next;
	__u16 late;
};

/* Counters of frames received from a fabric link; their names are in ../src/counters.rs, in this order. */
enum counter {
	TRANSIT,	/* on to the output node */
	OUTPUT,		/* out of an external port */
	LINUX_RESOLVE,	/* to Linux, which resolves the neighbor and sends the packet */
	LINUX_HOST,	/* to Linux: an address of this node */
	LINUX_CONTROL,	/* messages of other nodes, read by the daemon */
	LINUX_OTHER,	/* not a frame of a cluster */
	PROBES,		/* sent back */
	DROP_MALFORMED,
	DROP_MEMBER,
	DROP_EPOCH,
	DROP_STRAY,
	DROP_NEIGHBOR,
	DROP_LINK,
	RECEIVED_BYTES,
	NUMBERED,	/* of OUTPUT: those that the input node has numbered */
	REORDERED,	/* of NUMBERED: those that came after a later one of their flow (RFC 4737, section 3.3) */
	COUNTERS
};

struct counts {
	__u64 of[COUNTERS];
};

/* Counters of a relay, of frames received from an interface; their names are in ../src/relay.rs, in this order. */
enum relay_counter {
	RELAY_PACKETS,	 /* on to another node */
	RELAY_CONTROL,	 /* the same, but messages and probes */
	RELAY_BYTES,	 /* of both */
	RELAY_OTHER,	 /* to Linux: not a frame of a cluster */
	RELAY_MALFORMED, /* dropped */
	RELAY_NO_LINK,	 /* dropped: no link leads to the node, or only that which the frame came from */
	RELAY_COUNTERS
};

struct relay_counts {
	__u64 of[RELAY_COUNTERS];
};
