// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * What the kernel path is measured against: the least that a forwarder in XDP can do, and one that asks
 * Linux's own tables.
 *
 * Neither is a router: there are no checks beyond what the verifier asks for, no counters, no MTU but that of
 * the helper. What they do not take goes to Linux.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10

/* Where the floor sends everything: set before the program is loaded. */
const volatile __u32 out_ifindex;
const volatile __u8 out_macs[12]; /* destination, source */

/* One hop less; the sum grows by what the word of TTL and protocol shrinks (RFC 1624). */
static __always_inline void spend_ttl(struct iphdr *ip)
{
	__u32 sum = ip->check + (__u32)bpf_htons(0x0100);

	ip->check = sum + (sum >= 0xffff);
	ip->ttl--;
}

/* Everything to one next hop, without a lookup. */
SEC("xdp")
int fixed_next_hop(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);

	if ((void *)(ip + 1) > end)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		spend_ttl(ip);
	else if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		ip6->hop_limit--;
	else
		return XDP_PASS;
	__builtin_memcpy(eth, (const void *)out_macs, 12);
	return bpf_redirect(out_ifindex, 0);
}

static __always_inline bool ask_ipv4(struct bpf_fib_lookup *route, const struct iphdr *ip)
{
	if (ip->version != 4 || ip->ihl != 5 || ip->ttl <= 1)
		return false;
	route->family = AF_INET;
	route->tos = ip->tos;
	route->l4_protocol = ip->protocol;
	route->tot_len = bpf_ntohs(ip->tot_len);
	route->ipv4_src = ip->saddr;
	route->ipv4_dst = ip->daddr;
	return true;
}

static __always_inline bool ask_ipv6(struct bpf_fib_lookup *route, const struct ipv6hdr *ip)
{
	if (ip->version != 6 || ip->hop_limit <= 1)
		return false;
	route->family = AF_INET6;
	route->flowinfo = *(const __be32 *)ip & bpf_htonl(0x0fffffff);
	route->l4_protocol = ip->nexthdr;
	route->tot_len = bpf_ntohs(ip->payload_len);
	__builtin_memcpy(route->ipv6_src, &ip->saddr, 16);
	__builtin_memcpy(route->ipv6_dst, &ip->daddr, 16);
	return true;
}

/* The next hop that Linux's tables say, by bpf_fib_lookup(). */
SEC("xdp")
int fib_helper(struct xdp_md *ctx)
{
	struct bpf_fib_lookup route = { .ifindex = ctx->ingress_ifindex };
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	bool is_ipv4;

	if ((void *)(ip + 1) > end)
		return XDP_PASS;
	is_ipv4 = eth->h_proto == bpf_htons(ETH_P_IP);
	if (is_ipv4) {
		if (!ask_ipv4(&route, ip))
			return XDP_PASS;
	} else if (eth->h_proto != bpf_htons(ETH_P_IPV6) || (void *)(ip6 + 1) > end || !ask_ipv6(&route, ip6)) {
		return XDP_PASS;
	}
	if (bpf_fib_lookup(ctx, &route, sizeof(route), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return XDP_PASS;
	if (is_ipv4)
		spend_ttl(ip);
	else
		ip6->hop_limit--;
	__builtin_memcpy(eth->h_dest, route.dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, route.smac, ETH_ALEN);
	return bpf_redirect(route.ifindex, 0);
}

char LICENSE[] SEC("license") = "GPL";
