#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Disks are removed while they are used and traced, and come back under the same name: null_blk through
# configfs, and a SCSI disk through sysfs. Traced as one of a list and as one of all, by events and by spans. What
# another disk did meanwhile is there, each event once; of all, each disk that came is told from those before it.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

scsi=/sys/bus/pseudo/drivers/scsi_debug/add_host
COUNT=800

# use DISK: reads until it is gone, which the last read notices. The node is there before the disk is.
use() {
	wait_for "[ -b /dev/$1 ] && [ -e /sys/block/$1/stat ]"
	while [ -e "/sys/block/$1" ]; do
		blkrelay-guest io --dev "/dev/$1" --direct --count 4000 --size 512 --batch 4 2>/dev/null ||
			usleep 20000
	done &
	USING=$!
}

# used DISK: it has done something since it came; who it was is noted in /tmp/came
used() {
	wait_for "[ \$(awk '{ print \$1 }' /sys/block/$1/stat) -gt 20 ]"
	echo "$(cat "/sys/block/$1/dev") $(cat "/sys/block/$1/diskseq")" >>/tmp/came
}

# told: the trace has events of each disk that came, under its number and its sequence number
told() {
	blkrelay-guest disks /tmp/trace.blkr >/tmp/disks || fail "round $n: disks"
	while read -r dev seq; do
		grep -q "^$dev $seq " /tmp/disks || fail "round $n: no disk $dev $seq: $(cat /tmp/disks)"
	done </tmp/came
}

# queue_of DEV DISKSEQ: the queue that the disk had, in the trace
queue_of() {
	sed -n "s/^$1 $2 //p" /tmp/disks
}

remove_null() {
	null_disk gone irqmode=1
	wait_for '[ -b /dev/gone ]'
	use gone
	used gone
	rnd 100000
	usleep $RND
	if [ $((n % 2)) = 0 ]; then
		echo 0 >/sys/kernel/config/nullb/gone/power
	fi
	rmdir /sys/kernel/config/nullb/gone
	wait $USING || true
	[ ! -e /sys/block/gone ] || fail "the disk is still there"
}

remove_scsi() {
	echo 1 >$scsi
	wait_for '[ -b /dev/sda ]'
	use sda
	used sda
	rnd 100000
	usleep $RND
	# Unbound from its driver and bound again: another disk of the same queue.
	before=$(tail -n 1 /tmp/came)
	device=$(basename "$(readlink -f /sys/block/sda/device)")
	echo "$device" >/sys/bus/scsi/drivers/sd/unbind
	wait_for '[ ! -e /sys/block/sda ]'
	wait $USING || true
	echo "$device" >/sys/bus/scsi/drivers/sd/bind
	wait_for '[ -b /dev/sda ]'
	use sda
	used sda
	after=$(tail -n 1 /tmp/came)
	if [ $((n % 2)) = 0 ]; then
		echo 1 >/sys/block/sda/device/delete
		wait_for '[ ! -e /sys/block/sda ]'
		wait $USING || true
		# The same disk, found again.
		for scan in /sys/class/scsi_host/host*/scan; do echo '- - -' >"$scan"; done
		wait_for '[ -b /dev/sda ]'
		use sda
		used sda
	fi
	echo -1 >$scsi
	wait $USING || true
	wait_for '[ ! -e /sys/block/sda ]'
}

load_start
insmod $MODULE
n=0
while [ $n -lt "$LAB_COUNT" ]; do
	progress $n "$LAB_COUNT"
	n=$((n + 1))
	rm -f /tmp/came
	case $((n % 4)) in
	2 | 3) span=--span ;;
	*) span= ;;
	esac
	if [ $((n % 4)) = 3 ] || [ $((n % 4)) = 0 ]; then
		list=yes
		# One of a list: it has to be there when the trace starts.
		null_disk gone irqmode=1
		wait_for '[ -b /dev/gone ]'
		record_start /tmp/trace.blkr --force -d /dev/mine -d /dev/gone \
			--subbuf-size 65536 --subbufs 32 $span
		use gone
		used gone
		rmdir /sys/kernel/config/nullb/gone
		wait $USING || true
	else
		list=
		record_start /tmp/trace.blkr --force --subbuf-size 262144 --subbufs 32 $span
	fi
	blkrelay-guest io --dev /dev/mine --direct --count $COUNT &
	io=$!
	remove_null
	# Another disk, which had the name and the number.
	remove_null
	remove_scsi
	wait $io || fail "io"
	quiet mine
	record_stop
	$BLKRELAY verify /tmp/trace.blkr >/tmp/verify || fail "round $n: $(cat /tmp/verify)"
	blkrelay-guest once --others /tmp/trace.blkr --count $COUNT /dev/mine >/dev/null || fail "round $n"
	[ -z "$list" ] || continue
	told
	# shellcheck disable=SC2086 # a number and a sequence number each
	[ "$(queue_of $before)" = "$(queue_of $after)" ] ||
		fail "round $n: $before and $after did not have one queue: $(cat /tmp/disks)"
done
load_stop
unloaded
result rounds=$n
