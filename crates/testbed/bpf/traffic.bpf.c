// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Both ends of a measurement: a generator of UDP packets and sinks that check what arrives.
 *
 * The generator runs by BPF_PROG_TEST_RUN with live frames: each run writes a whole packet, headers and all
 * (frames come back with the router's edits), and sends it out of an interface. The sinks take what the
 * generator made and leave everything else to Linux; one is for frames (XDP), one for skbs (clsact).
 *
 * Layouts are those of layout.rs. Numbers are in host order but where a name or type says otherwise.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PORT_DISCARD 9
#define PORT_FIRST 1024
#define PORTS 256
#define HOPS_SENT 64 /* what the generator puts in; one router on, it must be one less */
#define SIZES 12
#define TRACKED_MAX 65536
#define MAC_NEXT_HOP bpf_htonl(0x02000001) /* how the MAC of every next hop begins */

struct destination {
	__u8 address[16]; /* IPv4 in the first four */
	__be16 next_hop;  /* where the router must send it; 0: anywhere */
	__u16 reserved;
};

struct generator {
	__u32 ifindex;
	__u32 destinations;
	__u32 is_ipv6;
	__u32 sizes;
	__u16 size[SIZES]; /* of frames, in turn */
	__u8 ethernet[12]; /* destination, source */
	__u8 source[16];
	__u32 source_sum; /* of the source's words, for the checksums */
	__u64 gap_ns;	  /* between packets; 0: flat out */
	/* what it has come to */
	__u64 next_ns;
	__u64 sent;
	__u32 destination; /* the next one */
	__u32 turn;	   /* the next size */
	__u32 is_bridged;  /* straight to the next hop's MAC, with no router between */
	__u32 reserved;
};

/* Behind the UDP header of every packet. */
struct payload {
	__be32 sequence;
	__be16 next_hop;
	__be16 reserved;
	__u64 sent_ns; /* of bpf_ktime_get_ns(), read on this machine only */
};

struct sink {
	__u32 is_tracking; /* order, gaps and delays too, which costs the sink time */
	__u32 destinations;
	/* what it has come to, while tracking; one queue, so one writer */
	__u64 last_ns;
	__u64 gap_ns_max;
	__u64 gap_end_ns; /* when the longest gap ended */
	__u64 delay_ns_max;
	__u64 delay_ns_sum;
	__u64 tracked;
	__u64 reordered;
	__u32 is_bridged; /* no router has spent a hop */
	__u32 reserved;
};

struct arrived {
	__u64 good;
	__u64 bytes; /* of good frames */
	__u64 bad_hops;
	__u64 bad_checksum;
	__u64 bad_next_hop;
	__u64 bad_shape; /* ports or lengths */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set to the number wanted at load */
	__type(key, __u32);
	__type(value, struct destination);
} destinations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct generator);
} generators SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sink);
} sinks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arrived);
} arrivals SEC(".maps");

/* By destination: the sequence number that comes next, plus one; 0: none has come yet. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, TRACKED_MAX);
	__type(key, __u32);
	__type(value, __u64);
} expected SEC(".maps");

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

static __always_inline void write_payload(struct payload *payload, const struct destination *to,
					  const struct generator *g)
{
	payload->sequence = bpf_htonl((__u32)g->sent);
	payload->next_hop = to->next_hop;
	payload->reserved = 0;
	payload->sent_ns = bpf_ktime_get_ns();
}

static __always_inline void write_udp(struct udphdr *udp, __u32 destination, __u16 bytes)
{
	udp->source = bpf_htons(PORT_FIRST + destination % PORTS);
	udp->dest = bpf_htons(PORT_DISCARD);
	udp->len = bpf_htons(bytes);
	udp->check = 0;
}

/*
 * Real senders have a checksum of UDP; it is also what tells that there is nothing inside that is left to a device. What
 * lies behind the payload is zero. `sum` is that of the addresses.
 */
static __always_inline void write_checksum(struct udphdr *udp, __u64 sum)
{
	const __be32 *words = (void *)udp;
	__u16 check;

	sum += (__u64)udp->len + bpf_htons(IPPROTO_UDP);
#pragma unroll
	for (int i = 0; i < 6; i++)
		sum += words[i];
	check = ~folded(sum);
	udp->check = check ? check : 0xffff;
}

