//! What kind of worker a simulated engine is.

use std::time::Duration;

use worker::RuntimeConfig;

/// How long calls may take to end when the worker shuts down, unless told.
const DRAIN: Duration = Duration::from_secs(30);

/// A worker on Dynamo's planes.
#[derive(Clone, Debug)]
pub struct DynamoConfig {
    /// The planes.
    pub runtime: RuntimeConfig,
    /// The component; `backend`, or `prefill` for a prefill worker, where none is given.
    pub component: Option<String>,
    /// The endpoint.
    pub endpoint: String,
    /// What part of a request it does.
    pub role: Role,
    /// How a prefill worker hands over.
    pub hand_over: HandOver,
    /// Whether a decode worker does all of a request that comes without anything handed over. Otherwise it refuses it.
    pub decodes_alone: bool,
    /// How often a request may move to another worker once it has begun to answer.
    pub migration_limit: u32,
    /// The parser of tool calls, by 1.6.1's name.
    pub tool_call_parser: Option<String>,
    /// The parser of reasoning.
    pub reasoning_parser: Option<String>,
    /// How long calls that run may take to end when it shuts down.
    pub drain: Duration,
}

/// What part of a request a worker does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// All of it.
    #[default]
    Aggregated,
    /// The prompt, and one token.
    Prefill,
    /// The answer.
    Decode,
}

/// How a prefill worker hands over what it computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandOver {
    /// Its answer says where: the decode worker is asked afterwards.
    #[default]
    Answer,
    /// The card says where, and both workers are asked at once. Port 0: any free one.
    Bootstrap {
        /// The port.
        port: u16,
    },
}

impl DynamoConfig {
    /// An aggregated worker.
    pub fn new(runtime: RuntimeConfig) -> Self {
        Self {
            runtime,
            component: None,
            endpoint: "generate".to_owned(),
            role: Role::Aggregated,
            hand_over: HandOver::Answer,
            decodes_alone: false,
            migration_limit: 0,
            tool_call_parser: None,
            reasoning_parser: None,
            drain: DRAIN,
        }
    }

    /// Its component.
    pub(super) fn component(&self) -> &str {
        match (&self.component, self.role) {
            (Some(component), _) => component,
            (None, Role::Prefill) => "prefill",
            (None, Role::Aggregated | Role::Decode) => "backend",
        }
    }

    /// Nobody chooses a decode worker by what it holds, so that, as with 1.6.1, it does not tell.
    pub(super) fn publishes_kv_events(&self) -> bool {
        match self.role {
            Role::Aggregated | Role::Prefill => true,
            Role::Decode => false,
        }
    }
}
