/* Starts DPDK, and registers brickmoon's frames as a mempool that uses brickmoon's free list. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_memory.h>
#include <rte_version.h>

#include "pool.h"

#define OPS "brickmoon"
/* Data begins at one of this many cache lines of its slot, in turn: at the same offset of every 2 KiB, all packets would
 * share two sets of a first-level cache. More would leave too little room for an Ethernet frame. */
#define COLOURS 7
/* Every header at its place, whatever pages it is on: devices access data, not mbufs. */
#define FLAGS (RTE_MEMPOOL_F_NO_SPREAD | RTE_MEMPOOL_F_NO_IOVA_CONTIG)

struct bm_pool {
	void *frame_pool;
	/* Slots are added to the pool only so that DPDK knows them; they stay in the frame_pool. */
	int populating;
};

__thread struct bm_current bm_current;
struct bm_calls bm_calls;

const char *bm_version(void)
{
	return rte_version();
}

const char *bm_error_text(int error)
{
	return rte_strerror(error);
}

static ssize_t log_write(void *cookie, const char *text, size_t length)
{
	(void)cookie;
	bm_calls.log(text, length);
	return length;
}

static int pool_alloc(struct rte_mempool *mp)
{
	mp->pool_data = mp->pool_config;
	return 0;
}

static void pool_free(struct rte_mempool *mp)
{
	(void)mp;
}

static int pool_enqueue(struct rte_mempool *mp, void *const *mbufs, unsigned int count)
{
	struct bm_pool *pool = mp->pool_data;
	struct bm_stack *stack = bm_current.stack;

	if (unlikely(pool->populating))
		return 0;
	if (unlikely(!stack || bm_current.pool != mp)) {
		for (unsigned int i = 0; i < count; i++)
			bm_calls.give(pool->frame_pool, bm_header_of(mbufs[i]));
		return 0;
	}
	for (unsigned int i = 0; i < count; i++) {
		if (unlikely(stack->held == stack->limit))
			bm_calls.make_room(bm_current.freelist);
		stack->frames[stack->held++] = bm_header_of(mbufs[i]);
	}
	return 0;
}

/* All or none, as a mempool requires. */
static int pool_dequeue(struct rte_mempool *mp, void **mbufs, unsigned int count)
{
	struct bm_pool *pool = mp->pool_data;
	struct bm_stack *stack = bm_current.stack;
	unsigned int got = 0;

	if (likely(stack && bm_current.pool == mp)) {
		for (; got < count; got++) {
			if (unlikely(stack->held == 0)) {
				bm_calls.refill(bm_current.freelist);
				if (stack->held == 0)
					break;
			}
			mbufs[got] = bm_mbuf_of(stack->frames[--stack->held]);
		}
	} else {
		for (; got < count; got++) {
			struct bm_header *header = bm_calls.take(pool->frame_pool);

			if (!header)
				break;
			mbufs[got] = bm_mbuf_of(header);
		}
	}
	if (likely(got == count))
		return 0;
	pool_enqueue(mp, mbufs, got);
	return -ENOBUFS;
}

static unsigned int pool_count(const struct rte_mempool *mp)
{
	const struct bm_pool *pool = mp->pool_data;

	return bm_calls.available(pool->frame_pool);
}

int bm_eal_start(int count, char **arguments, const struct bm_calls *calls)
{
	static const struct rte_mempool_ops ops = {
		.name = OPS,
		.alloc = pool_alloc,
		.free = pool_free,
		.enqueue = pool_enqueue,
		.dequeue = pool_dequeue,
		.get_count = pool_count,
	};
	FILE *log;

	bm_calls = *calls;
	log = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = log_write });
	if (log) {
		setvbuf(log, NULL, _IOLBF, 0);
		rte_openlog_stream(log);
	}
	if (rte_eal_init(count, arguments) < 0)
		return rte_errno ? -rte_errno : -EINVAL;
	return rte_mempool_register_ops(&ops) < 0 ? -ENOSPC : 0;
}

/* The folder with files of this process. */
const char *bm_eal_folder(void)
{
	return rte_eal_get_runtime_dir();
}

