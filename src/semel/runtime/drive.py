"""Runs plans against a store. The drivers decide nothing: they perform effects, and hand back replies and failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from semel.core.effects import Effect, Plan
from semel.errors import StoreError

T = TypeVar("T")


def drive(plan: Plan[T], perform: Callable[[Effect[Any]], Any]) -> T:
    """Run a plan to its end. A store's failure is thrown into the plan; anything else ends it."""
    try:
        step: Callable[[Any], Effect[Any]] = plan.send
        given: Any = None
        while True:
            try:
                effect = step(given)
            except StopIteration as stop:
                value: T = stop.value
                return value
            try:
                step, given = plan.send, perform(effect)
            except StoreError as error:
                step, given = plan.throw, error
    finally:
        plan.close()


async def adrive(plan: Plan[T], perform: Callable[[Effect[Any]], Awaitable[Any]]) -> T:
    """The same with `await`, line by line: a plan cannot drive plans."""
    try:
        step: Callable[[Any], Effect[Any]] = plan.send
        given: Any = None
        while True:
            try:
                effect = step(given)
            except StopIteration as stop:
                value: T = stop.value
                return value
            try:
                step, given = plan.send, await perform(effect)
            except StoreError as error:
                step, given = plan.throw, error
    finally:
        plan.close()
