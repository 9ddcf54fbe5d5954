#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# The flight recorder: what triggers it is in the trace, as the last event of its CPU; each CPU has all its
# events from the oldest that is kept to its stop; it can be armed again, and nothing is handed out while it
# runs.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016
set -e
. /lab/lib.sh

null_disk one size=1024
null_disk two size=1024
null_disk bad
echo '+2048-2055' >/sys/kernel/config/nullb/bad/badblocks
# Slower than a guest that its host keeps waiting makes a fast one.
null_disk slow irqmode=2 completion_nsec=4000000000
dmsetup create --noudevsync over --table "0 16384 linear /dev/slow 0"
wait_for '[ -b /dev/dm-0 ]'

# fly FILE OPTION...: a flight recorder with small buffers, in the background
fly() {
	file=$1
	shift
	rm -f "$file"*
	$BLKRELAY record --flight -o "$file" --subbuf-size 8192 --subbufs 16 "$@" >/tmp/record.log 2>&1 &
	RECORD=$!
	wait_for '[ "$(status state)" = running ]'
}

# landed CAUSE: the recorder has ended by itself, and says what froze it
landed() {
	wait "$RECORD" || fail "record ended with $?: $(cat /tmp/record.log)"
	grep -q "frozen by $1 on CPU" /tmp/record.log || fail "nothing of '$1': $(cat /tmp/record.log)"
	$BLKRELAY verify /tmp/f.blkr >/tmp/verify || fail "$(cat /tmp/verify)"
	$BLKRELAY dump /tmp/f.blkr >/tmp/f.txt
	checks=$((checks + 1))
}
checks=0

# load_both COUNT: reads of two disks in sequence, so that what is kept must be consecutive
load_both() {
	blkrelay-guest io --dev /dev/one --direct --count "$1" &
	one=$!
	blkrelay-guest io --dev /dev/two --direct --count "$1"
	wait $one
}

# consecutive DISK COUNT: of the disk's reads, so many, those kept are all from one on, in order, the last one
# included
consecutive() {
	number=$(sed 's/:/,/' "/sys/block/$1/dev")
	awk -v dev="$number" -v last="$2" '
		$1 == dev && $6 == "C" {
			if (n && $8 != next_) { print "after", next_ - 8, "comes", $8; bad = 1 }
			next_ = $8 + 8
			n++
		}
		END {
			if (bad || !n || next_ != last * 8) { print n + 0, "kept, up to", next_; exit 1 }
		}' /tmp/sorted ||
		fail "$1: not every read to the end"
}

insmod $MODULE

# By hand: nothing comes before, all that is kept afterwards.
fly /tmp/f.blkr -d /dev/one -d /dev/two
load_both 3000
# Opened only: a read of a running recorder is refused for another reason.
if true 2>/dev/null <$DIR/data0; then fail "data0 could be opened twice"; fi
kill -USR1 "$RECORD"
landed 'a freeze written to control'
sort -k4,4n -s /tmp/f.txt >/tmp/sorted
consecutive one 3000
consecutive two 3000
[ "$(grep -c '^# CPU [0-9]* stopped' /tmp/f.txt)" = "$(nproc)" ] ||
	fail "not every CPU says when it stopped: $(grep '^#' /tmp/f.txt)"
kept=$(grep -vc '^#' /tmp/f.txt)
[ "$kept" -lt 24000 ] || fail "nothing was written over"

# The first error. What comes before it is kept, and it is the last event of its CPU.
fly /tmp/f.blkr --on-error
load_both 500
dd if=/dev/bad of=/dev/null bs=4k skip=256 count=1 iflag=direct 2>/dev/null || true
landed 'an I/O error (status 10, errno -5)'
BAD=$(sed 's/:/,/' /sys/block/bad/dev)
cpu=$(awk -v dev="$BAD" '$1 == dev && $6 == "C" { cpu = $2; n++ } END { if (n == 1) print cpu }' /tmp/f.txt)
[ -n "$cpu" ] || fail "the error is not there once: $(grep "^ *$BAD" /tmp/f.txt)"
last=$(awk -v cpu="$cpu" '!/^#/ && $2 == cpu { last = $1 " " $6 " " $8 } END { print last }' /tmp/f.txt)
[ "$last" = "$BAD C 2048" ] || fail "the error is not the last of CPU $cpu: $(tail -n 5 /tmp/f.txt)"

