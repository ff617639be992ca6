/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Looks up from time to time whether Linux still has the connection of a flow, and has it as it was when the flow was
 * learned. So nobody needs to be told what happens to connections: `conntrack -D`, timeouts, addresses that go, marks.
 */
#pragma once

#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "connection.h"
#include "flow_lookup.h"
#include "flow_table.h"
#include "packet.h"

#ifdef FLOWS

/* struct bpf_ct_opts */
struct ct_options {
	__s32 netns;
	__s32 error;
	__u8 protocol;
	__u8 direction; /* of the tuple that was looked up, from the kernel */
	__u16 zone;
	__u8 zone_direction;
	__u8 reserved[3];
};

#define CURRENT_NETNS -1

/* Weak: without connection tracking in the kernel nothing is looked up, and no connection is forwarded by flow. */
extern struct nf_conn *find_connection(context *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_bytes,
				       struct ct_options *options, __u32 options_bytes) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

static __always_inline bool is_address(const struct flow *flow, const __u32 *a, const __u32 *b)
{
	return a[0] == b[0] && (flow->family == 4 || (a[1] == b[1] && a[2] == b[2] && a[3] == b[3]));
}

/* Whether packets of the other direction come from where those of a flow go, and back: it is translated as before. */
static __always_inline bool is_reverse(const struct flow *flow, const struct nf_conntrack_tuple *other)
{
	return is_address(flow, other->src.u3, flow->new_destination) &&
	       is_address(flow, other->dst.u3, flow->new_source) &&
	       ((__u32)other->dst.u | (__u32)other->src.u << 16) == flow->new_ports;
}

/*
 * Whether segments of a connection may pass without being seen by Linux: control has told it not to compare others with
 * windows. It has not told that of another connection with these tuples.
 */
static __always_inline bool passes_unseen(const struct ip_ct_tcp *tcp)
{
	return tcp->state == TCP_CONNTRACK_ESTABLISHED && tcp->seen[0].flags & tcp->seen[1].flags & BE_LIBERAL;
}

static __always_inline bool is_as_learned(const struct flow *flow, const struct nf_conn *connection, __u8 direction)
{
	unsigned long status = connection->status;

	if ((status & STATUS_NEEDED) != STATUS_NEEDED || status & STATUS_FORBIDDEN)
		return false;
	if (bpf_core_field_exists(connection->mark) && connection->mark != flow->mark)
		return false;
	if (flow->protocol == IPPROTO_TCP && !passes_unseen(&connection->proto.tcp))
		return false;
	return direction ? is_reverse(flow, &connection->tuplehash[0].tuple) :
			   is_reverse(flow, &connection->tuplehash[1].tuple);
}

static __always_inline struct nf_conn *connection_of(context *ctx, const struct flow *flow,
						     struct ct_options *options)
{
	struct bpf_sock_tuple tuple = {};

	if (flow->family == 4) {
		tuple.ipv4.saddr = flow->source[0];
		tuple.ipv4.daddr = flow->destination[0];
		tuple.ipv4.sport = flow->ports;
		tuple.ipv4.dport = flow->ports >> 16;
		return find_connection(ctx, &tuple, sizeof(tuple.ipv4), options, sizeof(*options));
	}
	__builtin_memcpy(tuple.ipv6.saddr, flow->source, sizeof(flow->source));
	__builtin_memcpy(tuple.ipv6.daddr, flow->destination, sizeof(flow->destination));
	tuple.ipv6.sport = flow->ports;
	tuple.ipv6.dport = flow->ports >> 16;
	return find_connection(ctx, &tuple, sizeof(tuple.ipv6), options, sizeof(*options));
}

/* Why a flow ends because of its connection, now; 0 if it does not. Not static, so that the verifier looks at it once. */
__noinline int end_by_connection(context *ctx, struct flow *flow)
{
	struct ct_options options = { .netns = CURRENT_NETNS };
	struct nf_conn *connection;
	bool holds;

	if (!flow || !find_connection)
		return FLOW_GONE;
	options.protocol = flow->protocol;
	options.zone = flow->zone;
	connection = connection_of(ctx, flow, &options);
	if (!connection)
		return FLOW_GONE;
	holds = is_as_learned(flow, connection, options.direction);
	bpf_ct_release(connection);
	return holds ? 0 : FLOW_CHANGED;
}

/* Whether the connection of a flow has not been looked up lately. */
static __always_inline bool is_to_be_checked(const struct flow *flow)
{
	__u32 now = bpf_jiffies64();

	/* The time of the last look has 16 bits, so it tells only of flows that are in use. */
	return flow->flags & FLOW_TRACKED &&
	       ((__u16)(now - flow->checked_at) >= room.check_every || now - flow->used_at >= room.check_every);
}

#endif
