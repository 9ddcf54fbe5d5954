/* SPDX-License-Identifier: GPL-2.0 */
#include <linux/blktrace_api.h>
