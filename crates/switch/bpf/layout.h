/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* What the programs and ../src/layout.rs share. A change needs another version in the program's name. */
#pragma once

#include <linux/types.h>

#define SLOTS 1024 /* ports of one switch */
#define VIDS 4096
#define ALL_VLANS 0 /* the VLAN of every frame where the switch knows none */

/* What a port can do. */
enum {
	PORT_UP = 1,
	PORT_TAKES_FRAMES = 2, /* its device has room for frames that XDP sends */
	PORT_PARTIAL_SUMS = 4, /* its senders leave checksums to a device that is none */
	PORT_TAKES_LONG = 8, /* its device takes frames in several buffers too */
};

struct port {
	__u32 ifindex; /* 0: nobody has this slot */
	__u32 mtu; /* largest packet, Ethernet and tag not counted */
	__u32 flags;
	__u32 untagged; /* VLAN of frames without a tag; 0 for none */
	__u64 flood_interval_ns; /* between frames that go to many; 0 for no limit */
	__u64 flood_burst_ns; /* as much may come early */
	__u64 tagged[VIDS / 64]; /* VLANs whose frames have a tag here */
};

/* A station's place. `slot` and `flags` are written together. */
struct station {
	__u32 slot;
	__u32 flags;
	__u64 seen_ns; /* coarse monotonic time */
};

#define STATION_STATIC 1

/* The same for the life of a program. */
struct rules {
	__u64 ageing_ns; /* 0: stations stay */
	__u64 refresh_ns; /* a station's time is not written more often */
	__u32 vlans; /* whether tags count */
	__u32 unused;
};

/* In the order of ../src/counters.rs. What became of a frame that came in, one of these each. */
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
	/* What happened besides. */
	RECEIVED_BYTES,
	SENT,
	SENT_BYTES,
	LEARNED,
	MOVED,
	TABLE_FULL,
	SUMS_COMPLETED,
	COUNTERS,
};

struct counts {
	__u64 of[COUNTERS];
};
