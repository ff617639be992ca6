// Internet checksums (RFC 1071) under the names by which Lua programs call them through FFI. All functions take and
// return host byte order. Sums are computed over 64-bit words in memory order and converted at the end, since
// one's-complement addition does not depend on the byte order (RFC 1071, section 2 (B)).

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t load64(const unsigned char *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return word;
}

static uint64_t add_carry(uint64_t sum, uint64_t word)
{
	sum += word;
	return sum + (sum < word);
}

static uint16_t fold(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)sum;
}

// Four sums at once: in a single sum, each step would wait for the carry of the one before.
static uint64_t sum_blocks(const unsigned char **data, size_t *length)
{
	uint64_t sum[4] = { 0, 0, 0, 0 };
	const unsigned char *at = *data;
	size_t left = *length;

	for (; left >= 32; left -= 32, at += 32)
		for (int lane = 0; lane < 4; lane++)
			sum[lane] = add_carry(sum[lane], load64(at + 8 * lane));
	*data = at;
	*length = left;
	return add_carry(add_carry(sum[0], sum[1]), add_carry(sum[2], sum[3]));
}

static uint64_t sum_bytes(const unsigned char *data, size_t length)
{
	uint64_t sum = sum_blocks(&data, &length);
	uint64_t tail = 0;

	for (; length >= 8; length -= 8, data += 8)
		sum = add_carry(sum, load64(data));
	memcpy(&tail, data, length);
	return add_carry(sum, tail);
}

uint16_t cksum(unsigned char *data, size_t length, uint16_t initial)
{
	return be16toh((uint16_t)~fold(add_carry(sum_bytes(data, length), htobe16(initial))));
}

uint16_t cksum_generic(unsigned char *data, size_t length, uint16_t initial)
{
	return cksum(data, length, initial);
}

// Programs choose among these by CPU features. The compiler vectorises the loop above where that is faster, so all
// names share one implementation.
uint16_t cksum_sse2(unsigned char *data, size_t length, uint16_t initial)
{
	return cksum(data, length, initial);
}

uint16_t cksum_avx2(unsigned char *data, size_t length, uint16_t initial)
{
	return cksum(data, length, initial);
}

// RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
static uint16_t updated(uint16_t checksum, uint32_t old, uint32_t new)
{
	uint64_t sum = (uint16_t)~be16toh(checksum);

	old = ~old;
	sum += (old >> 16) + (old & 0xffff) + (new >> 16) + (new & 0xffff);
	return htobe16((uint16_t)~fold(sum));
}

// Writes `new_value` (host order) into the cell (network order) and updates the checksum.
void checksum_update_incremental_16(uint16_t *checksum, uint16_t *cell, uint16_t new_value)
{
	*checksum = updated(*checksum, 0xffff0000u | be16toh(*cell), new_value);
	*cell = htobe16(new_value);
}

void checksum_update_incremental_32(uint16_t *checksum, uint32_t *cell, uint32_t new_value)
{
	*checksum = updated(*checksum, be32toh(*cell), new_value);
	*cell = htobe32(new_value);
}

uint32_t tcp_pseudo_checksum(uint16_t *source, uint16_t *destination, int halfwords, int length)
{
	uint32_t sum = 6 + (uint32_t)length;

	for (int i = 0; i < halfwords; i++)
		sum += be16toh(source[i]) + be16toh(destination[i]);
	return sum;
}

#define NOT_TCP_OR_UDP 0xffff0001u
#define BAD_IPV4_HEADER 0xffff0002u

static uint32_t pseudo_sum(const unsigned char *addresses, size_t bytes, uint8_t protocol, size_t length)
{
	uint64_t sum = sum_bytes(addresses, bytes);

	sum = add_carry(sum, htobe16((uint16_t)protocol));
	sum = add_carry(sum, htobe16((uint16_t)(length >> 16)));
	return be16toh(fold(add_carry(sum, htobe16((uint16_t)length))));
}

// The folded sum over the pseudo-header of the TCP or UDP packet at `data`, or one of the two values above, which no
// folded sum can have.
uint32_t pseudo_header_initial(const int8_t *packet, size_t length)
{
	const unsigned char *data = (const unsigned char *)packet;
	size_t header = (size_t)(data[0] & 0x0f) * 4;
	uint8_t protocol;

	if (data[0] >> 4 == 4) {
		protocol = data[9];
		if (protocol != 6 && protocol != 17)
			return NOT_TCP_OR_UDP;
		if (header < 20 || header > length || fold(sum_bytes(data, header)) != 0xffff)
			return BAD_IPV4_HEADER;
		return pseudo_sum(data + 12, 8, protocol, length - header);
	}
	protocol = data[6];
	if (data[0] >> 4 != 6 || length < 40 || (protocol != 6 && protocol != 17))
		return NOT_TCP_OR_UDP;
	return pseudo_sum(data + 8, 32, protocol, length - 40);
}
