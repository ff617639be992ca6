/* Devices: finds, sets up, queries, changes and closes them. Nothing here is called per packet. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_string_fns.h>

#include "pool.h"

#define DESCRIPTORS 1024
/* Number of frames in a pool of DPDK's own: both rings of a queue full, and two bursts. */
#define OWN_FRAMES (2 * DESCRIPTORS + 512)
/* Longest key that devices accept. */
#define KEY_BYTES BM_KEY_BYTES

static int on_removal(uint16_t port, enum rte_eth_event_type event, void *argument, void *answer)
{
	(void)event;
	(void)argument;
	(void)answer;
	bm_calls.removed(port);
	return 0;
}

int bm_device_probe(const char *device, uint16_t *port)
{
	struct rte_dev_iterator each;
	struct rte_devargs arguments;
	int done, found = -1;

	memset(&arguments, 0, sizeof(arguments));
	done = rte_devargs_parse(&arguments, device);
	if (done)
		return done < 0 ? done : -EINVAL;
	done = rte_dev_probe(device);
	if (!done) {
		uint16_t id;

		RTE_ETH_FOREACH_MATCHING_DEV(id, arguments.name, &each) {
			if (found < 0)
				found = id;
		}
		if (found < 0) {
			uint16_t by_name;

			if (!rte_eth_dev_get_port_by_name(arguments.name, &by_name))
				found = by_name;
		}
		done = found < 0 ? -ENODEV : 0;
		/* Once for each number: DPDK ignores a callback that is already registered. */
		if (!done)
			done = rte_eth_dev_callback_register(found, RTE_ETH_EVENT_DESTROY, on_removal, NULL);
	}
	rte_devargs_reset(&arguments);
	*port = found < 0 ? 0 : found;
	return done;
}

/* Whether the device spreads flows over its queues with brickmoon's key. */
static bool has_rss(const struct rte_eth_dev_info *info)
{
	return (info->flow_type_rss_offloads & RTE_ETH_RSS_IP) && info->hash_key_size <= KEY_BYTES;
}

int bm_device_info(uint16_t port, struct bm_info *info)
{
	struct rte_eth_dev_info found;
	struct rte_ether_addr mac;
	int done = rte_eth_dev_info_get(port, &found);

	memset(info, 0, sizeof(*info));
	if (!done)
		done = rte_eth_macaddr_get(port, &mac);
	if (!done)
		done = rte_eth_dev_get_mtu(port, &info->mtu);
	if (done)
		return done;
	rte_strlcpy(info->driver, found.driver_name, sizeof(info->driver));
	memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	info->mtu_min = found.min_mtu;
	info->mtu_max = found.max_mtu;
	info->receive_queues_max = found.max_rx_queues;
	info->transmit_queues_max = found.max_tx_queues;
	info->has_rss = has_rss(&found);
	return 0;
}

/* Assigns both directions of a flow to one queue: a key whose bits repeat every 16 (Woo and Park, Scalable TCP Session
 * Monitoring with Symmetric Receive-side Scaling, 2012). */
static void use_rss(struct rte_eth_conf *conf, const struct rte_eth_dev_info *info)
{
	static uint8_t key[KEY_BYTES];

	for (unsigned int i = 0; i < sizeof(key); i++)
		key[i] = i % 2 ? 0x5a : 0x6d;
	conf->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
	conf->rx_adv_conf.rss_conf.rss_key = info->hash_key_size ? key : NULL;
	conf->rx_adv_conf.rss_conf.rss_key_len = info->hash_key_size;
	conf->rx_adv_conf.rss_conf.rss_hf =
		(RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP) & info->flow_type_rss_offloads;
}

/* Data that a device accesses must not cross pages. For a virtual device frames must follow each other without a
 * gap instead: net_af_xdp assumes that frames are contiguous, and Linux drops what is behind a gap. */
