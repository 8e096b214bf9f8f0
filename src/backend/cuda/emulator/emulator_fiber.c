/* emulator_fiber.c - see emulator_fiber.h. */
#include "backend/cuda/emulator/emulator_fiber.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#if defined(HAS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK_BYTES = 512 << 10 }; /* instrumented frames are several times as large */
#else
enum { STACK_BYTES = 64 << 10 };
#endif
enum { GUARD_BYTES = 4096, COLOURS = 32, COLOUR_BYTES = 576 };

/* The fiber that had the turn before, and what a new one begins with. */
static struct fiber *previous;
static void (*begin)(void);

bool fiber_init(struct fiber *f, size_t number)
{
    char *all = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    memset(f, 0, sizeof *f);
    if (all == MAP_FAILED || mprotect(all, GUARD_BYTES, PROT_NONE) != 0) {
        return false;
    }
    f->stack = all + GUARD_BYTES;
    f->stack_bytes = STACK_BYTES - (number % COLOURS) * COLOUR_BYTES;
#if !defined(__x86_64__)
    f->fallback = calloc(1, sizeof(ucontext_t));
    return f->fallback != NULL;
#else
    return true;
#endif
}

/* ASan: the switch to the fiber that runs now is complete. */
static void arrived(struct fiber *self)
{
#if defined(HAS_ASAN)
    const void *bottom = NULL;
    size_t n = 0;

    __sanitizer_finish_switch_fiber(self ? self->fake : NULL, &bottom, &n);
    if (previous && !previous->stack) { /* a thread's own stack */
        previous->stack = (void *)(uintptr_t)bottom;
        previous->stack_bytes = n;
    }
#else
    (void)self;
#endif
}

static void first_turn(void)
{
    arrived(NULL);
    begin();
    abort();
}

#if defined(__x86_64__)
/* Saves what a call must keep, changes stacks, restores. */
void emulator_change_stacks(void **save, void *load);
__asm__(".text\n"
        ".p2align 4\n"
        ".globl emulator_change_stacks\n"
        ".hidden emulator_change_stacks\n"
        ".type emulator_change_stacks, @function\n"
        "emulator_change_stacks:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulator_change_stacks, .-emulator_change_stacks\n");

static void prepare(struct fiber *f)
{
    uintptr_t top = ((uintptr_t)f->stack + f->stack_bytes) & ~(uintptr_t)15;
    uintptr_t *sp = (uintptr_t *)top;

    /* From the top: a null return address, first_turn's address for `ret`, six registers. `ret` leaves
     * the stack as a call would: 8 bytes off a multiple of 16. */
    *--sp = 0;
    *--sp = 0;
    *--sp = 0;
    *--sp = (uintptr_t)first_turn;
    assert((uintptr_t)sp % 16 == 0);
    for (int i = 0; i < 6; i++) {
        *--sp = 0;
    }
    f->sp = sp;
}

static void change(struct fiber *from, struct fiber *to)
{
    emulator_change_stacks(&from->sp, to->sp);
}
#else
static void prepare(struct fiber *f)
{
    ucontext_t *c = f->fallback;

    getcontext(c);
    c->uc_stack.ss_sp = f->stack;
    c->uc_stack.ss_size = f->stack_bytes;
    c->uc_link = NULL;
    makecontext(c, first_turn, 0);
}

static void change(struct fiber *from, struct fiber *to)
{
    if (!from->fallback) { /* the thread's own; the emulator keeps one such fiber for ever */
        from->fallback = calloc(1, sizeof(ucontext_t));
        assert(from->fallback);
    }
    swapcontext(from->fallback, to->fallback);
}
#endif

void fiber_start(struct fiber *f, void (*entry)(void))
{
#if defined(HAS_ASAN)
    if (!f->is_clean) { /* its last turn ended anywhere: in a wait, when the launch failed */
        __asan_unpoison_memory_region(f->stack, f->stack_bytes);
    }
    f->is_clean = false;
#endif
    f->fake = NULL;
    begin = entry;
    prepare(f);
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
#if defined(HAS_ASAN)
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->stack_bytes);
#endif
    previous = from;
    change(from, to);
    arrived(from);
}

void fiber_leave(struct fiber *from, struct fiber *to)
{
#if defined(HAS_ASAN)
    /* Calls that have returned cleaned up after themselves; those that will not are above here. A
     * whole stack at each start would cost more than what kernels compute. */
    char *here = __builtin_frame_address(0);

    __asan_unpoison_memory_region(here, (size_t)((char *)from->stack + from->stack_bytes - here));
    from->is_clean = true;
    __sanitizer_start_switch_fiber(NULL, to->stack, to->stack_bytes);
#endif
    previous = from;
    change(from, to);
    abort();
}
