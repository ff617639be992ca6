/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * What of the packets to addresses of Linux workers get.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define DEST_UNREACHABLE 3 /* ICMP, RFC 792 */
#define FRAGMENTATION_NEEDED 4
#define PACKET_TOO_BIG 2 /* ICMPv6, RFC 4443 3.2 */
#define NAT_TRAVERSAL 4500 /* ESP in UDP, and IKE after four zeros: RFC 3948 2 */

const volatile bool take_esp = false; /* ESP to local addresses: workers decrypt it */
const volatile bool take_local = false; /* all unicast to local addresses: workers have policies for it */

/* Whether it is an ICMP error that says that a packet was too big. `message` is the ICMP message. */
static __always_inline bool is_too_big(__u8 protocol, __u8 *message, void *end)
{
	if ((void *)(message + 2) > end)
		return false;
	if (protocol == IPPROTO_ICMP)
		return message[0] == DEST_UNREACHABLE && message[1] == FRAGMENTATION_NEEDED;
	return protocol == IPPROTO_ICMPV6 && message[0] == PACKET_TOO_BIG;
}

/*
 * Whether workers get a packet to a local address: with `take_esp` if it is ESP, or ESP in UDP, or an error that may be
 * about ESP; `upper` is behind the IP header. IKE and keepalives are for Linux.
 */
static __always_inline bool is_for_worker(__u8 protocol, void *upper, void *end)
{
	__be16 *ports = upper;
	__be32 *spi = upper + 8;

	if (take_local)
		return true;
	if (!take_esp)
		return false;
	if (protocol == IPPROTO_ESP || is_too_big(protocol, upper, end))
		return true;
	if (protocol != IPPROTO_UDP || (void *)(spi + 1) > end)
		return false;
	return (ports[0] == bpf_htons(NAT_TRAVERSAL) || ports[1] == bpf_htons(NAT_TRAVERSAL)) && *spi;
}
