#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The events that blktrace does not have, and the remapping of requests: each one that ftrace has is one of
# ours, with the same place, size and error, and no other. What makes them: a disk with bad blocks, one with
# two tags, a zoned one, and a multipath device over a fourth.
#
# shellcheck disable=SC1091 # the library is put into the initramfs
set -e
. /lab/lib.sh

EVENTS="block_rq_error block_rq_tag_wait block_io_start block_io_done block_rq_remap blkdev_zone_mgmt
	disk_zone_wplug_add_bio blk_zone_wplug_bio"

null_disk bad
echo '+2048-2055' >/sys/kernel/config/nullb/bad/badblocks
null_disk few hw_queue_depth=2 irqmode=2 completion_nsec=1000000
null_disk zoned zoned=1 zone_size=4 size=64 memory_backed=1 irqmode=2 completion_nsec=1000000
null_disk path size=64
dmsetup create --noudevsync multi --table "0 131072 multipath 0 0 1 1 round-robin 0 1 1 /dev/path 1000" ||
	fail "dmsetup: multipath"
wait_for '[ -b /dev/dm-0 ]'
echo none >/sys/block/few/queue/scheduler

insmod $MODULE
echo 0 >$TRACING/tracing_on
echo 8192 >$TRACING/buffer_size_kb
for event in $EVENTS; do echo 1 >"$TRACING/events/block/$event/enable"; done
record_start /tmp/trace.blkr --events=ERROR,W,IO_START,IO_DONE,RQ_A,ZONE_MGMT,ZONE_PLUG,ZONE_UNPLUG
[ "$(status events)" = RQ_A,ERROR,W,IO_START,IO_DONE,ZONE_MGMT,ZONE_PLUG,ZONE_UNPLUG ] ||
	fail "recorded: $(status events)"
echo 1 >$TRACING/tracing_on

# 33 reads of 4 KiB: the last, at sector 2048, fails and ends it.
dd if=/dev/bad of=/dev/null bs=4k skip=224 count=64 iflag=direct 2>/dev/null || true
blkrelay-guest io --dev /dev/few --direct --count 64 --batch 32 --random 1
blkrelay-guest io --dev /dev/dm-0 --direct --count 30
# Neighbours in one zone, many at once: all but the first wait for the zone.
blkrelay-guest io --dev /dev/zoned --direct --count 64 --batch 16 --op write
/usr/sbin/blkzone reset -o 0 -c 1 /dev/zoned || fail "blkzone"
/usr/sbin/blkzone open -o 8192 -c 1 /dev/zoned || fail "blkzone"
/usr/sbin/blkzone close -o 8192 -c 1 /dev/zoned || fail "blkzone"

quiet bad few zoned path
echo 0 >$TRACING/tracing_on
record_stop
$BLKRELAY verify /tmp/trace.blkr
$BLKRELAY dump /tmp/trace.blkr >/tmp/ours.txt

# Both as "EVENT MAJ,MIN WHAT". Of ftrace's columns those behind the event's name are counted from there.
# part(): what a pattern matches, without so many characters on its left and right.
PART='
	function part(line, pattern, left, right) {
		match(line, pattern)
		return substr(line, RSTART + left, RLENGTH - left - right)
	}
	function extent(line) { return part(line, "[0-9]+ [+] [0-9]+", 0, 0) }
	function origin(line) {
		return part(line, "[0-9]+ [+] [0-9]+ <- [(][0-9]+,[0-9]+[)] [0-9]+", 0, 0)
	}
	function zone(line) { return part(line, "zone [0-9]+", 0, 0) " " extent(line) }'
grep -v '^#' $TRACING/trace | awk "$PART"'
	function kind(name) {
		return name == "block_rq_error:" ? "E" : name == "block_rq_tag_wait:" ? "W" :
			name == "block_io_start:" ? "IS" : name == "block_io_done:" ? "ID" :
			name == "block_rq_remap:" ? "A" : name == "blkdev_zone_mgmt:" ? "ZM" :
			name == "disk_zone_wplug_add_bio:" ? "ZP" : name == "blk_zone_wplug_bio:" ? "ZU" : "?"
	}
	{
		for (i = 1; i <= NF && $i !~ /^(block|blkdev|disk|blk)_.*:$/; i++);
		name = kind($i)
		dev = $(i + 1)
		line = $0
		sub(/.*: /, "", line)
		if (name == "E") what = extent(line) " " $NF
		else if (name == "W")
			what = part(line, "hctx=[0-9]+", 5, 0) " " part(line, "depth=[0-9]+", 6, 0)
		else if (name == "A") what = origin(line)
		else if (name == "ZP" || name == "ZU") what = zone(line)
		else what = extent(line)
		print name, dev, what
	}' | sort >/tmp/theirs
awk "$PART"'
	!/^#/ {
		name = $6
		# blkparse prints an errno as 16 bits without a sign.
		if (name == "E") what = extent($0) " [-" 65536 - part($NF, "[0-9]+", 0, 0) "]"
		else if (name == "W") what = part($0, "hctx [0-9]+", 5, 0) " " part($0, ", [0-9]+ ", 2, 1)
		else if (name == "A") what = origin($0)
		else if (name == "ZP" || name == "ZU") what = zone($0)
		else what = extent($0)
		print name, $1, what
	}' /tmp/ours.txt | sort >/tmp/ours

for event in E W IS ID A ZM ZP ZU; do
	grep -q "^$event " /tmp/ours || fail "no $event"
done
cmp /tmp/theirs /tmp/ours || fail "they differ: $(diff /tmp/theirs /tmp/ours | head -n 20)"
# Independent of ftrace: what was done is known.
[ "$(grep -c '^E ' /tmp/ours)" = 1 ] || fail "errors: $(grep '^E ' /tmp/ours)"
[ "$(grep -c '^A ' /tmp/ours)" = 30 ] || fail "remaps: $(grep -c '^A ' /tmp/ours)"
[ "$(grep -c '^ZM ' /tmp/ours)" = 3 ] || fail "zone management: $(grep '^ZM ' /tmp/ours)"
# Those that wait are merged, so fewer go on.
[ "$(grep -c '^ZP ' /tmp/ours)" -ge "$(grep -c '^ZU ' /tmp/ours)" ] ||
	fail "more writes left a zone's plug than went in"

echo "@result $(cut -d ' ' -f 1 /tmp/ours | sort | uniq -c | awk '{ printf "%s=%s ", $2, $1 }')"
dmsetup remove --noudevsync multi
rmmod blkrelay
