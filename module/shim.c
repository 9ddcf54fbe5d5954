// SPDX-License-Identifier: GPL-2.0
/*
 * blkrelay: what Rust cannot say on this kernel, and the way of an event from a probe's words to a record in
 * the sub-buffer where the fast path (fast.rs) is not for it. See shim.h.
 */
#include <linux/blk-cgroup.h>
#include <linux/cgroup.h>
#include <linux/clocksource_ids.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/irq_work.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/security.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/threads.h>
#include <linux/unaligned.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include <trace/events/block.h>

#ifdef CONFIG_X86_64
#include <asm/msr.h>
#include <asm/tsc.h>
#endif

#include "shim.h"

/* Not static: the fast path knows it by name. */
DEFINE_PER_CPU_ALIGNED(struct blkrelay_cpu, blkrelay_cpus);

/* ---- The clock ------------------------------------------------------------------------------- */

#ifdef CONFIG_X86_64
static DEFINE_STATIC_KEY_TRUE(blkrelay_tsc);

static __always_inline bool blkrelay_clock_is_tsc(void)
{
	return static_branch_likely(&blkrelay_tsc);
}

/* Ordered: two events of one CPU, or of two where one caused the other, must not change places. */
static __always_inline u64 blkrelay_clock_tsc(void)
{
	return rdtsc_ordered();
}
#else
static __always_inline bool blkrelay_clock_is_tsc(void)
{
	return false;
}

static __always_inline u64 blkrelay_clock_tsc(void)
{
	return 0;
}
#endif

/*
 * ktime_get_mono_fast_ns() may step back by the clock's last slew when it races with a timekeeping
 * update: the stream must not.
 */
static u64 blkrelay_clock_mono(struct blkrelay_cpu *cpu)
{
	u64 now = ktime_get_mono_fast_ns();

	if (now > cpu->last)
		cpu->last = now;
	return cpu->last;
}

/* Interrupts are off, so times are given out in the order of the slots. */
u64 blkrelay_clock(struct blkrelay_cpu *cpu)
{
	return blkrelay_clock_is_tsc() ? blkrelay_clock_tsc() : blkrelay_clock_mono(cpu);
}

/* The trace's clock, from anywhere. */
u64 blkrelay_stamp(void)
{
	unsigned long flags;
	u64 now;

	if (blkrelay_clock_is_tsc())
		return blkrelay_clock_tsc();
	local_irq_save(flags);
	now = blkrelay_clock_mono(this_cpu_ptr(&blkrelay_cpus));
	local_irq_restore(flags);
	return now;
}

static void set_key(struct static_key *key, bool on)
{
	if (on)
		static_key_enable(key);
	else
		static_key_disable(key);
}

/* Only between traces. */
void blkrelay_clock_use_tsc(bool tsc)
{
#ifdef CONFIG_X86_64
	set_key(&blkrelay_tsc.key, tsc);
#endif
}

/* 0: this machine has no TSC. */
u32 blkrelay_tsc_khz(void)
{
#ifdef CONFIG_X86_64
	return tsc_khz;
#else
	return 0;
#endif
}

/* ---- Questions ------------------------------------------------------------------------------- */

static DEFINE_STATIC_KEY_FALSE(blkrelay_filtering);
static DEFINE_STATIC_KEY_FALSE(blkrelay_watching);

/*
 * Whether remember() lets a CPU's next events go by the fast path; those of an I/O's ends, because only
 * they are watched; and those that name a task, whose comm only Q compares.
 */
static bool blkrelay_fast;
static bool blkrelay_fast_ends;
static bool blkrelay_fast_tasks;

/*
 * The fast path stamps with RDTSCP, which is what rdtsc_ordered() is on every CPU that has it, and masks
 * interrupts itself, which a Xen PV guest must leave to its hypervisor.
 */
