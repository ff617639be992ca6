// Time, sleep and memory ordering, under the names by which Lua programs call them through FFI. Nothing here allocates
// or fails: a clock that the kernel does not have reads as 0.

#define _GNU_SOURCE
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

static struct timespec read_clock(clockid_t id)
{
	struct timespec now = { 0, 0 };

	clock_gettime(id, &now);
	return now;
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec now = read_clock(id);

	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double clock_seconds(clockid_t id)
{
	struct timespec now = read_clock(id);

	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

uint64_t get_time_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t get_unix_time_ns(void) { return clock_ns(CLOCK_REALTIME); }
double get_monotonic_time(void) { return clock_seconds(CLOCK_MONOTONIC); }
double get_unix_time(void) { return clock_seconds(CLOCK_REALTIME); }

void sleep_ns(int nanoseconds)
{
	struct timespec wait = { nanoseconds / 1000000000, nanoseconds % 1000000000 };

	if (nanoseconds > 0)
		nanosleep(&wait, 0);
}

// When the file was last modified, in seconds since the epoch; 0 if it does not exist, as programs expect.
unsigned int stat_mtime(const char *path)
{
	struct stat found;

	return stat(path, &found) == 0 ? (unsigned int)found.st_mtime : 0;
}

void full_memory_barrier(void) { __sync_synchronize(); }
void prefetch_for_read(const void *address) { __builtin_prefetch(address, 0); }
void prefetch_for_write(const void *address) { __builtin_prefetch(address, 1); }

// Does nothing: the JIT compiler moves no load or store across the call.
void nop(void) { }
