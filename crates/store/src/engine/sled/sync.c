/* Two system calls, linked in place of the C library's, that make sled 0.34.7 durable. A program with this store has no other
 * caller of them.
 *
 * sync_file_range: sled treats a write as durable when this call returns: the next segment of its log states it, and sled reuses
 * the segments whose content it has moved (pagecache/iobuf.rs). But the C library's call syncs neither the length of the file nor
 * the cache of the disk. If power fails within a large batch, a segment can be on the disk while the writes that it relies on are
 * not. This replacement therefore calls fdatasync.
 *
 * sled cannot handle a failed sync: it would become unreadable. The replacement reports a failure to SledKv instead, by releasing
 * the lock that sled holds on its log. (Linux reports pages that were not written to a later sync by another descriptor (errseq,
 * fsync(2)), but does not report a disk that failed to flush its cache.) sled continues until the batch ends, and may overwrite
 * the content that it moved with the failed write. On such a disk one large batch may cost data that was durable before it
 * (docs/reliability.md).
 *
 * rename: when sled opens, it writes a snapshot of its log under a temporary name, renames it to snap.*, and then clears the part
 * of the log that the snapshot covers (pagecache/snapshot.rs, segment.rs). It does not sync the folder. If power fails after the
 * log was cleared and before the new name is durable, sled resumes from the previous snapshot and loses all later writes. This
 * replacement syncs the folder of such a name before it returns. Other names are renamed as usual.
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

/* Syncs the folder of a path. The folder is the first `bytes` bytes of the path. */
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