static bool blkrelay_can_be_fast(void)
{
#if defined(CONFIG_X86_64) && defined(CONFIG_SMP)
	return blkrelay_clock_is_tsc() && boot_cpu_has(X86_FEATURE_RDTSCP) &&
	       !cpu_feature_enabled(X86_FEATURE_XENPV);
#else
	return false;
#endif
}

/*
 * May sleep. A probe that runs meanwhile may still see the old answer; and what has gone by the fast path on
 * some CPU does so until blkrelay_forget_queues() or a new epoch.
 */
void blkrelay_ask(bool filter, bool watch, bool names)
{
	bool fast = blkrelay_can_be_fast() && !filter;

	WRITE_ONCE(blkrelay_fast, fast);
	WRITE_ONCE(blkrelay_fast_ends, fast && !watch);
	WRITE_ONCE(blkrelay_fast_tasks, fast && names);
	set_key(&blkrelay_filtering.key, filter);
	set_key(&blkrelay_watching.key, watch);
}

/* ---- Events ---------------------------------------------------------------------------------- */

/* A pid fits beside the action without a mask. */
static_assert(PID_MAX_LIMIT <= BLKRELAY_PID_MASK);
static_assert(sizeof(struct blkrelay_record) == BLKRELAY_RECORD_SIZE);
static_assert(sizeof(struct blkrelay_task) == BLKRELAY_RECORD_SIZE);
static_assert(sizeof(struct blkrelay_from) == BLKRELAY_RECORD_SIZE);
static_assert(sizeof(struct blkrelay_detail) == BLKRELAY_RECORD_SIZE);
static_assert(sizeof(struct blkrelay_stop) == BLKRELAY_RECORD_SIZE);
static_assert(sizeof(struct blkrelay_extra) == BLKRELAY_RECORD_SIZE);
static_assert(sizeof(struct blkrelay_times) == BLKRELAY_RECORD_SIZE);
/* Read as one word (span.rs). */
static_assert(offsetof(struct task_struct, tgid) == offsetof(struct task_struct, pid) + 4);
static_assert(sizeof(struct blkrelay_device) == 3 * BLKRELAY_RECORD_SIZE);
static_assert(sizeof(struct blkrelay_seen) == 32);
static_assert(sizeof_field(struct blkrelay_task, comm) == TASK_COMM_LEN);

/* Whether the task has been named, by this comm. */
bool blkrelay_task_named(const struct blkrelay_cpu *cpu, const struct blkrelay_submitter *by)
{
	const struct blkrelay_seen *seen = &cpu->tasks[by->pid % BLKRELAY_TASKS];

	return seen->pid == by->pid && seen->comm[0] == by->comm[0] && seen->comm[1] == by->comm[1];
}

/*
 * The current task. comm may be rewritten meanwhile; what counts is that the record and the table agree, so
 * that the next event compares with what was written.
 */
void blkrelay_submitter_now(struct blkrelay_submitter *by)
{
	by->pid = current->pid;
	by->tgid = current->tgid;
	by->comm[0] = get_unaligned((u64 *)current->comm);
	by->comm[1] = get_unaligned((u64 *)(current->comm + 8));
}

/* Where who stands in @id_who: at the higher address, as record::pair() has it. */
#ifdef __LITTLE_ENDIAN
#define WHO_SHIFT	32
#else
#define WHO_SHIFT	0
#endif

/*
 * Stores an event, if there is room for it and all names have been given. Returns its time, or 0.
 * Interrupts are off.
 */
static u64 store(struct blkrelay_cpu *cpu, u64 place, u64 size_op, u64 id_who,
		 const struct blkrelay_extra *extra, const struct blkrelay_submitter *by)
{
	const ptrdiff_t words = (extra ? 2 : 1) * BLKRELAY_RECORD_SIZE / sizeof(u64);
	u32 queue = place >> BLKRELAY_SECTOR_BITS;
	u64 *slot = cpu->pos;
	u64 now;

	if ((by && !blkrelay_task_named(cpu, by)) ||
	    cpu->queues[queue % BLKRELAY_QUEUES] != queue || cpu->end - slot < words)
		return 0;

	now = blkrelay_clock(cpu);
	slot[0] = now;
	slot[1] = place;
	slot[2] = size_op;
	slot[3] = id_who;
	if (extra) {
		memcpy(slot + 4, extra, sizeof(*extra));
		cpu->side++;
	}
	cpu->pos = slot + words;
	return now;
}

