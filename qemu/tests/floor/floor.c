// SPDX-License-Identifier: GPL-2.0
/*
 * The floor: the least that a probe of a block event can be in C. Four probes, on Q, G, D and C, write the
 * record of blkrelay.h into a buffer of their CPU, and do nothing else: no filter, no names, no reader, no
 * sub-buffers. What blkrelay's probes cost is compared with these, so each is as tight as it can be made:
 * fields are stored where they belong, at their own width, and words that are not needed are not built.
 *
 * With empty=1 the probes return at once: what is left is the cost of being called.
 *
 * For the lab only. Not part of blkrelay.
 */
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/tracepoint.h>
#include <linux/vmalloc.h>

#include <trace/events/block.h>

#include <asm/msr.h>
#include <asm/tsc.h>

#include "blkrelay.h"

static unsigned long bytes = 16 << 20;
module_param(bytes, ulong, 0444);
MODULE_PARM_DESC(bytes, "size of each CPU's buffer");

static bool empty;
module_param(empty, bool, 0444);
MODULE_PARM_DESC(empty, "the probes do nothing");

/*
 * struct blkrelay_record, the packed words by their parts: x86-64 is little-endian. @queue is the upper end
 * of @place, and is stored after it, over the upper bits of the sector.
 */
struct record {
	u64 time;
	union {
		u64 sector;
		struct {
			u16 sector_low[3];
			u16 queue;
		};
	};
	u32 bytes;
	u32 opf;
	union {
		u32 bio;
		struct {
			u16 tag;
			u16 hctx;
		};
	};
	union {
		u32 pid;
		struct {
			u16 head;
			u8 status;
			u8 action;
		};
	};
};

static_assert(sizeof(struct record) == BLKRELAY_RECORD_SIZE);
static_assert(offsetof(struct record, queue) == offsetof(struct blkrelay_record, place) + 6);
static_assert(offsetof(struct record, action) == offsetof(struct blkrelay_record, who) + 3);

/*
 * @next is counted up for each event, whether there is room or not: how many were lost is in it, too.
 */
struct cursor {
	unsigned long next;
	unsigned long end;
	void *start;
};

static DEFINE_PER_CPU_ALIGNED(struct cursor, cursor);

/* Interrupts are off from here until the record is written. */
static __always_inline struct record *reserve(void)
{
	return (struct record *)this_cpu_add_return(cursor.next, sizeof(struct record)) - 1;
}

/* raw, so that the compiler may compare with memory: nothing moves the task. */
static __always_inline bool fits(const struct record *r)
{
	return (unsigned long)r < raw_cpu_read(cursor.end);
}

static __always_inline void record_bio(struct bio *bio, u8 action)
{
	struct record *r;
	unsigned long flags;

	local_irq_save(flags);
	r = reserve();
	if (likely(fits(r))) {
		r->time = rdtsc_ordered();
		r->sector = bio->bi_iter.bi_sector;
		r->queue = bio->bi_bdev->bd_queue->id;
		r->bytes = bio->bi_iter.bi_size;
		r->opf = bio->bi_opf;
		r->bio = (unsigned long)bio >> BLKRELAY_ID_BIO_SHIFT;
		r->pid = current->pid;
		r->action = action;
	}
	local_irq_restore(flags);
}

/*
 * What the two events of a request have in common. The ONCEs say nothing about other CPUs: they have the
 * compiler branch around a second store that is hardly ever due, and choose the tag without a branch.
 */
static __always_inline void fill_request(struct record *r, struct request *rq)
{
	u32 opf;
	int tag;

	r->time = rdtsc_ordered();
	r->sector = rq->__sector;
	opf = rq->cmd_flags;
	r->opf = opf;
	if (unlikely((opf & 0xfe) == REQ_OP_DRV_IN))
		WRITE_ONCE(r->sector, BLKRELAY_SECTOR_NONE);
	r->queue = rq->q->id;
	tag = READ_ONCE(rq->tag);
	if (rq->internal_tag >= 0)
		tag = rq->internal_tag;
	r->tag = tag;
	r->hctx = rq->mq_hctx->queue_num;
}

static void floor_bio_queue(void *data, struct bio *bio)
{
	record_bio(bio, BLKRELAY_Q);
}

static void floor_getrq(void *data, struct bio *bio)
{
	record_bio(bio, BLKRELAY_G);
}

static void floor_rq_issue(void *data, struct request *rq)
{
	struct record *r;
	unsigned long flags;

	local_irq_save(flags);
	r = reserve();
	if (likely(fits(r))) {
		fill_request(r, rq);
		r->bytes = rq->__data_len;
		r->pid = current->pid;
		r->action = BLKRELAY_D;
	}
	local_irq_restore(flags);
}

