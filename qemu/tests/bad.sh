#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# What a user can do wrong: each time a status that is not 0, one line that says what, and nothing lost.
# Conditions are given in quotes to be evaluated later, and $record is a list of words.
# shellcheck disable=SC1091,SC2016,SC2086,SC2153
. /lab/lib.sh

checks=0

# refused STATUS PATTERN COMMAND...: it ends with that status and says one line, which fits the pattern. A
# fault in the command line itself has a second paragraph that points to --help.
refused() {
	want=$1 pattern=$2
	shift 2
	checks=$((checks + 1))
	"$@" >/tmp/out 2>/tmp/err
	code=$?
	[ $code = "$want" ] || fail "$*: status $code, not $want: $(cat /tmp/err)"
	[ "$(grep -vc "^$\|^For more information, try '--help'" /tmp/err)" = 1 ] ||
		fail "$*: not one line: $(cat /tmp/err)"
	grep -qE "$pattern" /tmp/err || fail "$*: nothing about '$pattern': $(cat /tmp/err)"
	[ -s /tmp/out ] && fail "$*: printed $(cat /tmp/out)"
	return 0
}

# denied PATTERN TEXT: control refuses a text, and status says why
denied() {
	checks=$((checks + 1))
	if printf '%s' "$2" 2>/dev/null >$DIR/control; then
		fail "control took '$2'"
	fi
	status error | grep -qE "$1" || fail "'$2': nothing about '$1': error=$(status error)"
	[ "$(status state)" = "${3:-idle}" ] || fail "'$2' changed the state to $(status state)"
}

null_disk one
record="$BLKRELAY record -o /tmp/x.blkr"

# Nothing is there yet.
refused 2 'not loaded|insmod|--load' $record -d /dev/one
refused 2 'not loaded|insmod|--load' $BLKRELAY status
umount $DEBUGFS
refused 2 'debugfs' $record -d /dev/one
insmod $MODULE
refused 2 'debugfs' $record -d /dev/one
refused 2 'debugfs' $BLKRELAY status
mount -t debugfs debugfs $DEBUGFS
refused 2 'root|ermission' blkrelay-guest as 65534 $record -d /dev/one
refused 2 'root|ermission' blkrelay-guest as 65534 $BLKRELAY status
[ ! -e /tmp/x.blkr ] || fail "a refused record left a file"

# Devices and files.
refused 2 '/dev/none' $record -d /dev/none
touch /tmp/file
refused 2 '/tmp/file' $record -d /tmp/file
echo mine >/tmp/there.blkr
refused 2 'there.blkr.*--force' $BLKRELAY record -d /dev/one -o /tmp/there.blkr
[ "$(cat /tmp/there.blkr)" = mine ] || fail "an existing file was written to"
refused 2 '/tmp/nowhere' $BLKRELAY record -d /dev/one -o /tmp/nowhere/x.blkr
refused 2 '/tmp' $BLKRELAY record -d /dev/one -o /tmp --force
refused 2 'block device' $BLKRELAY record -d /dev/one -o /dev/one --force

# Buffers.
for size in 0 2048 5000 134217728 18446744073709551616 -1; do
	refused 2 'subbuf' $record -d /dev/one --subbuf-size=$size
done
for count in 0 1 65537; do
	refused 2 'subbuf' $record -d /dev/one --subbufs=$count
done
refused 2 'memory' $record -d /dev/one --subbuf-size=67108864 --subbufs=16
[ ! -e /tmp/x.blkr ] || fail "a refused record left a file"

# Words in control.
denied 'foo' 'foo'
denied 'foo' 'start devices=all foo=1'
denied 'foo' 'start devices=all foo'
denied 'devices' 'start'
denied 'devices' 'start devices=all devices=all'
denied 'devices|number|MAJ' 'start devices=1:x'
denied '250:99' 'start devices=250:99'
# Not even by looking are they made: opening such a number makes a loop or a ramdisk.
denied '7:99 does not exist' 'start devices=7:99'
denied '1:77 does not exist' 'start devices=1:77'
[ ! -e /sys/block/loop99 ] && [ ! -e /sys/block/ram77 ] || fail "a device was made by asking for it"
denied 'unknown event' 'start devices=all events=Z'
denied 'unknown operation' 'start devices=all op=wipe'
denied 'FIRST-LAST' 'start devices=all sector=9-8'
denied 'out of range' 'start devices=all cgroup=99999999999999999999'
denied 'mode=overwrite' 'start devices=all on_error=1'
denied 'needs the events C or BIO_C' 'start devices=all mode=overwrite on_error=1 events=Q,D'
denied 'needs the events D and C' 'start devices=all mode=overwrite slower_us=9 events=Q,C'
denied 'filter: no trace is running' 'filter devices=all'
denied 'freeze: no trace is running' 'freeze'
denied 'arm: no trace is running' 'arm'
denied 'power of two' 'start devices=all subbuf_size=5000'
denied 'subbufs' 'start devices=all subbufs=1'
denied 'stop: no trace is running' 'stop'
denied 'flush: no trace is running' 'flush'
# In one write: printf would cut it into pieces.
head -c 5000 /dev/zero | tr '\0' x >/tmp/long
dd if=/tmp/long of=$DIR/control bs=5000 2>/dev/null && fail "control took 5000 bytes"
status error | grep -q 'too long' || fail "5000 bytes: error=$(status error)"
checks=$((checks + 1))

