"""Frames that Dynamo leaves to Python although they belong to a compilation that is watched.

Dynamo gives a frame up in one place, behind all the reasons it has: a recompile limit, an error that is suppressed, a
construct that it cannot trace, tracing that is switched off. What was compiled before for other inputs says nothing
about this run. A stance of ``torch.compiler.set_stance`` and a setting of the compilation decide for all its frames.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import re
import sys
import types
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
import torch._dynamo.config
import torch._dynamo.eval_frame
from torch._dynamo import trace_rules
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._dynamo.code_context import code_context
from torch._dynamo.convert_frame import CatchErrorsWrapper, ConvertFrameAssert, has_tensor_in_frame, input_codes
from torch._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

from verifycompile.torch_interface.dynamo.frames import Frame
from verifycompile.torch_interface.dynamo.handed_over import keep_handed_over
from verifycompile.torch_interface.dynamo.own_compilation import own_compilation
from verifycompile.torch_interface.dynamo.returned import held_sum
from verifycompile.torch_interface.dynamo.whole_program import AROUND_TORCH, is_function_given
from verifycompile.torch_interface.source_lines.source import is_user_file
from verifycompile.torch_interface.source_lines.whose_code import is_installed


@dataclasses.dataclass(frozen=True)
class EagerFrame:
    """A frame that is about to run as Python code. ``was_accepted``: it was verified before, for other inputs.

    ``qualified``: the function's name with that of its class. ``is_whole``: it is what was given to ``torch.compile``.
    ``has_no_graph``: it computes nothing with tensors. ``breaks_at_once``: before it computes anything; what follows is
    compiled. ``held_sum``: a variable with a sum of which a verified graph left a part on each rank; ``is_unread``: one
    that may hold it.
    """

    function: str
    qualified: str
    file: str
    line: int
    reason: str
    was_accepted: bool
    is_whole: bool = False
    has_no_graph: bool = False
    breaks_at_once: bool = False
    held_sum: str = ""
    is_unread: bool = False


@dataclasses.dataclass(frozen=True)
class Watch:
    """``applies``: to which compilers. ``only_warns``: for which of them nothing is to be raised.

    ``seen``: called with a compiler and a frame that it would compile, before the frame runs.
    ``switched_off``: called with a compiler and the reason for which none of its frames runs as it was verified.
    """

    applies: Callable[[Any], bool]
    only_warns: Callable[[Any], bool]
    seen: Callable[[Any, EagerFrame], None]
    switched_off: Callable[[Any, str], None]
    takes_forced_backends: bool = False
    """Whether backends that ``torch.compiler.set_stance`` forces are checked like those that the user chose."""
    only_after_acceptance: bool = False
    """Whether ``switched_off`` concerns only compilers that had a frame accepted."""


@dataclasses.dataclass
class Uncompiled:
    """``any``: whether a compiled program was called, which ran as Python runs it."""

    any: bool = False


_watches: list[Watch] = []
_uncompiled: list[Uncompiled] = []
"""Of the runs that this package itself asks for at the moment: no watch is told of them."""
_failure: contextvars.ContextVar[str] = contextvars.ContextVar("failure", default="")
"""What the error says that ended a compilation. The error itself holds the program's frames, and is the caller's."""
_breaks_at_once: contextvars.ContextVar[bool] = contextvars.ContextVar("breaks_at_once", default=False)
"""Whether the frame that was compiled last has a graph break before all that it computes: no backend was called."""
_compilers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Compilers that had a frame accepted, by identity."""
_marked: list[weakref.ref[types.CodeType]] = []
"""Code that Dynamo was told, by compilations that nothing watches, to leave to Python whoever runs it."""
_ACCEPTED = "verifycompile.accepted"


def watch_eager_frames(watch: Watch) -> None:
    """From now on, tell ``watch`` of frames that run eagerly."""
    _install()
    _watches.append(watch)


@contextlib.contextmanager
def uncompiled() -> Generator[Uncompiled]:
    """While entered, compiled programs run as Python runs them, in every thread; no watch is told."""
    _install()
    found = Uncompiled()
    _uncompiled.append(found)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield found
    finally:
        _uncompiled.remove(found)


def accept(frame: Frame, compiler: Any) -> None:
    """``frame``, compiled by ``compiler``, was verified: from now on it is not to run in another way."""
    owners: weakref.WeakSet[Any] = code_context.get_context(frame.code).setdefault(_ACCEPTED, weakref.WeakSet())
    owners.add(_owner(frame.code, frame.locals))
    held = _before_buckets(compiler)
    _compilers[id(held)] = held


def _owner(code: types.CodeType, values: Mapping[str, Any]) -> Any:
    """Whose frame it is: torch's own code (``Module._call_impl``) is shared by all modules."""
    name = "fn" if code is AROUND_TORCH else "self"
    return code if is_user_file(code.co_filename) else values.get(name, code)


