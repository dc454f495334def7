//! Requests one after the other, each once the last event is applied: the prediction must be the engine's own figure.

use serde_json::{Value, json};

use super::{
    ask::{Ask, Words, turn},
    fleet::Fleet,
    vllm::{BLOCK_TOKENS, CACHE_BLOCKS},
};

/// Conversations that grow turn by turn, some with one of the adapters, a salt or tools; all begin alike.
pub(super) async fn conversations(fleet: &mut Fleet) {
    let system = turn("system", Words::new(1).text(90));
    let tools = json!([{"type": "function", "function": {"name": "look_up", "description": "Finds a thing.", "parameters": {
        "type": "object", "properties": {"what": {"type": "string"}, "most": {"type": "integer"}}, "required": ["what"],
    }}}]);
    for (at, model) in ["tiny", "tiny", "sql", "chat", "tiny", "sql"].into_iter().enumerate() {
        let mut words = Words::new(10 + at as u64);
        let mut messages = vec![system.clone()];
        for round in 0..4 {
            let question = words.text(20 + 9 * round);
            // Content as a text, and as parts.
            let content = if round == 2 { json!([{"type": "text", "text": question}]) } else { json!(question) };
            messages.push(turn("user", content));
            let mut ask = Ask::chat(model, &messages).streamed_if((at + round) % 2 == 0);
            if at == 4 {
                ask = ask.with("tools", tools.clone()).with("tool_choice", "none");
            }
            if at == 5 {
                ask = ask.salted("a tenant");
            }
            let answered = fleet.ask(&ask).await;
            messages.push(turn("assistant", answered.said.text));
        }
    }
}

/// Prompts of token ids that grow by what was answered: blocks of the answer are hit as well.
pub(super) async fn continuations(fleet: &mut Fleet) {
    for (at, model) in ["tiny", "chat", "tiny"].into_iter().enumerate() {
        let mut words = Words::new(20 + at as u64);
        let mut prompt = words.ids(75);
        for round in 0..5 {
            let ask = Ask::completion(model, prompt.clone()).with("max_tokens", 45).streamed_if((at + round) % 2 == 0);
            let ask = if at == 2 { ask.salted("another tenant") } else { ask };
            let answered = fleet.ask(&ask).await;
            let all_but_last = &answered.said.token_ids[..44];
            if round > 0 {
                assert!(answered.said.cached_tokens + BLOCK_TOKENS > prompt.len() as u64 - 4, "{answered:?}");
            }
            // The last token of an answer was never computed.
            prompt.extend(all_but_last);
            prompt.extend(words.ids(3));
        }
    }
}

/// Questions about one document, by everybody and under every key.
pub(super) async fn documents(fleet: &mut Fleet) {
    let document = Words::new(30).text(150);
    let mut words = Words::new(31);
    for round in 0..4 {
        for (model, salt) in [("tiny", None), ("sql", None), ("chat", None), ("tiny", Some("a")), ("tiny", Some("b")), ("sql", Some("a"))] {
            let ask = Ask::completion(model, format!("{document} {}", words.text(12))).streamed_if(round % 2 == 1);
            let ask = match salt {
                Some(salt) => ask.salted(salt),
                None => ask,
            };
            let answered = fleet.ask(&ask).await;
            assert_eq!(answered.said.cached_tokens > 0, round > 0, "each key has its own blocks: {ask}");
        }
    }
}

/// Prompts around block boundaries, three times each: an engine computes the last token always, and keeps a copy of a block
/// that it computed twice.
pub(super) async fn boundaries(fleet: &mut Fleet) {
    for (at, tokens) in [1, 31, 32, 33, 64, 65, 96, 127].into_iter().enumerate() {
        let prompt = Words::new(40 + at as u64).ids(tokens);
        for round in 0..3 {
            fleet.ask(&Ask::completion("tiny", prompt.clone()).streamed_if(round == 1)).await;
        }
    }
}

