/*
 * Stands between a program and the C library, and makes system calls fail.
 *
 * TRUENO_FAULT_CALL=n   the n-th call fails, counted from 1 over all functions below
 * TRUENO_FAULT=f        how: EIO, ENOSPC, EINTR, or SHORT (reads and writes do half of what they were asked)
 * TRUENO_FAULT_LOG=p    where the name of the function that failed is written
 * TRUENO_REFUSE=a,b:E   the functions a and b always fail with EPERM, EINVAL, ENOSYS or EMFILE
 *
 * Writes to standard error are left alone: messages must arrive to be checked.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { NONE = 0, SHORT = -1 };

static atomic_long calls;
static long fault_call;
static int fault;
static const char *log_path;
static const char *refused;
static int refused_errno;

static int number_of(const char *name) {
    static const struct { const char *name; int number; } known[] = {
        {"EIO", EIO},     {"ENOSPC", ENOSPC}, {"EINTR", EINTR},   {"EPERM", EPERM},
        {"EDQUOT", EDQUOT}, {"EINVAL", EINVAL}, {"ENOSYS", ENOSYS}, {"EMFILE", EMFILE}, {"EOPNOTSUPP", EOPNOTSUPP}, {"SHORT", SHORT},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (name && strcmp(name, known[i].name) == 0) return known[i].number;
    return NONE;
}

__attribute__((constructor)) static void start(void) {
    const char *call = getenv("TRUENO_FAULT_CALL");
    fault_call = call ? atol(call) : 0;
    fault = number_of(getenv("TRUENO_FAULT"));
    log_path = getenv("TRUENO_FAULT_LOG");
    const char *refuse = getenv("TRUENO_REFUSE");
    const char *colon = refuse ? strchr(refuse, ':') : NULL;
    if (colon) {
        refused_errno = number_of(colon + 1);
        refused = strndup(refuse, (size_t)(colon - refuse));
    }
}

static int is_refused(const char *name) {
    if (!refused) return 0;
    size_t len = strlen(name);
    for (const char *at = refused; (at = strstr(at, name)) != NULL; at += len)
        if ((at == refused || at[-1] == ',') && (at[len] == ',' || at[len] == '\0')) return 1;
    return 0;
}

/* What happens to this call: nothing, an error number, or SHORT. */
static int verdict(const char *name) {
    if (is_refused(name)) return refused_errno;
    if (fault_call == 0 || atomic_fetch_add(&calls, 1) + 1 != fault_call) return NONE;
    if (log_path) {
        int fd = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd >= 0) {
            syscall(SYS_write, fd, name, strlen(name));
            syscall(SYS_close, fd);
        }
    }
    return fault;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define FAIL(name) \
    do { \
        int wrong = verdict(name); \
        if (wrong > 0) { errno = wrong; return -1; } \
    } while (0)
#define HALF(name, len) \
    do { \
        int wrong = verdict(name); \
        if (wrong > 0) { errno = wrong; return -1; } \
        if (wrong == SHORT && (len) > 1) (len) /= 2; \
    } while (0)

#define OPEN(function) \
    int function(const char *path, int flags, ...) { \
        REAL(int, #function, const char *, int, mode_t); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        FAIL((flags & O_TMPFILE) == O_TMPFILE ? "tmpfile" : "open"); \
        return real(path, flags, mode); \
    }
#define OPENAT(function) \
    int function(int dir, const char *path, int flags, ...) { \
        REAL(int, #function, int, const char *, int, mode_t); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        FAIL((flags & O_TMPFILE) == O_TMPFILE ? "tmpfile" : "open"); \
        return real(dir, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void *to, size_t len) {
    REAL(ssize_t, "read", int, void *, size_t);
    HALF("read", len);
    return real(fd, to, len);
}
#define PREAD(function, offset_type) \
    ssize_t function(int fd, void *to, size_t len, offset_type at) { \
        REAL(ssize_t, #function, int, void *, size_t, offset_type); \
        HALF("pread", len); \
        return real(fd, to, len, at); \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
ssize_t write(int fd, const void *from, size_t len) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (fd != 2) HALF("write", len);
    return real(fd, from, len);
}
#define PWRITE(function, offset_type) \
    ssize_t function(int fd, const void *from, size_t len, offset_type at) { \
        REAL(ssize_t, #function, int, const void *, size_t, offset_type); \
        HALF("pwrite", len); \
        return real(fd, from, len, at); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
ssize_t writev(int fd, const struct iovec *from, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (fd != 2) HALF("writev", count);
    return real(fd, from, count);
}
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t len, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    HALF("copy_file_range", len);
    return real(in, in_at, out, out_at, len, flags);
}
#define SEEK(function, offset_type) \
    offset_type function(int fd, offset_type at, int whence) { \
        REAL(offset_type, #function, int, offset_type, int); \
        FAIL("lseek"); \
        return real(fd, at, whence); \
    }
SEEK(lseek, off_t)
SEEK(lseek64, off64_t)
#define ON_FD(function) \
    int function(int fd) { REAL(int, #function, int); FAIL(#function); return real(fd); }
ON_FD(fsync)
ON_FD(fdatasync)
/* The descriptor is gone even if this fails. */
int close(int fd) {
    REAL(int, "close", int);
    int closed = real(fd);
    FAIL("close");
    return closed;
}
#define TRUNCATE(function, offset_type) \
    int function(int fd, offset_type len) { \
        REAL(int, #function, int, offset_type); \
        FAIL("ftruncate"); \
        return real(fd, len); \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)
int fallocate(int fd, int mode, off_t at, off_t len) {
    REAL(int, "fallocate", int, int, off_t, off_t);
    FAIL("fallocate");
    return real(fd, mode, at, len);
}
int fchmod(int fd, mode_t mode) {
    REAL(int, "fchmod", int, mode_t);
    FAIL("fchmod");
    return real(fd, mode);
}
int fchown(int fd, uid_t uid, gid_t gid) {
    REAL(int, "fchown", int, uid_t, gid_t);
    FAIL("fchown");
    return real(fd, uid, gid);
}
int futimens(int fd, const struct timespec times[2]) {
    REAL(int, "futimens", int, const struct timespec *);
    FAIL("futimens");
    return real(fd, times);
}
int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    FAIL("rename");
    return real(from, to);
}
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    FAIL("renameat2");
    return real(from_dir, from, to_dir, to, flags);
}
int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    FAIL("linkat");
    return real(from_dir, from, to_dir, to, flags);
}
int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    FAIL("unlink");
    return real(path);
}
int statx(int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict out) {
    REAL(int, "statx", int, const char *, int, unsigned, struct statx *);
    FAIL("statx");
    return real(dir, path, flags, mask, out);
}
char *realpath(const char *restrict path, char *restrict out) {
    static char *(*real)(const char *, char *);
    if (!real) real = (char *(*)(const char *, char *))dlsym(RTLD_NEXT, "realpath");
    int wrong = verdict("realpath");
    if (wrong > 0) { errno = wrong; return NULL; }
    return real(path, out);
}
int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict how, void *(*run)(void *),
                   void *restrict with) {
    REAL(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (verdict("pthread_create") > 0) return EAGAIN;
    return real(thread, how, run, with);
}
