"""Operators are pickled by name: a copy is the operator, another process loads its own."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import run_forked
from tests.unit.ops.conftest import Define

from bringup import ops
from bringup.errors import SchemaError

KERNELS = """
import torch
from bringup import jit, ops

SOURCE = jit.Source(name="one.cpp", text='''#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = x(i) + 1;
  return 0;
}''')
in_c = ops.kernel_op(
    "pickled::kernel(Tensor x) -> Tensor", source=SOURCE, outputs=ops.empty_like("x")
)


@ops.custom_op("pickled::python")
def other_name(x: torch.Tensor) -> torch.Tensor:
    return x + 1


operators = [in_c, other_name, ops.adopt("aten::exp")]
"""


@pytest.fixture
def operators(
    define: Define, custom: Callable[..., ops.CustomOperator]
) -> list[Callable[..., Any]]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    kernel = define(
        "another_name_than_its_variable(Tensor x) -> Tensor", outputs=ops.empty_like("x")
    )
    return [kernel, custom(function), ops.adopt("aten::sinh")]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_copy_is_the_operator_itself(operators: list[Any], protocol: int) -> None:
    for operator in operators:
        assert pickle.loads(pickle.dumps(operator, protocol)) is operator
        assert copy.copy(operator) is operator
        assert copy.deepcopy(operator) is operator
        assert copy.deepcopy({"key": [operator]})["key"][0] is operator


def test_one_that_is_not_defined_is_named(define: Define, custom: Callable[..., Any]) -> None:
    gone = [
        define("gone(Tensor x) -> Tensor", outputs=ops.empty_like("x")),
        custom(torch.clone, schema="(Tensor x) -> Tensor"),
    ]
    for operator in gone:
        text = pickle.dumps(operator)
        operator.undefine()
        with pytest.raises(
            SchemaError, match=f"operator {operator.qualified_name} cannot be unpickled"
        ):
            pickle.loads(text)


def run(folder: Path, script: str) -> str:
    done = run_forked(script, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_process_imports_what_defines_it(tmp_path: Path) -> None:
    (tmp_path / "my_kernels.py").write_text(KERNELS)
    run(
        tmp_path,
        "import pickle, my_kernels; pickle.dump(my_kernels.operators, open('p.pickle', 'wb'))",
    )
    said = run(
        tmp_path,
        "import pickle, torch\n"
        "for op in pickle.load(open('p.pickle', 'rb')): print(op(torch.zeros(1)).item())",
    )
    assert said.split() == ["1.0"] * 3
    (tmp_path / "my_kernels.py").write_text("")
    said = run(
        tmp_path,
        "import pickle\n"
        "try: pickle.load(open('p.pickle', 'rb'))\n"
        "except Exception as error: print(type(error).__name__, error)",
    )
    assert said.startswith("SchemaError the operator pickled::kernel cannot be unpickled")
    assert "importing its module my_kernels did not define it" in said


def test_spawned_processes_take_operators(tmp_path: Path) -> None:
    script = (
        KERNELS
        + """

def call(operator, x):
    return operator(x)


if __name__ == "__main__":
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = pool.starmap(call, [(operator, torch.zeros(1)) for operator in operators])
    print([r.item() for r in results])
"""
    )
    (tmp_path / "main.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[1.0, 1.0, 1.0]", done.stderr
