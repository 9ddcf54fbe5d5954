/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * blkrelay: the contract between the kernel module, the reader and any C program.
 *
 * What stands here and nowhere else: record layouts, action codes, sub-buffer headers, and the chunks
 * of a .blkr file. bindgen turns this header into Rust for the module and for the reader, so the two
 * cannot drift. All fields have the byte order of the traced machine; a reader tells the order by the
 * magics. Every struct has explicit padding and the same layout for 32- and 64-bit programs.
 *
 * A layout never changes under one BLKRELAY_ABI_VERSION. What may be added without a new version: events
 * and side records of new codes, chunks of new types, flags, and keys in the text of status and META.
 */
#ifndef _BLKRELAY_H
#define _BLKRELAY_H

#include <linux/types.h>

#define BLKRELAY_ABI_VERSION	1

/*
 * ---- Records -------------------------------------------------------------------------------------
 *
 * A stream of records is a sequence of 32-byte slots. In every slot that starts a record, the last byte
 * in value order (bits 31..24 of the last word) is the action; it is never 0. Codes below
 * BLKRELAY_SIDE are events and take one slot. Codes from BLKRELAY_SIDE on are side records: bits 7..0
 * of the last word give their length in slots (1..255), so that a reader can skip a code that it does
 * not know.
 */
#define BLKRELAY_RECORD_SIZE	32

#define BLKRELAY_WHO_SHIFT	24		/* action, in the last word of a slot */
#define BLKRELAY_PID_MASK	0x00ffffffu	/* pid, of events other than completions */
#define BLKRELAY_STATUS_SHIFT	16		/* completions: blk_status_t in bits 23..16 */
#define BLKRELAY_HEAD_MASK	0x0000ffffu	/* completions: low bits of the (head) bio's id */

#define BLKRELAY_SECTOR_BITS	48
#define BLKRELAY_SECTOR_MASK	0x0000ffffffffffffull
/*
 * "no sector": passthrough requests, the flush machinery's own requests, and P, U, T and W. An empty bio
 * that asks for a flush has sector 0, as it stands in the bio.
 */
#define BLKRELAY_SECTOR_NONE	BLKRELAY_SECTOR_MASK

#define BLKRELAY_ID_HCTX_SHIFT	16		/* request events: hardware queue number */
#define BLKRELAY_ID_TAG_MASK	0x0000ffffu	/* request events: scheduler tag, else driver tag */
#define BLKRELAY_ID_BIO_SHIFT	4		/* bio events: bio pointer >> this, low 32 bits */

/**
 * struct blkrelay_record - one block event
 * @time:  the trace's clock (see BLKRELAY_CLOCK_*), taken with interrupts off, so it never goes back
 *	   within one CPU's stream
 * @place: bits 47..0 first sector (512 B) on the whole disk, or BLKRELAY_SECTOR_NONE; bits 63..48 the
 *	   request queue's id (request_queue.id), named by a device record
 * @bytes: bytes of the bio or request as it stood at the event; C and ERROR: bytes completed by this call;
 *	   U and T: number of requests unplugged; W: number of tags in the pool; P: 0; of zone management
 *	   and zone plugs: bytes of the bio
 * @opf:   bi_opf or cmd_flags as they are (linux/blk_types.h); P, U, T and the zone plugs: 0;
 *	   W: BLKRELAY_W_* bits
 * @id:    of rq events: hctx << 16 | tag; of bio events: bio id; W: hctx << 16; zone plugs: number of the
 *	   zone; P, U, T: 0
 * @who:   action << 24 | pid of the current task; completions (C, ERROR, BIO_C) carry no pid, because
 *	   whoever was interrupted is not the owner: action << 24 | status << 16 | bits 15..0 of the head
 *	   bio's or the bio's own id. IO_DONE and ZONE_APPEND happen at completion and carry a pid all the
 *	   same, but that of whoever was interrupted
 *
 * The tag is the scheduler's (internal_tag) where there is one, else the driver's: that one is stable
 * from insert to completion. A flush request borrows the tag of the request that it flushes for.
 */
