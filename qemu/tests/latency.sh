#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What must not trigger a flight recorder: an I/O that did not take long although its request was under way
# when a filter did not look, and one that was not done because it did not want to wait.
#
# shellcheck disable=SC1091,SC2016 # the library is put into the initramfs
set -e
. /lab/lib.sh

# Each of its I/Os takes two seconds, and there is one request for all.
null_disk slow irqmode=2 completion_nsec=2000000000 hw_queue_depth=1
null_disk other
SLOW=$(cat /sys/block/slow/dev) OTHER=$(cat /sys/block/other/dev)

# under_way: waits until an I/O of the slow disk has been issued
under_way() {
	wait_for '[ "$(tr -s " " </sys/block/slow/inflight)" != " 0 0" ]'
}

insmod $MODULE
echo "start devices=$SLOW mode=overwrite slower_us=3500000" >$DIR/control
blkrelay-guest io --dev /dev/slow --direct --count 1 &
first=$!
under_way
echo "filter devices=$OTHER" >$DIR/control
wait $first || fail "io"
blkrelay-guest io --dev /dev/slow --direct --count 1 &
second=$!
under_way
echo "filter devices=$SLOW" >$DIR/control
wait $second || fail "io"
quiet slow
[ "$(status state)" = running ] || fail "$(status cause): the begin of one I/O was taken for another's"
echo stop >$DIR/control

echo "start devices=all mode=overwrite on_error=1" >$DIR/control
blkrelay-guest io --dev /dev/slow --direct --count 1 &
first=$!
under_way
blkrelay-guest io --dev /dev/slow --direct --count 8 --batch 8 --nowait >/tmp/again
[ "$(cat /tmp/again)" -gt 0 ] || fail "no I/O would have had to wait"
wait $first || fail "io"
[ "$(status state)" = running ] || fail "$(status cause): that an I/O would have had to wait is no error"
echo freeze >$DIR/control
for file in "$DIR"/data*; do dd if="$file" bs=1M count=1 2>/dev/null; done >/tmp/data
[ "$(wc -c </tmp/data)" -gt 1000 ] || fail "nothing was recorded"
echo stop >$DIR/control
rmmod blkrelay
