/* What scripts/faults.py preloads into each process of its cluster, to show it other clocks and a slower disk than the
 * machine has. A small file, mapped by both, says which; the script rewrites it while the process runs. x86-64 Linux.
 *
 * Clocks: Rust's rustix and Go read the vDSO themselves, past any function of libc, so that the vDSO's own clock_gettime is
 * overwritten with a jump to ours, in this process's private copy of that page. What waits until an absolute time
 * (std's futex) is translated back. Disk: the kernel is asked (seccomp) to hold each fsync and fdatasync until a thread
 * of ours lets it go on, which is what reaches Go's raw system calls too. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L

/* At `real`, the clock shows `shown`; from there it gains `rate` / 2^40 on the machine's. */
struct line {
    int64_t real, shown, rate;
};

/* Laid out as faults_world.py writes it. `turn` is odd while it is written. */
struct control {
    volatile uint64_t turn;
    volatile struct line lines[3]; /* REALTIME, MONOTONIC, BOOTTIME */
    volatile int64_t sync_delay_ns;
};

static struct control *control;

/* Not libc's: it must be usable on a Go stack, and inside our own `syscall`. */
static inline long sys(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static int which(clockid_t id) {
    switch (id) {
    case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: return 0;
    case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_COARSE: return 1;
    case CLOCK_BOOTTIME: return 2;
    default: return -1;
    }
}

static struct line line_of(int clock) {
    for (;;) {
        uint64_t turn = __atomic_load_n(&control->turn, __ATOMIC_ACQUIRE);
        struct line line = {control->lines[clock].real, control->lines[clock].shown, control->lines[clock].rate};
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (turn % 2 == 0 && __atomic_load_n(&control->turn, __ATOMIC_RELAXED) == turn) return line;
    }
}

static inline int64_t gained(int64_t span, int64_t rate) {
    return (int64_t)(((__int128)span * rate) >> 40);
}

static int shown_time(clockid_t id, struct timespec *at) {
    int clock = which(id);
    long failed = sys(SYS_clock_gettime, id, (long)at, 0, 0, 0, 0);
    if (failed || clock < 0) return (int)failed;
    struct line line = line_of(clock);
    int64_t span = at->tv_sec * SECOND + at->tv_nsec - line.real;
    int64_t shown = line.shown + span + gained(span, line.rate);
    at->tv_sec = shown / SECOND;
    at->tv_nsec = shown % SECOND;
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    long failed = shown_time(id, at);
    if (failed == 0) return 0;
    errno = (int)-failed;
    return -1;
}

/* Who waits until an absolute instant means the clock that it was shown; the kernel knows only its own. */
static void to_real(int clock, const struct timespec *until, struct timespec *real) {
    struct line line = line_of(clock);
    int64_t span = until->tv_sec * SECOND + until->tv_nsec - line.shown;
    int64_t at = line.real + span - gained(span, line.rate);
    if (at < 0) at = 0;
    real->tv_sec = at / SECOND;
    real->tv_nsec = at % SECOND;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *span, struct timespec *left) {
    struct timespec real;
    if (flags & TIMER_ABSTIME && which(id) >= 0) {
        to_real(which(id), span, &real);
        span = &real;
    }
    return (int)-sys(SYS_clock_nanosleep, id, flags, (long)span, (long)left, 0, 0);
}

long syscall(long number, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, number);
    long arg[6];
    for (int i = 0; i < 6; i++) arg[i] = __builtin_va_arg(list, long);
    __builtin_va_end(list);
    struct timespec real;
    if (number == SYS_futex && (arg[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && arg[3]) {
        to_real(arg[1] & FUTEX_CLOCK_REALTIME ? 0 : 1, (const struct timespec *)arg[3], &real);
        arg[3] = (long)&real;
    }
    long result = sys(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

static void give_up(const char *why) {
    fprintf(stderr, "faults_preload: %s: %s\n", why, strerror(errno));
    _exit(70);
}

/* Overwrites the vDSO's clock_gettime. No other thread runs yet. */
static void take_over_vdso(void) {
    char *base = (char *)getauxval(AT_SYSINFO_EHDR);
    Elf64_Ehdr *header = (Elf64_Ehdr *)base;
    Elf64_Phdr *segments = (Elf64_Phdr *)(base + header->e_phoff);
    Elf64_Dyn *entry = NULL;
    size_t length = 0;
    for (int i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_LOAD) length = segments[i].p_offset + segments[i].p_memsz;
        if (segments[i].p_type == PT_DYNAMIC) entry = (Elf64_Dyn *)(base + segments[i].p_offset);
    }
    Elf64_Sym *symbols = NULL;
    char *names = NULL;
    uint32_t *hash = NULL;
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) symbols = (Elf64_Sym *)(base + entry->d_un.d_ptr);
        if (entry->d_tag == DT_STRTAB) names = base + entry->d_un.d_ptr;
        if (entry->d_tag == DT_HASH) hash = (uint32_t *)(base + entry->d_un.d_ptr);
    }
    if (!symbols || !names || !hash) give_up("the vDSO has no table of symbols");
    length = (length + 4095) & ~4095UL;
    if (mprotect(base, length, PROT_READ | PROT_WRITE | PROT_EXEC)) give_up("the vDSO cannot be written");
    for (uint32_t i = 0; i < hash[1]; i++) {
        if (strcmp(names + symbols[i].st_name, "__vdso_clock_gettime")) continue;
        unsigned char jump[12] = {0x48, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xE0}; /* mov rax, ours; jmp rax */
        void *ours = (void *)shown_time;
        memcpy(jump + 2, &ours, sizeof ours);
        memcpy(base + symbols[i].st_value, jump, sizeof jump);
    }
    if (mprotect(base, length, PROT_READ | PROT_EXEC)) give_up("the vDSO cannot be closed");
}

/* One after the other, as one disk would. */
static void *let_go(void *listener) {
    struct seccomp_notif held;
    for (;;) {
        memset(&held, 0, sizeof held);
        if (ioctl((int)(long)listener, SECCOMP_IOCTL_NOTIF_RECV, &held)) continue;
        int64_t delay = control->sync_delay_ns;
        struct timespec span = {delay / SECOND, delay % SECOND};
        if (delay) sys(SYS_nanosleep, (long)&span, 0, 0, 0, 0, 0);
        struct seccomp_notif_resp answer = {.id = held.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl((int)(long)listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
    return NULL;
}

static void hold_syncs(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    long flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    long listener = sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, (long)&program, 0, 0, 0);
    if (listener < 0) {
        errno = (int)-listener;
        give_up("fsync cannot be held");
    }
    /* The process's signals are for its own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, let_go, (void *)listener))) give_up("no thread to let go of fsync");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LEASEHOLD_FAULTS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) give_up("LEASEHOLD_FAULTS names no file");
    control = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, file, 0);
    if (control == MAP_FAILED) give_up("the file cannot be mapped");
    close(file);
    take_over_vdso();
    hold_syncs();
}