struct blkrelay_record {
	__u64 time;
	__u64 place;
	__u32 bytes;
	__u32 opf;
	__u32 id;
	__u32 who;
};

/*
 * Actions. The letter is blkparse's. "bio" or "rq" says what the tracepoint hands out, and so what @id
 * holds. N is a merge of two requests: blktrace calls it M as well.
 */
#define BLKRELAY_Q	1	/* block_bio_queue	bio */
#define BLKRELAY_M	2	/* block_bio_backmerge	bio */
#define BLKRELAY_F	3	/* block_bio_frontmerge	bio */
#define BLKRELAY_G	4	/* block_getrq		bio */
#define BLKRELAY_I	5	/* block_rq_insert	rq */
#define BLKRELAY_R	6	/* block_rq_requeue	rq */
#define BLKRELAY_D	7	/* block_rq_issue	rq */
#define BLKRELAY_C	8	/* block_rq_complete	rq */
#define BLKRELAY_P	9	/* block_plug		queue */
#define BLKRELAY_U	10	/* block_unplug, explicit	queue */
#define BLKRELAY_T	11	/* block_unplug, at schedule	queue; blkparse prints UT */
#define BLKRELAY_X	12	/* block_split		bio: the front part (device mapper: the rest) */
#define BLKRELAY_A	13	/* block_bio_remap	bio: where it goes; a from record follows */
#define BLKRELAY_N	14	/* block_rq_merge	rq: the one that is swallowed */
#define BLKRELAY_BIO_C	15	/* block_bio_complete	bio: of a bio-based driver (dm, md, brd) */
#define BLKRELAY_RQ_A	16	/* block_rq_remap	rq: the clone (dm multipath); a from record follows */
#define BLKRELAY_ERROR	17	/* block_rq_error	rq: follows the C that has the status */
#define BLKRELAY_W	18	/* block_rq_tag_wait	queue: the task is about to wait for a tag */
#define BLKRELAY_IO_START 19	/* block_io_start	rq: accounting of the request begins */
#define BLKRELAY_IO_DONE 20	/* block_io_done	rq: ... and ends */
#define BLKRELAY_ZONE_MGMT 21	/* blkdev_zone_mgmt	bio: reset, open, close or finish is submitted */
#define BLKRELAY_ZONE_PLUG 22	/* disk_zone_wplug_add_bio	queue: a write waits for its zone */
#define BLKRELAY_ZONE_UNPLUG 23	/* blk_zone_wplug_bio	queue: ... and goes on */
#define BLKRELAY_ZONE_APPEND 24	/* blk_zone_append_update_request_bio	rq: its sector is where it went */
#define BLKRELAY_SPAN	25	/* block_rq_complete, block_bio_complete	an I/O's life; times follow */

#define BLKRELAY_W_SCHED	1	/* W: scheduler tags, else the driver's */
#define BLKRELAY_W_RESERVED	2	/* W: reserved tags */

/*
 * ---- Side records ---------------------------------------------------------------------------------
 *
 * TASK and DEVICE hold for the events that follow them in the same sub-buffer; each sub-buffer brings its
 * own, so that a lost one never takes names with it. FROM, DETAIL and TIMES belong to the event before them.
 * STOP is the last of a stream.
 */
#define BLKRELAY_SIDE		0x80
#define BLKRELAY_SLOTS_MASK	0x000000ffu

#define BLKRELAY_TASK		0x80
/**
 * struct blkrelay_task - who @pid is, one slot
 * @comm: task_struct.comm, NUL-padded
 * @pid:  thread id in the initial pid namespace
 * @tgid: process id in the initial pid namespace
 */
struct blkrelay_task {
	char  comm[16];
	__u32 pid;
	__u32 tgid;
	__u32 reserved;
	__u32 who;
};

