#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# CPUs go and come in any order while they are traced, and while traces start and stop. Each sector is
# read once, so each record must be there once.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

COUNT=3000
load_start
insmod $MODULE
n=0
moves=0
while [ $n -lt "$LAB_COUNT" ]; do
	n=$((n + 1))
	record_start /tmp/trace.blkr --force -d /dev/mine --subbuf-size 65536 --subbufs 16
	blkrelay-guest io --dev /dev/mine --direct --count $COUNT &
	io=$!
	while kill -0 $io 2>/dev/null; do
		rnd 3
		online=/sys/devices/system/cpu/cpu$((RND + 1))/online
		# One that is the last but one may be busy with the other.
		echo $((1 - $(cat $online))) >$online && moves=$((moves + 1))
		rnd 100000
		usleep $RND
	done
	wait $io || fail "io"
	quiet mine
	record_stop
	$BLKRELAY verify /tmp/trace.blkr >/tmp/verify || fail "round $n: $(cat /tmp/verify)"
	blkrelay-guest once /tmp/trace.blkr --count $COUNT /dev/mine >/dev/null || fail "round $n"
done
for cpu in 1 2 3; do
	echo 1 >/sys/devices/system/cpu/cpu$cpu/online
done
[ $moves -ge $((n * 2)) ] || fail "CPUs moved only $moves times"
load_stop
unloaded
result rounds=$n moves=$moves reads=$((n * COUNT))
