"""Writes golden.json: prompt texts by Python's jinja2, configured as transformers configures it.

What transformers and vLLM do around the template is written here once more, in Python, so that no expected value comes
from the code under test.
"""
import copy
import json
import pathlib
from datetime import datetime, timezone

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime(2026, 2, 9, 14, 5, 6, tzinfo=timezone.utc)
TAG = "CONTINUE_FINAL_MESSAGE_TAG "

TEMPLATES = {  # name: (special tokens, content format)
    "qwen3": ({"eos_token": "<|im_end|>"}, "text"),
    "deepseek_v3": ({"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}, "text"),
    "headers": ({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, "text"),
    "brackets": ({"bos_token": "<s>", "eos_token": "</s>"}, "text"),
    "parts": ({"bos_token": "<s>", "eos_token": "</s>"}, "parts"),
}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = NOW.strftime
    return env


def part_of(part):
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part["type"]
    if kind in ("text", "refusal", "thinking"):
        return {"type": "text", "text": part[kind]} if part.get(kind) is not None else None
    return {"type": {"image_url": "image", "input_audio": "audio", "video_url": "video"}[kind]}


def first(mapping, keys):
    return {key: mapping[key] for key in keys if key in mapping} | mapping


def conversation(messages, content_format):
    out = []
    for message in copy.deepcopy(messages):
        content = message.get("content")
        parts = [content] if isinstance(content, str) else content or []
        parts = [p for p in map(part_of, parts) if p is not None]
        text_only = all(p["type"] == "text" for p in parts)
        if content_format == "text" or (message["role"] == "tool" and text_only):
            content = "\n".join(p["text"] for p in parts if p["type"] == "text")
        else:
            content = parts
        new = {"role": message["role"], "content": content}
        if message["role"] == "assistant":
            for call in message.get("tool_calls") or []:
                arguments = call["function"].get("arguments")
                if isinstance(arguments, str):
                    try:
                        arguments = json.loads(arguments)
                    except json.JSONDecodeError:
                        arguments = {}
                call["function"]["arguments"] = arguments if isinstance(arguments, dict) else {}
                # The engine's model of a call has its keys in this order; templates print whole calls.
                call["function"] = first(call["function"], ["arguments", "name"])
                new.setdefault("tool_calls", []).append(first(call, ["id", "function", "type"]))
            reasoning = message.get("reasoning", message.get("reasoning_content"))
            if reasoning is not None:
                new["reasoning"] = new["reasoning_content"] = reasoning
        if message["role"] == "tool" and "tool_call_id" in message:
            new["tool_call_id"] = message["tool_call_id"]
        if isinstance(message.get("name"), str):
            new["name"] = message["name"]
        if message["role"] == "developer":
            new["tools"] = message.get("tools")
        out.append(new)
    return out


def developer_to_system(messages):
    messages = [{"role": "system", "content": m["content"]} if m["role"] == "developer" else m for m in messages]
    if all(m["role"] != "system" for m in messages[1:]):
        return messages

    def text(content):
        return content if isinstance(content, str) else "\n".join(p["text"] for p in content)

    texts = [text(m["content"]) for m in messages if m["role"] == "system"]
    return [{"role": "system", "content": "\n\n".join(t for t in texts if t)}] + [m for m in messages if m["role"] != "system"]


def tool_of(tool):
    given = tool["function"]
    function = {"name": given["name"], "description": given.get("description"), "parameters": given.get("parameters")}
    if given.get("strict") is not None:
        function["strict"] = given["strict"]
    return {"type": "function", "function": function}


def prompt(name, body):
    special, content_format = TEMPLATES[name]
    source = (HERE / f"{name}.jinja").read_text(encoding="utf-8")
    messages = conversation(body["messages"], content_format)
    if any(m["role"] == "developer" for m in messages) and not ("'developer'" in source or '"developer"' in source):
        messages = developer_to_system(messages)
    kwargs = dict(body.get("chat_template_kwargs") or {})
    if (effort := body.get("reasoning_effort")) is not None:
        kwargs["reasoning_effort"] = effort
        kwargs.setdefault("enable_thinking", effort != "none")
    going_on = body.get("continue_final_message", False)
    final = None
    if going_on:
        if isinstance(messages[-1]["content"], list):
            last = [p for p in messages[-1]["content"] if "text" in p][-1]
            final, last["text"] = last["text"], last["text"] + TAG
        else:
            final = messages[-1]["content"]
            messages[-1]["content"] += TAG
    variables = {
        **special,
        "tools": [tool_of(t) for t in body["tools"]] if body.get("tools") else None,
        "documents": body.get("documents"),
        **kwargs,
        "messages": messages,
        "add_generation_prompt": body.get("add_generation_prompt", not going_on),
    }
    text = environment().from_string(source).render(**variables)
    if going_on:
        if final.strip() not in text or TAG.strip() not in text:
            raise jinja2.exceptions.TemplateError("the final message does not appear in the rendered chat")
        at = text.rindex(TAG.strip())
        text = text[:at] if text[at : at + len(TAG)] == TAG else text[:at].rstrip()
    return text


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather <now> & \"soon\" for a city, e.g. 'Zürich'",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "naïve 名前"}, "days": {"type": "integer", "default": 1.0}},
            "required": ["city"],
        },
    },
}
ADD = {"function": {"parameters": {"b": {}, "a": [1, 2.5, None, True, 1e-7, 1e22, 12345678901234567890]}, "name": "add", "strict": False}, "type": "function"}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Köln <b>\", \"days\": 2, \"x\": [1, 2.0, \"it's\"], \"y\": {\"k\": null}, \"z\": true}"}}
CALL_OBJECT = {"id": "123456789", "type": "function", "function": {"name": "add", "arguments": {"a": 1e16, "b": "say \"hi\"\n"}}}
CALL_BAD = {"id": "jklmnopqr", "type": "function", "function": {"name": "add", "arguments": "not json"}}