/* The next event of this task on this queue may go by the fast path. Interrupts are off. */
static void remember(struct blkrelay_cpu *cpu, u64 place, const struct blkrelay_submitter *by)
{
	u32 queue = place >> BLKRELAY_SECTOR_BITS;

	/* A queue that this sub-buffer has not named, because it could not, stays off the fast path. */
	if (!READ_ONCE(blkrelay_fast) || cpu->queues[queue % BLKRELAY_QUEUES] != queue)
		return;
	if (cpu->queue != queue) {
		/* Asked here and not only by the probe: the gate may have been closed since. */
		if (!blkrelay_is_traced(queue))
			return;
		cpu->queue = queue;
		cpu->ends = READ_ONCE(blkrelay_fast_ends) ? queue : BLKRELAY_NOBODY;
	}
	if (by && READ_ONCE(blkrelay_fast_tasks) && blkrelay_task_named(cpu, by)) {
		cpu->pid = by->pid;
		cpu->comm[0] = by->comm[0];
		cpu->comm[1] = by->comm[1];
		cpu->names = by->comm[0] + BLKRELAY_NAMES_MIX * by->comm[1];
	}
}

void blkrelay_emit(u64 place, u64 size_op, u64 id_who, void *of, const struct blkrelay_extra *extra,
		   const struct blkrelay_submitter *by)
{
	u8 action = id_who >> (WHO_SHIFT + BLKRELAY_WHO_SHIFT);
	struct blkrelay_submitter current_task;
	struct blkrelay_cpu *cpu;
	unsigned long flags;
	u64 now = 0;
	bool pass;

	/* At a completion whoever was interrupted is not the owner. */
	if (action != BLKRELAY_C && action != BLKRELAY_BIO_C && action != BLKRELAY_ERROR &&
	    action != BLKRELAY_SPAN) {
		blkrelay_submitter_now(&current_task);
		by = &current_task;
		id_who |= (u64)by->pid << WHO_SHIFT;
	}

	/* CPU, time, order and slot belong together: no interrupt and no migration between them. */
	local_irq_save(flags);
	cpu = this_cpu_ptr(&blkrelay_cpus);
	pass = !static_branch_unlikely(&blkrelay_filtering) ||
	       blkrelay_pass(cpu, place, size_op, id_who, of, extra);
	if (pass) {
		now = store(cpu, place, size_op, id_who, extra, by);
		if (!now)
			now = blkrelay_emit_slow(cpu, place, size_op, id_who, of, extra, by);
		/* Of a bio's Q a span asks more than the fast path tells. */
		if (action != BLKRELAY_SPAN || !blkrelay_span_is_of_bio(extra))
			remember(cpu, place, by);
	}
	if (static_branch_unlikely(&blkrelay_watching))
		blkrelay_watch(cpu, now, size_op, id_who, of, extra, pass);
	local_irq_restore(flags);
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

void blkrelay_name_task(struct blkrelay_cpu *cpu, struct blkrelay_task *task,
			const struct blkrelay_submitter *by)
{
	struct blkrelay_seen *seen = &cpu->tasks[by->pid % BLKRELAY_TASKS];

	/* Under its old name it goes by the fast path no more, even if remember() is not for this queue. */
	cpu->pid = BLKRELAY_NOBODY;
	seen->comm[0] = by->comm[0];
	seen->comm[1] = by->comm[1];
	seen->pid = by->pid;

	memcpy(task->comm, seen->comm, sizeof(task->comm));
	task->comm[sizeof(task->comm) - 1] = '\0';
	task->pid = by->pid;
	task->tgid = by->tgid;
	task->reserved = 0;
	task->who = (u32)BLKRELAY_TASK << BLKRELAY_WHO_SHIFT | 1;
}

u32 blkrelay_current_pid(void)
{
	return current->pid;
}

/* ---- Cgroups --------------------------------------------------------------------------------- */

/*
 * The cgroup that a bio is charged to. The bio holds its blkg, and through it the cgroup, until it is
 * freed. Its id is that of the cgroup's directory: the inode number.
 */
static struct cgroup *bio_cgroup(struct bio *bio)
{
#ifdef CONFIG_BLK_CGROUP
	struct cgroup_subsys_state *css = bio_blkcg_css(bio);

	return css ? css->cgroup : NULL;
#else
	return NULL;
#endif
}

u64 blkrelay_bio_cgroup(struct bio *bio)
{
	struct cgroup *cgroup = bio_cgroup(bio);

	return cgroup ? cgroup_id(cgroup) : 0;
}

/* Whether the bio is charged to the cgroup with this id, or to one below it. */
bool blkrelay_bio_in_cgroup(struct bio *bio, u64 id)
{
#ifdef CONFIG_BLK_CGROUP
	struct cgroup *cgroup = bio_cgroup(bio);
	int level;

	if (!cgroup)
		return false;
	for (level = cgroup->level; level >= 0; level--)
		if (cgroup_id(cgroup->ancestors[level]) == id)
			return true;
#endif
	return false;
}

/* ---- Per-CPU data ---------------------------------------------------------------------------- */

struct blkrelay_cpu *blkrelay_cpu_ptr(unsigned int cpu)
{
	return per_cpu_ptr(&blkrelay_cpus, cpu);
}

/* Interrupts or preemption are off. */
struct blkrelay_cpu *blkrelay_this_cpu(void)
{
	return this_cpu_ptr(&blkrelay_cpus);
}

/* The buffer of a channel that has one: the core keeps it at CPU 0. */
struct rchan_buf *blkrelay_buf(struct rchan *chan)
{
	return *per_cpu_ptr(chan->buf, 0);
}

bool blkrelay_cpu_possible(unsigned int cpu)
{
	return cpu < nr_cpu_ids && cpu_possible(cpu);
}

bool blkrelay_cpu_online(unsigned int cpu)
{
	return cpu < nr_cpu_ids && cpu_online(cpu);
}

unsigned int blkrelay_online_cpus(void)
{
	return num_online_cpus();
}

u64 blkrelay_ram_bytes(void)
{
	return (u64)totalram_pages() << PAGE_SHIFT;
}

/* What can be had without swapping, and without killing anyone. */
u64 blkrelay_available_bytes(void)
{
	return (u64)si_mem_available() << PAGE_SHIFT;
}

/* ---- Devices --------------------------------------------------------------------------------- */

static struct class_interface disks;

/* While it is held, no channel is closed under a disk that comes. Taken with the block class's mutex held. */
static DEFINE_MUTEX(disks_lock);

void blkrelay_disks_lock(void)
{
	mutex_lock(&disks_lock);
}

void blkrelay_disks_unlock(void)
{
	mutex_unlock(&disks_lock);
}

/*
 * The block device with this number, partitions included, or -ENODEV. It is not opened: that could make
 * one that is not there, and would keep a disk from going away. What the caller keeps is the queue, and
 * with it the queue's id: so no other queue gets that id while the trace runs.
 */
int blkrelay_device(unsigned int major, unsigned int minor, struct blkrelay_resolved *device)
{
	struct device *dev = class_find_device_by_devt(disks.class, MKDEV(major, minor));
	struct block_device *bdev;
	int ret = 0;

	if (!dev)
		return -ENODEV;
	bdev = dev_to_bdev(dev);
	device->q = bdev_get_queue(bdev);
	device->start = bdev_is_partition(bdev) ? get_start_sect(bdev) : 0;
	device->sectors = bdev_is_partition(bdev) ? bdev_nr_sectors(bdev) : 0;
	if (!blk_get_queue(device->q))
		ret = -ENODEV;
	put_device(dev);
	return ret;
}

/* ---- Disks that come ------------------------------------------------------------------------- */

static void forget_queues(struct blkrelay_cpu *cpu)
{
	memset(cpu->queues, 0xff, sizeof(cpu->queues));
	cpu->queue = BLKRELAY_NOBODY;
	cpu->ends = BLKRELAY_NOBODY;
}

static void forget_queues_here(void *unused)
{
	forget_queues(this_cpu_ptr(&blkrelay_cpus));
}

/* Each queue is named anew before its next event, and found to be traced or not. May sleep. */
void blkrelay_forget_queues(void)
{
	unsigned int cpu;

	cpus_read_lock();
	on_each_cpu(forget_queues_here, NULL, true);
	for_each_possible_cpu(cpu)
		if (!cpu_online(cpu))
			forget_queues(per_cpu_ptr(&blkrelay_cpus, cpu));
	cpus_read_unlock();
}

/*
 * A queue may outlive its disk and get another one (an sd that is unbound and bound again), so from here
 * on each queue is named anew. Before the disk's first I/O: it is not there yet.
 */
static int disk_added(struct device *dev)
{
	if (bdev_is_partition(dev_to_bdev(dev)))
		return 0;
	mutex_lock(&disks_lock);
	blkrelay_span_disk(bdev_get_queue(dev_to_bdev(dev)));
	mutex_unlock(&disks_lock);
	blkrelay_forget_queues();
	return 0;
}

static struct class_interface disks = {
	.add_dev = disk_added,
};

/* What blkrelay_each_disk() was called with, and the first error. */
static int (*walk_call)(struct request_queue *q, void *data);
static void *walk_data;
static int walk_error;

static int walk_disk(struct device *dev)
{
	if (!walk_error && !bdev_is_partition(dev_to_bdev(dev)))
		walk_error = walk_call(bdev_get_queue(dev_to_bdev(dev)), walk_data);
	return 0;
}

static struct class_interface walk = {
	.add_dev = walk_disk,
};

/*
 * Calls for the queue of every disk there is. May sleep; one at a time. The class holds its mutex meanwhile,
 * which a disk needs to go away: so the driver's tags, which a queue that is only kept may outlive, stay too.
 */
int blkrelay_each_disk(int (*call)(struct request_queue *q, void *data), void *data)
{
	int ret;

	walk_call = call;
	walk_data = data;
	walk_error = 0;
	ret = class_interface_register(&walk);
	if (ret)
		return ret;
	class_interface_unregister(&walk);
	return walk_error;
}

/*
 * Tags that a hardware queue may give out: the driver's, or a scheduler's, whose number is that of the
 * queue's requests and at first twice BLKDEV_DEFAULT_RQ. 0 for a bio-based driver. The disk is there.
 */
u32 blkrelay_queue_tags(struct request_queue *q)
{
	if (!q->tag_set)
		return 0;
	return max3(q->tag_set->queue_depth, (u32)q->nr_requests, 2U * BLKDEV_DEFAULT_RQ);
}

/* The block class is not exported, but a disk that is never added is of it. */
int blkrelay_disks_init(void)
{
	struct gendisk *disk = blk_alloc_disk(NULL, NUMA_NO_NODE);

	if (IS_ERR(disk))
		return PTR_ERR(disk);
	disks.class = disk_to_dev(disk)->class;
	walk.class = disks.class;
	put_disk(disk);
	return class_interface_register(&disks);
}

void blkrelay_disks_exit(void)
{
	class_interface_unregister(&disks);
}

/* ---- CPUs that come up ----------------------------------------------------------------------- */

static int hotplug_state;

/* It must come up whatever becomes of its buffer. */
static int prepare_cpu(unsigned int cpu)
{
	blkrelay_cpu_prepare(cpu);
	return 0;
}

int blkrelay_hotplug_init(void)
{
	int state = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "block/blkrelay:prepare",
					      prepare_cpu, NULL);

	if (state < 0)
		return state;
	hotplug_state = state;
	return 0;
}

