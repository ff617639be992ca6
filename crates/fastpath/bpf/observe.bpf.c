// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Sees what Linux sends through our interfaces, and reports packets of connections whose later packets may be forwarded by
 * flow (flows.h): as they leave, and what connection tracking knows about them.
 *
 *     packet at tc's egress -> from an interface, TCP or UDP? -> established, not new, not reported lately? -> reports, a ring
 *
 * Changes nothing. Connections that end soon are not worth the work that a report makes, so young ones are not reported.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#include "flow_table.h"
#include "kernel.h"
#include "packet.h"

/* In <linux/bpf.h> since Linux 6.6. */
#define TCX_NEXT -1

/* The kernel's structures, as far as they are read. */
struct net_device {
	possible_net_t nd_net;
} OF_KERNEL;

struct sk_buff {
	struct net_device *dev;
	unsigned long _nfct;
	__u8 redirected : 1;
} OF_KERNEL;

struct nf_conntrack_zone {
	__u16 id;
	__u8 flags;
	__u8 dir;
} OF_KERNEL;

struct nf_conntrack_man {
	__u8 u3[16];
	__be16 u;
	__u16 l3num;
};

/* Not relocated: copied as a whole, and its layout has been the same since Linux 2.6.22. */
struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		__u8 u3[16];
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

/* Whether td_maxack is set. */
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

/* The low bits of skb->_nfct: the connection's state for this packet. */
#define CT_INFO 7ul
#define CT_ESTABLISHED 0
#define CT_ESTABLISHED_REPLY 3

/* A report; the same in ../src/reports.rs. */
struct report {
	struct nf_conntrack_tuple tuples[2]; /* of the connection: original direction, reply */
	__u32 source[4];		      /* as it leaves */
	__u32 destination[4];
	__u32 ports;
	__u32 input; /* index in Linux of the interface that it came in on */
	__u32 output;
	__u32 mark;
	__u32 connection_mark;
	__u32 generation; /* of the ruleset */
	__u32 status;	  /* enum ip_conntrack_status */
	__s32 timeout;	  /* jiffies that are left */
	__u16 zone;
	__u8 zone_flags;
	__u8 zone_directions;
	__u8 family;
	__u8 protocol;
	__u8 reply;   /* whether it goes in the direction of replies */
	__u8 tracked; /* whether there is a connection */
	__u8 tcp_state;
	__u8 acknowledges; /* whether `acknowledged` is known */
	__u8 unused[2];
	__u32 jiffies; /* when it left */
	__u32 acknowledged; /* the greatest number that packets of its direction have acknowledged */
	__u32 unused_too;
};

#define REPORTS_RING (1 << 20) /* the same in ../src/reports.rs */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, REPORTS_RING);
} reports SEC(".maps");

/* The table of flows, whose head says whether any may be learned. The loader replaces it with its own map. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_head);
} flows SEC(".maps");

/*
 * Flows that have been seen and not reported yet, by a hash of flow and epoch. One stays in its place until it has been
 * reported, or has had the time for that: so each gets its turn, however many there are. CPUs do not wait for each other
 * here: at worst a flow is reported sooner or later.
 */
#define SEEN_SHIFT 18
#define SEEN (1 << SEEN_SHIFT)
struct seen {
	__u64 flow;
	__u32 since;
	__u32 reported; /* 0: not yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SEEN);
	__type(key, __u32);
	__type(value, struct seen);
} seen SEC(".maps");

/* In jiffies: how old a flow must be, how soon it is reported again, and how long it may keep its place. */
const volatile struct {
	__u32 age;
	__u32 again;
	__u32 keep;
} after SEC(".rodata.observe") = { 1, 1, 1 };

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

/*
 * Whether a flow is to be reported: it has been seen for some time, and not been reported lately. Time counts from when
 * the table last began anew, so that packets do not teach that an earlier ruleset let pass, and that waited since then for
 * their neighbor's MAC: they all leave at once.
 */
static __always_inline bool is_due(__u64 flow, __u32 epoch)
{
	__u64 name = (flow ^ (__u64)epoch << 32 ^ epoch) * 0x9e3779b97f4a7c15ull;
	__u32 place = name >> (64 - SEEN_SHIFT), now = bpf_jiffies64();
	struct seen *last = bpf_map_lookup_elem(&seen, &place);

	if (!last)
		return false;
	if (last->flow != name) {
		if (last->flow && !last->reported && now - last->since < after.keep)
			return false;
		last->since = now;
		last->reported = 0;
		last->flow = name;
		return false;
	}
	if (now - last->since < after.age || (last->reported && now - last->reported < after.again))
		return false;
	last->reported = now | 1;
	return true;
}

/* The fixed part of the IP header and the ports behind it; false for packets that no flow takes. */
static __always_inline bool read_headers(struct __sk_buff *ctx, struct report *report)
{
	struct ipv4 ip4;
	struct ipv6 ip6;

	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(ctx, sizeof(struct ethernet), &ip4, sizeof(ip4)) ||
		    ip4.version_ihl != 0x45 || ip4.fragment & bpf_htons(0x3fff))
			return false;
		report->family = 4;
		report->protocol = ip4.protocol;
		report->source[0] = ip4.source;
		report->destination[0] = ip4.destination;
		return !bpf_skb_load_bytes(ctx, sizeof(struct ethernet) + sizeof(ip4), &report->ports, 4);
	}
	if (ctx->protocol != bpf_htons(ETH_P_IPV6) ||
	    bpf_skb_load_bytes(ctx, sizeof(struct ethernet), &ip6, sizeof(ip6)))
		return false;
	report->family = 6;
	report->protocol = ip6.next_header;
	__builtin_memcpy(report->source, ip6.source, sizeof(report->source));
	__builtin_memcpy(report->destination, ip6.destination, sizeof(report->destination));
	return !bpf_skb_load_bytes(ctx, sizeof(struct ethernet) + sizeof(ip6), &report->ports, 4);
}

