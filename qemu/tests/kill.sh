#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The reader is killed by -9 at a random moment, from before it has begun to after it has recorded for a
# while: the trace ends with it, no probe is left, what was written is readable, and the next trace works.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

load_start
insmod $MODULE
n=0
running=0
readable=0
while [ $n -lt "$LAB_COUNT" ]; do
	progress $n "$LAB_COUNT"
	n=$((n + 1))
	rm -f /tmp/killed.blkr
	$BLKRELAY record -o /tmp/killed.blkr --subbuf-size 16384 --subbufs 8 >/tmp/record.log 2>&1 &
	reader=$!
	# Every fourth has begun to write for certain, however slow the machine is.
	[ $((n % 4)) != 0 ] || wait_for '[ -s /tmp/killed.blkr ]'
	rnd 1500000
	usleep $RND
	[ "$(status state)" != running ] || running=$((running + 1))
	kill -KILL $reader || fail "the reader was gone: $(cat /tmp/record.log)"
	wait $reader || true
	wait_for '[ "$(status state)" != running ]'
	counts_nothing
	if [ -s /tmp/killed.blkr ]; then
		code=0
		$BLKRELAY dump /tmp/killed.blkr >/dev/null 2>/tmp/err || code=$?
		[ $code -le 1 ] || fail "what was written is not readable: $(cat /tmp/err)"
		readable=$((readable + 1))
	fi
	works
done
load_stop
unloaded
result rounds=$n running=$running readable=$readable
