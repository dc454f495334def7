"""Requests of models that take text: OpenAI's bodies in, OpenAI's chunks out."""

from __future__ import annotations

import time
from typing import Any


def prompt_of(body: dict[str, Any]) -> Any:
    """The prompt of a completion as it came; of a chat its messages, one below the other, as there is no template to render them with."""
    if "messages" not in body:
        return body.get("prompt")
    lines = [f"{message.get('role')}: {_content(message.get('content'))}" for message in body["messages"]]
    return "\n".join([*lines, "assistant:"])


def _content(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


class Chunks:
    """Makes the chunks of one answer."""

    def __init__(self, body: dict[str, Any], request_id: str) -> None:
        self._is_chat = "messages" in body
        kind, name = ("chat.completion.chunk", "chatcmpl") if self._is_chat else ("text_completion", "cmpl")
        self._head = {"id": f"{name}-{request_id}", "object": kind, "created": int(time.time()), "model": body.get("model", "")}

    def chunk(self, output: Any) -> tuple[dict[str, Any], bool]:
        """The chunk of what a generator yielded, and whether it is the last one."""
        if isinstance(output, str):
            output = {"text": output}
        if not isinstance(output, dict):
            raise TypeError(f"the generator yielded a {type(output).__name__}: expected a str or a dict")
        if "choices" in output:
            return output, any(choice.get("finish_reason") for choice in output["choices"])
        text, reason = output.get("text") or "", output.get("finish_reason")
        said = {"delta": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        choice = {"index": output.get("index") or 0, "finish_reason": "stop" if reason == "eos" else reason, "logprobs": None}
        chunk = self._head | {"choices": [choice | said]}
        if (usage := output.get("completion_usage")) is not None:
            chunk["usage"] = usage
        return chunk, reason is not None
