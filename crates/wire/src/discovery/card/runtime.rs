//! A card's `runtime_config`: the engine as it was started.

use serde_json::{Map, Value};

use super::ModelCard;

/// Where a prefill worker's engine waits for those of decode workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootstrapEndpoint<'a> {
    /// The host.
    pub host: &'a str,
    /// The port.
    pub port: u16,
}

impl ModelCard {
    /// Blocks of one rank's cache.
    pub fn total_blocks(&self) -> Option<u32> {
        self.known(&["runtime_config", "total_kv_blocks"])
    }

    /// Sequences one rank runs at once.
    pub fn max_num_seqs(&self) -> Option<u32> {
        self.known(&["runtime_config", "max_num_seqs"])
    }

    /// Tokens of one step of a rank.
    pub fn max_num_batched_tokens(&self) -> Option<u32> {
        self.known(&["runtime_config", "max_num_batched_tokens"])
    }

    /// The first data-parallel rank.
    pub fn rank_start(&self) -> u32 {
        self.number(&["runtime_config", "data_parallel_start_rank"]).unwrap_or(0)
    }

    /// How many ranks there are, at least one.
    pub fn ranks(&self) -> u32 {
        self.number(&["runtime_config", "data_parallel_size"]).unwrap_or(1).max(1)
    }

    /// The parser of tool calls, by 1.6.1's name.
    pub fn tool_call_parser(&self) -> Option<&str> {
        self.text(&["runtime_config", "tool_call_parser"])
    }

    /// The parser of reasoning.
    pub fn reasoning_parser(&self) -> Option<&str> {
        self.text(&["runtime_config", "reasoning_parser"])
    }

    /// Whether tools are kept from the template of a request that wants none called. 1.6.1's default is that they are.
    pub fn exclude_tools_when_tool_choice_none(&self) -> bool {
        self.at(&["runtime_config", "exclude_tools_when_tool_choice_none"]).and_then(Value::as_bool).unwrap_or(true)
    }

    /// Whether its publishers answer recovery queries.
    pub fn enable_local_indexer(&self) -> bool {
        self.flag(&["runtime_config", "enable_local_indexer"])
    }

    /// Whether it publishes KV events; `None`: it does not say.
    pub fn kv_event_publishing_enabled(&self) -> Option<bool> {
        self.at(&["runtime_config", "kv_event_publishing_enabled"])?.as_bool()
    }

    /// Whether blocks are hashed as EAGLE's engines do.
    pub fn enable_eagle(&self) -> bool {
        self.flag(&["runtime_config", "enable_eagle"])
    }

    /// Where a prefill worker's engine waits for those of decode workers. Without it, its answer says how to go on.
    pub fn disaggregated_endpoint(&self) -> Option<BootstrapEndpoint<'_>> {
        const PATH: &str = "disaggregated_endpoint";
        let port = u16::try_from(self.number(&["runtime_config", PATH, "bootstrap_port"])?).ok()?;
        Some(BootstrapEndpoint { host: self.text(&["runtime_config", PATH, "bootstrap_host"])?, port })
    }

    /// What marks the worker for requests that require or prefer it.
    pub fn taints(&self) -> Vec<&str> {
        let taints = self.at(&["runtime_config", "taints"]).and_then(Value::as_array);
        taints.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// What an engine adds for others of its kind.
    pub fn runtime_data(&self) -> Option<&Map<String, Value>> {
        self.at(&["runtime_config", "runtime_data"])?.as_object()
    }
}
