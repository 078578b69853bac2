"""Math-v0 in the suite `calibration`: votes, verdicts and lengths of simulated teams beside the published numbers.

Votes are played by policy `vote`. For verdicts and lengths a crew of one problem is watched: the solver writes
`SAMPLES` solutions, the verifier judges all of them, and what the log says of them is counted per episode.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from ddpomdp.bench import Cell, Output, Section, Table
from ddpomdp.bench.stats import summarise
from ddpomdp.bench.suite import Row
from ddpomdp.registry import made
from ddpomdp_envs import math_halves
from ddpomdp_envs.tables import signed

ENV, PRESET = "Math-v0", "calibration"
SHAPE_OF = "r1-7b"  # the environment that is compiled; other models lend it their numbers
SAMPLES = 8
EVIDENCE_EPISODES = 256  # at most in one batch


def place(model: str, topology: str, verifier: str = "small") -> Any:
    """The environment in which a model plays."""
    return made(ENV, preset=PRESET, model=model, topology=topology, verifier=verifier)


@dataclass(frozen=True)
class Vote:
    """A published share of problems answered right by `n` samples."""

    quantity: str
    model: str
    n: int
    value: float
    source: str
    band_pp: float = 3.0
    in_fit: bool = True

    @property
    def policy(self) -> str:
        """Its label in the rows."""
        return f"vote-{self.n}"


R1, THINK = "DeepSeek-R1 model cards, 2025-01", "Think@n, 2026"
VOTES = (
    Vote("R1-1.5B AIME24, one sample", "r1-1.5b", 1, 0.289, R1),
    Vote("R1-1.5B AIME24, majority of 64", "r1-1.5b", 64, 0.527, R1),
    Vote("R1-7B AIME24, one sample", "r1-7b", 1, 0.555, R1),
    Vote("R1-7B AIME24, majority of 64", "r1-7b", 64, 0.833, R1),
    Vote("Qwen3-4B AIME24, one sample", "qwen3-4b", 1, 0.863, THINK),
    Vote("Qwen3-4B AIME24, majority of 48", "qwen3-4b", 48, 0.933, THINK),
    Vote("Qwen3-4B AIME25, one sample", "qwen3-4b-aime25", 1, 0.812, THINK),
    Vote("Qwen3-4B AIME25, majority of 48", "qwen3-4b-aime25", 48, 0.867, THINK),
)
VERIFIER_SOURCE = "arXiv 2509.17995"
# Right answers of a 3B model accepted by GPT-4o, by tenths of the problems' pass rate, hardest first.
TPR = (0.37, 0.54, 0.64, 0.74, 0.76, 0.87, 0.93, 0.93, 0.96, 0.98)
TPR_OF = ("r1-1.5b", "strong")
# Wrong answers rejected, mean over the tenths: by model (class of generator) and verifier.
TNR = {
    ("r1-1.5b", "strong"): 0.82,
    ("r1-7b", "strong"): 0.74,
    ("qwen3-4b", "strong"): 0.34,
    ("r1-1.5b", "small"): 0.62,
    ("r1-7b", "small"): 0.56,
    ("qwen3-4b", "small"): 0.20,
}
TPR_BAND, TNR_BAND, RATIO_BAND = 0.06, 0.05, (2.0, 3.0)
LENGTHS = ("r1-1.5b", "r1-7b", "qwen3-4b", "qwen3-4b-aime25")
CAP_HIT = ("r1-1.5b", 0.80)  # a small study; not used in the fit


def cells(options: Mapping[str, Any]) -> Iterable[Cell]:
    """The setting of each published number under each seed."""
    for vote in VOTES:
        for seed in options["seeds"]:
            yield _cell("swarm", vote.model, "small", vote.policy, seed, options["episodes"], {"n": vote.n})
    for model, verifier in (*TNR, ("qwen3-4b-aime25", "small")):
        for seed in options["seeds"]:
            yield _cell("planner_executor_critic", model, verifier, "evidence", seed, options["episodes"], {})
    for seed in options["seeds"]:
        yield _cell("swarm", math_halves.MODEL, "small", "halves", seed, options["episodes"], {})


def _cell(topology: str, model: str, verifier: str, policy: str, seed: int, episodes: int, more: dict) -> Cell:
    env = place(model, topology, verifier)
    settings = {"env": ENV, "preset": PRESET, "model": model, "policy": policy, "verifier": verifier}
    settings |= {"topology": topology, "episodes": episodes, **more}
    provenance = {f"{ENV} version": env.version, f"{ENV} {PRESET} {topology} harness": env.harness.digest}
    return Cell(f"{ENV}.{PRESET}.{model}.{verifier}.{policy}.s{seed}", seed, settings, provenance)


def run(cell: Cell) -> Output:
    """Play the episodes of a cell."""
    import jax

    import ddpomdp
    from ddpomdp.bench import episode

    setting = cell.settings
    env = place(SHAPE_OF, setting["topology"])
    numbers = place(setting["model"], setting["topology"], setting["verifier"]).params
    keys = jax.random.split(jax.random.key(cell.seed), setting["episodes"])
    if setting["policy"] == "evidence":
        return Output(_evidence(env, numbers, keys))
    if setting["policy"] == "halves":
        return Output(math_halves.rows(env, numbers, keys))
    policy = ddpomdp.policy("vote", env, n=setting["n"])
    return Output(episode.rows(episode.play(env, policy, policy.init(env), keys, numbers, env.spec.max_ticks)))


def _script(env: Any) -> Any:
    """Samples by the solver, then a verdict on each."""
    from ddpomdp.policies import Script, lines_of

    turn = env.harness.turn
    read = [turn("wait", **{"for": "all"}), turn("aggregate", rule="majority")]
    lines = []
    for _ in range(SAMPLES):
        lines += [turn("delegate", to="row_0", rows="next", brief="short"), *read]
    lines += [turn("delegate", to="row_2", rows="again", brief="detailed"), *read, turn("stop")]
    return Script(env, lines_of(lines))


def _evidence(env: Any, numbers: Any, keys: Any) -> list[Row]:
    """One row per episode: its problem's pass rate, samples right and wrong, their tokens, verdicts on them."""
    import jax

    rows = []
    for first in range(0, len(keys), EVIDENCE_EPISODES):
        part = keys[first : first + EVIDENCE_EPISODES]
        log, facts, tokens, code, info = jax.tree.map(np.asarray, _watch(env, numbers, part))
        chance = np.asarray(numbers.task.chance)[2]
        for b in range(len(part)):
            rows.append(_counts(b, log, facts, tokens, code, chance) | {name: info[name][b].item() for name in info})
    return rows


