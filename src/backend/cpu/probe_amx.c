/* probe_amx.c - one product of tiles in a child process: whether AMX does what it promises here.
 *
 * Place: backend/cpu; asked once per backend, and only where the processor has AMX and the kernel granted
 *        it. Some virtual machines list it all the same and end whoever uses it with SIGILL; a child
 *        can be spared. */
#if defined(__x86_64__)

#include <errno.h>
#include <stdalign.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/cpu_x86.h"
#include "backend/cpu/simd_amx.h"

/* Inputs of -1 and weights of j - 7 in column j. */
static bool product_is_right(void)
{
    alignas(64) int8_t a[TILE_BYTES], b[TILE_BYTES];
    alignas(64) int32_t c[TILE_LINES][TILE_LINES];
    bool is_right = true;

    for (int i = 0; i < TILE_BYTES; i++) {
        a[i] = -1;
        b[i] = (int8_t)(i % TILE_LINE_BYTES / 4 - 7);
    }
    tile_open(TILE_LINES);
    tile_stores_done();
    _tile_zero(0);
    _tile_loadd(2, a, TILE_LINE_BYTES);
    _tile_loadd(4, b, TILE_LINE_BYTES);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, c, TILE_LINE_BYTES);
    tile_close();
    for (int i = 0; i < TILE_LINES; i++) {
        for (int j = 0; j < TILE_LINES; j++) {
            is_right = is_right && c[i][j] == -64 * (j - 7);
        }
    }
    return is_right;
}

bool amx_works(void)
{
    pid_t child = fork(), got;
    int how = 0;

    if (child == 0) {
        _exit(product_is_right() ? 0 : 1);
    }
    do {
        got = child > 0 ? waitpid(child, &how, 0) : -1;
    } while (got < 0 && child > 0 && errno == EINTR);
    return got == child && WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

#endif
