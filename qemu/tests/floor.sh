#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Both at once, blkrelay and the floor that it is compared with, must write the same records: of reads and
# writes, with and without a scheduler, on two hardware queues, failed, flushed and discarded.
#
# shellcheck disable=SC1091 # the library is put into the initramfs
set -e
. /lab/lib.sh

null_disk plain size=1024 submit_queues=2
null_disk sched size=1024 submit_queues=2 memory_backed=1 cache_size=4 discard=1
echo mq-deadline >/sys/block/sched/queue/scheduler
null_disk bad badblocks=+0-7

insmod /lab/floor.ko bytes=$((16 << 20))
insmod $MODULE
record_start /tmp/trace.blkr -d /dev/plain -d /dev/sched -d /dev/bad --events Q,G,D,C --subbufs 32

taskset 1 blkrelay-guest io --dev /dev/plain --direct --count 4000 &
a=$!
taskset 2 blkrelay-guest io --dev /dev/plain --direct --count 4000 --op write --offset 16384000 &
b=$!
taskset 2 blkrelay-guest io --dev /dev/sched --direct --count 2000 --op write --batch 16 --random 1 --fsync 64 &
c=$!
wait $a
wait $b
wait $c
blkdiscard -o 0 -l 1048576 /dev/sched
! blkrelay-guest io --dev /dev/bad --direct --count 1 2>/dev/null || fail "a bad block can be read"
quiet plain sched bad
record_stop

cat $DEBUGFS/floor/status
! grep -v 'lost=0$' $DEBUGFS/floor/status || fail "the floor lost records"
echo "@result same=$(blkrelay-guest same /tmp/trace.blkr $DEBUGFS/floor/cpu0 $DEBUGFS/floor/cpu1 | cut -d ' ' -f 1)"
$BLKRELAY dump /tmp/trace.blkr >/tmp/dump
for op in R W D F; do
	awk -v op=$op '$7 ~ op { n++ } END { exit !n }' /tmp/dump || fail "no event with $op: the test tests too little"
done
rmmod blkrelay
rmmod floor