def _is_accepted(frame: Any) -> bool:
    if not code_context.has_context(frame.f_code):
        return False
    owners: Any = code_context.get_context(frame.f_code).get(_ACCEPTED, ())
    return _owner(frame.f_code, frame.f_locals) in owners


def _before_buckets(compiler: Any) -> Any:
    """The compiler that Dynamo would call without ``DistributedDataParallel``."""
    cutting = getattr(compiler, "__self__", None)
    return cutting.backend_compile_fn if isinstance(cutting, DDPOptimizer) else compiler


def _watch_over(compiler: Any) -> Watch | None:
    return next((watch for watch in _watches if watch.applies(compiler)), None)


def _compiler_of(callback: Any) -> Any:
    """The compiler function behind Dynamo's callback for frames; None for what is no such callback."""
    converter = getattr(callback, "_torchdynamo_orig_backend", None)
    return getattr(converter, "_torchdynamo_orig_backend", None)


@functools.cache
def _install() -> None:
    convert = ConvertFrameAssert.__call__
    handle_skip = CatchErrorsWrapper._handle_skip
    from_stance = torch._dynamo.eval_frame._callback_from_stance
    compile_subgraph = OutputGraph.compile_subgraph

    def compile_subgraph_and_remember(self: OutputGraph, tx: Any, reason: Any, stack_pops: int = 0) -> Any:
        _breaks_at_once.set(reason.graph_break and self.count_calls() == 0)
        _tell_of_break(self.compiler_fn, tx, reason, stack_pops)
        return compile_subgraph(self, tx, reason, stack_pops)

    def convert_and_remember(self: Any, *args: Any, **kwargs: Any) -> ConvertFrameReturn:
        _failure.set("")
        _breaks_at_once.set(False)
        try:
            return convert(self, *args, **kwargs)
        except Exception as error:
            _failure.set(str(error).strip() or type(error).__name__)
            raise

    def handle_skip_and_tell(self: Any, result: ConvertFrameReturn, frame: Any) -> ConvertFrameReturn:
        failure = _failure.get()
        _failure.set("")
        result = handle_skip(self, result, frame)
        compiler = _compiler_of(self)
        watch = _watch_over(compiler)
        if result.guarded_code is not None:
            # Behind a break of a wrapper of torch's own, as of DDP, a module is compiled whole.
            breaks = _breaks_at_once.get() and frame.f_code is not AROUND_TORCH
            if watch is not None and breaks and is_function_given(frame.f_code):
                watch.seen(compiler, _eager_frame(frame, _AT_ONCE, is_whole=True, breaks_at_once=True))
            return result
        if watch is not None:
            _tell(watch, compiler, frame, result.skip_reason or "", failure)
        _confine(result, frame, watch)
        return result

    def from_stance_of_watched(callback: Any) -> Any:
        _tell_of_disabled(callback, sys._getframe(1))
        if _uncompiled:
            _uncompiled[-1].any |= _compiler_of(callback) is not None
            return from_stance(callback)
        if (own := own_compilation()) is not None:
            return own.callback(from_stance(callback))
        if callback is False:
            return _only_verified(from_stance(callback))
        compiler = _compiler_of(callback)
        watch = None if compiler is None else _watch_over(compiler)
        if watch is None:
            return from_stance(callback)
        _take_marks_away()
        return _callback_under_watch(watch, callback, compiler, from_stance(callback))

    _keep_marked(*filter(None, (reference() for reference in input_codes.seen)))
    ConvertFrameAssert.__call__ = convert_and_remember
    CatchErrorsWrapper._handle_skip = handle_skip_and_tell
    OutputGraph.compile_subgraph = compile_subgraph_and_remember
    torch._dynamo.eval_frame._callback_from_stance = from_stance_of_watched


def _confine(result: ConvertFrameReturn, frame: Any, watch: Watch | None) -> None:
    """Let what Dynamo decides of a frame that it leaves to Python decide of no other frame of a watched program."""
    if watch is not None:
        # What the frame calls is asked for as ever, also where Dynamo leaves that alone past a recompile limit.
        result.frame_exec_strategy = FrameExecStrategy(result.frame_exec_strategy.cur_action, FrameAction.DEFAULT)
    # A mark on the code, by this compilation or another one, would let later frames run without being asked.
    if _is_accepted(frame) or (_is_below_watched(watch) and _is_of_program(frame.f_code)):
        result.apply_to_code = False
    elif watch is None and result.apply_to_code:
        _keep_marked(frame.f_code)


def _keep_marked(*codes: types.CodeType) -> None:
    _marked.extend(weakref.ref(code) for code in codes if not trace_rules.check(code))


