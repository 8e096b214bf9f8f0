/* cpu.c - CPUID, XCR0 and the operating system's word on cores. See cpu.h. */
#include "base/cpu.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/size.h"

#if defined(__x86_64__)
#include <cpuid.h>

enum {
    XCR0_AVX = 0x6,     /* xmm, ymm */
    XCR0_AVX512 = 0xe6, /* and opmask, zmm */
    XCR0_AMX = 0x60000  /* tile config, tile data */
};

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux gives a process the large AMX registers only when it asks (Linux 5.16 on). */
static bool amx_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

struct cpu_features cpu_detect(void)
{
    struct cpu_features f = {0};
    unsigned a, b, c, d, b7, c7, d7, a71 = 0;
    uint64_t xcr0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) {
        return f;
    }
    xcr0 = read_xcr0();
    if ((xcr0 & XCR0_AVX) != XCR0_AVX || !(c & bit_AVX) || !(c & bit_FMA) || !(c & bit_F16C) ||
        !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) {
        return f;
    }
    if (a >= 1) {
        unsigned unused_b, unused_c, unused_d;
        __get_cpuid_count(7, 1, &a71, &unused_b, &unused_c, &unused_d);
    }
    f.avx2 = (b7 & bit_AVX2) != 0;
    f.avx_vnni = f.avx2 && (a71 & (1u << 4));
    if ((xcr0 & XCR0_AVX512) == XCR0_AVX512) {
        f.avx512 = f.avx2 && (b7 & bit_AVX512F) && (b7 & bit_AVX512BW) && (b7 & bit_AVX512DQ) &&
                   (b7 & bit_AVX512VL);
        f.avx512_vnni = f.avx512 && (c7 & bit_AVX512VNNI);
        f.avx512_bf16 = f.avx512 && (a71 & (1u << 5));
    }
    f.amx = (xcr0 & XCR0_AMX) == XCR0_AMX && (d7 & (1u << 24)) && (d7 & (1u << 25)) &&
            (d7 & (1u << 22)) && amx_permitted();
    return f;
}
#else
struct cpu_features cpu_detect(void)
{
    return (struct cpu_features){0};
}
#endif

size_t cpu_count_logical(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        return (size_t)CPU_COUNT(&set);
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (size_t)n : 1;
}

/* The lowest-numbered thread of cpu's core, from sysfs; cpu itself when unknown. */
static int core_leader(int cpu)
{
    char path[96];
    int leader = cpu;
    FILE *f;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    f = fopen(path, "re");
    if (f) {
        if (fscanf(f, "%d", &leader) != 1) {
            leader = cpu;
        }
        fclose(f);
    }
    return leader;
}

size_t cpu_count_physical(void)
{
    cpu_set_t set, leaders;

    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return cpu_count_logical();
    }
    CPU_ZERO(&leaders);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, &set)) {
            int leader = core_leader(cpu);
            CPU_SET((size_t)(leader >= 0 && leader < CPU_SETSIZE ? leader : cpu), &leaders);
        }
    }
    return size_max((size_t)CPU_COUNT(&leaders), 1);
}

void cpu_model_name(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");

    snprintf(out, n, "unknown processor");
    if (!f) {
        return;
    }
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon && colon[1]) {
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(out, n, "%s", colon + 2);
            break;
        }
    }
    fclose(f);
}

void cpu_features_text(char *out, size_t n, const struct cpu_features *f)
{
    snprintf(out, n, "%s%s%s%s%s%s", f->avx2 ? "avx2 " : "", f->avx_vnni ? "avx_vnni " : "",
             f->avx512 ? "avx512 " : "", f->avx512_vnni ? "avx512_vnni " : "",
             f->avx512_bf16 ? "avx512_bf16 " : "", f->amx ? "amx " : "");
    if (n > 0 && out[0] != '\0') {
        out[strlen(out) - 1] = '\0';
    } else {
        snprintf(out, n, "none");
    }
}
