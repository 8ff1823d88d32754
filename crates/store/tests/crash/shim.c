/* Writes down what a process does to the files below one directory, and may make some of it fail.
 *
 * Preloaded (LD_PRELOAD) into a test's child process only. Each call is made and noted under one lock, so that the order of the
 * notes is the order of effects.
 *
 *   PORTOLAN_SHIM_ROOT   the directory, absolute
 *   PORTOLAN_SHIM_TRACE  where the notes go, outside of it
 *   PORTOLAN_SHIM_FAULT  "KIND AT ERRNO ONCE": calls of KIND (w: writes and resizes, s: syncs, n: what makes or changes a name)
 *                        fail with ERRNO: the AT-th one (ONCE 1), or all from it on (ONCE 0) until there is a file ROOT.room.
 *                        KIND p: writes do not fail, but write half of what they are given. KIND c: syncs fail in that the disk
 *                        does not empty its cache, which Linux tells that call alone
 *
 * A note is: kind u8, inode u64, number u64, length u32, bytes; little-endian. Paths are relative to the root.
 *   C, M  a file, a folder was made at the path     O  one that was there was opened
 *   W     bytes were written at the number          T  the length was set to the number
 *   S     the file or folder was synced             U  the path was removed
 *   R     renamed: the path before, 0, the path after     F     a call was made to fail
 * sync_file_range is none of them: it syncs neither the length nor the disk's cache. Whoever calls it for one of the files ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *root;
static size_t root_len;
static int trace = -1;
static char fault_kind;
static long fault_at, fault_seen;
static int fault_errno, fault_once;

static void die(const char *what) {
    fprintf(stderr, "shim: %s\n", what);
    _exit(97);
}

__attribute__((constructor)) static void start(void) {
    root = getenv("PORTOLAN_SHIM_ROOT");
    const char *to = getenv("PORTOLAN_SHIM_TRACE");
    const char *fault = getenv("PORTOLAN_SHIM_FAULT");
    if (!root || !to)
        return;
    root_len = strlen(root);
    trace = syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (trace < 0)
        die("cannot open the trace");
    if (fault && sscanf(fault, "%c %ld %d %d", &fault_kind, &fault_at, &fault_errno, &fault_once) != 4)
        die("the fault is none");
    unsetenv("LD_PRELOAD");
}

static void note(char kind, uint64_t inode, uint64_t number, const void *bytes, uint32_t len) {
    char head[21];
    head[0] = kind;
    memcpy(head + 1, &inode, 8);
    memcpy(head + 9, &number, 8);
    memcpy(head + 17, &len, 4);
    struct iovec parts[2] = {{head, sizeof head}, {(void *)bytes, len}};
    if (syscall(SYS_writev, trace, parts, 2) != (long)(sizeof head + len))
        die("cannot write the trace");
}

/* Whether the path lies below the root; if so, *rest is what follows the root's. */
static int below(const char *path, const char **rest) {
    if (trace < 0 || strncmp(path, root, root_len) != 0 || (path[root_len] && path[root_len] != '/'))
        return 0;
    *rest = path[root_len] ? path + root_len + 1 : "";
    return 1;
}

static void absolute(int dir, const char *path, char *out) {
    char link[64];
    out[0] = 0;
    if (path[0] != '/') {
        if (dir == AT_FDCWD) {
            if (!getcwd(out, PATH_MAX))
                die("no working directory");
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
            ssize_t len = readlink(link, out, PATH_MAX - 1);
            out[len < 0 ? 0 : len] = 0;
        }
        strncat(out, "/", PATH_MAX - strlen(out) - 1);
    }
    strncat(out, path, PATH_MAX - strlen(out) - 1);
}

/* The inode that a descriptor below the root stands for. */
static int watched(int fd, uint64_t *inode) {
    char link[64], path[PATH_MAX];
    const char *rest;
    struct stat found;
    if (trace < 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0)
        return 0;
    path[len] = 0;
    if (!below(path, &rest) || fstat(fd, &found) < 0)
        return 0;
    *inode = found.st_ino;
    return 1;
}

/* What the process says beside its data is none of the data. */
static int is_said(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len < 0 ? 0 : len] = 0;
    return len > 5 && strcmp(path + len - 5, "/said") == 0;
}

static int fails_now(char kind) {
    char room[PATH_MAX];
    if (kind != fault_kind || ++fault_seen < fault_at || (fault_once && fault_seen > fault_at))
        return 0;
    snprintf(room, sizeof room, "%s.room", root);
    if (!fault_once && syscall(SYS_faccessat, AT_FDCWD, room, F_OK) == 0)
        return 0;
    note('F', 0, 0, "", 0);
    errno = fault_errno;
    return 1;
}

static int fails(char kind, int fd) { return is_said(fd) ? 0 : fails_now(kind); }

