/* A disk that needs a millisecond to keep a promise: for LD_PRELOAD. The real call is made, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int late(const char *name, int file)
{
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(file);
}

int fsync(int file) { return late("fsync", file); }
int fdatasync(int file) { return late("fdatasync", file); }
