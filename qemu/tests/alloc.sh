#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Each allocation of loading, of start, of a change of filters, of stop, and of a CPU's arrival fails once
# (one in LAB_STEP, drawn): a clean error or none at all, nothing is left, and the next trace works.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

: "${LAB_STEP:=1}"
all=0
ONLINE=/sys/devices/system/cpu/cpu3/online
for fault in failslab fail_page_alloc; do
	echo 0 >$DEBUGFS/$fault/verbose
	echo 0 >$DEBUGFS/$fault/ignore-gfp-wait
done
echo 0 >$DEBUGFS/fail_page_alloc/ignore-gfp-highmem
echo 0 >$DEBUGFS/fail_page_alloc/min-order

# only FROM TO: only allocations in whose call chain there is an address of this range fail
only() {
	for fault in failslab fail_page_alloc; do
		echo "$1" >$DEBUGFS/$fault/require-start
		echo "$2" >$DEBUGFS/$fault/require-end
	done
}

# module_only: only the module's own
module_only() {
	# shellcheck disable=SC2046 # its line: name, size, users, who, state, where
	set -- $(grep '^blkrelay ' /proc/modules)
	only "$6" "$(printf '0x%x' $(($6 + $2)))"
}

# each AFTER CALL...: does the call with its first, second... allocation failing until it makes no more; AFTER
# is run after each, and finds in GOT what came of it
each() {
	after=$1
	shift
	nth=0
	tried=0
	refused=0
	while :; do
		rnd "$LAB_STEP"
		nth=$((nth + 1 + RND))
		GOT=$(blkrelay-guest fail-nth $nth "$@") || fail "fail-nth $nth $*"
		case $GOT in
		hit\ ok) ;;
		hit\ *) refused=$((refused + 1)) ;;
		missed\ ok)
			$after
			return
			;;
		*) fail "$*: $GOT at $nth, and no allocation failed" ;;
		esac
		tried=$((tried + 1))
		all=$((all + 1))
		progress $all $((1300 / LAB_STEP))
		$after
	done
}

after_insmod() {
	if [ "${GOT#* }" = ok ]; then
		works
		unloaded
	else
		gone
	fi
}

after_start() {
	if [ "${GOT#* }" = ok ]; then
		[ "$(status state)" = running ] || fail "$GOT, but $(status state)"
		echo stop >$DIR/control || fail "stop: $(status error)"
	else
		[ "$GOT" = "hit ENOMEM" ] || fail "start: $GOT: $(status error)"
		[ "$(status state)" != running ] || fail "$GOT, but running"
		[ -n "$(status error)" ] || fail "$GOT at $nth without a reason"
		counts_nothing
	fi
	[ $((tried % 10)) != 0 ] || works
}

after_filter() {
	[ "$(status state)" = running ] || fail "$GOT, and $(status state)"
	[ "$GOT" = "hit ENOMEM" ] || [ "${GOT#* }" = ok ] || fail "filter: $GOT: $(status error)"
	# The old filters or the new: both let these pass.
	was=$(total)
	blkrelay-guest io --dev /dev/mine --direct --count 25
	quiet mine
	[ $(($(total) - was)) = 100 ] || fail "$GOT: $(($(total) - was)) events instead of 100"
}

after_stop() {
	[ "${GOT#* }" = ok ] || fail "stop: $GOT: $(status error)"
	[ "$(status state)" = stopped ] || fail "$GOT, but $(status state)"
	counts_nothing
	echo "start devices=all subbuf_size=4096 subbufs=2" >$DIR/control || fail "start: $(status error)"
}

