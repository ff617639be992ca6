// Table and window functions that Snabb's apps and libraries call through FFI: the learning bridge's MAC table, two
// lookups in flat route arrays, the ESP replay window. Those modules define the layouts and allocate; nothing here
// does.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct packet;

// apps.bridge: a bucket is a row of six entries; the first free entry ends it.
enum { BUCKET = 6 };
struct mac_entry { uint64_t mac; uint16_t port, group; };
struct mac_table { uint32_t used_buckets, entries; uint8_t overflow; struct mac_entry rows[][BUCKET]; };
struct mac_result { uint16_t port, group; };
struct port_list { uint16_t length, ports[1]; };
struct forward_entry { struct packet *packet; struct port_list *ports; };
struct forward_table { uint16_t length; struct forward_entry entries[]; };

static struct mac_entry *find_or_free(struct mac_entry *row, uint64_t mac)
{
	for (int i = 0; i < BUCKET; i++)
		if (row[i].mac == mac || row[i].mac == 0)
			return &row[i];
	return NULL;
}

static void insert(struct mac_table *table, uint32_t index, struct mac_entry new)
{
	struct mac_entry *row = table->rows[index];
	struct mac_entry *slot = find_or_free(row, new.mac);

	if (!slot) {
		table->overflow = 1;
		return;
	}
	if (slot->mac == 0) {
		table->used_buckets += slot == row;
		table->entries++;
	}
	*slot = new;
}

void mac_table_insert(uint64_t mac, uint16_t port, uint16_t group, struct mac_table **tables,
		      uint32_t index)
{
	struct mac_entry new = { mac, port, group };

	insert(tables[0], index, new);
	insert(tables[1], index, new);
}

// Port 0 means that the address is unknown. The result is valid until the thread's next call.
struct mac_result *mac_table_lookup(uint64_t mac, struct mac_entry *row)
{
	static __thread struct mac_result result;
	struct mac_entry *slot = find_or_free(row, mac);

	result.port = 0;
	if (slot && slot->mac == mac) {
		result.port = slot->port;
		result.group = slot->group;
	}
	return &result;
}

// Queues the packet on tables[0] for one port, on tables[1] for flooding, or on tables[2] if it would leave on the port
// that it came from.
void mac_table_lookup_pft(uint64_t mac, struct mac_entry *row, uint16_t port, uint16_t group,
			  struct packet *packet, struct forward_table **tables,
			  struct port_list *flood)
{
	struct mac_entry *slot = find_or_free(row, mac);
	bool known = slot && slot->mac == mac;
	bool back = known && (slot->port == port || (group != 0 && slot->group == group));
	struct forward_table *table = tables[back ? 2 : known ? 0 : 1];
	struct forward_entry *entry = &table->entries[table->length++];

	entry->packet = packet;
	if (!known)
		entry->ports = flood;
	else if (!back)
		entry->ports->ports[0] = slot->port;
}

// lib.lpm.lpm4_248: if the top bit of a first-level word is set, the rest is the number of a block of 256.
uint16_t lpm4_248_search(uint32_t address, uint16_t *first, uint16_t *blocks)
{
	uint16_t word = first[address >> 8];

	return word > 0x8000 ? blocks[((uint32_t)(word - 0x8000) << 8) + (address & 0xff)] : word;
}

uint32_t lpm4_248_search32(uint32_t address, uint32_t *first, uint32_t *blocks)
{
	uint32_t word = first[address >> 8];

	return word > 0x80000000u ? blocks[((size_t)(word - 0x80000000u) << 8) + (address & 0xff)] : word;
}

// lib.lpm.lpm4_dxr: `ends` holds the last addresses of ranges; the range with the first one not below ours matches.
uint16_t lpm4_dxr_search(uint32_t address, uint16_t *ends, uint16_t *keys, uint32_t *bottoms,
			 uint32_t *tops)
{
	uint32_t low = bottoms[address >> 16], high = tops[address >> 16];
	uint16_t rest = address & 0xffff;

	if (high < low)
		return keys[high];
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (ends[middle] < rest)
			low = middle + 1;
		else
			high = middle;
	}
	return keys[high];
}

// lib.ipsec: RFC 4303, appendix A2. `top` is the highest number seen, `size` the window in bits.
static bool seen(uint64_t number, const uint8_t *window, uint32_t size)
{
	uint32_t bit = number % size;

	return window[bit / 8] >> (bit % 8) & 1;
}

static void mark(bool on, uint64_t number, uint8_t *window, uint32_t size)
{
	uint32_t bit = number % size;

	window[bit / 8] = (uint8_t)((window[bit / 8] & ~(1u << bit % 8)) | (unsigned)on << bit % 8);
}

// The high half that belongs to `low`, or -1 for a number that was received before.
int64_t check_seq_no(uint32_t low, uint64_t top, uint8_t *window, uint32_t size)
{
	uint32_t top_low = (uint32_t)top, high = (uint32_t)(top >> 32);
	bool in_front = low >= (uint32_t)(top_low - size + 1);

	if (top_low >= size - 1)
		high += !in_front;
	else
		high -= in_front;
	uint64_t number = (uint64_t)high << 32 | low;
	return number <= top && seen(number, window, size) ? -1 : (int64_t)high;
}

// Marks the number as received and returns the new highest one.
uint64_t track_seq_no(uint32_t high, uint32_t low, uint64_t top, uint8_t *window, uint32_t size)
{
	uint64_t number = (uint64_t)high << 32 | low;

	if (number > top) {
		uint64_t fresh = number - top < size ? number - top : size;

		for (uint64_t i = 0; i < fresh; i++)
			mark(false, number - i, window, size);
		top = number;
	}
	mark(true, number, window, size);
	return top;
}

// Returns 1 if equal. The run time depends only on the length.
int consttime_memequal(const void *a, const void *b, size_t length)
{
	const uint8_t *left = a, *right = b;
	unsigned difference = 0;

	for (size_t i = 0; i < length; i++)
		difference |= left[i] ^ right[i];
	return difference == 0;
}
