#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Loaded, started, stopped and unloaded over and over under load.
#
# shellcheck disable=SC1091,SC2153 # the libraries are put into the initramfs
set -e
. /lab/lib.sh
. /lab/load.sh

load_start
n=0
events=0
while [ $n -lt "$LAB_COUNT" ]; do
	progress $n "$LAB_COUNT"
	n=$((n + 1))
	insmod $MODULE
	if [ $((n % 2)) = 0 ]; then
		works
	else
		echo "start devices=all subbuf_size=4096 subbufs=4" >$DIR/control ||
			fail "start: $(status error)"
		rnd 60000
		usleep $RND
		# Every fifth is unloaded as it runs.
		[ $((n % 5)) = 0 ] || echo stop >$DIR/control || fail "stop: $(status error)"
	fi
	events=$((events + $(total)))
	unloaded
done
load_stop
[ $events -gt $((n * 50)) ] || fail "only $events events: there was no load"
result rounds=$n events=$events
