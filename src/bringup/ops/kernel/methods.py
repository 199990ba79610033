"""What can be registered for a kernel operator beyond `RegistrationMethods`: native gradients by a
backward operator, and the operator that stands for its forward-mode rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch

from bringup import jit
from bringup._native import has_torch_library, torch_library
from bringup.errors import SchemaError
from bringup.ops.contract.outputs import BoundOutput
from bringup.ops.kernel.backward import formula_of, keep_inputs, match
from bringup.ops.registration.autograd import autograd_kernel, node_class
from bringup.ops.registration.methods import RegistrationMethods
from bringup.ops.schema.schema import Schema

Function = TypeVar("Function", bound=Callable[..., Any])


class KernelOperator(Protocol):
    """What `kernel_op` returns: a builtin function with attributes.

    Calling it is calling `overload`, only faster; both take positional and keyword arguments and
    defaults, and both raise the same errors: `ContractError` for inputs that break the contract,
    `KernelError` when the kernel fails, `TypeError` and `RuntimeError` as torch does for arguments
    that do not fit the schema.

    Attributes:
        schema: the schema as registered.
        qualified_name: `namespace::name`, with `.overload` where there is one.
        overload: the operator in `torch.ops`.

    The methods `register_kernel`, `register_fake`, `register_autograd`, `register_jvp`,
    `register_vmap`, `register_autocast`, `register_effect` and `register_sharding` are as those of
    a `CustomOperator`. What is registered in Python takes the place of what is native. A jvp finds
    the arguments of the call in `ctx.inputs`, and in `ctx.saved_tensors` what `save=` names.
    """

    schema: str
    qualified_name: str
    overload: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator."""

    register_kernel: Any
    register_fake: Any
    register_autograd: Any
    register_jvp: Any
    register_vmap: Any
    register_autocast: Any
    register_effect: Any
    register_sharding: Any

    def register_backward(
        self,
        operator: str,
        *,
        save: Sequence[str] = (),
        gradients: Sequence[str] | None = None,
        non_differentiable: Sequence[str] = (),
    ) -> None:
        """Make another operator the backward of this one.

        The backward operator's arguments are one gradient for each result that can have one (the
        written arguments, then the outputs), then inputs and outputs of this operator, matched by
        name. Tensors among those must be in `save`; numbers, texts and lists of them are kept by
        themselves. It returns one gradient for each argument in `gradients`, a list for a
        `Tensor[]`.

        A result that has no gradient in a backward pass gives zeros, or None where the backward
        operator's argument is `Tensor?`. An argument `bool[] output_mask` of the backward operator
        says by return which gradients are wanted; what it returns for the others is dropped.

        Args:
            operator: `"namespace::name"` of any registered operator.
            save: names of tensor arguments, or of named returns, that backward reads; of a written
                argument, what the operator left there.
            gradients: names of the tensor arguments that get gradients, in the order of the
                backward operator's returns; by default every `Tensor` and `Tensor[]` argument. One
                left out is not differentiable.
            non_differentiable: names of returns without a gradient. Those of integer dtypes have
                none anyway.

        Raises:
            SchemaError: the two operators do not fit together.
        """

    def params(self, *args: Any, **kwargs: Any) -> jit.Params:
        """Return the parameter set of a call with these arguments: which macros its kernel is
        compiled with, which values it gets. `jit.Template.compile` of it makes the operator's own
        binary.
        """

    def undefine(self) -> None:
        """Remove the operator and free its name. Calls of it raise from then on."""


class KernelMethods(RegistrationMethods):
    """The methods of one kernel operator; `function` is its callable."""

    def __init__(
        self,
        schema: Schema,
        outputs: Sequence[BoundOutput],
        function: Any,
        library: torch.library.Library,
    ) -> None:
        super().__init__(function.overload, library)
        self._schema = schema
        self._outputs = outputs
        self._function = function
        self._autograd_library = torch.library.Library(library.ns, "FRAGMENT")
        self._forward_rule = False
        self._formula.setup_context = keep_inputs
        self.register_vmap("loop")

    def register_backward(
        self,
        operator: str,
        *,
        save: Sequence[str] = (),
        gradients: Sequence[str] | None = None,
        non_differentiable: Sequence[str] = (),
    ) -> None:
        """See `KernelOperator.register_backward`."""
        plan = match(self._schema, self._outputs, operator, save, gradients, non_differentiable)
        self._formula.backward, self._formula.setup_context = formula_of(self._schema, plan)
        if not has_torch_library():
            return
        native = torch_library().ops
        native.set_backward(
            self._function,
            plan.name,
            plan.overload,
            [native.BackwardSource(**source._asdict()) for source in plan.sources],
            plan.receivers,
            plan.differentiable,
        )
        if self._node is not None and not self._forward_rule:  # a backward in Python before
            self._node = None
            self._autograd_library._destroy()
            self._autograd_library = torch.library.Library(self._library.ns, "FRAGMENT")
            if self._formula.jvp is not None:
                self._install_forward_rule()

    def register_jvp(self, jvp: Function) -> Function:
        """See `RegistrationMethods.register_jvp`."""
        if self.facts.written:
            raise SchemaError(
                f"{self.qualified_name} writes its argument "
                f"'{self.facts.names[self.facts.written[0]]}'; only an operator that returns new "
                "tensors can have a forward-mode derivative"
            )
        self._formula.jvp = jvp
        if self._node is None and has_torch_library():
            self._install_forward_rule()
        return jvp

    def _install_forward_rule(self) -> None:
        """Define the operator to which the native autograd kernel hands calls with tangents."""
        name = f"{self._bare.replace('.', '_')}_forward_mode"
        signature = self._schema.text[self._schema.text.index("(") :]
        self._autograd_library.define(name + signature)
        node = node_class(self.facts, self._formula)
        kernel = autograd_kernel(self.facts, self.overload, node)
        self._autograd_library.m.impl(name, "Autograd", kernel, True)
        torch_library().ops.set_forward_mode(self._function, f"{self._library.ns}::{name}", "")
        self._forward_rule = True
        self._node = node

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """See `RegistrationMethods.register_autograd`. Replaces a backward operator."""
        if self._forward_rule:  # its kernel is that of another operator
            self._node, self._forward_rule = None, False
        super().register_autograd(backward, setup_context=setup_context)

    def destroy(self) -> None:
        """Remove all that was registered after the definition."""
        self._functionalized = None
        self._autograd_library._destroy()
