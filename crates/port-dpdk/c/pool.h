/* What eal.c and queue.c share about pools: how a header is found from its mbuf, and the current thread's free frames. */
#ifndef BM_DPDK_POOL_H
#define BM_DPDK_POOL_H

#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "shim.h"

/* Distance of an mbuf from its header (MBUF_OFFSET of crates/frame). */
#define BM_MBUF_OFFSET 64

_Static_assert(sizeof(struct bm_header) == 40, "crates/frame says so");
/* crates/frame/src/mbuf.rs reads and writes these. */
_Static_assert(offsetof(struct rte_mbuf, buf_addr) == 0 && offsetof(struct rte_mbuf, data_off) == 16 &&
	       offsetof(struct rte_mbuf, pkt_len) == 36 && offsetof(struct rte_mbuf, data_len) == 40 &&
	       offsetof(struct rte_mbuf, buf_iova) == 8 && offsetof(struct rte_mbuf, buf_len) == 54,
	       "crates/frame says so");
_Static_assert(sizeof(struct rte_mbuf) == 128, "two lines, for which crates/frame leaves room");
/* Lua programs write to the last 48 bytes of mbufs (FRONT of crates/frame), which only external buffers, PTP and
 * dynamic fields use. No port of brickmoon requests those; net_pcap, net_vmxnet3, net_sfc and net_bnxt
 * have dynamic fields anyway, and docs/from-snabb.md describes the consequences. */
_Static_assert(offsetof(struct rte_mbuf, shinfo) >= sizeof(struct rte_mbuf) - 48 &&
	       offsetof(struct rte_mbuf, tx_offload) < sizeof(struct rte_mbuf) - 48,
	       "what drivers use of an mbuf lies before its last 48 bytes");
_Static_assert(sizeof(struct rte_mempool_objhdr) <= BM_MBUF_OFFSET - sizeof(struct bm_header),
	       "what a mempool keeps in front of an mbuf fits behind our header");

/* The free frames of the thread that is receiving or sending on a port, and their pool. */
struct bm_current {
	struct bm_stack *stack;
	void *freelist, *pool;
};

extern __thread struct bm_current bm_current;
extern struct bm_calls bm_calls;

int bm_memory_register(const struct bm_region *region);

static inline struct bm_header *bm_header_of(const void *mbuf)
{
	return (struct bm_header *)((uintptr_t)mbuf - BM_MBUF_OFFSET);
}

static inline struct rte_mbuf *bm_mbuf_of(const struct bm_header *header)
{
	return (struct rte_mbuf *)((uintptr_t)header + BM_MBUF_OFFSET);
}

#endif