U = {"role": "user", "content": "What is 2 < 3 && \"x\"? \u00e9\u4e2d\U0001f600 {{ not }} {% code %}"}
S = {"role": "system", "content": "  You are <helpful> & kind.\n"}
A = {"role": "assistant", "content": "It is.  \n"}
PARTS = {"role": "user", "name": "bo", "content": [{"type": "text", "text": "First "}, "second", {"type": "refusal", "refusal": "third"}]}
SEE = {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "and say"}]}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "{\"t\": 21}\nmore"}
RESULT_PARTS = {"role": "tool", "tool_call_id": "123456789", "content": [{"type": "text", "text": "3"}, {"type": "text", "text": "four"}]}

CASES = {
    "one user": {"messages": [U]},
    "system and user": {"messages": [S, U]},
    "three turns": {"messages": [S, U, A, {"role": "user", "content": "Why?"}]},
    "no generation prompt": {"messages": [U, A], "add_generation_prompt": False},
    "parts": {"messages": [S, PARTS]},
    "empty contents": {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": None}, {"role": "user", "content": []}]},
    "tools": {"messages": [S, U], "tools": [WEATHER, ADD]},
    "a call": {"messages": [U, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT], "tools": [WEATHER]},
    "a call and an answer": {"messages": [S, U, {"role": "assistant", "content": "Let me see", "tool_calls": [CALL]}, RESULT, A, U], "tools": [WEATHER, ADD]},
    "two calls": {"messages": [U, {"role": "assistant", "tool_calls": [CALL_OBJECT, CALL_BAD]}, RESULT_PARTS, RESULT], "tools": [ADD]},
    "no calls": {"messages": [U, {"role": "assistant", "content": "none", "tool_calls": []}, U]},
    "continue": {"messages": [U, {"role": "assistant", "content": "The answer is"}], "continue_final_message": True},
    "continue trailing space": {"messages": [S, U, {"role": "assistant", "content": "The answer is  "}], "continue_final_message": True, "add_generation_prompt": False},
    "continue parts": {"messages": [U, {"role": "assistant", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two"}]}], "continue_final_message": True},
    "continue user": {"messages": [S, {"role": "user", "content": "I was say"}], "continue_final_message": True},
    "thinking off": {"messages": [U], "chat_template_kwargs": {"enable_thinking": False}},
    "thinking on": {"messages": [U], "chat_template_kwargs": {"enable_thinking": True}},
    "effort none": {"messages": [U], "reasoning_effort": "none"},
    "effort high": {"messages": [U], "reasoning_effort": "high"},
    "reasoning kept": {"messages": [U, {"role": "assistant", "content": "So: 4", "reasoning_content": "\nhm & hm\n"}], "add_generation_prompt": False},
    "reasoning inline": {"messages": [U, {"role": "assistant", "content": "<think>\nlong\n</think>\n\nshort"}, {"role": "user", "content": "ok"}]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, U]},
    "developer late": {"messages": [S, U, A, {"role": "developer", "content": [{"type": "text", "text": "Now"}, {"type": "text", "text": "French."}]}, U]},
    "documents": {"messages": [U], "documents": [{"title": "on trees", "text": "Ünder <them>"}, {"title": "II", "text": ""}]},
    "kwargs": {"messages": [U], "chat_template_kwargs": {"date_string": "1 <Jan>", "tools_in_user_message": False, "flags": {"on": True, "off": False, "ratio": 0.25, "list": [None, "q'", 3]}, "bos_token": "<BOS>"}},
    "tools in system": {"messages": [S, U], "tools": [WEATHER], "chat_template_kwargs": {"tools_in_user_message": False}},
    "two users": {"messages": [U, {"role": "user", "content": "again"}]},
    "odd role": {"messages": [U, {"role": "critic", "content": "bad"}]},
    "crlf and tabs": {"messages": [{"role": "user", "content": "a\r\n\tb\u2028c\u00a0d\u0000e "}]},
    "image": {"messages": [S, SEE, A, U]},
}


def main():
    golden = []
    for template in TEMPLATES:
        for name, body in CASES.items():
            entry = {"template": template, "case": name, "body": body}
            try:
                entry["prompt"] = prompt(template, body)
            except jinja2.exceptions.TemplateError as error:
                if isinstance(error, jinja2.exceptions.TemplateSyntaxError):
                    raise
                entry["refused"] = str(error)
            except TypeError:
                entry["refused"] = None
            golden.append(entry)
    out = {
        "now": int(NOW.timestamp()),
        "special": {name: special for name, (special, _) in TEMPLATES.items()},
        "golden": golden,
    }
    text = json.dumps(out, ensure_ascii=False, indent=1)
    (HERE / "golden.json").write_text(text + "\n", encoding="utf-8")
    print(len(golden), "cases,", sum("refused" in g for g in golden), "refusals")


if __name__ == "__main__":
    main()
