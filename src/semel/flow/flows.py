"""`Flow` and `AsyncFlow`: run, recover, resolve.

Their methods drive the same plans; only `await` differs. Everything else is in `AnyFlow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import ClassVar, Generic, TypeVar, Unpack, cast

from semel.core.records import Key
from semel.errors import StoreMisconfigured
from semel.flow.course import Course
from semel.flow.definition import Definition, R
from semel.flow.executors import AsyncExecutor, Executor
from semel.flow.recovery import Recovered, recover_flows
from semel.flow.steps import In, Step, StepTurn
from semel.runtime.arguments import check_options
from semel.runtime.calls import value_of
from semel.runtime.host import AsyncHost, Host, async_host_of, host_of
from semel.runtime.options import Options
from semel.store import AsyncInspectable, AsyncResolvable, AsyncStore, Inspectable, Resolvable, Store

H = TypeVar("H", Host, AsyncHost)
M = TypeVar("M")
"""What `transaction` gives: a context manager, or an async one."""


class AnyFlow(Generic[In, R, H, M]):
    """How a flow is made: the same for threads and for tasks."""

    _asynchronous: ClassVar[bool]
    _host_of: ClassVar[staticmethod[[Store | AsyncStore | str], Host | AsyncHost]]
    _abilities: ClassVar[tuple[type, ...]]

    def __init__(
        self,
        name: str,
        steps: Iterable[Step[In]],
        *,
        store: Store | AsyncStore | str,
        input: type[In],
        returns: type[R],
        transaction: Callable[[], M] | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_options(options, Options, type(self))
        self._definition = Definition(name, steps, input, returns, options)
        self._definition.check_color(asynchronous=self._asynchronous, transaction=transaction)
        self._front: H = cast(H, self._host_of(store))
        self._transaction = transaction
        _check_able(self._front.store, *self._abilities)
        self._seal = self._definition.find_seal(self._front.store)

    def _course(self, key: Key) -> Course[In, R]:
        return Course(self._definition, key, self._front)


class Flow(AnyFlow[In, R, Host, AbstractContextManager[object]]):
    """An operation of several steps, for threads: each step is recorded, and a crash resumes at the next one.

    ```python
    from semel.flow import Flow, keyed

    def charge(op):
        return f"charge {op.step_key}"  # the payment service deduplicates by this key

    def ship(op):
        return f"shipped {op.input}"

    checkout = Flow(
        "checkout", [keyed("charge", charge), keyed("ship", ship)], store="sqlite:///semel.db", input=str, returns=str
    )
    assert checkout.run("order-1", "book") == "shipped book"
    ```

    Make one for each kind of operation, and keep its name. `input` is the type of what a flow is given, `returns` of
    what its last step returns, which is the flow's result. `final_errors` are answers: a step that raises one makes the
    flow go back, and every repeat gets the same error. `transaction` opens a transaction, gives its connection, and
    commits it at its end, for steps of kind `tx`.
    """

    _asynchronous = False
    _host_of = staticmethod(host_of)
    _abilities = (Resolvable, Inspectable)

    def run(self, key: str, input: In, *, tenant: str = "") -> R:
        """Run the flow of this key, resume it where it was cut off, or give the result that it had."""
        named = self._definition.key(key, tenant)
        return value_of(self._executor().run(self._course(named).begin(input)), named)

    def recover(self, limit: int = 100) -> Recovered:
        """Bring up to `limit` abandoned flows to their end. Any number of processes may do so at once."""
        plan = recover_flows(self._definition.scope, self._course, limit)
        return self._executor().run(plan)

    def resolve(self, key: str, step: str, answer: object, *, undo: bool = False, tenant: str = "") -> bool:
        """Say how an interrupted `unsafe` step of a flow ended, or its undo; then `run` or `recover` goes on.

        `answer` is what the step would have returned, a final error that it would have raised, or `NotDone()`: it may
        run again. False when the step is not interrupted (any more).
        """
        turn = StepTurn(self._definition.step(step), undo)
        return self._executor().run(self._course(self._definition.key(key, tenant)).resolve(turn, answer))

    def _executor(self) -> Executor:
        return Executor(self._front, self._definition, self._transaction, self._seal)


class AsyncFlow(AnyFlow[In, R, AsyncHost, AbstractAsyncContextManager[object]]):
    """A `Flow` for tasks: its steps are coroutine functions, `transaction` gives async context managers."""

    _asynchronous = True
    _host_of = staticmethod(async_host_of)
    _abilities = (AsyncResolvable, AsyncInspectable)

    async def run(self, key: str, input: In, *, tenant: str = "") -> R:
        """Run the flow of this key, resume it where it was cut off, or give the result that it had."""
        named = self._definition.key(key, tenant)
        return value_of(await self._executor().run(self._course(named).begin(input)), named)

    async def recover(self, limit: int = 100) -> Recovered:
        """Bring up to `limit` abandoned flows to their end. Any number of processes may do so at once."""
        plan = recover_flows(self._definition.scope, self._course, limit)
        return await self._executor().run(plan)

    async def resolve(self, key: str, step: str, answer: object, *, undo: bool = False, tenant: str = "") -> bool:
        """Say how an interrupted `unsafe` step of a flow ended, or its undo; see `Flow.resolve`."""
        turn = StepTurn(self._definition.step(step), undo)
        return await self._executor().run(self._course(self._definition.key(key, tenant)).resolve(turn, answer))

    def _executor(self) -> AsyncExecutor:
        return AsyncExecutor(self._front, self._definition, self._transaction, self._seal)


def _check_able(store: object, *abilities: type) -> None:
    for ability in abilities:
        if not isinstance(store, ability):
            name = ability.__name__.removeprefix("Async").lower()
            raise StoreMisconfigured(f"a flow needs a store that is {name}, and {type(store).__name__} is not")
