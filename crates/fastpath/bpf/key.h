/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The fields of a packet that filters match: addresses, ports, protocol, interface, and the kind of fragment.
 *
 *     frame -> after its tags -> IPv4, or IPv6 and its chain of extension headers -> key
 *
 * The words are those of crates/filter/src/key.rs. Frames are read by load_bytes, wherever headers end; only
 * common packets are read in one step.
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "extension.h"
#include "vlan.h"

/* Words of a key, as crates/filter/src/key.rs has them. */
enum filter_word {
	KEY_SOURCE,
	KEY_DESTINATION = 4,
	KEY_PORTS = 8,
	KEY_PROTOCOL,
	KEY_INTERFACE,
	KEY_KIND,
	KEY_IPV6,
	KEY_FRAGMENT, /* not for rules: whether it is too small for one that may be */
	KEY_LOGICAL,  /* not for rules: the interface of the tag, that of the port where there is none */
	KEY_SET,      /* not for rules: which of the two sets was current when the packet came */
	KEY_WORDS = 16
};

/* An interface that only Linux knows. */
#define NO_INTERFACE 0xffff

enum filter_kind { KIND_PORTS = 1, KIND_LATER = 2, KIND_NONE = 4 };
#define KIND_IPV6_SHIFT 3
#define KIND_EXTENSIONS 0x40 /* beside the kind: an IPv6 packet with extension headers, or a truncated one */
#define KIND_TRUNCATED 0x80  /* beside the kind: an IPv4 packet whose TCP or UDP header is truncated */

struct filter_key {
	__u32 of[KEY_WORDS];
};

static __always_inline bool has_port_numbers(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_DCCP ||
	       protocol == IPPROTO_SCTP || protocol == IPPROTO_UDPLITE;
}

/* Length of a TCP header up to its flags, which a first fragment must contain (RFC 1858). */
#define TCP_FLAGS_END 16

static __always_inline void filter_ports(struct filter_key *key, context *ctx, __u32 at, __u32 room)
{
	__be32 ports;

	if (has_port_numbers(key->of[KEY_PROTOCOL]) && room >= sizeof(ports) &&
	    !load_bytes(ctx, at, &ports, sizeof(ports))) {
		key->of[KEY_PORTS] = bpf_ntohl(ports);
		key->of[KEY_KIND] = KIND_PORTS;
	}
}

/* Minimum length of a transport header, which a first fragment of IPv6 must contain (RFC 7112). */
static __always_inline __u32 least_of(__u32 protocol)
{
	return protocol == IPPROTO_TCP ? 20 : protocol == IPPROTO_UDP || protocol == IPPROTO_ICMPV6 ? 8 : 0;
}

/* False for a header that no router forwards: Linux drops it. `at` is its offset in the frame. */
static __noinline int filter_key4(context *ctx, struct filter_key *key, __u32 at)
{
	struct ipv4 ip;
	__u32 header, length, fragment;

	if (!key || load_bytes(ctx, at, &ip, sizeof(ip)))
		return 0;
	header = (ip.version_ihl & 0xf) * 4;
	length = bpf_ntohs(ip.total_length);
	fragment = bpf_ntohs(ip.fragment);
	if (ip.version_ihl >> 4 != 4 || header < sizeof(ip) || length < header)
		return 0;
	key->of[KEY_SOURCE] = bpf_ntohl(ip.source);
	key->of[KEY_DESTINATION] = bpf_ntohl(ip.destination);
	key->of[KEY_PROTOCOL] = ip.protocol;
	if (fragment & 0x1fff) {
		key->of[KEY_KIND] = KIND_LATER;
		key->of[KEY_FRAGMENT] = ip.protocol == IPPROTO_TCP && (fragment & 0x1fff) == 1;
		return 1;
	}
	key->of[KEY_FRAGMENT] = ip.protocol == IPPROTO_TCP && fragment & 0x2000 &&
				length - header < TCP_FLAGS_END;
	filter_ports(key, ctx, at + header, length - header);
	if (length - header < least_of(ip.protocol))
		key->of[KEY_KIND] |= KIND_TRUNCATED;
	return 1;
}

/*
 * Follows a chain of extension headers to the fields that rules match. If it cannot be followed to its end, the last
 * next header counts as the protocol, without ports.
 */
