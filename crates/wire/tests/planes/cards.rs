//! Model cards of real workers: every role, an adapter, files on a disk and at the worker; and by what two cannot be served together.

use serde_json::{Value, json};
use testkit::dynamo;
use wire::discovery::{
    BootstrapEndpoint, CardFile, FileRole, Lora, Model, ModelCard, ModelType, Record, TokenizerKind,
    WorkerType::{self, Aggregated, Decode, Prefill},
};

fn cards(file: &str) -> Vec<Model> {
    let model = |record: &Value| match Record::from_json(record["document"].as_str().unwrap().as_bytes()).unwrap() {
        Record::Model(model) => {
            assert_eq!(model.key().as_str(), record["key"].as_str().unwrap());
            assert_eq!(Record::from(model.clone()).to_json(), record["document"].as_str().unwrap());
            Some(model)
        }
        Record::Endpoint(_) | Record::EventChannel(_) | Record::EventSource(_) | Record::OpenAiWorker(_) => None,
    };
    dynamo::records(file).iter().filter_map(model).collect()
}

fn aggregated() -> ModelCard {
    cards("documents").remove(0).card
}

fn changed(card: &ModelCard, path: &[&str], value: Value) -> ModelCard {
    let mut card = card.clone();
    let (last, path) = path.split_last().unwrap();
    let at = path.iter().fold(&mut card.0, |value, key| &mut value[*key]);
    at[*last] = value;
    card
}

#[test]
fn an_aggregated_worker_says_everything() {
    let card = aggregated();
    assert_eq!((card.display_name(), card.slug(), card.source_path()), (Some("tiny"), Some("tiny"), Some("/models/tiny-llama")));
    assert_eq!((card.context_length(), card.architectural_context_length()), (None, Some(16_384)), "0 is not known");
    assert_eq!((card.block_size(), card.total_blocks(), card.migration_limit()), (Some(16), Some(4096), 0));
    assert_eq!((card.max_num_seqs(), card.max_num_batched_tokens()), (Some(256), Some(8192)));
    assert_eq!((card.rank_start(), card.ranks(), card.model_input()), (0, 1, Some("Tokens")));
    assert_eq!((card.worker_type(), card.needs()), (Some(Aggregated), vec![]));
    let kinds = [ModelType::Chat, ModelType::Completions, ModelType::Embedding, ModelType::Prefill];
    assert_eq!(kinds.map(|kind| card.serves(kind)), [true, true, false, false]);
    assert_eq!((card.tool_call_parser(), card.reasoning_parser(), card.lora()), (None, None, None));
    assert_eq!((card.enable_local_indexer(), card.kv_event_publishing_enabled(), card.enable_eagle()), (true, Some(true), false));
    assert!(card.exclude_tools_when_tool_choice_none() && card.disaggregated_endpoint().is_none() && card.taints().is_empty());
    assert_eq!(card.runtime_data().unwrap()["output_replay_consumer"], true);
    let files = card.files();
    let tokenizer = CardFile {
        role: FileRole::Tokenizer(TokenizerKind::HuggingFace),
        path: "/models/tiny-llama/tokenizer.json",
        blake3: Some("e599b66e83515497959aa8168132022bf427652c6576fc421fce507d55ddb9ce"),
        size: Some(123_127),
    };
    assert_eq!((files.len(), card.tokenizer_file()), (5, Some(tokenizer)));
    assert!(files.iter().all(|file| file.path.ends_with(&format!("/{}", file.role.file_name())) && file.blake3.is_some()));
    assert!(!card.chat_template_file().unwrap().is_custom);
}

#[test]
fn each_role_adapter_and_host_of_files_is_told() {
    let cards: Vec<ModelCard> = cards("cards").into_iter().map(|model| model.card).collect();
    let [decode, prefill, hosted, older, adapter] = &cards[..] else { panic!("{}", cards.len()) };
    assert_eq!((decode.worker_type(), decode.needs()), (Some(Decode), vec![vec![Prefill]]));
    assert_eq!((decode.kv_event_publishing_enabled(), decode.enable_local_indexer()), (Some(false), false));
    assert_eq!((prefill.worker_type(), prefill.needs()), (Some(Prefill), vec![vec![Decode]]));
    assert_eq!(prefill.disaggregated_endpoint(), Some(BootstrapEndpoint { host: "127.0.0.1", port: 7788 }));
    assert!(!prefill.serves(ModelType::Chat) && older.serves(ModelType::Prefill) && older.worker_type() == Some(Prefill));
    assert!(older.disaggregated_endpoint().is_none());
    assert_eq!(
        (hosted.tool_call_parser(), hosted.reasoning_parser(), hosted.context_length()),
        (Some("hermes"), Some("qwen3"), Some(16_384))
    );
    let at = "http://127.0.0.1:9191/v1/metadata/dynamo/backend/generate/spy/_base/config.json";
    assert_eq!(hosted.config_file().unwrap().path, at);
    assert_eq!(adapter.lora(), Some(Lora { name: "sql/v1", max_gpu_lora_count: None }));
    assert_eq!((adapter.display_name(), adapter.slug()), (Some("sql/v1"), Some("sql_v1")));
    // One model's two roles, and one model wherever its files are.
    assert_eq!(decode.disagreement(prefill), None);
    assert_eq!(hosted.disagreement(older), None);
}

