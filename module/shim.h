/* SPDX-License-Identifier: GPL-2.0 */
/*
 * blkrelay: what the C shim and the Rust module share. bindgen reads this file, and through it the
 * contract (blkrelay.h) and the declarations of <linux/relay.h>.
 *
 * Only what Rust cannot say on this kernel stands in the shim: per-CPU variables, static inlines,
 * macros, and the instruction-level fast path that depends on them.
 */
#ifndef _BLKRELAY_SHIM_H
#define _BLKRELAY_SHIM_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/fs.h>
#include <linux/poll.h>
#include <linux/relay.h>
#include <linux/sched.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint.h>

#include "blkrelay.h"

/* Entries of the direct-mapped per-CPU tables below. Powers of two. */
#define BLKRELAY_TASKS	16
#define BLKRELAY_QUEUES	16

/**
 * struct blkrelay_seen - a task that this sub-buffer has named
 * @comm: its comm as it was named
 * @pid:  its thread id, or BLKRELAY_NOBODY
 * @reserved: makes an entry's address a shift
 */
struct blkrelay_seen {
	u64 comm[2];
	u32 pid;
	u32 reserved[3];
};

/**
 * struct blkrelay_submitter - a task as it was when it did something
 * @pid:  thread id in the initial pid namespace
 * @tgid: process id likewise
 * @comm: its comm
 */
struct blkrelay_submitter {
	u32 pid;
	u32 tgid;
	u64 comm[2];
};

/* No thread and no queue has this id. */
#define BLKRELAY_NOBODY	0xffffffffu /* all bytes alike */
#define BLKRELAY_NAMES_MIX 0x5bd1e995 /* odd, and of 31 bits, which one instruction multiplies by */

/**
 * struct blkrelay_cpu - one CPU's end of the stream
 * @pos:     next free slot
 * @end:     end of the sub-buffer; with @pos NULL when no sub-buffer has been begun
 * @queue:   the queue whose events may go by the fast path (fast.rs): it is traced, this sub-buffer has named
 *	     it, and nothing more is to be asked; or BLKRELAY_NOBODY
 * @ends:    the same of the ends of an I/O (Q, D, C), of which a trigger may ask more
 * @pid:     the task whose events may go by the fast path: this sub-buffer has named it; or BLKRELAY_NOBODY
 * @side:    slots of side records in this sub-buffer
 * @comm:    @pid's comm as it was named
 * @names:   @comm as a span compares it (span.rs): the first half and BLKRELAY_NAMES_MIX times the second
 * @last:    latest time given out (kept up for BLKRELAY_CLOCK_MONO only)
 * @cpu:     which CPU this is
 * @queues:  queue ids that this sub-buffer has named, direct-mapped; all ones: none
 * @tasks:   tasks that this sub-buffer has named, direct-mapped
 * @filter:  what this CPU's events have to pass besides the map of queues (filter.rs); not asked on the fast
 *	     path
 * @buf:     the relay buffer, or NULL if none could be made
 * @subbuf:  head of the sub-buffer that has been begun, or NULL
 * @epoch:   configuration epoch of what is written next
 * @stopped: the flight recorder has stopped on this CPU: its events are none of the trace's
 * @seq:     number of that sub-buffer, or of the next one
 * @events:  events in all finished sub-buffers
 * @lost:    events that found no room
 * @lost_first: @lost_last: their times since the last sub-buffer was begun, 0 if none
 *
 * Written by its own CPU with interrupts off; by others only while no probe can run there (the CPU
 * is offline, or all probes are unregistered and synchronised).
 */
struct blkrelay_cpu {
	u64 *pos;
	u64 *end;
	u32 queue;
	u32 ends;
	u32 pid;
	u32 side;
	u64 comm[2];
	u64 names;
	u64 last;
	u32 cpu;
	u32 reserved;
	u32 queues[BLKRELAY_QUEUES];
	struct blkrelay_seen tasks[BLKRELAY_TASKS];
	const void *filter;
	struct rchan_buf *buf;
	struct blkrelay_subbuf *subbuf;
	u32 epoch;
	u32 stopped;
	u64 seq;
	u64 events;
	u64 lost;
	u64 lost_first;
	u64 lost_last;
};

/**
 * struct blkrelay_extra - a side record that belongs to one event and follows it: from or detail
 * @slot: as it is written
 */
struct blkrelay_extra {
	u64 slot[4];
};

