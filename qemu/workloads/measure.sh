#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The job of a measuring boot: set up the workload's devices, bring the tracer into its state, count one
# window, stop the tracer, say what it saw.
#
# What the boot is about stands in /lab/arm (STATE, SUBBUF_SIZE, SUBBUFS, READER), a file of the same length in
# all arms, and not on the kernel's command line: the kernel mixes that one into its entropy, from which,
# among others, the first tag of every queue is drawn; that alone moves a read by 5 instructions in one
# boot of four. So the boots of a pair are alike to the instruction up to the line that reads the file.
#
#   LAB_FORKS   processes forked before anything else: the perturbation's part that the guest does
#   LAB_SYMBOLS not empty: says at which addresses modules have their functions
#
# shellcheck disable=SC1091 # what is read is put into the initramfs
set -e

. /lab/workload.sh
. /lab/states.sh

i=0
while [ $i -lt "${LAB_FORKS:-0}" ]; do
	/bin/true
	i=$((i + 1))
done

workload_setup

# I/Os that the workload's disks completed: reads, writes, discards and flushes.
ios() {
	for device in $WORKLOAD_DEVICES; do cat "/sys/block/${device##*/}/stat"; done |
		awk '{ n += $1 + $5 + $12 + $16 } END { print n }'
}

. /lab/arm

# A state that loads nothing reads the modules all the same.
cat /lab/*.ko >/dev/null
before=$(ios)
state_start "$STATE" "$WORKLOAD_DEVICES"
if [ -n "${LAB_SYMBOLS:-}" ]; then
	sed -n '/\]$/s/^/@symbol /p' /proc/kallsyms
fi
# shellcheck disable=SC2086 # a list of options
workload_run $SINKS
echo "@result traced_ios=$(($(ios) - before))"
state_stop "$STATE"
