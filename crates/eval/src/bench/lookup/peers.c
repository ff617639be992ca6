/* DPDK's longest-prefix matches as `bench lookup --peers` sees them. Compiled where it runs, against the
 * DPDK of that machine (peers.rs says how); no rte_ type passes it.
 *
 * IPv4 addresses are numbers in host order, IPv6 addresses 16 bytes in network order, as DPDK has them. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_lpm.h>
#include <rte_malloc.h>
#include <rte_version.h>

#define HEAP "brickmoon"
/* Of rte_lpm's rules, which stay empty: see lpm_set. */
#define RULES 1024

enum kind { LPM, FIB, FIB6 };

struct peer {
	enum kind kind;
	union {
		struct rte_lpm *lpm;
		struct rte_fib *fib;
		struct rte_fib6 *fib6;
	};
	uint32_t blocks, next_block;
};

const char *peers_version(void)
{
	return rte_version();
}

const char *peers_error(void)
{
	return rte_strerror(rte_errno);
}

/* Starts DPDK on `core`, with `bytes` of `memory` in pages of `page` bytes for all tables. 0 or -1. */
int peers_start(const char *core, void *memory, size_t bytes, size_t page)
{
	char *arguments[] = { "brickmoon", "-l", (char *)core, "--no-huge", "--no-shconf", "-m", "64",
			      "--no-pci", "--no-telemetry", "--log-level=3", "--force-max-simd-bitwidth=512" };
	unsigned int pages = bytes / page;
	rte_iova_t *places;
	int failed;

	if (rte_eal_init(sizeof(arguments) / sizeof(*arguments), arguments) < 0)
		return -1;
	places = malloc(pages * sizeof(*places));
	if (!places)
		return -1;
	for (unsigned int i = 0; i < pages; i++)
		places[i] = (uintptr_t)memory + i * page;
	failed = rte_malloc_heap_create(HEAP) ||
		 rte_malloc_heap_memory_add(HEAP, memory, bytes, places, pages, page);
	free(places);
	return failed ? -1 : 0;
}

static int create(struct peer *peer, const char *name, int entry_bytes, uint32_t routes)
{
	int size = entry_bytes == 2 ? 1 : 2, socket = rte_malloc_heap_get_socket(HEAP);
	struct rte_lpm_config lpm = { .max_rules = RULES, .number_tbl8s = peer->blocks };
	struct rte_fib_conf fib = { .type = RTE_FIB_DIR24_8, .max_routes = routes };
	struct rte_fib6_conf fib6 = { .type = RTE_FIB6_TRIE, .max_routes = routes };

	switch (peer->kind) {
	case LPM:
		peer->lpm = rte_lpm_create(name, socket, &lpm);
		return peer->lpm ? 0 : -1;
	case FIB:
		fib.dir24_8.nh_sz = size == 1 ? RTE_FIB_DIR24_8_2B : RTE_FIB_DIR24_8_4B;
		fib.dir24_8.num_tbl8 = peer->blocks;
		peer->fib = rte_fib_create(name, socket, &fib);
		return peer->fib ? 0 : -1;
	case FIB6:
		fib6.trie.nh_sz = size == 1 ? RTE_FIB6_TRIE_2B : RTE_FIB6_TRIE_4B;
		fib6.trie.num_tbl8 = peer->blocks;
		peer->fib6 = rte_fib6_create(name, socket, &fib6);
		return peer->fib6 ? 0 : -1;
	}
	return -1;
}

/* An empty table with room for these numbers of routes and of blocks of the last level, or NULL. */
struct peer *peer_create(int kind, const char *name, int entry_bytes, uint32_t routes, uint32_t blocks)
{
	struct peer *peer = calloc(1, sizeof(*peer));

	if (!peer)
		return NULL;
	peer->kind = kind;
	peer->blocks = blocks;
	if (!create(peer, name, entry_bytes, routes))
		return peer;
	free(peer);
	return NULL;
}

/* rte_lpm_add compares a new rule with each rule of its length: a full table takes minutes. So the tables
 * that its lookup reads are filled here instead, in its own format; prefixes must come shortest first. */