#[test]
fn cards_of_older_workers_have_no_worker_type() {
    let of = |card: Value| ModelCard(card).worker_type();
    assert_eq!(of(json!({"model_type": "Chat | Completions"})), Some(WorkerType::Aggregated));
    assert_eq!(of(json!({"model_type": "Prefill", "worker_type": null})), Some(WorkerType::Prefill));
    assert_eq!(of(json!({"worker_type": "encode"})), Some(WorkerType::Encode));
    assert_eq!(of(json!({"worker_type": "juggle"})), None);
}

#[test]
fn a_card_of_odd_values_says_nothing_wrong() {
    let odd = json!({
        "display_name": 7, "aliases": ["a", 1], "context_length": -1, "kv_cache_block_size": 1_u64 << 40, "needs": [["decode", "juggle"], 5],
        "tokenizer": {"hf_tokenizer_json": "x"}, "model_info": [], "lora": "x", "runtime_config": {"data_parallel_size": 0,
        "disaggregated_endpoint": {"bootstrap_host": "h", "bootstrap_port": 70_000}},
    });
    let card = ModelCard(odd);
    assert_eq!((card.display_name(), card.aliases(), card.context_length(), card.block_size()), (None, vec!["a"], None, None));
    assert!(card.needs().is_empty() && card.files().is_empty() && card.lora().is_none() && card.disaggregated_endpoint().is_none());
    assert_eq!(card.ranks(), 1);
    assert!(ModelCard(Value::Null).files().is_empty());
    assert_eq!(ModelCard(Value::Null).disagreement(&aggregated()), None, "what is not said does not differ");
}

#[test]
fn the_first_difference_by_which_two_cards_cannot_be_served_together_is_named() {
    let card = aggregated();
    let other = |path: &[&str], value: Value| card.disagreement(&changed(&card, path, value)).map(|difference| difference.to_string());
    assert_eq!(card.disagreement(&card), None);
    let tokenizer = other(&["tokenizer", "hf_tokenizer_json", "checksum"], json!("blake3:00"));
    let said = "tokenizer is e599b66e83515497959aa8168132022bf427652c6576fc421fce507d55ddb9ce on one and 00 on the other";
    assert_eq!(tokenizer.as_deref(), Some(said));
    assert_eq!(other(&["kv_cache_block_size"], json!(32)).as_deref(), Some("block size is 16 on one and 32 on the other"));
    for (path, value, field) in [
        (&["chat_template_file", "hf_chat_template", "file", "checksum"][..], json!("blake3:1"), "chat template"),
        (&["prompt_formatter", "hf_tokenizer_config_json", "checksum"], json!("blake3:1"), "tokenizer configuration"),
        (&["gen_config", "hf_generation_config_json", "checksum"], json!("blake3:1"), "generation configuration"),
        (&["runtime_config", "tool_call_parser"], json!("hermes"), "tool call parser"),
        (&["runtime_config", "reasoning_parser"], json!("qwen3"), "reasoning parser"),
        (&["runtime_config", "enable_eagle"], json!(true), "tokens of speculation"),
        (&["model_input"], json!("Text"), "model input"),
        (&["model_type"], json!("Completions"), "kinds of requests"),
    ] {
        assert!(other(path, value).unwrap().starts_with(&format!("{field} is ")), "{field}");
    }
    let short = changed(&card, &["context_length"], json!(4096));
    assert_eq!(card.disagreement(&short), None, "one does not say");
    let long = changed(&card, &["context_length"], json!(8192));
    assert_eq!(short.disagreement(&long).unwrap().field, "context length");
    // What a worker may have of its own.
    for (path, value) in [
        (&["runtime_config", "total_kv_blocks"][..], json!(7)),
        (&["runtime_config", "data_parallel_size"], json!(7)),
        (&["migration_limit"], json!(7)),
        (&["tokenizer", "hf_tokenizer_json", "path"], json!("/elsewhere/tokenizer.json")),
        (&["source_path"], json!("/elsewhere")),
    ] {
        assert_eq!(other(path, value), None, "{path:?}");
    }
    // A prefill worker's tokens are no answer, so that its parsers do not matter.
    let prefill = changed(&card, &["worker_type"], json!("prefill"));
    assert_eq!(prefill.disagreement(&changed(&card, &["runtime_config", "tool_call_parser"], json!("hermes"))), None);
}
