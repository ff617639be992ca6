/* SPDX-License-Identifier: Apache-2.0
 *
 * Linked with the sources of DPDK's l3fwd, which stay as they are: room for a full table, frames in its ring before it
 * starts, memory in large pages, and a thread that says how much was forwarded.
 *
 *   l3fwd's call                  ld --wrap                 what is added
 *   rte_fib_create                __wrap_rte_fib_create     room for a full table
 *   rte_eth_dev_configure,        __wrap_rte_eth_...        only what the device offers: it verifies no checksums
 *   rte_eth_rx_queue_setup
 *   rte_eth_dev_get_supported_..  __wrap_rte_eth_dev_...    with BM_TYPED: a card that tells the type of a packet
 *   rte_eal_mp_remote_launch      __wrap_rte_eal_mp_...     large pages, frames, the thread
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_fib.h>
#include <rte_launch.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define BURST 32
#define LARGE_PAGE ((uintptr_t)2 << 20)
/* What starts the lines that are for the bench: l3fwd prints others. */
#define MARK "bench:"

/* The clock of the thread that forwards. */
static clockid_t forwarding;
/* Where frames of the port are allocated. */
static struct rte_mempool *pool;
static size_t large_bytes;

struct rte_fib *__real_rte_fib_create(const char *name, int socket, struct rte_fib_conf *conf);
struct rte_fib *__wrap_rte_fib_create(const char *name, int socket, struct rte_fib_conf *conf);
int __real_rte_eth_dev_configure(uint16_t port, uint16_t rx, uint16_t tx, const struct rte_eth_conf *conf);
int __wrap_rte_eth_dev_configure(uint16_t port, uint16_t rx, uint16_t tx, const struct rte_eth_conf *conf);
int __real_rte_eth_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, unsigned int socket,
				  const struct rte_eth_rxconf *conf, struct rte_mempool *frames);
int __wrap_rte_eth_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, unsigned int socket,
				  const struct rte_eth_rxconf *conf, struct rte_mempool *frames);
int __real_rte_eth_dev_get_supported_ptypes(uint16_t port, uint32_t mask, uint32_t *types, int room);
int __wrap_rte_eth_dev_get_supported_ptypes(uint16_t port, uint32_t mask, uint32_t *types, int room);
int __real_rte_eal_mp_remote_launch(lcore_function_t *f, void *arg, enum rte_rmt_call_main_t call_main);
int __wrap_rte_eal_mp_remote_launch(lcore_function_t *f, void *arg, enum rte_rmt_call_main_t call_main);

struct rte_fib *__wrap_rte_fib_create(const char *name, int socket, struct rte_fib_conf *conf)
{
	conf->max_routes = 1 << 21;
	conf->dir24_8.num_tbl8 = 1 << 17;
	return __real_rte_fib_create(name, socket, conf);
}

int __wrap_rte_eth_dev_configure(uint16_t port, uint16_t rx, uint16_t tx, const struct rte_eth_conf *conf)
{
	struct rte_eth_conf offered = *conf;
	struct rte_eth_dev_info info;

	if (rte_eth_dev_info_get(port, &info) == 0)
		offered.rxmode.offloads &= info.rx_offload_capa;
	return __real_rte_eth_dev_configure(port, rx, tx, &offered);
}

int __wrap_rte_eth_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, unsigned int socket,
				  const struct rte_eth_rxconf *conf, struct rte_mempool *frames)
{
	struct rte_eth_rxconf offered = *conf;
	struct rte_eth_dev_info info;

	pool = frames;
	if (rte_eth_dev_info_get(port, &info) == 0)
		offered.offloads &= info.rx_offload_capa;
	return __real_rte_eth_rx_queue_setup(port, queue, descriptors, socket, &offered, frames);
}

/* What the frames in the ring are marked with, in place of a card. */
static const uint32_t TYPES[] = {RTE_PTYPE_L3_IPV4, RTE_PTYPE_L3_IPV4_EXT, RTE_PTYPE_L3_IPV6, RTE_PTYPE_L3_IPV6_EXT};

