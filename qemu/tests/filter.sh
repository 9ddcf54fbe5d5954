#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What is recorded is what the filter says, no more and no less: each word on its own, several at once, a
# partition, a stack, a command's cgroup; and a filter that is replaced while it is used holds on each CPU up
# to the epoch's end.
#
#   LAB_COUNT  how often the filter is replaced under load
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016
set -e
. /lab/lib.sh

null_disk one size=1024 memory_backed=1 cache_size=4
null_disk two size=1024
null_disk three memory_backed=1 cache_size=4
MINOR=$(cat /sys/block/one/dev)
OTHER=$(cat /sys/block/two/dev)

# Of /dev/one: 10 reads of 4 KiB from sector 0 on, 7 writes of 8 KiB from sector 2048 on; of /dev/two: 5 reads
# of 4 KiB from sector 0 on.
work() {
	blkrelay-guest io --dev /dev/one --direct --count 10
	blkrelay-guest io --dev /dev/one --direct --count 7 --op write --size 8192 --offset 1048576
	blkrelay-guest io --dev /dev/two --direct --count 5
}

# recorded COUNT OPTION...: with these options, of the work's I/Os so many are recorded; each is Q G D C
recorded() {
	want=$1
	shift
	rm -f /tmp/f.blkr
	record_start /tmp/f.blkr "$@"
	work
	record_stop
	$BLKRELAY verify /tmp/f.blkr >/dev/null || fail "verify: $*"
	for letter in Q G D C; do
		got=$($BLKRELAY dump /tmp/f.blkr | awk -v l=$letter '$6 == l' | wc -l)
		[ "$got" = "$want" ] ||
			fail "record $*: $got $letter, not $want: $($BLKRELAY dump /tmp/f.blkr | head -n 20)"
	done
	checks=$((checks + 1))
}
checks=0

insmod $MODULE
recorded 22
recorded 17 -d /dev/one
recorded 5 --dev two
recorded 10 -d /dev/one --op read
recorded 15 --op read
recorded 7 --op write,discard
recorded 0 --op flush,zone,passthrough
# Sectors 8 to 15 and 16 to 23, of both disks.
recorded 4 --sector 15-16
recorded 2 -d /dev/one --sector 15-16
recorded 1 -d /dev/one --sector 15-15
recorded 0 -d /dev/one --sector 80-2047
recorded 7 --size 8K
recorded 22 --size 4K-8192
recorded 15 --size 1-4096
recorded 7 --op write --size 8192 --sector 2048-9999999 -d /dev/one
recorded 0 --op read --size 8192

# flushed COUNT OPTION...: with these options, an fsync of the whole disk is recorded so often, and so is its end,
# from which the flush machinery has taken the flag
flushed() {
	want=$1
	shift
	rm -f /tmp/f.blkr
	record_start /tmp/f.blkr "$@"
	dd if=/dev/null of=/dev/one conv=fsync,notrunc 2>/dev/null || fail "fsync"
	record_stop
	$BLKRELAY verify /tmp/f.blkr >/dev/null || fail "verify: $*"
	$BLKRELAY dump /tmp/f.blkr >/tmp/f.txt
	for letter in Q G D; do
		[ "$(awk -v l=$letter '$6 == l && $7 ~ /F/' /tmp/f.txt | wc -l)" = "$want" ] ||
			fail "record $*: not $want flushes at $letter: $(cat /tmp/f.txt)"
	done
	[ "$(awk '$6 == "C" && $7 ~ /^W/' /tmp/f.txt | wc -l)" = "$want" ] ||
		fail "record $*: not $want flushes at their end: $(cat /tmp/f.txt)"
	rm /tmp/f.blkr
	record_start /tmp/f.blkr --span "$@"
	dd if=/dev/null of=/dev/one conv=fsync,notrunc 2>/dev/null || fail "fsync"
	record_stop
	$BLKRELAY verify /tmp/f.blkr >/dev/null || fail "verify: --span $*"
	$BLKRELAY dump /tmp/f.blkr >/tmp/f.txt
	[ "$(awk '$6 == "SP" && $7 ~ /^W/ && / q2c=/' /tmp/f.txt | wc -l)" = "$want" ] ||
		fail "record --span $*: not $want flushes: $(cat /tmp/f.txt)"
	checks=$((checks + 2))
}