# A latency: of a request, and of a bio that goes through a mapping. Fast ones do not trigger it.
for disk in slow dm-0; do
	fly /tmp/f.blkr -d /dev/$disk -d /dev/one --slower-than 3s
	blkrelay-guest io --dev /dev/one --direct --count 2000
	[ "$(status state)" = running ] || fail "fast reads triggered it"
	blkrelay-guest io --dev /dev/$disk --direct --count 1
	landed 'an I/O that took [0-9.]* s'
	NUMBER=$(sed 's/:/,/' /sys/block/$disk/dev)
	[ "$(awk -v dev="$NUMBER" '$1 == dev && $6 == "C"' /tmp/f.txt | wc -l)" = 1 ] ||
		fail "$disk: the slow one is not there: $(tail /tmp/f.txt)"
done

# Armed again: each freeze has a file of its own, and none has what another has.
fly /tmp/f.blkr -d /dev/one -d /dev/bad --on-error --rearm
for n in 1 2 3; do
	blkrelay-guest io --dev /dev/one --direct --count $((n * 50)) --offset $((n * 1048576))
	dd if=/dev/bad of=/dev/null bs=4k skip=256 count=1 iflag=direct 2>/dev/null || true
	# Armed again, a new epoch begins.
	wait_for "[ \"\$(status epoch)\" = $((n + 1)) ]"
done
kill -INT "$RECORD"
wait "$RECORD" || fail "record ended with $?: $(cat /tmp/record.log)"
ONE=$(sed 's/:/,/' /sys/block/one/dev)
for n in 1 2 3; do
	$BLKRELAY verify /tmp/f.$n.blkr || fail "file $n"
	$BLKRELAY dump /tmp/f.$n.blkr >/tmp/f.txt
	[ "$(grep -c "^ *$BAD .* C " /tmp/f.txt)" = 1 ] || fail "file $n has not one error: $(cat /tmp/f.txt)"
	reads=$(grep -c "^ *$ONE .* D " /tmp/f.txt) || true
	[ "$reads" = $((n * 50)) ] || fail "file $n: $reads reads"
	checks=$((checks + 1))
done

# Without the reader: what is refused, and what a frozen recorder can do.
refuse() {
	if echo "$1" 2>/dev/null >$DIR/control; then fail "control took '$1'"; fi
	status error | grep -q "$2" || fail "$1: error=$(status error)"
	checks=$((checks + 1))
}
echo "start devices=all" >$DIR/control
refuse freeze 'mode=overwrite'
refuse arm 'mode=overwrite'
refuse 'start devices=all mode=overwrite' 'running'
echo stop >$DIR/control
refuse 'start devices=all on_error=1' 'mode=overwrite'
echo "start devices=all mode=overwrite" >$DIR/control
refuse flush 'flight recorder'
refuse arm 'not frozen'
exec 8<$DIR/data0
if dd bs=1M count=1 of=/dev/null <&8 2>/dev/null; then fail "a running recorder was read"; fi
echo freeze >$DIR/control
[ "$(status state)/$(status cause)" = frozen/control ] || fail "freeze: $(status state) $(status cause)"
refuse freeze 'frozen'
refuse 'filter devices=all' 'frozen'
dd bs=1M count=1 of=/tmp/d0 <&8 2>/dev/null || fail "a frozen recorder cannot be read"
[ -s /tmp/d0 ] || fail "a frozen CPU has nothing to say"
echo arm >$DIR/control
[ "$(status state)/$(status cause)" = running/ ] || fail "arm: $(status state) $(status cause)"
if dd bs=1M count=1 of=/dev/null <&8 2>/dev/null; then fail "an armed recorder was read"; fi
echo stop >$DIR/control
dd bs=1M count=1 of=/dev/null <&8 2>/dev/null || fail "a stopped recorder cannot be read"
exec 8<&-
dmsetup remove --noudevsync over
rmmod blkrelay
lag=$(sed -n 's/.* stopped at [0-9.]*, \([0-9.]*\) us after.*/\1/p' /tmp/f.txt | sort -n | tail -n 1)
echo "@result checks=$checks kept=$kept largest_lag_us=$lag"
