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
load_start
insmod $MODULE
echo 512 >$TRACING/buffer_size_kb
n=0
ftraces=0
blktraces=0
while [ $n -lt "$LAB_COUNT" ]; do
	n=$((n + 1))
	record_start /tmp/trace.blkr --force -d /dev/mine --subbuf-size 65536 --subbufs 16
	blkrelay-guest io --dev /dev/mine --direct --count $COUNT &
	io=$!
	while kill -0 $io 2>/dev/null; do
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
	done
	wait $io || fail "io"
	quiet mine
	record_stop
	$BLKRELAY verify /tmp/trace.blkr >/tmp/verify || fail "round $n: $(cat /tmp/verify)"
	blkrelay-guest once /tmp/trace.blkr --count $COUNT /dev/mine >/dev/null || fail "round $n"
done
[ $ftraces -ge "$n" ] || fail "ftrace came only $ftraces times"
[ $blktraces -ge 1 ] || fail "blktrace never came"
load_stop
unloaded
result rounds=$n ftrace=$ftraces blktrace=$blktraces reads=$((n * COUNT))