@cache
def _program(env: Any) -> Any:
    import jax
    import jax.numpy as jnp

    from ddpomdp.rollouts import episodes
    from ddpomdp_envs.math import SOLVE, SOLVER

    policy = _script(env)

    def record(ts: Any, turns: Any, aux: Any, next_ts: Any) -> tuple[Any, Any]:
        events = next_ts.events
        solves = events.valid & (events.role == SOLVER) & (events.tokens[..., 0] == SOLVE)
        only = lambda x: jnp.sum(jnp.where(solves, x, 0), axis=-1)  # noqa: E731
        return only(events.cost_tokens[..., 0]), only(events.result_code)

    @jax.jit
    def play(numbers: Any, keys: Any) -> Any:
        luck = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        batch = episodes(env, policy, policy.init(env), keys, luck, env.spec.max_ticks, numbers, record)
        tokens, code = batch.recorded
        kept = {name: batch.ts.info[name] for name in ("quality", "tokens", "wall_s", "illegal")}
        return batch.state.log, batch.state.task, tokens, code, kept

    return play


def _watch(env: Any, numbers: Any, keys: Any) -> Any:
    return _program(env)(numbers, keys)


def _counts(b: int, log: Any, facts: Any, tokens: Any, code: Any, chance: Any) -> Row:
    """What came of one episode's samples."""
    from ddpomdp.claims import ACCEPT, MAX_VALUE, RECORDED, VERDICT
    from ddpomdp.enums import ResultCode

    head, fixed = log.head[b, :, 0], log.fixed[b, :, 0]
    flags = head >> 4
    recorded = (flags & RECORDED) != 0
    is_verdict = (flags & VERDICT) != 0
    claims = np.flatnonzero(recorded & ~is_verdict)
    right = (head[claims] & MAX_VALUE) == facts.truth[b, 0]
    verdicts = np.flatnonzero(recorded & is_verdict)
    on = {int((fixed[k] >> 16) & 127): bool(flags[k] & ACCEPT) for k in verdicts}
    accepted = np.asarray([on.get(int(k), False) for k in claims], bool)
    judged = np.asarray([int(k) in on for k in claims], bool)
    sampled = code[:, b] > 0
    lengths = tokens[:, b][code[:, b] == ResultCode.FOUND]
    mean = lambda x: float(x.mean()) if x.size else 0.0  # noqa: E731
    return {
        "pass_rate": float(chance[facts.packed[b, 0] & 1023]),
        "samples": int(sampled.sum()),
        "right": int(right.sum()),
        "wrong": int((~right).sum()),
        "right_tokens": int(lengths[right].sum()),
        "wrong_tokens": int(lengths[~right].sum()),
        "right_judged": int((right & judged).sum()),
        "right_accepted": int((right & accepted).sum()),
        "wrong_judged": int((~right & judged).sum()),
        "wrong_rejected": int((~right & judged & ~accepted).sum()),
        "mean_tokens": mean(tokens[:, b][sampled]),
    }