/**
 * struct blkrelay_resolved - a block device that was asked for
 * @q:     its queue, with a reference that is the caller's
 * @start: first sector on the whole disk
 * @sectors: length; 0: it is the whole disk
 */
struct blkrelay_resolved {
	struct request_queue *q;
	u64 start;
	u64 sectors;
};

/*
 * Where Rust believes a kernel field to be is compared with this at compile time (layout.rs):
 * bindgen has been seen to drop the alignment of a member, which moves every later field in
 * silence.
 */
#define FIELD_AT(type, field)	offsetof(struct type, field)

enum blkrelay_layout {
	BLKRELAY_AT_request_q = FIELD_AT(request, q),
	BLKRELAY_AT_request_mq_hctx = FIELD_AT(request, mq_hctx),
	BLKRELAY_AT_request_cmd_flags = FIELD_AT(request, cmd_flags),
	BLKRELAY_AT_request_tag = FIELD_AT(request, tag),
	BLKRELAY_AT_request_internal_tag = FIELD_AT(request, internal_tag),
	BLKRELAY_AT_request___data_len = FIELD_AT(request, __data_len),
	BLKRELAY_AT_request___sector = FIELD_AT(request, __sector),
	BLKRELAY_AT_request_bio = FIELD_AT(request, bio),
	BLKRELAY_AT_request_biotail = FIELD_AT(request, biotail),
	BLKRELAY_AT_request_rq_flags = FIELD_AT(request, rq_flags),
	BLKRELAY_AT_request_start_time_ns = FIELD_AT(request, start_time_ns),
	BLKRELAY_AT_blk_mq_hw_ctx_queue_num = FIELD_AT(blk_mq_hw_ctx, queue_num),
	BLKRELAY_AT_blk_mq_hw_ctx_tags = FIELD_AT(blk_mq_hw_ctx, tags),
	BLKRELAY_AT_blk_mq_hw_ctx_sched_tags = FIELD_AT(blk_mq_hw_ctx, sched_tags),
	BLKRELAY_AT_blk_mq_tags_nr_tags = FIELD_AT(blk_mq_tags, nr_tags),
	BLKRELAY_AT_blk_mq_tags_nr_reserved_tags = FIELD_AT(blk_mq_tags, nr_reserved_tags),
	BLKRELAY_AT_task_struct_pid = FIELD_AT(task_struct, pid),
	BLKRELAY_AT_task_struct_tgid = FIELD_AT(task_struct, tgid),
	BLKRELAY_AT_task_struct_comm = FIELD_AT(task_struct, comm),
	BLKRELAY_AT_bio_bi_next = FIELD_AT(bio, bi_next),
	BLKRELAY_AT_bio_bi_private = FIELD_AT(bio, bi_private),
	BLKRELAY_AT_bio_bi_bdev = FIELD_AT(bio, bi_bdev),
	BLKRELAY_AT_bio_bi_opf = FIELD_AT(bio, bi_opf),
	BLKRELAY_AT_bio_bi_status = FIELD_AT(bio, bi_status),
	BLKRELAY_AT_bio_bi_flags = FIELD_AT(bio, bi_flags),
	BLKRELAY_AT_bio_bi_ioprio = FIELD_AT(bio, bi_ioprio),
	BLKRELAY_AT_bio_bi_io_vec = FIELD_AT(bio, bi_io_vec),
	BLKRELAY_AT_bio_bi_write_hint = FIELD_AT(bio, bi_write_hint),
	BLKRELAY_AT_bio_bi_iter = FIELD_AT(bio, bi_iter),
	BLKRELAY_AT_bvec_iter_bi_sector = FIELD_AT(bvec_iter, bi_sector),
	BLKRELAY_AT_bvec_iter_bi_size = FIELD_AT(bvec_iter, bi_size),
	BLKRELAY_AT_block_device_bd_start_sect = FIELD_AT(block_device, bd_start_sect),
	BLKRELAY_AT_block_device_bd_dev = FIELD_AT(block_device, bd_dev),
	BLKRELAY_AT_block_device_bd_queue = FIELD_AT(block_device, bd_queue),
	BLKRELAY_AT_block_device_bd_nr_sectors = FIELD_AT(block_device, bd_nr_sectors),
	BLKRELAY_AT_block_device___bd_flags = FIELD_AT(block_device, __bd_flags),
	BLKRELAY_AT_request_queue_id = FIELD_AT(request_queue, id),
	BLKRELAY_AT_request_queue_mq_ops = FIELD_AT(request_queue, mq_ops),
	BLKRELAY_AT_request_queue_disk = FIELD_AT(request_queue, disk),
	BLKRELAY_AT_request_queue_limits = FIELD_AT(request_queue, limits),
	BLKRELAY_AT_request_queue_nr_hw_queues = FIELD_AT(request_queue, nr_hw_queues),
	BLKRELAY_AT_queue_limits_logical_block_size = FIELD_AT(queue_limits, logical_block_size),
	BLKRELAY_AT_gendisk_major = FIELD_AT(gendisk, major),
	BLKRELAY_AT_gendisk_first_minor = FIELD_AT(gendisk, first_minor),
	BLKRELAY_AT_gendisk_disk_name = FIELD_AT(gendisk, disk_name),
	BLKRELAY_AT_gendisk_part0 = FIELD_AT(gendisk, part0),
	BLKRELAY_AT_gendisk_diskseq = FIELD_AT(gendisk, diskseq),
	BLKRELAY_AT_rchan_buf_start = FIELD_AT(rchan_buf, start),
	BLKRELAY_AT_rchan_buf_data = FIELD_AT(rchan_buf, data),
	BLKRELAY_AT_rchan_buf_offset = FIELD_AT(rchan_buf, offset),
	BLKRELAY_AT_rchan_buf_subbufs_produced = FIELD_AT(rchan_buf, subbufs_produced),
	BLKRELAY_AT_rchan_buf_subbufs_consumed = FIELD_AT(rchan_buf, subbufs_consumed),
	BLKRELAY_AT_rchan_buf_chan = FIELD_AT(rchan_buf, chan),
	BLKRELAY_AT_rchan_private_data = FIELD_AT(rchan, private_data),
	BLKRELAY_AT_rchan_callbacks_subbuf_start = FIELD_AT(rchan_callbacks, subbuf_start),
	BLKRELAY_AT_rchan_callbacks_create_buf_file = FIELD_AT(rchan_callbacks, create_buf_file),
	BLKRELAY_AT_rchan_callbacks_remove_buf_file = FIELD_AT(rchan_callbacks, remove_buf_file),
	BLKRELAY_AT_tracepoint_name = FIELD_AT(tracepoint, name),
	BLKRELAY_AT_inode_i_private = FIELD_AT(inode, i_private),
	BLKRELAY_AT_file_private_data = FIELD_AT(file, private_data),
	BLKRELAY_AT_file_operations_owner = FIELD_AT(file_operations, owner),
	BLKRELAY_AT_file_operations_llseek = FIELD_AT(file_operations, llseek),
	BLKRELAY_AT_file_operations_read = FIELD_AT(file_operations, read),
	BLKRELAY_AT_file_operations_write = FIELD_AT(file_operations, write),
	BLKRELAY_AT_file_operations_poll = FIELD_AT(file_operations, poll),
	BLKRELAY_AT_file_operations_open = FIELD_AT(file_operations, open),
	BLKRELAY_AT_file_operations_release = FIELD_AT(file_operations, release),
	BLKRELAY_AT_system_time_snapshot_cycles = FIELD_AT(system_time_snapshot, cycles),
	BLKRELAY_AT_system_time_snapshot_systime = FIELD_AT(system_time_snapshot, systime),
	BLKRELAY_AT_system_time_snapshot_monoraw = FIELD_AT(system_time_snapshot, monoraw),
	BLKRELAY_AT_system_time_snapshot_cs_id = FIELD_AT(system_time_snapshot, cs_id),
};