# sequences OPTION...: with these options, of each write that goes through the flush machinery its data and its end are
# recorded: a commit of the journal, of 4 KiB
sequences() {
	rm -f /tmp/f.blkr
	record_start /tmp/f.blkr -d /dev/three "$@"
	for n in 1 2 3; do dd if=/dev/zero of=/mnt/$n bs=16k count=1 conv=fsync 2>/dev/null || fail "fsync"; done
	record_stop
	$BLKRELAY verify /tmp/f.blkr >/dev/null || fail "verify: $*"
	$BLKRELAY dump /tmp/f.blkr >/tmp/f.txt
	# The end has the sector, and no size.
	awk '$6 == "Q" && $7 ~ /^FW/ && $10 == 8 { print $8 }' /tmp/f.txt | sort -n >/tmp/f.queued
	awk '$6 == "C" && $7 ~ /^W/ && $9 != "+" && $8 > 0 { print $8 }' /tmp/f.txt | sort -n >/tmp/f.ended
	[ "$(wc -l </tmp/f.queued)" -ge 3 ] || fail "record $*: too few commits: $(cat /tmp/f.txt)"
	cmp /tmp/f.queued /tmp/f.ended || fail "record $*: their ends are not those: $(cat /tmp/f.txt)"
	checks=$((checks + 1))
}

# A partition: what touches it, and its disk's flushes; its number in a list with another disk's.
printf 'n\np\n1\n2048\n+1M\nn\np\n2\n4096\n+1M\nw\n' | fdisk /dev/one >/dev/null 2>&1 || true
wait_for '[ -b /dev/one2 ]'
recorded 7 -d /dev/one1
recorded 0 -d /dev/one2
recorded 12 -d /dev/one1 -d /dev/two
flushed 1 -d /dev/one
flushed 1 -d /dev/one2
flushed 1 --op flush
flushed 0 -d /dev/two
# It is nowhere.
flushed 0 --sector 0-

# A stack: the mapping alone, and with what is under it.
dmsetup create --noudevsync stack --table "0 16384 linear /dev/two 0"
wait_for '[ -b /dev/dm-0 ]'
for option in '' --stack; do
	rm -f /tmp/f$option.blkr
	# shellcheck disable=SC2086 # no option, or one
	record_start /tmp/f$option.blkr -d /dev/dm-0 $option
	blkrelay-guest io --dev /dev/dm-0 --direct --count 6
	record_stop
	$BLKRELAY verify /tmp/f$option.blkr
	$BLKRELAY dump /tmp/f$option.blkr >/tmp/f$option.txt
done
DM=$(sed 's/:/,/' /sys/block/dm-0/dev)
UNDER=$(sed 's/:/,/' /sys/block/two/dev)
[ "$(grep -c "^ *$DM .* Q " /tmp/f.txt)" = 6 ] || fail "the mapping's own: $(cat /tmp/f.txt)"
! grep -q "^ *$UNDER .* D " /tmp/f.txt || fail "the disk under it was traced without --stack"
[ "$(grep -c "^ *$UNDER .* D " /tmp/f--stack.txt)" = 6 ] ||
	fail "not the disk under it: $(cat /tmp/f--stack.txt)"
dmsetup remove --noudevsync stack
checks=$((checks + 2))

# Writes with a flush before and behind them: three has a cache, and no FUA.
/usr/sbin/mke2fs -q -F -t ext4 -b 4096 /dev/three
mkdir -p /mnt
mount -t ext4 /dev/three /mnt
sequences
sequences --op flush
sequences --op write --size 4K
umount /mnt

