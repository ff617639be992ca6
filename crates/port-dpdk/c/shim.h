/* DPDK as brickmoon's ports see it. Handles are numbers and opaque pointers; no rte_ type leaves the shim.
 *
 * A frame is identified by its header (crates/frame): 40 bytes, then 24 that a mempool keeps in front of an mbuf, then the
 * mbuf. Numbers are in host order, MAC addresses as on the wire. Functions that may fail return 0 or -errno. */
#ifndef BM_DPDK_SHIM_H
#define BM_DPDK_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Header of a frame, as in crates/frame. */
struct bm_header {
	uint16_t length;
	uint16_t slot_size;
	uint8_t *data;
	uint64_t noted[2];
	uint8_t *slot;
};

/* A worker's free frames, as in crates/frame. */
struct bm_stack {
	int32_t held, limit;
	int64_t traded;
	struct bm_header *frames[];
};

/* Functions of crates/frame that the shim calls. `frame_pool` and `freelist` are passed back unchanged. */
struct bm_calls {
	void (*refill)(void *freelist);
	void (*make_room)(void *freelist);
	struct bm_header *(*take)(void *frame_pool);
	void (*give)(void *frame_pool, struct bm_header *frame);
	unsigned int (*available)(void *frame_pool);
	void (*log)(const char *text, size_t length);
	/* The device with this port number was removed; the number may be used for another device from now on. */
	void (*removed)(uint16_t port);
};

/* All slots of one memory region. */
struct bm_region {
	uint8_t *slots, *headers;
	unsigned int count, slot_size, stride, mbuf_offset;
	/* Page size that is certain for the region, and the size of the region, a multiple of it. */
	size_t page, bytes;
};

struct bm_info {
	char driver[64];
	uint8_t mac[6];
	uint16_t mtu, mtu_min, mtu_max;
	uint16_t receive_queues_max, transmit_queues_max;
	/* 1 if the device can spread flows over queues by a hash with a configurable key. */
	uint8_t has_rss;
};

struct bm_setup {
	uint16_t queues, mtu;
	/* Frames are copied to and from memory that the driver requires; the device is virtual. */
	uint8_t copied, is_virtual;
	void *pool;
};

#define BM_KEY_BYTES 64
#define BM_BUCKETS 512

/* How flows are spread over queues: the key of the hash, and the queue for each of its values. */
struct bm_spread {
	uint8_t key[BM_KEY_BYTES];
	uint16_t key_bytes, buckets;
	uint16_t queue[BM_BUCKETS];
};

struct bm_link {
	uint8_t up;
	uint32_t mbps;
};

struct bm_counts {
	uint64_t missed, no_frame, receive_errors, transmit_errors;
};

struct bm_named {
	char name[64];
	uint64_t value;
};

struct rte_mbuf;

/* One queue, used by one thread. */
struct bm_queue {
	uint16_t port, queue;
	/* The pool over brickmoon's frames, and the one of DPDK's own that frames are copied from and to, or NULL. */
	void *pool, *own_pool;
	/* Frames lost because they did not fit into a slot, because no slot was free, because what was to be sent was invalid, and
	 * because what was received was invalid. */
	uint64_t too_long, no_frame, invalid, no_packet;
	/* Bytes of the frames received last. */
	uint64_t bytes;
};

const char *bm_version(void);
const char *bm_error_text(int error);

int bm_eal_start(int count, char **arguments, const struct bm_calls *calls);
const char *bm_eal_folder(void);
int bm_pool_make(const char *name, const struct bm_region *region, void *frame_pool, void **pool);

int bm_device_probe(const char *device, uint16_t *port);
int bm_device_info(uint16_t port, struct bm_info *info);
int bm_device_setup(uint16_t port, const struct bm_setup *setup, void **own_pool, const char **step);
int bm_device_start(uint16_t port);
int bm_device_map(uint16_t port, const struct bm_region *region);
void bm_device_spread(uint16_t port, struct bm_spread *spread);
void bm_device_close(uint16_t port, void *own_pool);
int bm_device_stop(uint16_t port);
int bm_device_set_mtu(uint16_t port, uint16_t mtu);
int bm_device_set_mac(uint16_t port, const uint8_t *mac);
int bm_device_add_mac(uint16_t port, const uint8_t *mac);
int bm_device_remove_mac(uint16_t port, const uint8_t *mac);
int bm_device_promiscuous(uint16_t port);
int bm_device_link(uint16_t port, struct bm_link *link);
int bm_device_counts(uint16_t port, struct bm_counts *counts);
int bm_device_xstats(uint16_t port, struct bm_named *named, unsigned int count);
int bm_flow_to_queue(uint16_t port, const uint8_t *address, unsigned int bytes, uint16_t queue, void **flow);
void bm_flow_remove(uint16_t port, void *flow);

/* Fills slots with received frames, at most BURST, and returns how many. */
unsigned int bm_receive(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct bm_header **to,
			unsigned int room);
/* Sends frames from at most BURST slots, and empties the slots. Returns how many frames are left: the device had no room
 * for them. */
unsigned int bm_transmit(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct bm_header **places,
			 unsigned int count);
/* The same with mbufs, whose frames' headers are neither read nor written. No slot to send from may be empty; the frames
 * that are left are the last. */
unsigned int bm_receive_mbufs(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct rte_mbuf **mbufs,
			      unsigned int room);
unsigned int bm_transmit_mbufs(struct bm_queue *queue, struct bm_stack *stack, void *freelist, struct rte_mbuf **mbufs,
			       unsigned int count);

#endif
