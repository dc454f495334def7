"""The official openai client, used as its users use it. Arguments: base URL, tokens per block.

Writes "passed NAME" after each check, and "please COMMAND" where the fleet must change; the answer is a line of JSON.
"""

import asyncio
import json
import sys
import time

try:
    import openai
except ImportError as missing:
    sys.exit(f"{missing}: tests/run installs tests/requirements.txt")

BASE_URL, BLOCK = sys.argv[1], int(sys.argv[2])
MODEL = "mock-model"
STORY = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Tell me one about a lighthouse."}]

client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=20)


def please(command):
    print("please", command, flush=True)
    return json.loads(sys.stdin.readline())


def raised(kind, call, **fields):
    """The call must raise exactly this exception, with these fields."""
    try:
        call()
    except openai.OpenAIError as error:
        assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
        for name, value in fields.items():
            assert getattr(error, name) == value, f"{name} of {error!r} is {getattr(error, name)!r}"
        return error
    raise AssertionError(f"{kind.__name__} is not raised")


def models():
    listed = client.models.list().data
    assert sorted(model.id for model in listed) == [MODEL, "sql"], listed
    assert all(model.object == "model" and model.created > 0 for model in listed)
    assert client.models.retrieve("sql").id == "sql"
    error = raised(openai.NotFoundError, lambda: client.models.retrieve("nobody"), code="model_not_found", param="model")
    assert "nobody" in error.message


def completions():
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=7, extra_body={"ignore_eos": True})
    [choice] = answer.choices
    assert choice.finish_reason == "length" and choice.text and answer.model == MODEL
    assert answer.usage.completion_tokens == 7 and answer.usage.prompt_tokens > 0
    ids = client.completions.create(model=MODEL, prompt=[[11, 12, 13], [14, 15]], max_tokens=2, extra_body={"ignore_eos": True})
    assert [choice.index for choice in ids.choices] == [0, 1] and ids.usage.prompt_tokens == 5
    adapter = client.completions.create(model="sql", prompt="select", max_tokens=1)
    assert adapter.model == "sql"


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=STORY, max_tokens=5, extra_body={"ignore_eos": True})
    [choice] = answer.choices
    assert choice.message.role == "assistant" and choice.message.content and choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 5


def several_choices():
    for answer in (
        client.completions.create(model=MODEL, prompt="Heads or tails?", n=2, max_tokens=3),
        client.chat.completions.create(model=MODEL, messages=STORY, n=2, max_tokens=3),
    ):
        assert [choice.index for choice in answer.choices] == [0, 1], answer
    stream = client.chat.completions.create(model=MODEL, messages=STORY, n=2, max_tokens=3, stream=True, extra_body={"ignore_eos": True})
    tokens = {0: 0, 1: 0}
    for chunk in stream:
        for choice in chunk.choices:
            tokens[choice.index] += bool(choice.delta.content)
    assert tokens == {0: 3, 1: 3}, tokens


def streams():
    more = {"max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}}
    chunks = list(client.completions.create(model=MODEL, prompt="Once upon a time", **more))
    assert sum(bool(chunk.choices and chunk.choices[0].text) for chunk in chunks) == 6
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 6
    chunks = list(client.chat.completions.create(model=MODEL, messages=STORY, **more))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) == 6
    assert chunks[-1].usage.completion_tokens == 6


def routing_is_shown():
    prompt = list(range(20, 20 + 3 * BLOCK))
    first = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=1)
    worker = first.headers["x-dynamo-worker-id"]
    again = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=1)
    assert again.headers["x-dynamo-worker-id"] == worker
    assert again.parse().usage.prompt_tokens_details.cached_tokens == 2 * BLOCK
    assert again.request_id == again.headers["x-request-id"]


