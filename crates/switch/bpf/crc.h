/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* SCTP's checksum (RFC 9260 appendix A), which a sender may also leave to its device: the field is zero then. */
#pragma once

#define CRC_CHUNK 64 /* bytes read at once */
#define CRC_CHUNKS 1025 /* 64 KiB, and the rest */

struct sctp {
	__be16 ports[2];
	__u32 tag;
	__u32 checksum;
	__u8 type; /* of the first chunk */
	__u8 flags;
	__be16 length;
};

struct crc {
	struct xdp_md *ctx;
	__u32 at;
	__u32 left;
	__u32 rest;
	int failed;
};

/* What four bits become, by the polynomial 0x82f63b78 (Castagnoli's, with the lowest bit first). */
const __u32 crc_of_bits[16] SEC(".rodata.crc") = {
	0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
	0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
	0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
	0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

static __always_inline __u32 crc_of_byte(__u32 rest, __u8 byte)
{
	rest ^= byte;
	rest = rest >> 4 ^ crc_of_bits[rest & 15];
	return rest >> 4 ^ crc_of_bits[rest & 15];
}

static long crc_chunk(__u32 index, void *context)
{
	struct crc *of = context;
	__u32 size = of->left < CRC_CHUNK ? of->left : CRC_CHUNK, rest = of->rest;
	__u8 chunk[CRC_CHUNK] = {};

	if (!size)
		return 1;
	/* Tells the verifier what the lines above ensure: 1 to CRC_CHUNK. */
	asm volatile("" : "+r"(size));
	size = ((size - 1) & (CRC_CHUNK - 1)) + 1;
	if (bpf_xdp_load_bytes(of->ctx, of->at, chunk, size)) {
		of->failed = 1;
		return 1;
	}
	/* Without a branch for what lies behind the end. */
	for (int i = 0; i < CRC_CHUNK; i++) {
		__s32 is_there = (i - (__s32)size) >> 31;

		asm volatile("" : "+r"(is_there));
		rest = (crc_of_byte(rest, chunk[i]) & is_there) | (rest & ~is_there);
	}
	of->rest = rest;
	of->at += size;
	of->left -= size;
	return !of->left;
}

/*
 * Completes an SCTP packet whose checksum is zero, and whose first chunk has a possible length: zeros somewhere in a
 * payload are no packet.
 */
__noinline int complete_sctp(struct xdp_md *ctx, __u32 start, __u32 length)
{
	struct crc of = { .ctx = ctx, .at = start, .left = length, .rest = ~0u };
	struct sctp sctp;
	__u32 chunk;

	if (length < sizeof(sctp) || bpf_xdp_load_bytes(ctx, start, &sctp, sizeof(sctp)) || sctp.checksum)
		return false;
	chunk = bpf_ntohs(sctp.length);
	if (chunk < 4 || chunk > length - __builtin_offsetof(struct sctp, type))
		return false;
	bpf_loop(CRC_CHUNKS, crc_chunk, &of, 0);
	if (of.failed || of.left)
		return false;
	of.rest = ~of.rest;
	return !bpf_xdp_store_bytes(ctx, start + __builtin_offsetof(struct sctp, checksum), &of.rest, sizeof(of.rest));
}
