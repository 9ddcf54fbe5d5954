#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Spans and events of the same run: the module and a second one like it record at the same time, and reports
# of both traces say the same. First of I/Os that stay alone, then of merged and split ones and of flushes.
#
# shellcheck disable=SC1091 # the library is put into the initramfs
set -e
. /lab/lib.sh

null_disk plain memory_backed=1 cache_size=4 irqmode=2 completion_nsec=200000 submit_queues=2 size=256
PLAIN=/dev/plain
io() {
	blkrelay-guest io "$@" || fail "io $*"
}

# both NAME: starts recording /tmp/NAME.spans and /tmp/NAME.events
both() {
	record_start "/tmp/$1.events" -d $PLAIN --subbuf-size 524288 --subbufs 16
	EVENTS=$RECORD
	# The reader finds the other module's files where it looks for its own.
	unshare -m sh -c "mount --bind $DEBUGFS/second $DIR && exec $BLKRELAY record -o /tmp/$1.spans --span \
		-d $PLAIN --subbuf-size 524288 --subbufs 16" >/tmp/spans.log 2>&1 &
	SPANS=$!
	wait_for "grep -qx state=running $DEBUGFS/second/status"
}

# told NAME: ends both, and compares
told() {
	quiet plain
	for RECORD in $SPANS $EVENTS; do record_stop; done
	cat /tmp/spans.log
	$BLKRELAY report "/tmp/$1.spans"
	$BLKRELAY report "/tmp/$1.events"
	blkrelay-guest span-events --spans "/tmp/$1.spans" --events "/tmp/$1.events"
}

insmod $MODULE
insmod /lab/second.ko
both alone
io --dev $PLAIN --direct --count 4000
io --dev $PLAIN --direct --count 4000 --batch 32 --random 1
io --dev $PLAIN --direct --count 4000 --batch 8 --random 2 --op write
told alone

echo mq-deadline >/sys/block/plain/queue/scheduler
echo 64 >/sys/block/plain/queue/max_sectors_kb
both merged
io --dev $PLAIN --direct --count 1024 --batch 16 --op write
io --dev $PLAIN --direct --count 100 --size 1048576
io --dev $PLAIN --direct --count 100 --op write --fsync 4
told merged
rmmod second
rmmod blkrelay
