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
	if echo "$1" >$DIR/control 2>/dev/null; then fail "taken: $1"; fi
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

# A driver that moves on in its bios (brd): their spans have the place and the size that they were queued for, and are
# asked for those. 10 of 4 KiB, then 5 of 64 KiB from sector 2048 on.
ram() {
	io --dev /dev/ram0 --direct --count 10
	io --dev /dev/ram0 --direct --count 5 --size 65536 --offset 1048576 --op write
}
# ram_spans COUNT BYTES OPTION...: with these options, so many spans of so many bytes altogether
ram_spans() {
	want="$1 $2"
	shift 2
	rm -f /tmp/ram.blkr
	record_start /tmp/ram.blkr --span -d /dev/ram0 "$@"
	ram
	record_stop
	$BLKRELAY verify /tmp/ram.blkr
	$BLKRELAY dump /tmp/ram.blkr >/tmp/ram.txt
	got=$(awk '$6 == "SP" && / q2c=/ { n++; sectors += $10 } END { print n + 0, sectors * 512 }' /tmp/ram.txt)
	[ "$got" = "$want" ] || fail "spans of ram0 with $*: $got, not $want: $(cat /tmp/ram.txt)"
}
ram_spans 15 368640
ram_spans 10 40960 --op read
ram_spans 5 327680 --size 64K-
ram_spans 10 40960 --size 4K
ram_spans 1 65536 --sector 2048-2175
ram_spans 2 8192 --sector 15-16

# Request-based device mapper: the clone that goes to a path has no Q of its own, and misses none. Its I/O is dm-0's.
# Only the kernels of the stress tests have it.
if dmsetup targets | grep -q ^multipath; then
	null_disk path
	dmsetup create --noudevsync multi --table "0 131072 multipath 0 0 1 1 round-robin 0 1 1 /dev/path 1000" ||
		fail "dmsetup: multipath"
	wait_for "[ -b /dev/dm-0 ]"
	record_start /tmp/multi.blkr --span -d /dev/dm-0 -d /dev/path
	io --dev /dev/dm-0 --direct --count 30
	record_stop
	$BLKRELAY verify /tmp/multi.blkr
	$BLKRELAY dump /tmp/multi.blkr >/tmp/multi.txt
	MULTI=$(sed 's/:/,/' /sys/block/dm-0/dev)
	UNDER=$(sed 's/:/,/' /sys/block/path/dev)
	for want in "$MULTI .* SP .* q2c=.* d2c=" "$UNDER .* SP .* d2c=.* clone"; do
		[ "$(grep -c "^ *$want" /tmp/multi.txt)" = 30 ] || fail "not 30 of $want: $(cat /tmp/multi.txt)"
	done
	$BLKRELAY report /tmp/multi.blkr >/tmp/multi.report
	grep -q ' 0 whose Q was not seen' /tmp/multi.report || fail "clones are missed: $(cat /tmp/multi.report)"
	dmsetup remove --noudevsync multi
fi

# What a driver sends for itself is issued and complete, but nobody has queued it. Only the kernels of the stress tests
# have such a disk.
if [ -b /dev/sda ]; then
	record_start /tmp/sda.blkr --span -d /dev/sda
	io --dev /dev/sda --direct --count 50
	echo 1 >/sys/block/sda/device/rescan
	record_stop
	$BLKRELAY verify /tmp/sda.blkr
	$BLKRELAY dump /tmp/sda.blkr >/tmp/sda.txt
	# Without a place: bytes stand there.
	awk '$6 == "SP" && !/ [+] [0-9]+ / { n++; if (!/ d2c=/ || / q2c=| missed/) bad = 1 }
		END { exit bad || n < 1 }' /tmp/sda.txt || fail "passthrough: $(cat /tmp/sda.txt)"
	[ "$(grep -c ' SP .* + .* q2c=.* d2c=' /tmp/sda.txt)" = 50 ] || fail "not 50 reads: $(cat /tmp/sda.txt)"
fi

control() {
	echo "$1" >$DIR/control || fail "$1: $(status error)"
}

# A flight recorder of spans, which a slow I/O stops.
control "start devices=$(cat /sys/block/plain/dev) span=1 mode=overwrite slower_us=100"
io --dev $PLAIN --direct --count 10
wait_for '[ "$(status state)" = frozen ]'
[ "$(status cause)" = slow ] || fail "frozen by $(status cause)"
control stop

# What is under way when filters change, or the recorder is armed, has neither Q nor issue, and pulls no trigger.
null_disk slow irqmode=2 completion_nsec=400000000
SLOW=$(cat /sys/block/slow/dev)
under_way() {
	blkrelay-guest io --dev /dev/slow --direct --count 1 &
	IO=$!
	wait_for "[ \"\$(tr -s ' ' </sys/block/slow/inflight)\" = ' 1 0' ]"
}
record_start /tmp/slow.blkr --span -d /dev/slow
under_way
control "filter devices=$SLOW"
wait $IO || fail "io"
io --dev /dev/slow --direct --count 1
record_stop
$BLKRELAY verify /tmp/slow.blkr
$BLKRELAY dump /tmp/slow.blkr | awk '$6 == "SP" { print / q2c=/ + 0, / d2c=/ + 0, / missed/ + 0 }' >/tmp/slow.txt
[ "$(tr '\n' , </tmp/slow.txt)" = '0 0 1,1 1 0,' ] || fail "a filter's change: $(cat /tmp/slow.txt)"

control "start devices=$SLOW span=1 mode=overwrite slower_us=100000"
control freeze
under_way
control arm
wait $IO || fail "io"
quiet slow
[ "$(status state)" = running ] || fail "what began before arm has frozen it"
io --dev /dev/slow --direct --count 1
wait_for '[ "$(status state)" = frozen ]'
control stop

# Disks come while traces of spans of all of them begin, end and are closed.
NEW=/sys/kernel/config/nullb/new
null_disk new
touch /tmp/busy
while [ -e /tmp/busy ]; do
	echo 0 >$NEW/power
	echo 1 >$NEW/power
done &
n=0
while [ $n -lt 20 ]; do
	control "start devices=all span=1 subbuf_size=4096 subbufs=2"
	control stop
	n=$((n + 1))
done
rmmod blkrelay
rm /tmp/busy
wait
