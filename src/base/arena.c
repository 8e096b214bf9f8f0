/* arena.c - a chain of blocks, each twice the last. See arena.h. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"

enum { ARENA_ALIGN = 16, ARENA_FIRST_BYTES = 4096, ARENA_BLOCK_BYTES_MAX = 1 << 20 };

struct arena_block {
    struct arena_block *next;
    size_t used, cap; /* bytes of data */
    alignas(ARENA_ALIGN) unsigned char data[];
};

void arena_init(struct arena *a, size_t bytes_max)
{
    *a = (struct arena){.bytes_max = bytes_max};
}

void arena_release(struct arena *a)
{
    struct arena_block *b = a->blocks;
    while (b) {
        struct arena_block *next = b->next;
        free(b);
        b = next;
    }
    a->blocks = NULL;
    a->used_bytes = 0;
    a->is_starved = false;
}

void *arena_alloc(struct arena *a, size_t n_bytes)
{
    struct arena_block *b = a->blocks;
    size_t need, total;
    void *p;

    if (!size_align(&need, n_bytes ? n_bytes : 1, ARENA_ALIGN) ||
        !size_add(&total, a->used_bytes, need) || (a->bytes_max && total > a->bytes_max)) {
        return NULL;
    }
    if (!b || b->cap - b->used < need) {
        size_t cap = b ? size_min(b->cap * 2, ARENA_BLOCK_BYTES_MAX) : ARENA_FIRST_BYTES;
        size_t whole;
        cap = size_max(cap, need);
        if (!size_add(&whole, sizeof *b, cap)) {
            return NULL;
        }
        b = calloc(1, whole);
        if (!b) {
            a->is_starved = true;
            return NULL;
        }
        b->cap = cap;
        b->next = a->blocks;
        a->blocks = b;
    }
    p = b->data + b->used;
    b->used += need;
    a->used_bytes = total;
    return p;
}

void *arena_array(struct arena *a, size_t n, size_t each)
{
    size_t bytes;
    return size_mul(&bytes, n, each) ? arena_alloc(a, bytes) : NULL;
}

char *arena_copy(struct arena *a, const char *text, size_t n)
{
    size_t bytes;
    char *p = size_add(&bytes, n, 1) ? arena_alloc(a, bytes) : NULL;
    if (p && n > 0) {
        memcpy(p, text, n);
    }
    return p;
}

void *aligned_new(size_t n_bytes)
{
    enum { ALIGN = 64 };
    size_t bytes;
    void *p;

    if (!size_align(&bytes, n_bytes ? n_bytes : 1, ALIGN)) {
        return NULL;
    }
    p = aligned_alloc(ALIGN, bytes);
    if (p) {
        memset(p, 0, bytes);
    }
    return p;
}

void *huge_new(size_t n_bytes)
{
    enum { ALIGN = 64, HUGE_PAGE = 2 << 20 };
    size_t align = n_bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGN, bytes;
    void *p;

    if (!size_align(&bytes, n_bytes ? n_bytes : 1, align)) {
        return NULL;
    }
    p = aligned_alloc(align, bytes);
    if (p && align == HUGE_PAGE) {
        madvise(p, bytes, MADV_HUGEPAGE); /* a wish: without it only more page walks */
    }
    return p;
}