void blkrelay_hotplug_exit(void)
{
	cpuhp_remove_state_nocalls(hotplug_state);
}

/* ---- The flight recorder --------------------------------------------------------------------- */

static DEFINE_PER_CPU(call_single_data_t, blkrelay_stop_csd);

static void stop_here(void *unused)
{
	blkrelay_stop_here();
}

/*
 * Interrupts are off. A CPU whose last call is still under way, or that is going down, is seen to by
 * freeze_work. irq_work_queue_on() would say the same, but is not exported.
 */
void blkrelay_stop_others(void)
{
	unsigned int cpu, this = smp_processor_id();

	for_each_online_cpu(cpu)
		if (cpu != this)
			smp_call_function_single_async(cpu, per_cpu_ptr(&blkrelay_stop_csd, cpu));
}

static void freeze_work_fn(struct work_struct *work)
{
	blkrelay_freeze();
}

static DECLARE_WORK(freeze_work, freeze_work_fn);

static void queue_freeze_work(struct irq_work *work)
{
	queue_work(system_highpri_wq, &freeze_work);
}

static struct irq_work freeze_irq_work;

void blkrelay_flight_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		INIT_CSD(per_cpu_ptr(&blkrelay_stop_csd, cpu), stop_here, NULL);
	init_irq_work(&freeze_irq_work, queue_freeze_work);
}