static int lpm_set(struct peer *peer, uint32_t address, uint8_t length, uint32_t hop)
{
	struct rte_lpm_tbl_entry entry = { .next_hop = hop, .valid = 1, .depth = length }, *slot, *block;
	uint32_t first = address >> 8;

	if (length <= 24) {
		for (uint32_t i = 0; i < 1u << (24 - length); i++)
			peer->lpm->tbl24[first + i] = entry;
		return 0;
	}
	slot = &peer->lpm->tbl24[first];
	entry.valid_group = 1;
	if (!slot->valid_group) {
		struct rte_lpm_tbl_entry below = *slot;

		if (peer->next_block == peer->blocks)
			return -1;
		below.valid_group = 1;
		block = peer->lpm->tbl8 + (size_t)peer->next_block * 256;
		for (int i = 0; i < 256; i++)
			block[i] = below;
		slot->next_hop = peer->next_block++;
		slot->valid = slot->valid_group = 1;
	}
	block = peer->lpm->tbl8 + (size_t)slot->next_hop * 256;
	for (uint32_t i = 0; i < 1u << (32 - length); i++)
		block[(address & 0xff) + i] = entry;
	return 0;
}

int peer_set(struct peer *peer, const void *address, uint8_t length, uint32_t hop)
{
	switch (peer->kind) {
	case LPM:
		return lpm_set(peer, *(const uint32_t *)address, length, hop);
	case FIB:
		return rte_fib_add(peer->fib, *(const uint32_t *)address, length, hop);
	case FIB6:
		return rte_fib6_add(peer->fib6, (void *)address, length, hop);
	}
	return -1;
}

int peer_remove(struct peer *peer, const void *address, uint8_t length)
{
	switch (peer->kind) {
	case FIB:
		return rte_fib_delete(peer->fib, *(const uint32_t *)address, length);
	case FIB6:
		return rte_fib6_delete(peer->fib6, (void *)address, length);
	default:
		return -1;
	}
}

/* Takes the lookup with AVX-512, or the one without. Other than 0 where there is no such lookup. */
int peer_select(struct peer *peer, int vector)
{
	switch (peer->kind) {
	case FIB:
		return rte_fib_select_lookup(peer->fib, vector ? RTE_FIB_LOOKUP_DIR24_8_VECTOR_AVX512 :
								 RTE_FIB_LOOKUP_DIR24_8_SCALAR_MACRO);
	case FIB6:
		return rte_fib6_select_lookup(peer->fib6, vector ? RTE_FIB6_LOOKUP_TRIE_VECTOR_AVX512 :
								   RTE_FIB6_LOOKUP_TRIE_SCALAR);
	default:
		return vector;
	}
}

/* `hops` are 32 bits each, 0 where no route matches. */
static void lpm_lookup(struct rte_lpm *lpm, const uint32_t *addresses, uint32_t *hops, uint32_t count)
{
	uint32_t i = 0;

	for (; i + 4 <= count; i += 4)
		rte_lpm_lookupx4(lpm, _mm_loadu_si128((const __m128i *)(addresses + i)), hops + i, 0);
	for (; i < count; i++)
		if (rte_lpm_lookup(lpm, addresses[i], hops + i))
			hops[i] = 0;
}

/* Fills `hops`: 32 bits each for rte_lpm, else 64. */
void peer_lookup(struct peer *peer, const void *addresses, uint64_t *hops, uint32_t count)
{
	switch (peer->kind) {
	case LPM:
		lpm_lookup(peer->lpm, addresses, (uint32_t *)hops, count);
		break;
	case FIB:
		rte_fib_lookup_bulk(peer->fib, (void *)addresses, hops, count);
		break;
	case FIB6:
		rte_fib6_lookup_bulk(peer->fib6, (void *)addresses, hops, count);
		break;
	}
}

void peer_free(struct peer *peer)
{
	switch (peer->kind) {
	case LPM:
		rte_lpm_free(peer->lpm);
		break;
	case FIB:
		rte_fib_free(peer->fib);
		break;
	case FIB6:
		rte_fib6_free(peer->fib6);
		break;
	}
	free(peer);
}
