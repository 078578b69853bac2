"""Instructions in tool results: the law by hand, rate 0 to the last bit, and how far they get."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import Game, Run

from ddpomdp import make
from ddpomdp.pytree import replace
from ddpomdp.testing.trees import differing
from ddpomdp.trace import Trace, metrics
from ddpomdp_envs import injection
from ddpomdp_envs.search import INJECTED

OPTIONS = {"preset": "tiny", "claims_per_row": 4}
TICKS = 28


@pytest.fixture(scope="module")
def games():
    """Without the option, and with it."""
    return Game(make("Search-v0", **OPTIONS)), Game(make("Search-v0", **OPTIONS, injection=0.5))


class Told(Run):
    """An episode with numbers of the task's laws set by hand."""

    def laws(self, **numbers):
        """Fill tables with plain numbers."""
        task = self.params.task
        full = {k: jnp.full_like(getattr(task, k), v) for k, v in numbers.items()}
        self.params = replace(self.params, task=replace(task, **full))

    def claim(self, row, k=0):
        """(value, tainted, untrusted) of an entry of the log."""
        head = int(self.state.log.head[k, row])
        return head & 15, bool(head >> 4 & 4), bool(head >> 4 & 8)


def played(game, params, seed):
    """TimeSteps, turns and last state of an episode: the root spawns, then plays at random; workers by their rule."""
    env, key = game.env, jax.random.key(seed)
    luck = jax.random.fold_in(key, 1)
    state, ts = game.reset(key, luck, params)
    stop, spawn = env.harness.tool("stop"), env.harness.tool("spawn")
    steps, turns = [ts], []
    for tick in range(TICKS):
        tools = jnp.where(ts.legal.tools == 1 << stop, ts.legal.tools, ts.legal.tools & ~(1 << stop))
        tools = tools if tick else jnp.full_like(tools, 1 << spawn)
        root = game.sample(luck, replace(ts, legal=replace(ts.legal, tools=tools)))
        turns.append(jnp.where((ts.uid == 0)[:, None], root, env.worker_turns(ts)))
        state, ts = game.step(luck, state, turns[-1], params)
        steps.append(ts)
    return steps, turns, state


def test_rate_0_is_the_option_absent_to_the_last_bit(games):
    plain, planted = games
    program = lambda env: str(jax.make_jaxpr(env.reset)(jax.random.key(0), jax.random.key(1)))  # noqa: E731
    zero = make("Search-v0", **OPTIONS, injection=0.0)
    assert zero.options == plain.env.options and program(zero) == program(plain.env) != program(planted.env)
    assert zero.harness.digest == plain.env.harness.digest == planted.env.harness.digest
    differs = 0
    for seed in range(4):
        without, turns, _ = played(plain, plain.env.params, seed)
        numbers = replace(planted.env.params, task=replace(planted.env.params.task, injection=jnp.float32(0)))
        with_law, same_turns, _ = played(planted, numbers, seed)
        for ours, theirs in zip([*without, *turns], [*with_law, *same_turns], strict=True):
            assert not differing(ours, theirs)
        full, _, _ = played(planted, planted.env.params, seed)
        differs += any(differing(ours, theirs) for ours, theirs in zip(without, full, strict=True))
    assert differs  # the law does something at its rate


