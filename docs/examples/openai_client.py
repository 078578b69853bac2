"""A language model plays the orchestrator through any OpenAI-compatible chat-completions endpoint.

    python docs/examples/openai_client.py --base-url http://localhost:8000/v1 --model NAME

The key is read from OPENAI_API_KEY (none is sent if it is empty), the address from OPENAI_BASE_URL if not given. Prints
the dialogue and the result. Standard library only.
"""

import argparse
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

import ddpomdp

MAX_ANSWER = 1_000_000  # bytes of an answer that are read
KEPT = 24  # messages that are sent again, besides the system prompt


class EndpointError(Exception):
    """What went wrong with the endpoint, in one line."""


def chat(base_url: str, key: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The assistant's message from `POST base_url/chat/completions`.

    Raises:
      EndpointError: no connection, no answer in time, an HTTP status other than 200, or an answer of another shape.
    """
    url = f"{base_url.rstrip('/')}/chat/completions"
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read(MAX_ANSWER + 1)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        error.close()
        raise EndpointError(f"{url}: status {error.code} {error.reason}: {said!a}") from None
    except TimeoutError:
        raise EndpointError(f"{url}: no answer within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no URL
        reason = getattr(error, "reason", error)
        late = isinstance(reason, TimeoutError)
        raise EndpointError(f"{url}: no answer within {timeout_s:g} s" if late else f"{url}: {reason}") from None
    try:
        message = json.loads(text[:MAX_ANSWER])["choices"][0]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise EndpointError(f"{url}: the answer has no choices[0].message: {text[:200].decode(errors='replace')!a}")
    return message


def recent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system prompt and the newest messages, beginning with one that answers no call that was cut off."""
    tail = messages[1:][-KEPT:]
    while tail and tail[0]["role"] != "user" and len(tail) > 1:
        tail = tail[1:]
    return [messages[0], *tail]


def play(
    env: Any, seed: int, base_url: str, key: str, model: str, *, timeout_s: float = 120.0, max_calls: int = 500
) -> dict[str, Any]:
    """One episode, printed as it goes: the last info, with `reward` and `calls` (requests made)."""
    env.reset(seed)
    told, total, calls, done, info = env.prompt(), 0.0, 0, False, {}
    messages: list[dict[str, Any]] = [{"role": "system", "content": env.system_prompt()}]
    print(messages[0]["content"])
    while not done and calls < max_calls:
        messages.append({"role": "user", "content": told})
        print(f"\n--- to the model\n{told}")
        body = {"model": model, "messages": recent(messages), "tools": env.tools()}
        message = chat(base_url, key, body, timeout_s)
        calls += 1
        asked = message.get("tool_calls") or []
        said = {"role": "assistant", "content": message.get("content")} | ({"tool_calls": asked} if asked else {})
        print(f"\n--- from the model\n{json.dumps(asked) if asked else ascii(said['content'])}")
        told, reward, done, info = env.step(said)
        total += reward
        messages.append(said)
        # Endpoints want an answer to each call object; what is new stands in the user's message that follows.
        answer = told.splitlines()[0] if info["refused"] else "done"
        ids = [call["id"] for call in asked if isinstance(call, dict) and isinstance(call.get("id"), str)]
        messages += [{"role": "tool", "tool_call_id": name, "content": answer} for name in ids]
    print(f"\n--- result\n{told}\n{calls} requests, {info.get('refused_calls', 0)} answers refused")
    return {**info, "reward": total, "calls": calls, "done": done}


def main(argv: list[str] | None = None) -> int:
    """Play one episode; 0 if it ended, 1 for a fault of the endpoint, 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default=os.environ.get("OPENAI_BASE_URL", ""), help="such as http://host/v1")
    parser.add_argument("--model", default=os.environ.get("OPENAI_MODEL", "default"))
    parser.add_argument("--env", default="Search-v0")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for an answer")
    parser.add_argument("--max-calls", type=int, default=500, help="requests at most")
    given = parser.parse_args(argv)
    if not given.base_url.startswith(("http://", "https://")):
        parser.error("say where the endpoint is: --base-url http://host:port/v1, or OPENAI_BASE_URL")
    try:
        env = ddpomdp.text_env(given.env, preset=given.preset)
        key = os.environ.get("OPENAI_API_KEY", "")
        play(env, given.seed, given.base_url, key, given.model, timeout_s=given.timeout, max_calls=given.max_calls)
    except EndpointError as error:
        print(f"openai_client: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"openai_client: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
