//! Many objects that have to go for one reason.

use futures::{StreamExt, stream};

use crate::PlaneError;

/// Writes that are under way at once: the store makes them durable together.
const AT_ONCE: usize = 16;

/// Does something to each of many objects, some of them at once. One that fails keeps none of the others waiting; the first
/// error is told in the end.
pub(crate) async fn at_once<T, F: Future<Output = Result<(), PlaneError>>>(
    objects: impl IntoIterator<Item = T>,
    each: impl Fn(T) -> F,
) -> Result<(), PlaneError> {
    let done = stream::iter(objects).map(each).buffer_unordered(AT_ONCE);
    done.fold(Ok(()), |all, one| std::future::ready(all.and(one))).await
}
