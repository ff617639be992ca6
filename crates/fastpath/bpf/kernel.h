/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The kernel's structures of a network namespace, for programs that read the kernel's memory.
 */
#pragma once

/* The fields of the kernel's structures that are read; libbpf adjusts their offsets to the running kernel. */
#define OF_KERNEL __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} OF_KERNEL;

/* Since Linux 6.17; before, the generation is out of reach. */
struct netns_nftables {
	unsigned int base_seq;
} OF_KERNEL;

struct net {
	struct ns_common ns;
	struct netns_nftables nft;
} OF_KERNEL;

typedef struct {
	struct net *net;
} possible_net_t;
