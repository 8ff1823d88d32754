/* Two calls that are linked in place of the C library's in programs with this store, for what sled 0.34.7 relies on.
 *
 * sync_file_range: sled takes what it wrote for stable once this returns: it says so in the next segment of its log, and uses the
 * segments again whose content it has moved (pagecache/iobuf.rs). But the call syncs neither the file's length nor the disk's
 * cache. Within one large batch, the power could fail after such a segment had reached the disk and before what it relies on.
 *
 * So the call is a real sync. sled alone calls it.
 *
 * A failure is not told to sled, which could not be read any more, but to SledKv: the lock that sled holds on its log is given up.
 * Linux would tell a later sync by another descriptor of pages that were not written (errseq, fsync(2)), but not of a disk that
 * failed to empty its cache. sled goes on until the batch ends, and may then write over what it has moved by the write that
 * failed: on such a disk one large batch may cost what was there before (docs/reliability.md).
 *
 * rename: when sled opens, it writes a snapshot of what its log says, gives it its name (snap.*), and at once clears what of the log
 * is not needed beside it (pagecache/snapshot.rs, segment.rs). But it does not sync the name. The power could fail when the log was
 * cleared and the name not there yet: sled went on from the snapshot before it, and had lost all that was written since. So these names
 * are synced before the call returns. Any other is changed as ever.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/types.h>
#include <unistd.h>

int sync_file_range(int fd, loff_t at, loff_t bytes, unsigned int flags) {
    (void)at, (void)bytes, (void)flags;
    int failed;
    while ((failed = fdatasync(fd)) != 0 && errno == EINTR)
        ;
    if (failed)
        flock(fd, LOCK_UN);
    return 0;
}

/* Makes the names in a folder last; it is what the path has before a name, in so many bytes. */
static int sync_folder(const char *path, int bytes) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", bytes, path);
    int fd = open(bytes ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int failed;
    while ((failed = fsync(fd)) != 0 && errno == EINTR)
        ;
    int why = errno;
    close(fd);
    errno = why;
    return failed;
}

int rename(const char *from, const char *to) {
    if (renameat(AT_FDCWD, from, AT_FDCWD, to) != 0)
        return -1;
    const char *slash = strrchr(to, '/'), *name = slash ? slash + 1 : to;
    return strncmp(name, "snap.", 5) == 0 ? sync_folder(to, name - to) : 0;
}
