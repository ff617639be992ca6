// Writes an event into the ring of core.timeline. In C for the time stamp; the Lua module defines the layout.

#include <stdint.h>
#include <time.h>

struct timeline_entry {
	double tsc;
	uint16_t msgid, core_numa;
	uint32_t reserved;
	double arg0, arg1, arg2, arg3, arg4, arg5;
};

struct timeline_state {
	struct timeline_entry *entries;
	uint32_t rate, next_entry, num_entries;
};

// The cycle counter, and the core and NUMA node that it was read on; nanoseconds on machines without such a counter.
static double stamp(uint16_t *core_numa)
{
#if defined(__x86_64__)
	unsigned where;
	double now = (double)__builtin_ia32_rdtscp(&where);

	*core_numa = (uint16_t)where;
	return now;
#else
	struct timespec now = { 0, 0 };

	clock_gettime(CLOCK_MONOTONIC, &now);
	*core_numa = 0;
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
#endif
}

// Events with a lower rate than the timeline's are left out.
void bm_timeline_log(struct timeline_state *log, uint32_t rate, uint16_t message, double a, double b, double c,
		     double d, double e, double f)
{
	struct timeline_entry *entry = log->entries + log->next_entry;

	if (rate < log->rate)
		return;
	log->next_entry = log->next_entry + 1 < log->num_entries ? log->next_entry + 1 : 0;
	entry->msgid = message;
	entry->arg0 = a;
	entry->arg1 = b;
	entry->arg2 = c;
	entry->arg3 = d;
	entry->arg4 = e;
	entry->arg5 = f;
	entry->tsc = stamp(&entry->core_numa);
}
