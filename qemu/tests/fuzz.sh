#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# LAB_COUNT writes of anything to control: half of them by one alone, whose answers are compared with the
# state of the trace, and the rest by four at once. Afterwards a trace works as if nothing had been.
#
# shellcheck disable=SC1091,SC2153 # the libraries are put into the initramfs
set -e
. /lab/lib.sh
. /lab/load.sh

load_start
insmod $MODULE
each=$((LAB_COUNT / 8))
blkrelay-guest fuzz --alone --count $((each * 4)) --seed "$SEED" || fail "alone"
pids=
for who in 1 2 3 4; do
	blkrelay-guest fuzz --count $each --seed $((SEED + who)) &
	pids="$pids $!"
done
for pid in $pids; do
	wait "$pid" || fail "four at once"
done
echo stop 2>/dev/null >$DIR/control || true
[ "$(status state)" != running ] || fail "still running"
works
record_start /tmp/trace.blkr -d /dev/mine
blkrelay-guest io --dev /dev/mine --direct --count 500
quiet mine
record_stop
$BLKRELAY verify /tmp/trace.blkr
blkrelay-guest once /tmp/trace.blkr --count 500 /dev/mine
load_stop
unloaded
result writes=$((each * 8))
