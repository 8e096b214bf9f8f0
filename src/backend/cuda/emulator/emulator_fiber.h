/* emulator_fiber.h - stacks that change places: what the emulator's threads are made of.
 *
 * Place: backend/cuda/emulator; private. On x86-64 a switch is a dozen instructions; elsewhere it is
 *        ucontext's, which asks the kernel each time. AddressSanitizer is told of every switch. */
#ifndef BACKEND_CUDA_EMULATOR_EMULATOR_FIBER_H
#define BACKEND_CUDA_EMULATOR_EMULATOR_FIBER_H

#include <stdbool.h>
#include <stddef.h>

struct fiber {
    void *stack; /* lowest address; of the thread that came from outside: found out by ASan */
    size_t stack_bytes;
    void *sp;       /* saved stack pointer */
    void *fake;     /* ASan's */
    void *fallback; /* ucontext_t */
    bool is_clean;  /* ASan: nothing of its stack is poisoned */
};

/* Gives f a stack with an unmapped page below it. False: no memory. number spreads the fibers' stacks
 * over the sets of the caches. */
bool fiber_init(struct fiber *f, size_t number);

/* f's next turn begins with entry(), which must not return. */
void fiber_start(struct fiber *f, void (*entry)(void));

/* The caller, whose own fiber is `from`, stops here until someone switches to it. */
void fiber_switch(struct fiber *from, struct fiber *to);

/* The same for a fiber that will be started anew before its next turn. */
void fiber_leave(struct fiber *from, struct fiber *to);

#endif