static __always_inline bool write_ipv4(void *at, void *end, const struct destination *to,
				       const struct generator *g, __u16 bytes)
{
	struct iphdr *ip = at;
	struct udphdr *udp = (void *)(ip + 1);
	struct payload *payload = (void *)(udp + 1);
	__be32 daddr = *(__be32 *)to->address;

	if ((void *)(payload + 1) > end)
		return false;
	*(__be32 *)ip = bpf_htonl(0x45000000 | bytes);
	*((__be32 *)ip + 1) = 0; /* identification, no fragment */
	*((__be32 *)ip + 2) = bpf_htonl(HOPS_SENT << 24 | IPPROTO_UDP << 16);
	ip->saddr = *(__be32 *)g->source;
	ip->daddr = daddr;
	ip->check = ~folded((__u64) * (__be32 *)ip + *((__be32 *)ip + 2) + g->source_sum + daddr);
	write_udp(udp, g->destination, bytes - sizeof(*ip));
	write_payload(payload, to, g);
	write_checksum(udp, (__u64)g->source_sum + daddr);
	return true;
}

static __always_inline bool write_ipv6(void *at, void *end, const struct destination *to,
				       const struct generator *g, __u16 bytes)
{
	struct ipv6hdr *ip = at;
	struct udphdr *udp = (void *)(ip + 1);
	struct payload *payload = (void *)(udp + 1);
	const __be32 *daddr = (void *)to->address;
	__u16 udp_bytes = bytes - sizeof(*ip);

	if ((void *)(payload + 1) > end)
		return false;
	*(__be32 *)ip = bpf_htonl(0x60000000);
	*((__be32 *)ip + 1) = bpf_htonl(udp_bytes << 16 | IPPROTO_UDP << 8 | HOPS_SENT);
	__builtin_memcpy(&ip->saddr, g->source, 16);
	__builtin_memcpy(&ip->daddr, to->address, 16);
	write_udp(udp, g->destination, udp_bytes);
	write_payload(payload, to, g);
	write_checksum(udp, (__u64)g->source_sum + daddr[0] + daddr[1] + daddr[2] + daddr[3]);
	return true;
}

/* Whether it is time for the next packet. After a pause it does not catch up more than a millisecond. */
static __always_inline bool is_due(struct generator *g)
{
	__u64 now;

	if (!g->gap_ns)
		return true;
	now = bpf_ktime_get_ns();
	if (now < g->next_ns)
		return false;
	g->next_ns += g->gap_ns;
	if (g->next_ns + 1000000 < now)
		g->next_ns = now;
	return true;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	struct destination *to;
	struct generator *g;
	struct ethhdr *eth;
	__u32 zero = 0, turn;
	void *end;
	bool done;
	__u16 size;

	g = bpf_map_lookup_elem(&generators, &zero);
	if (!g || !is_due(g))
		return XDP_DROP;
	to = bpf_map_lookup_elem(&destinations, &g->destination);
	turn = g->turn;
	if (!to || turn >= SIZES)
		return XDP_ABORTED;
	size = g->size[turn];
	if (size != ctx->data_end - ctx->data &&
	    bpf_xdp_adjust_tail(ctx, (int)size - (int)(ctx->data_end - ctx->data)))
		return XDP_ABORTED;
	eth = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if ((void *)(eth + 1) > end)
		return XDP_ABORTED;
	__builtin_memcpy(eth, g->ethernet, 12);
	if (g->is_bridged)
		*(__be16 *)(eth->h_dest + 4) = to->next_hop;
	eth->h_proto = g->is_ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	done = g->is_ipv6 ? write_ipv6(eth + 1, end, to, g, size - sizeof(*eth)) :
			    write_ipv4(eth + 1, end, to, g, size - sizeof(*eth));
	if (!done)
		return XDP_ABORTED;
	g->sent++;
	g->destination = g->destination + 1 < g->destinations ? g->destination + 1 : 0;
	g->turn = turn + 1 < g->sizes ? turn + 1 : 0;
	return bpf_redirect(g->ifindex, 0);
}

