#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Four CPUs, each with a hardware queue of its own and as busy as it can be with disks that complete in the
# submitter. With the default buffers and a reader nothing is lost. With a reader that does not run events + lost
# is on each CPU exactly what that CPU did, which is known: each job is bound to its CPU, and a read is Q, G, D
# and C.
#
# shellcheck disable=SC1091,SC2086 # the library is put into the initramfs; a list of options
set -e
. /lab/lib.sh

CPUS="0 1 2 3"
JOBS="0 1 2"
COUNT=25000
EACH=$((3 * COUNT * 4))

disks=
for n in $JOBS; do
	null_disk fast$n size=1024 submit_queues=4
	disks="$disks -d /dev/fast$n"
done

# On each CPU one job a disk; each reads sectors of its own.
load() {
	jobs=
	for cpu in $CPUS; do
		for n in $JOBS; do
			taskset $((1 << cpu)) blkrelay-guest io --dev /dev/fast$n --direct --count $COUNT \
				--offset $((cpu * COUNT * 4096)) &
			jobs="$jobs $!"
		done
	done
	# One by one: only so does the status of each count.
	for job in $jobs; do wait "$job"; done
	for n in $JOBS; do quiet fast$n; done
}

# niceness PID
niceness() {
	sed 's/.*) //' "/proc/$1/stat" | cut -d ' ' -f 17
}

# exact FILE: what the CPUs counted, and what the file holds and misses; sets LOST
exact() {
	blkrelay-guest totals "$1" >/tmp/totals
	LOST=0
	for cpu in $CPUS; do
		events=$(counter $cpu events) lost=$(counter $cpu lost)
		echo "cpu=$cpu events=$events lost=$lost"
		[ $((events + lost)) = $EACH ] || fail "CPU $cpu: $events + $lost is not $EACH"
		grep -qx "$cpu $events $lost" /tmp/totals || fail "the file says something else: $(cat /tmp/totals)"
		LOST=$((LOST + lost))
	done
}

# Three jobs on each CPU that never sleep leave a reader of their priority a quarter of one CPU, and that is too
# little: it comes first, and what it starts does not.
insmod $MODULE
record_start /tmp/trace.blkr $disks
wait_for '[ "$(niceness "$RECORD")" = -20 ]'
load
record_stop
exact /tmp/trace.blkr
[ $LOST = 0 ] || fail "$LOST events lost"
$BLKRELAY verify /tmp/trace.blkr || fail "verify"
blkrelay-guest once /tmp/trace.blkr --count $((4 * COUNT)) /dev/fast0 /dev/fast1 /dev/fast2
read_with=$((4 * EACH))

# COMMAND has the caller's priority; and a reader that somebody made nice stays so.
for nice in 0 7; do
	sh -c 'renice -n "$1" -p $$ && shift && exec "$@"' sh $nice \
		$BLKRELAY record -o /tmp/nice.blkr --force -d /dev/fast0 -- \
		sh -c "sed 's/.*) //' /proc/self/stat | cut -d ' ' -f 17 >/tmp/niceness
			sed 's/.*) //' /proc/\$PPID/stat | cut -d ' ' -f 17 >>/tmp/niceness" 2>/tmp/err ||
		fail "record COMMAND, niceness $nice: $(cat /tmp/err)"
	[ "$(head -n 1 /tmp/niceness)" = $nice ] || fail "COMMAND's niceness is not $nice: $(cat /tmp/niceness)"
done
[ "$(tail -n 1 /tmp/niceness)" = 7 ] || fail "a nice reader is so no more: $(cat /tmp/niceness)"

# The default buffers would hold too much of it.
record_start /tmp/lossy.blkr $disks --subbuf-size 65536 --subbufs 4
kill -STOP "$RECORD"
load
kill -CONT "$RECORD"
kill -INT "$RECORD"
code=0
wait "$RECORD" || code=$?
[ $code = 1 ] || fail "a recording with losses ends with $code, not 1: $(cat /tmp/record.log)"
exact /tmp/lossy.blkr
[ $LOST -gt $((2 * EACH)) ] || fail "only $LOST events lost: the test tests nothing"
rmmod blkrelay
echo "@result events=$read_with lost=0 unread=$((4 * EACH - LOST)) lost_unread=$LOST"
