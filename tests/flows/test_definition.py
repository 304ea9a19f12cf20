"""Tasks and flows: checks before anything runs, lookup of arguments, retries and deciders."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

from lifecycle.flows import (
    AlwaysRevert,
    AmbiguousDependency,
    FlowError,
    Flows,
    ForEach,
    MissingDependencies,
    Options,
    ParameterizedForEach,
    Task,
    Times,
    Verdict,
    current_task,
    graph,
    linear,
    task,
    unordered,
)
from lifecycle.flows.plan import compile_flow

if TYPE_CHECKING:
    from collections.abc import Callable


#: A value that type checkers reject.
THREE: Any = 3
PAIR: Any = (1, 2)
TEXT: Any = "5"
ODD: Any = {"retries": 3}


def named(name: str, *, asks: str = "", gives: str | None = None, **settings: Any) -> Task:
    """Return a task that requires values and provides a value."""
    names = asks.split()
    return task(lambda **given: given, name=name, requires=names, provides=gives, **settings)


def order(flow: Any) -> list[str]:
    return [step.name for _, step in compile_flow(flow).steps]


# -- tasks ---------------------------------------------------------------------------------------------------------


def test_calling_a_task_calls_its_function() -> None:
    @task
    def double(x: int) -> int:
        return 2 * x

    assert double(21) == 42
    assert (double.name, double.names, double.function.arguments) == ("double", ("double",), {"x": "x"})


def test_a_task_can_be_copied_with_other_settings() -> None:
    first = task(lambda x: x, name="first", priority=3).revert(lambda result: -result)
    second = task(first, name="second", rebind={"x": "y"}, provides=["a", "b"])
    assert (second.name, second.function.arguments, second.names, second.priority) == (
        "second",
        {"x": "y"},
        ("a", "b"),
        3,
    )
    assert second.undo == first.undo
    assert first.name == "first"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: task(lambda *args: args), TypeError, r"\*args cannot be passed by name"),
        (lambda: task(lambda x, /: x), TypeError, "cannot be passed by name"),
        (
            lambda: task(lambda x: x, rebind={"z": "a"}, name="t"),
            ValueError,
            "'t': rebind contains 'z'.*parameters: x",
        ),
        (lambda: task(lambda: 1, timeout=0, name="t"), ValueError, "timeout of task 't' must be a positive number"),
        (
            lambda: task(lambda: 1, priority=TEXT, name="t"),
            TypeError,
            r"task 't': priority must be an integer, got '5'",
        ),
        (lambda: task(lambda: 1, name=THREE), TypeError, r"name must be a string, got 3"),
        (lambda: task(lambda: 1, provides=THREE), TypeError, r"provides must be a name, or several names, got 3"),
        (lambda: task(lambda: 1, **ODD), TypeError, r"unknown setting retries=3; valid: name, provides"),
        (
            lambda: task(lambda: 1, provides=["a", ""]),
            ValueError,
            "provides: each name must be a non-empty string, got ''",
        ),
        (
            lambda: task(lambda: 1, requires=[THREE]),
            ValueError,
            "requires: each name must be a non-empty string, got 3",
        ),
        (lambda: Times(-1), ValueError, r"Times\(\): attempts must be an integer of 0 or more, got -1"),
        (lambda: Times(3, on="OSError"), TypeError, r"on must be a class of errors or a tuple of them, got 'OSError'"),  # type: ignore[arg-type]  # the wrong type
        (lambda: Times(3, backoff=PAIR), ValueError, r"backoff must be .*, got \(1, 2\)"),
        (lambda: Options(concurrency=0), ValueError, "concurrency must be 1 or more"),
        (lambda: linear("f", THREE), TypeError, "expected a task or a flow, got 3"),
        (lambda: linear("", named("a")), TypeError, r"linear\(\): the name must be a non-empty string, got ''"),
        (lambda: linear("f", retry=THREE), TypeError, "must have execute and on_failure"),
        (lambda: Flows("oracle://here"), ValueError, "does not support oracle:// URLs"),
    ],
)
def test_wrong_settings_are_refused_at_once(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_task_has_one_revert() -> None:
    done = task(lambda: 1, name="t").revert(lambda: None)
    with pytest.raises(ValueError, match="'t' already has a revert"):
        done.revert(lambda: None)


def test_callable_objects_become_tasks() -> None:
    class Build:
        def __call__(self, ref: str) -> str:
            return ref

    assert task(Build()).name == "Build"
    assert task(functools.partial(Build(), ref="x"), name="p").function.optional == {"ref"}


# -- flows ---------------------------------------------------------------------------------------------------------


def test_a_flow_refuses_an_item_given_twice() -> None:
    a = named("a")
    with pytest.raises(FlowError, match="<Task 'a'> occurs twice in linear 'f'"):
        linear("f", a, a)


def test_a_flow_refuses_two_steps_with_one_name() -> None:
    with pytest.raises(FlowError, match="flow 'f': the name 'a' occurs twice"):
        compile_flow(linear("f", named("a"), unordered("g", named("a"))))


def test_a_link_joins_two_items_of_a_flow_in_their_order() -> None:
    a, b, c = named("a"), named("b"), named("c")
    flow = linear("f", a, b)
    with pytest.raises(FlowError, match="<Task 'c'> is not an item of"):
        flow.when(a, c)
    with pytest.raises(FlowError, match="'a' does not directly follow 'b'"):
        flow.when(b, a)
    with pytest.raises(FlowError, match="has no order"):
        unordered("u", c, d := named("d")).when(c, d)
    with pytest.raises(ValueError, match=r"depth must be one of all, flow, neighbors, step, got 'far'"):
        flow.when(a, b, depth="far")


def test_a_decider_must_be_a_plain_function() -> None:
    async def later(done: dict[str, Any]) -> bool:
        return bool(done)

    a, b = named("a"), named("b")
    for decider in (later, THREE):
        with pytest.raises(TypeError, match="must be a synchronous function"):
            linear("f", a, b).when(a, b, decider)


def test_a_graph_is_ordered_by_its_names() -> None:
    d = named("d", asks="three")
    b = named("b", asks="one", gives="two")
    c = named("c", asks="two", gives="three")
    a = named("a", gives="one")
    assert order(graph("g", d, b, c, a)) == ["a", "b", "c", "d"]
    assert order(graph("g", linear("inner", named("x", asks="one"), b), a, c)) == ["a", "x", "b", "c"]


def test_a_cycle_is_refused_with_its_items() -> None:
    a, b, c = named("a", asks="z", gives="x"), named("b", asks="x", gives="y"), named("c", asks="y", gives="z")
    with pytest.raises(FlowError, match=r"has a cycle: (a → b → c → a|b → c → a → b|c → a → b → c)"):
        compile_flow(graph("g", a, b, c))


def test_two_providers_of_a_needed_name_are_ambiguous_in_a_graph() -> None:
    flow = graph("g", named("a", gives="x"), named("b", gives="x"), named("c", asks="x"))
    with pytest.raises(AmbiguousDependency, match="'c' requires 'x', which 'a', 'b' provide"):
        compile_flow(flow)


def test_two_providers_of_an_unused_name_are_allowed() -> None:
    compile_flow(graph("g", named("a", gives="x"), named("b", gives="x")))


async def test_missing_arguments_are_reported_before_anything_runs() -> None:
    ran: list[str] = []
    first = task(lambda: ran.append("first"), name="first")
    flow = linear("f", first, named("b", asks="x"), named("c", asks="y", gives="x"), retry=ParameterizedForEach())
    async with Flows() as flows:
        with pytest.raises(MissingDependencies) as caught:
            flows.start(flow, values=[1])
        text = str(caught.value)
        assert "flow 'f': task 'b' requires 'x'; task 'c' requires 'y'; values passed to the flow: values" in text
        assert "provide to later tasks: first, x" in text
        with pytest.raises(MissingDependencies, match="retry 'f_retry' requires 'values'; retry 'f_retry' "):
            flows.start(flow, x=1, y=2)
    assert ran == []


async def test_siblings_do_not_get_each_others_results() -> None:
    flow = unordered("f", named("a", gives="x"), named("b", asks="x"))
    async with Flows() as flows:
        with pytest.raises(MissingDependencies, match="task 'b' requires 'x'"):
            flows.start(flow)


async def test_missing_arguments_of_a_revert_are_reported() -> None:
    flow = linear("f", named("a").revert(lambda token: token))
    async with Flows() as flows:
        with pytest.raises(MissingDependencies, match=r"task 'a' \(in its revert\) requires 'token'"):
            flows.start(flow)


async def test_a_value_that_no_task_requires_is_refused() -> None:
    flow = linear("f", task(lambda size=1: size, name="a"))
    async with Flows() as flows:
        with pytest.raises(FlowError, match=r"'f' received a value 'sise' that no task requires.*: size"):
            flows.start(flow, sise=3)


async def test_flows_must_be_entered() -> None:
    with pytest.raises(FlowError, match="is not open; enter it"):
        Flows().start(linear("f"))


# -- lookup of arguments ---------------------------------------------------------------------------------------------


def test_the_nearest_provider_comes_first() -> None:
    flow = linear(
        "f",
        named("p1", gives="x"),
        unordered("u", named("p2", gives="x"), named("q2", gives="x")),
        linear("g", named("p3", gives="x"), named("me", asks="x"), named("p4", gives="x")),
        retry=Times(2, name="r", provides="x"),
    )
    plan = compile_flow(flow)
    me = next(node for node, step in plan.steps if step.name == "me")
    assert [node.step.name for node in plan.givers(me, "x") if node.step] == ["p3", "q2", "p2", "p1", "r"]


async def test_injected_values_precede_given_and_provided_ones() -> None:
    one = task(lambda: "provided", name="one", provides="x")
    two = task(lambda x, y: [x, y], name="two", inject={"y": "injected"})
    async with Flows() as flows:
        assert (await flows.start(linear("f", one, two), x="given"))["two"] == ["given", "injected"]
        assert (await flows.start(linear("f", one, two)))["two"] == ["provided", "injected"]


async def test_parts_of_a_result_have_names() -> None:
    pair = task(lambda: ("a", "b"), name="pair", provides=("first", "second", "third"))
    keyed = task(lambda: {"left": 1, "other": 2}, name="keyed", provides={"left", "right"})
    use = task(lambda first, left, right=None, third=None: [first, left, right, third], name="use")
    async with Flows() as flows:
        out = await flows.start(linear("f", pair, keyed, use))
    assert out == {"first": "a", "second": "b", "left": 1, "use": ["a", 1, None, None]}


async def test_a_task_that_changes_a_value_changes_its_own_copy() -> None:
    give = task(lambda: [1], name="give")
    spoil = task(lambda give, given: (give.append(2), given.clear())[0], name="spoil")
    take = task(lambda give, given: [give, given], name="take")
    async with Flows() as flows:
        assert (await flows.start(linear("f", give, spoil, take), given={"x": 1}))["take"] == [[1], {"x": 1}]


# -- retries and deciders ------------------------------------------------------------------------------------------


async def test_for_each_tries_each_value_in_turn() -> None:
    tried: list[int] = []

    @task
    async def use(x: int) -> int:
        tried.append(x)
        if x != 5:
            raise ValueError(x)
        return x

    async with Flows() as flows:
        assert (await flows.start(linear("f", use, retry=ForEach([3, 2, 3, 5, 7], provides="x"))))["use"] == 5
        assert tried == [3, 2, 3, 5]
        tried.clear()
        retry = ParameterizedForEach("ports", provides="x")
        with pytest.raises(ValueError, match="2"):
            await flows.start(linear("f", use, retry=retry), ports=[1, 2])
        with pytest.raises(FlowError, match="all 0 values have been tried"):
            await flows.start(linear("f", use, retry=retry), ports=[])


async def test_a_custom_retry_decides_and_is_reverted() -> None:
    class Patient:
        """Retries after a timeout, and provides the last error."""

        name, provides = "patient", "last"

        def __init__(self) -> None:
            self.undone: list[int] = []

        async def execute(self, history: list[Any], limit: int) -> str:
            return str(history[-1].failures["work"]) if history else f"none of {limit}"

        def on_failure(self, history: list[Any]) -> str:
            return "RETRY" if history[-1].failures["work"].type == "TimeoutError" else Verdict.REVERT

        def revert(self, history: list[Any]) -> None:
            self.undone.append(len(history))

    given: list[tuple[str, str]] = []

    @task
    async def work(last: str) -> None:
        given.append((last, current_task().key))
        raise TimeoutError("late") if len(given) < 2 else OSError("gone")

    retry = Patient()
    async with Flows() as flows:
        with pytest.raises(OSError, match="gone"):
            await flows.start(linear("f", work, retry=retry), id="one", limit=2)
    assert given == [("none of 2", "one/work/1"), ("TimeoutError: late", "one/work/1")]
    assert retry.undone == [2]


async def test_defer_reverts_reverts_outside_of_a_retry_too() -> None:
    undone: list[str] = []
    outer = task(lambda: 1, name="outer").revert(lambda: undone.append("outer"))
    inner = linear("inner", task(lambda: 1 / 0, name="inner"), retry=AlwaysRevert())
    for options, expected in ((Options(), []), (Options(defer_reverts=True), ["outer"])):
        async with Flows(options=options) as flows:
            run = flows.start(linear("f", outer, inner))
            with pytest.raises(ZeroDivisionError):
                await run
            assert (run.state, undone) == ("REVERTED", expected)


async def test_never_resolve_reverts_nothing() -> None:
    undone: list[str] = []
    first = task(lambda: 1, name="first").revert(lambda: undone.append("first"))
    async with Flows(options=Options(never_resolve=True)) as flows:
        run = flows.start(linear("f", first, task(lambda: 1 / 0, name="bad")))
        for again in (False, True):
            if again:
                await run.again()
            with pytest.raises(ZeroDivisionError):
                await run
            assert (run.state, undone) == ("FAILURE", [])


async def test_a_link_from_a_flow_gives_the_decider_all_its_results() -> None:
    inner = linear("inner", task(lambda: 1, name="a"), task(lambda: 2, name="b"))
    after = task(lambda: 3, name="after")
    seen: list[dict[str, Any]] = []
    flow = linear("f", inner, after).when(inner, after, seen.append)
    async with Flows() as flows:
        run = flows.start(flow)
        assert await run == {"a": 1, "b": 2}
    assert seen == [{"a": 1, "b": 2}]
    assert run.steps["after"].state == "IGNORE"
