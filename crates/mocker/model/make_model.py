#!/usr/bin/env python3
"""Make the small model folder that the simulated engine embeds.

    make_model.py [OUT_DIR]        (default: the folder of this file)

Writes tokenizer.json, tokenizer_config.json, chat_template.jinja and config.json: what a frontend needs to tokenise
as the simulated engine does. Needs only the `tokenizers` package. The training text is constructed here from word
lists by a seeded generator, so every run writes the same vocabulary.

The tokenizer is a byte-level BPE like those of most decoder models: 256 byte tokens, merges, a few special tokens,
and a beginning-of-sequence token that is added to plain prompts but not to chats.
"""
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, END = "<|begin|>", "<|endoftext|>", "<|end|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
SPECIAL = [BOS, EOS, END, *ROLES]
VOCABULARY = 1536
SENTENCES = 12_000

NOUNS = """engine worker request token block prefix cache prompt answer router model user server queue tree index event
stream window page river mountain garden window bridge letter morning evening city village teacher student doctor farmer
painter sailor book story song road field forest ocean island train station market kitchen table chair door house roof
lamp clock map key bird horse dog cat fish apple bread water coffee winter summer spring autumn rain snow wind sun moon
star light shadow colour number list table word sentence question reason idea plan result change problem method example
system memory network machine computer program function value string file folder record report message signal sound""".split()
VERBS = """sends keeps stores finds reads writes opens closes moves holds makes takes gives brings shows hides follows
leads starts stops counts measures builds breaks carries watches hears tells asks answers learns teaches remembers
forgets chooses changes loses wins visits leaves reaches crosses paints sings draws fills empties shares returns""".split()
ADJECTIVES = """small large long short warm cold quiet loud bright dark early late old new young fast slow simple hard
soft heavy light empty full open closed clean green red blue white black yellow strong gentle careful useful common
rare first second third last next whole half single double cheap careful exact honest steady patient curious""".split()
ADVERBS = """quickly slowly often never always sometimes again today tomorrow yesterday soon together alone carefully
quietly nearly exactly almost everywhere somewhere once twice""".split()
LINKS = ["and", "but", "because", "while", "so", "when", "before", "after", "until", "although"]
ASKS = ["please explain", "tell me about", "write a story about", "what is", "how does", "why does", "where is",
        "summarise", "describe", "compare", "you are a helpful assistant for", "translate"]
PREPOSITIONS = ["near", "in", "behind", "above", "under", "across", "through", "beside", "beyond", "from", "with", "to"]


def clause(rng):
    words = [rng.choice(["the", "a", "this", "every", "one"])]
    if rng.random() < 0.5:
        words.append(rng.choice(ADJECTIVES))
    words += [rng.choice(NOUNS), rng.choice(VERBS), "the", rng.choice(NOUNS)]
    if rng.random() < 0.4:
        words += [rng.choice(PREPOSITIONS), "the", rng.choice(NOUNS)]
    if rng.random() < 0.3:
        words.append(rng.choice(ADVERBS))
    return words


def sentence(rng):
    if rng.random() < 0.2:
        words = rng.choice(ASKS).split() + ["the", rng.choice(ADJECTIVES), rng.choice(NOUNS)]
    else:
        words = clause(rng)
        if rng.random() < 0.4:
            words += [rng.choice(LINKS)] + clause(rng)
    if rng.random() < 0.1:
        words.insert(rng.randrange(1, len(words)), str(rng.randint(0, 999)))
    text = " ".join(words)
    return text[0].upper() + text[1:] + rng.choice([".", ".", ".", "?", "!", ","])


def text(rng):
    for _ in range(SENTENCES):
        yield " ".join(sentence(rng) for _ in range(rng.randint(1, 4)))


CHAT_TEMPLATE = (
    "{%- for message in messages -%}\n"
    "{{- '<|' + message['role'] + '|>\\n' -}}\n"
    "{%- if message['content'] is string -%}\n"
    "{{- message['content'] -}}\n"
    "{%- elif message['content'] -%}\n"
    "{%- for part in message['content'] -%}{%- if part['type'] == 'text' -%}{{- part['text'] -}}{%- endif -%}{%- endfor -%}\n"
    "{%- endif -%}\n"
    "{{- '<|end|>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}\n"
)


def main(out):
    rng = random.Random(2)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tok.train_from_iterator(text(rng), trainer)
    bos = tok.token_to_id(BOS)
    tok.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1",
                                                       special_tokens=[(BOS, bos)])
    (out / "tokenizer.json").write_text(tok.to_str(pretty=False) + "\n", encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "pad_token": EOS,
              "add_bos_token": True, "clean_up_tokenization_spaces": False, "model_max_length": 32768}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    model = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": tok.get_vocab_size(),
             "bos_token_id": bos, "eos_token_id": tok.token_to_id(EOS), "max_position_embeddings": 32768}
    (out / "config.json").write_text(json.dumps(model, indent=1) + "\n")
    print(f"{tok.get_vocab_size()} tokens")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
