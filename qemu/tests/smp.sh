#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Two CPUs under load, the reader polling and then never waiting at all, in turns for LAB_SECONDS: each
# record valid, none twice, none torn. The workload reads each sector of its disks once, so that each
# must come out with Q, G, D and C once, in this order, and nothing else may.
#
# shellcheck disable=SC1091,SC2086 # the library is put into the initramfs; names have no blanks
set -e
. /lab/lib.sh

null_disk one size=1024
null_disk two size=1024
DISK0=$(readlink -f /dev/disk0) DISK1=$(readlink -f /dev/disk1)
COUNT=8000

cat >/tmp/load <<END
taskset 1 blkrelay-guest io --dev /dev/one --direct --count $COUNT & a=\$!
taskset 2 blkrelay-guest io --dev /dev/two --direct --count $COUNT & b=\$!
taskset 1 blkrelay-guest io --dev $DISK0 --direct --count $COUNT & c=\$!
taskset 2 blkrelay-guest io --dev $DISK1 --direct --count $COUNT & d=\$!
wait \$a && wait \$b && wait \$c && wait \$d
END

insmod $MODULE
devices=
for d in /dev/one /dev/two "$DISK0" "$DISK1"; do
	devices=$devices,$(cat "/sys/block/${d##*/}/dev")
done

check() {
	$BLKRELAY verify /tmp/trace.blkr >/tmp/verify.txt || fail "$1: $(cat /tmp/verify.txt)"
	blkrelay-guest once /tmp/trace.blkr --count $COUNT /dev/one /dev/two "$DISK0" "$DISK1" ||
		fail "$1: round $rounds"
	rm /tmp/trace.blkr
}

rounds=0
end=$(($(date +%s) + ${LAB_SECONDS:-20}))
while [ "$(date +%s)" -lt $end ]; do
	rounds=$((rounds + 1))
	$BLKRELAY record -d /dev/one -d /dev/two -d "$DISK0" -d "$DISK1" -o /tmp/trace.blkr \
		--subbuf-size 65536 --subbufs 32 --everything -- sh /tmp/load ||
		fail "polling: record ended with $?"
	check polling
	blkrelay-guest spin -o /tmp/trace.blkr -d "${devices#,}" --subbuf-size 65536 --subbufs 32 \
		sh /tmp/load || fail "spinning: ended with $?"
	check spinning
done
echo "@result rounds=$rounds requests=$((rounds * 2 * 4 * COUNT))"
rmmod blkrelay