/* Numbers of the kernel's that Rust code without kernel types repeats; compared in layout.rs. */
enum blkrelay_values {
	BLKRELAY_REQ_PREFLUSH = (u32)REQ_PREFLUSH,
	BLKRELAY_REQ_OP_READ = (u32)REQ_OP_READ,
	BLKRELAY_REQ_OP_WRITE = (u32)REQ_OP_WRITE,
	BLKRELAY_REQ_OP_FLUSH = (u32)REQ_OP_FLUSH,
	BLKRELAY_REQ_OP_DISCARD = (u32)REQ_OP_DISCARD,
	BLKRELAY_REQ_OP_SECURE_ERASE = (u32)REQ_OP_SECURE_ERASE,
	BLKRELAY_REQ_OP_ZONE_APPEND = (u32)REQ_OP_ZONE_APPEND,
	BLKRELAY_REQ_OP_WRITE_ZEROES = (u32)REQ_OP_WRITE_ZEROES,
	BLKRELAY_REQ_OP_ZONE_OPEN = (u32)REQ_OP_ZONE_OPEN,
	BLKRELAY_REQ_OP_ZONE_CLOSE = (u32)REQ_OP_ZONE_CLOSE,
	BLKRELAY_REQ_OP_ZONE_FINISH = (u32)REQ_OP_ZONE_FINISH,
	BLKRELAY_REQ_OP_ZONE_RESET = (u32)REQ_OP_ZONE_RESET,
	BLKRELAY_REQ_OP_ZONE_RESET_ALL = (u32)REQ_OP_ZONE_RESET_ALL,
	BLKRELAY_REQ_OP_DRV_IN = (u32)REQ_OP_DRV_IN,
	BLKRELAY_REQ_OP_DRV_OUT = (u32)REQ_OP_DRV_OUT,
	BLKRELAY_MQ_REQ_RESERVED = (u32)BLK_MQ_REQ_RESERVED,
	BLKRELAY_STS_AGAIN = (u32)BLK_STS_AGAIN,
	BLKRELAY_RQF_IO_STAT = (u32)RQF_IO_STAT,
	BLKRELAY_RQF_FLUSH_SEQ = (u32)RQF_FLUSH_SEQ,
};