def errors():
    create = client.completions.create
    raised(openai.BadRequestError, lambda: create(model=MODEL, prompt=[]), param="prompt", type="invalid_request_error")
    raised(openai.BadRequestError, lambda: create(model=MODEL, prompt=[1, -1]), param="prompt[1]", status_code=400)
    raised(openai.BadRequestError, lambda: create(model=MODEL, prompt="x", extra_body={"cache_salt": ""}), param="cache_salt")
    pin = {"x-dynamo-worker-instance-id": "nobody"}
    raised(openai.BadRequestError, lambda: create(model=MODEL, prompt="x", extra_headers=pin), param="x-dynamo-worker-instance-id")
    raised(openai.NotFoundError, lambda: create(model="nobody", prompt="x"), code="model_not_found")
    raised(openai.NotFoundError, lambda: client.embeddings.create(model=MODEL, input="x"), status_code=404)
    # The engine's own: a prompt longer than the model.
    error = raised(openai.BadRequestError, lambda: create(model=MODEL, prompt=[5] * 9000, max_tokens=1))
    assert "maximum context length" in error.message, error
    assert error.request_id, "an error can be found in the logs"


def statuses():
    kinds = {
        401: openai.AuthenticationError,
        403: openai.PermissionDeniedError,
        409: openai.ConflictError,
        422: openai.UnprocessableEntityError,
        429: openai.RateLimitError,
        500: openai.InternalServerError,
        503: openai.InternalServerError,
    }
    for status, kind in kinds.items():
        please(str(status))
        for stream in (False, True):
            raised(kind, lambda: client.completions.create(model=MODEL, prompt="x", stream=stream), status_code=status)
    please("up")


def all_workers_down():
    please("down")
    for stream in (False, True):
        error = raised(
            openai.InternalServerError,
            lambda: client.chat.completions.create(model=MODEL, messages=STORY, stream=stream),
            status_code=503,
        )
        assert isinstance(error, openai.APIStatusError) and error.type == "server_error", error
    please("up")
    # The client's own retries carry a request over a short outage.
    patient = client.with_options(max_retries=2)
    assert patient.completions.create(model=MODEL, prompt="x", max_tokens=1).choices


def nothing_runs():
    end = time.monotonic() + 5
    while running := please("running"):
        assert time.monotonic() < end, f"{running} sequences still run"


def a_stream_that_is_left():
    long = {"max_tokens": 5000, "stream": True, "extra_body": {"ignore_eos": True}}
    with client.completions.create(model=MODEL, prompt="Forever", **long) as stream:
        assert next(iter(stream)).choices
        assert please("running") == 1
    nothing_runs()


def a_time_out():
    impatient = client.with_options(timeout=openai.Timeout(20, read=0.3))
    long = {"max_tokens": 5000, "extra_body": {"ignore_eos": True}}
    raised(openai.APITimeoutError, lambda: impatient.completions.create(model=MODEL, prompt="Forever", **long))
    nothing_runs()


async def one(session, number, tokens=20):
    """Even numbers stream."""
    prompt = [50 + number] * (2 * BLOCK)
    more = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "extra_body": {"ignore_eos": True}}
    if number % 2:
        answer = await session.completions.create(**more)
        return answer.usage.completion_tokens
    return sum([1 async for chunk in await session.completions.create(stream=True, **more) if chunk.choices])


async def parallel():
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=20) as session:
        before = please("requests")
        tokens = await asyncio.gather(*(one(session, number) for number in range(20)))
        assert tokens == [20] * 20, tokens
        assert please("requests") - before == 20
        # Half of them leave in the middle; the others are not disturbed.
        leaving = [asyncio.create_task(one(session, number, 5000)) for number in range(30, 40)]
        staying = [asyncio.create_task(one(session, number)) for number in range(20, 30)]
        while please("running") < 10:
            await asyncio.sleep(0.01)
        for task in leaving:
            task.cancel()
        assert await asyncio.gather(*staying) == [20] * 10
        left = await asyncio.gather(*leaving, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in left), left
    nothing_runs()


def everything():
    assert client.models.list().data


CHECKS = [
    models, completions, chat, several_choices, streams, routing_is_shown, errors, statuses, all_workers_down,
    a_stream_that_is_left, a_time_out, parallel, everything,
]

for check in CHECKS:
    outcome = check()
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)
    print("passed", check.__name__, flush=True)
