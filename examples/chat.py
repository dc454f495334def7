#!/usr/bin/env python3
"""A conversation through the frontend with the official OpenAI client: every turn finds the turns before it in cache.

    examples/chat.py http://127.0.0.1:8000

Needs the `openai` package. Prints, for each turn, the worker that answered and how many blocks of the prompt it held.
"""

import sys

from openai import OpenAI


def main(base: str) -> None:
    client = OpenAI(base_url=f"{base}/v1", api_key="unused")
    model = client.models.list().data[0].id
    messages = [{"role": "system", "content": "You are a patient librarian. Answer in one sentence and name the shelf."}]
    for question in ["Where are the letters?", "And the maps of the north?", "Which of them is older?", "Who drew it?"]:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=24)
        text = answer.parse().choices[0].message.content
        worker, blocks = answer.headers["x-dynamo-worker-id"], answer.headers["x-dynamo-overlap-blocks"]
        print(f"{worker}, {blocks} blocks held: {question} -> {text}")
        messages.append({"role": "assistant", "content": text})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
