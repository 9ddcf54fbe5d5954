#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The smallest buffers and a reader that does not run: for each CPU, events + lost is exactly the number of
# events that blktrace, with large buffers on the same disks, saw on that CPU; and what the file holds
# and misses adds up to the same.
#
# shellcheck disable=SC1091,SC2086 # the library is put into the initramfs; names have no blanks
set -e
. /lab/lib.sh

null_disk one size=1024
null_disk two size=1024 irqmode=1
DISK=$(readlink -f /dev/disk0)

insmod $MODULE
blktrace_start /tmp/blktrace /dev/one /dev/two "$DISK"
record_start /tmp/trace.blkr -d /dev/one -d /dev/two -d "$DISK" --subbuf-size 4096 --subbufs 2
kill -STOP "$RECORD"

taskset 1 blkrelay-guest io --dev /dev/one --direct --count 3000 &
a=$!
taskset 2 blkrelay-guest io --dev /dev/two --direct --count 3000 --batch 16 &
b=$!
taskset 1 blkrelay-guest io --dev "$DISK" --direct --count 1000 --op write --batch 8 &
c=$!
wait $a
wait $b
wait $c
# The reader runs again in the midst of it, and is stopped again.
kill -CONT "$RECORD"
taskset 2 blkrelay-guest io --dev /dev/one --direct --count 500
kill -STOP "$RECORD"
taskset 1 blkrelay-guest io --dev /dev/two --direct --count 2000
taskset 2 blkrelay-guest io --dev /dev/two --direct --count 2000
quiet one two "${DISK##*/}"
kill -CONT "$RECORD"
kill -INT "$RECORD"
code=0
wait "$RECORD" || code=$?
cat /tmp/record.log
[ $code = 1 ] || fail "a recording with losses ends with $code, not 1"
grep -q 'lost for want of room' /tmp/record.log || fail "the losses are not said"
blktrace_stop

blkrelay-guest totals /tmp/trace.blkr >/tmp/totals
cat /tmp/totals
for cpu in 0 1; do
	events=$(counter $cpu events) lost=$(counter $cpu lost)
	seen=$(blkrelay-guest count-blktrace /tmp/blktrace/*.blktrace.$cpu)
	echo "@result cpu=$cpu events=$events lost=$lost blktrace=$seen"
	[ "$lost" -gt 1000 ] || fail "CPU $cpu lost only $lost: the test tests nothing"
	[ $((events + lost)) = "$seen" ] || fail "CPU $cpu: $events + $lost is not $seen"
	grep -qx "$cpu $events $lost" /tmp/totals || fail "CPU $cpu: the file says something else"
done
code=0
$BLKRELAY verify /tmp/trace.blkr || code=$?
[ $code = 1 ] || fail "verify ends with $code for a trace with losses"
rmmod blkrelay
