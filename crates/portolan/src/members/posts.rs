//! For which physical clusters this server runs the workers: of several servers on one store, one for each.

use std::{collections::HashMap, sync::Arc};

use futures::FutureExt as _;
use parking_lot::Mutex;
use portolan_store::{Roles, Term};
use portolan_types::Uid;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The posts of this server.
pub(crate) struct Posts {
    roles: Arc<Roles>,
    posts: Mutex<HashMap<Uid, Post>>,
}

enum Post {
    /// Another server has it.
    Wanted(JoinHandle<Term>),
    Held(Term),
}

impl Drop for Post {
    fn drop(&mut self) {
        if let Self::Wanted(waiting) = self {
            waiting.abort();
        }
    }
}

impl Posts {
    pub(crate) fn new(roles: Arc<Roles>) -> Self {
        Self { roles, posts: Mutex::default() }
    }

    /// Whether the workers of a physical cluster are this server's to run. Asked for the first time, it applies for them.
    pub(crate) fn has(&self, uid: &Uid) -> bool {
        let mut posts = self.posts.lock();
        let post = match posts.remove(uid) {
            Some(Post::Held(ref term)) if term.lost().is_cancelled() => self.apply(uid),
            Some(post) => post,
            None => self.apply(uid),
        };
        let post = taken(post);
        let is_held = matches!(post, Post::Held(_));
        posts.insert(uid.clone(), post);
        is_held
    }

    /// Cancelled at the end of the term, or of the server; `None` when there is no term.
    pub(crate) fn term(&self, uid: &Uid, shutdown: &CancellationToken) -> Option<CancellationToken> {
        let posts = self.posts.lock();
        let Some(Post::Held(term)) = posts.get(uid) else { return None };
        let (end, lost) = (shutdown.child_token(), term.lost().clone());
        let ending = end.clone();
        tokio::spawn(async move {
            ending.run_until_cancelled(lost.cancelled()).await;
            ending.cancel();
        });
        Some(end)
    }

    /// Gives a post up, or stops applying for it.
    pub(crate) fn leave(&self, uid: &Uid) {
        self.posts.lock().remove(uid);
    }

    fn apply(&self, uid: &Uid) -> Post {
        let (roles, role) = (self.roles.clone(), format!("physical-cluster/{uid}"));
        let mut taking = Box::pin(async move { roles.take(&role).await });
        // Whoever is alone has it at once.
        match taking.as_mut().now_or_never() {
            Some(term) => Post::Held(term),
            None => Post::Wanted(tokio::spawn(taking)),
        }
    }
}

/// A post that was waited for and has been given since.
fn taken(mut post: Post) -> Post {
    let given = match &mut post {
        Post::Wanted(waiting) => waiting.now_or_never(),
        Post::Held(_) => None,
    };
    match given {
        Some(Ok(term)) => Post::Held(term),
        Some(Err(_)) | None => post,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_alone_has_every_post_until_it_leaves_it() {
        let (posts, stop) = (Posts::new(Arc::new(Roles::alone())), CancellationToken::new());
        let east: Uid = "east".parse().unwrap();
        assert!(posts.term(&east, &stop).is_none(), "nobody asked for it yet");
        assert!(posts.has(&east));
        let end = posts.term(&east, &stop).unwrap();
        assert!(!end.is_cancelled());
        posts.leave(&east);
        end.cancelled().await;
        assert!(posts.has(&east), "it may come again");
        let end = posts.term(&east, &stop).unwrap();
        stop.cancel();
        assert!(end.is_cancelled());
    }
}
