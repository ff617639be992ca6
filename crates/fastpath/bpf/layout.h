/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What control writes and the program reads. The same layout is in ../src/layout.rs.
 *
 * Maps, each an array of one value that control has mapped: tables and next hops (`hops`, `fib4`, `fib6`, and
 * `sources4` and `sources6` if feasible reverse paths are checked) are those of bm-fib, written by its builders,
 * after a page that says where they are; `views` has everything small. The data of filters is in rules.h.
 */
#pragma once

#include <linux/types.h>

#define PAGE 4096

/* Next hops: one word each, as crates/fib/src/next_hop.rs draws it. */
#define HOPS (1 << 16)
#define BUCKETS (1 << 18)
#define HOP_INTERFACE(entry) ((__u32)((entry) >> 48))
#define HOP_SPECIAL 0xff00
#define HOP_NONE HOP_SPECIAL
#define HOP_HOST 0xff01
#define HOP_LOCAL ((__u64)HOP_HOST << 48 | 1) /* the whole word: Linux does not forward it */
#define HOP_RESOLVE 0xff02 /* the low 16 bits are the interface */
#define HOP_BLACKHOLE 0xff03
#define HOP_UNREACHABLE 0xff04
#define HOP_PROHIBIT 0xff05
#define HOP_GROUP 0xff06
#define HOP_LINUX_ONLY 0xff07 /* the low 16 bits are the interface */

struct hops {
	__u8 directory[PAGE];
	__u64 entries[HOPS];
	__u32 buckets[BUCKETS];
	__u16 mtus[HOPS]; /* of the route; 0 where the interface's holds */
	__u8 used[HOPS];  /* set here, taken by control, which keeps the neighbor fresh in Linux */
};

#define FIB4_WORDS (1 << 20)
#define FIB4_SHIFT 15
struct fib4 {
	__u8 directory[PAGE];
	__u32 root[1 << (32 - FIB4_SHIFT)];
	__u64 words[FIB4_WORDS];
};

#define FIB6_LINES (1 << 17)
#define FIB6_CELLS 16
struct fib6 {
	__u8 directory[PAGE];
	__u32 root[1 << 16];
	__u32 cells[FIB6_LINES * FIB6_CELLS];
};

/* The checks for a received frame, by the low bits of its interface's index in Linux. */
#define INGRESSES 4096
#define FORWARD_IPV4 1
#define FORWARD_IPV6 2
#define PARTIAL_SUMS 4 /* no card completes the checksums that senders leave to theirs: a veth */
#define LINUX_ONLY_IPV4 8 /* not forwarded: only Linux may handle what comes in */
#define LINUX_ONLY_IPV6 16
#define LINUX_ONLY_FRAGMENTS_IPV6 32 /* Linux reassembles them; those of IPv4 are always Linux's */
#define REPORT_UNRESOLVED 64 /* next hops without a MAC: Linux may drop the packets before it asks for it */
#define BY_FLOW 128 /* of what only Linux may handle: it decides about a flow's first packets (flows.h) */
enum reverse_path { REVERSE_PATH_OFF, REVERSE_PATH_STRICT, REVERSE_PATH_LOOSE };

struct ingress {
	__u64 mac; /* in wire order in the high 48 bits */
	__u32 ifindex;
	__u16 interface; /* our index of it */
	__u8 flags;
	__u8 reverse_path;
};

/* Interfaces on which sources may arrive besides the best reverse path: routes to sets, then a bit per interface. */
#define SETS (1 << 12)
#define SET_WORDS (1024 / 64)
struct sources4 {
	struct fib4 routes;
	__u64 sets[SETS * SET_WORDS];
};

struct sources6 {
	struct fib6 routes;
	__u64 sets[SETS * SET_WORDS];
};

/* What a frame that leaves is given, by brickmoon's index of the interface, to which next hops refer. */
#define INTERFACES 1024
struct egress {
	__u64 mac_mtu; /* bytes of both; MTU 0 where nothing may be sent: down, or frames of XDP are not taken */
	__u32 ifindex; /* of the device: for a VLAN, of the port below */
	__u32 tag;     /* type of the tag, then number; 0 for none */
};