# A start that is refused for want of memory leaves the last trace to be read.
echo 'start devices=all' >$DIR/control || fail "start"
blkrelay-guest io --dev /dev/one --direct --count 10
echo stop >$DIR/control || fail "stop"
before=$(grep -v '^error=' $DIR/status)
available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
dd if=/dev/zero of=/tmp/big bs=1M count=$((available - 200)) 2>/dev/null || fail "dd"
denied 'no memory' "start devices=all subbuf_size=4194304 subbufs=$((100 / $(nproc)))" stopped
rm /tmp/big
[ "$before" = "$(grep -v '^error=' $DIR/status)" ] || fail "a refused start has changed the last trace"
checks=$((checks + 1))

# A second one, and unloading under the first.
echo 'start devices=all' >$DIR/control || fail "start"
denied 'started by pid' 'start devices=all' running
echo stop >$DIR/control || fail "stop"
record_start /tmp/one.blkr -d /dev/one
refused 2 'running|busy|records' $record -d /dev/one
rmmod blkrelay 2>/tmp/err && fail "rmmod under a running record"
checks=$((checks + 1))
blkrelay-guest io --dev /dev/one --direct --count 100
record_stop
[ "$(blkrelay-guest totals /tmp/one.blkr)" = "0 400 0" ] ||
	[ "$(blkrelay-guest totals /tmp/one.blkr | awk '{ n += $2 } END { print n }')" = 400 ] ||
	fail "the first record lost something: $(blkrelay-guest totals /tmp/one.blkr)"
exec 9>$DIR/control
rmmod blkrelay 2>/tmp/err && fail "rmmod with control open"
exec 9>&-
exec 9<$DIR/data0
rmmod blkrelay 2>/tmp/err && fail "rmmod with data0 open"
exec 9<&-
checks=$((checks + 2))

# A killed reader leaves no probes behind: what is recorded stands still.
record_start /tmp/killed.blkr -d /dev/one
blkrelay-guest io --dev /dev/one --direct --count 100
wait_for 'grep -q "consumed=[1-9]" $DIR/status'
kill -KILL "$RECORD"
wait "$RECORD"
wait_for '[ "$(status state)" != running ]'
before=$(grep '^cpu=' $DIR/status)
blkrelay-guest io --dev /dev/one --direct --count 100
[ "$before" = "$(grep '^cpu=' $DIR/status)" ] || fail "probes were left behind"
$BLKRELAY dump /tmp/killed.blkr >/tmp/out 2>/dev/null
[ -s /tmp/out ] || fail "a killed record left nothing readable"
checks=$((checks + 2))

# The disk is full while recording: what was written is good, and the loss is said.
mkdir -p /tmp/small
mount -t tmpfs -o size=96k tmpfs /tmp/small
code=0
$BLKRELAY record -d /dev/one -o /tmp/small/x.blkr --subbuf-size 4096 \
	--everything -- blkrelay-guest io --dev /dev/one --direct --count 5000 2>/tmp/err || code=$?
[ $code != 0 ] || fail "a full disk went unnoticed"
grep -q 'could not be written' /tmp/err || fail "a full disk is not said: $(cat /tmp/err)"
$BLKRELAY dump /tmp/small/x.blkr >/tmp/out 2>/tmp/err
[ "$(wc -l </tmp/out)" -gt 1000 ] || fail "the part that was written is not readable: $(cat /tmp/err)"
umount /tmp/small
checks=$((checks + 3))

# COMMAND's own status, and one that is not there.
$BLKRELAY record -d /dev/one -o /tmp/status.blkr --everything -- sh -c 'exit 7' 2>/tmp/err
[ $? = 7 ] || fail "the command's status is lost"
refused 2 'nosuchcommand' $record -d /dev/one --everything -- nosuchcommand
checks=$((checks + 1))

# A trace on the disk that is traced: done, with a warning.
null_disk store memory_backed=1 size=32
/usr/sbin/mke2fs -q -F -t ext4 /dev/store
mount -t ext4 /dev/store /mnt
$BLKRELAY record -d /dev/store -o /mnt/x.blkr --everything -- true 2>/tmp/err ||
	fail "on the traced disk: $(cat /tmp/err)"
grep -q 'warning: /mnt/x.blkr lies on store' /tmp/err || fail "no warning: $(cat /tmp/err)"
umount /mnt
checks=$((checks + 1))

# Files that are none.
: >/tmp/empty
head -c 100000 /dev/urandom >/tmp/foreign
head -c 200 /tmp/one.blkr >/tmp/cut
for command in dump report verify; do
	refused 2 '/tmp/empty' $BLKRELAY $command /tmp/empty
	refused 2 '/tmp/foreign' $BLKRELAY $command /tmp/foreign
	refused 2 '/tmp/nofile' $BLKRELAY $command /tmp/nofile
	refused 2 '/tmp' $BLKRELAY $command /tmp
done

rmmod blkrelay || fail "rmmod at the end"
echo "@result checks=$checks"
