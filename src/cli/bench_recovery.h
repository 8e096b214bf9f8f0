/* bench_recovery.h - how soon a sequence finds its experts in the card's slots again after another's prompt.
 *
 * Place:  cli; run by bench_run.c, printed with a sweep.
 * Method: one sequence generates until slots hold what they hold in the long run; another one's prompt is
 *         read; then the first goes on, and the hit rate of each of its steps is noted. The rate of a single
 *         step scatters by some points, as it is a share of a few hundred choices: recovered is the first step
 *         from which a few steps together are within RECOVERY_LOSS of the rate before. */
#ifndef CLI_BENCH_RECOVERY_H
#define CLI_BENCH_RECOVERY_H

#include <stddef.h>

enum { RECOVERY_STEPS = 40, RECOVERY_WINDOW = 5 };
#define RECOVERY_LOSS 0.02

struct bench_recovery {
    size_t n_prompt; /* tokens; 0: not measured */
    double before;   /* hit rate of RECOVERY_STEPS steps before the prompt */
    double hits[RECOVERY_STEPS];
    double after_first, after_last; /* mean of the first and of the last RECOVERY_WINDOW steps */
    size_t n_steps;                 /* until recovered; RECOVERY_STEPS: not within them */
};

/* Fills what follows from `before` and hits. A step that asked for no expert has a NaN, which counts as a hit
 * rate of `before`. */
void bench_recovery_judge(struct bench_recovery *r);

#endif