/* Order, gaps and delays: one destination is one flow, since its ports are fixed. */
static __always_inline void track(struct sink *sink, const struct payload *payload)
{
	__u32 sequence = bpf_ntohl(payload->sequence), flow;
	__u64 now = bpf_ktime_get_ns(), gap = now - sink->last_ns, delay = now - payload->sent_ns;
	__u64 *next;

	if (sink->last_ns && now > sink->last_ns && gap > sink->gap_ns_max) {
		sink->gap_ns_max = gap;
		sink->gap_end_ns = now;
	}
	sink->last_ns = now;
	sink->tracked++;
	sink->delay_ns_sum += delay;
	if (delay > sink->delay_ns_max)
		sink->delay_ns_max = delay;
	if (!sink->destinations)
		return;
	flow = sequence % sink->destinations;
	next = bpf_map_lookup_elem(&expected, &flow);
	if (!next)
		return;
	if (*next && (__s32)(sequence + 1 - (__u32)*next) < 0)
		sink->reordered++;
	else
		*next = (__u64)sequence + 1;
}

/* Counts a packet behind its IP header. */
static __always_inline void count(const struct ethhdr *eth, const struct udphdr *udp, __u32 bytes,
				  __u16 udp_bytes, __u8 hops, bool is_checksum_right)
{
	const struct payload *payload = (const void *)(udp + 1);
	__u32 zero = 0;
	struct arrived *arrived = bpf_map_lookup_elem(&arrivals, &zero);
	struct sink *sink = bpf_map_lookup_elem(&sinks, &zero);

	if (!arrived || !sink)
		return;
	if (bpf_ntohs(udp->source) - PORT_FIRST >= PORTS || bpf_ntohs(udp->len) != udp_bytes) {
		arrived->bad_shape++;
	} else if (hops != HOPS_SENT - 1 + sink->is_bridged) {
		arrived->bad_hops++;
	} else if (!is_checksum_right) {
		arrived->bad_checksum++;
	} else if (payload->next_hop && (*(__be32 *)eth->h_dest != MAC_NEXT_HOP ||
					 *(__be16 *)(eth->h_dest + 4) != payload->next_hop)) {
		arrived->bad_next_hop++;
	} else {
		arrived->good++;
		arrived->bytes += bytes;
	}
	if (sink->is_tracking)
		track(sink, payload);
}

static __always_inline bool is_sum_right(const struct iphdr *ip)
{
	const __u32 *words = (const void *)ip;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < 5; i++)
		sum += words[i];
	return folded(sum) == 0xffff;
}

/* Takes a packet of the generator; false for whatever is none. */
static __always_inline bool take(void *data, void *end, __u32 bytes)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct ipv6hdr *ip6 = data + sizeof(*eth);
	struct udphdr *udp = (void *)(ip + 1);
	__u16 payload_bytes = bytes - sizeof(*eth) - sizeof(*ip);

	if ((void *)(udp + 1) + sizeof(struct payload) > end)
		return false;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (*(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_UDP || udp->dest != bpf_htons(PORT_DISCARD))
			return false;
		count(eth, udp, bytes, payload_bytes, ip->ttl, is_sum_right(ip));
		return true;
	}
	udp = (void *)(ip6 + 1);
	payload_bytes = bytes - sizeof(*eth) - sizeof(*ip6);
	if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(udp + 1) + sizeof(struct payload) > end)
		return false;
	if (ip6->nexthdr != IPPROTO_UDP || udp->dest != bpf_htons(PORT_DISCARD))
		return false;
	count(eth, udp, bytes, payload_bytes, ip6->hop_limit, true);
	return true;
}

SEC("xdp")
int sink_frames(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	return take(data, end, end - data) ? XDP_DROP : XDP_PASS;
}

SEC("tc")
int sink_skbs(struct __sk_buff *skb)
{
	/* The headers may lie in a page of their own. */
	if (skb->data_end - skb->data < 78 && bpf_skb_pull_data(skb, skb->len < 78 ? skb->len : 78))
		return TC_ACT_OK;
	return take((void *)(long)skb->data, (void *)(long)skb->data_end, skb->len) ? TC_ACT_STOLEN : TC_ACT_OK;
}

/* Has a veth interface poll and take redirected frames, and does nothing else. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
