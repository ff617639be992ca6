// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Lists the interfaces on top of another one that are in other network namespaces. Netlink does not show them in the
 * namespace of the lower one.
 *
 *     BPF_PROG_TEST_RUN, __sk_buff.ifindex = lower -> net_device.adj_list.upper -> output: struct uppers
 *
 * No packet meets this program: it is run on request only.
 */
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <stdbool.h>
#include <stddef.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"

struct list_head {
	struct list_head *next;
} OF_KERNEL;

struct rtnl_link_ops {
	const char *kind;
} OF_KERNEL;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
	const unsigned char *dev_addr;
	const struct rtnl_link_ops *rtnl_link_ops;
	struct {
		struct list_head upper;
	} adj_list;
} OF_KERNEL;

/* What a kind of interface keeps: a member in newer kernels, behind the structure in older ones, aligned. */
struct net_device___private {
	unsigned char priv[0];
} OF_KERNEL;

struct netdev_adjacent {
	struct net_device *dev;
	struct list_head list;
} OF_KERNEL;

struct macvlan_dev {
	enum macvlan_mode mode;
} OF_KERNEL;

struct sk_buff {
	struct net_device *dev;
} OF_KERNEL;

extern void *bpf_cast_to_kern_ctx(void *) __ksym;

/* Interfaces that are looked at, and that are listed. */
#define TURNS_MAX 65536
#define UPPERS_MAX 32
#define KIND_MAX 16
#define MAC 6
#define PRIVATE_ALIGN 32
/* Behind the Ethernet header of the input. */
#define OUTPUT 16

/* As in ../src/uppers.rs. */
struct upper {
	__u32 ifindex;
	__u32 namespace;
	__u32 macvlan_mode; /* MACVLAN_MODE_*; 0 if it is none, or not known */
	__u32 same_mac;	    /* its MAC address is that of the lower one */
	char kind[KIND_MAX];
};

static __always_inline void *private_of(struct net_device *dev)
{
	struct net_device___private *with = (void *)dev;

	if (bpf_core_field_exists(with->priv))
		return (void *)dev + bpf_core_field_offset(with->priv);
	return (void *)dev + (bpf_core_type_size(struct net_device) + PRIVATE_ALIGN - 1) / PRIVATE_ALIGN * PRIVATE_ALIGN;
}

struct walk {
	struct __sk_buff *output;
	struct net_device *lower;
	struct list_head *at;
};

/* Of those in other namespaces, also beyond UPPERS_MAX. In memory, since the verifier would follow each value of a variable. */
static __u32 count;

static __always_inline __u64 mac_of(struct net_device *dev)
{
	__u64 mac = 0;

	bpf_probe_read_kernel(&mac, MAC, BPF_CORE_READ(dev, dev_addr));
	return mac;
}

static __always_inline bool is_macvlan(const char *kind)
{
	return kind[0] == 'm' && kind[1] == 'a' && kind[2] == 'c' && kind[3] == 'v';
}

static __always_inline void add(struct walk *walk, struct net_device *dev)
{
	struct upper upper = {};
	__u32 place = count++;

	if (place >= UPPERS_MAX)
		return;
	upper.ifindex = BPF_CORE_READ(dev, ifindex);
	upper.namespace = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	bpf_probe_read_kernel_str(upper.kind, sizeof(upper.kind), BPF_CORE_READ(dev, rtnl_link_ops, kind));
	if (bpf_core_type_exists(struct macvlan_dev) && is_macvlan(upper.kind)) {
		struct macvlan_dev *macvlan = private_of(dev);

		upper.macvlan_mode = BPF_CORE_READ(macvlan, mode);
	}
	upper.same_mac = mac_of(dev) == mac_of(walk->lower);
	bpf_skb_store_bytes(walk->output, OUTPUT + place * sizeof(upper), &upper, sizeof(upper), 0);
}

static long step(__u32 turn, struct walk *walk)
{
	struct net_device *dev, *lower = walk->lower;
	struct list_head *at = walk->at;
	struct netdev_adjacent *adjacent = NULL;

	if (at == (void *)lower + bpf_core_field_offset(lower->adj_list.upper))
		return 1;
	adjacent = (void *)at - bpf_core_field_offset(adjacent->list);
	walk->at = BPF_CORE_READ(at, next);
	dev = BPF_CORE_READ(adjacent, dev);
	if (dev && BPF_CORE_READ(dev, nd_net.net) != BPF_CORE_READ(lower, nd_net.net))
		add(walk, dev);
	return !walk->at;
}

SEC("tc")
int uppers(struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct net_device *lower = skb->dev;
	struct walk walk = { .output = ctx, .lower = lower, .at = BPF_CORE_READ(lower, adj_list.upper.next) };

	count = 0;
	bpf_loop(TURNS_MAX, step, &walk, 0);
	return count;
}

char _license[] SEC("license") = "Dual BSD/GPL";
