// The probing of brickmoon.table. It is in C because a loop in a trace ends the trace: in Lua a lookup took nine times
// as long. The Lua module allocates the memory and defines its layout.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bm_hash {
	uint8_t *slots;
	uint64_t mask;
	uint32_t shift, slot_size, value_size, key_offset, key_size, used_offset;
	uint32_t count, capacity, found;
};

static uint64_t mix(uint64_t word)
{
	word *= 0x9e3779b97f4a7c15u;
	return word ^ word >> 29;
}

static uint64_t hash(const uint8_t *key, uint32_t size)
{
	uint64_t sum = 0xcbf29ce484222325u, word;

	for (; size >= 8; size -= 8, key += 8) {
		memcpy(&word, key, 8);
		sum = mix(sum ^ word);
	}
	word = 0;
	memcpy(&word, key, size);
	return mix(sum ^ word) * 0x9e3779b97f4a7c15u;
}

static uint8_t *slot_at(const struct bm_hash *table, uint64_t place)
{
	return table->slots + place * table->slot_size;
}

static int is_used(const struct bm_hash *table, uint64_t place)
{
	return slot_at(table, place)[table->used_offset];
}

static uint64_t home(const struct bm_hash *table, const uint8_t *key)
{
	return hash(key, table->key_size) >> table->shift;
}

// The slot of the key, or the free slot where it belongs. There is always one: a quarter of the slots stays free.
static uint64_t find(struct bm_hash *table, const uint8_t *key)
{
	uint64_t place = home(table, key);

	for (; is_used(table, place); place = (place + 1) & table->mask)
		if (memcmp(slot_at(table, place) + table->key_offset, key, table->key_size) == 0) {
			table->found = 1;
			return place;
		}
	table->found = 0;
	return place;
}

void *bm_hash_get(struct bm_hash *table, const void *key)
{
	uint64_t place = find(table, key);

	return table->found ? slot_at(table, place) : NULL;
}

// The value, zeroed if the key is new; NULL if it is new and the table is full. `found` tells whether it existed.
void *bm_hash_put(struct bm_hash *table, const void *key)
{
	uint8_t *slot = slot_at(table, find(table, key));

	if (table->found)
		return slot;
	if (table->count >= table->capacity)
		return NULL;
	memset(slot, 0, table->value_size);
	memcpy(slot + table->key_offset, key, table->key_size);
	slot[table->used_offset] = 1;
	table->count++;
	return slot;
}

// Empties a slot, and moves entries behind it that belong further up.
void bm_hash_take_out(struct bm_hash *table, uint64_t hole)
{
	for (uint64_t place = (hole + 1) & table->mask; is_used(table, place); place = (place + 1) & table->mask) {
		uint64_t wanted = home(table, slot_at(table, place) + table->key_offset);

		if (((place - wanted) & table->mask) < ((place - hole) & table->mask))
			continue;
		memcpy(slot_at(table, hole), slot_at(table, place), table->slot_size);
		hole = place;
	}
	slot_at(table, hole)[table->used_offset] = 0;
	table->count--;
}

int bm_hash_remove(struct bm_hash *table, const void *key)
{
	uint64_t place = find(table, key);

	if (!table->found)
		return 0;
	bm_hash_take_out(table, place);
	return 1;
}

// The same with numbers as keys, so that Lua allocates no memory for them. This needs a little-endian machine, as all
// are on which LuaJIT runs here.
void *bm_hash_get_number(struct bm_hash *table, uint64_t key) { return bm_hash_get(table, &key); }
void *bm_hash_put_number(struct bm_hash *table, uint64_t key) { return bm_hash_put(table, &key); }
int bm_hash_remove_number(struct bm_hash *table, uint64_t key) { return bm_hash_remove(table, &key); }