static void floor_rq_complete(void *data, struct request *rq, blk_status_t error,
			      unsigned int nr_bytes)
{
	struct record *r;
	unsigned long flags;

	local_irq_save(flags);
	r = reserve();
	if (likely(fits(r))) {
		r->bytes = nr_bytes;
		r->status = (__force u8)error;
		r->head = (unsigned long)rq->bio >> BLKRELAY_ID_BIO_SHIFT;
		r->action = BLKRELAY_C;
		fill_request(r, rq);
	}
	local_irq_restore(flags);
}

static void empty_bio_queue(void *data, struct bio *bio)
{
}

static void empty_getrq(void *data, struct bio *bio)
{
}

static void empty_rq_issue(void *data, struct request *rq)
{
}

static void empty_rq_complete(void *data, struct request *rq, blk_status_t error,
			      unsigned int nr_bytes)
{
}

static struct probe {
	const char *name;
	void *full;
	void *empty;
	struct tracepoint *tracepoint;
	bool registered;
} probes[] = {
	{ "block_bio_queue", floor_bio_queue, empty_bio_queue },
	{ "block_getrq", floor_getrq, empty_getrq },
	{ "block_rq_issue", floor_rq_issue, empty_rq_issue },
	{ "block_rq_complete", floor_rq_complete, empty_rq_complete },
};

/* Never called: the compiler compares each probe with its tracepoint. */
static void __maybe_unused check_signatures(void)
{
	check_trace_callback_type_block_bio_queue(floor_bio_queue);
	check_trace_callback_type_block_bio_queue(empty_bio_queue);
	check_trace_callback_type_block_getrq(floor_getrq);
	check_trace_callback_type_block_getrq(empty_getrq);
	check_trace_callback_type_block_rq_issue(floor_rq_issue);
	check_trace_callback_type_block_rq_issue(empty_rq_issue);
	check_trace_callback_type_block_rq_complete(floor_rq_complete);
	check_trace_callback_type_block_rq_complete(empty_rq_complete);
}

static void find(struct tracepoint *tracepoint, void *unused)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (!strcmp(tracepoint->name, probes[i].name))
			probes[i].tracepoint = tracepoint;
}

static void *probe_function(const struct probe *p)
{
	return empty ? p->empty : p->full;
}

static void unregister_probes(void)
{
	struct probe *p;

	for (p = probes; p < probes + ARRAY_SIZE(probes); p++)
		if (p->registered)
			tracepoint_probe_unregister(p->tracepoint, probe_function(p), NULL);
	tracepoint_synchronize_unregister();
}

static int register_probes(void)
{
	struct probe *p;
	int ret;

	for_each_kernel_tracepoint(find, NULL);
	for (p = probes; p < probes + ARRAY_SIZE(probes); p++) {
		if (!p->tracepoint)
			return -ENOENT;
		ret = tracepoint_probe_register(p->tracepoint, probe_function(p), NULL);
		if (ret)
			return ret;
		p->registered = true;
	}
	return 0;
}

/* ---- What was recorded; the disks must be idle ------------------------------------------------ */

static struct dentry *dir;

static unsigned long end_of(const struct cursor *c)
{
	return min(c->next, c->end);
}

static ssize_t records_read(struct file *file, char __user *to, size_t count, loff_t *pos)
{
	struct cursor *c = file->private_data;

	return simple_read_from_buffer(to, count, pos, c->start,
				       end_of(c) - (unsigned long)c->start);
}

static const struct file_operations records_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.read = records_read,
	.llseek = default_llseek,
};

static int status_show(struct seq_file *m, void *unused)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct cursor *c = per_cpu_ptr(&cursor, cpu);

		seq_printf(m, "cpu=%u events=%lu lost=%lu\n", cpu,
			   (end_of(c) - (unsigned long)c->start) / sizeof(struct record),
			   (c->next - end_of(c)) / sizeof(struct record));
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(status);

static void free_buffers(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		vfree(per_cpu_ptr(&cursor, cpu)->start);
}

static int alloc_buffers(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct cursor *c = per_cpu_ptr(&cursor, cpu);

		/* Zeroed, so that no page is touched for the first time in a probe. */
		c->start = vzalloc(bytes);
		if (!c->start)
			return -ENOMEM;
		c->next = (unsigned long)c->start;
		c->end = c->next + rounddown(bytes, sizeof(struct record));
	}
	return 0;
}

static int __init floor_init(void)
{
	unsigned int cpu;
	char name[16];
	int ret;

	ret = alloc_buffers();
	if (!ret)
		ret = register_probes();
	if (ret) {
		unregister_probes();
		free_buffers();
		return ret;
	}
	dir = debugfs_create_dir("floor", NULL);
	debugfs_create_file("status", 0400, dir, NULL, &status_fops);
	for_each_possible_cpu(cpu) {
		snprintf(name, sizeof(name), "cpu%u", cpu);
		debugfs_create_file(name, 0400, dir, per_cpu_ptr(&cursor, cpu), &records_fops);
	}
	return 0;
}

static void __exit floor_exit(void)
{
	debugfs_remove(dir);
	unregister_probes();
	free_buffers();
}

module_init(floor_init);
module_exit(floor_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("the least that a probe of a block event can be, for the lab");
