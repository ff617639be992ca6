/* Frames in and out of one queue, a burst at a time. */
#include <string.h>

#include <rte_ethdev.h>
#include <rte_prefetch.h>

#include "pool.h"

#define BURST 256
/* Where data of a frame begins that is filled here (DATA_OFFSET of crates/frame). */
#define DATA_OFFSET 512
/* Mbufs and headers whose lines are asked for ahead of their turn. */
#define AHEAD 6
#define ETHERNET_HEADER 14
#define VLAN_TAG 4

static void use_frames(const struct bm_queue *queue, struct bm_stack *stack, void *freelist)
{
	bm_current = (struct bm_current){ .stack = stack, .freelist = freelist, .pool = queue->pool };
}

/* The free frames belong only to the caller once they are returned. */
static void leave_frames(void)
{
	bm_current.stack = NULL;
}

/* Inserts a tag that the device stripped, so that frames are as they were on the wire. */
static void restore_tag(struct rte_mbuf *mbuf)
{
	uint16_t tag[2] = { rte_cpu_to_be_16(RTE_ETHER_TYPE_VLAN), rte_cpu_to_be_16(mbuf->vlan_tci) };
	uint8_t *data = rte_pktmbuf_mtod(mbuf, uint8_t *);

	if (mbuf->data_off < VLAN_TAG || mbuf->data_len < ETHERNET_HEADER)
		return;
	memmove(data - VLAN_TAG, data, 2 * RTE_ETHER_ADDR_LEN);
	memcpy(data - VLAN_TAG + 2 * RTE_ETHER_ADDR_LEN, tag, VLAN_TAG);
	mbuf->data_off -= VLAN_TAG;
	mbuf->data_len += VLAN_TAG;
	mbuf->pkt_len += VLAN_TAG;
}

/* A frame with a copy of what arrived in DPDK's own memory or in several parts; NULL if none is free. */
static struct bm_header *copied(struct bm_queue *queue, struct rte_mbuf *mbuf)
{
	struct bm_header *header = NULL;
	void *free_one;

	if (rte_mempool_get(queue->pool, &free_one) < 0) {
		queue->no_frame++;
	} else {
		header = bm_header_of(free_one);
		header->data = header->slot + DATA_OFFSET;
		header->length = 0;
		if (mbuf->pkt_len > (uint32_t)header->slot_size - DATA_OFFSET) {
			queue->too_long++;
			rte_mempool_put(queue->pool, free_one);
			header = NULL;
		}
	}
	for (struct rte_mbuf *part = mbuf; header && part; part = part->next) {
		memcpy(header->data + header->length, rte_pktmbuf_mtod(part, void *), part->data_len);
		header->length += part->data_len;
	}
	rte_pktmbuf_free(mbuf);
	return header;
}

static inline struct bm_header *received(struct bm_queue *queue, struct rte_mbuf *mbuf)
{
	struct bm_header *header = bm_header_of(mbuf);

	if (unlikely(mbuf->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED))
		restore_tag(mbuf);
	if (unlikely(mbuf->pool != queue->pool || mbuf->nb_segs != 1))
		return copied(queue, mbuf);
	header->data = (uint8_t *)mbuf->buf_addr + mbuf->data_off;
	header->length = mbuf->data_len;
	return header;
}

unsigned int bm_receive(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct bm_header **to,
			unsigned int room)
{
	struct rte_mbuf *mbufs[BURST];
	unsigned int count, kept = 0;

	use_frames(queue, stack, freelist);
	count = rte_eth_rx_burst(queue->port, queue->queue, mbufs, RTE_MIN(room, (unsigned int)BURST));
	for (unsigned int i = 0; i < count; i++) {
		if (i + AHEAD < count) {
			rte_prefetch0(mbufs[i + AHEAD]);
			rte_prefetch0(bm_header_of(mbufs[i + AHEAD]));
		}
		to[kept] = received(queue, mbufs[i]);
		kept += to[kept] != NULL;
	}
	leave_frames();
	return kept;
}