static int own_pool_make(const struct bm_setup *setup, unsigned int room, void **pool)
{
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = room };
	unsigned int flags = setup->is_virtual ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0;
	/* A port number may be reused while the pool of its previous device still exists. */
	static unsigned int made;
	char name[RTE_MEMPOOL_NAMESIZE];
	struct rte_mempool *mp;
	int done;

	snprintf(name, sizeof(name), "bm-own-%u", made++);
	mp = rte_mempool_create_empty(name, OWN_FRAMES * setup->queues, sizeof(struct rte_mbuf) + room, 0,
				      sizeof(private), SOCKET_ID_ANY, flags);
	if (!mp)
		return -rte_errno;
	rte_pktmbuf_pool_init(mp, &private);
	done = rte_mempool_set_ops_byname(mp, rte_mbuf_best_mempool_ops(), NULL);
	if (!done)
		done = rte_mempool_populate_default(mp);
	if (done < 0) {
		rte_mempool_free(mp);
		return done;
	}
	rte_mempool_obj_iter(mp, rte_pktmbuf_init, NULL);
	*pool = mp;
	return 0;
}

static int queues_setup(uint16_t port, const struct bm_setup *setup, const struct rte_eth_dev_info *info, void *pool,
			uint64_t transmit_offloads)
{
	struct rte_eth_txconf transmit = info->default_txconf;
	uint16_t receive_ring = DESCRIPTORS, transmit_ring = DESCRIPTORS;
	int done = rte_eth_dev_adjust_nb_rx_tx_desc(port, &receive_ring, &transmit_ring);

	transmit.offloads = transmit_offloads;
	for (uint16_t queue = 0; queue < setup->queues && !done; queue++) {
		done = rte_eth_rx_queue_setup(port, queue, receive_ring, SOCKET_ID_ANY, NULL, pool);
		if (!done)
			done = rte_eth_tx_queue_setup(port, queue, transmit_ring, SOCKET_ID_ANY, &transmit);
	}
	return done;
}

int bm_device_setup(uint16_t port, const struct bm_setup *setup, void **own_pool, const char **step)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf;
	unsigned int room = rte_pktmbuf_data_room_size(setup->pool);
	unsigned int frame = setup->mtu + RTE_ETHER_HDR_LEN + 2 * RTE_VLAN_HLEN;
	void *pool = setup->pool;
	int done = rte_eth_dev_info_get(port, &info);

	*own_pool = NULL;
	*step = "querying its capabilities";
	if (done)
		return done;
	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = setup->mtu;
	if (setup->queues > 1 && has_rss(&info))
		use_rss(&conf, &info);
	/* Frames in several segments are joined on receive. */
	if (frame + RTE_PKTMBUF_HEADROOM > room || info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER)
		conf.rxmode.offloads |= info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER;
	/* All frames of a queue are from one pool and have one owner. */
	conf.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	*step = "configuring the device";
	done = rte_eth_dev_configure(port, setup->queues, setup->queues, &conf);
	if (done)
		return done;
	if (setup->copied) {
		*step = "creating its own frame pool";
		done = own_pool_make(setup, RTE_MAX(frame, 2048u) + RTE_PKTMBUF_HEADROOM, own_pool);
		if (done)
			return done;
		pool = *own_pool;
	}
	*step = "setting up its queues";
	return queues_setup(port, setup, &info, pool, conf.txmode.offloads);
}

/* Gives every queue an equal share of the hash's values, in turn: drivers start with a table of their own, which
 * may be that of fewer queues. A device without a table distributes them in its own way. */
static void spread_evenly(uint16_t port, uint16_t queues, uint16_t buckets)
{
	struct rte_eth_rss_reta_entry64 table[BM_BUCKETS / RTE_ETH_RETA_GROUP_SIZE];

	if (queues < 2 || !buckets || buckets > BM_BUCKETS)
		return;
	for (unsigned int i = 0; i < buckets; i++) {
		table[i / RTE_ETH_RETA_GROUP_SIZE].mask = UINT64_MAX;
		table[i / RTE_ETH_RETA_GROUP_SIZE].reta[i % RTE_ETH_RETA_GROUP_SIZE] = i % queues;
	}
	rte_eth_dev_rss_reta_update(port, table, buckets);
}

