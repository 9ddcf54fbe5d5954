# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# mkfs10: ten volumes at once, each made by mkfs.ext3, then mounted and unmounted one by one.
#
# Source: the workload on which the cost of the block layer's trace points was first argued about
# (2007: ten disks, mkfs.ext3, mount, unmount; 2.1 % within one standard deviation). The ten disks are
# memory-backed null_blk, so that nothing waits for the host; uuid and hash seed are fixed. Fixed work
# of some 280 M instructions. Prints one window, `mkfs10`.

# No name here has a blank.
# shellcheck disable=SC2086
VOLUMES="0 1 2 3 4 5 6 7 8 9"
WORKLOAD_DEVICES=
for n in $VOLUMES; do WORKLOAD_DEVICES="$WORKLOAD_DEVICES /dev/vol$n"; done

workload_setup() {
	for n in $VOLUMES; do
		d=/sys/kernel/config/nullb/vol$n
		mkdir $d
		echo 96 >$d/size
		echo 1 >$d/memory_backed
		echo 4096 >$d/blocksize
		echo 0 >$d/irqmode
		echo 2 >$d/queue_mode
		echo 1 >$d/submit_queues
		echo 64 >$d/hw_queue_depth
		echo 1 >$d/power
		mkdir -p /mnt/vol$n
	done
	cat >/tmp/mkfs10 <<-'END'
		for n in $1; do
			id=00000000-0000-4000-8000-00000000000$n
			/usr/sbin/mke2fs -q -F -t ext3 -J size=6 -E nodiscard,lazy_itable_init=0,hash_seed=$id -U $id \
				/dev/vol$n &
		done
		wait
		for n in $1; do
			mount -t ext3 /dev/vol$n /mnt/vol$n && umount /mnt/vol$n || exit 1
		done
	END
}

workload_run() {
	blkrelay-guest window mkfs10 "$@" -- sh /tmp/mkfs10 "$VOLUMES"
}
