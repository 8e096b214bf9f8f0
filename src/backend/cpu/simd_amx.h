/* simd_amx.h - the tile registers: their shapes, taking them and giving them back.
 *
 * Place:  backend/cpu; included by *_amx.c only.
 * Shapes: a product reads A [rows][64 bytes] and B [16][16 columns][4 bytes], where row r of B holds the
 *         inputs 4r .. 4r + 3 of each column, and adds to C [rows][16] of int32.
 * State:  tiles belong to the thread. Whoever calls tile_open() calls tile_close() before it returns, so
 *         that no shape outlives a call and the system need not save the registers in between. */
#ifndef BACKEND_CPU_SIMD_AMX_H
#define BACKEND_CPU_SIMD_AMX_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TILE_LINES = 16,      /* rows of a tile at the most */
    TILE_LINE_BYTES = 64, /* of a row */
    TILE_BYTES = TILE_LINES * TILE_LINE_BYTES,
    TILE_REGISTERS = 8,
    TILES_A_AND_C = 4, /* registers 0 .. 3 hold C and A, the others B */
};

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
};
_Static_assert(sizeof(struct tile_shapes) == 64, "as the instruction reads it");

/* Registers 0 .. 3 with `rows` lines, 4 .. 7 with 16. */
static inline void tile_open(size_t rows)
{
    struct tile_shapes s = {.palette = 1};

    for (size_t i = 0; i < TILE_REGISTERS; i++) {
        s.line_bytes[i] = TILE_LINE_BYTES;
        s.lines[i] = (uint8_t)(i < TILES_A_AND_C ? rows : TILE_LINES);
    }
    /* GCC's intrinsic owns up to reading a pointer's worth of s; the rest must be in memory too. */
    __asm__ volatile("" ::"r"(&s) : "memory");
    _tile_loadconfig(&s);
}

static inline void tile_close(void)
{
    _tile_release();
}

/* GCC's tile loads do not say that they read memory: what was stored before must be there. */
static inline void tile_stores_done(void)
{
    __asm__ volatile("" ::: "memory");
}

#endif
