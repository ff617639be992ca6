// The locks of core.sync: words in memory that several processes map.

#include <stdbool.h>
#include <stdint.h>

bool bm_sync_cas(int *at, int old, int new)
{
	return __atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

bool bm_sync_cas64(uint64_t *at, uint64_t old, uint64_t new)
{
	return __atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

uint32_t bm_sync_load(const uint32_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
uint64_t bm_sync_load64(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

bool bm_sync_trylock(int *at)
{
	return __atomic_exchange_n(at, 1, __ATOMIC_ACQUIRE) == 0;
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

void bm_sync_lock(int *at)
{
	while (!bm_sync_trylock(at))
		while (__atomic_load_n(at, __ATOMIC_RELAXED) != 0)
			relax();
}

void bm_sync_unlock(int *at)
{
	__atomic_store_n(at, 0, __ATOMIC_RELEASE);
}
