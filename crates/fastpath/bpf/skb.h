/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What differs at tc: Linux has removed the frame's tag, its bytes may not be contiguous, it may be up to 64 KiB of TCP
 * that are segmented later (GSO), and the skb says whether its checksum is complete.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"
#include "packet.h"
#include "vlan.h"

typedef struct __sk_buff context;

struct net_device {
	possible_net_t nd_net;
} OF_KERNEL;

struct sk_buff {
	struct net_device *dev;
} OF_KERNEL;

/* The device of a packet, from the kernel's structure for it. */
static __always_inline struct net_device *device_of(struct sk_buff *packet)
{
	return packet->dev;
}

#define find_connection bpf_skb_ct_lookup

static __always_inline __u32 arrival_of(const context *ctx)
{
	return ctx->ifindex;
}

static __always_inline __u64 whole_length(context *ctx)
{
	return ctx->len;
}

static __always_inline long load_bytes(context *ctx, __u32 at, void *to, __u32 size)
{
	return bpf_skb_load_bytes(ctx, at, to, size);
}

/* Bytes from the network header to the end of the frame. */
static __always_inline __u32 room_from(const struct packet *packet, const void *ip)
{
	return packet->frame - sizeof(struct ethernet);
}

/* Linux forwards frames without padding; false if it cannot be cut. */
static __always_inline bool cut_padding(context *ctx, __u32 length)
{
	return ctx->len == length || !bpf_skb_change_tail(ctx, length, 0);
}

/* The length that must fit the MTU of the egress interface. */
static __always_inline __u32 largest_of(const struct packet *packet)
{
	return packet->largest ?: packet->length;
}

/* 0 if nothing may be sent. */
static __always_inline __u32 mtu_of(const struct packet *packet, const struct egress *egress, __u32 out)
{
	return packet->view->tc_mtus[out & (INTERFACES - 1)];
}

/* Does not matter here: Linux completes a checksum if needed. */
static __always_inline bool sums_may_be_partial(const struct packet *packet)
{
	return false;
}

static __always_inline bool is_tagged(context *ctx, const struct packet *packet)
{
	return ctx->vlan_present;
}

/* The interface on which a frame arrived; NULL if only Linux knows it. */
static __always_inline const struct ingress *logical_interface(context *ctx, const struct packet *packet)
{
	const struct ethernet *eth = packet->data;
	__u32 number = ctx->vlan_tci & VLAN_ID;

	if (!ctx->vlan_present)
		return packet->ingress;
	if (is_tag(eth->type))
		return NULL;
	if (!number)
		return packet->ingress;
	return vlan_ingress(packet->view, packet->ingress->ifindex,
			    (__u32)bpf_ntohs(ctx->vlan_proto) << 16 | number);
}

/* Bytes of a frame that are accessed directly: both headers, and the ports behind them. */
#define LOOKED_AT4 (sizeof(struct ethernet) + sizeof(struct ipv4) + 8)
#define LOOKED_AT6 (sizeof(struct ethernet) + sizeof(struct ipv6) + 20)

/* Brings the headers of a frame together; false if it is too short for the smaller of them. */
static __always_inline bool gathered(context *ctx)
{
	__u32 wanted = ctx->protocol == bpf_htons(ETH_P_IPV6) ? LOOKED_AT6 : LOOKED_AT4;
	__u32 there = frame_bytes((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	if (wanted > ctx->len)
		wanted = ctx->len;
	return there >= wanted || !bpf_skb_pull_data(ctx, wanted);
}

/* Length of the IP packets into which one is segmented; 0 if only Linux can tell. */
static __always_inline __u32 segment_length(__u32 gso_size, __u32 header, __u8 protocol, const void *segment,
					    const void *end)
{
	const __u8 *offset = segment + 12; /* the high half: words of the TCP header (RFC 9293 3.1) */

	if (protocol != IPPROTO_TCP || (void *)(offset + 1) > end)
		return 0;
	return header + (*offset >> 4) * 4 + gso_size;
}