/// What counts tokens differently from the plain case.
pub(super) async fn token_counts(fleet: &mut Fleet) {
    let odd = "Tabs\tand\nlines,  spaces, «guillemets», 漢字, e\u{301}, \u{1F9EA}, and <|im_end|> in the middle</s>";
    let opening = [turn("system", odd), turn("user", "And now?"), turn("assistant", "Now it is"), turn("user", odd)];
    let call = json!([{"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{\"what\": \"it\"}"}}]);
    let with_tool = [
        turn("user", "Look it up."),
        json!({"role": "assistant", "content": null, "tool_calls": call}),
        json!({"role": "tool", "tool_call_id": "call_1", "content": "42"}),
        turn("user", "So?"),
    ];
    let parts = json!([{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]);
    let asks = [
        Ask::completion("tiny", odd),
        Ask::completion("tiny", odd).with("add_special_tokens", false),
        Ask::completion("tiny", Value::Array(vec![json!(odd)])),
        Ask::chat("tiny", &opening),
        Ask::chat("tiny", &opening).with("add_special_tokens", true),
        Ask::chat("tiny", &opening[..3]).with("add_generation_prompt", false),
        Ask::chat("tiny", &opening[..3]).with("add_generation_prompt", false).with("continue_final_message", true),
        Ask::chat("tiny", &with_tool),
        Ask::chat("tiny", &[turn("user", parts), turn("assistant", "yes"), turn("user", "")]),
    ];
    for ask in &asks {
        fleet.ask(ask).await;
    }
}

/// Requests that read no cache, as they ask about each token of their prompt: nothing is predicted, and nothing is hit.
pub(super) async fn cache_skipped(fleet: &mut Fleet) {
    let prompt = Words::new(45).ids(130);
    let plain = Ask::completion("tiny", prompt.clone());
    for ask in [plain.clone(), plain.clone().with("prompt_logprobs", 1), plain.clone().with("echo", true).with("logprobs", 1), plain] {
        fleet.ask(&ask).await;
    }
    fleet.unchecked += 2;
}

/// A cache that is too small for what comes: the tail of a prefix goes first, and the index knows what is left.
pub(super) async fn evictions(fleet: &mut Fleet) {
    for engine in 0..2 {
        let kept = Ask::completion("tiny", Words::new(50).ids(640));
        let probe = Ask::completion("tiny", Words::new(50).ids(641));
        fleet.ask_engine(engine, &kept).await;
        fleet.settled().await;
        assert_eq!(fleet.overlap(engine, &probe).await, 20);
        let before = fleet.removals().await;
        let mut left = 20;
        for flood in 0..CACHE_BLOCKS {
            fleet.ask_engine(engine, &Ask::completion("tiny", Words::new(60 + flood).ids(300)).streamed_if(flood % 2 == 1)).await;
            fleet.settled().await;
            left = fleet.overlap(engine, &probe).await;
            if left < 20 {
                break;
            }
        }
        assert!((1..20).contains(&left), "{left} blocks are left");
        assert!(fleet.removals().await > before);
        fleet.ask_engine(engine, &probe).await;
        fleet.ask_engine(engine, &probe).await;
    }
}

/// A cache reset through the frontend: nothing is cached any more, before the engine has said so (rule 5).
pub(super) async fn reset(fleet: &mut Fleet) {
    let document = Words::new(70).text(120);
    let ask = |question: &str| Ask::completion("tiny", format!("{document} {question}"));
    for engine in 0..2 {
        fleet.ask_engine(engine, &ask("Who?")).await;
        let again = fleet.ask_engine(engine, &ask("Where?")).await;
        assert!(again.said.cached_tokens > 0);
    }
    fleet.reset().await;
    for engine in 0..2 {
        let cold = fleet.ask_engine(engine, &ask("What?")).await;
        assert_eq!(cold.said.cached_tokens, 0);
        let warm = fleet.ask_engine(engine, &ask("When?")).await;
        assert!(warm.said.cached_tokens > 0);
    }
    // The engine's own word of the reset may come between the cold request and its answer, which then proves nothing.
    fleet.unchecked += 2;
}
