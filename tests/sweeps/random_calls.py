"""How to call every random operator of the installed torch, and which cannot be called, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SIZE = 64
"""Elements of a result: two results drawn from different numbers are then different."""


@dataclass
class Call:
    """One way to draw random numbers.

    Attributes:
        name: the operator, or the public function.
        run: calls it, with an explicit generator or None; its results.
        reset: puts what it writes back.
        takes_generator: whether `run` passes a generator on.
        draws: False for operators that are tagged as random, and are not.
    """

    name: str
    run: Callable[[torch.Generator | None], Any]
    reset: Callable[[], object] = lambda: None
    takes_generator: bool = False
    draws: bool = True


_GPU = "a kernel of CUDA, ROCm, MPS or a nested tensor's, without one for cpu"
_NO_DROPOUT = "its CPU kernel refuses dropout"
_UNCALLABLE = {
    "aten::_cudnn": _GPU,
    "aten::_efficient_attention": _GPU,
    "aten::_fill_mem_eff": _GPU,
    "aten::_flash_attention": _GPU,
    "aten::_fused_dropout": _GPU,
    "aten::_lstm_mps": _GPU,
    "aten::_nested_tensor": _GPU,
    "aten::_scaled_dot_product_attention_math_for_mps": _GPU,
    "aten::_scaled_dot_product_cudnn": _GPU,
    "aten::_scaled_dot_product_efficient": _GPU,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _NO_DROPOUT,
    "aten::_scaled_dot_product_flash_attention": _GPU,
    "aten::_scaled_dot_product_fused_attention_overrideable": _GPU,
    "aten::_triton": _GPU,
    "aten::miopen": _GPU,
    "rngprims::": "philox_rand gives CUDA's numbers, and refuses other devices",
    "inductor_prims::": "Inductor's own, for kernels that it generates",
    "prims::inductor": "Inductor's own, for kernels that it generates",
}
_DRAWS_NOTHING = {"aten::_fused_sdp_choice"}


def random_operators() -> list[str]:
    """Every operator that is tagged as random or takes a generator."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        base, _, overload = name.partition(".")
        if base.split("::")[0] not in ("aten", "prims", "rngprims", "inductor_prims"):
            continue
        schema = torch._C._get_schema(base, overload)
        takes = any("Generator" in str(argument.type) for argument in schema.arguments)
        if takes or torch.Tag.nondeterministic_seeded in _overload(name).tags:
            found.append(name)
    return found


def reason_against(name: str) -> str | None:
    """Why the operator cannot be called on any device; None if it can."""
    for start, reason in _UNCALLABLE.items():
        if name.startswith(start):
            return reason
    return None


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    namespace, _, op = base.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload or "default")


def _values(name: str, device: str) -> dict[str, Any]:
    """Arguments by name; a callable makes them for an overload."""
    probabilities = torch.linspace(0.2, 0.8, SIZE).to(device)
    rows = probabilities.reshape(16, 4)
    heads = torch.linspace(-1, 1, SIZE * 2).reshape(1, 2, 8, 8).to(device)
    overload = name.partition(".")[2]
    is_tensor = name.endswith((".Tensor", ".Tensor_out", ".Tensor_generator"))
    values: dict[str, Any] = {
        "self": rows if "feature" in name else probabilities,
        "input": rows if "feature" in name else probabilities,
        "p": torch.full((SIZE,), 0.4).to(device) if "bernoulli" in name and is_tensor else 0.5,
        "size": [SIZE],
        "shape": [SIZE],
        "stride": [1],
        "n": SIZE,
        "low": 3,
        "high": 100,
        "from": 2,
        "to": 90,
        "num_samples": SIZE,
        "replacement": True,
        "noise": torch.empty(SIZE).to(device),
        "count": torch.full((SIZE,), 9.0).to(device),
        "prob": probabilities,
        "mean": probabilities if overload.startswith("Tensor_") else 0.0,
        "std": probabilities if "_Tensor" in overload else 1.0,
        "train": True,
        "training": True,
        "query": heads,
        "key": heads,
        "value": heads,
        "dropout_p": 0.5,
        "device": torch.device(device),
        "requires_grad": False,
        "lambd": 1.0,
        "median": 0.0,
        "sigma": 1.0,
    }
    if name.startswith("aten::randint_like.Tensor"):
        values["high"] = torch.tensor(100)  # on cpu for every device
    if name.startswith("prims::"):
        values |= {"dtype": torch.float32, "low": 0.0, "high": 1.0}
    if name.startswith("aten::rrelu"):  # only what is negative is random
        values["self"] = -probabilities
    return values


