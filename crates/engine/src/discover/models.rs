//! `/v1/models`: OpenAI's list, with what vLLM and SGLang add to a card.

use serde::Deserialize;

/// A model that a worker serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The name requests use.
    pub id: String,
    /// For an adapter, the model it belongs to.
    pub parent: Option<String>,
    /// Where it was loaded from; a path or a hub name.
    pub root: Option<String>,
    /// Longest prompt and answer together, in tokens; engines leave it out for adapters.
    pub max_model_len: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct List {
    data: Vec<Card>,
}

#[derive(Deserialize)]
struct Card {
    id: String,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    root: Option<String>,
    #[serde(default)]
    max_model_len: Option<u32>,
}

pub(super) fn read(list: List) -> Result<Vec<Model>, String> {
    if list.data.is_empty() {
        return Err("no model in the list".to_owned());
    }
    let model = |card: Card| Model {
        // A card of the base model may name itself as its parent.
        parent: card.parent.filter(|parent| *parent != card.id && !parent.is_empty()),
        id: card.id,
        root: card.root,
        max_model_len: card.max_model_len,
    };
    Ok(list.data.into_iter().map(model).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(text: &str) -> Result<Vec<Model>, String> {
        read(serde_json::from_str(text).map_err(|error| error.to_string())?)
    }

    #[test]
    fn vllm_names_its_adapters_and_their_parent() {
        let models = models(include_str!("../../tests/data/models.json")).expect("a list");
        let found: Vec<_> = models.iter().map(|m| (m.id.as_str(), m.parent.as_deref(), m.max_model_len)).collect();
        assert_eq!(found, [("tiny", None, Some(2048)), ("chat", Some("tiny"), None), ("sql", Some("tiny"), None)]);
    }

    #[test]
    fn a_plain_openai_list_is_enough() {
        let models = models(r#"{"object":"list","data":[{"id":"gpt","object":"model","created":1,"owned_by":"x"}]}"#);
        assert_eq!(models.expect("a list")[0], Model { id: "gpt".into(), parent: None, root: None, max_model_len: None });
    }

    #[test]
    fn an_empty_or_foreign_list_is_an_error() {
        assert!(models(r#"{"data":[]}"#).is_err());
        assert!(models(r#"{"models":[]}"#).is_err());
        assert!(models("[]").is_err());
    }
}
