/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* What differs at XDP: a frame is contiguous in memory, and contains its tag. */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"
#include "packet.h"
#include "vlan.h"

typedef struct xdp_md context;

struct net_device {
	possible_net_t nd_net;
} OF_KERNEL;

struct xdp_rxq_info {
	struct net_device *dev;
} OF_KERNEL;

struct xdp_buff {
	struct xdp_rxq_info *rxq;
} OF_KERNEL;

/* The device of a frame, from the kernel's structure for it. */
static __always_inline struct net_device *device_of(struct xdp_buff *frame)
{
	return frame->rxq->dev;
}

#define find_connection bpf_xdp_ct_lookup

static __always_inline __u32 arrival_of(const context *ctx)
{
	return ctx->ingress_ifindex;
}

static __always_inline __u64 whole_length(context *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

static __always_inline long load_bytes(context *ctx, __u32 at, void *to, __u32 size)
{
	return bpf_xdp_load_bytes(ctx, at, to, size);
}

/* Bytes from the network header to the end of the frame. */
static __always_inline long room_from(const struct packet *packet, const void *ip)
{
	return packet->end - ip;
}

/* Frames are padded to 60 bytes on the wire, and Linux forwards them without that; false if it fails. */
static __always_inline bool cut_padding(context *ctx, __u32 length)
{
	__u32 frame = frame_bytes((void *)(long)ctx->data, (void *)(long)ctx->data_end);

	return frame <= length || !bpf_xdp_adjust_tail(ctx, (int)length - (int)frame);
}

/* The length that must fit the MTU of the egress interface. */
static __always_inline __u32 largest_of(const struct packet *packet)
{
	return packet->length;
}

/* 0 if nothing may be sent. */
static __always_inline __u32 mtu_of(const struct packet *packet, const struct egress *egress, __u32 out)
{
	return egress->mac_mtu >> 48;
}

/* Whether a checksum may be partial, which only the frame's bytes show (sum.h). */
static __always_inline bool sums_may_be_partial(const struct packet *packet)
{
	return packet->ingress->flags & PARTIAL_SUMS;
}

static __always_inline bool is_tagged(context *ctx, const struct packet *packet)
{
	return is_tag(((const struct ethernet *)packet->data)->type);
}

/* The interface on which a frame arrived; NULL if only Linux knows it. */
static __always_inline const struct ingress *logical_interface(context *ctx, const struct packet *packet)
{
	const struct ethernet *eth = packet->data;
	const struct vlan_tag *tag = (void *)(eth + 1);
	__u32 number;

	if (!is_tag(eth->type) || (void *)(tag + 1) > packet->end)
		return packet->ingress;
	if (is_tag(tag->type))
		return NULL;
	number = bpf_ntohs(tag->priority_id) & VLAN_ID;
	if (!number)
		return packet->ingress;
	return vlan_ingress(packet->view, packet->ingress->ifindex,
			    (__u32)bpf_ntohs(eth->type) << 16 | number);
}
