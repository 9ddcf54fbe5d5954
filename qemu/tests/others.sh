#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Other tracers come and go on the same tracepoints: ftrace's block events and blktrace. Each record of ours
# must be there once.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

COUNT=3000
n=0
ftraces=0
blktraces=0

# trace: another tracer comes and goes
trace() {
	rnd 3
	if [ "$RND" = 0 ]; then
		/usr/sbin/blktrace -d /dev/mine -d /dev/la -b 64 -n 4 -D /tmp -o other >/dev/null 2>&1 &
		other=$!
		rnd 300000
		usleep $RND
		kill -INT $other 2>/dev/null || true
		wait $other || true
		rm -f /tmp/other.* /tmp/*.blktrace.*
		blktraces=$((blktraces + 1))
	else
		echo 1 >$TRACING/events/block/enable
		rnd 100000
		usleep $RND
		echo 0 >$TRACING/events/block/enable
		ftraces=$((ftraces + 1))
	fi
}

load_start
insmod $MODULE
echo 512 >$TRACING/buffer_size_kb
# How many come in a round is the machine's speed.
while [ $n -lt "$LAB_COUNT" ] || [ $ftraces -lt "$LAB_COUNT" ] || [ $blktraces = 0 ]; do
	progress $n "$LAB_COUNT"
	n=$((n + 1))
	disturbed trace
done
load_stop
unloaded
result rounds=$n ftrace=$ftraces blktrace=$blktraces reads=$((n * COUNT))
