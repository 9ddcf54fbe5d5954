#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Count mode counts: a loop of known length takes as many ticks as it has instructions (and a little for
# the timer's interrupts), and a window in which the CPU was idle is refused.
#
# shellcheck disable=SC1091 # the library is put into the initramfs
set -e
. /lab/lib.sh

line=$(blkrelay-guest loop --count 50000000)
echo "$line"
ticks=$(echo "$line" | tr ' ' '\n' | sed -n 's/^ticks=//p')
# Two instructions a round.
[ "$ticks" -ge 100000000 ] || fail "$ticks ticks for 100000000 instructions"
[ "$ticks" -le 101000000 ] || fail "$ticks ticks for 100000000 instructions"

code=0
blkrelay-guest window idle sleep 0.1 2>/tmp/err || code=$?
[ $code = 2 ] || fail "an idle window ended with $code"
grep -q idle /tmp/err || fail "an idle window said $(cat /tmp/err)"
code=0
blkrelay-guest window busy sh -c 'exit 5' || code=$?
[ $code = 5 ] || fail "a window ended with $code, not with its command's 5"
