# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# The states of the tracers, for the count-mode job. Sourced.
#
#   none      module not loaded
#   off       module loaded, not started
#   after     module loaded, started, stopped and unloaded, all before the window
#   on        blkrelay recording
#   filtered  blkrelay recording IDLE_DEVICE: it refuses every event
#   span      blkrelay recording one span for each I/O
#   overwrite blkrelay's flight recorder, which nothing triggers
#   filter    the same, with a filter that everything passes
#   slower    the same, with its triggers armed: an error, an I/O of more than a second
#   blktrace  the kernel's blktrace on the same devices
#   ftrace    the kernel's ftrace, its four events
#   floor     four probes in C that write blkrelay's records and do nothing else: qemu/tests/floor
#   dispatch  four probes in C that do nothing
#   none_notsc  module not loaded, and the kernel's clock source is not the TSC: the baseline of
#   notsc     blkrelay recording, with that clock source
#
# All tracers get sub-buffers of the same size and number; blktrace has its own set for every device,
# the others one for all. With a reader, those of on and blktrace write to /tmp/trace/.
#
#   SUBBUF_SIZE   bytes, a multiple of 1024
#   SUBBUFS       number of sub-buffers for each CPU
#   READER        yes or no; the other states have none

# Conditions are given in quotes to be evaluated later; a line of counters is read word by word.
# shellcheck disable=SC2013,SC2016
SINKS=
TRACING=/sys/kernel/tracing

# What the workload's disks have; asked for where tracers are compared by the event.
FOUR=events=Q,G,D,C

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

# numbers "DEVICE...": as control wants them
numbers() {
	for device in $1; do cat "/sys/block/${device##*/}/dev"; done | tr '\n' , | sed 's/,$//'
}

# blkrelay_start "DEVICE..." WORD...: begins a trace that nobody reads
blkrelay_start() {
	insmod /lab/blkrelay.ko
	devices=$(numbers "$1")
	shift
	echo "start devices=$devices subbuf_size=$SUBBUF_SIZE subbufs=$SUBBUFS $*" \
		>/sys/kernel/debug/blkrelay/control
}

# blkrelay_stop: ends it
blkrelay_stop() {
	echo stop >/sys/kernel/debug/blkrelay/control
	blkrelay_totals
	rmmod blkrelay
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

CLOCKSOURCE=/sys/devices/system/clocksource/clocksource0/current_clocksource

# The clock source from here on
clocksource() {
	echo "$1" >$CLOCKSOURCE
	[ "$(cat $CLOCKSOURCE)" = "$1" ] || {
		echo "the kernel does not take the clock source $1" >&2
		exit 1
	}
}

# state_start STATE "DEVICE..."
state_start() {
	mkdir -p /tmp/trace
	case $1-$READER in
	none-*) ;;
	off-*)
		insmod /lab/blkrelay.ko
		;;
	after-*)
		blkrelay_start "$2" $FOUR mode=discard
		for device in $2; do blkrelay-guest io --dev "$device" --direct --count 1000; done
		blkrelay_stop
		[ $events -gt 0 ] || {
			echo "nothing was recorded before the window" >&2
			exit 1
		}
		;;
	on-yes)
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
	on-no) blkrelay_start "$2" $FOUR mode=discard ;;
	filtered-*) blkrelay_start "$IDLE_DEVICE" $FOUR mode=discard ;;
	span-*) blkrelay_start "$2" mode=discard span=1 ;;
	overwrite-*) blkrelay_start "$2" mode=overwrite ;;
	filter-*) blkrelay_start "$2" mode=overwrite sector=0-281474976710654 ;;
	slower-*) blkrelay_start "$2" mode=overwrite on_error=1 slower_us=1000000 ;;
	blktrace-yes)
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
	blktrace-no)
		mkfifo /tmp/stop
		# Its command runs when the trace does; it ends, and so does the trace, with the first line.
		blkrelay-guest blktrace --dev "$2" -o /tmp/trace --buf-size "$SUBBUF_SIZE" --buf-nr "$SUBBUFS" \
			sh -c 'touch /tmp/trace/started; read -r line </tmp/stop' >/tmp/trace/log 2>&1 &
		TRACER=$!
		wait_for '[ -e /tmp/trace/started ]'
		;;
	ftrace-*)
		echo 0 >$TRACING/tracing_on
		echo $((SUBBUF_SIZE / 1024 * SUBBUFS)) >$TRACING/buffer_size_kb
		for event in bio_queue getrq rq_issue rq_complete; do
			echo 1 >$TRACING/events/block/block_$event/enable
		done
		echo 1 >$TRACING/tracing_on
		;;
	floor-*) insmod /lab/floor.ko bytes=$((SUBBUF_SIZE * SUBBUFS)) ;;
	dispatch-*) insmod /lab/floor.ko empty=1 ;;
	none_notsc-* | notsc-*)
		insmod /lab/otherclock.ko
		clocksource otherclock
		if [ "$1" = notsc ]; then
			blkrelay_start "$2" $FOUR mode=discard
			[ "$(blkrelay_status clock)" = mono ] || {
				echo "the trace's clock is $(blkrelay_status clock)" >&2
				exit 1
			}
		fi
		;;
	*)
		echo "unknown state $1" >&2
		exit 1
		;;
	esac
	# Let a reader reach its wait.
	sleep 0.2
}

# state_stop STATE: prints how much was left to drain, and the counters
state_stop() {
	case $1-$READER in
	none-* | after-*) ;;
	off-*) rmmod blkrelay ;;
	on-yes)
		# shellcheck disable=SC2086 # a list of options
		blkrelay-guest window drain --idle-ok $SINKS sh -c "kill -INT $TRACER
			while kill -0 $TRACER 2>/dev/null; do sleep 0.01; done"
		wait "$TRACER"
		blkrelay_totals
		echo "@result tracer=blkrelay events=$events lost=$lost bytes=$(bytes)"
		rmmod blkrelay
		;;
	none_notsc-*) clocksource tsc ;;
	on-no | filtered-* | span-* | notsc-*)
		blkrelay_stop
		# The host takes no other.
		clocksource tsc
		echo "@result tracer=blkrelay events=$events lost=$lost bytes=0"
		;;
	overwrite-* | filter-* | slower-*)
		[ "$(blkrelay_status state)" = running ] || {
			echo "the flight recorder was triggered: $(blkrelay_status cause)" >&2
			exit 1
		}
		blkrelay_stop
		echo "@result tracer=blkrelay events=$events lost=$lost bytes=0"
		;;
	blktrace-yes)
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
	blktrace-no)
		echo >/tmp/stop
		# It fails where an event was dropped.
		wait "$TRACER" || {
			cat /tmp/trace/log >&2
			exit 1
		}
		events=$(blkrelay-guest count-blktrace /tmp/trace/*.blktrace.*)
		echo "@result tracer=blktrace events=$events lost=0 bytes=$(bytes)"
		;;
	ftrace-*)
		echo 0 >$TRACING/tracing_on
		echo 0 >$TRACING/events/block/enable
		events=$(sed -n 's/^entries: //p' $TRACING/per_cpu/cpu0/stats)
		lost=$(sed -n 's/^overrun: //p' $TRACING/per_cpu/cpu0/stats)
		echo "@result tracer=ftrace events=$events lost=$lost bytes=0"
		;;
	floor-*)
		read -r _ events lost </sys/kernel/debug/floor/status
		echo "@result tracer=floor $events $lost bytes=0"
		rmmod floor
		;;
	dispatch-*) rmmod floor ;;
	esac
}
