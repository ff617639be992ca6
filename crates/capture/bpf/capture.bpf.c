// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Shows packets to `brickmoon capture` and `brickmoon trace`. These programs run before and after another program, or a
 * function of the kernel, and exist only while such a command runs.
 *
 *     frame -> [before] -> program of the port -> [after] -> redirect, Linux, dropped
 *                 |                                  |
 *                 ARRIVED: frame                     DECIDED: verdict, counter that moved; SENT: frame as it leaves
 *
 * Loaded once per program of a port (xdp or tc), and once for what Linux and workers send. A packet that does not match
 * the filter costs a copy of its headers and the filter. Nothing here changes a packet.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "filter.h"
#include "kernel.h"

#define INTERFACES_MAX 16 /* logical interfaces of a port whose counters are compared; the same in points.rs */
#define COUNTERS_MAX 32
#define TC_REDIRECT 7

#define WANT_RECEIVED 1
#define WANT_SENT 2

/* What happened; the order is that of `Kind` in ../src/record.rs. */
enum kind {
	ARRIVED,	 /* at the program of a port */
	DECIDED,	 /* what that program did with it: `id` is that of ARRIVED */
	SENT,		 /* redirected by the program of a port */
	SENT_BY_LINUX,	 /* out of a queue of Linux */
	WORKER_SENDS,	 /* handed to the device by a worker */
	WORKER_SENT,	 /* what the device returned: `id` is that of WORKER_SENDS */
};

/* Before the frame's bytes. The same layout as in ../src/record.rs. */
struct record {
	__u64 time_ns; /* of CLOCK_MONOTONIC */
	__u64 id;
	__u32 ifindex;
	__u32 length;	/* of the whole frame, without the tag that follows here */
	__u32 captured; /* bytes of the frame behind this */
	__u32 to;	/* DECIDED: the interface that it is redirected to; 0 for none */
	__s32 verdict;
	__u32 queue;
	__u16 kind;
	__u16 counter; /* DECIDED: which counter of the program moved, from 1; 0 if none did */
	__u16 tag_type; /* of a VLAN tag that Linux keeps beside the frame, in network byte order; 0 without */
	__u16 tag;
};

/* A port: what is wanted of it, and its logical interfaces as the program counts them. */
struct port {
	__u32 wanted;
	__u32 count;
	__u32 interfaces[INTERFACES_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* The counters of the program that is watched: the loader replaces this with the program's own map. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[COUNTERS_MAX]);
} counts SEC(".maps");

/* Of one CPU. A program of a port is never interrupted by another one. */
struct cpu {
	__u8 looked_at[LOOKED_AT_MAX];
	__u64 packets; /* numbers of packets, for `id` */
	__u64 matches; /* for sampling */
	__u64 lost;	/* records that found no room */
	__u64 taken;   /* the packet between before and after; 0 if it is not wanted */
	__u64 before[INTERFACES_MAX][COUNTERS_MAX];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
} events SEC(".maps");

/* Packets that a worker's system call is handing to a device, by address of their sk_buff. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} sending SEC(".maps");

struct settings {
	__u32 snap_length;
	__u32 looked_at; /* bytes that the filter needs; 0 if every packet matches */
	__u32 one_in;	 /* sampling */
	__u32 counters;	 /* of the watched program, 0 if they are unknown */
	__u32 not_frames; /* a bit for each counter that does not count frames */
	__u32 namespace; /* of the ports: the inode of their network namespace */
	__u32 by_hand;	 /* size of the metadata with which the watched program runs over frames of its own; 0 for none */
	__u32 rewritten; /* whether DECIDED has the frame as it leaves */
	__u32 tap;	 /* number of this object file among those that are loaded, below 256 */
};

const volatile struct settings settings SEC(".rodata.settings") = {};

static __always_inline struct cpu *this_cpu(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&cpus, &zero);
}

static __always_inline __u64 next_id(struct cpu *cpu)
{
	return (__u64)bpf_get_smp_processor_id() << 48 | (__u64)settings.tap << 40 | ++cpu->packets;
}

static __always_inline __u32 captured(__u32 length)
{
	return length < settings.snap_length ? length : settings.snap_length;
}

