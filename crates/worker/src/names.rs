//! Namespaces, components and endpoints of a process, and serving an endpoint.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use transport::{
    discovery::Registration,
    request::{Handled, Handler, PathTaken},
};
use wire::discovery::{EndpointId, Record};

use crate::{
    card::ModelSpec,
    generate::{Chatting, GenerateHandler, Generating, TextHandler},
    runtime::Runtime,
};

/// The default endpoint of a component.
const GENERATE: &str = "generate";

/// A namespace of a fleet.
#[derive(Clone, Debug)]
pub struct Namespace {
    runtime: Runtime,
    name: String,
}

/// A component of a namespace: a group of workers that do the same.
#[derive(Clone, Debug)]
pub struct Component {
    runtime: Runtime,
    namespace: String,
    name: String,
}

/// An endpoint of a component, as this process has it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    runtime: Runtime,
    id: EndpointId,
}

/// Why an endpoint is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It is served already.
    #[error(transparent)]
    Taken(#[from] PathTaken),
    /// There is no request plane any more.
    #[error("the runtime was shut down")]
    Down,
}

/// An endpoint that is served and registered, until this is dropped or withdrawn.
#[derive(Debug)]
pub struct Served {
    record: wire::discovery::Endpoint,
    /// Made once requests reach the endpoint. Held for a look or a change.
    registration: Arc<Mutex<Option<Registration>>>,
    handled: Arc<Handled>,
    /// Waits for that.
    announcement: AbortOnDropHandle<()>,
}

impl Namespace {
    pub(crate) fn new(runtime: Runtime, name: String) -> Self {
        Self { runtime, name }
    }

    /// A component of it.
    pub fn component(&self, name: impl Into<String>) -> Component {
        Component { runtime: self.runtime.clone(), namespace: self.name.clone(), name: name.into() }
    }
}

impl Component {
    /// An endpoint of it.
    pub fn endpoint(&self, name: impl Into<String>) -> Endpoint {
        let id = EndpointId::new(self.namespace.clone(), self.name.clone(), name);
        Endpoint { runtime: self.runtime.clone(), id }
    }
}

impl From<Component> for Endpoint {
    /// The endpoint that generates.
    fn from(component: Component) -> Self {
        component.endpoint(GENERATE)
    }
}

impl From<&Component> for Endpoint {
    fn from(component: &Component) -> Self {
        component.endpoint(GENERATE)
    }
}

impl From<&Endpoint> for Endpoint {
    fn from(endpoint: &Endpoint) -> Self {
        endpoint.clone()
    }
}

impl Endpoint {
    /// Its names.
    pub fn id(&self) -> &EndpointId {
        &self.id
    }

    /// The process that has it.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Another endpoint of the same component.
    pub(crate) fn sibling(&self, name: String) -> Self {
        Self { runtime: self.runtime.clone(), id: self.id.sibling(name) }
    }

    /// Serves it from now on, and registers it as an instance as soon as requests reach it: over NATS, once a server confirms it.
    pub fn serve(&self, handler: Arc<dyn Handler>) -> Result<Served, ServeError> {
        let instance_id = self.runtime.instance_id();
        let path = self.id.request_path(instance_id);
        let served = self.runtime.with_server(|server| {
            let transport = server.advertised(&self.id, instance_id);
            Ok::<_, PathTaken>((Arc::new(server.handle(&path, handler)?), transport))
        });
        let (handled, transport) = served.ok_or(ServeError::Down)??;
        let record = wire::discovery::Endpoint::new(self.id.clone(), instance_id, transport);
        let registration = Arc::new(Mutex::new(None));
        let (runtime, handler, slot, told) = (self.runtime.clone(), handled.clone(), registration.clone(), record.clone().into());
        let announcement = self.runtime.handle().spawn(async move {
            handler.reachable().await;
            *slot.lock() = Some(register(&runtime, &told));
        });
        Ok(Served { record, registration, handled, announcement: AbortOnDropHandle::new(announcement) })
    }

    /// Serves generation from now on, and registers it as an instance. Its model cards are registered apart: a router that sees one
    /// sends requests. When the runtime shuts down, requests that run finish, and those of routers that have not heard yet are taken
    /// for a moment.
    pub fn serve_generate(&self, handler: impl GenerateHandler) -> Result<Served, ServeError> {
        self.runtime.serves_clients();
        self.serve(Arc::new(Generating::new(handler)))
    }

    /// The same for a model that takes text.
    pub fn serve_text(&self, handler: impl TextHandler) -> Result<Served, ServeError> {
        self.runtime.serves_clients();
        self.serve(Arc::new(Chatting::new(handler)))
    }

    /// Registers a model that this endpoint serves, until the registration is dropped or withdrawn.
    pub fn register_model(&self, spec: &ModelSpec) -> Registration {
        let model = spec.record(self.id.clone(), self.runtime.instance_id());
        register(&self.runtime, &model.into())
    }
}

impl Served {
    /// Its record.
    pub fn record(&self) -> &wire::discovery::Endpoint {
        &self.record
    }

    /// Removes the record, then stops answering. Calls that run finish.
    pub async fn withdraw(self) {
        let Self { record: _, registration, handled, announcement } = self;
        announcement.abort();
        // Either it has registered or it never will.
        let _ = announcement.await;
        let made = registration.lock().take();
        if let Some(made) = made {
            made.withdraw().await;
        }
        drop(handled);
    }
}

pub(crate) fn register(runtime: &Runtime, record: &Record) -> Registration {
    runtime.discovery().register(record.key(), record.to_json())
}
