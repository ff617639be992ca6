/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* The fields of the kernel's structures that are read; libbpf adjusts their offsets to the running kernel. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct xdp_rxq_info {
	struct net_device *dev;
	__u32 queue_index;
};

struct xdp_buff {
	void *data;
	void *data_end;
	void *data_meta;
	void *data_hard_start;
	struct xdp_rxq_info *rxq;
	__u32 frame_sz;
	__u32 flags;
};

struct skb_shared_info {
	unsigned int xdp_frags_size;
};

struct sk_buff {
	struct net_device *dev;
	unsigned int len;
	unsigned int data_len;
	unsigned char *data;
	__u16 queue_mapping;
	__u32 vlan_all;
	__be16 vlan_proto;
	__u16 vlan_tci;
};

struct bpf_redirect_info {
	__u64 tgt_index;
	enum bpf_map_type map_type;
};

struct bpf_net_context {
	struct bpf_redirect_info ri;
};

struct task_struct {
	struct bpf_net_context *bpf_net_context;
};

#pragma clang attribute pop

extern struct bpf_redirect_info bpf_redirect_info __ksym __weak;

/* XDP_FLAGS_HAS_FRAGS of <net/xdp.h>, and the room of skb_shared_info, aligned to cache lines. */
#define XDP_FLAGS_HAS_FRAGS 1
#define ALIGNED_SHARED_INFO ((bpf_core_type_size(struct skb_shared_info) + 63) & ~63)