/* How the device spreads flows over queues, according to itself; all zeroes if it cannot tell. */
void bm_device_spread(uint16_t port, struct bm_spread *spread)
{
	struct rte_eth_rss_reta_entry64 table[BM_BUCKETS / RTE_ETH_RETA_GROUP_SIZE];
	struct rte_eth_rss_conf conf = { .rss_key = spread->key, .rss_key_len = sizeof(spread->key) };
	struct rte_eth_dev_info info;

	memset(spread, 0, sizeof(*spread));
	if (rte_eth_dev_info_get(port, &info))
		return;
	if (info.hash_key_size <= sizeof(spread->key) && !rte_eth_dev_rss_hash_conf_get(port, &conf))
		spread->key_bytes = RTE_MIN(conf.rss_key_len, info.hash_key_size);
	if (!info.reta_size || info.reta_size > BM_BUCKETS)
		return;
	memset(table, 0xff, sizeof(table));
	if (rte_eth_dev_rss_reta_query(port, table, info.reta_size))
		return;
	spread->buckets = info.reta_size;
	for (unsigned int i = 0; i < info.reta_size; i++)
		spread->queue[i] = table[i / RTE_ETH_RETA_GROUP_SIZE].reta[i % RTE_ETH_RETA_GROUP_SIZE];
}

int bm_device_start(uint16_t port)
{
	struct rte_eth_dev_info info;
	int done = rte_eth_dev_start(port);

	/* QEMU's virtio-net drops VLANs that were not registered with it, even if filtering was not requested; Linux may
	 * use any VLAN at any time. */
	if (done || rte_eth_dev_info_get(port, &info))
		return done;
	if (!strcmp(info.driver_name, "net_virtio"))
		rte_eth_promiscuous_enable(port);
	spread_evenly(port, info.nb_rx_queues, info.reta_size);
	/* Neighbor discovery and routing protocols use multicast, which not every driver can filter. */
	if (rte_eth_allmulticast_enable(port) < 0)
		rte_eth_promiscuous_enable(port);
	return done;
}

int bm_device_map(uint16_t port, const struct bm_region *region)
{
	struct rte_eth_dev_info info;
	int done = rte_eth_dev_info_get(port, &info);

	if (!done && rte_eal_iova_mode() != RTE_IOVA_PA)
		done = bm_memory_register(region);
	if (done && done != -EEXIST)
		return done;
	for (size_t at = 0; at < region->bytes; at += region->page) {
		uint8_t *page = region->slots + at;
		rte_iova_t place = rte_eal_iova_mode() == RTE_IOVA_PA ? rte_mem_virt2iova(page) : (uintptr_t)page;
		size_t length = region->page;

		/* One mapping for all of it if addresses are contiguous anyway. */
		if (rte_eal_iova_mode() != RTE_IOVA_PA)
			length = at ? 0 : region->bytes;
		if (length && rte_dev_dma_map(info.device, page, place, length) && rte_errno != ENOTSUP &&
		    rte_errno != EEXIST)
			return -rte_errno;
	}
	return 0;
}

void bm_device_close(uint16_t port, void *own_pool)
{
	struct rte_eth_dev_info info;
	int known = rte_eth_dev_info_get(port, &info);

	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (!known && info.device)
		rte_dev_remove(info.device);
	rte_mempool_free(own_pool);
}

int bm_device_set_mtu(uint16_t port, uint16_t mtu)
{
	return rte_eth_dev_set_mtu(port, mtu);
}

int bm_device_stop(uint16_t port)
{
	return rte_eth_dev_stop(port);
}

static struct rte_ether_addr address(const uint8_t *mac)
{
	struct rte_ether_addr address;

	memcpy(address.addr_bytes, mac, sizeof(address.addr_bytes));
	return address;
}

int bm_device_set_mac(uint16_t port, const uint8_t *mac)
{
	struct rte_ether_addr new = address(mac);

	return rte_eth_dev_default_mac_addr_set(port, &new);
}

