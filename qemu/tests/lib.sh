# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# What the guest tests share. Sourced by /job. Conditions are given in quotes to be evaluated later, and
# some of the names are for the tests.
# shellcheck disable=SC2016,SC2034

BLKRELAY=/lab/blkrelay
MODULE=/lab/blkrelay.ko
DEBUGFS=/sys/kernel/debug
DIR=$DEBUGFS/blkrelay
TRACING=/sys/kernel/tracing

fail() {
	echo "FAILED: $*"
	exit 1
}

# Waits up to 20 s until a condition holds.
wait_for() {
	tries=0
	until eval "$1"; do
		tries=$((tries + 1))
		[ $tries -lt 400 ] || fail "waiting in vain for: $1"
		sleep 0.05
	done
}

# quiet DISK...: waits until no request of these disks is under way
quiet() {
	for disk in "$@"; do
		wait_for "[ \"\$(tr -s ' ' <'/sys/block/$disk/inflight')\" = ' 0 0' ]"
	done
}

# status KEY: the value of KEY= in the status file
status() {
	sed -n "s/^$1=//p" $DIR/status
}

# counter CPU KEY: a counter in the line of that CPU
counter() {
	grep "^cpu=$1 " $DIR/status | tr ' ' '\n' | sed -n "s/^$2=//p"
}

# null_disk NAME [KEY=VALUE]...: a null_blk disk with inline completion unless told otherwise
null_disk() {
	disk=/sys/kernel/config/nullb/$1
	shift
	mkdir "$disk"
	for pair in irqmode=0 queue_mode=2 submit_queues=1 hw_queue_depth=64 blocksize=512 size=64 "$@"; do
		echo "${pair#*=}" >"$disk/${pair%%=*}"
	done
	echo 1 >"$disk/power"
}

# Sets up ftrace's block events, all tracers of the block layer on one footing.
ftrace_start() {
	echo 0 >$TRACING/tracing_on
	echo 32768 >$TRACING/buffer_size_kb
	for event in bio_queue getrq rq_insert rq_issue rq_complete rq_requeue rq_merge bio_backmerge \
		bio_frontmerge split bio_remap bio_complete; do
		echo 1 >"$TRACING/events/block/block_$event/enable"
	done
	echo 1 >$TRACING/tracing_on
}

# ftrace_stop DIRECTORY: copies each CPU's events there
ftrace_stop() {
	echo 0 >$TRACING/tracing_on
	echo 0 >$TRACING/events/block/enable
	mkdir -p "$1"
	for cpu in "$TRACING"/per_cpu/cpu*; do
		grep -q '^overrun: 0$' "$cpu/stats" || fail "ftrace lost events"
		cat "$cpu/trace" >"$1/${cpu##*/}"
	done
}

# asleep PID: no thread of this process runs
asleep() {
	! cat /proc/"$1"/task/*/stat | sed 's/.*) //' | grep -qv '^S'
}

# blktrace_start DIRECTORY DEVICE...
blktrace_start() {
	out=$1
	shift
	mkdir -p "$out"
	options=
	for device in "$@"; do options="$options -d $device"; done
	# shellcheck disable=SC2086 # a list of options
	/usr/sbin/blktrace $options -b 512 -n 16 -D "$out" >"$out/log" 2>&1 &
	BLKTRACE=$!
	last=$(readlink -f "$device")
	last=${last##*/}
	# Nothing tells that it is started but this: it is set up, and all its threads wait for data.
	wait_for "[ -e $DEBUGFS/block/$last/trace0 ] && asleep $BLKTRACE && usleep 50000 && asleep $BLKTRACE"
}

blktrace_stop() {
	kill -INT "$BLKTRACE"
	wait "$BLKTRACE" || fail "blktrace ended with $?: $(tail -n 3 "$out/log")"
	! grep -E 'dropped [1-9]' "$out/log" || fail "blktrace lost events"
}

# record_start FILE OPTION...
record_start() {
	file=$1
	shift
	$BLKRELAY record -o "$file" "$@" >/tmp/record.log 2>&1 &
	RECORD=$!
	wait_for '[ "$(status state)" = running ]'
}

record_stop() {
	kill -INT "$RECORD"
	wait "$RECORD" || fail "blkrelay record ended with $?: $(cat /tmp/record.log)"
}
