#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# An event names its task as it was called then: one that has another name after exec or by /proc/self/comm, with
# and without a Q among the events, and of spans.
#
# shellcheck disable=SC1091 # the library is put into the initramfs
set -e
. /lab/lib.sh

null_disk one
echo none >/sys/block/one/queue/scheduler

insmod $MODULE
for options in '' --events=D,C --events=G --detail --span; do
	rm -f /tmp/t.blkr
	echo 3 >/proc/sys/vm/drop_caches
	# shellcheck disable=SC2086 # one option or none
	record_start /tmp/t.blkr -d /dev/one $options
	# One task all the time: the shell's own reads, then those of another program, which takes its place.
	sh -c 'read -n 1 -r x </dev/one
		printf renamed >/proc/self/task/$$/comm
		echo 3 >/proc/sys/vm/drop_caches
		read -n 1 -r x </dev/one
		exec blkrelay-guest io --dev /dev/one --direct --count 3 --offset 33554432'
	record_stop
	$BLKRELAY verify /tmp/t.blkr >/dev/null || fail "verify: $options"
	$BLKRELAY dump /tmp/t.blkr >/tmp/t.txt
	case $options in
	--span) letter=SP ;;
	--events=D,C) letter=D ;;
	--events=G) letter=G ;;
	*) letter=Q ;;
	esac
	awk -v l=$letter '$6 == l { sub(/^[^[]*\[/, ""); sub(/\].*/, ""); print }' /tmp/t.txt | uniq -c >/tmp/t.names
	awk '{ print $2 }' /tmp/t.names | tr '\n' ' ' >/tmp/t.order
	[ "$(cat /tmp/t.order)" = 'sh renamed blkrelay-guest ' ] ||
		fail "record $options: $(cat /tmp/t.names /tmp/t.txt)"
	[ "$(awk '$2 == "blkrelay-guest" { print $1 }' /tmp/t.names)" = 3 ] || fail "record $options: not 3 reads"
done
rmmod blkrelay