# The CPU that arrived is traced, or at least its losses are counted.
after_online() {
	if [ "${GOT#* }" != ok ]; then
		[ "$(cat $ONLINE)" = 0 ] || fail "$GOT, but the CPU is on"
		return
	fi
	[ "$(cat $ONLINE)" = 1 ] || fail "$GOT, but the CPU is off"
	was=$(total)
	taskset 8 blkrelay-guest io --dev /dev/mine --direct --count 25 || fail "io"
	quiet mine
	[ $(($(total) - was)) = 100 ] ||
		fail "$GOT: $(($(total) - was)) events instead of 100: $(cat $DIR/status)"
	if grep -q '^cpu=3 .*buffer=0' $DIR/status; then
		bufferless=$((bufferless + 1))
		[ "$(counter 3 lost)" -ge 100 ] || fail "no buffer, and no loss: $(cat $DIR/status)"
	fi
	echo 0 >$ONLINE
	# From the beginning: a buffer once made stays.
	echo stop >$DIR/control
	echo "start devices=$MINE subbuf_size=4096 subbufs=4" >$DIR/control
}

# The disk that came is there, and its reads have spans, with an issue or without.
after_disk() {
	[ "${GOT#* }" = ok ] || fail "$GOT at $nth: the trace kept a disk from coming"
	was=$(total)
	blkrelay-guest io --dev /dev/new --direct --count 25 || fail "io"
	[ $(($(total) - was)) -ge 25 ] || fail "$GOT: $(($(total) - was)) spans instead of 25"
	echo 0 >$NEW/power
}

# What is sought here is no race: the time is better spent on more allocations.
REST=1500000
load_start
each after_insmod insmod $MODULE
result of=insmod allocations=$nth tried=$tried refused=$refused

insmod $MODULE
for words in "devices=all" "devices=$MINE,$(cat /sys/block/la/dev) events=all detail=1" \
	"devices=all op=read,write sector=0-1000000 size=512-1048576 cgroup=1" \
	"devices=all mode=overwrite on_error=1 slower_us=100000" \
	"devices=all span=1" "devices=$MINE span=1 mode=overwrite slower_us=100000"; do
	each after_start write $DIR/control "start subbuf_size=4096 subbufs=2 $words"
	works
	result of=start allocations=$nth tried=$tried refused=$refused
done

echo "start devices=$MINE subbuf_size=4096 subbufs=4" >$DIR/control || fail "start: $(status error)"
each after_filter write $DIR/control "filter devices=$MINE op=read,write sector=0-1000000 size=512-1048576"
result of=filter allocations=$nth tried=$tried refused=$refused
each after_stop write $DIR/control stop
result of=stop allocations=$nth tried=$tried refused=$refused
echo stop >$DIR/control

# What a trace of spans adds to the coming of a disk must not keep it away: an allocation or two, so each.
STEP=$LAB_STEP
LAB_STEP=1
NEW=/sys/kernel/config/nullb/new
null_disk new
echo 0 >$NEW/power
echo "start devices=all span=1 subbuf_size=65536 subbufs=16" >$DIR/control || fail "start: $(status error)"
module_only
each after_disk write $NEW/power 1
only 0 0xffffffffffffffff
result of=disk allocations=$nth tried=$tried
[ "$tried" -ge 1 ] || fail "no allocation for a disk: nothing is proved about it"
LAB_STEP=$STEP
rmdir $NEW
echo stop >$DIR/control
unloaded

# A CPU's own allocations may keep it from arriving; what a trace adds to them must not. There are few of
# them.
LAB_STEP=$(((LAB_STEP + 4) / 5))
bufferless=0
echo 0 >$ONLINE
insmod $MODULE
echo "start devices=$MINE subbuf_size=4096 subbufs=4" >$DIR/control || fail "start: $(status error)"
each after_online write $ONLINE 1
result of=cpu allocations=$nth refused=$refused bufferless=$bufferless
bufferless=0
module_only
each after_online write $ONLINE 1
only 0 0xffffffffffffffff
result of=cpu_module allocations=$nth refused=$refused bufferless=$bufferless
[ "$refused" = 0 ] || fail "a trace kept the CPU from arriving $refused times"
[ $bufferless -ge 1 ] || fail "no allocation of a buffer failed: nothing is proved about it"
echo 1 >$ONLINE
echo stop >$DIR/control
works
unloaded
load_stop
result of=all