def test_who_reads_an_instruction_obeys_and_passes_it_on(games):
    """Row 0's page is injected. u1 reads it and obeys in row 1; u2 learns of it by mail only, and obeys in row 3."""
    run = Told(games[1], seed=4)
    packed = run.state.task.packed & ~(1 << INJECTED)
    run.state = replace(run.state, task=replace(run.state.task, packed=packed.at[0].add(1 << INJECTED)))
    met = run.state.task.at(jnp.arange(6))
    truth, planted = np.asarray(met.truth), np.asarray(met.poison)
    assert (truth != planted).all() and np.asarray(met.poisoned).tolist() == [True, *[False] * 5]
    run.laws(
        fault=0, length=1, hard_factor=1, understood=1, copies=0, garble=0, q=1, poison_hit=1, obey=1, reject_wrong=0
    )
    run.step(u0=("spawn", {"role": "searcher", "count": 2, "chunk": 2, "brief": "detailed"}))
    run.until_free(1)
    ts = run.step(u1="search")
    assert run.claim(0) == (planted[0], True, True)
    assert ts.events.tainted[run.slot(1)] and not ts.events.trusted[run.slot(1)]
    run.until_free(2)
    ts = run.step(u2="search")
    assert run.claim(2) == (truth[2], False, False) and not ts.events.tainted[run.slot(2)]
    run.until_free(1)
    run.laws(obey=0)
    before = run.state, run.ts
    run.step(u1="search")
    assert run.claim(1) == (truth[1], False, False)  # it knows of the instruction and does not mind
    run.state, run.ts = before
    run.laws(obey=1)
    ts = run.step(u1="search")
    assert run.claim(1) == (planted[1], True, False)  # the attacker's value, by its own hand
    assert ts.events.tainted[run.slot(1)] and ts.events.trusted[run.slot(1)]
    at = np.asarray(injection.flow(run.env, run.state)["planted"])
    assert at == 2
    run.step(u1=("return", {"claims": "all", "detail": "full"}))
    run.until_free()
    while not run.may(0, "aggregate"):
        run.step(u0=("wait", {"for": "one"}))
        run.until_free()
    run.step(u0=("aggregate", {"rule": "majority"}))
    run.until_free()
    run.step(u0=("message", {"to": "row_1", "claims": "best", "detail": "full"}))  # u2's row of the roster
    run.until_free(2)
    run.step(u2="search")
    if run.claim(3) == (truth[3], False, False):
        pytest.fail("u2 had not been told, or did not obey")
    assert run.claim(3) == (planted[3], True, False)
    seen = jax.tree.map(float, injection.flow(run.env, run.state))
    # One claim from the page, three in its service or from it; all three lives know one; both answers, rows 0 and 1.
    assert seen == pytest.approx({"pages": 1, "planted": 3, "amplification": 3, "reach": 1, "captured": 1})


def test_what_counts_as_planted_by_hand(games):
    """Seven entries of four rows; the pages of rows 0 and 3 are injected.

    Row 0: a page, a claim that carries its instruction on, a verdict on it. Row 1: who obeyed. Row 2: a page that lies
    without an instruction, the truth. Row 3: the twin of a page.
    """
    run = Told(games[1], seed=4)
    recorded, verdict, tainted, untrusted, _, twin, _ = (1 << i for i in range(7))
    entries = {
        **{(0, 0): tainted | untrusted, (0, 1): tainted, (0, 2): tainted | verdict, (1, 0): tainted},
        **{(2, 0): tainted | untrusted, (2, 1): 0, (3, 0): tainted | untrusted | twin},
    }
    packed = run.state.task.packed & ~(1 << INJECTED)
    packed = packed.at[jnp.asarray([0, 3])].add(1 << INJECTED)
    start = replace(run.state, task=replace(run.state.task, packed=packed))
    none = jax.tree.map(float, injection.flow(run.env, start))
    assert np.isnan(none.pop("amplification")) and set(none.values()) == {0.0}  # no page was read, nothing answered

    head = start.log.head
    for (row, k), flags in entries.items():
        head = head.at[k, row].set(5 | (recorded | flags) << 4)
    known = start.lives.known

    def flow(row, k, **answers):
        """With the root, who is alone, knowing one entry, and rows answered by an entry each."""
        knows = known.at[0, 0].set(jnp.uint32(1 << (4 * row + k)))
        rows = jnp.asarray([int(name[3:]) for name in answers], jnp.int32)
        state = replace(
            start,
            log=replace(start.log, head=head),
            lives=replace(start.lives, known=knows),
            answer=start.answer.at[rows].set(5),
            answer_claim=start.answer_claim.at[rows].set(jnp.asarray(list(answers.values()), jnp.int32)),
        )
        return jax.tree.map(float, injection.flow(run.env, state))

    # One page; the page itself, what was told on, and what was obeyed on row 1: three for one.
    told = flow(0, 1, row0=0, row1=0, row2=1)
    assert told == pytest.approx({"pages": 1, "planted": 3, "amplification": 3, "reach": 1, "captured": 2 / 3})
    assert flow(2, 0)["reach"] == flow(3, 0)["reach"] == flow(0, 2)["reach"] == 0 and flow(1, 0)["reach"] == 1
    assert flow(0, 0, row2=0, row3=0)["captured"] == 0  # led by a lie of the web's own, and by a twin