static __always_inline void read_connection(struct report *report, struct nf_conn *connection)
{
	bpf_core_read(&report->tuples[0], sizeof(report->tuples[0]), &connection->tuplehash[0].tuple);
	bpf_core_read(&report->tuples[1], sizeof(report->tuples[1]), &connection->tuplehash[1].tuple);
	report->status = BPF_CORE_READ(connection, status);
	report->timeout = BPF_CORE_READ(connection, timeout) - (__u32)bpf_jiffies64();
	if (bpf_core_field_exists(connection->mark))
		report->connection_mark = BPF_CORE_READ(connection, mark);
	if (bpf_core_field_exists(connection->zone)) {
		report->zone = BPF_CORE_READ(connection, zone.id);
		report->zone_flags = BPF_CORE_READ(connection, zone.flags);
		report->zone_directions = BPF_CORE_READ(connection, zone.dir);
	}
	report->tracked = 1;
	if (report->protocol != IPPROTO_TCP)
		return;
	report->tcp_state = BPF_CORE_READ(connection, proto.tcp.state);
	if (report->reply) {
		report->acknowledged = BPF_CORE_READ(connection, proto.tcp.seen[1].td_maxack);
		report->acknowledges = !!(BPF_CORE_READ(connection, proto.tcp.seen[1].flags) & MAXACK_SET);
	} else {
		report->acknowledged = BPF_CORE_READ(connection, proto.tcp.seen[0].td_maxack);
		report->acknowledges = !!(BPF_CORE_READ(connection, proto.tcp.seen[0].flags) & MAXACK_SET);
	}
}

SEC("tcx/egress")
int bm_observe_tc(struct __sk_buff *ctx)
{
	struct report report = {}, *written;
	__u32 zero = 0, family;
	struct flow_head *head = bpf_map_lookup_elem(&flows, &zero);
	struct sk_buff *skb;
	unsigned long state;
	__u64 flow;

	if (!head || !head->families || !ctx->ingress_ifindex || ctx->vlan_present || !read_headers(ctx, &report))
		return TCX_NEXT;
	family = report.family == 4 ? FLOWS_IPV4 : FLOWS_IPV6;
	if (!(head->families & family) || (report.protocol != IPPROTO_TCP && report.protocol != IPPROTO_UDP))
		return TCX_NEXT;
	skb = bpf_cast_to_kern_ctx(ctx);
	/* By a program at tc, ours above all: Linux has not decided about it. */
	if (BPF_CORE_READ_BITFIELD_PROBED(skb, redirected))
		return TCX_NEXT;
	report.generation = skb->dev->nd_net.net->nft.base_seq;
	if (report.generation != head->generation)
		return TCX_NEXT;
	state = skb->_nfct;
	if (state & ~CT_INFO) {
		if ((state & CT_INFO) != CT_ESTABLISHED && (state & CT_INFO) != CT_ESTABLISHED_REPLY)
			return TCX_NEXT;
		flow = state;
	} else {
		flow = (__u64)(report.source[0] ^ report.source[3]) << 32 |
		       (report.destination[0] ^ report.destination[3] ^ report.ports);
		flow ^= (__u64)report.protocol << 56;
	}
	if (!is_due(flow, head->epoch))
		return TCX_NEXT;
	report.reply = (state & CT_INFO) == CT_ESTABLISHED_REPLY;
	if (state & ~CT_INFO)
		read_connection(&report, (struct nf_conn *)(state & ~CT_INFO));
	report.input = ctx->ingress_ifindex;
	report.output = ctx->ifindex;
	report.mark = ctx->mark;
	report.jiffies = bpf_jiffies64();
	written = bpf_ringbuf_reserve(&reports, sizeof(report), 0);
	if (!written)
		return TCX_NEXT;
	*written = report;
	bpf_ringbuf_submit(written, 0);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