int bm_device_add_mac(uint16_t port, const uint8_t *mac)
{
	struct rte_ether_addr new = address(mac);

	return rte_eth_dev_mac_addr_add(port, &new, 0);
}

int bm_device_remove_mac(uint16_t port, const uint8_t *mac)
{
	struct rte_ether_addr old = address(mac);

	return rte_eth_dev_mac_addr_remove(port, &old);
}

int bm_device_promiscuous(uint16_t port)
{
	return rte_eth_promiscuous_enable(port);
}

int bm_device_link(uint16_t port, struct bm_link *link)
{
	struct rte_eth_link found;
	int done = rte_eth_link_get_nowait(port, &found);

	if (done)
		return done;
	link->up = found.link_status == RTE_ETH_LINK_UP;
	link->mbps = found.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN ? 0 : found.link_speed;
	return 0;
}

int bm_device_counts(uint16_t port, struct bm_counts *counts)
{
	struct rte_eth_stats stats;
	int done = rte_eth_stats_get(port, &stats);

	if (done)
		return done;
	counts->missed = stats.imissed;
	counts->no_frame = stats.rx_nombuf;
	counts->receive_errors = stats.ierrors;
	counts->transmit_errors = stats.oerrors;
	return 0;
}

/* Fills in up to `count` counters; returns how many the device has, or -errno. */
int bm_device_xstats(uint16_t port, struct bm_named *named, unsigned int count)
{
	int has = rte_eth_xstats_get_names(port, NULL, 0);
	struct rte_eth_xstat_name *names;
	struct rte_eth_xstat *values;
	int got = -ENOMEM;

	if (has <= 0 || !named)
		return has;
	names = calloc(has, sizeof(*names));
	values = calloc(has, sizeof(*values));
	if (names && values && rte_eth_xstats_get_names(port, names, has) == has)
		got = rte_eth_xstats_get(port, values, has);
	for (int i = 0; i < got && (unsigned int)i < count; i++) {
		rte_strlcpy(named[i].name, names[values[i].id].name, sizeof(named[i].name));
		named[i].value = values[i].value;
	}
	free(names);
	free(values);
	return got;
}

/* Steers packets to an address (4 or 16 bytes) to one queue, whatever their hash. */
int bm_flow_to_queue(uint16_t port, const uint8_t *to, unsigned int bytes, uint16_t queue, void **flow)
{
	const struct rte_flow_attr attributes = { .ingress = 1 };
	struct rte_flow_item_ipv4 ipv4, ipv4_mask;
	struct rte_flow_item_ipv6 ipv6, ipv6_mask;
	struct rte_flow_item pattern[3] = { { .type = RTE_FLOW_ITEM_TYPE_ETH } };
	struct rte_flow_action_queue number = { .index = queue };
	struct rte_flow_action actions[2] = { { .type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &number },
					      { .type = RTE_FLOW_ACTION_TYPE_END } };
	struct rte_flow_error error;

	memset(&ipv4, 0, sizeof(ipv4));
	memset(&ipv6, 0, sizeof(ipv6));
	ipv4_mask = ipv4;
	ipv6_mask = ipv6;
	if (bytes == 4) {
		memcpy(&ipv4.hdr.dst_addr, to, 4);
		memset(&ipv4_mask.hdr.dst_addr, 0xff, 4);
		pattern[1] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV4, .spec = &ipv4, .mask = &ipv4_mask };
	} else {
		memcpy(&ipv6.hdr.dst_addr, to, 16);
		memset(&ipv6_mask.hdr.dst_addr, 0xff, 16);
		pattern[1] = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV6, .spec = &ipv6, .mask = &ipv6_mask };
	}
	pattern[2].type = RTE_FLOW_ITEM_TYPE_END;
	*flow = NULL;
	if (rte_flow_validate(port, &attributes, pattern, actions, &error))
		return -rte_errno;
	*flow = rte_flow_create(port, &attributes, pattern, actions, &error);
	return *flow ? 0 : -rte_errno;
}

void bm_flow_remove(uint16_t port, void *flow)
{
	struct rte_flow_error error;

	rte_flow_destroy(port, flow, &error);
}
