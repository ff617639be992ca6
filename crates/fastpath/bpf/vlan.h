/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* VLAN tags (802.1Q): the interface on which a tagged frame arrived. Stacked tags are left to Linux. */
#pragma once

#include <linux/if_ether.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include "layout.h"

struct vlan_tag {
	__be16 priority_id;
	__be16 type;
};

#define VLAN_ID 0x0fff
#define VLAN_PRIORITY 0xf000 /* and whether it may be dropped before others */

static __always_inline bool is_tag(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

/* The interface of a tag (type, then number) on the port of this number in Linux; the hash is that of PortVlan. */
static __always_inline const struct ingress *vlan_ingress(const struct view *view, __u32 port, __u32 tag)
{
	__u32 place = (port * VLAN_HASH_PORT ^ tag * VLAN_HASH_TAG) >> 20;
	const struct ingress *ingress;

	for (int i = 0; i < VLAN_TRIES; i++) {
		const struct vlan *vlan = &view->vlans[(place + i) & (VLANS - 1)];

		if (vlan->port != port || vlan->tag != tag)
			continue;
		ingress = &view->ingress[vlan->ifindex & (INGRESSES - 1)];
		return ingress->ifindex == vlan->ifindex ? ingress : NULL;
	}
	return NULL;
}