static __always_inline const struct port *wanted(const struct net_device *dev, __u32 ifindex, __u32 what)
{
	const struct port *port = bpf_map_lookup_elem(&ports, &ifindex);

	if (!port || !(port->wanted & what))
		return NULL;
	/* Another namespace may have an interface of the same index. */
	return dev->nd_net.net->ns.inum == settings.namespace ? port : NULL;
}

/* Whether one of many packets that match is to be shown. */
static __always_inline bool is_sampled(struct cpu *cpu)
{
	return settings.one_in <= 1 || cpu->matches++ % settings.one_in == 0;
}

/* Runs the filter over a frame: `linear` bytes at `data`, without the tag, of `length` bytes in all. */
static __always_inline bool matching(struct cpu *cpu, const void *data, __u32 linear, __u32 length, __u32 tag)
{
	__u32 size = settings.looked_at, first = 0;

	if (!size)
		return true;
	if (tag) {
		bpf_probe_read_kernel(cpu->looked_at, 12, data);
		*(__u32 *)&cpu->looked_at[12] = tag;
		data += 12;
		linear = linear > 12 ? linear - 12 : 0;
		length += 4;
		first = 16;
	}
	size = size > first ? size - first : 0;
	if (size > linear)
		size = linear;
	if (size > LOOKED_AT_MAX - 16)
		size = LOOKED_AT_MAX - 16;
	if (bpf_probe_read_kernel(cpu->looked_at + first, size, data))
		return false;
	return matches(cpu->looked_at, length, first + size);
}

/* Remembers the counters of a port, to see which one moves. */
static __always_inline void note_counters(struct cpu *cpu, const struct port *port)
{
	for (__u32 i = 0; i < INTERFACES_MAX && i < port->count; i++) {
		__u32 key = port->interfaces[i];
		const __u64 *now = bpf_map_lookup_elem(&counts, &key);

		for (__u32 k = 0; now && k < COUNTERS_MAX && k < settings.counters; k++)
			cpu->before[i][k] = now[k];
	}
}

static __always_inline __u16 moved_counter(const struct cpu *cpu, const struct port *port)
{
	for (__u32 i = 0; i < INTERFACES_MAX && i < port->count; i++) {
		__u32 key = port->interfaces[i];
		const __u64 *now = bpf_map_lookup_elem(&counts, &key);

		for (__u32 k = 0; now && k < COUNTERS_MAX && k < settings.counters; k++)
			if (now[k] != cpu->before[i][k] && !(settings.not_frames >> k & 1))
				return k + 1;
	}
	return 0;
}

/* The interface that the program has redirected the packet to. */
static __always_inline __u32 redirected_to(bool xdp)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct bpf_redirect_info *info;

	if (bpf_core_field_exists(task->bpf_net_context)) {
		info = &task->bpf_net_context->ri;
	} else {
		/* Before Linux 6.11. */
		if (!&bpf_redirect_info)
			return 0;
		info = bpf_this_cpu_ptr(&bpf_redirect_info);
	}
	/* To a map: a worker's socket. */
	if (xdp && info->map_type)
		return 0;
	return info->tgt_index;
}

static __always_inline void count_lost(struct cpu *cpu, long error)
{
	if (error)
		__sync_fetch_and_add(&cpu->lost, 1);
}

/* Frames of XDP */

static __always_inline __u32 linear_of_xdp(const struct xdp_buff *xdp)
{
	return xdp->data_end - xdp->data;
}

static __always_inline __u32 length_of_xdp(const struct xdp_buff *xdp)
{
	__u32 length = linear_of_xdp(xdp);
	const struct skb_shared_info *more;

	if (bpf_core_field_exists(xdp->flags) && xdp->flags & XDP_FLAGS_HAS_FRAGS) {
		/* As xdp_get_shared_info_from_buff of <net/xdp.h>. */
		more = xdp->data_hard_start + xdp->frame_sz - ALIGNED_SHARED_INFO;
		length += BPF_CORE_READ(more, xdp_frags_size);
	}
	return length;
}

static __always_inline void show_xdp(struct cpu *cpu, struct xdp_buff *xdp, struct record *record)
{
	__u64 size = record->captured;

	record->time_ns = bpf_ktime_get_ns();
	count_lost(cpu, bpf_xdp_output(xdp, &events, size << 32 | BPF_F_CURRENT_CPU, record, sizeof(*record)));
}

