#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# A CPU goes and comes while it is being traced. Each sector is read once, so each record must be there
# once; a stream that was cut short or started late would lack some.
#
# shellcheck disable=SC1091,SC2086 # the library is put into the initramfs; names have no blanks
set -e
. /lab/lib.sh

null_disk one size=1024
null_disk two size=1024
COUNT=40000
ONLINE=/sys/devices/system/cpu/cpu1/online
cat >/tmp/load <<END
blkrelay-guest io --dev /dev/one --direct --count $COUNT & a=\$!
blkrelay-guest io --dev /dev/two --direct --count $COUNT & b=\$!
wait \$a && wait \$b
END

insmod $MODULE
# It is off when the trace starts: its stream begins later.
echo 0 >$ONLINE
record_start /tmp/trace.blkr -d /dev/one -d /dev/two --subbufs 16
sh /tmp/load &
load=$!
n=0
while kill -0 $load 2>/dev/null; do
	echo 1 >$ONLINE
	sleep 0.2
	echo 0 >$ONLINE
	sleep 0.1
	n=$((n + 1))
done
wait $load
echo 1 >$ONLINE
record_stop
cat /tmp/record.log
$BLKRELAY verify /tmp/trace.blkr
blkrelay-guest once /tmp/trace.blkr --count $COUNT /dev/one /dev/two
[ $n -ge 2 ] || fail "the CPU went only $n times"
[ "$(blkrelay-guest totals /tmp/trace.blkr | wc -l)" = 2 ] || fail "one CPU did nothing"
echo "@result times=$n"
rmmod blkrelay
