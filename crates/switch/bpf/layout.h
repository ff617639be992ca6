/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Shared by the programs and ../src/layout.rs. A change needs a new version in the program's name. */
#pragma once

#include <linux/types.h>

#define SLOTS 1024 /* ports of one switch */
#define VIDS 4096
#define ALL_VLANS 0 /* the VLAN of every frame if the switch has no VLANs */

/* What a port can do. */
enum {
	PORT_UP = 1,
	PORT_TAKES_FRAMES = 2, /* its device accepts frames that XDP redirects */
	PORT_PARTIAL_SUMS = 4, /* its senders leave checksums to offloading, but there is no device to compute them */
	PORT_TAKES_LONG = 8, /* its device also accepts frames in several buffers */
	PORT_NO_LEARNING = 16, /* source addresses are not learned */
	PORT_LOCKED = 32, /* only known source addresses may send */
	PORT_ISOLATED = 64, /* exchanges no frames with other isolated ports */
	PORT_SOURCE_GUARD = 128, /* may send only from configured addresses */
	PORT_DHCP_GUARD = 256, /* must not be a DHCP server */
	PORT_RA_GUARD = 512, /* must not be a router */
	PORT_UNTAGGED = 1024, /* is in no VLAN with tags: frames have one at most */
	PORT_GUARDED = PORT_SOURCE_GUARD | PORT_DHCP_GUARD | PORT_RA_GUARD,
};

struct port {
	__u32 ifindex; /* 0: the slot is free */
	__u32 mtu; /* largest packet, without Ethernet header and tag */
	__u32 flags;
	__u32 untagged; /* VLAN of frames without a tag; 0 for none */
	__u64 flood_interval_ns; /* between flooded frames; 0 for no limit */
	__u64 flood_burst_ns; /* how much too early a frame may come */
	__u64 move_interval_ns; /* the same for MAC addresses that move to this port */
	__u64 move_burst_ns;
	__u32 learned_max; /* MAC addresses that can be learned here */
	__u32 unused;
	__u64 tagged[VIDS / 64]; /* VLANs whose frames are tagged on this port */
};

/* The port that a MAC address is behind. `slot` and `flags` are written together. */
struct fdb_entry {
	__u32 slot;
	__u32 flags;
	__u64 seen_ns; /* coarse monotonic time */
	__u32 index; /* in the list of its port */
	__u32 unused;
};

/*
 * Each port has a list of the MAC addresses that are learned there. An index in it is used if it has the key of an FDB
 * entry with this `index`; any other is free. If a MAC address finds no free index, it replaces another MAC address of
 * the same port, so no port can use up the room of others: the first RESERVED_MACS of each port do not count against
 * the table's size, further ones do.
 */
#define RESERVED_MACS 16
#define INDEXES_TRIED 8

#define FDB_STATIC 1

/* Settings that do not change while the program is loaded. */
struct rules {
	__u64 ageing_ns; /* 0: MAC addresses never age */
	__u64 refresh_ns; /* least time between two updates of `seen_ns` */
	__u32 vlans; /* whether the switch has VLANs */
	__u32 table; /* MAC addresses beyond RESERVED_MACS of each port, in total */
	__u32 isolation; /* whether any port is isolated */
	__u32 flood_kinds; /* whether any port is excluded from some kind of flooding */
	__u32 guards; /* whether any port has a guard */
	__u32 unused;
};

/*
 * Which ports get a flooded frame depends on its VLAN, on why it is flooded, and on whether it comes from an isolated
 * port: their map is at index vlan + VIDS * (2 * kind + isolated).
 */
enum flood_kind {
	FLOOD_UNKNOWN, /* to an unknown MAC address */
	FLOOD_MULTICAST,
	FLOOD_BROADCAST,
	FLOOD_KINDS,
};

#define FLOOD_SETS (2 * FLOOD_KINDS)

/* In the order of ../src/counters.rs. Each received frame is counted under one of these. */
enum verdict {
	FORWARDED,
	FLOODED,
	LINUX_LINK_LOCAL,
	DROP_SHORT,
	DROP_SOURCE,
	DROP_VLAN,
	DROP_SAME_PORT,
	DROP_MTU,
	DROP_PORT_DOWN,
	DROP_FAR_END,
	DROP_FLOOD_LIMIT,
	DROP_LONG,
	DROP_HEADROOM,
	DROP_LOCKED,
	DROP_ISOLATED,
	DROP_NO_FLOOD,
	DROP_SOURCE_GUARD,
	DROP_DHCP_GUARD,
	DROP_RA_GUARD,
	DROP_RESERVED,
	/* Counted additionally. */
	RECEIVED_BYTES,
	SENT,
	SENT_BYTES,
	LEARNED,
	MOVED,
	MOVE_REFUSED,
	EVICTED,
	TABLE_FULL,
	SUMS_COMPLETED,
	COUNTERS,
};

struct counts {
	__u64 of[COUNTERS];
};