SEC("fentry")
int BPF_PROG(before_xdp, struct xdp_buff *xdp)
{
	const struct net_device *dev = xdp->rxq->dev;
	__u32 ifindex = dev->ifindex, length;
	const struct port *port = wanted(dev, ifindex, WANT_RECEIVED);
	struct record record = {};
	struct cpu *cpu;

	if (!port)
		return 0;
	if (settings.by_hand && xdp->data - xdp->data_meta == settings.by_hand)
		return 0;
	cpu = this_cpu();
	if (!cpu)
		return 0;
	length = length_of_xdp(xdp);
	if (!matching(cpu, xdp->data, linear_of_xdp(xdp), length, 0) || !is_sampled(cpu))
		return 0;
	note_counters(cpu, port);
	cpu->taken = next_id(cpu);
	record.id = cpu->taken;
	record.ifindex = ifindex;
	record.queue = xdp->rxq->queue_index;
	record.length = length;
	record.captured = captured(length);
	record.kind = ARRIVED;
	show_xdp(cpu, xdp, &record);
	return 0;
}

static __always_inline void decided_xdp(struct cpu *cpu, struct xdp_buff *xdp, int verdict, __u32 to)
{
	__u32 ifindex = xdp->rxq->dev->ifindex, length = length_of_xdp(xdp);
	const struct port *port = bpf_map_lookup_elem(&ports, &ifindex);
	struct record record = {
		.id = cpu->taken, .ifindex = ifindex, .length = length, .to = to, .verdict = verdict, .kind = DECIDED,
	};

	cpu->taken = 0;
	if (port)
		record.counter = moved_counter(cpu, port);
	if (settings.rewritten && to)
		record.captured = captured(length);
	show_xdp(cpu, xdp, &record);
}

SEC("fexit")
int BPF_PROG(after_xdp, struct xdp_buff *xdp, int verdict)
{
	struct cpu *cpu = this_cpu();
	struct record record = {};
	__u32 to = 0, length;

	if (!cpu)
		return 0;
	if (verdict == XDP_REDIRECT)
		to = redirected_to(true);
	else if (verdict == XDP_TX)
		to = xdp->rxq->dev->ifindex;
	if (cpu->taken)
		decided_xdp(cpu, xdp, verdict, to);
	if (!to || !wanted(xdp->rxq->dev, to, WANT_SENT))
		return 0;
	length = length_of_xdp(xdp);
	if (!matching(cpu, xdp->data, linear_of_xdp(xdp), length, 0) || !is_sampled(cpu))
		return 0;
	record.id = next_id(cpu);
	record.ifindex = to;
	record.length = length;
	record.captured = captured(length);
	record.verdict = verdict;
	record.kind = SENT;
	show_xdp(cpu, xdp, &record);
	return 0;
}

/* Packets of Linux */

/* A tag that is not in the frame, as it would be there; 0 without. */
static __always_inline __u32 tag_of(const struct sk_buff *skb)
{
	if (!bpf_core_field_exists(skb->vlan_all) || !skb->vlan_all)
		return 0;
	return skb->vlan_proto | (__u32)bpf_htons(skb->vlan_tci) << 16;
}

static __always_inline bool matching_skb(struct cpu *cpu, const struct sk_buff *skb)
{
	return matching(cpu, skb->data, skb->len - skb->data_len, skb->len, tag_of(skb));
}

static __always_inline void show_skb(struct cpu *cpu, struct sk_buff *skb, struct record *record, bool frame)
{
	__u32 tag = tag_of(skb);
	__u64 size = frame ? captured(skb->len) : 0;

	record->length = skb->len;
	record->captured = size;
	record->tag_type = tag;
	record->tag = tag >> 16;
	record->time_ns = bpf_ktime_get_ns();
	count_lost(cpu, bpf_skb_output(skb, &events, size << 32 | BPF_F_CURRENT_CPU, record, sizeof(*record)));
}

