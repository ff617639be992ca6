/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Connections of Linux, as far as programs read them: the kernel's structures and numbers. */
#pragma once

#include "kernel.h"

struct nf_conntrack_zone {
	__u16 id;
	__u8 flags;
	__u8 dir;
} OF_KERNEL;

struct nf_conntrack_man {
	__u32 u3[4];
	__be16 u;
	__u16 l3num;
};

/* Not relocated: copied as a whole, and its layout has been the same since Linux 2.6.22. */
struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		__u32 u3[4];
		__be16 u;
		__u8 protonum;
		__u8 dir;
	} dst;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} OF_KERNEL;

struct ip_ct_tcp_state {
	__u32 td_maxack;
	__u8 flags;
} OF_KERNEL;

struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	__u8 state;
} OF_KERNEL;

/* Whether packets are not compared with windows; whether td_maxack is set. */
#define BE_LIBERAL 0x08
#define MAXACK_SET 0x20

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} OF_KERNEL;

struct nf_conn {
	__u32 timeout;
	struct nf_conntrack_zone zone;
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	__u32 mark;
	union nf_conntrack_proto proto;
} OF_KERNEL;

/* enum ip_conntrack_status */
#define IPS_SEEN_REPLY (1 << 1)
#define IPS_ASSURED (1 << 2)
#define IPS_CONFIRMED (1 << 3)
#define IPS_SEQ_ADJUST (1 << 6)
#define IPS_DYING (1 << 9)
#define IPS_FIXED_TIMEOUT (1 << 10)
#define IPS_NAT_CLASH (1 << 12)
#define IPS_HELPER (1 << 13)
#define IPS_OFFLOAD (1 << 14)
#define IPS_HW_OFFLOAD (1 << 15)

/* What a connection has whose packets may go by flow, and what it must not have; the same in ../../control/src/flows/check.rs. */
#define STATUS_NEEDED (IPS_CONFIRMED | IPS_SEEN_REPLY | IPS_ASSURED)
#define STATUS_FORBIDDEN \
	(IPS_DYING | IPS_NAT_CLASH | IPS_HELPER | IPS_SEQ_ADJUST | IPS_FIXED_TIMEOUT | IPS_OFFLOAD | IPS_HW_OFFLOAD)

#define TCP_CONNTRACK_ESTABLISHED 3