def _take_marks_away() -> None:
    """Before a watched program runs: what other compilations made of its code says nothing about it."""
    while _marked:
        if (code := _marked.pop()()) is not None:
            set_code_exec_strategy(code, FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT))


def _is_below_watched(watch: Watch | None) -> bool:
    """Whether a watched program runs: that of ``watch``, or one that calls what is compiled by something else."""
    frame: types.FrameType | None = sys._getframe(1)
    while watch is None and frame is not None:
        if frame.f_code.co_name == "compile_wrapper":
            watch = _watch_over(_compiler_of(frame.f_locals.get("prior")))
        frame = frame.f_back
    return watch is not None


def _is_of_program(code: types.CodeType) -> bool:
    return is_user_file(code.co_filename) or is_function_given(code)


def _callback_under_watch(watch: Watch, callback: Any, compiler: Any, in_stance: Any) -> Any:
    concerned = not watch.only_after_acceptance or id(_before_buckets(compiler)) in _compilers
    reason = _reason_to_switch_off(watch, callback) if concerned else ""
    if reason and watch.only_warns(compiler):
        watch.switched_off(compiler, reason)
        return in_stance
    if not reason and torch._dynamo.eval_frame._stance.stance != "eager_on_recompile":
        return in_stance

    def leave_to_python(frame: Any, *_: Any) -> ConvertFrameReturn:
        if reason:
            watch.switched_off(compiler, reason)
        elif not trace_rules.check(frame.f_code):
            _tell(watch, compiler, frame, _ON_RECOMPILE)
        return ConvertFrameReturn(apply_to_code=False)

    # A callback with another backend than that of the compiled code is called in its place; guards are not at stake.
    torch._dynamo.eval_frame.set_skip_guard_eval_unsafe(False)
    if not reason:
        leave_to_python._torchdynamo_orig_backend = callback  # type: ignore[attr-defined]  # what is compiled may run
    return leave_to_python


def _only_verified(callback: Any) -> Any:
    """Instead of ``False``, with which `torch._dynamo.run` leaves to Python what is not compiled yet."""
    *_, compiler = [None, *_compilers.values()]  # Dynamo takes the code of one compiler: the latest
    watch = None if compiler is None else _watch_over(compiler)
    if watch is None or callback is not False:
        return callback

    def leave_to_python(frame: Any, *_: Any) -> ConvertFrameReturn:
        if _is_accepted(frame):
            _tell(watch, compiler, frame, _RUN_ONLY)
        return ConvertFrameReturn(apply_to_code=False)

    leave_to_python._torchdynamo_orig_backend = compiler  # type: ignore[attr-defined]  # what is compiled may run
    return leave_to_python


_RUN_ONLY = "`torch._dynamo.run` compiles nothing, and nothing is compiled for these inputs"
_ON_RECOMPILE = "the stance of torch.compile is `eager_on_recompile`, and nothing is compiled for these inputs"
_EAGER_STANCES = ("force_eager", "eager_then_compile")


def _reason_to_switch_off(watch: Watch, callback: Any) -> str:
    """Why what runs now would not be what was verified, whatever the frame; empty where it is."""
    stance = torch._dynamo.eval_frame._stance
    not_ours = not watch.takes_forced_backends
    if stance.stance in _EAGER_STANCES or (stance.stance == "aot_eager_then_compile" and not_ours):
        return f"the stance of torch.compile is `{stance.stance}`"
    if stance.backend is not None and not_ours:
        return "the stance of torch.compile forces another backend"
    if stance.skip_guard_eval_unsafe:
        return "the stance of torch.compile leaves guards out (`skip_guard_eval_unsafe`)"
    if callback.hooks.guard_filter_fn is not None:
        return "the option `guard_filter_fn` leaves guards out"
    if torch._dynamo.config.caching_precompile:
        return "`torch._dynamo.config.caching_precompile` takes compiled code from files"
    return ""


def _tell(watch: Watch, compiler: Any, frame: Any, reason: str, failure: str = "") -> None:
    accepted, is_whole = _is_accepted(frame), is_function_given(frame.f_code)
    has_no_graph = is_whole and _NOTHING_TRACED in reason
    code: types.CodeType = frame.f_code
    is_own = is_user_file(code.co_filename) and not is_installed(code.co_filename)
    if _NO_TENSORS in reason and is_own and held_sum(frame.f_locals.items):
        watch.seen(compiler, _eager_frame(frame, reason))
        return
    if any(text in reason for text in _HARMLESS) and not has_no_graph:
        return
    is_generated = code.co_filename == "<string>" and code.co_name.startswith("__")  # as dataclasses do
    if not accepted and (is_generated or not _is_of_program(code) or not has_tensor_in_frame(frame)):
        return
    watch.seen(compiler, _eager_frame(frame, _text(reason, failure), is_whole=is_whole, has_no_graph=has_no_graph))