@pytest.fixture(scope="module")
def small(games):
    """A place with room for a team, in the laws of the tests here."""
    options = {"capacity": 8, "num_subtasks": 8, "counts": (2, 4), "chunks": (4, "even")}
    return make("Search-v0", **(OPTIONS | options), max_ticks=96, injection=0.5)


def test_a_team_at_rate_0_and_at_a_rate(small, monkeypatch):
    monkeypatch.setattr(injection, "place", lambda topology: small)
    told = injection.TEAMS[1]
    without, given = (injection.measure(told, rate, (0,), 8) for rate in (0.0, 0.5))
    none = {name: values[0] for name, values in without.items()}
    assert none["amplification"] == [None] * 8 and none["pages"] == none["planted"] == none["captured"] == [0.0] * 8
    pages, planted, amplification = (np.asarray(given[name][0]) for name in ("pages", "planted", "amplification"))
    assert (pages > 0).all() and (planted > pages).any()  # somebody obeyed
    np.testing.assert_allclose(amplification, planted / pages)
    assert 0 < max(given["captured"][0]) <= max(given["reach"][0]) <= 1
    assert np.mean(given["quality"][0]) < np.mean(none["quality"])


def test_the_command_prints_a_line_per_team(small, monkeypatch, capsys):
    monkeypatch.setattr(injection, "place", lambda topology: small)
    monkeypatch.setattr(injection, "TEAMS", injection.TEAMS[1:2])
    assert injection.main(["--rate", "0.5", "--seeds", "1", "--episodes", "8"]) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in head.split("|")[1:4]] == ["team", "topology", "pages"]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    measured = injection.measure(injection.TEAMS[0], 0.5, (0,), 8)
    assert cells[:2] == ["told", "`swarm`"] and float(cells[4]) == pytest.approx(
        np.mean([x for x in measured["amplification"][0] if x is not None]), abs=5e-4
    )
    assert float(cells[-1]) < 0  # item-F1 less that at rate 0


@pytest.mark.parametrize("words", [["--rate", "0"], ["--rate", "1.5"], ["--seeds", "0"], ["--episodes", "0"]])
def test_what_cannot_be_measured_is_refused_in_one_line(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        injection.main(words)
    assert stopped.value.code == 2 and f"{words[0]}: got" in capsys.readouterr().err.splitlines()[-1]


def test_a_trace_tells_how_far_it_got(games):
    """The measures of a trace see the same: untrusted results, and edges along which tainted claims flow."""
    env = games[1].env
    for seed in range(20):
        steps, _, _ = played(games[1], env.params, seed)
        events = jax.tree.map(lambda *x: np.stack(x), *(jax.tree.map(np.asarray, ts.events) for ts in steps[1:]))
        if not (events.tainted & (events.claims_received > 0)).any():
            continue
        key = jax.random.key(seed)
        trace = Trace.from_events(env, events, key, jax.random.fold_in(key, 1), policy="random", info=steps[-1].info)
        edges = [edge for edge in trace.document["edges"] if edge["type"] == "safety_flow"]
        measured = metrics(trace)
        assert edges and 0 < measured["injection_flow"].value <= 1 and measured["error_amplification"].value > 0
        return
    pytest.fail("nobody ever received a tainted claim")


@pytest.mark.parametrize("given, said", [({"injection": 2}, "injection: got 2"), ({"obey": -0.1}, "obey: got -0.1")])
def test_what_is_no_rate_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        make("Search-v0", **OPTIONS, **given)
