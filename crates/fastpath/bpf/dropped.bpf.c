// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Counts the packets that Linux drops after they came in on an interface of brickmoon, by the kernel's reason.
 *
 *     kfree_skb -> received on one of `ports`, in our namespace? -> dropped[interface, reason, route, expired]++
 *
 * Only packets that Linux drops reach the tracepoint, so forwarded packets cost nothing. They come from all namespaces of
 * the machine, and may be a flood: the program reads fields directly, without helpers, and the cheapest checks come first.
 * The kernel gives one reason for all routes that reject packets, and one for all IP headers that it does not accept. So
 * the error of the route and the TTL are part of the key.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "freed.h"
#include "kernel.h"

struct net_device {
	possible_net_t nd_net;
} OF_KERNEL;

struct dst_entry {
	short error;
} OF_KERNEL;

struct sk_buff {
	struct net_device *dev;
	int skb_iif;
	__u32 mark;
	unsigned long _skb_refdst;
	unsigned char *head;
	__u16 network_header;
} OF_KERNEL;

/* The low bits of a route's address say who holds it. */
#define DST_ADDRESS (~7ul)

/* The same as in ../src/dropped.rs. */
struct key {
	__u32 ifindex;
	__u32 reason; /* enum skb_drop_reason of the running kernel */
	__u16 route;  /* the error that the route gives: no route, blackhole, unreachable, prohibit; 0 for none */
	__u16 expired; /* TTL or hop limit is used up */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH); /* interfaces that are gone give way */
	__uint(max_entries, 4096);
	__type(key, struct key);
	__type(value, __u64);
} dropped SEC(".maps");

/* The number of our network namespace: interfaces of others may have the same index. */
const volatile __u32 namespace SEC(".rodata.namespace") = 0;

static __always_inline __u16 error_of_route(struct sk_buff *skb)
{
	struct dst_entry *route = (void *)(skb->_skb_refdst & DST_ADDRESS);
	short error;

	if (!route)
		return 0;
	error = BPF_CORE_READ(route, error);
	return error < 0 ? -error : error;
}

/* IPv4 has its TTL in the ninth byte, IPv6 its hop limit in the eighth. */
static __always_inline __u16 has_expired(struct sk_buff *skb)
{
	__u8 *header = (void *)((__u64)skb->head + skb->network_header);
	__u8 start[9];

	if (bpf_probe_read_kernel(start, sizeof(start), header))
		return 0;
	return start[0] >> 4 == 6 ? start[7] <= 1 : start[0] >> 4 == 4 && start[8] <= 1;
}

/* The tracepoint's arguments: the packet, the place in the kernel, the reason. */
SEC("tp_btf/kfree_skb")
int bm_dropped(__u64 *ctx)
{
	struct sk_buff *skb = (void *)ctx[0];
	__u32 ifindex = skb->skb_iif;
	struct net_device *dev = skb->dev;
	struct key key = {};
	__u64 one = 1, *count;

	if (!ifindex || !dev || skb->mark == FREED_BY_BRICKMOON || dev->nd_net.net->ns.inum != namespace ||
	    !bpf_map_lookup_elem(&ports, &ifindex))
		return 0;
	key.ifindex = ifindex;
	key.reason = ctx[2];
	key.route = error_of_route(skb);
	key.expired = has_expired(skb);
	count = bpf_map_lookup_elem(&dropped, &key);
	if (count)
		(*count)++;
	else
		bpf_map_update_elem(&dropped, &key, &one, BPF_NOEXIST);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
