// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Writes the next packet over the last one, and goes on in the program whose cost is asked for: see cost.rs.
 *
 * Stores are of the words that programs load: a load that spans two young stores waits for both, which no packet
 * from a card does.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define DESTINATIONS (1 << 20)

struct addresses {
	__u64 of[DESTINATIONS * 2]; /* IPv6; or the one of IPv4, then the sum of the rest of the header */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct addresses);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");

struct settings {
	__u64 at;
	__u64 mask;
	__u32 program;
	__u32 ipv6;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

#define BYTES 54 /* the shorter of both families' that is looked at */
#define BYTE(frame, at) (*(__u8 *)((frame) + (at)))
#define HALF(frame, at) (*(__u16 *)((frame) + (at)))
#define WORD(frame, at) (*(__u32 *)((frame) + (at)))
#define LONG(frame, at) (*(__u64 *)((frame) + (at)))

SEC("xdp.frags")
int next_packet(struct xdp_md *ctx)
{
	void *frame = (void *)(long)ctx->data;
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	struct addresses *all = bpf_map_lookup_elem(&addresses, &zero);
	__u64 at;

	if (!set || !all || frame + BYTES > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	at = set->at++ & set->mask & (DESTINATIONS - 1);
	LONG(frame, 0) = bpf_cpu_to_be64(0x0200000000010200);
	if (set->ipv6) {
		BYTE(frame, 21) = 64;
		LONG(frame, 38) = all->of[2 * at];
		LONG(frame, 46) = all->of[2 * at + 1];
	} else {
		__u32 destination = all->of[2 * at], sum = all->of[2 * at + 1];

		sum += (destination & 0xffff) + (destination >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		WORD(frame, 22) = 64 | IPPROTO_UDP << 8 | (~sum & 0xffff) << 16;
		WORD(frame, 30) = destination;
	}
	bpf_tail_call(ctx, &programs, set->program);
	return XDP_ABORTED;
}

/* The least that forwarding can be, as `floor` of `bench kernel`. */
SEC("xdp.frags")
int fixed_next_hop(struct xdp_md *ctx)
{
	void *frame = (void *)(long)ctx->data;

	if (frame + BYTES > (void *)(long)ctx->data_end)
		return XDP_PASS;
	if (HALF(frame, 12) == bpf_htons(ETH_P_IP)) {
		__u32 sum = HALF(frame, 24) + (__u32)bpf_htons(0x0100);

		HALF(frame, 24) = sum + (sum >= 0xffff);
		BYTE(frame, 22)--;
	} else {
		BYTE(frame, 21)--;
	}
	LONG(frame, 0) = 0x0202090909090902;
	WORD(frame, 8) = 0x02020202;
	return bpf_redirect(77, 0);
}

char LICENSE[] SEC("license") = "GPL";