/* From a probe, whatever its caller holds: a work item may be queued only from elsewhere. */
void blkrelay_freeze_later(void)
{
	irq_work_queue(&freeze_irq_work);
}

static void nothing(void *unused)
{
}

/* Nothing of a freeze is under way when this returns, if none is asked for any more. May sleep. */
void blkrelay_freeze_wait(void)
{
	unsigned int cpu;

	irq_work_sync(&freeze_irq_work);
	flush_work(&freeze_work);

	cpus_read_lock();
	for_each_online_cpu(cpu) {
		/* The call is unlocked when it begins; one that is made then is answered after it. */
		smp_cond_load_relaxed(&per_cpu_ptr(&blkrelay_stop_csd, cpu)->node.u_flags,
				      !(VAL & CSD_FLAG_LOCK));
		smp_call_function_single(cpu, nothing, NULL, true);
	}
	cpus_read_unlock();
}

bool blkrelay_locked_down(void)
{
	return security_locked_down(LOCKDOWN_DEBUGFS) != 0;
}

/* ---- Tracepoints ----------------------------------------------------------------------------- */

void blkrelay_synchronize_probes(void)
{
	tracepoint_synchronize_unregister();
}

/*
 * A probe is registered as a void pointer. This is where the compiler compares it with the
 * tracepoint; the Rust side compares its definitions with the same declarations (probes.rs).
 */