/*
 * Recording one event on this CPU, off the fast path. @place, @size_op and @id_who are the last three words
 * of a struct blkrelay_record but for the pid, which is added here; @of is what the event is of: its action
 * tells whether that is a bio, a request or a queue (record.rs, stream.rs). @extra follows the event, unless
 * it is NULL. @by is whom it names: NULL stands for the current task, and for nobody at a completion.
 */
void blkrelay_emit(u64 place, u64 size_op, u64 id_who, void *of, const struct blkrelay_extra *extra,
		   const struct blkrelay_submitter *by);

/* stream.rs: the event passes the filter of this CPU. Interrupts are off. */
bool blkrelay_pass(const struct blkrelay_cpu *cpu, u64 place, u64 size_op, u64 id_who, void *of,
		   const struct blkrelay_extra *extra);

/* stream.rs: whether the queue is traced at this moment. */
bool blkrelay_is_traced(u32 queue);

/*
 * stream.rs: an event that does not fit, or whose task or queue has not been named. Interrupts are
 * off. Returns its time, or 0 if it was not recorded.
 */
u64 blkrelay_emit_slow(struct blkrelay_cpu *cpu, u64 place, u64 size_op, u64 id_who, void *of,
		       const struct blkrelay_extra *extra, const struct blkrelay_submitter *by);

/*
 * flight.rs: the event may be what pulls the trigger, if it passed the filter. @time is its record's, or 0.
 * Interrupts are off.
 */
void blkrelay_watch(struct blkrelay_cpu *cpu, u64 time, u64 size_op, u64 id_who, void *of,
		    const struct blkrelay_extra *extra, bool passed);

/* span.rs: whether this side record of a span says that the span is of a bio. */
bool blkrelay_span_is_of_bio(const struct blkrelay_extra *extra);

/* span.rs: a disk has come. May sleep; the channel stays meanwhile. */
void blkrelay_span_disk(struct request_queue *q);

/* probes.rs */
void blkrelay_probe_bio_queue(void *data, struct bio *bio);
void blkrelay_probe_bio_queue_detail(void *data, struct bio *bio);
void blkrelay_probe_getrq(void *data, struct bio *bio);
void blkrelay_probe_bio_backmerge(void *data, struct bio *bio);
void blkrelay_probe_bio_frontmerge(void *data, struct bio *bio);
void blkrelay_probe_rq_insert(void *data, struct request *rq);
void blkrelay_probe_rq_requeue(void *data, struct request *rq);
void blkrelay_probe_rq_issue(void *data, struct request *rq);
void blkrelay_probe_rq_merge(void *data, struct request *rq);
void blkrelay_probe_rq_complete(void *data, struct request *rq, blk_status_t error,
				unsigned int nr_bytes);
void blkrelay_probe_rq_error(void *data, struct request *rq, blk_status_t error,
			     unsigned int nr_bytes);
void blkrelay_probe_rq_remap(void *data, struct request *rq, dev_t dev, sector_t from);
void blkrelay_probe_rq_tag_wait(void *data, struct request_queue *q, struct blk_mq_hw_ctx *hctx,
				bool is_sched_tag, unsigned int alloc_flags);
