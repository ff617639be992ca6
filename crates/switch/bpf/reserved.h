/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* Group addresses that no bridge forwards, and what Linux gets of the frames to them. */
#pragma once

#define ETH_P_SRP 0x22ea
#define ETH_P_ECP 0x8940
#define SAP_BPDU 0x42

/* 01:80:c2:00:00:00 to :0f, which no bridge forwards (802.1Q 8.6.3). */
static __always_inline bool is_link_local(__u64 mac)
{
	return (mac & 0xf0ffffffffffull) == 0x0000000000c28001ull;
}

/*
 * Whether a protocol uses the group addresses that a bridge does not forward. Anything else there would only get past
 * VLANs and guards, to Linux's own addresses.
 */
static __always_inline bool is_of_link(struct xdp_md *ctx, __be16 protocol)
{
	__u8 saps[2];

	switch (bpf_ntohs(protocol)) {
	case ETH_P_PAE:
	case ETH_P_SLOW:
	case ETH_P_PAUSE:
	case ETH_P_LLDP:
	case ETH_P_MVRP:
	case ETH_P_1588:
	case ETH_P_SRP:
	case ETH_P_ECP:
		return true;
	}
	return bpf_ntohs(protocol) < ETH_P_802_3_MIN &&
	       !bpf_xdp_load_bytes(ctx, sizeof(struct ethhdr), saps, sizeof(saps)) && saps[0] == SAP_BPDU &&
	       saps[1] == SAP_BPDU;
}

/* Frames to these addresses; a locked port is opened by 802.1X. */
static __always_inline enum verdict of_link(struct xdp_md *ctx, const struct frame *frame, __be16 protocol, __u64 source)
{
	__u64 name = key(source, rules.vlans ? frame->in->untagged : ALL_VLANS);
	const struct fdb_entry *known;

	if (!is_of_link(ctx, protocol))
		return DROP_RESERVED;
	if (!(frame->in->flags & PORT_LOCKED) || protocol == bpf_htons(ETH_P_PAE))
		return LINUX_LINK_LOCAL;
	known = bpf_map_lookup_elem(&fdb, &name);
	return known && known->slot == frame->slot ? LINUX_LINK_LOCAL : DROP_LOCKED;
}
