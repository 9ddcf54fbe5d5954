#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Load, start, stop, kill and unload over and over while disks are busy, on a kernel that checks locks,
# lists, reference counts and memory. That the kernel says nothing is checked outside.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2086
set -e
. /lab/lib.sh

null_disk one
null_disk two irqmode=1
DISK=$(readlink -f /dev/disk0)

touch /tmp/busy
(while [ -e /tmp/busy ]; do
	blkrelay-guest io --dev /dev/one --direct --count 2000 --batch 8
	blkrelay-guest io --dev /dev/two --direct --count 2000 --op write
done) &
a=$!
(while [ -e /tmp/busy ]; do
	blkrelay-guest io --dev "$DISK" --direct --count 500 --batch 4 --random 1
done) &
b=$!

n=0
while [ $n -lt "${LAB_ROUNDS:-12}" ]; do
	n=$((n + 1))
	insmod $MODULE
	$BLKRELAY record -w 0.5 -o /tmp/a.blkr --force >/dev/null 2>&1 || [ $? = 1 ] || fail "record -w"
	$BLKRELAY verify /tmp/a.blkr >/tmp/v || [ $? = 1 ] || fail "round $n: $(cat /tmp/v)"
	# Killed: the trace must stop with it.
	record_start /tmp/b.blkr --force -d /dev/one --subbuf-size 4096 --subbufs 2
	kill -KILL "$RECORD"
	wait "$RECORD" || true
	wait_for '[ "$(status state)" != running ]'
	# By hand, without a reader.
	echo "start devices=all subbuf_size=4096 subbufs=2" >$DIR/control
	wait_for '[ "$(counter 0 events)" -gt 0 ]'
	echo flush >$DIR/control
	echo stop >$DIR/control
	rmmod blkrelay
done
rm /tmp/busy
wait $a
wait $b
echo "@result rounds=$n"