int __wrap_rte_eth_dev_get_supported_ptypes(uint16_t port, uint32_t mask, uint32_t *types, int room)
{
	int count = (int)RTE_DIM(TYPES);

	if (getenv("BM_TYPED") == NULL)
		return __real_rte_eth_dev_get_supported_ptypes(port, mask, types, room);
	for (int index = 0; index < count && index < room; index++)
		types[index] = TYPES[index];
	return count;
}

static void fail(const char *what)
{
	printf(MARK " failed: %s\n", what);
	fflush(stdout);
	exit(1);
}

/* In place of the C library's, for DPDK without huge pages: its memory is anonymous then, and can have large pages. That
 * of a file cannot, since DPDK maps it at an address that is no multiple of a large page. */
int memfd_create(const char *name, unsigned int flags)
{
	(void)name;
	(void)flags;
	errno = ENOSYS;
	return -1;
}

/* Large pages for what is in small ones, as brickmoon's tables have them. What is no whole page stays. */
static int collapse(const struct rte_memseg_list *list, void *unused)
{
	uintptr_t first = RTE_ALIGN_CEIL((uintptr_t)list->base_va, LARGE_PAGE);
	uintptr_t end = RTE_ALIGN_FLOOR((uintptr_t)list->base_va + list->len, LARGE_PAGE);

	(void)unused;
	for (uintptr_t page = first; page < end; page += LARGE_PAGE)
		if (madvise((void *)page, LARGE_PAGE, MADV_COLLAPSE) == 0)
			large_bytes += LARGE_PAGE;
	return 0;
}

/* Returns how many are left: none. */
static uint16_t send_all(struct rte_mbuf **burst, uint16_t count)
{
	if (rte_eth_tx_burst(0, 0, burst, count) != count)
		fail("the ring is full");
	return 0;
}

/* Puts the frames of a capture file (BM_FRAMES) in the ring of port 0: what is sent there is received there. */
static void fill(const char *path)
{
	uint32_t record[4];
	struct rte_mbuf *burst[BURST];
	uint16_t count = 0;
	FILE *file = fopen(path, "rb");

	if (file == NULL || pool == NULL || fseek(file, 24, SEEK_SET) != 0)
		fail("no frames");
	/* The ring has 1,024 places, one of which stays empty. */
	for (int frame = 0; frame < 1023 && fread(record, sizeof record, 1, file) == 1; frame++) {
		struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
		char *data = mbuf == NULL ? NULL : rte_pktmbuf_append(mbuf, record[2]);

		if (data == NULL || fread(data, record[2], 1, file) != 1)
			fail("a frame is cut short");
		mbuf->packet_type = RTE_PTYPE_L2_ETHER | RTE_PTYPE_L3_IPV4;
		burst[count++] = mbuf;
		if (count == BURST)
			count = send_all(burst, count);
	}
	send_all(burst, count);
	fclose(file);
}

/* For each line of input, one of output: the packets forwarded so far, and the nanoseconds that this took. */
static void *answer(void *unused)
{
	char line[16];

	(void)unused;
	while (fgets(line, sizeof line, stdin) != NULL) {
		struct rte_eth_stats stats;
		struct timespec used;

		if (rte_eth_stats_get(0, &stats) != 0 || clock_gettime(forwarding, &used) != 0)
			fail("no counters");
		printf(MARK " %" PRIu64 " %" PRIu64 "\n", stats.opackets,
		       (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec);
		fflush(stdout);
	}
	exit(0);
}

int __wrap_rte_eal_mp_remote_launch(lcore_function_t *f, void *arg, enum rte_rmt_call_main_t call_main)
{
	const char *frames = getenv("BM_FRAMES");
	pthread_t thread;

	rte_memseg_list_walk(collapse, NULL);
	if (frames != NULL)
		fill(frames);
	if (pthread_getcpuclockid(pthread_self(), &forwarding) != 0 || pthread_create(&thread, NULL, answer, NULL) != 0)
		fail("no thread");
	printf(MARK " ready, %zu MiB in large pages\n", large_bytes >> 20);
	fflush(stdout);
	return __real_rte_eal_mp_remote_launch(f, arg, call_main);
}