static void __maybe_unused blkrelay_check_signatures(void)
{
	check_trace_callback_type_block_bio_queue(blkrelay_probe_bio_queue);
	check_trace_callback_type_block_getrq(blkrelay_probe_getrq);
	check_trace_callback_type_block_bio_backmerge(blkrelay_probe_bio_backmerge);
	check_trace_callback_type_block_bio_frontmerge(blkrelay_probe_bio_frontmerge);
	check_trace_callback_type_block_rq_insert(blkrelay_probe_rq_insert);
	check_trace_callback_type_block_rq_requeue(blkrelay_probe_rq_requeue);
	check_trace_callback_type_block_rq_issue(blkrelay_probe_rq_issue);
	check_trace_callback_type_block_rq_merge(blkrelay_probe_rq_merge);
	check_trace_callback_type_block_rq_complete(blkrelay_probe_rq_complete);
	check_trace_callback_type_block_plug(blkrelay_probe_plug);
	check_trace_callback_type_block_unplug(blkrelay_probe_unplug);
	check_trace_callback_type_block_split(blkrelay_probe_split);
	check_trace_callback_type_block_bio_remap(blkrelay_probe_bio_remap);
	check_trace_callback_type_block_bio_complete(blkrelay_probe_bio_complete);
	check_trace_callback_type_block_bio_queue(blkrelay_probe_bio_queue_detail);
	check_trace_callback_type_block_rq_error(blkrelay_probe_rq_error);
	check_trace_callback_type_block_rq_remap(blkrelay_probe_rq_remap);
	check_trace_callback_type_block_rq_tag_wait(blkrelay_probe_rq_tag_wait);
	check_trace_callback_type_block_io_start(blkrelay_probe_io_start);
	check_trace_callback_type_block_io_done(blkrelay_probe_io_done);
	check_trace_callback_type_blkdev_zone_mgmt(blkrelay_probe_zone_mgmt);
	check_trace_callback_type_disk_zone_wplug_add_bio(blkrelay_probe_zone_plug);
	check_trace_callback_type_blk_zone_wplug_bio(blkrelay_probe_zone_unplug);
	check_trace_callback_type_blk_zone_append_update_request_bio(blkrelay_probe_zone_append);
	check_trace_callback_type_block_bio_queue(blkrelay_probe_span_queue);
	check_trace_callback_type_block_split(blkrelay_probe_span_split);
	check_trace_callback_type_block_rq_issue(blkrelay_probe_span_issue);
	check_trace_callback_type_block_rq_complete(blkrelay_probe_span_complete);
	check_trace_callback_type_block_bio_complete(blkrelay_probe_span_bio_complete);
	check_trace_callback_type_block_rq_remap(blkrelay_probe_span_remap);
}