#define BLKRELAY_DEVICE		0x81
/**
 * struct blkrelay_device - what a queue id means, three slots
 * @capacity: sectors of 512 B (0: the queue has no disk)
 * @diskseq:  gendisk.diskseq: tells a device that came back under the same name from the old one
 * @name:     disk name, NUL-padded; empty if the queue has no disk
 * @major: @minor: the whole disk's number
 * @queue:    request_queue.id, as in blkrelay_record.place
 * @logical_block_size: bytes
 * @hw_queues: nr_hw_queues, 0 for a bio-based device
 *
 * @who stands at the end of the first slot, as in every record.
 */
struct blkrelay_device {
	__u64 capacity;
	__u64 diskseq;
	__u32 major;
	__u32 minor;
	__u32 queue;
	__u32 who;
	__u32 logical_block_size;
	__u32 hw_queues;
	char  name[32];
	__u32 reserved[6];
};

#define BLKRELAY_FROM		0x82
/**
 * struct blkrelay_from - where the A or RQ_A event just before it came from, one slot
 * @sector: sector on @dev before the remap
 * @dev:    major << 20 | minor, the kernel's dev_t
 */
struct blkrelay_from {
	__u64 sector;
	__u32 dev;
	__u32 reserved[4];
	__u32 who;
};

#define BLKRELAY_DETAIL		0x83
/**
 * struct blkrelay_detail - what else the Q event just before it carries, one slot; only with detail=1
 * @cgroup: id of the cgroup that the I/O is charged to (its directory's inode number), 0: none
 * @flags:  bi_flags (linux/blk_types.h)
 * @ioprio: class << 13 | hint << 3 | level (linux/ioprio.h), 0: none
 * @write_hint: enum rw_hint (linux/rw_hint.h)
 * @partno: bd_partno of the device that it was submitted to, 0: the whole disk
 */
struct blkrelay_detail {
	__u64 cgroup;
	__u32 flags;
	__u16 ioprio;
	__u8  write_hint;
	__u8  partno;
	__u32 reserved[3];
	__u32 who;
};

/*
 * Why a flight recorder was frozen. BLKRELAY_CAUSE_ERROR and _SLOW follow the completion that was the
 * cause, in the stream of the CPU that it happened on.
 */
#define BLKRELAY_CAUSE_CONTROL	1	/* freeze was written to control */
#define BLKRELAY_CAUSE_ERROR	2	/* a completion with an error; @value: blk_status_t */
#define BLKRELAY_CAUSE_SLOW	3	/* @value: clock ticks from the last D to C; bio-based: from Q */

#define BLKRELAY_STOP		0x84
/**
 * struct blkrelay_stop - the flight recorder has stopped on this CPU, one slot; the last of its stream
 * @time:    when this CPU stopped, trace's clock: it recorded every event until then
 * @trigger: when the trigger went off, trace's clock; @time - @trigger is this CPU's lag
 * @value:   see BLKRELAY_CAUSE_*
 * @cpu:     bits 15..0: CPU of the trigger; bits 31..16: BLKRELAY_CAUSE_*
 */
struct blkrelay_stop {
	__u64 time;
	__u64 trigger;
	__u64 value;
	__u32 cpu;
	__u32 who;
};

