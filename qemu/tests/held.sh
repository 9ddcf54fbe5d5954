#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Files that are held open keep the module, whichever they are; and opening them as it comes and goes
# leads to nothing but "not there" or "busy".
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

# refused WHAT: the module does not go, because it is in use (EAGAIN of delete_module)
refused() {
	if rmmod blkrelay 2>/tmp/err; then
		fail "unloaded with $1 open"
	fi
	grep -q 'temporarily unavailable' /tmp/err || fail "with $1 open, for another reason: $(cat /tmp/err)"
	checks=$((checks + 1))
}

load_start
checks=0
n=0
while [ $n -lt "$LAB_COUNT" ]; do
	progress $n "$LAB_COUNT"
	n=$((n + 1))
	insmod $MODULE
	exec 8>$DIR/control
	refused control
	exec 8>&-
	exec 8<$DIR/status
	refused status
	exec 8<&-
	echo "start devices=$MINE subbuf_size=4096 subbufs=8" >$DIR/control
	for cpu in 0 1 2 3; do
		exec 8<$DIR/data$cpu
		refused "data$cpu"
		blkrelay-guest io --dev /dev/mine --direct --count 25
		quiet mine
		exec 8<&-
	done
	# Held by a process that sleeps in it: still open when the trace has ended.
	sh -c 'exec sleep 1000' <$DIR/data0 &
	holder=$!
	wait_for '[ "$(counter 0 open)" = 1 ]'
	echo stop >$DIR/control
	refused "data0, in a process that sleeps"
	if echo "start devices=$MINE" 2>/dev/null >$DIR/control; then
		fail "a new trace took the files of an open one"
	fi
	[ "$(total)" = 400 ] || fail "$(total) events instead of 400"
	kill -KILL $holder
	wait $holder || true
	unloaded

	# Opened and closed all the time, by three at once, while it comes and goes.
	touch /tmp/open
	openers=
	for who in 1 2 3; do
		while [ -e /tmp/open ]; do
			cat $DIR/status $DIR/data$who 2>/dev/null
			echo "start devices=all subbuf_size=4096 subbufs=4 hold=1" 2>/dev/null >$DIR/control
		done >/dev/null &
		openers="$openers $!"
	done
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		insmod $MODULE
		wait_for 'rmmod blkrelay 2>/dev/null'
		gone
	done
	rm /tmp/open
	# shellcheck disable=SC2086 # a list of numbers
	wait $openers || true
done
load_stop
result rounds=$n refused=$checks