SEC("fentry")
int BPF_PROG(before_tc, struct sk_buff *skb)
{
	const struct net_device *dev = skb->dev;
	__u32 ifindex = dev->ifindex;
	const struct port *port = wanted(dev, ifindex, WANT_RECEIVED);
	struct record record = { .ifindex = ifindex, .kind = ARRIVED };
	struct cpu *cpu = port ? this_cpu() : NULL;

	if (!port || !cpu || !matching_skb(cpu, skb) || !is_sampled(cpu))
		return 0;
	note_counters(cpu, port);
	cpu->taken = next_id(cpu);
	record.id = cpu->taken;
	show_skb(cpu, skb, &record, true);
	return 0;
}

/* What is redirected here leaves through a queue of Linux: sent_by_linux shows it. */
SEC("fexit")
int BPF_PROG(after_tc, struct sk_buff *skb, int verdict)
{
	struct record record = { .verdict = verdict, .kind = DECIDED };
	struct cpu *cpu = this_cpu();
	const struct port *port;

	if (!cpu || !cpu->taken)
		return 0;
	record.ifindex = skb->dev->ifindex;
	port = bpf_map_lookup_elem(&ports, &record.ifindex);
	if (port)
		record.counter = moved_counter(cpu, port);
	if (verdict == TC_REDIRECT)
		record.to = redirected_to(false);
	record.id = cpu->taken;
	cpu->taken = 0;
	show_skb(cpu, skb, &record, settings.rewritten && record.to);
	return 0;
}

/* Shows a packet that is sent through `dev`, if it is wanted; returns whether it is. */
static __always_inline bool show_sent(struct sk_buff *skb, const struct net_device *dev, struct record *record)
{
	struct cpu *cpu;

	record->ifindex = dev->ifindex;
	if (!wanted(dev, record->ifindex, WANT_SENT))
		return false;
	cpu = this_cpu();
	if (!cpu || !matching_skb(cpu, skb) || !is_sampled(cpu))
		return false;
	record->id = next_id(cpu);
	show_skb(cpu, skb, record, true);
	return true;
}

SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(sent_by_linux, struct sk_buff *skb, struct net_device *dev)
{
	struct record record = { .kind = SENT_BY_LINUX, .queue = skb->queue_mapping };

	show_sent(skb, dev, &record);
	return 0;
}

/* AF_XDP frames in copy mode, which no tap of Linux sees. If the device is full, the worker sends them again. */
SEC("fentry/__dev_direct_xmit")
int BPF_PROG(worker_sends, struct sk_buff *skb, __u16 queue)
{
	struct record record = { .kind = WORKER_SENDS, .queue = queue };
	__u64 address = (__u64)skb;

	if (show_sent(skb, skb->dev, &record))
		bpf_map_update_elem(&sending, &address, &record.id, BPF_ANY);
	return 0;
}

/* The packet may be gone by now. */
SEC("fexit/__dev_direct_xmit")
int BPF_PROG(worker_sent, struct sk_buff *skb, __u16 queue, int verdict)
{
	struct record record = { .kind = WORKER_SENT, .verdict = verdict };
	__u64 address = (__u64)skb, *id = bpf_map_lookup_elem(&sending, &address);
	struct cpu *cpu = this_cpu();

	if (!id || !cpu)
		return 0;
	record.id = *id;
	record.time_ns = bpf_ktime_get_ns();
	bpf_map_delete_elem(&sending, &address);
	count_lost(cpu, bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, &record, sizeof(record)));
	return 0;
}

/* For tests: the filter alone, over the bytes of a test run. */
SEC("xdp")
int filter_alone(struct xdp_md *ctx)
{
	__u64 length = bpf_xdp_get_buff_len(ctx), size = length;
	struct cpu *cpu = this_cpu();

	if (!cpu)
		return XDP_ABORTED;
	if (size > settings.looked_at)
		size = settings.looked_at;
	/* The verifier of Linux 6.1 wants both bounds, of the register that is passed on. */
	asm volatile("" : "+r"(size));
	if (size > LOOKED_AT_MAX)
		return XDP_ABORTED;
	asm volatile("" : "+r"(size));
	if (size > 0 && bpf_xdp_load_bytes(ctx, 0, cpu->looked_at, size))
		return XDP_ABORTED;
	return matches(cpu->looked_at, length, size) ? XDP_PASS : XDP_DROP;
}

char LICENSE[] SEC("license") = "GPL";