#define BLKRELAY_TIMES		0x85
#define BLKRELAY_TIMES_SHIFT	8		/* BLKRELAY_TIMES_*, in @who */
#define BLKRELAY_TIMES_MISSED	1	/* @queue and @pid are not known: no Q seen, or its stamp lost */
#define BLKRELAY_TIMES_FRONT	2	/* @queue is 0: the front part of a split bio has no Q of its own */
#define BLKRELAY_TIMES_REST	4	/* @queue is the whole bio's, before its front was split off */
#define BLKRELAY_TIMES_PARTIAL	8	/* the request goes on: this is the completion of a part of it */
#define BLKRELAY_TIMES_BIO	16	/* of a bio-based driver: @id is the bio's, and there is no @issue */
#define BLKRELAY_TIMES_CLONE	32	/* @queue is 0: a stacked device's clone, whose bios are not queued */
/**
 * struct blkrelay_times - when the I/O of the SPAN event just before it was queued and issued, one slot
 * @queue: when its first bio was queued, trace's clock; 0: see BLKRELAY_TIMES_MISSED, _FRONT and _CLONE, or
 *	   the request has no bio
 * @issue: when it was issued last, trace's clock; 0: not seen, or never done
 * @alloc: when the request was allocated, CLOCK_MONOTONIC ns (request.start_time_ns); 0: the kernel did not
 *	   keep it, because the request is not accounted. Read once for all requests of a plug, so it may lie
 *	   before @queue
 * @pid:   who queued the first bio: thread id in the initial pid namespace, named by a task record before it
 *	   in this sub-buffer; 0 with BLKRELAY_TIMES_MISSED and _CLONE. With _FRONT 0 is no pid either, but
 *	   not known
 *
 * Of the SPAN event: @time is the completion's; @place, @bytes, @opf and @id are as in C (with
 * BLKRELAY_TIMES_BIO as in BIO_C; but where a driver without requests got the bio and its Q is known, @bytes,
 * and the sector of all but an append, are those of its Q); @who is action << 24 | status << 16 | number of
 * bios that the call completes (65535: that many or more; 0: the request has no bio, or, with
 * BLKRELAY_TIMES_PARTIAL, its first one goes on). All but the first were merged into the request: their own Q
 * is not told.
 *
 * A flush sequence has two, both of one bio: its data's, and at its end one of 0 bytes with the same @id and
 * @queue. The flush itself, which borrows the tag, has one as well, without a bio.
 */
struct blkrelay_times {
	__u64 queue;
	__u64 issue;
	__u64 alloc;
	__u32 pid;
	__u32 who;
};

/*
 * ---- Sub-buffers ----------------------------------------------------------------------------------
 *
 * What read() on a data file returns: whole finished sub-buffers, each cut to @used bytes. A read buffer
 * must hold subbuf_size bytes, else EINVAL. read() never sleeps: EAGAIN when nothing is finished, 0 when
 * the trace is stopped and all was handed out. poll() tells of both. A flight recorder's are finished when
 * it is frozen, all at once: EAGAIN before, 0 after the last, EAGAIN again once it is armed again.
 */
#define BLKRELAY_SUBBUF_MAGIC	0x52424b42u	/* "BKBR" in a little-endian file */

#define BLKRELAY_CLOCK_TSC	1		/* raw TSC cycles */
#define BLKRELAY_CLOCK_MONO	2		/* ktime_get_mono_fast_ns(): nanoseconds */

#define BLKRELAY_SUBBUF_ANCHOR_BAD	1	/* the clock source was not the clock: use other anchors */
#define BLKRELAY_SUBBUF_OVERWRITE	2	/* a flight recorder's: older ones may be gone */

/**
 * struct blkrelay_subbuf - the head of a sub-buffer, 128 bytes
 * @magic:	BLKRELAY_SUBBUF_MAGIC
 * @version:	BLKRELAY_ABI_VERSION
 * @header_len:	bytes from here to the first record: 128 in this version
 * @used:	bytes of this sub-buffer that hold data, this header included
 * @record_len:	BLKRELAY_RECORD_SIZE
 * @flags:	BLKRELAY_SUBBUF_*
 * @trace_id:	random, new at every start
 * @cpu:	the CPU whose stream this is
 * @epoch:	configuration epoch, from 1; new when filters change while running, and when a flight
 *		recorder is armed again. Never changes within a sub-buffer
 * @seq:	number of this sub-buffer in its CPU's stream, from 0, without gaps; the first that is
 *		kept may have a higher one with BLKRELAY_SUBBUF_OVERWRITE
 * @events:	events that this CPU wrote before this sub-buffer (side records do not count)
 * @lost:	events that this CPU lost before this sub-buffer
 * @lost_first: @lost_last: clock of the first and last event lost since the sub-buffer before; 0 if none
 * @count:	events in this sub-buffer
 * @clock:	BLKRELAY_CLOCK_*
 * @anchor:	the trace's clock at one instant between the previous sub-buffer's last record and this
 *		one's first
 * @mono:	CLOCK_MONOTONIC at that instant, ns
 * @raw:	CLOCK_MONOTONIC_RAW at that instant, ns
 * @real:	CLOCK_REALTIME at that instant, ns since 1970
 * @khz:	nominal rate of the trace's clock in kHz (1000000 for BLKRELAY_CLOCK_MONO): for a stream
 *		with one anchor only
 */
