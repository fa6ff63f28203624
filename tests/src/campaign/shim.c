/* Preloaded into a test's own server process, and nowhere else. Two lies and one confession:
 *
 *  - its wall clock is off by as many microseconds as the file $WHEELLOCK_CLOCK says (a signed 64-bit integer);
 *  - after every fdatasync or fsync, the inode and the length that are now on disk go to the file $WHEELLOCK_SYNCED (two
 *    64-bit integers), so that a power cut can be played by cutting the file to that length.
 *
 * System calls are made directly: looking up the real functions would run before the allocator is ready. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;
static int synced = -1;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WHEELLOCK_CLOCK");
    if (path) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        void *map = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        if (map != MAP_FAILED) offset = map;
        if (file >= 0) close(file);
    }
    path = getenv("WHEELLOCK_SYNCED");
    if (path) synced = open(path, O_WRONLY | O_CLOEXEC);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t micros = now->tv_nsec / 1000 + *offset % 1000000;
        now->tv_sec += *offset / 1000000;
        if (micros < 0) { micros += 1000000; now->tv_sec -= 1; }
        if (micros >= 1000000) { micros -= 1000000; now->tv_sec += 1; }
        now->tv_nsec = micros * 1000 + now->tv_nsec % 1000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    if (!failed) { now->tv_sec = time.tv_sec; now->tv_usec = time.tv_nsec / 1000; }
    return failed;
}

time_t time(time_t *now) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    if (now) *now = time.tv_sec;
    return time.tv_sec;
}

static int sync_with(long call, int file) {
    struct stat before;
    int known = synced >= 0 && fstat(file, &before) == 0;
    int failed = (int)syscall(call, file);
    if (known && !failed && S_ISREG(before.st_mode)) {
        uint64_t told[2] = {before.st_ino, (uint64_t)before.st_size};
        ssize_t written = pwrite(synced, told, sizeof told, 0);
        (void)written;
    }
    return failed;
}

int fdatasync(int file) { return sync_with(SYS_fdatasync, file); }
int fsync(int file) { return sync_with(SYS_fsync, file); }