# A command in a cgroup of its own, and its children; not what runs beside it. Its write-back as well.
mkdir -p /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null || true
mount -t ext4 /dev/three /mnt
touch /tmp/busy
while [ -e /tmp/busy ]; do blkrelay-guest io --dev /dev/one --direct --count 50; done &
beside=$!
$BLKRELAY record -o /tmp/cg.blkr --force -- sh -c 'blkrelay-guest io --dev /dev/two --direct --count 11 &
	wait; dd if=/dev/zero of=/mnt/file bs=64k count=8 2>/dev/null; sync' 2>/tmp/err ||
	fail "record COMMAND: $(cat /tmp/err)"
rm /tmp/busy
wait $beside || fail "the reads beside it"
$BLKRELAY verify /tmp/cg.blkr
$BLKRELAY dump /tmp/cg.blkr >/tmp/cg.txt
[ "$(grep -c "^ *$UNDER .* Q " /tmp/cg.txt)" = 11 ] || fail "the command's reads: $(head -n 40 /tmp/cg.txt)"
! grep -q "^ *$(echo "$MINOR" | tr : ,) " /tmp/cg.txt || fail "others were traced as well"
THREE=$(sed 's/:/,/' /sys/block/three/dev)
written=$(awk -v dev="$THREE" '
	$1 == dev && $6 == "Q" && $7 ~ /W/ { n += $10 } END { print n + 0 }' /tmp/cg.txt)
[ "$written" -ge 1024 ] ||
	fail "of the command's 1024 sectors of write-back $written were seen: $(cat /tmp/cg.txt)"
umount /mnt
[ -z "$(ls -d /sys/fs/cgroup/blkrelay* 2>/dev/null)" ] || fail "a cgroup is left"
checks=$((checks + 3))

# Replaced under load, by filters that let everything pass: nothing is missing, nothing is there twice.
COUNT=20000
record_start /tmp/all.blkr -d /dev/one -d /dev/two --subbufs 64
blkrelay-guest io --dev /dev/one --direct --count $COUNT &
a=$!
blkrelay-guest io --dev /dev/two --direct --count $COUNT &
b=$!
n=0
while kill -0 $a 2>/dev/null || kill -0 $b 2>/dev/null; do
	for filter in 'devices=all' "devices=$MINOR,$OTHER op=read" \
		'devices=all sector=0-99999999 size=512-65536' "devices=$OTHER,$MINOR"; do
		echo "filter $filter" >$DIR/control || fail "$filter: $(status error)"
		n=$((n + 1))
	done
done
wait $a || fail "the reads of one"
wait $b || fail "the reads of two"
record_stop
$BLKRELAY verify /tmp/all.blkr
blkrelay-guest once /tmp/all.blkr --count $COUNT /dev/one /dev/two
[ $n -ge 8 ] || fail "replaced only $n times"

# Replaced under load, by filters that exclude each other: of each epoch there is only what it lets pass.
record_start /tmp/turns.blkr -d /dev/one --op read --subbufs 64
touch /tmp/busy
for dev in one two; do
	for op in read write; do
		while [ -e /tmp/busy ]; do
			blkrelay-guest io --dev /dev/$dev --direct --count 500 --op $op
		done &
	done
done
i=0
while [ $i -lt "${LAB_COUNT:-20}" ]; do
	echo "filter devices=$OTHER op=write" >$DIR/control
	echo "filter devices=$MINOR op=read" >$DIR/control
	i=$((i + 1))
done
record_stop
rm /tmp/busy
wait
$BLKRELAY verify /tmp/turns.blkr
blkrelay-guest epochs /tmp/turns.blkr >/tmp/epochs
awk -v odd="dev=$MINOR op=0" -v even="dev=$OTHER op=1" '
	{ what = $4 " " $5; want = $2 % 2 ? odd : even; n++ }
	what != want || NF != 5 { print "wrong:", $0; bad = 1 }
	END { if (bad) exit 1; print "@result epochs_of_cpus=" n }' /tmp/epochs ||
	fail "an epoch has what it excludes"
[ "$(wc -l </tmp/epochs)" -ge 10 ] || fail "too few epochs: $(cat /tmp/epochs)"
echo "@result checks=$checks replaced=$n,$((2 * i))"
rmmod blkrelay