def _recurrent(name: str, device: str) -> list[Any]:
    """Arguments of a recurrent layer with two layers and dropout between them."""
    kind, _, form = name.removeprefix("aten::").partition(".")
    gates = {"lstm": 4, "gru": 3}.get(kind, 1) * 4
    weights = [torch.linspace(-1, 1, gates * 4).reshape(gates, 4).to(device) for _ in range(4)]
    hidden = torch.ones(2, 4, 4).to(device)
    states = [hidden, hidden] if kind == "lstm" else hidden
    data = torch.linspace(-1, 1, SIZE).to(device)
    start: list[Any] = [data.reshape(4, 4, 4), states]
    if form == "data":
        start = [data.reshape(16, 4), torch.full((4,), 4), states]
    end = [weights, False, 2, 0.5, True, False]
    return start + end + ([] if form == "data" else [False])


def operator_call(name: str, device: str) -> Call:
    """How to call a random operator."""
    overload = _overload(name)
    if name.split(".")[0].removeprefix("aten::") in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        layer = _recurrent(name, device)
        return Call(name, lambda _: overload(*layer))
    values = _values(name, device)
    given: dict[str, Any] = {}
    written: list[tuple[Tensor, Tensor]] = []
    generator = None
    for argument in overload._schema.arguments:
        if "Generator" in str(argument.type):
            generator = argument.name
        elif argument.is_out:
            given[argument.name] = _output(name, argument.name, device)
        elif argument.name in values:
            value = values[argument.name]
            if argument.is_write:
                written.append((value.clone(), value))
                value = written[-1][0]
            given[argument.name] = value
        elif not argument.has_default_value():
            raise LookupError(f"{name}: no value is known for its argument {argument.name!r}")

    def run(explicit: torch.Generator | None) -> Any:
        return overload(**given, **({} if generator is None else {generator: explicit}))

    def reset() -> None:
        for tensor, content in written:
            tensor.copy_(content)

    return Call(name, run, reset, generator is not None, name not in _DRAWS_NOTHING)


def _output(name: str, argument: str, device: str) -> Tensor:
    dtype = torch.float32
    if name.startswith(("aten::randint", "aten::randperm", "aten::multinomial")):
        dtype = torch.int64
    if name == "aten::native_dropout.out" and argument == "out1":
        dtype = torch.bool
    return torch.empty(SIZE, dtype=dtype).to(device)


def operator_calls(device: str) -> Iterator[Call]:
    """Every random operator that can be called on the device."""
    for name in random_operators():
        if reason_against(name) is None:
            yield operator_call(name, device)


