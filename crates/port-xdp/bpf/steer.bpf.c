// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Decides which frames of a port go to the user path, and which stay with Linux.
 *
 * The user path gets unicast IPv4 and IPv6 packets sent to the port's MAC whose destination is not a local address of
 * Linux, with `take_esp` also IPsec ESP to local addresses, alone or in UDP, and with `take_local` everything to these. This
 * includes packets with broken headers, since the worker counts those by drop reason. Everything else goes to Linux unchanged, and so do all frames while no worker is bound, unless `unattended` says otherwise. In doubt: XDP_PASS.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#include "deliver.h"
#include "hold.h"
#include "local.h"
#include "sample.h"
#include "unattended.h"

#define MAX_TAGS 2
#define ACTIVE 1
#define SAMPLED 2 /* active, and some frames are sampled: one comparison for both, which the others pay anyway */
#define LINUX_ONLY_IPV4 1
#define LINUX_ONLY_IPV6 2
#define HINT_BITS 1024 /* the same in shared.rs */
#define ROUTE_HINT_BITS 65536 /* for each family; the same in routes.rs */
#define ROUTES_MAX 8192
#define LINK_LOCAL 0xfe80 /* fe80::/10, RFC 4291 2.5.6 */
#define ND_FIRST 133	  /* router solicitation, RFC 4861 4.1 */
#define ND_LAST 137	  /* redirect, RFC 4861 4.5 */
#define DROP_TWO_TAGS 1 /* values of `unattended`, in the order of `Unattended` in Rust */
#define DROP_ALL 2

/* What was done with a frame, in the order of `SteerCounters` in steer.rs. */
enum kind {
	STEERED,
	PASSED_NO_WORKER,
	PASSED_INACTIVE,
	PASSED_OTHER_MAC,
	PASSED_GROUP,
	PASSED_OTHER_TYPE,
	PASSED_LOCAL,
	PASSED_NEIGHBOR,
	PASSED_DELIVERED,
	PASSED_UNATTENDED,
	PASSED_FIREWALL, /* only Linux may handle the family */
	DROPPED_HELD, /* Linux might route it before the filters are in place, or while no worker filters */
	PASSED_TOO_LARGE, /* does not fit into a slot: the MTU was raised, or is above what slots hold */
	DROPPED_TOO_LARGE, /* the same where Linux might forward what the workers' filters drop */
	PASSED_ROUTE, /* its route leads where only Linux can send */
	KINDS
};

struct counts {
	__u64 of[KINDS];
};

/* The same layout as `Control` in steer.rs. */
struct control {
	__u64 mac; /* the port's own, in network byte order in the low 48 bits */
	__u32 active;
	__u32 other_macs; /* number of entries in `macs` */
	__u32 linux_only; /* address families that only Linux may handle */
	__u32 held; /* not active yet, and there are filters to wait for */
	__u32 sample_one_in; /* if `active` is SAMPLED */
	__u32 filters_drop; /* workers have filters, which Linux does not have */
	__u32 linux_routes; /* address families with prefixes in `routes4` and `routes6` */
	__u32 unattended; /* what to do with frames that no worker fetches */
};

struct tag {
	__be16 tci;
	__be16 type;
};

struct address6 {
	__u32 words[4];
};

struct hints {
	__u32 words[HINT_BITS / 32];
};

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1); /* set to the number of queues at load */
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u8);
} macs SEC(".maps");

/* Shared by all ports of the process. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, __u8);
} local4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address6);
	__type(value, __u8);
} local6 SEC(".maps");

/*
 * Bit `hint_of(address)` is set for each local address, so that most other addresses need no lookup in the maps above.
 * Shared by all ports, like those.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hints);
} local_hints SEC(".maps");

/*
 * Prefixes that lead where only Linux can send: over interfaces that are no ports. The value is 0 for longer ones within
 * these that do not. Linux may get any packet, so nothing depends on whether these are complete. A bit of `route_hints` is
 * set for each prefix, so that other destinations need no lookup. Shared by all ports.
 */
struct prefix4 {
	__u32 length;
	__be32 address;
};

struct prefix6 {
	__u32 length;
	struct address6 address;
};

struct route_hints {
	__u32 words[2 * ROUTE_HINT_BITS / 32]; /* IPv4, then IPv6 */
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ROUTES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix4);
	__type(value, __u8);
} routes4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, ROUTES_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix6);
	__type(value, __u8);
} routes6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct route_hints);
} route_hints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/*
 * What `deliver` puts before a frame that it sends to Linux, so that a generic-mode `steer` recognizes the frame when
 * it passes again, perhaps on another CPU because of RPS. Random, so that no received frame contains it by accident.
 */
struct mark {
	__u64 word;
};

struct control control SEC(".data.control");

const volatile bool take_tagged = false;
const volatile bool take_all = false; /* all frames, for programs that want every packet of a port */
const volatile bool generic_mode = false;
const volatile bool delivers_many = false;
const volatile __u64 delivered_mark = 0;
const volatile __u32 frame_max = 0xffffffff; /* the largest frame that fits into a slot, in bytes */

