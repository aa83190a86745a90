"""Functions that time a function and stay of its kind: plain, coroutine, generator, asynchronous generator."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from workspan import config
from workspan.estimate import recorder as recorders
from workspan.estimate.keys import STEPS

if TYPE_CHECKING:
    from workspan.estimate.steps import Declaration

__all__ = ["STEPS", "wrap"]


def wrap(function: Any, declaration: Declaration) -> Any:
    """Return *function*, timed as the step *declaration*."""
    if inspect.iscoroutinefunction(function):
        wrapper = _coroutine(function, declaration)
    elif inspect.isasyncgenfunction(function):
        wrapper = _async_generator(function, declaration)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(function, declaration)
    else:
        wrapper = _function(function, declaration)
    setattr(wrapper, STEPS, (*getattr(function, STEPS, ()), declaration.key))
    return wrapper


def _function(function: Any, declaration: Declaration) -> Any:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        recorder = recorders._default or recorders.default_recorder()
        if not (recorder._enabled if recorder.generation == config.generation else recorder.enabled):
            return function(*args, **kwargs)
        activation = recorder.begin(declaration, args, kwargs)
        try:
            result = function(*args, **kwargs) if kwargs else function(*args)  # a dict less
        except BaseException as error:
            recorder.end(activation, error)
            raise
        recorder.end(activation)
        return result

    return timed


def _coroutine(function: Any, declaration: Declaration) -> Any:
    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> Any:
        recorder = recorders.default_recorder()
        if not recorder.enabled:
            return await function(*args, **kwargs)
        activation = recorder.begin(declaration, args, kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            recorder.end(activation, error)
            raise
        recorder.end(activation)
        return result

    return timed


def _generator(function: Any, declaration: Declaration) -> Any:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        recorder = recorders.default_recorder()
        if not recorder.enabled:
            return (yield from inner)
        activation = recorder.begin(declaration, args, kwargs)
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is None:
                    item = inner.send(sent)
                else:
                    activation.discard()
                    item = inner.throw(thrown)
            except StopIteration as stop:
                recorder.end(activation)
                return stop.value
            except BaseException as error:
                recorder.end(activation, error)
                raise
            activation.pause()
            sent, thrown = None, None
            try:
                sent = yield item
            except GeneratorExit as error:
                try:
                    inner.close()
                finally:
                    recorder.end(activation, error)
                raise
            except BaseException as error:
                thrown = error
            activation.resume()

    return timed


def _async_generator(function: Any, declaration: Declaration) -> Any:
    @functools.wraps(function)
    async def timed(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        recorder = recorders.default_recorder()
        activation = recorder.begin(declaration, args, kwargs) if recorder.enabled else None
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                if thrown is None:
                    item = await inner.asend(sent)
                else:
                    if activation is not None:
                        activation.discard()
                    item = await inner.athrow(thrown)
            except StopAsyncIteration:
                if activation is not None:
                    recorder.end(activation)
                return
            except BaseException as error:
                if activation is not None:
                    recorder.end(activation, error)
                raise
            if activation is not None:
                activation.pause()
            sent, thrown = None, None
            try:
                sent = yield item
            except GeneratorExit as error:
                try:
                    await inner.aclose()
                finally:
                    if activation is not None:
                        recorder.end(activation, error)
                raise
            except BaseException as error:
                thrown = error
            if activation is not None:
                activation.resume()

    return timed
