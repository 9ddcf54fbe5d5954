#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# blkrelay, blktrace and ftrace on the same disks at once: every event of one is an event of the others,
# on the same CPU and in the same order. What has to be made alike stands in compare.rs of the lab. The
# workload makes each of Q G I D C M F R X A, or the test fails.
#
# In count mode one CPU and null_blk; under emulation two CPUs and virtio-blk.
#
# shellcheck disable=SC1091,SC2086 # the library is put into the initramfs; names have no blanks
set -e
. /lab/lib.sh

if [ "$LAB_MODE" = count ]; then
	# Memory-backed with a cache, so that flushes and FUA go to the disk; "slow" answers busy beyond its
	# bandwidth, which is what makes a requeue.
	null_disk plain memory_backed=1 cache_size=4 fua=1 discard=1
	null_disk slow mbps=2
	PLAIN=/dev/plain SLOW=/dev/slow
else
	# Queues of 2048 requests on rings of 1024 entries, and disk1 has a low limit on I/Os a second: its ring
	# is filled by as many, which makes a requeue.
	PLAIN=$(readlink -f /dev/disk0) SLOW=$(readlink -f /dev/disk1)
fi
plain=${PLAIN##*/} slow=${SLOW##*/}

# A partition and a linear mapping: two kinds of remap.
printf 'n\np\n1\n2048\n+8M\nw\n' | fdisk "$PLAIN" >/dev/null 2>&1 || true
wait_for "[ -b ${PLAIN}1 ] || [ -b ${PLAIN}p1 ]"
PART=${PLAIN}1
[ -b "$PART" ] || PART=${PLAIN}p1
dmsetup create --noudevsync linear --table "0 16384 linear $PLAIN 32768"
DM=/dev/dm-0
wait_for "[ -b $DM ]"

echo none >"/sys/block/$plain/queue/scheduler"
echo none >"/sys/block/$slow/queue/scheduler"
echo 64 >"/sys/block/$plain/queue/max_sectors_kb"

io() {
	blkrelay-guest io "$@" || fail "io $*"
}

insmod $MODULE
record_start /tmp/trace.blkr -d "$PLAIN" -d "$SLOW" -d "$DM" --subbuf-size 524288 --subbufs 32
blktrace_start /tmp/blktrace "$PLAIN" "$SLOW" "$DM"
ftrace_start

# Q G D C; X: larger than the queue takes; A: through a partition and a mapping.
io --dev "$PLAIN" --direct --count 500
io --dev "$PLAIN" --direct --count 20 --size 1048576
io --dev "$PART" --direct --count 50 --op write
io --dev "$DM" --direct --count 50 --op write
io --dev "$DM" --direct --count 4 --size 1048576
# Many at once, by two tasks: on each of two CPUs.
io --dev "$PLAIN" --direct --count 2000 --batch 32 --random 1 &
one=$!
io --dev "$PLAIN" --direct --count 2000 --batch 32 --random 2 --op write &
two=$!
wait $one || fail "one"
wait $two || fail "two"
# M upwards, F downwards: neighbours in one plug.
io --dev "$PLAIN" --direct --count 256 --batch 16 --op write --offset 16777216
io --dev "$PLAIN" --direct --count 256 --batch 16 --op write --offset 20971520 --stride -4096
# R: more at once than the disk takes. I: through a scheduler.
io --dev "$SLOW" --direct --count 2048 --batch 2048 --random 3
echo mq-deadline >"/sys/block/$slow/queue/scheduler"
io --dev "$SLOW" --direct --count 192 --batch 64 --random 4
io --dev "$SLOW" --direct --count 128 --batch 64 --random 5 --op write
# Flushes and FUA, data and zeroes, discards: some of these blktrace drops.
io --dev "$PLAIN" --direct --count 20 --op write --dsync
io --dev "$PLAIN" --direct --count 20 --op write --fsync 4
blkdiscard -o 1048576 -l 1048576 "$DM"
# Two file systems' own traffic, written back by kernel threads.
/usr/sbin/mke2fs -q -F -t ext4 "$DM"
mount -t ext4 $DM /mnt
for n in 1 2 3 4; do dd if=/dev/zero of=/mnt/$n bs=64k count=4 conv=fsync 2>/dev/null; done
umount /mnt
sync

# Nothing may be under way when the tracers stop one after the other.
for dir in /sys/block/*; do quiet "${dir##*/}"; done
ftrace_stop /tmp/ftrace
blktrace_stop
record_stop
cat /tmp/record.log
$BLKRELAY verify /tmp/trace.blkr
blkrelay-guest compare --trace /tmp/trace.blkr --blktrace /tmp/blktrace --ftrace /tmp/ftrace
dmsetup remove --noudevsync linear
rmmod blkrelay
