// SPDX-License-Identifier: GPL-2.0
/*
 * The contract's and blktrace's layouts as this machine's C compiler lays them out, for the tests to
 * compare with what bindgen made of the same headers, and with what the reader's own code assumes.
 */
#include <stddef.h>
#include <linux/blktrace_api.h>
#include "blkrelay.h"

_Static_assert(sizeof(struct blkrelay_record) == BLKRELAY_RECORD_SIZE, "an event is one slot");
_Static_assert(sizeof(struct blkrelay_task) == BLKRELAY_RECORD_SIZE, "a task is one slot");
_Static_assert(sizeof(struct blkrelay_from) == BLKRELAY_RECORD_SIZE, "a from record is one slot");
_Static_assert(sizeof(struct blkrelay_detail) == BLKRELAY_RECORD_SIZE, "a detail is one slot");
_Static_assert(sizeof(struct blkrelay_stop) == BLKRELAY_RECORD_SIZE, "a stop is one slot");
_Static_assert(sizeof(struct blkrelay_times) == BLKRELAY_RECORD_SIZE, "times are one slot");
_Static_assert(sizeof(struct blkrelay_device) == 3 * BLKRELAY_RECORD_SIZE, "a device is three slots");
_Static_assert(sizeof(struct blkrelay_subbuf) % BLKRELAY_RECORD_SIZE == 0, "slots stay aligned");
_Static_assert(offsetof(struct blkrelay_record, who) == 28, "the last word of a slot");
_Static_assert(offsetof(struct blkrelay_task, who) == 28, "the last word of a slot");
_Static_assert(offsetof(struct blkrelay_from, who) == 28, "the last word of a slot");
_Static_assert(offsetof(struct blkrelay_detail, who) == 28, "the last word of a slot");
_Static_assert(offsetof(struct blkrelay_stop, who) == 28, "the last word of a slot");
_Static_assert(offsetof(struct blkrelay_times, who) == 28, "the last word of a slot");
_Static_assert(offsetof(struct blkrelay_device, who) == 28, "the last word of the first slot");
_Static_assert(BLK_TC_FUA == 1 << 15 && BLK_TC_QUEUE == 1 << 4, "categories of blktrace");
_Static_assert(__BLK_TA_REMAP == 15 && __BLK_TA_CGROUP == 1 << 8, "actions of blktrace");

struct field {
	const char *name;
	size_t offset;
	size_t size;
};

#define FIELD(type, member)	{ #type "." #member, offsetof(struct type, member), \
				  sizeof(((struct type *)0)->member) }
#define WHOLE(type)		{ #type, 0, sizeof(struct type) }

const struct field blkrelay_conformance[] = {
	WHOLE(blkrelay_record),
	FIELD(blkrelay_record, time),
	FIELD(blkrelay_record, place),
	FIELD(blkrelay_record, bytes),
	FIELD(blkrelay_record, opf),
	FIELD(blkrelay_record, id),
	FIELD(blkrelay_record, who),
	WHOLE(blkrelay_task),
	FIELD(blkrelay_task, comm),
	FIELD(blkrelay_task, pid),
	FIELD(blkrelay_task, tgid),
	FIELD(blkrelay_task, who),
	WHOLE(blkrelay_device),
	FIELD(blkrelay_device, capacity),
	FIELD(blkrelay_device, diskseq),
	FIELD(blkrelay_device, major),
	FIELD(blkrelay_device, minor),
	FIELD(blkrelay_device, queue),
	FIELD(blkrelay_device, who),
	FIELD(blkrelay_device, logical_block_size),
	FIELD(blkrelay_device, hw_queues),
	FIELD(blkrelay_device, name),
	WHOLE(blkrelay_from),
	FIELD(blkrelay_from, sector),
	FIELD(blkrelay_from, dev),
	FIELD(blkrelay_from, who),
	WHOLE(blkrelay_detail),
	FIELD(blkrelay_detail, cgroup),
	FIELD(blkrelay_detail, flags),
	FIELD(blkrelay_detail, ioprio),
	FIELD(blkrelay_detail, write_hint),
	FIELD(blkrelay_detail, partno),
	FIELD(blkrelay_detail, who),
	WHOLE(blkrelay_stop),
	FIELD(blkrelay_stop, time),
	FIELD(blkrelay_stop, trigger),
	FIELD(blkrelay_stop, value),
	FIELD(blkrelay_stop, cpu),
	FIELD(blkrelay_stop, who),
	WHOLE(blkrelay_times),
	FIELD(blkrelay_times, queue),
	FIELD(blkrelay_times, issue),
	FIELD(blkrelay_times, alloc),
	FIELD(blkrelay_times, pid),
	FIELD(blkrelay_times, who),
	WHOLE(blkrelay_subbuf),
	FIELD(blkrelay_subbuf, magic),
	FIELD(blkrelay_subbuf, version),
	FIELD(blkrelay_subbuf, header_len),
	FIELD(blkrelay_subbuf, used),
	FIELD(blkrelay_subbuf, record_len),
	FIELD(blkrelay_subbuf, flags),
	FIELD(blkrelay_subbuf, trace_id),
	FIELD(blkrelay_subbuf, cpu),
	FIELD(blkrelay_subbuf, epoch),
	FIELD(blkrelay_subbuf, seq),
	FIELD(blkrelay_subbuf, events),
	FIELD(blkrelay_subbuf, lost),
	FIELD(blkrelay_subbuf, lost_first),
	FIELD(blkrelay_subbuf, lost_last),
	FIELD(blkrelay_subbuf, count),
	FIELD(blkrelay_subbuf, clock),
	FIELD(blkrelay_subbuf, anchor),
	FIELD(blkrelay_subbuf, mono),
	FIELD(blkrelay_subbuf, raw),
	FIELD(blkrelay_subbuf, real),
	FIELD(blkrelay_subbuf, khz),
	WHOLE(blkrelay_chunk),
	FIELD(blkrelay_chunk, magic),
	FIELD(blkrelay_chunk, type),
	FIELD(blkrelay_chunk, flags),
	FIELD(blkrelay_chunk, stored),
	FIELD(blkrelay_chunk, length),
	FIELD(blkrelay_chunk, cpu),
	FIELD(blkrelay_chunk, checksum),
	WHOLE(blkrelay_index_entry),
	FIELD(blkrelay_index_entry, offset),
	FIELD(blkrelay_index_entry, seq),
	FIELD(blkrelay_index_entry, first),
	FIELD(blkrelay_index_entry, cpu),
	FIELD(blkrelay_index_entry, count),
	WHOLE(blk_io_trace),
	FIELD(blk_io_trace, magic),
	FIELD(blk_io_trace, sequence),
	FIELD(blk_io_trace, time),
	FIELD(blk_io_trace, sector),
	FIELD(blk_io_trace, bytes),
	FIELD(blk_io_trace, action),
	FIELD(blk_io_trace, pid),
	FIELD(blk_io_trace, device),
	FIELD(blk_io_trace, cpu),
	FIELD(blk_io_trace, error),
	FIELD(blk_io_trace, pdu_len),
};

const size_t blkrelay_conformance_len = sizeof(blkrelay_conformance) / sizeof(*blkrelay_conformance);