static __always_inline void count(enum kind kind)
{
	__u32 zero = 0;
	struct counts *counts_here = bpf_map_lookup_elem(&counts, &zero);

	if (counts_here)
		counts_here->of[kind]++;
}

static __always_inline int pass(enum kind kind)
{
	count(kind);
	return XDP_PASS;
}

/* Whether `deliver` made this frame: in generic mode it passes here on its way to Linux. Removes the mark. */
static __always_inline bool was_delivered(struct xdp_md *ctx)
{
	struct mark *mark;
	bool delivered = false;

	/* In generic mode the frame arrives without metadata, but the bytes are still in front of it. */
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*mark)))
		return false;
	mark = (void *)(long)ctx->data_meta;
	if ((void *)(mark + 1) <= (void *)(long)ctx->data && mark->word == delivered_mark) {
		delivered = true;
		mark->word = 0;
	}
	bpf_xdp_adjust_meta(ctx, sizeof(*mark));
	return delivered;
}

static __always_inline bool is_our_mac(const struct ethhdr *eth)
{
	const __u16 *words = (const __u16 *)eth->h_dest;
	__u64 mac = words[0] | (__u64)words[1] << 16 | (__u64)words[2] << 32;

	if (mac == control.mac)
		return true;
	return control.other_macs && bpf_map_lookup_elem(&macs, &mac);
}

/* Whether an address may be local, by its 32 bits or a hash of its 128 bits. shared.rs computes the same. */
static __always_inline bool may_be_local(__u32 mixed)
{
	__u32 zero = 0, bit = mixed * 0x9e3779b1u >> 22;
	struct hints *hints = bpf_map_lookup_elem(&local_hints, &zero);

	return !hints || hints->words[bit / 32 % (HINT_BITS / 32)] >> bit % 32 & 1;
}

/* Whether a prefix may lead to Linux: by the first 16 bits of an IPv4 address, a hash of the first 32 of an IPv6 one. */
static __always_inline bool may_be_routed_by_linux(__u32 bit)
{
	__u32 zero = 0;
	struct route_hints *hints = bpf_map_lookup_elem(&route_hints, &zero);

	return hints && hints->words[bit / 32 % (2 * ROUTE_HINT_BITS / 32)] >> bit % 32 & 1;
}

static __always_inline bool is_routed_by_linux4(__be32 destination)
{
	struct prefix4 key = { .length = 32, .address = destination };
	__u8 *leads;

	if (!(control.linux_routes & LINUX_ONLY_IPV4) || !may_be_routed_by_linux(bpf_ntohl(destination) >> 16))
		return false;
	leads = bpf_map_lookup_elem(&routes4, &key);
	return leads && *leads;
}

static __always_inline bool is_routed_by_linux6(const struct address6 *destination)
{
	struct prefix6 key = { .length = 128 };
	__u8 *leads;

	if (!(control.linux_routes & LINUX_ONLY_IPV6) ||
	    !may_be_routed_by_linux(ROUTE_HINT_BITS + (destination->words[0] * 0x9e3779b1u >> 16)))
		return false;
	key.address = *destination;
	leads = bpf_map_lookup_elem(&routes6, &key);
	return leads && *leads;
}