/* The address at which the device finds what the CPU finds at `place`. */
static rte_iova_t device_address(const void *place)
{
	return rte_eal_iova_mode() == RTE_IOVA_PA ? rte_mem_virt2iova(place) : (uintptr_t)place;
}

static void mbuf_make(struct rte_mempool *mp, void *opaque, void *object, unsigned int index)
{
	const struct bm_region *region = opaque;
	struct rte_mbuf *mbuf = object;
	unsigned int shift = index % COLOURS * RTE_CACHE_LINE_SIZE;
	uint8_t *buffer = region->slots + (size_t)index * region->slot_size + shift;

	memset(mbuf, 0, sizeof(*mbuf));
	mbuf->buf_addr = buffer;
	rte_mbuf_iova_set(mbuf, device_address(buffer));
	mbuf->buf_len = region->slot_size - shift;
	mbuf->data_off = RTE_PKTMBUF_HEADROOM;
	mbuf->pool = mp;
	mbuf->nb_segs = 1;
	mbuf->port = RTE_MBUF_PORT_INVALID;
	rte_mbuf_refcnt_set(mbuf, 1);
}

/* DPDK must know the memory before a device can access it. */
int bm_memory_register(const struct bm_region *region)
{
	unsigned int pages = region->bytes / region->page;
	rte_iova_t *places;
	int done;

	if (rte_eal_iova_mode() != RTE_IOVA_PA)
		return rte_extmem_register(region->slots, region->bytes, NULL, 0, region->page) ? -rte_errno : 0;
	places = malloc(pages * sizeof(*places));
	if (!places)
		return -ENOMEM;
	for (unsigned int i = 0; i < pages; i++) {
		uint8_t *page = region->slots + i * region->page;

		/* A page that was never written has no physical address yet. */
		*(volatile uint8_t *)page = *(volatile uint8_t *)page;
		places[i] = rte_mem_virt2phy(page);
	}
	done = rte_extmem_register(region->slots, region->bytes, places, pages, region->page) ? -rte_errno : 0;
	free(places);
	return done;
}

int bm_pool_make(const char *name, const struct bm_region *region, void *frame_pool, void **made)
{
	struct rte_pktmbuf_pool_private private = {
		.mbuf_data_room_size = region->slot_size - (COLOURS - 1) * RTE_CACHE_LINE_SIZE,
	};
	struct rte_mempool_objsz sizes;
	struct bm_pool *pool;
	struct rte_mempool *mp;
	int done;

	rte_mempool_calc_obj_size(sizeof(struct rte_mbuf), FLAGS, &sizes);
	if (sizes.total_size != region->stride || sizes.header_size != region->mbuf_offset ||
	    region->mbuf_offset != BM_MBUF_OFFSET)
		return -EPROTO;
	/* Addresses are queried just below. If that is not needed, the memory is not registered: net_virtio_user would
	 * share it with its other end, and cannot. */
	done = rte_eal_iova_mode() == RTE_IOVA_PA ? bm_memory_register(region) : 0;
	/* Registered by an earlier attempt. */
	if (done && done != -EEXIST)
		return done;
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->frame_pool = frame_pool;
	mp = rte_mempool_create_empty(name, region->count, sizeof(struct rte_mbuf), 0, sizeof(private), SOCKET_ID_ANY,
				      FLAGS);
	if (!mp) {
		free(pool);
		return -rte_errno;
	}
	pool->populating = 1;
	done = rte_mempool_set_ops_byname(mp, OPS, pool);
	if (!done) {
		rte_pktmbuf_pool_init(mp, &private);
		done = rte_mempool_populate_iova(mp, (char *)region->headers, (uintptr_t)region->headers,
						 (size_t)region->count * region->stride, NULL, NULL);
	}
	if (done != (int)region->count) {
		/* Otherwise the next attempt could not use this name. */
		rte_mempool_free(mp);
		free(pool);
		return done < 0 ? done : -ENOSPC;
	}
	pool->populating = 0;
	rte_mempool_obj_iter(mp, mbuf_make, (void *)(uintptr_t)region);
	*made = mp;
	return 0;
}
