/* sled 0.34.7 takes what it wrote for stable once sync_file_range returns: it says so in the next segment of its log, and uses the
 * segments again whose content it has moved (pagecache/iobuf.rs). But that call syncs neither the file's length nor the disk's
 * cache. Within one large batch, the power could fail after such a segment had reached the disk and before what it relies on.
 *
 * So in programs with this store the call is a real sync. It is linked in place of the C library's; sled alone calls it.
 *
 * A failure is not told: sled could not be read any more. Linux tells it once to each descriptor (errseq, fsync(2)), and SledKv syncs
 * by one of its own after each batch, which ends all writing then.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/types.h>
#include <unistd.h>

int sync_file_range(int fd, off64_t at, off64_t bytes, unsigned int flags) {
    (void)at, (void)bytes, (void)flags;
    while (fdatasync(fd) != 0 && errno == EINTR)
        ;
    return 0;
}
