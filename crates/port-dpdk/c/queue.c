/* Frames in and out of one queue, a burst at a time. */
#include <string.h>

#include <rte_ethdev.h>
#include <rte_prefetch.h>

#include "pool.h"

#define BURST 256
/* Offset of the data in a frame that is filled here (DATA_OFFSET of crates/frame). */
#define DATA_OFFSET 512
/* Number of mbufs and headers whose cache lines are prefetched. */
#define AHEAD 8
#define ETHERNET_HEADER 14
#define VLAN_TAG 4
/* Flags of a received mbuf that need work: a tag that was stripped, and all flags that say how to send it
 * (they follow those that are left for dynamic flags). net_vhost sets such. */
#define UNUSUAL (RTE_MBUF_F_RX_VLAN_STRIPPED | ~(2 * RTE_MBUF_F_LAST_FREE - 1))

static void use_frames(const struct bm_queue *queue, struct bm_stack *stack, void *freelist)
{
	bm_current = (struct bm_current){ .stack = stack, .freelist = freelist, .pool = queue->pool };
}

/* The free frames belong only to the caller when the call returns. */
static void leave_frames(void)
{
	bm_current.stack = NULL;
}

/* Inserts a tag that the device stripped, so that the frame is as it was on the wire. */
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

/* A frame with a copy of a packet in other memory than brickmoon's slots, or in several segments; NULL if none is free. */
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

static inline void describe(struct bm_header *header, const struct rte_mbuf *mbuf)
{
	header->data = (uint8_t *)mbuf->buf_addr + mbuf->data_off;
	header->length = mbuf->data_len;
}

/* The frame of any mbuf; NULL if it had to be copied but could not be. */
static struct bm_header *received(struct bm_queue *queue, struct rte_mbuf *mbuf)
{
	if (mbuf->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED)
		restore_tag(mbuf);
	if (mbuf->pool != queue->pool || mbuf->nb_segs != 1 || !RTE_MBUF_DIRECT(mbuf))
		return copied(queue, mbuf);
	mbuf->ol_flags = 0;
	describe(bm_header_of(mbuf), mbuf);
	return bm_header_of(mbuf);
}

/* The mbuf of a frame, with its address and length. It has one reference and no next segment, like a free mbuf, and no
 * flags that say how to send it: it was free before, or `bm_receive` has cleared them. */
static inline struct rte_mbuf *filled(struct bm_header *header)
{
	struct rte_mbuf *mbuf = bm_mbuf_of(header);

	mbuf->data_off = header->data - (uint8_t *)mbuf->buf_addr;
	mbuf->data_len = header->length;
	mbuf->pkt_len = header->length;
	return mbuf;
}

/* If data begins in front of the mbuf's buffer, the buffer begins there from now on. */
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

/* Whether an mbuf is one segment in brickmoon's memory, and needs no other work. */
static inline int is_usual(const struct bm_queue *queue, const struct rte_mbuf *mbuf)
{
	return mbuf->pool == queue->pool && mbuf->nb_segs == 1 && !(mbuf->ol_flags & UNUSUAL);
}

/* The frames of mbufs, up to the first that is unusual; returns how many, and sets the queue's `bytes` to their sum. `AHEAD`
 * more pointers follow the mbufs. */
static __rte_noinline unsigned int receive_plain(struct bm_queue *queue, struct rte_mbuf *const *mbufs,
						 unsigned int count, struct bm_header **to)
{
	uint64_t bytes = 0;
	unsigned int i = 0;

	for (; i < count; i++) {
		const struct rte_mbuf *mbuf = mbufs[i];

		rte_prefetch0(mbufs[i + AHEAD]);
		rte_prefetch0(bm_header_of(mbufs[i + AHEAD]));
		if (unlikely(!is_usual(queue, mbuf)))
			break;
		describe(bm_header_of(mbuf), mbuf);
		bytes += mbuf->data_len;
		to[i] = bm_header_of(mbuf);
	}
	queue->bytes = bytes;
	return i;
}

unsigned int bm_receive(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct bm_header **to,
			unsigned int room)
{
	struct rte_mbuf *mbufs[BURST + AHEAD];
	unsigned int count, i, kept;

	use_frames(queue, stack, freelist);
	count = rte_eth_rx_burst(queue->port, queue->queue, mbufs, RTE_MIN(room, (unsigned int)BURST));
	for (i = 0; i < AHEAD && count; i++)
		mbufs[count + i] = mbufs[count - 1];
	i = kept = receive_plain(queue, mbufs, count, to);
	for (; i < count; i++) {
		to[kept] = received(queue, mbufs[i]);
		if (!to[kept])
			continue;
		queue->bytes += to[kept]->length;
		kept++;
	}
	leave_frames();
	return kept;
}

/* All mbufs from `first` on: those that can be frames move to the front, and the slots behind them become
 * empty. Returns how many there are. */
static __rte_noinline unsigned int receive_rest(struct bm_queue *queue, struct rte_mbuf **mbufs, unsigned int first,
						unsigned int count)
{
	unsigned int kept = first;

	for (unsigned int i = first; i < count; i++) {
		struct bm_header *header = received(queue, mbufs[i]);

		if (!header)
			continue;
		if (header->length < ETHERNET_HEADER) {
			queue->no_packet++;
			rte_mempool_put(queue->pool, bm_mbuf_of(header));
			continue;
		}
		settle(header);
		mbufs[kept] = filled(header);
		queue->bytes += header->length;
		kept++;
	}
	memset(mbufs + kept, 0, (count - kept) * sizeof(*mbufs));
	return kept;
}

