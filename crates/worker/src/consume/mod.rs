//! The other end: whoever follows what publishers publish. [`KvFollower`] keeps an index of it, complete where publishers answer for
//! what was missed; [`KvSubscriber`] hands the events on as they come, and asks for missed ones when told to.
//!
//! What to do about each message, gap and restart is [`feed::plane`]'s to decide; here discovery's records become what it follows.

mod follower;
mod publishers;
mod subscriber;

use transport::{
    nats::Nats,
    plane::{SubscriptionOptions, Subscriptions},
    request::{Client, ClientOptions},
};

use crate::runtime::{Runtime, RuntimeError};

pub use follower::{Holder, KvFollower};
pub use subscriber::{KvNotice, KvSubscriber, RecoverError, Recovered};

/// Whose events are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Their namespace.
    pub namespace: String,
    /// Their component; `None`: all of the namespace.
    pub component: Option<String>,
}

/// What a process follows with.
async fn clients(runtime: &Runtime) -> Result<(Subscriptions, Client), RuntimeError> {
    Nats::check(runtime.nats_server())?;
    let nats = |runtime: &Runtime| {
        let runtime = runtime.clone();
        // Its URL was checked above, and nothing else is wrong with a connection that is not there yet.
        move || runtime.nats().expect("the server's URL is valid")
    };
    let subscriptions = Subscriptions::new(nats(runtime), SubscriptionOptions::default());
    let client = Client::with_nats(ClientOptions::default(), nats(runtime)).await;
    let client = client.map_err(|error| RuntimeError::Listen { address: ClientOptions::default().bind, error })?;
    Ok((subscriptions, client))
}
