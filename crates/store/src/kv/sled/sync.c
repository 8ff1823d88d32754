/* sled 0.34.7 takes what it wrote for stable once sync_file_range returns: it says so in the next segment of its log, and uses the
 * segments again whose content it has moved (pagecache/iobuf.rs). But that call syncs neither the file's length nor the disk's
 * cache. Within one large batch, the power could fail after such a segment had reached the disk and before what it relies on.
 *
 * So in programs with this store the call is a real sync. It is linked in place of the C library's; sled alone calls it.
 *
 * A failure is not told to sled, which could not be read any more, but to SledKv: the lock that sled holds on its log is given up.
 * Linux would tell a later sync by another descriptor of pages that were not written (errseq, fsync(2)), but not of a disk that
 * failed to empty its cache. sled goes on until the batch ends, and may then write over what it has moved by the write that
 * failed: on such a disk one large batch may cost what was there before (docs/reliability.md).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