# What the rows say ---------------------------------------------------------------------------------------------------


def analysis(rows: list[Row]) -> dict[str, Any]:
    """Votes, verdicts and lengths beside the published numbers, from the rows of Math-v0 alone."""
    votes = []
    for vote in VOTES:
        by_seed: dict[int, list[float]] = {}
        for row in rows:
            if (row["model"], row["policy"]) == (vote.model, vote.policy):
                by_seed.setdefault(row["seed"], []).append(row["quality"])
        ours = summarise(by_seed)
        error = None if ours["mean"] is None else 100 * (ours["mean"] - vote.value)
        within = error is not None and abs(error) <= vote.band_pp
        votes.append({**asdict(vote), "policy": vote.policy, "ours": ours, "error_pp": error, "within": within})
    watched = [row for row in rows if row["policy"] == "evidence"]
    of = lambda model, verifier: [r for r in watched if (r["model"], r["verifier"]) == (model, verifier)]  # noqa: E731
    tpr = [
        {"tenth": i + 1, "published": TPR[i], "ours": share, "judged": judged}
        for i, (share, judged) in enumerate(by_tenth(of(*TPR_OF), "right_accepted", "right_judged"))
    ]
    tnr = []
    for (model, verifier), value in TNR.items():
        shares = [share for share, _ in by_tenth(of(model, verifier), "wrong_rejected", "wrong_judged")]
        known = [share for share in shares if share is not None]
        tnr.append(
            {"model": model, "verifier": verifier, "published": value, "tenths": len(known)}
            | {"ours": sum(known) / len(known) if known else None}
        )
    lengths = []
    for model in LENGTHS:
        of_model = [row for row in watched if row["model"] == model]
        total = lambda name: sum(row[name] for row in of_model)  # noqa: B023, E731
        if of_model and total("right") and total("wrong"):
            ratio = (total("wrong_tokens") / total("wrong")) / (total("right_tokens") / total("right"))
            answered = (total("right") + total("wrong")) / total("samples")
            tokens = sum(row["mean_tokens"] for row in of_model) / len(of_model)
            shares, means = ([r["right"] / r["samples"] for r in of_model], [r["mean_tokens"] for r in of_model])
            correlation = float(np.corrcoef(shares, means)[0, 1])
            lengths.append(
                {"model": model, "wrong_right": ratio, "within": RATIO_BAND[0] <= ratio <= RATIO_BAND[1]}
                | {"no_answer": 1 - answered, "tokens": tokens, "correlation": correlation}
            )
    halves = []
    for part, value in math_halves.PUBLISHED.items():
        by_seed = {}
        for row in (row for row in rows if row["policy"] == "halves"):
            by_seed.setdefault(row["seed"], []).append(row[part])
        ours = summarise(by_seed)
        error = None if ours["mean"] is None else 100 * (ours["mean"] - value)
        halves.append({"part": part, "published": value, "ours": ours, "error_pp": error})
    return {"votes": votes, "tpr": tpr, "tnr": tnr, "lengths": lengths, "halves": halves}


