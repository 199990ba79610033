"""What may happen between two replays, one class each.

A mutation that `blind` marks is one that a replay cannot see; the mark is the words by which
docs/graphs/capture.md lists it. After every other one a replay equals the model, or raises an error
that names a tensor or module.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import ClassVar

import pytest
import torch
from tests.sweeps.captured_programs import ROWS, WIDTH, Kind, Program, Scaled, draw_model
from torch import nn

from bringup import graphs
from bringup.errors import CaptureError, UpdateError

__all__ = ["MUTATIONS", "Mutation"]

Undo = Callable[[], object]


class Mutation:
    """One change between replays.

    A function that captures itself sees what a graph of the user's does not: torch.compile guards
    on it.
    """

    blind: ClassVar[str | None] = None
    blind_when_frozen: ClassVar[str | None] = None
    kinds: ClassVar[tuple[Kind, ...]] = tuple(Kind)

    def applies(self, program: Program) -> bool:
        """Whether this program, which is of `kinds`, has what is changed."""
        return True

    def goes_unseen(self, program: Program) -> bool:
        """Whether a replay may differ from the model."""
        if program.kind is Kind.COMPILED:
            return False
        return (self.blind or (program.kind is Kind.FROZEN and self.blind_when_frozen)) is not None

    def apply(self, program: Program, random: Random) -> Undo | None:
        """Changes something; returns what puts it back, None for values written in place."""
        return None

    @contextmanager
    def around_replay(self, program: Program) -> Iterator[None]:
        """The modes in which the replay runs; of the model only where the function is compiled for
        them.
        """
        yield

    def after_replay(self) -> None:
        """Checks of its own, after a replay that went through."""


def _any_parameter(program: Program, random: Random) -> tuple[nn.Module, str]:
    found = [
        (module, key)
        for module in program.model.modules()
        for key, value in module._parameters.items()
        if value is not None
    ]
    return random.choice(found)


class Nothing(Mutation):
    """Replays follow each other."""


class WriteInput(Mutation):
    def apply(self, program: Program, random: Random) -> None:
        program.x.copy_(torch.randn_like(program.x))
        program.tokens.random_(0, 11)


class WriteWeight(Mutation):
    def apply(self, program: Program, random: Random) -> None:
        module, key = _any_parameter(program, random)
        module._parameters[key].mul_(random.uniform(0.5, 2))


class WriteWeightThroughData(Mutation):
    def apply(self, program: Program, random: Random) -> None:
        module, key = _any_parameter(program, random)
        module._parameters[key].data += 0.25


class WriteOneElementThroughData(Mutation):
    blind_when_frozen = "one element of a large frozen weight"

    def apply(self, program: Program, random: Random) -> Undo:
        module, key = _any_parameter(program, random)
        element = module._parameters[key].data.view(-1)[random.randrange(WIDTH)]
        former = element.clone()
        element.fill_(3)
        return lambda: element.copy_(former)


class WriteBuffer(Mutation):
    def applies(self, program: Program) -> bool:
        return any(buffer.is_floating_point() for buffer in program.model.buffers())

    def apply(self, program: Program, random: Random) -> None:
        buffers = [b for b in program.model.buffers() if b.is_floating_point()]
        random.choice(buffers).normal_()


class LoadStateDict(Mutation):
    def apply(self, program: Program, random: Random) -> None:
        state = {
            name: torch.randn_like(value) if value.is_floating_point() else value
            for name, value in program.model.state_dict().items()
        }
        program.model.load_state_dict(state)


class LoadStateDictAssigned(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        former = dict(program.model.state_dict(keep_vars=True))
        state = {name: value.clone() + 1 for name, value in program.model.state_dict().items()}
        state = {name: value.to(former[name].dtype) for name, value in state.items()}
        _clamp_positions(state)
        program.model.load_state_dict(state, assign=True)
        return lambda: program.model.load_state_dict(former, assign=True)


def _clamp_positions(state: dict[str, torch.Tensor]) -> None:
    for name, value in state.items():
        if name.endswith("position"):
            value.clamp_(0, 4)


class SwapData(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        module, key = _any_parameter(program, random)
        parameter = module._parameters[key]
        former = parameter.data
        parameter.data = torch.randn_like(former)

        def undo() -> None:
            parameter.data = former

        return undo


class TransposeData(Mutation):
    """The same memory, read in another order."""

    def applies(self, program: Program) -> bool:
        return any(isinstance(module, nn.Linear) for module in program.model.modules())

    def apply(self, program: Program, random: Random) -> Undo:
        linear = random.choice([m for m in program.model.modules() if isinstance(m, nn.Linear)])
        former = linear.weight.data
        linear.weight.data = former.t()

        def undo() -> None:
            linear.weight.data = former

        return undo


class SetBuffer(Mutation):
    def applies(self, program: Program) -> bool:
        return bool(program.modules_with("shift"))

    def apply(self, program: Program, random: Random) -> Undo:
        _, module = random.choice(program.modules_with("shift"))
        former = module.shift.detach().view(WIDTH)
        module.shift.set_(torch.randn(WIDTH))
        return lambda: module.shift.set_(former)


class ReplaceParameter(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        module, key = _any_parameter(program, random)
        former = module._parameters[key]
        setattr(module, key, nn.Parameter(torch.randn_like(former)))
        return lambda: setattr(module, key, former)


class RewrapParameter(Mutation):
    """Another parameter over the same memory."""

    def apply(self, program: Program, random: Random) -> None:
        module, key = _any_parameter(program, random)
        setattr(module, key, nn.Parameter(module._parameters[key].detach()))


class ReplaceAttribute(Mutation):
    def applies(self, program: Program) -> bool:
        return bool(program.modules_with("mask"))

    def apply(self, program: Program, random: Random) -> Undo:
        _, module = random.choice(program.modules_with("mask"))
        former = module.mask
        module.mask = 1 - former
        return lambda: setattr(module, "mask", former)


class ReplaceModule(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        blocks = program.model.blocks
        index = random.randrange(len(blocks))
        former = blocks[index]
        blocks[index] = random.choice([Scaled, lambda: nn.Linear(WIDTH, WIDTH)])()
        return lambda: blocks.__setitem__(index, former)


class ReplaceEmbedding(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        former = program.model.embed
        program.model.embed = nn.Embedding(11, WIDTH)
        return lambda: setattr(program.model, "embed", former)


class DropBias(Mutation):
    def applies(self, program: Program) -> bool:
        return bool(program.modules_with("bias"))

    def apply(self, program: Program, random: Random) -> Undo:
        _, module = random.choice(program.modules_with("bias"))
        former, module.bias = module.bias, None
        return lambda: setattr(module, "bias", former)


class GiveBias(Mutation):
    def applies(self, program: Program) -> bool:
        return any(isinstance(m, nn.Linear) and m.bias is None for m in program.model.modules())

    def apply(self, program: Program, random: Random) -> Undo:
        linear = random.choice(
            [m for m in program.model.modules() if isinstance(m, nn.Linear) and m.bias is None]
        )
        linear.bias = nn.Parameter(torch.randn(WIDTH))
        return lambda: setattr(linear, "bias", None)


class TrainingMode(Mutation):
    def applies(self, program: Program) -> bool:
        return any(isinstance(module, nn.Dropout) for module in program.model.modules())

    def apply(self, program: Program, random: Random) -> Undo:
        program.model.train()
        return lambda: program.model.eval()


class HalveModel(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        former = {name: value.data for name, value in program.model.named_parameters()}
        program.model.embed.half()

        def undo() -> None:
            for name, value in program.model.named_parameters():
                value.data = former[name]

        return undo


class ResizeInput(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        rows = program.x.shape[0]
        program.x.resize_(rows + random.choice([-1, 300]), WIDTH)
        program.x.zero_()
        # memory that moved stays where it is
        return lambda: program.x.resize_(rows, WIDTH)


class SwapInputData(Mutation):
    def apply(self, program: Program, random: Random) -> Undo:
        former = program.x.data
        program.x.data = torch.randn_like(former)

        def undo() -> None:
            program.x.data = former

        return undo


class FreeMemory(Mutation):
    """What nobody holds is freed and its memory taken by others."""

    def apply(self, program: Program, random: Random) -> None:
        gc.collect()
        self._taken = [torch.full((ROWS, WIDTH), 7.0) for _ in range(20)]


class AnotherModel(Mutation):
    """Another model runs in between."""

    def apply(self, program: Program, random: Random) -> None:
        draw_model(random)(program.tokens, torch.randn_like(program.x))


class AutocastOn(Mutation):
    @contextmanager
    def around_replay(self, program: Program) -> Iterator[None]:
        with torch.autocast(program.device.type, dtype=torch.bfloat16):
            yield


class GradientsOn(Mutation):
    kinds = (Kind.MODEL, Kind.FROZEN)  # compiled for training it cannot be captured

    @contextmanager
    def around_replay(self, program: Program) -> Iterator[None]:
        with torch.enable_grad():
            yield


class InferenceModeOn(Mutation):
    @contextmanager
    def around_replay(self, program: Program) -> Iterator[None]:
        with torch.inference_mode():
            yield


class BackwardOverOutput(Mutation):
    """A loss over the output of the last replay; the next one writes what autograd saved."""

    kinds = (Kind.MODEL, Kind.FROZEN)  # the others give copies

    def apply(self, program: Program, random: Random) -> None:
        assert program.output is not None
        with torch.enable_grad():
            gain = torch.ones(WIDTH, requires_grad=True)
            self._loss = (program.output * gain).sum()

    def after_replay(self) -> None:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            self._loss.backward()


class Reseed(Mutation):
    def apply(self, program: Program, random: Random) -> None:
        torch.manual_seed(random.randrange(1 << 30))


class ReseedOwnGenerator(Mutation):
    def applies(self, program: Program) -> bool:
        return bool(program.modules_with("generator"))

    def apply(self, program: Program, random: Random) -> None:
        _, module = random.choice(program.modules_with("generator"))
        module.generator.manual_seed(random.randrange(1 << 30))


class SetRandomState(Mutation):
    def apply(self, program: Program, random: Random) -> None:
        other = torch.Generator(program.device).manual_seed(random.randrange(9))
        program.generators()[0].set_state(other.get_state())


class DrawElsewhere(Mutation):
    """Other code draws from the same generators."""

    def apply(self, program: Program, random: Random) -> None:
        for generator in program.generators():
            torch.rand(random.randrange(9), generator=generator)


class ReplaceGenerator(Mutation):
    def applies(self, program: Program) -> bool:
        return bool(program.modules_with("generator"))

    def apply(self, program: Program, random: Random) -> Undo:
        _, module = random.choice(program.modules_with("generator"))
        former = module.generator
        module.generator = torch.Generator(program.device).manual_seed(8)
        return lambda: setattr(module, "generator", former)


class RebindInput(Mutation):
    blind = "a variable that is bound to another tensor"

    def apply(self, program: Program, random: Random) -> Undo:
        former = program.x
        program.x = torch.randn_like(former)
        return lambda: setattr(program, "x", former)


class ReplaceInList(Mutation):
    blind = "a list, dictionary or object that holds another tensor"

    def apply(self, program: Program, random: Random) -> Undo:
        former = program.extras[0]
        program.extras[0] = torch.randn_like(former)
        return lambda: program.extras.__setitem__(0, former)


class PythonNumber(Mutation):
    blind = "a Python number, string or flag"

    def applies(self, program: Program) -> bool:
        return bool(program.modules_with("power"))

    def apply(self, program: Program, random: Random) -> Undo:
        _, module = random.choice(program.modules_with("power"))
        module.power += 1
        return lambda: setattr(module, "power", 2.0)


class ForwardHook(Mutation):
    blind = "code: a hook, another `forward`"
    kinds = (Kind.MODEL, Kind.FROZEN)  # torch.compile does not see hooks either

    def apply(self, program: Program, random: Random) -> Undo:
        return program.model.register_forward_hook(lambda *_: _[-1] + 1).remove


def _equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(
        torch.allclose(a.cpu(), b.cpu(), rtol=0, atol=0, equal_nan=True)
        for a, b in zip(left, right, strict=True)
    )


def _new_inputs(random: Random) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([random.randrange(11) for _ in range(ROWS)]), torch.randn(ROWS, WIDTH)


class ReplayInAnotherThread(Mutation):
    kinds = (Kind.MODEL, Kind.FROZEN)

    def apply(self, program: Program, random: Random) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(program.graph.replay).result()


class RunInAnotherThread(Mutation):
    def apply(self, program: Program, random: Random) -> None:
        inputs = _new_inputs(random)
        with ThreadPoolExecutor(1) as pool:
            got = program.left_by(lambda: pool.submit(program.replay_with, *inputs).result())
        assert _equal(got, program.left_by(lambda: program.expected(*inputs)))


class RunsInSeveralThreads(Mutation):
    def applies(self, program: Program) -> bool:
        # results do not depend on the order of runs
        return not program.state() and not program.modules_with("generator")

    def apply(self, program: Program, random: Random) -> None:
        batches = [_new_inputs(random) for _ in range(9)]
        with ThreadPoolExecutor(3) as pool:
            results = list(pool.map(lambda inputs: program.replay_with(*inputs), batches))
        assert _equal(results, [program.expected(*inputs) for inputs in batches])


class AutocastAroundCapture(Mutation):
    """A second graph, captured where autocast has cast the weights before."""

    kinds = (Kind.MODEL, Kind.FROZEN)

    def apply(self, program: Program, random: Random) -> None:
        graph = graphs.CapturedGraph()
        autocast = torch.autocast(program.device.type, dtype=torch.bfloat16)
        with autocast:
            try:
                program.left_by(program.run)
            except RuntimeError:  # a cache of float32 takes no bfloat16
                return
            with graphs.capture(graph, inputs=(program.tokens, program.x)):
                graph.outputs = program.run()
        module, key = _any_parameter(program, random)
        module._parameters[key].mul_(1.5)
        with autocast:
            try:
                got = program.left_by(lambda: graph.run(program.tokens, program.x))
            except CaptureError as error:
                if program.kind is Kind.FROZEN and "was frozen" in str(error):
                    return
                raise
        with torch.autocast(program.device.type, dtype=torch.bfloat16, cache_enabled=False):
            assert _equal(got, program.left_by(program.expected))


class AnotherGraphOfThePool(Mutation):
    """Graphs of other models share the program's memory: they replay in turn, and their results are
    what they were, or raise.
    """

    kinds = (Kind.MODEL, Kind.FROZEN)

    def apply(self, program: Program, random: Random) -> None:
        if len(program.neighbours) < 3:
            model, x = draw_model(random), torch.randn(random.choice([1, ROWS, 9]), WIDTH)
            tokens = torch.zeros(len(x), dtype=torch.int64)
            graph = graphs.CapturedGraph()
            with graphs.capture(graph, pool=program.pool):
                y = model(tokens, x)
            program.neighbours.append((graph, y, model))
        graph, y, _ = random.choice(program.neighbours)
        graph.replay()
        kept = y.clone()
        program.left_by(program.replay)
        now = _content(y)
        assert now is None or _equal([now], [kept])
        for other, result, _ in program.neighbours if now is None else ():
            other.replay()
            assert _content(result) is not None


def _content(result: torch.Tensor) -> torch.Tensor | None:
    """None where another graph has overwritten it."""
    try:
        return result.clone()
    except RuntimeError as error:
        if "has overwritten it" not in str(error):
            raise
        return None


class UpdateSlot(Mutation):
    kinds = (Kind.MODEL, Kind.FROZEN)

    def applies(self, program: Program) -> bool:
        return bool(program.modules_with("beta"))

    def apply(self, program: Program, random: Random) -> Undo:
        modules = [module for _, module in program.modules_with("beta")]
        slots = [name for name in program.graph.slots if name.endswith(".beta")]
        slot, module = random.choice(list(zip(slots, modules, strict=True)))
        former, value = module.beta, random.choice([0.5, 2.0, 3.0])
        for wrong in ("1", None, torch.float32, [1.0]):
            with pytest.raises(UpdateError, match=r"takes a (float|number)"):
                program.graph.update({slot: wrong})
        assert program.graph.slots[slot].value == former

        def write(beta: float) -> None:
            module.beta = beta
            program.graph.update({slot: beta})

        write(value)
        return lambda: write(former)


MUTATIONS: tuple[type[Mutation], ...] = tuple(Mutation.__subclasses__())
