/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Internet checksums (RFC 1071), and checksums that a sender has left to its device.
 *
 * On a veth there is no device that would complete them. Linux marks such a packet in a way that XDP does not see and
 * that a redirect would lose. There is one mark in a packet: either for the outermost TCP or UDP header, whose field
 * then has the pseudo-header's sum; or for a header inside a tunnel or behind extension headers.
 *
 *     TCP                             partial if its field has that value: TCP carries no tunnel
 *     UDP, too short for a packet     the same
 *     other UDP                       partial unless its own checksum is right: Linux computes that of a tunnel as if the
 *                                     one inside were complete; without a checksum nobody can tell
 *     SCTP                            partial if its field is zero
 *     ICMP, ESP, OSPF, fragments      complete: Linux never leaves these to a device
 *     extension headers               may be partial
 *     everything else                 the same, unless it is too short for a packet
 *
 * One correct packet in 65,536 has the value of a partial one by chance, and is left to Linux as well.
 */
#pragma once

#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_endian.h>

/* Whether a sum of a few words, not 0, is all ones in 16 bits: a multiple of them, with 17 bits left here. */
static __always_inline bool is_ones(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff || sum == 2 * 0xffff;
}

/* Whether the checksum of a TCP or UDP segment is only that of its pseudo-header, whose addresses sum to `sum`. */
static __always_inline bool is_partial(__u64 sum, __u8 protocol, void *segment, __u32 length, void *end)
{
	__u16 *field = segment + (protocol == IPPROTO_TCP ? 16 : 6);

	if ((protocol != IPPROTO_TCP && protocol != IPPROTO_UDP) || (void *)(field + 1) > end)
		return false;
	return *field && is_ones(sum + bpf_htons(protocol) + bpf_htons(length) + (0xffff - *field));
}

#define IPPROTO_OF_OSPF 89
/* The shortest packet with a checksum that can be left to a device: an IPv4 and a UDP header. */
#define PACKET_MIN 28
#define UDP_HEADER 8

/* What is_whole_datagram adds at once, and how often at most: more than XDP gets in one buffer. */
#define SUM_STEP 64
#define SUM_STEPS 64

/* The plain sum of a number of bytes that is constant and even. */
static __always_inline __u64 words_sum(const void *at, __u32 bytes)
{
	__u64 sum = 0;

	if (bytes == 2)
		return *(const __u16 *)at;
#pragma unroll
	for (__u32 i = 0; i < SUM_STEP / 4; i++)
		if (i < bytes / 4)
			sum += ((const __u32 *)at)[i];
	return sum;
}

/*
 * Whether the checksum of `length` bytes, which follow a pseudo-header with this sum, is right. The pieces whose size
 * depends on the length come first: 2, 4, .. 32 bytes. Offsets are calculated from the length for each of them, so that
 * the verifier need not follow every combination.
 */
static __noinline int is_whole_datagram(void *data, void *end, __u64 sum, __u32 length)
{
	void *at;

	if (length & 1) {
		at = data + (length & 0xffe);
		if (at + 1 > end)
			return false;
		sum += bpf_htons(*(__u8 *)at << 8);
	}
#pragma unroll
	for (__u32 size = 2; size < SUM_STEP; size *= 2) {
		__u32 has = length / size & 1, before = length & (size - 2);

		if (!has)
			continue;
		at = data + before;
		if (at + size > end)
			return false;
		sum += words_sum(at, size);
	}
	for (__u32 i = 0; i < SUM_STEPS; i++) {
		if (i >= length / SUM_STEP)
			return is_ones(sum);
		at = data + (length & (SUM_STEP - 2)) + i * SUM_STEP;
		if (at + SUM_STEP > end)
			return false;
		sum += words_sum(at, SUM_STEP);
	}
	return false;
}

/* Whether only Linux can tell that a UDP datagram with room for a packet has nothing to be completed. */
static __always_inline bool may_be_tunnel(__u64 sum, void *datagram, __u32 length, void *end)
{
	__be16 *words = datagram;

	if (datagram + UDP_HEADER > end || words[2] != bpf_htons(length) || !words[3])
		return true;
	return !is_whole_datagram(datagram, end, sum + bpf_htons(IPPROTO_UDP) + bpf_htons(length), length);
}

/* The same for what is neither TCP nor a short UDP datagram; `upper` follows the IP header. */
static __noinline int may_be_partial_inside(__u64 sum, __u32 protocol_length, void *upper, void *end)
{
	__u32 protocol = protocol_length >> 16, length = protocol_length & 0xffff;
	__u32 *crc = upper + 8; /* RFC 9260 3.1 */

	switch (protocol) {
	case IPPROTO_UDP:
		return may_be_tunnel(sum, upper, length, end);
	case IPPROTO_SCTP:
		return (void *)(crc + 1) > end || !*crc;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
	case IPPROTO_ESP:
	case IPPROTO_FRAGMENT:
	case IPPROTO_OF_OSPF:
		return false;
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
		return true;
	}
	return length >= PACKET_MIN;
}

/*
 * Whether a checksum of a packet may have been left to a device: its own or that of a packet inside it. `sum` is that of
 * the addresses, `upper` follows the IP header.
 */
static __always_inline bool may_be_partial(__u64 sum, __u8 protocol, void *upper, __u32 length, void *end)
{
	if (is_partial(sum, protocol, upper, length, end))
		return true;
	if (protocol == IPPROTO_TCP || (protocol == IPPROTO_UDP && length < UDP_HEADER + PACKET_MIN))
		return false;
	return may_be_partial_inside(sum, (__u32)protocol << 16 | (length & 0xffff), upper, end);
}
