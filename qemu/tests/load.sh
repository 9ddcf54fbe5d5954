# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# What the stress tests share besides lib.sh: disks under a mixed load that goes on in the background, and
# checks that the module works, and that nothing of it is left. Sourced.
#
# Kernel parameters that arrive as environment:
#   LAB_COUNT  rounds
#   LAB_SEED   of everything that is drawn
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC2016,SC2034

BEGAN=$(date +%s)
: "${LAB_COUNT:=2}"
SEED=${LAB_SEED:-1}

# rnd N: draws RND, from 0 to N-1
rnd() {
	SEED=$(((SEED * 1103515245 + 12345) & 2147483647))
	RND=$(((SEED >> 8) % $1))
}

# cpu_lines: what the status file says of the CPUs, if there are any
cpu_lines() {
	grep '^cpu=' $DIR/status || true
}

# total: events and losses of all CPUs, from the status file
total() {
	awk '
		/^cpu=/ {
			for (i = 1; i <= NF; i++)
				if (split($i, a, "=") == 2 && (a[1] == "events" || a[1] == "lost")) n += a[2]
		}
		END { print n + 0 }' $DIR/status
}

# progress DONE TOTAL: how far it is, for who waits for it
progress() {
	echo "@progress $1 $2"
}

# result WORD...: a result line with how long it took, and what was drawn by
result() {
	echo "@result $* seed=${LAB_SEED:-1} seconds=$(($(date +%s) - BEGAN))"
}

# Goes on in the background until load_stop: reads and writes of null_blk, single, in bursts that merge, and
# through a linear mapping of a virtio disk; a ramdisk, which has no requests; and a file system with
# fsync and discard. Each worker rests in between, so that four emulated CPUs have time for the test.
#
# The disk "mine" is not part of it: what is done there is known exactly.
load_start() {
	null_disk mine size=1024
	MINE=$(cat /sys/block/mine/dev)
	null_disk la
	null_disk lb irqmode=1
	null_disk lc memory_backed=1 cache_size=4 fua=1 discard=1
	LOAD_DISK=$(readlink -f /dev/disk0)
	dmsetup create --noudevsync lin --table "0 65536 linear $LOAD_DISK 0" || fail "dmsetup"
	wait_for '[ -b /dev/dm-0 ]'
	/usr/sbin/mke2fs -q -F -t ext4 /dev/lc || fail "mke2fs"
	mkdir -p /tmp/fs
	mount -t ext4 -o discard /dev/lc /tmp/fs || fail "mount"
	touch /tmp/busy
	worker blkrelay-guest io --dev /dev/la --direct --count 96 --batch 8
	worker blkrelay-guest io --dev /dev/lb --direct --count 96 --op write --batch 16 \
		--stride -4096 --offset 8388608
	worker blkrelay-guest io --dev /dev/dm-0 --direct --count 24 --op write --batch 4 --random 1 --dsync
	worker blkrelay-guest io --dev /dev/ram0 --direct --count 48
	worker sh -c 'dd if=/dev/zero of=/tmp/fs/a bs=64k count=4 conv=fsync 2>/dev/null; rm /tmp/fs/a; sync'
}

WORKERS=
# Microseconds that a worker rests.
REST=400000

# worker COMMAND...: over and over until load_stop
worker() {
	while [ -e /tmp/busy ]; do
		"$@" || {
			echo "$*: failed" >>/tmp/load.failed
			break
		}
		usleep "$REST"
	done &
	WORKERS="$WORKERS $!"
}

load_stop() {
	rm /tmp/busy
	# shellcheck disable=SC2086 # a list of numbers
	wait $WORKERS
	umount /tmp/fs
	dmsetup remove --noudevsync lin
	[ ! -e /tmp/load.failed ] || fail "the load: $(cat /tmp/load.failed)"
}

SPAN=

# disturbed COMMAND...: traces COUNT reads of "mine" while the command is done over and over; every second time their
# spans. Each sector is read once, so each record must be there once.
disturbed() {
	record_start /tmp/trace.blkr --force -d /dev/mine --subbuf-size 65536 --subbufs 16 $SPAN
	if [ -z "$SPAN" ]; then SPAN=--span; else SPAN=; fi
	blkrelay-guest io --dev /dev/mine --direct --count "$COUNT" &
	io=$!
	while kill -0 $io 2>/dev/null; do
		"$@"
	done
	wait $io || fail "io"
	quiet mine
	record_stop
	$BLKRELAY verify /tmp/trace.blkr >/tmp/verify || fail "$(cat /tmp/verify)"
	blkrelay-guest once /tmp/trace.blkr --count "$COUNT" /dev/mine >/dev/null || fail "not each once"
}

# unloaded: the module goes, and leaves nothing behind
unloaded() {
	rmmod blkrelay || fail "rmmod"
	gone
}

# gone: nothing of the module is there
gone() {
	[ ! -e $DIR ] || fail "left in debugfs: $(ls -R $DIR)"
	[ ! -e /sys/module/blkrelay ] || fail "the module is still there"
	! grep -q '^blkrelay ' /proc/modules || fail "the module is still listed"
}

# works: a trace of one disk starts, counts each of 25 reads, and stops; not one event more is counted
# afterwards
works() {
	echo "start devices=$MINE subbuf_size=4096 subbufs=8" >$DIR/control || fail "start: $(status error)"
	blkrelay-guest io --dev /dev/mine --direct --count 25 || fail "io"
	quiet mine
	echo stop >$DIR/control || fail "stop: $(status error)"
	[ "$(total)" = 100 ] || fail "$(total) events instead of 100: $(cat $DIR/status)"
}

# counts_nothing: no probe is left that counts
counts_nothing() {
	before=$(cpu_lines)
	blkrelay-guest io --dev /dev/mine --direct --count 25 || fail "io"
	[ "$before" = "$(cpu_lines)" ] || fail "a probe is left: $before, and then $(cpu_lines)"
}
