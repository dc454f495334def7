//! The model card of a simulated engine.

use std::{path::PathBuf, sync::Arc};

use tokio::task::spawn_blocking;
use wire::discovery::WorkerType;
use worker::ModelSpec;

use super::{
    config::{DynamoConfig, HandOver, Role},
    failed,
    meeting::Rooms,
};
use crate::{config::ServeError, folder, http::App};

/// The card, and the folder that was written for it.
pub(super) async fn spec(app: &Arc<App>, config: &DynamoConfig, rooms: Option<&Rooms>) -> Result<(ModelSpec, Option<PathBuf>), ServeError> {
    let engine = &app.config;
    let written = match &engine.model_path {
        Some(_) => None,
        None => Some(std::env::temp_dir().join(format!("dynamo-mocker-{}-{:08x}", std::process::id(), rand::random::<u32>()))),
    };
    let spec = ModelSpec {
        context_length: engine.max_model_len,
        migration_limit: config.migration_limit,
        total_kv_blocks: Some(engine.blocks.into()),
        max_num_seqs: Some(engine.max_sequences.into()),
        max_num_batched_tokens: Some(engine.max_batched_tokens.into()),
        dp_size: engine.ranks,
        enable_local_indexer: config.publishes_kv_events(),
        publishes_kv_events: config.publishes_kv_events(),
        tool_call_parser: config.tool_call_parser.clone(),
        reasoning_parser: config.reasoning_parser.clone(),
        bootstrap: match config.hand_over {
            HandOver::Bootstrap { .. } => rooms.map(|rooms| (rooms.host().to_owned(), rooms.port())),
            HandOver::Answer => None,
        },
        ..ModelSpec::new(engine.model.clone(), engine.block_size.get()).of_type(match config.role {
            Role::Aggregated => WorkerType::Aggregated,
            Role::Prefill => WorkerType::Prefill,
            Role::Decode => WorkerType::Decode,
        })
    };
    let (given, write) = (engine.model_path.clone(), written.clone());
    let made = spawn_blocking(move || {
        if let Some(folder) = &write {
            folder::write(folder).map_err(failed)?;
        }
        match given.or(write) {
            Some(folder) => spec.in_folder(&folder).map_err(failed),
            None => Ok(spec),
        }
    });
    Ok((made.await.map_err(failed)??, written))
}