def function_calls(device: str) -> Iterator[Call]:
    """Public functions and modules that draw random numbers by way of operators."""
    x = torch.linspace(0.2, 0.8, SIZE).to(device)
    images = torch.linspace(0, 1, 1024).reshape(1, 4, 16, 16).to(device)
    volumes = torch.linspace(0, 1, 8000).reshape(1, 8, 10, 10, 10).to(device)
    heads = torch.linspace(-1, 1, SIZE * 2).reshape(1, 2, 8, 8).to(device)
    tokens = torch.linspace(-1, 1, SIZE).reshape(4, 2, 8)
    attention = torch.nn.MultiheadAttention(8, 2, dropout=0.5)
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5)
    for module in (attention, encoder):
        with torch.no_grad():
            for number, parameter in enumerate(module.parameters()):
                values = torch.linspace(-1, 1 + number / 7, parameter.numel())
                parameter.copy_(values.reshape(parameter.shape))
        module.to(device)
    tokens = tokens.to(device)
    zero, one = torch.zeros(SIZE).to(device), torch.ones(SIZE).to(device)
    weight = torch.empty(8, 8).to(device)
    functions: dict[str, Callable[[], Any]] = {
        "F.dropout": lambda: functional.dropout(x),
        "F.dropout1d": lambda: functional.dropout1d(images[0].reshape(32, 32)),
        "F.dropout2d": lambda: functional.dropout2d(images.reshape(1, 64, 4, 4)),
        "F.dropout3d": lambda: functional.dropout3d(volumes.reshape(1, 64, 5, 5, 5)),
        "F.alpha_dropout": lambda: functional.alpha_dropout(x, training=True),
        "F.feature_alpha_dropout": lambda: functional.feature_alpha_dropout(
            images.reshape(1, 64, 4, 4), training=True
        ),
        "F.rrelu": lambda: functional.rrelu(-x, training=True),
        "F.gumbel_softmax": lambda: functional.gumbel_softmax(x),
        "F.fractional_max_pool2d": lambda: functional.fractional_max_pool2d(images, 2, 5),
        "F.fractional_max_pool3d": lambda: functional.fractional_max_pool3d(volumes, 2, 6),
        "F.scaled_dot_product_attention": lambda: functional.scaled_dot_product_attention(
            heads, heads, heads, dropout_p=0.5
        ),
        "nn.MultiheadAttention": lambda: attention(tokens, tokens, tokens)[0],
        "nn.TransformerEncoderLayer": lambda: encoder(tokens),
        "torch.rand": lambda: torch.rand(SIZE, device=device),
        "torch.randn": lambda: torch.randn(SIZE, device=device, dtype=torch.bfloat16),
        "torch.randint": lambda: torch.randint(90, (SIZE,), device=device),
        "torch.randperm": lambda: torch.randperm(SIZE, device=device),
        "torch.rand_like": lambda: torch.rand_like(x),
        "torch.normal": lambda: torch.normal(x, x),
        "torch.bernoulli": lambda: torch.bernoulli(x),
        "torch.multinomial": lambda: torch.multinomial(x, 32),
        "Tensor.random_": lambda: torch.empty(SIZE, dtype=torch.int8, device=device).random_(),
        "Tensor.uniform_": lambda: torch.empty(SIZE, dtype=torch.float64, device=device).uniform_(),
        "Tensor.exponential_": lambda: torch.empty(SIZE, device=device).exponential_(),
        "torch.svd_lowrank": lambda: torch.svd_lowrank(images[0, 0] + 1, q=2)[0],
        "nn.init.trunc_normal_": lambda: torch.nn.init.trunc_normal_(weight),
        "nn.init.orthogonal_": lambda: torch.nn.init.orthogonal_(weight),
        "nn.init.kaiming_uniform_": lambda: torch.nn.init.kaiming_uniform_(weight),
    }
    laws: dict[str, torch.distributions.Distribution] = {
        "Normal": torch.distributions.Normal(zero, one),
        "Gamma": torch.distributions.Gamma(one, one),
        "Beta": torch.distributions.Beta(one, one),
        "Dirichlet": torch.distributions.Dirichlet(one),
        "Poisson": torch.distributions.Poisson(one * 5),
        "Binomial": torch.distributions.Binomial(20, x),
        "Categorical": torch.distributions.Categorical(x.expand(SIZE, SIZE)),
        "StudentT": torch.distributions.StudentT(one * 3),
        "VonMises": torch.distributions.VonMises(zero, one),
        "Geometric": torch.distributions.Geometric(x),
        "Laplace": torch.distributions.Laplace(zero, one),
        "MultivariateNormal": torch.distributions.MultivariateNormal(
            zero, torch.eye(SIZE).to(device)
        ),
    }
    for name, law in laws.items():
        functions[f"distributions.{name}"] = law.sample
    for name, function in functions.items():
        yield Call(name, lambda _, function=function: function())  # type: ignore[misc]
