/* peak_loops_amx.c - the loop with tiles. See peak_loops.h. */
#if defined(__x86_64__)
#include "backend/cpu/simd_amx.h"
#include "cli/peak_loops.h"

/* Four chains, as many as there are registers for their sums beside the factors. */
double peak_int8_amx(size_t rounds)
{
    enum { CHAINS = 4, PER_ROUND = 8 }; /* a product is worth many vectors */

    tile_open(TILE_LINES);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (size_t r = 0; r < rounds / PER_ROUND; r++) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    tile_close();
    return 2.0 * TILE_BYTES * TILE_LINES * CHAINS * (double)(rounds / PER_ROUND);
}
#else
typedef int empty_peak_loops_amx;
#endif
