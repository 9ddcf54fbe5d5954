#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# CPUs go and come in any order while they are traced, and while traces start and stop. Each sector is
# read once, so each record must be there once.
#
# Conditions are given in quotes to be evaluated later.
# shellcheck disable=SC1091,SC2016,SC2153
set -e
. /lab/lib.sh
. /lab/load.sh

COUNT=3000
n=0
moves=0

# move: one of the last three CPUs goes or comes
move() {
	rnd 3
	online=/sys/devices/system/cpu/cpu$((RND + 1))/online
	# One that is the last but one may be busy with the other.
	echo $((1 - $(cat $online))) >$online && moves=$((moves + 1))
	rnd 100000
	usleep $RND
}

load_start
insmod $MODULE
# How many moves there are in a round is the machine's speed.
while [ $n -lt "$LAB_COUNT" ] || [ $moves -lt $((LAB_COUNT * 2)) ]; do
	progress $n "$LAB_COUNT"
	n=$((n + 1))
	disturbed move
done
for cpu in 1 2 3; do
	echo 1 >/sys/devices/system/cpu/cpu$cpu/online
done
load_stop
unloaded
result rounds=$n moves=$moves reads=$((n * COUNT))