def _eager_frame(frame: Any, reason: str, **known: bool) -> EagerFrame:
    accepted, held = _is_accepted(frame), held_sum(frame.f_locals.items)
    place = _place(frame.f_code)
    if frame.f_code is AROUND_TORCH:
        given = frame.f_locals["fn"]
        place = (getattr(given, "__name__", type(given).__name__), type(given).__qualname__, *place[2:])
    return EagerFrame(*place, reason, accepted, **known, held_sum=held)


def _place(code: types.CodeType) -> tuple[str, str, str, int]:
    return code.co_name, code.co_qualname, code.co_filename, code.co_firstlineno


def _tell_of_break(compiler: Any, translator: Any, reason: Any, stack_pops: int) -> None:
    """Tell of a function of the user's that leaves a part of a sum that came in to code that torch never looks at."""
    watch = None if own_compilation() is not None or _uncompiled else _watch_over(compiler)
    if watch is None:
        return
    handed = keep_handed_over(translator, reason, stack_pops)
    if handed.held_sum:
        function, qualified, file, _ = _place(translator.f_code)
        told = EagerFrame(function, qualified, file, handed.line, handed.reason, was_accepted=False)
        watch.seen(compiler, dataclasses.replace(told, held_sum=handed.held_sum, is_unread=handed.is_unread))


def _tell_of_disabled(callback: Any, caller: types.FrameType) -> None:
    """Tell of what compiled code of the user's calls uncompiled, where it is given, or finds, a part of a sum.

    ``caller``: where there is no callback, torch's wrapper around what is disabled, which has set that of the
    compilation aside.
    """
    if callback is not None or _uncompiled or own_compilation() is not None:
        return
    values = caller.f_locals
    function, compiler, around = values.get("fn"), _compiler_of(values.get("prior")), caller.f_back
    watch = None if compiler is None else _watch_over(compiler)
    if watch is None or around is None:
        return
    code = getattr(function, "__code__", None)
    if code is not None and is_function_given(code):
        watch.seen(compiler, EagerFrame(*_place(code), _DISABLED, was_accepted=False, is_whole=True))
    if isinstance(function, types.FunctionType) and is_user_file(function.__code__.co_filename):
        named = dict(zip(function.__code__.co_varnames, values["args"], strict=False))
        given = {**named, **values["kwargs"], function.__name__: function}
        place = _place(function.__code__)
    elif code is None and is_user_file(around.f_code.co_filename):
        name = str(getattr(function, "__name__", function))
        given = {**{f"args.{position}": value for position, value in enumerate(values["args"])}, **values["kwargs"]}
        place = name, name, around.f_code.co_filename, around.f_lineno
    else:
        return
    if held := held_sum(given.items):
        watch.seen(compiler, EagerFrame(*place, _DISABLED, was_accepted=False, held_sum=held))


_DISABLED = "torch.compiler.disable keeps it from being compiled"
_AT_ONCE = "a graph break comes before all that it computes"
_NOTHING_TRACED = "No ops traced for the FX graph"
_NO_TENSORS = "no tensor-related objects found in frame"
_HARMLESS = (
    "frame is already Dynamo-generated code",
    "frame has already started executing",
    "frame is in the Dynamo skipfiles list",
    _NO_TENSORS,
    "frame is a namedtuple",
    "frame was generated by exec()",
    "__setattr__ frames are not compiled",
    _NOTHING_TRACED,
)
"""Reasons for which Dynamo leaves frames alone that hold no tensor operation of the program's own."""


_SUPPRESSED = "an error was suppressed during compilation"
"""What Dynamo says of every frame that it gives up after an error."""


_DETAILS = re.compile(r"Dynamo developers have intentionally marked that | in file `[^`]*`| with argument types .*$")
"""What Dynamo adds for its developers, or names by a path of this machine."""


def _text(reason: str, failure: str) -> str:
    """What Dynamo says is in the way, in a line.

    Of the frame in whose compilation this package was imported the error is not known.
    """
    if not failure and reason == _SUPPRESSED:
        return "torch.compile gave it up after a graph break or an error, which TORCH_LOGS=graph_breaks,dynamo shows"
    lines = [line.strip() for line in (failure or reason).splitlines() if line.strip()]
    said = lines[0] if lines else "torch.compile gives no reason"
    marked = next((line for line in lines if line.startswith("Explanation:")), "")
    explanation = _DETAILS.sub("", marked.removeprefix("Explanation:").partition(". ")[0]).strip()
    if said.endswith(":") and len(lines) > 1:
        said, explanation = said.rstrip(":"), lines[1]
    return f"{said}: {explanation}".rstrip(".") if explanation else said.rstrip(".")
