// SPDX-License-Identifier: GPL-2.0
/*
 * A clock source that is not the TSC, as far as the kernel and a tracer can see. It reads the TSC all the
 * same: under emulation nothing else counts instructions, and a device's registers would cost what QEMU makes
 * of them. So what is counted with it is the way through the kernel's timekeeping, and no device.
 *
 * For the lab only. Not part of blkrelay.
 */
#include <linux/clocksource.h>
#include <linux/module.h>

#include <asm/msr.h>
#include <asm/tsc.h>

static u64 otherclock_read(struct clocksource *cs)
{
	return rdtsc_ordered();
}

/* Rated below the TSC: it is used when it is asked for. */
static struct clocksource otherclock = {
	.name = "otherclock",
	.rating = 100,
	.read = otherclock_read,
	.mask = CLOCKSOURCE_MASK(64),
	.flags = CLOCK_SOURCE_IS_CONTINUOUS,
	.owner = THIS_MODULE,
};

static int __init otherclock_init(void)
{
	return clocksource_register_khz(&otherclock, tsc_khz);
}

static void __exit otherclock_exit(void)
{
	clocksource_unregister(&otherclock);
}

module_init(otherclock_init);
module_exit(otherclock_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("a clock source that is not the TSC, for the lab");
