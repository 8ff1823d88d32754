//! Another tenant, who sends requests during an attack.

use std::{sync::Arc, time::Duration};

use http::Request;
use http_body_util::{BodyExt as _, Full};
use portolan_apiserver::ApiServer;
use tokio::{sync::watch, task::JoinHandle};

use crate::plane::{MAPS, ask, user};

/// Time limit of an answer, in an unoptimized build on a shared machine.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

pub struct Neighbour {
    api: Arc<ApiServer>,
    done: watch::Sender<bool>,
    asking: JoinHandle<Result<(), String>>,
}

impl Neighbour {
    /// Asks from now on, one request after another.
    pub fn of(api: Arc<ApiServer>) -> Self {
        let (done, mut told) = watch::channel(false);
        let asking = tokio::spawn({
            let api = api.clone();
            async move {
                loop {
                    tokio::select! {
                        _ = told.changed() => return Ok(()),
                        () = tokio::time::sleep(PAUSE) => probe(&api).await.map_err(|error| format!("meanwhile {error}"))?,
                    }
                }
            }
        });
        Self { api, done, asking }
    }

    /// Ends the requests; fails if one was not answered as usual.
    pub async fn stop(self) -> Result<(), String> {
        let _ = self.done.send(true);
        self.asking.await.map_err(|error| error.to_string())?
    }

    /// Asks once more, alone.
    pub async fn once(self) -> Result<(), String> {
        let answer = probe(&self.api).await;
        self.stop().await.and(answer)
    }
}

/// Checks that the other tenant is answered as usual.
async fn probe(api: &Arc<ApiServer>) -> Result<(), String> {
    let request = Request::get(format!("/clusters/root:v{MAPS}/there")).body(Full::default().boxed_unsync());
    let request = request.map_err(|error| error.to_string())?;
    let answer = tokio::time::timeout(PATIENCE, ask(api, Some(user("victim", &[])), request)).await;
    let answer = answer.map_err(|_| "another tenant waits".to_owned())?;
    match (answer.code, answer.at("/data/k").as_str()) {
        (200, "v") => Ok(()),
        _ => Err(format!("another tenant is hurt: {} {}", answer.code, answer.text)),
    }
}