void blkrelay_probe_io_start(void *data, struct request *rq);
void blkrelay_probe_io_done(void *data, struct request *rq);
void blkrelay_probe_plug(void *data, struct request_queue *q);
void blkrelay_probe_unplug(void *data, struct request_queue *q, unsigned int depth, bool explicit);
void blkrelay_probe_split(void *data, struct bio *bio, unsigned int new_sector);
void blkrelay_probe_bio_remap(void *data, struct bio *bio, dev_t dev, sector_t from);
void blkrelay_probe_bio_complete(void *data, struct request_queue *q, struct bio *bio);
void blkrelay_probe_zone_mgmt(void *data, struct bio *bio, sector_t nr_sectors);
void blkrelay_probe_zone_plug(void *data, struct request_queue *q, unsigned int zno,
			      sector_t sector, unsigned int nr_sectors);
void blkrelay_probe_zone_unplug(void *data, struct request_queue *q, unsigned int zno,
				sector_t sector, unsigned int nr_sectors);
void blkrelay_probe_zone_append(void *data, struct request *rq);

void blkrelay_probe_span_queue(void *data, struct bio *bio);
void blkrelay_probe_span_split(void *data, struct bio *bio, unsigned int new_sector);
void blkrelay_probe_span_issue(void *data, struct request *rq);
void blkrelay_probe_span_complete(void *data, struct request *rq, blk_status_t error,
				  unsigned int nr_bytes);
void blkrelay_probe_span_bio_complete(void *data, struct request_queue *q, struct bio *bio);
void blkrelay_probe_span_remap(void *data, struct request *rq, dev_t dev, sector_t from);

void blkrelay_synchronize_probes(void);

u64 blkrelay_clock(struct blkrelay_cpu *cpu);
u64 blkrelay_stamp(void);
void blkrelay_clock_use_tsc(bool tsc);
u32 blkrelay_tsc_khz(void);

/* What an event is asked besides whether its queue is traced, and whether Q compares the names of tasks. */
void blkrelay_ask(bool filter, bool watch, bool names);
void blkrelay_forget_queues(void);

struct blkrelay_cpu *blkrelay_cpu_ptr(unsigned int cpu);
struct blkrelay_cpu *blkrelay_this_cpu(void);
struct rchan_buf *blkrelay_buf(struct rchan *chan);
bool blkrelay_bio_in_cgroup(struct bio *bio, u64 id);
u64 blkrelay_bio_cgroup(struct bio *bio);
bool blkrelay_task_named(const struct blkrelay_cpu *cpu, const struct blkrelay_submitter *by);
void blkrelay_name_task(struct blkrelay_cpu *cpu, struct blkrelay_task *task,
			const struct blkrelay_submitter *by);
void blkrelay_submitter_now(struct blkrelay_submitter *by);
u32 blkrelay_current_pid(void);
u32 blkrelay_queue_tags(struct request_queue *q);
int blkrelay_each_disk(int (*call)(struct request_queue *q, void *data), void *data);

bool blkrelay_cpu_possible(unsigned int cpu);
bool blkrelay_cpu_online(unsigned int cpu);
unsigned int blkrelay_online_cpus(void);
u64 blkrelay_ram_bytes(void);
u64 blkrelay_available_bytes(void);
int blkrelay_device(unsigned int major, unsigned int minor, struct blkrelay_resolved *device);
bool blkrelay_locked_down(void);

int blkrelay_disks_init(void);
void blkrelay_disks_lock(void);
void blkrelay_disks_unlock(void);
void blkrelay_disks_exit(void);

/* channel.rs: a CPU is about to come up. May sleep; no probe runs there yet. */
void blkrelay_cpu_prepare(unsigned int cpu);

int blkrelay_hotplug_init(void);
void blkrelay_hotplug_exit(void);

/* flight.rs: stops this CPU; interrupts are off. */
void blkrelay_stop_here(void);
/* flight.rs: sees to it that every CPU has stopped. May sleep. */
void blkrelay_freeze(void);

void blkrelay_flight_init(void);
void blkrelay_stop_others(void);
void blkrelay_freeze_later(void);
void blkrelay_freeze_wait(void);

void blkrelay_readers_init(void);
void blkrelay_readers_sync(void);
bool blkrelay_reader_take(unsigned int cpu);
void blkrelay_reader_release(unsigned int cpu);
bool blkrelay_reader_taken(unsigned int cpu);
void blkrelay_reader_poll(unsigned int cpu, struct file *file, struct poll_table_struct *table);
void blkrelay_reader_wake(unsigned int cpu);

#endif /* _BLKRELAY_SHIM_H */