static int noted_open(int dir, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    const char *rest;
    absolute(dir, path, full);
    if (!below(full, &rest))
        return syscall(SYS_openat, dir, path, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE)
        die("a file without a name is not written down");
    pthread_mutex_lock(&lock);
    struct stat found;
    int there = syscall(SYS_newfstatat, AT_FDCWD, full, &found, 0) == 0, is_said_file = strcmp(rest, "said") == 0;
    int fails_here = !there && (flags & O_CREAT) && !is_said_file && fails_now('n');
    int fd = fails_here ? -1 : (int)syscall(SYS_openat, dir, path, flags, mode);
    int error = errno;
    if (fd >= 0 && fstat(fd, &found) == 0) {
        note(there ? 'O' : 'C', found.st_ino, 0, rest, strlen(rest));
        if (there && (flags & O_TRUNC))
            note('T', found.st_ino, 0, "", 0);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

#define OPEN(name)                                                                                                       \
    int name(const char *path, int flags, ...) {                                                                         \
        va_list more;                                                                                                    \
        va_start(more, flags);                                                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                          \
        va_end(more);                                                                                                    \
        return noted_open(AT_FDCWD, path, flags, mode);                                                                  \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                     \
    int name(int dir, const char *path, int flags, ...) {                                                                \
        va_list more;                                                                                                    \
        va_start(more, flags);                                                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                          \
        va_end(more);                                                                                                    \
        return noted_open(dir, path, flags, mode);                                                                       \
    }
OPENAT(openat)
OPENAT(openat64)
int creat(const char *path, mode_t mode) { return noted_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

static ssize_t noted_write(int fd, const void *bytes, size_t len, int64_t at) {
    uint64_t inode;
    int is_watched = watched(fd, &inode);
    if (!is_watched)
        return at < 0 ? syscall(SYS_write, fd, bytes, len) : syscall(SYS_pwrite64, fd, bytes, len, at);
    pthread_mutex_lock(&lock);
    ssize_t written = -1;
    if (!fails('w', fd)) {
        if (fails('p', fd))
            len = (len + 1) / 2;
        written = at < 0 ? syscall(SYS_write, fd, bytes, len) : syscall(SYS_pwrite64, fd, bytes, len, at);
        if (written > 0)
            note('W', inode, at < 0 ? lseek(fd, 0, SEEK_CUR) - written : at, bytes, written);
    }
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return written;
}

ssize_t write(int fd, const void *bytes, size_t len) { return noted_write(fd, bytes, len, -1); }
ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) { return noted_write(fd, bytes, len, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) { return noted_write(fd, bytes, len, at); }

/* What is allowed to write less writes the first part. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
    uint64_t inode;
    if (!watched(fd, &inode))
        return syscall(SYS_writev, fd, parts, count);
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len)
            return noted_write(fd, parts[i].iov_base, parts[i].iov_len, -1);
    return 0;
}

/* Linux tells of a sync that failed by each descriptor of the file (errseq, fsync(2)). */
static int sync_fails(int fd, uint64_t inode) {
    static uint64_t failed_inode;
    static int told_fd;
    if (fails('s', fd)) {
        failed_inode = inode;
        told_fd = fd;
        return 1;
    }
    if (failed_inode != inode || told_fd == fd)
        return 0;
    failed_inode = 0;
    errno = fault_errno;
    return 1;
}

static int noted_sync(int fd, long call) {
    uint64_t inode;
    if (!watched(fd, &inode))
        return syscall(call, fd);
    pthread_mutex_lock(&lock);
    int done = sync_fails(fd, inode) || fails('c', fd) ? -1 : syscall(call, fd);
    if (done == 0)
        note('S', inode, 0, "", 0);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int fsync(int fd) { return noted_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return noted_sync(fd, SYS_fdatasync); }

int sync_file_range(int fd, loff_t at, loff_t len, unsigned int flags) {
    uint64_t inode;
    if (watched(fd, &inode))
        die("sync_file_range is no sync");
    return syscall(SYS_sync_file_range, fd, at, len, flags);
}

static int noted_resize(int fd, off64_t len) {
    uint64_t inode;
    if (!watched(fd, &inode))
        return syscall(SYS_ftruncate, fd, len);
    pthread_mutex_lock(&lock);
    int done = fails('w', fd) ? -1 : syscall(SYS_ftruncate, fd, len);
    if (done == 0)
        note('T', inode, len, "", 0);
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int ftruncate(int fd, off_t len) { return noted_resize(fd, len); }
int ftruncate64(int fd, off64_t len) { return noted_resize(fd, len); }

static int noted_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags) {
    char full_from[PATH_MAX], full_to[PATH_MAX], both[2 * PATH_MAX];
    const char *rest_from, *rest_to;
    absolute(from_dir, from, full_from);
    absolute(to_dir, to, full_to);
    int left = below(full_from, &rest_from), right = below(full_to, &rest_to);
    if (!left && !right)
        return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (!left || !right)
        die("a file was moved across the root");
    if (flags)
        die("an exchange of names is not written down");
    pthread_mutex_lock(&lock);
    int done = fails_now('n') ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
    int error = errno;
    if (done == 0) {
        size_t len = strlen(rest_from);
        memcpy(both, rest_from, len + 1);
        memcpy(both + len + 1, rest_to, strlen(rest_to));
        note('R', 0, 0, both, len + 1 + strlen(rest_to));
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int rename(const char *from, const char *to) { return noted_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return noted_rename(from_dir, from, to_dir, to, 0);
}
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned int flags) {
    return noted_rename(from_dir, from, to_dir, to, flags);
}

static int noted_unlink(int dir, const char *path, int flags) {
    char full[PATH_MAX];
    const char *rest;
    absolute(dir, path, full);
    if (!below(full, &rest))
        return syscall(SYS_unlinkat, dir, path, flags);
    pthread_mutex_lock(&lock);
    int done = fails_now('n') ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
    int error = errno;
    if (done == 0)
        note('U', 0, 0, rest, strlen(rest));
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int unlink(const char *path) { return noted_unlink(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return noted_unlink(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int dir, const char *path, int flags) { return noted_unlink(dir, path, flags); }

static int noted_mkdir(int dir, const char *path, mode_t mode) {
    char full[PATH_MAX];
    const char *rest;
    struct stat found;
    absolute(dir, path, full);
    if (!below(full, &rest))
        return syscall(SYS_mkdirat, dir, path, mode);
    pthread_mutex_lock(&lock);
    int done = fails_now('n') ? -1 : (int)syscall(SYS_mkdirat, dir, path, mode);
    int error = errno;
    if (done == 0 && syscall(SYS_newfstatat, AT_FDCWD, full, &found, 0) == 0)
        note('M', found.st_ino, 0, rest, strlen(rest));
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int mkdir(const char *path, mode_t mode) { return noted_mkdir(AT_FDCWD, path, mode); }
int mkdirat(int dir, const char *path, mode_t mode) { return noted_mkdir(dir, path, mode); }

/* What would write past the notes is refused, so that nobody takes half a record for a whole one. */
#define UNSEEN(type, name, fd, args, call)                                                                               \
    type name args {                                                                                                     \
        uint64_t inode;                                                                                                  \
        if (watched(fd, &inode))                                                                                         \
            die(#name " is not written down");                                                                           \
        return call;                                                                                                     \
    }
UNSEEN(ssize_t, pwritev, fd, (int fd, const struct iovec *parts, int count, off_t at),
       syscall(SYS_pwritev, fd, parts, count, at, 0L))
UNSEEN(ssize_t, pwritev64, fd, (int fd, const struct iovec *parts, int count, off64_t at),
       syscall(SYS_pwritev, fd, parts, count, at, 0L))
UNSEEN(int, fallocate, fd, (int fd, int mode, off_t at, off_t len), syscall(SYS_fallocate, fd, mode, at, len))
UNSEEN(int, fallocate64, fd, (int fd, int mode, off64_t at, off64_t len), syscall(SYS_fallocate, fd, mode, at, len))
UNSEEN(ssize_t, copy_file_range, to, (int from, off64_t *at, int to, off64_t *to_at, size_t len, unsigned int flags),
       syscall(SYS_copy_file_range, from, at, to, to_at, len, flags))
UNSEEN(ssize_t, sendfile64, to, (int to, int from, off64_t *at, size_t len), syscall(SYS_sendfile, to, from, at, len))
UNSEEN(int, posix_fallocate, fd, (int fd, off_t at, off_t len), syscall(SYS_fallocate, fd, 0, at, len) ? errno : 0)
UNSEEN(int, posix_fallocate64, fd, (int fd, off64_t at, off64_t len), syscall(SYS_fallocate, fd, 0, at, len) ? errno : 0)

/* So is what would change a file by its path alone, or by the memory that it is mapped to. */
static void refuse(int dir, const char *path, const char *what) {
    char full[PATH_MAX];
    const char *rest;
    absolute(dir, path, full);
    if (below(full, &rest))
        die(what);
}

int truncate(const char *path, off_t len) {
    refuse(AT_FDCWD, path, "truncate is not written down");
    return syscall(SYS_truncate, path, len);
}
int truncate64(const char *path, off64_t len) { return truncate(path, len); }

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    refuse(to_dir, to, "a further name is not written down");
    return syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int symlinkat(const char *target, int dir, const char *path) {
    refuse(dir, path, "a link is not written down");
    return syscall(SYS_symlinkat, target, dir, path);
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

void *mmap(void *address, size_t len, int protection, int flags, int fd, off_t at) {
    uint64_t inode;
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && watched(fd, &inode))
        die("memory that a file is mapped to is not written down");
    return (void *)syscall(SYS_mmap, address, len, protection, flags, fd, at);
}
void *mmap64(void *address, size_t len, int protection, int flags, int fd, off64_t at) {
    return mmap(address, len, protection, flags, fd, at);
}
