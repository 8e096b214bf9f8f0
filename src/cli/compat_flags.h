/* compat_flags.h - flags of other servers that a launch line may hold.
 *
 * Place: cli. Ignoring most of them changes nothing but speed or looks: they are accepted and noted
 *        with one line. Those whose absence would change answers or safety are refused, unless their value
 *        is the harmless one. */
#ifndef CLI_COMPAT_FLAGS_H
#define CLI_COMPAT_FLAGS_H

#include "base/status.h"
#include "cli/flags.h"

/* Two groups for flags_parse: without effect on a CPU, and without effect at all. */
enum { COMPAT_GROUPS = 2 };
extern const struct flag_group compat_groups[COMPAT_GROUPS];

/* ERR_USAGE when a flag was given that cannot be ignored. */
enum status compat_check(const struct flag_result *r, struct error *err);

#endif
