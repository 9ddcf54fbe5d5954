#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Kernel lockdown (integrity) is raised while a trace runs: the trace goes on and can be ended, by its reader,
# or (LAB_HAND=1: it was started by hand) by unloading. What is refused from then on, and the reader
# says why.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

load_start
insmod $MODULE
mount -t securityfs securityfs /sys/kernel/security
lockdown=/sys/kernel/security/lockdown
grep -q '\[none\]' $lockdown || fail "lockdown: $(cat $lockdown)"
if [ "${LAB_HAND:-0}" = 1 ]; then
	echo "start devices=$MINE subbuf_size=65536 subbufs=8" >$DIR/control
else
	record_start /tmp/trace.blkr -d /dev/mine
fi
blkrelay-guest io --dev /dev/mine --direct --count 100
echo integrity >$lockdown
grep -q '\[integrity\]' $lockdown || fail "lockdown: $(cat $lockdown)"
blkrelay-guest io --dev /dev/mine --direct --count 100
quiet mine

# What only reads goes on; what changes does not.
[ "$(status state)" = running ] || fail "the trace has ended by itself: $(status state)"
if echo stop 2>/tmp/err >$DIR/control; then
	fail "control is open to all"
fi
cat /tmp/err
dmesg | grep -q 'Lockdown: .*debugfs access is restricted' || fail "the kernel does not say why"

if [ "${LAB_HAND:-0}" = 1 ]; then
	[ "$(total)" = 800 ] || fail "$(total) events instead of 800"
else
	record_stop
	$BLKRELAY verify /tmp/trace.blkr
	blkrelay-guest totals /tmp/trace.blkr
	seen=$(blkrelay-guest totals /tmp/trace.blkr | awk '{ n += $2 + $3 } END { print n }')
	[ "$seen" = 800 ] || fail "$seen events instead of 800"
	# Reading goes on for the reader as well; a new trace is refused, and nothing is left of it.
	$BLKRELAY status >/tmp/out || fail "status"
	code=0
	$BLKRELAY record -o /tmp/no.blkr -d /dev/mine >/tmp/out 2>/tmp/err || code=$?
	cat /tmp/err
	[ $code = 2 ] || fail "a new record ends with $code"
	grep -qi 'lockdown' /tmp/err || fail "the reader does not say that it is lockdown: $(cat /tmp/err)"
	[ "$(grep -c . /tmp/err)" = 1 ] || fail "not one line: $(cat /tmp/err)"
	[ ! -e /tmp/no.blkr ] || fail "a refused record left a file"
fi
unloaded
if insmod $MODULE 2>/tmp/err; then
	fail "an unsigned module was loaded under lockdown"
fi
cat /tmp/err
code=0
$BLKRELAY record --load $MODULE -o /tmp/no.blkr -d /dev/mine >/tmp/out 2>/tmp/err || code=$?
cat /tmp/err
[ $code = 2 ] || fail "a new record ends with $code"
grep -qi 'lockdown\|signed' /tmp/err ||
	fail "the reader does not say why the module cannot be loaded: $(cat /tmp/err)"
gone
load_stop
result hand="${LAB_HAND:-0}"
