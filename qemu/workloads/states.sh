# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# The states of the tracers, for the count-mode job. Sourced.
#
#   none      module not loaded
#   off       module loaded, not started
#   on        blkrelay recording, its reader writing to tmpfs
#   overwrite blkrelay's flight recorder, which nothing triggers: no reader
#   filter    the same, with a filter that everything passes
#   slower    the same, with its triggers armed: an error, an I/O of more than a second
#   blktrace  the kernel's blktrace on the same devices, its reader writing to tmpfs
#
# Both tracers get sub-buffers of the same size and number; blktrace has its own set for every device,
# blkrelay one for all. Output: /tmp/trace/.
#
#   SUBBUF_SIZE   bytes, a multiple of 1024
#   SUBBUFS       number of sub-buffers for each CPU

# Conditions are given in quotes to be evaluated later; a line of counters is read word by word.
# shellcheck disable=SC2013,SC2016
SINKS=

blkrelay_status() {
	sed -n "s/^$1=//p" /sys/kernel/debug/blkrelay/status
}

# Bytes in the finished trace.
bytes() {
	cat /tmp/trace/*.blk* | wc -c
}

# Waits until a condition holds; the CPU is idle meanwhile, which costs no time in count mode.
wait_for() {
	tries=0
	until eval "$1"; do
		tries=$((tries + 1))
		if [ $tries -ge 200 ]; then
			echo "waiting in vain for: $1" >&2
			cat /tmp/trace/log >&2
			exit 1
		fi
		sleep 0.05
	done
}

# state_start STATE "DEVICE..."
state_start() {
	mkdir -p /tmp/trace
	case $1 in
	none) ;;
	off)
		insmod /lab/blkrelay.ko
		;;
	on)
		insmod /lab/blkrelay.ko
		options=
		for device in $2; do options="$options -d $device"; done
		# shellcheck disable=SC2086 # a list of options
		/lab/blkrelay record $options --subbuf-size "$SUBBUF_SIZE" --subbufs "$SUBBUFS" \
			-o /tmp/trace/blkrelay.blkr >/tmp/trace/log 2>&1 &
		TRACER=$!
		wait_for '[ "$(blkrelay_status state)" = running ]'
		SINKS="--sink /tmp/trace/blkrelay.blkr"
		;;
	overwrite | filter | slower)
		insmod /lab/blkrelay.ko
		numbers=
		for device in $2; do numbers="$numbers,$(cat "/sys/block/${device##*/}/dev")"; done
		case $1 in
		filter) more=sector=0-281474976710654 ;;
		slower) more='on_error=1 slower_us=1000000' ;;
		*) more= ;;
		esac
		echo "start devices=${numbers#,} mode=overwrite subbuf_size=$SUBBUF_SIZE subbufs=$SUBBUFS $more" \
			>/sys/kernel/debug/blkrelay/control
		;;
	blktrace)
		options=
		for device in $2; do
			options="$options -d $device"
			last=${device##*/}
			SINKS="$SINKS --sink /tmp/trace/$last.blktrace.0"
		done
		# shellcheck disable=SC2086 # a list of options
		/usr/sbin/blktrace $options -b $((SUBBUF_SIZE / 1024)) -n "$SUBBUFS" -D /tmp/trace \
			>/tmp/trace/log 2>&1 &
		TRACER=$!
		wait_for '[ -e "/sys/kernel/debug/block/$last/trace0" ]'
		;;
	*)
		echo "unknown state $1" >&2
		exit 1
		;;
	esac
	# Let a reader reach its wait.
	sleep 0.2
}

# blkrelay's events and losses of all CPUs: sets events, lost
blkrelay_totals() {
	events=0 lost=0
	for word in $(grep '^cpu=' /sys/kernel/debug/blkrelay/status); do
		case $word in
		events=*) events=$((events + ${word#*=})) ;;
		lost=*) lost=$((lost + ${word#*=})) ;;
		esac
	done
}

# state_stop STATE: prints how much was left to drain, and the counters
state_stop() {
	case $1 in
	none) ;;
	off)
		rmmod blkrelay
		;;
	on)
		# shellcheck disable=SC2086 # a list of options
		blkrelay-guest window drain --idle-ok $SINKS sh -c "kill -INT $TRACER
			while kill -0 $TRACER 2>/dev/null; do sleep 0.01; done"
		wait "$TRACER"
		blkrelay_totals
		echo "@result tracer=blkrelay events=$events lost=$lost bytes=$(bytes)"
		rmmod blkrelay
		;;
	overwrite | filter | slower)
		[ "$(blkrelay_status state)" = running ] || {
			echo "the flight recorder was triggered: $(blkrelay_status cause)" >&2
			exit 1
		}
		echo stop >/sys/kernel/debug/blkrelay/control
		blkrelay_totals
		echo "@result tracer=blkrelay events=$events lost=$lost bytes=0"
		rmmod blkrelay
		;;
	blktrace)
		# shellcheck disable=SC2086 # a list of options
		blkrelay-guest window drain --idle-ok $SINKS sh -c "kill -INT $TRACER
			while kill -0 $TRACER 2>/dev/null; do sleep 0.01; done"
		wait "$TRACER"
		lost=0
		for word in $(sed -n 's/.*dropped \([0-9]*\).*/\1/p' /tmp/trace/log); do
			lost=$((lost + word))
		done
		events=$(blkrelay-guest count-blktrace /tmp/trace/*.blktrace.*)
		echo "@result tracer=blktrace events=$events lost=$lost bytes=$(bytes)"
		;;
	esac
}
