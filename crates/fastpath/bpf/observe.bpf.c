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

#include "connection.h"
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

/* The low bits of skb->_nfct: the connection's state for this packet. */
#define CT_INFO 7ul
#define CT_ESTABLISHED 0
#define CT_NEW 2
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
 * Flows that have been seen and not reported yet, by a hash of flow and epoch. One keeps its place until it is old enough to be
 * reported, and after that against most packets of others: so each gets its turn, however many there are, and those that
 * never come again are in the way of none that has packets. CPUs do not wait for each other here: at worst a flow is
 * reported sooner or later. Small, since each packet of a new connection brings a line of it into the cache.
 */
#define SEEN_SHIFT 17
#define SEEN (1 << SEEN_SHIFT)
struct seen {
	__u32 flow;
	__u16 since; /* jiffies, low bits */
	__u16 reported; /* likewise; 0: not yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SEEN);
	__type(key, __u32);
	__type(value, struct seen);
} seen SEC(".maps");

/* Of so many packets of others one takes the place of a flow that has not been reported. */
#define TAKES_PLACE 16

/* In jiffies: how old a flow must be, how soon it is reported again, and how long it may keep its place. */
const volatile struct {
	__u32 age;
	__u32 again;
	__u32 keep;
} after SEC(".rodata.observe") = { 1, 1, 1 };

extern void *bpf_cast_to_kern_ctx(void *context) __ksym;

/* Whether what is in a place stays there, although a packet of another flow has come. */
static __always_inline bool keeps_place(const struct seen *last, __u16 now)
{
	__u16 age = now - last->since;

	if (!last->flow || last->reported || age >= after.keep)
		return false;
	return age < 2 * after.age || bpf_get_prandom_u32() % TAKES_PLACE;
}

/*
 * Whether a flow is to be reported: it has lasted for some time, and not been reported lately. Time counts from when the table
 * last began anew, so that packets do not teach that an earlier ruleset let pass, and that waited since then for their
 * neighbor's MAC: they all leave at once. And it counts from the last packet of a connection that has `begun` only just.
 */
static __always_inline bool is_due(__u64 flow, __u32 reply, __u32 epoch, bool begun)
{
	__u64 hash = (flow ^ (__u64)epoch << 32 ^ epoch) * 0x9e3779b97f4a7c15ull;
	/* Both directions of a connection are in one line of the cache. */
	__u32 place = hash >> (65 - SEEN_SHIFT) << 1 | reply, name = hash >> (33 - SEEN_SHIFT);
	struct seen *last = bpf_map_lookup_elem(&seen, &place);
	__u16 now = bpf_jiffies64();

	if (!last)
		return false;
	if (begun || last->flow != name) {
		if (last->flow != name && keeps_place(last, now))
			return false;
		last->since = now;
		last->reported = 0;
		last->flow = name;
		return false;
	}
	if ((__u16)(now - last->since) < after.age ||
	    (last->reported && (__u16)(now - last->reported) < after.again))
		return false;
	last->reported = now | 1;
	return true;
}

/* The fixed part of an IP header, and what follows it: ports. */
struct headers4 {
	struct ipv4 ip;
	__u32 ports;
};

struct headers6 {
	struct ipv6 ip;
	__u32 ports;
};

/* How a packet leaves. */
struct departure {
	__u32 source[4]; /* IPv4 in the first */
	__u32 destination[4];
	__u32 ports;
	__u8 family; /* 4 or 6 */
	__u8 protocol;
};

/* Reads the headers of a packet; false for those that no flow takes. */
static __always_inline bool read_headers(struct __sk_buff *ctx, struct departure *packet)
{
	struct headers4 four;
	struct headers6 six;

	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(ctx, sizeof(struct ethernet), &four, sizeof(four)) ||
		    four.ip.version_ihl != 0x45 || four.ip.fragment & bpf_htons(0x3fff))
			return false;
		packet->family = 4;
		packet->protocol = four.ip.protocol;
		packet->source[0] = four.ip.source;
		packet->destination[0] = four.ip.destination;
		packet->ports = four.ports;
	} else if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(ctx, sizeof(struct ethernet), &six, sizeof(six)))
			return false;
		packet->family = 6;
		packet->protocol = six.ip.next_header;
		__builtin_memcpy(packet->source, six.ip.source, sizeof(packet->source));
		__builtin_memcpy(packet->destination, six.ip.destination, sizeof(packet->destination));
		packet->ports = six.ports;
	}
	return packet->protocol == IPPROTO_TCP || packet->protocol == IPPROTO_UDP;
}