/* The mbuf of a frame, told what the frame is. What a free mbuf is by DPDK's rules it still is: one reference, no
 * next part. */
static inline struct rte_mbuf *filled(struct bm_header *header)
{
	struct rte_mbuf *mbuf = bm_mbuf_of(header);

	mbuf->data_off = header->data - (uint8_t *)mbuf->buf_addr;
	mbuf->nb_segs = 1;
	mbuf->ol_flags = 0;
	mbuf->data_len = header->length;
	mbuf->pkt_len = header->length;
	return mbuf;
}

/* Data that begins in front of where the mbuf's buffer does: the buffer begins there from now on. */
static inline void settle(struct bm_header *header)
{
	struct rte_mbuf *mbuf = bm_mbuf_of(header);
	size_t back;

	if (likely(header->data >= (uint8_t *)mbuf->buf_addr))
		return;
	back = (uint8_t *)mbuf->buf_addr - header->slot;
	mbuf->buf_addr = header->slot;
	rte_mbuf_iova_set(mbuf, rte_mbuf_iova_get(mbuf) - back);
	mbuf->buf_len += back;
}

/* A copy in memory of DPDK's own; NULL if there is none to be had. */
static struct rte_mbuf *copy_out(const struct bm_queue *queue, const struct bm_header *header)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(queue->own_pool);
	void *to = mbuf ? rte_pktmbuf_append(mbuf, header->length) : NULL;

	if (!to) {
		rte_pktmbuf_free(mbuf);
		return NULL;
	}
	memcpy(to, header->data, header->length);
	return mbuf;
}

/* Removes invalid frames from the slots: drivers may not handle them. */
static void drop_invalid(struct bm_queue *queue, struct bm_header **place)
{
	void *mbuf = bm_mbuf_of(*place);

	queue->invalid++;
	rte_mempool_put(queue->pool, mbuf);
	*place = NULL;
}

unsigned int bm_transmit(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct bm_header **places,
			 unsigned int count)
{
	struct rte_mbuf *mbufs[BURST];
	unsigned int ready = 0, sent, left;
	const unsigned int longest =
		queue->own_pool ? rte_pktmbuf_data_room_size(queue->own_pool) - RTE_PKTMBUF_HEADROOM : UINT16_MAX;

	use_frames(queue, stack, freelist);
	for (unsigned int i = 0; i < count; i++) {
		struct rte_mbuf *mbuf;

		if (i + AHEAD < count && places[i + AHEAD]) {
			rte_prefetch0(places[i + AHEAD]);
			rte_prefetch0(bm_mbuf_of(places[i + AHEAD]));
		}
		if (unlikely(!places[i]))
			continue;
		/* One that never fits would else keep its place, and all behind it theirs. */
		if (unlikely(places[i]->length < ETHERNET_HEADER || places[i]->length > longest)) {
			drop_invalid(queue, &places[i]);
			continue;
		}
		if (unlikely(queue->own_pool)) {
			mbuf = copy_out(queue, places[i]);
			if (!mbuf)
				break;
		} else {
			settle(places[i]);
			mbuf = filled(places[i]);
		}
		mbufs[ready++] = mbuf;
	}
	sent = ready ? rte_eth_tx_burst(queue->port, queue->queue, mbufs, ready) : 0;
	if (likely(!queue->own_pool && sent == ready)) {
		memset(places, 0, count * sizeof(*places));
	} else {
		left = sent;
		for (unsigned int i = 0; i < count && left; i++) {
			if (!places[i])
				continue;
			if (queue->own_pool) {
				void *mbuf = bm_mbuf_of(places[i]);

				rte_mempool_put(queue->pool, mbuf);
			}
			places[i] = NULL;
			left--;
		}
		for (unsigned int i = sent; queue->own_pool && i < ready; i++)
			rte_pktmbuf_free(mbufs[i]);
	}
	leave_frames();
	return sent;
}