def by_tenth(rows: list[Row], part: str, whole: str) -> list[tuple[float | None, int]]:
    """(share, number) per tenth of the pass rate, hardest first; None where there is nothing to judge."""
    counts = np.zeros((10, 2))
    for row in rows:
        counts[min(int(10 * row["pass_rate"]), 9)] += row[part], row[whole]
    return [(float(a / b) if b else None, int(b)) for a, b in counts]


def sections(result: Mapping[str, Any]) -> Iterable[Section]:
    """The tables of the card."""
    show = lambda x, digits=3: "–" if x is None else f"{x:.{digits}f}".replace("-", "−")  # noqa: E731
    verdict = lambda within: "within" if within else "not within"  # noqa: E731
    votes = tuple(
        (
            *(line["quantity"], line["policy"], show(line["value"]), show(line["ours"]["mean"])),
            "–" if line["ours"]["low"] is None else f"{line['ours']['low']:.3f} to {line['ours']['high']:.3f}",
            *(signed(line["error_pp"], 1), line["ours"]["episodes"], "yes" if line["in_fit"] else "no"),
            *(verdict(line["within"]), line["source"]),
        )
        for line in result["votes"]
        if line["ours"]["mean"] is not None
    )
    columns = ("Published quantity", "Policy", "Published", "Ours", "95% interval", "Error, pp", "Episodes")
    columns = (*columns, "Used in the fit", "Band 3 pp", "Source")
    judged = [line for line in result["tpr"] if line["ours"] is not None]
    tpr = tuple(
        (
            *(line["tenth"], show(line["published"], 2), show(line["ours"]), signed(line["ours"] - line["published"])),
            *(line["judged"], verdict(abs(line["ours"] - line["published"]) <= TPR_BAND)),
        )
        for line in judged
    )
    tnr = tuple(
        (
            *(line["model"], line["verifier"], show(line["published"], 2), show(line["ours"])),
            *(signed(line["ours"] - line["published"]), line["tenths"]),
            verdict(abs(line["ours"] - line["published"]) <= TNR_BAND),
        )
        for line in result["tnr"]
        if line["ours"] is not None
    )
    lengths = tuple(
        (
            *(line["model"], show(line["wrong_right"], 2), verdict(line["within"])),
            *(show(line["no_answer"]), f"{line['tokens']:,.0f}", show(line["correlation"], 2)),
        )
        for line in result["lengths"]
    )
    halves = tuple(
        (
            *(line["part"], show(line["published"]), show(line["ours"]["mean"])),
            "–" if line["ours"]["low"] is None else f"{line['ours']['low']:.3f} to {line['ours']['high']:.3f}",
            *(signed(line["error_pp"], 1), line["ours"]["episodes"]),
        )
        for line in result["halves"]
        if line["ours"]["mean"] is not None
    )
    head = ("Model", "Wrong to right tokens", f"Band {RATIO_BAND[0]:g} to {RATIO_BAND[1]:g}")
    head = (*head, "No answer", "Tokens per sample", "Share right against length")
    model, published = CAP_HIT
    text = (
        "Competition problems. Numbers used in the fit check the fit and validate nothing. Verdicts: "
        f"{VERIFIER_SOURCE}, fitted. Not used in the fit: a small study saw {published:.0%} of {model}'s samples hit "
        "their length limit (here: no answer), and a correlation of accuracy and length of −0.59 on average."
    )
    yield Section(
        "Math-v0: published against ours",
        text,
        tables=(
            Table(columns, votes, "Votes."),
            Table(
                ("Tenth of the pass rate", "Published", "Ours", "Error", "Judged", f"Band {TPR_BAND:g}"),
                tpr,
                "Right answers accepted: strong verifier, r1-1.5b.",
            ),
            Table(
                ("Generator", "Verifier", "Published", "Ours", "Error", "Tenths", f"Band {TNR_BAND:g}"),
                tnr,
                "Wrong answers rejected, mean over tenths of the pass rate.",
            ),
            Table(head, lengths, "Lengths of samples with an answer, and of all samples."),
            Table(
                ("Votes of", "Published", "Ours", "95% interval", "Error, pp", "Episodes"),
                halves,
                f"{math_halves.MODEL}: the same {math_halves.SAMPLES} samples by length; not used in the fit.",
            ),
        ),
    )
