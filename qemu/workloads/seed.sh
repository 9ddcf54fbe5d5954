#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# seed: the job of a boot that is traced, on real virtio-blk disks with as many CPUs as the guest has.
# On four disks at once: mkfs, mount, write files, fsync, drop the caches, read back, delete, unmount;
# ext3 on two of them, ext4 on the others.
#
# Source: the 2007 workload on which the cost of block tracing was argued about (mkfs.ext3, mount and
# unmount on ten disks), with files written and read in between, so that requests of all kinds appear: data,
# journal, flushes, discards. Fixed work, some 3000 I/Os.
#
# Prints nothing of its own. Leaves /out/trace.blkr, and what the recorder said in /out/record.txt.
set -e

run_disk() {
	disk=$1 fs=$2 dir=/mnt/${1##*/}
	mkdir -p "$dir"
	/usr/sbin/mke2fs -q -F -t "$fs" "$disk"
	mount -t "$fs" "$disk" "$dir"
	for n in 1 2 3 4 5 6 7 8; do
		dd if=/dev/urandom of="$dir/file$n" bs=64k count=8 conv=fsync 2>/dev/null
	done
	# Small synchronous writes, as a database's log makes them.
	: >"$dir/log"
	blkrelay-guest io --dev "$dir/log" --op write --count 32 --dsync
	cat "$dir"/file* | md5sum >/tmp/sum.before."$fs.${disk##*/}"
	umount "$dir"
	mount -t "$fs" "$disk" "$dir"
	cat "$dir"/file* | md5sum >/tmp/sum.after."$fs.${disk##*/}"
	cmp /tmp/sum.before."$fs.${disk##*/}" /tmp/sum.after."$fs.${disk##*/}"
	rm "$dir"/file*
	umount "$dir"
}

if [ "$1" = run ]; then
	run_disk /dev/disk0 ext3 &
	a=$!
	run_disk /dev/disk1 ext4 &
	b=$!
	run_disk /dev/disk2 ext3 &
	c=$!
	run_disk /dev/disk3 ext4 &
	d=$!
	# One by one: only so does the status of each count.
	wait $a
	wait $b
	wait $c
	wait $d
	exit 0
fi

insmod /lab/blkrelay.ko
status=0
/lab/blkrelay record -d /dev/disk0 -d /dev/disk1 -d /dev/disk2 -d /dev/disk3 \
	--everything -o /out/trace.blkr -- sh "$0" run >/out/record.txt 2>&1 || status=$?
cat /out/record.txt
rmmod blkrelay
exit $status