/* What connection tracking knows; false if the connection does not go by flow any more. */
static __always_inline bool read_connection(struct report *report, struct nf_conn *connection)
{
	report->status = BPF_CORE_READ(connection, status);
	bpf_core_read(&report->tuples[0], sizeof(report->tuples[0]), &connection->tuplehash[0].tuple);
	bpf_core_read(&report->tuples[1], sizeof(report->tuples[1]), &connection->tuplehash[1].tuple);
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
		return true;
	report->tcp_state = BPF_CORE_READ(connection, proto.tcp.state);
	if (report->reply) {
		report->acknowledged = BPF_CORE_READ(connection, proto.tcp.seen[1].td_maxack);
		report->acknowledges = !!(BPF_CORE_READ(connection, proto.tcp.seen[1].flags) & MAXACK_SET);
	} else {
		report->acknowledged = BPF_CORE_READ(connection, proto.tcp.seen[0].td_maxack);
		report->acknowledges = !!(BPF_CORE_READ(connection, proto.tcp.seen[0].flags) & MAXACK_SET);
	}
	return report->tcp_state == TCP_CONNTRACK_ESTABLISHED;
}

/* Reports a packet. Not inlined, since most packets need no room for a report on the stack. */
static __noinline int report_packet(struct __sk_buff *ctx, const struct departure *packet, unsigned long state,
				    __u32 generation)
{
	struct report report = { .tracked = 0 }, *written;

	__builtin_memcpy(report.source, packet->source, sizeof(report.source));
	__builtin_memcpy(report.destination, packet->destination, sizeof(report.destination));
	report.ports = packet->ports;
	report.family = packet->family;
	report.protocol = packet->protocol;
	report.generation = generation;
	report.reply = (state & CT_INFO) == CT_ESTABLISHED_REPLY;
	if (state & ~CT_INFO && !read_connection(&report, (struct nf_conn *)(state & ~CT_INFO)))
		return 0;
	report.input = ctx->ingress_ifindex;
	report.output = ctx->ifindex;
	report.mark = ctx->mark;
	report.jiffies = bpf_jiffies64();
	written = bpf_ringbuf_reserve(&reports, sizeof(report), 0);
	if (!written)
		return 0;
	*written = report;
	bpf_ringbuf_submit(written, 0);
	return 0;
}

/* Whether the packets of a connection may go by flow once it has lasted for some time: Linux takes it for established. */
static __always_inline bool is_assured(unsigned long state)
{
	struct nf_conn *connection = (struct nf_conn *)(state & ~CT_INFO);
	__u32 status = BPF_CORE_READ(connection, status);

	return (status & STATUS_NEEDED) == STATUS_NEEDED;
}

/*
 * Whether the packet of a connection is to be reported. The connection is known by its address, which Linux may give to
 * another one at once: that begins with packets that do not assure it.
 */
static __always_inline bool is_connection_due(unsigned long state, __u32 epoch)
{
	unsigned long info = state & CT_INFO;

	if (info != CT_NEW && info != CT_ESTABLISHED && info != CT_ESTABLISHED_REPLY)
		return false;
	return is_due(state & ~CT_INFO, info == CT_ESTABLISHED_REPLY, epoch, !is_assured(state));
}

/* Whether the packet of a flow that Linux does not track is to be reported. */
static __always_inline bool is_untracked_due(const struct departure *packet, __u32 epoch)
{
	__u64 flow = (__u64)(packet->source[0] ^ packet->source[3]) << 32 |
		     (packet->destination[0] ^ packet->destination[3] ^ packet->ports);

	return is_due(flow ^ (__u64)packet->protocol << 56, flow & 1, epoch, false);
}

SEC("tcx/egress")
int bm_observe_tc(struct __sk_buff *ctx)
{
	struct departure packet = {};
	__u32 zero = 0, generation;
	struct flow_head *head = bpf_map_lookup_elem(&flows, &zero);
	struct sk_buff *skb;
	unsigned long state;

	if (!head || !head->families || !ctx->ingress_ifindex || ctx->vlan_present)
		return TCX_NEXT;
	skb = bpf_cast_to_kern_ctx(ctx);
	state = skb->_nfct;
	if (state & ~CT_INFO && !is_connection_due(state, head->epoch))
		return TCX_NEXT;
	/* By a program at tc, ours above all: Linux has not decided about it. */
	if (BPF_CORE_READ_BITFIELD(skb, redirected))
		return TCX_NEXT;
	generation = skb->dev->nd_net.net->nft.base_seq;
	if (generation != head->generation || !read_headers(ctx, &packet) ||
	    !(head->families & (packet.family == 4 ? FLOWS_IPV4 : FLOWS_IPV6)))
		return TCX_NEXT;
	if (state & ~CT_INFO || is_untracked_due(&packet, head->epoch))
		report_packet(ctx, &packet, state, generation);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