/* ---- Readers --------------------------------------------------------------------------------- */

/*
 * In module memory and not in struct rchan_buf: an epoll set keeps a pointer to @wait until its
 * file is closed, and an open file keeps the module, but not the channel.
 */
struct blkrelay_reader {
	wait_queue_head_t wait;
	struct irq_work work;
	atomic_t taken;
};

static DEFINE_PER_CPU(struct blkrelay_reader, blkrelay_readers);

static void blkrelay_reader_wake_work(struct irq_work *work)
{
	struct blkrelay_reader *reader = container_of(work, struct blkrelay_reader, work);

	wake_up_interruptible_all(&reader->wait);
}

void blkrelay_readers_init(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct blkrelay_reader *reader = per_cpu_ptr(&blkrelay_readers, cpu);

		init_waitqueue_head(&reader->wait);
		init_irq_work(&reader->work, blkrelay_reader_wake_work);
		atomic_set(&reader->taken, 0);
	}
}

/* No wake-up is under way when this returns, and none is asked for any more. */
void blkrelay_readers_sync(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		irq_work_sync(&per_cpu_ptr(&blkrelay_readers, cpu)->work);
}

/* A stream has one reader at a time: what read() hands out is consumed. */
bool blkrelay_reader_take(unsigned int cpu)
{
	return !atomic_xchg(&per_cpu_ptr(&blkrelay_readers, cpu)->taken, 1);
}

void blkrelay_reader_release(unsigned int cpu)
{
	atomic_set_release(&per_cpu_ptr(&blkrelay_readers, cpu)->taken, 0);
}

bool blkrelay_reader_taken(unsigned int cpu)
{
	return atomic_read(&per_cpu_ptr(&blkrelay_readers, cpu)->taken);
}

void blkrelay_reader_poll(unsigned int cpu, struct file *file, struct poll_table_struct *table)
{
	poll_wait(file, &per_cpu_ptr(&blkrelay_readers, cpu)->wait, table);
}

/*
 * From a probe: possibly with the runqueue's or any other lock held, so the wake-up itself is
 * deferred. The barrier in wq_has_sleeper() pairs with the one in poll_wait().
 */
void blkrelay_reader_wake(unsigned int cpu)
{
	struct blkrelay_reader *reader = per_cpu_ptr(&blkrelay_readers, cpu);

	if (wq_has_sleeper(&reader->wait))
		irq_work_queue(&reader->work);
}