/* The reason to leave an IPv4 packet to Linux, or STEERED. Truncated packets are left to the worker to count. */
static __always_inline enum kind ipv4(void *packet, void *end)
{
	__be32 *destination = packet + 16;

	if ((void *)(destination + 1) > end)
		return STEERED;
	/* 224.0.0.0/4 and 255.255.255.255 */
	if ((*destination & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || *destination == 0xffffffff)
		return PASSED_GROUP;
	if (is_routed_by_linux4(*destination))
		return PASSED_ROUTE;
	if (!may_be_local(*destination))
		return STEERED;
	if (!bpf_map_lookup_elem(&local4, destination))
		return STEERED;
	return is_for_worker(*(__u8 *)(packet + 9), packet + (*(__u8 *)packet & 15) * 4, end) ? STEERED : PASSED_LOCAL;
}

/* The same for IPv6. */
static __always_inline enum kind ipv6(void *packet, void *end)
{
	__u8 *next_header = packet + 6, *icmp_type = packet + 40;
	__be16 *destination = packet + 24;
	struct address6 address;

	if ((void *)(destination + 8) > end)
		return STEERED;
	if ((*destination & bpf_htons(0xff00)) == bpf_htons(0xff00))
		return PASSED_GROUP;
	if ((*destination & bpf_htons(0xffc0)) == bpf_htons(LINK_LOCAL))
		return PASSED_LOCAL;
	if (*next_header == IPPROTO_ICMPV6 && (void *)(icmp_type + 1) <= end && *icmp_type >= ND_FIRST &&
	    *icmp_type <= ND_LAST)
		return PASSED_NEIGHBOR;
	__builtin_memcpy(&address, destination, sizeof(address));
	if (is_routed_by_linux6(&address))
		return PASSED_ROUTE;
	if (!may_be_local(address.words[0] ^ address.words[1] ^ address.words[2] ^ address.words[3]))
		return STEERED;
	if (!bpf_map_lookup_elem(&local6, &address))
		return STEERED;
	/* ESP may be behind extension headers or in a fragment, which the worker looks into. */
	if (take_esp && (*next_header == IPPROTO_HOPOPTS || *next_header == IPPROTO_ROUTING ||
			 *next_header == IPPROTO_FRAGMENT || *next_header == IPPROTO_DSTOPTS))
		return STEERED;
	return is_for_worker(*next_header, packet + 40, end) ? STEERED : PASSED_LOCAL;
}

static __always_inline bool is_tag(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

static __always_inline enum kind kind_of(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	void *network = eth + 1;
	__be16 type;

	if (network > end)
		return PASSED_OTHER_TYPE;
	if (eth->h_dest[0] & 1)
		return PASSED_GROUP;
	if (!is_our_mac(eth))
		return PASSED_OTHER_MAC;
	type = eth->h_proto;
	for (int i = 0; take_tagged && i < MAX_TAGS; i++) {
		struct tag *tag = network;

		if (!is_tag(type))
			break;
		network = tag + 1;
		if (network > end)
			return PASSED_OTHER_TYPE;
		type = tag->type;
	}
	if (type == bpf_htons(ETH_P_IP))
		return control.linux_only & LINUX_ONLY_IPV4 ? PASSED_FIREWALL : ipv4(network, end);
	if (type == bpf_htons(ETH_P_IPV6))
		return control.linux_only & LINUX_ONLY_IPV6 ? PASSED_FIREWALL : ipv6(network, end);
	/* Linux looks behind any number of tags with VLAN 0; the worker's filters may have to drop the frame. */
	return take_tagged && is_tag(type) ? STEERED : PASSED_OTHER_TYPE;
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sampling);
} sampling SEC(".maps");

/* Takes a sample of a frame if it is one of those. Which way it leaves only the worker will know. */
static __noinline int take_sample(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, one_in = control.sample_one_in;
	struct sampling *of = bpf_map_lookup_elem(&sampling, &zero);
	struct sample *sample;

	if (!of || !one_in || !is_sampled(of, one_in))
		return 0;
	sample = begin_sample(of, ctx->ingress_ifindex, data, end);
	if (sample)
		end_sample(sample, ctx->data_end - ctx->data, 0, SAMPLE_NOT_DROPPED);
	return 0;
}

static __always_inline bool has_two_tags(const struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct tag *tag = (void *)(eth + 1);

	return (void *)(tag + 1) <= end && is_tag(eth->h_proto) && is_tag(tag->type);
}

/* A frame for a worker that does not fetch any. Linux must not forward it if its filters are not those of the worker. */
static __noinline int left_by_workers(struct xdp_md *ctx, enum kind kind)
{
	__u32 unattended = control.unattended;

	if (unattended != DROP_ALL && !(unattended == DROP_TWO_TAGS && has_two_tags(ctx)))
		return pass(kind);
	count(DROPPED_HELD);
	return XDP_DROP;
}

/* A frame that fits into no slot, in which AF_XDP would lose it. */
static __noinline int too_large(struct xdp_md *ctx)
{
	if (!control.filters_drop && !take_local)
		return pass(PASSED_TOO_LARGE);
	count(DROPPED_TOO_LARGE);
	return XDP_DROP;
}

/* With fragments, since the MTU of the interface and of a veth's other end may be raised at any time. */
SEC("xdp.frags")
int steer(struct xdp_md *ctx)
{
	enum kind kind;
	long verdict;

	if (generic_mode && was_delivered(ctx))
		return pass(PASSED_DELIVERED);
	if (delivers_many && is_by_hand(ctx))
		return deliver_next(ctx);
	if (control.active != ACTIVE) {
		if (control.active == SAMPLED) {
			take_sample(ctx);
			goto active;
		}
		if (!control.held || !may_be_routed((void *)(long)ctx->data, (void *)(long)ctx->data_end))
			return pass(PASSED_INACTIVE);
		count(DROPPED_HELD);
		return XDP_DROP;
	}
active:
	kind = take_all ? STEERED : kind_of(ctx);
	if (kind != STEERED)
		return pass(kind);
	if (bpf_xdp_get_buff_len(ctx) > frame_max)
		return too_large(ctx);
	verdict = bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS);
	if (verdict != XDP_REDIRECT)
		return left_by_workers(ctx, PASSED_NO_WORKER);
	if (is_unattended(ctx->rx_queue_index))
		return left_by_workers(ctx, PASSED_UNATTENDED);
	count(STEERED);
	return verdict;
}

/* Run through BPF_PROG_TEST_RUN over a frame that a worker hands back, as if the port had just received it. */
SEC("xdp")
int deliver(struct xdp_md *ctx)
{
	struct mark *mark;

	if (!generic_mode)
		return XDP_PASS;
	/* There is always headroom. A frame without a mark would go to the worker again, in an endless loop. */
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*mark)))
		return XDP_DROP;
	mark = (void *)(long)ctx->data_meta;
	if ((void *)(mark + 1) > (void *)(long)ctx->data)
		return XDP_DROP;
	mark->word = delivered_mark;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