struct blkrelay_subbuf {
	__u32 magic;
	__u16 version;
	__u16 header_len;
	__u32 used;
	__u16 record_len;
	__u16 flags;
	__u8  trace_id[16];
	__u32 cpu;
	__u32 epoch;
	__u64 seq;
	__u64 events;
	__u64 lost;
	__u64 lost_first;
	__u64 lost_last;
	__u32 count;
	__u32 clock;
	__u64 anchor;
	__u64 mono;
	__u64 raw;
	__u64 real;
	__u32 khz;
	__u32 reserved;
};

/*
 * ---- Trace files (.blkr) --------------------------------------------------------------------------
 *
 * BLKRELAY_FILE_MAGIC (8 bytes), then chunks to the end: a head, then @stored bytes, then zero to seven
 * bytes of zeros so that each head is 8-byte aligned. The first chunk is META. A file without TRAILER was
 * cut short: what is there is good. A reader skips chunk types that it does not know.
 */
#define BLKRELAY_FILE_MAGIC	"BLKRELAY"
#define BLKRELAY_CHUNK_MAGIC	0x4b434b42u	/* "BKCK" in a little-endian file */

#define BLKRELAY_CHUNK_META	1	/* JSON: format version, kernel, host, boot id, devices, options */
#define BLKRELAY_CHUNK_SUBBUF	2	/* one sub-buffer, as read() gave it */
#define BLKRELAY_CHUNK_TRAILER	3	/* JSON: each CPU's exact counters after stop, end of recording */
#define BLKRELAY_CHUNK_INDEX	4	/* struct blkrelay_index_entry[]: one for each SUBBUF chunk */
#define BLKRELAY_CHUNK_DEVICES	5	/* JSON: devices as META has them, again: they have changed */

#define BLKRELAY_CHUNK_ZSTD	1	/* the payload is one zstd frame */

/**
 * struct blkrelay_chunk - the head of a chunk, 32 bytes
 * @magic:	BLKRELAY_CHUNK_MAGIC
 * @type:	BLKRELAY_CHUNK_META...
 * @flags:	BLKRELAY_CHUNK_ZSTD
 * @stored:	bytes of payload in the file
 * @length:	bytes of payload once decompressed
 * @cpu:	SUBBUF: the CPU; else 0
 * @reserved:	0
 * @checksum:	XXH3-64 (seed 0) of the payload as stored
 */
struct blkrelay_chunk {
	__u32 magic;
	__u16 type;
	__u16 flags;
	__u32 stored;
	__u32 length;
	__u32 cpu;
	__u32 reserved;
	__u64 checksum;
};

/**
 * struct blkrelay_index_entry - where a sub-buffer stands in the file, 32 bytes
 * @offset: of the chunk's head from the start of the file
 * @seq:    blkrelay_subbuf.seq
 * @first:  time of its first event, trace's clock
 * @cpu:    blkrelay_subbuf.cpu
 * @count:  blkrelay_subbuf.count
 */
struct blkrelay_index_entry {
	__u64 offset;
	__u64 seq;
	__u64 first;
	__u32 cpu;
	__u32 count;
};

#endif /* _BLKRELAY_H */
