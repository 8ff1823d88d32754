//! Concurrent work on many objects.

use futures::{StreamExt, stream};

use crate::PlaneError;

/// Concurrent writes: the store makes them durable together.
const AT_ONCE: usize = 16;

/// Calls `each` with every object, some of them concurrently. A failure does not stop the others; the first error is
/// returned.
pub(crate) async fn for_each_concurrently<T, F: Future<Output = Result<(), PlaneError>>>(
    objects: impl IntoIterator<Item = T>,
    each: impl Fn(T) -> F,
) -> Result<(), PlaneError> {
    let done = stream::iter(objects).map(each).buffer_unordered(AT_ONCE);
    done.fold(Ok(()), |all, one| std::future::ready(all.and(one))).await
}
