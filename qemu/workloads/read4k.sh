# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# read4k: 4 KiB O_DIRECT reads, one after the other, of a null_blk disk that completes in the
# submitter. Stands for the block layer's own path with the least around it: the workload on which a
# tracer's cost per I/O shows best. Four events a read: Q G D C.
#
# Source: the loop that block-layer developers use to see a change in the path itself (fio --direct=1
# --bs=4k --iodepth=1 on null_blk), as fixed work: 65536 reads in the window, after 16384
# that bring caches and the tracer's reader to a steady state. Prints one window, `read4k`.

WORKLOAD_DEVICES=/dev/nullb9
# For a tracer that is to trace something else.
IDLE_DEVICE=/dev/nullb8
READS=65536
WARM=16384

workload_setup() {
	for device in $WORKLOAD_DEVICES $IDLE_DEVICE; do
		d=/sys/kernel/config/nullb/${device##*/}
		mkdir "$d"
		echo 1024 >"$d/size"
		echo 4096 >"$d/blocksize"
		echo 0 >"$d/irqmode"
		echo 2 >"$d/queue_mode"
		echo 1 >"$d/submit_queues"
		echo 64 >"$d/hw_queue_depth"
		echo 1 >"$d/power"
	done
}

workload_run() {
	blkrelay-guest read4k --dev $WORKLOAD_DEVICES --warm $WARM --count $READS "$@"
}
