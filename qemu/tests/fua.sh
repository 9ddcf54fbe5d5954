#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Every record of a write with FUA is there: the classic setup ioctl of blktrace, which its program uses,
# drops them all; ftrace and SETUP2 have them, and what they have is what we have.
#
# shellcheck disable=SC1091 # the library is put into the initramfs
set -e
. /lab/lib.sh

# With a cache, so that FUA goes to the disk as it is.
null_disk cached memory_backed=1 cache_size=4 fua=1
cat >/tmp/load <<'END'
set -e
blkrelay-guest io --dev /dev/cached --direct --count 40 --op write --dsync
blkrelay-guest io --dev /dev/cached --direct --count 40 --op write --offset 1048576
blkrelay-guest io --dev /dev/cached --direct --count 16 --op write --fsync 4 --offset 2097152
blkrelay-guest io --dev /dev/cached --direct --count 40
END
# Q G D and C of each.
FUA=160

insmod $MODULE
record_start /tmp/trace.blkr -d /dev/cached --subbufs 16
blktrace_start /tmp/blktrace /dev/cached
ftrace_start
sh /tmp/load
quiet cached
ftrace_stop /tmp/ftrace
blktrace_stop
record_stop
blkrelay-guest compare --trace /tmp/trace.blkr --blktrace /tmp/blktrace --ftrace /tmp/ftrace \
	--want QGDC >/tmp/classic
cat /tmp/classic
grep -q " dropped_by_blktrace=$FUA fua=$FUA fua_by_blktrace=0 " /tmp/classic ||
	fail "want $FUA with FUA, none of them seen by blktrace"

record_start /tmp/trace2.blkr -d /dev/cached --subbufs 16
echo >$TRACING/trace
ftrace_start
blkrelay-guest blktrace --setup2 --dev /dev/cached -o /tmp/setup2 sh /tmp/load
quiet cached
ftrace_stop /tmp/ftrace2
record_stop
blkrelay-guest compare --setup2 --trace /tmp/trace2.blkr --blktrace /tmp/setup2 --ftrace /tmp/ftrace2 \
	--want QGDC >/tmp/new
cat /tmp/new
grep -q " dropped_by_blktrace=0 fua=$FUA fua_by_blktrace=$FUA " /tmp/new ||
	fail "want $FUA with FUA, all of them seen by SETUP2"
rmmod blkrelay
