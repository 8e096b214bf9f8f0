/* clock.h - time. Deadlines and durations use the monotonic clock only. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void); /* monotonic, from an arbitrary start */
uint64_t clock_now_ms(void); /* monotonic */
int64_t clock_wall_s(void);  /* seconds since 1970, for "created" fields and logs */
double clock_seconds_since(uint64_t start_ns);

#endif
