"""What wakes an asyncio loop from the native side: one bell for each loop, for as long as the loop is there."""

import asyncio
import weakref

from dynamo.llm._native import Bell

_bells: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bell]" = weakref.WeakKeyDictionary()


def bell() -> tuple[asyncio.AbstractEventLoop, Bell]:
    """The running loop and its bell."""
    loop = asyncio.get_running_loop()
    known = _bells.get(loop)
    if known is None:
        known = _bells[loop] = Bell()
        loop.add_reader(known.fileno(), known.drain)
    return loop, known