unsigned int bm_receive_mbufs(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct rte_mbuf **mbufs,
			      unsigned int room)
{
	unsigned int count, last, i;
	uint64_t bytes = 0;

	use_frames(queue, stack, freelist);
	count = rte_eth_rx_burst(queue->port, queue->queue, mbufs, RTE_MIN(room, (unsigned int)BURST));
	last = count - 1;
	for (i = 0; i < count; i++) {
		rte_prefetch0(mbufs[RTE_MIN(i + AHEAD, last)]);
		if (unlikely(!is_usual(queue, mbufs[i]) || mbufs[i]->data_len < ETHERNET_HEADER))
			break;
		bytes += mbufs[i]->data_len;
	}
	queue->bytes = bytes;
	if (unlikely(i < count))
		count = receive_rest(queue, mbufs, i, count);
	leave_frames();
	return count;
}

unsigned int bm_transmit_mbufs(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct rte_mbuf **mbufs,
			       unsigned int count)
{
	unsigned int sent;

	use_frames(queue, stack, freelist);
	sent = rte_eth_tx_burst(queue->port, queue->queue, mbufs, count);
	memset(mbufs, 0, sent * sizeof(*mbufs));
	leave_frames();
	return count - sent;
}

/* A copy in DPDK's own memory; NULL if none is free. */
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

/* Removes invalid frames from the slots: drivers may not support them. */
static void drop_invalid(struct bm_queue *queue, struct bm_header **place)
{
	void *mbuf = bm_mbuf_of(*place);

	queue->invalid++;
	rte_mempool_put(queue->pool, mbuf);
	*place = NULL;
}

/* Whether a driver can send a frame as it is. */
static inline int is_plain(const struct bm_header *header)
{
	return header && header->length >= ETHERNET_HEADER &&
	       header->data >= (uint8_t *)bm_mbuf_of(header)->buf_addr;
}

/* The mbufs of frames, up to the first slot that is empty or has a frame that needs more work; returns how many. */
static __rte_noinline unsigned int fill_plain(struct bm_header *const *places, unsigned int count,
					      struct rte_mbuf **mbufs)
{
	unsigned int i = 0, ahead = count - RTE_MIN(count, (unsigned int)AHEAD);

	for (; i < ahead && likely(is_plain(places[i])); i++) {
		rte_prefetch0(bm_mbuf_of(places[i + AHEAD]));
		mbufs[i] = filled(places[i]);
	}
	if (unlikely(i < ahead))
		return i;
	for (; i < count && likely(is_plain(places[i])); i++)
		mbufs[i] = filled(places[i]);
	return i;
}

/* The mbufs of all frames from `first` on, after those that are ready; returns how many there are
 * in total. */
static unsigned int prepare_rest(struct bm_queue *queue, struct bm_header **places, unsigned int first,
				 unsigned int count, struct rte_mbuf **mbufs)
{
	const unsigned int longest =
		queue->own_pool ? rte_pktmbuf_data_room_size(queue->own_pool) - RTE_PKTMBUF_HEADROOM : UINT16_MAX;
	unsigned int ready = first;

	for (unsigned int i = first; i < count; i++) {
		if (!places[i])
			continue;
		/* Otherwise a frame that never fits would keep its slot, and so would all frames behind it. */
		if (places[i]->length < ETHERNET_HEADER || places[i]->length > longest) {
			drop_invalid(queue, &places[i]);
			continue;
		}
		if (queue->own_pool) {
			mbufs[ready] = copy_out(queue, places[i]);
			if (!mbufs[ready])
				break;
		} else {
			settle(places[i]);
			mbufs[ready] = filled(places[i]);
		}
		ready++;
	}
	return ready;
}

/* Empties the slots of the first `sent` frames, and frees those of which a copy was sent. Returns how many others there
 * are. */
static unsigned int empty_places(const struct bm_queue *queue, struct bm_header **places, unsigned int count,
				 unsigned int sent)
{
	unsigned int left = 0;

	for (unsigned int i = 0; i < count; i++) {
		if (!places[i])
			continue;
		if (!sent) {
			left++;
			continue;
		}
		if (queue->own_pool) {
			void *mbuf = bm_mbuf_of(places[i]);

			rte_mempool_put(queue->pool, mbuf);
		}
		places[i] = NULL;
		sent--;
	}
	return left;
}

unsigned int bm_transmit(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct bm_header **places,
			 unsigned int count)
{
	struct rte_mbuf *mbufs[BURST];
	unsigned int ready = 0, sent, left = 0;

	use_frames(queue, stack, freelist);
	if (likely(!queue->own_pool))
		ready = fill_plain(places, count, mbufs);
	if (unlikely(ready < count))
		ready = prepare_rest(queue, places, ready, count, mbufs);
	sent = ready ? rte_eth_tx_burst(queue->port, queue->queue, mbufs, ready) : 0;
	if (likely(!queue->own_pool && sent == ready)) {
		memset(places, 0, count * sizeof(*places));
	} else {
		left = empty_places(queue, places, count, sent);
		for (unsigned int i = sent; queue->own_pool && i < ready; i++)
			rte_pktmbuf_free(mbufs[i]);
	}
	leave_frames();
	return left;
}