static __noinline int filter_chain(context *ctx, struct filter_key *key, __u32 at, __u32 room)
{
	struct extension header;
	__u32 size, first = 0;

	if (!key)
		return 0;
	for (int i = 0; i < EXTENSIONS_MAX && is_extension(key->of[KEY_PROTOCOL]); i++) {
		at &= 0xffff;
		if (room < 8 || load_bytes(ctx, at, &header, sizeof(header))) {
			key->of[KEY_FRAGMENT] = first;
			return 0;
		}
		size = header.length * 8 + 8;
		if (key->of[KEY_PROTOCOL] == IPPROTO_AH)
			size = header.length * 4 + 8;
		if (key->of[KEY_PROTOCOL] == IPPROTO_FRAGMENT) {
			size = 8;
			first = !!(bpf_ntohs(header.rest) & 1);
			if (bpf_ntohs(header.rest) & 0xfff8) {
				key->of[KEY_PROTOCOL] = header.next;
				key->of[KEY_KIND] = KIND_LATER;
				return 0;
			}
		}
		key->of[KEY_PROTOCOL] = header.next;
		at += size;
		if (size > room) {
			key->of[KEY_FRAGMENT] = first;
			return 0;
		}
		room -= size;
	}
	key->of[KEY_FRAGMENT] = first && (is_extension(key->of[KEY_PROTOCOL]) || room < least_of(key->of[KEY_PROTOCOL]));
	filter_ports(key, ctx, at & 0xffff, room);
	return 0;
}

static __noinline int filter_key6(context *ctx, struct filter_key *key, __u32 at)
{
	struct ipv6 ip;
	__u32 *words = (void *)ip.source, room;

	if (!key || load_bytes(ctx, at, &ip, sizeof(ip)) ||
	    (ip.version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
		return 0;
	for (int i = 0; i < 8; i++)
		key->of[KEY_SOURCE + i] = bpf_ntohl(words[i]);
	key->of[KEY_PROTOCOL] = ip.next_header;
	key->of[KEY_IPV6] = 1;
	room = bpf_ntohs(ip.payload_length);
	if (is_extension(ip.next_header))
		filter_chain(ctx, key, at + sizeof(ip), room);
	else
		filter_ports(key, ctx, at + sizeof(ip), room);
	key->of[KEY_KIND] <<= KIND_IPV6_SHIFT;
	if (is_extension(ip.next_header) || room < least_of(ip.next_header))
		key->of[KEY_KIND] |= KIND_EXTENSIONS;
	return 1;
}

/* What follows the header of a common packet: any transport header without options. */
#define QUICK_ROOM 20

/* The same for common packets, in one step: no tag, no options, no fragment, a complete transport header. */
static __always_inline bool filter_quick(const struct packet *packet, struct filter_key *key)
{
	const struct ethernet *eth = packet->data;
	const struct ipv4 *ip = (void *)(eth + 1);
	const __be32 *ports = (void *)(ip + 1);

	if (eth->type != bpf_htons(ETH_P_IP) || (void *)(ports + 1) > packet->end || ip->version_ihl != 0x45 ||
	    ip->fragment & bpf_htons(0x3fff) || bpf_ntohs(ip->total_length) < sizeof(*ip) + QUICK_ROOM)
		return false;
	key->of[KEY_SOURCE] = bpf_ntohl(ip->source);
	key->of[KEY_DESTINATION] = bpf_ntohl(ip->destination);
	key->of[KEY_PROTOCOL] = ip->protocol;
	key->of[KEY_KIND] = KIND_NONE;
	if (has_port_numbers(ip->protocol)) {
		key->of[KEY_PORTS] = bpf_ntohl(*ports);
		key->of[KEY_KIND] = KIND_PORTS;
	}
	return true;
}

/*
 * The key of a frame: 1; 0 if no rule applies to it; KEY_UNKNOWN if it has more tags than are parsed.
 * Linux removes as many as there are, if their VLAN is 0 or has an interface.
 */
#define KEY_UNKNOWN 2
#define TAGS_MAX 2

static __noinline int filter_key(context *ctx, __be16 type, struct filter_key *key)
{
	__u32 at = sizeof(struct ethernet);
	struct vlan_tag tag;

	if (!key)
		return 0;
	key->of[KEY_KIND] = KIND_NONE;
	for (int i = 0; i < TAGS_MAX && is_tag(type); i++, at += sizeof(tag)) {
		if (load_bytes(ctx, at, &tag, sizeof(tag)))
			return 0;
		type = tag.type;
	}
	if (type == bpf_htons(ETH_P_IP))
		return filter_key4(ctx, key, at);
	if (type == bpf_htons(ETH_P_IPV6))
		return filter_key6(ctx, key, at);
	return is_tag(type) ? KEY_UNKNOWN : 0;
}
