#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Spans beside blktrace: each completion that blktrace sees has a span, with the times that blktrace's events
# have. Requests that are merged, split, in a scheduler and not, in flush sequences, of a file system; then spans
# of a device mapper's bios, a flight recorder's, and what does not go with spans.
#
# shellcheck disable=SC1091,SC2086 # the library is put into the initramfs; names have no blanks
set -e
. /lab/lib.sh

null_disk plain memory_backed=1 cache_size=4 discard=1 irqmode=2 completion_nsec=200000 submit_queues=2 size=256
PLAIN=/dev/plain
io() {
	blkrelay-guest io "$@" || fail "io $*"
}
refused() {
	if echo "$1" >$DEBUGFS/blkrelay/control 2>/dev/null; then fail "taken: $1"; fi
}

insmod $MODULE
refused "start devices=all span=2"
refused "start devices=all span=1 span=1"
refused "start devices=all span=1 events=Q,C"
refused "start devices=all span=1 detail=1"

blktrace_start /tmp/blktrace $PLAIN
record_start /tmp/span.blkr --span -d $PLAIN --subbuf-size 524288 --subbufs 16
[ "$(status span)" = 1 ] || fail "status has no span=1"
io --dev $PLAIN --direct --count 2000
io --dev $PLAIN --direct --count 1000 --batch 32 --random 2 --op write
echo mq-deadline >/sys/block/plain/queue/scheduler
io --dev $PLAIN --direct --count 1000 --batch 32 --random 1
io --dev $PLAIN --direct --count 256 --batch 16 --op write --offset 16777216
echo 64 >/sys/block/plain/queue/max_sectors_kb
io --dev $PLAIN --direct --count 20 --size 1048576
io --dev $PLAIN --direct --count 20 --op write --fsync 4
/usr/sbin/mke2fs -q -F -t ext4 $PLAIN
mount -t ext4 $PLAIN /mnt
for n in 1 2 3 4; do dd if=/dev/zero of=/mnt/$n bs=64k count=16 conv=fsync 2>/dev/null; done
umount /mnt
sync
quiet plain
blktrace_stop
record_stop
cat /tmp/record.log
$BLKRELAY verify /tmp/span.blkr
$BLKRELAY report /tmp/span.blkr
blkrelay-guest spans --trace /tmp/span.blkr --blktrace /tmp/blktrace

# A bio-based driver: its bios have spans, without an issue.
dmsetup create --noudevsync linear --table "0 16384 linear $PLAIN 32768"
wait_for "[ -b /dev/dm-0 ]"
record_start /tmp/dm.blkr --span -d /dev/dm-0
io --dev /dev/dm-0 --direct --count 100
record_stop
$BLKRELAY verify /tmp/dm.blkr
[ "$($BLKRELAY dump /tmp/dm.blkr | grep -c ' SP .* q2c=')" = 100 ] || fail "not 100 spans of dm-0"
dmsetup remove --noudevsync linear

# A flight recorder of spans, which a slow I/O stops.
echo "start devices=$(cat /sys/block/plain/dev) span=1 mode=overwrite slower_us=100" >$DEBUGFS/blkrelay/control
io --dev $PLAIN --direct --count 10
wait_for '[ "$(status state)" = frozen ]'
[ "$(status cause)" = slow ] || fail "frozen by $(status cause)"
echo stop >$DEBUGFS/blkrelay/control
rmmod blkrelay