/* A bit for each address of this machine, by a hash of it: most sources are ruled out with one load. */
#define LOCAL_BITS 4096
#define LOCAL_HASH 0x9e3779b9u

/* A VLAN on a port, found by a hash of both. */
#define VLANS 4096
#define VLAN_TRIES 8
#define VLAN_HASH_PORT 0x9e3779b9u
#define VLAN_HASH_TAG 0x85ebca6bu
struct vlan {
	__u32 port; /* its number in Linux; 0 for none */
	__u32 tag;  /* type, then number */
	__u32 ifindex;
};

enum policy { POLICY_ADDRESSES, POLICY_PORTS, POLICY_INNER };

struct view {
	__u64 flow_seed;
	__u32 policy_ipv4;
	__u32 policy_ipv6;
	__u64 local[LOCAL_BITS / 64];
	struct ingress ingress[INGRESSES];
	struct egress egress[INTERFACES];
	struct vlan vlans[VLANS];
	__u16 tc_mtus[INTERFACES]; /* of egresses, for skb.bpf.c, which can send through any device; 0: VLAN, or down */
};

/* Two views: control fills the one that is not current, then flips. */
struct views {
	__u32 current;
	__u32 grace_jiffies; /* how long tables hold without a daemon; 0 for ever */
	__u64 alive_until;   /* jiffies; Linux forwards from then on */
	__u32 busy;	     /* the daemon is at work on the tables; for who watches over them */
	__u32 unused[11];
	struct view of[2];
};

/* What happened to a frame; the order is that of `Counters` in ../src/counters.rs. */
enum verdict {
	FORWARDED,
	FORWARDED_BYTES, /* of frames as they leave: FORWARDED */
	RECEIVED_BYTES,	 /* of frames as they came in: all verdicts */
	PASSED_UNATTENDED, /* no daemon for longer than the grace time */
	PASSED_INACTIVE,   /* not an interface that is forwarded from */
	PASSED_OTHER_MAC,
	PASSED_OTHER_TYPE, /* ARP, unknown or stacked VLAN tags */
	PASSED_HEADER,	   /* options, fragments, special addresses, anything malformed */
	PASSED_HOPS,	   /* TTL or hop limit used up */
	PASSED_LOCAL,
	PASSED_UNRESOLVED, /* a neighbor without a MAC */
	PASSED_NO_ROUTE,
	PASSED_UNREACHABLE,
	PASSED_PROHIBIT,
	PASSED_MTU,
	PASSED_EGRESS, /* interface down, or one that XDP cannot send through */
	PASSED_SOURCE, /* our own address, or the reverse path filter has to be asked */
	PASSED_SAME_INTERFACE, /* through the interface it came in on: Linux may send an ICMP redirect */
	PASSED_PARTIAL_SUM, /* a checksum that only Linux knows to be half done */
	PASSED_FLOW,   /* a group whose flow only Linux can tell */
	PASSED_FIREWALL, /* only Linux may handle it: a firewall, an IPsec policy, traffic control */
	PASSED_NO_WORKER, /* claimed for workers, but no worker has a socket on the queue, or no slot is large enough */
	CLAIMED,	   /* gone to a worker */
	DROPPED_FILTER, /* from here on not forwarded by anyone; by filter.h: a rule says so */
	DROPPED_TINY_FRAGMENT,
	DROPPED_REVERSE_PATH,
	DROPPED_RATE_LIMIT,
	DROPPED_BLACKHOLE, /* by a route */
	DROPPED_NOT_READY, /* by bm_hold, which counts in a map of its own; control adds the two up */
	VERDICTS
};

/* The verifier of Linux 6.1 needs the bound of five bits (forward.bpf.c). */
_Static_assert(VERDICTS <= 32, "verdicts fit in five bits");

struct counts {
	__u64 of[VERDICTS];
};

struct held {
	__u64 frames;
	__u64 bytes;
};
