"""Random numbers of the device's own kernels: Philox at the call's seed and offset."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.sweeps.support import part

LOADED = """
import hashlib, sys, torch
from torch.nn import functional
from bringup import devices, graphs, jit
torch.set_num_threads(1)
devices.load_driver("sim")
devices.pointwise_kernels()

def words(seed, offset, number):
    '''Philox4x32-10 of the paper, in Python's whole numbers.'''
    low = (1 << 32) - 1
    key = [seed & low, seed >> 32 & low]
    a, b, c, d = offset & low, offset >> 32, number & low, number >> 32
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ key[0], second & low, first >> 32 ^ d ^ key[1], first & low
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return a, b, c, d

def native():
    report = devices.fallback_report(reset=True)
    on_host = {row.operator for row in report.rows} - {"aten::equal", "aten::all"}
    return {row.operator: row.calls for row in report.native}, sorted(on_host)
"""


def said_by(program: str, host_code: str = "1") -> list[str]:
    return output_of(LOADED + program, BRINGUP_SIM_HOST_CODE=host_code).splitlines()


NUMBERS = """
seed = (7 << 40) + 3
torch.npu.manual_seed(seed)
torch.npu.default_generators[0].set_offset(1 << 33)
with devices.fallback_policy("forbid"):
    drawn = torch.rand(3, 5, device="npu"), torch.rand(4, dtype=torch.float64, device="npu")
    # Numbered as the elements lie, whatever their strides are.
    spread = torch.zeros(4, 3, 2, device="npu")[:, :, 0].t().uniform_(2, 4)
offset = 1 << 33
expected = [words(seed, offset, i)[0] >> 8 for i in range(15)]
assert (drawn[0].cpu().double() * 2**24).view(-1).tolist() == expected
expected = [(w[0] << 32 | w[1]) >> 11 for w in (words(seed, offset + 1, i) for i in range(4))]
assert (drawn[1].cpu() * 2**53).tolist() == expected
expected = [words(seed, offset + 2, i)[0] >> 8 for i in range(12)]
torch.testing.assert_close(
    spread.t().cpu().reshape(-1), 2 + 2 * torch.tensor(expected) * 2.0**-24, rtol=0, atol=0)
assert torch.npu.get_rng_state().view(torch.int64).tolist() == [seed, offset + 3]
print(native())
"""


@pytest.mark.parametrize("host_code", ["1", "0"])
def test_an_element_has_the_words_of_its_number_at_the_calls_offset(host_code: str) -> None:
    assert said_by(NUMBERS, host_code) == ["({'aten::uniform_': 3}, [])"]


EVERYTHING = """
torch.npu.manual_seed(5)
digest = hashlib.sha256()
with devices.fallback_policy("forbid"):
    for dtype in (torch.float32, torch.bfloat16):
        spread = torch.ones(5, 4, 3, 2)[::2].transpose(0, 2)
        for made in (torch.ones(67, 33), spread, torch.ones(())):
            x = made.to("npu", dtype)
            results = [
                x.clone().normal_(1, 2), x.clone().log_normal_(), x.clone().cauchy_(),
                x.clone().exponential_(2), x.clone().bernoulli_(0.25), torch.bernoulli(x, 0.5),
                *torch.native_dropout(x, 0.25, True), *torch.native_dropout(x, 0.25, None),
                functional.dropout(x, 0.125),
            ]
            if dtype is torch.float32:
                results.append(x.clone().uniform_(-1, 3))
            for one in results:
                assert one.shape == x.shape and one.cpu().isfinite().all()
                digest.update(f"{one.dtype} {one.stride()}".encode())
                digest.update(repr(one.cpu().flatten().tolist()).encode())
print(digest.hexdigest(), torch.npu.default_generators[0].get_offset())
print(native())
"""


def test_both_forms_draw_the_same_numbers() -> None:
    by_host, by_values = said_by(EVERYTHING), said_by(EVERYTHING, "0")
    assert by_host == by_values
    assert by_host[0].endswith(f" {2 * 3 * 9 + 3}")


STATES = """
def draw(generator=None):
    return torch.empty(64, device="npu").normal_(generator=generator).cpu()

torch.manual_seed(9)
first = draw()
torch.npu.manual_seed(9)
assert torch.equal(draw(), first) and not torch.equal(draw(), first)
state = torch.npu.get_rng_state()
third = draw()
torch.npu.set_rng_state(state)
with torch.random.fork_rng(devices=[0], device_type="npu"):
    assert torch.equal(draw(), third)
assert torch.equal(draw(), third)
own = torch.Generator("npu").manual_seed(9)
before = torch.npu.get_rng_state()
assert torch.equal(draw(own), first)
assert torch.equal(torch.npu.get_rng_state(), before) and own.get_offset() == 1
try:
    draw(torch.Generator("npu:1"))
except RuntimeError as error:
    print(error)
x = torch.ones(8, device="npu")
torch.npu.manual_seed(1)
y, kept = torch.native_dropout(x, 0.5, False)
assert kept.all() and torch.equal(y, x) and torch.npu.default_generators[0].get_offset() == 0
torch.native_dropout(x[:0], 0.5, True)
assert torch.npu.default_generators[0].get_offset() == 1
print(native()[1])
"""


@pytest.mark.parametrize("host_code", part(["1", "0"], always=["0"]))
def test_seeds_states_and_generators_hold_for_native_kernels(host_code: str) -> None:
    said = said_by(STATES, host_code)
    assert said[0].startswith("expected a generator of device 'npu:0' but got one of 'npu:1'")
    assert said[1] == "[]"


REFUSED = """
x = torch.ones(3, device="npu")
x.bernoulli_(0.5)
for call in ("x.bernoulli_(1.5)", "x.uniform_(3, 2)", "x.normal_(0, -1)", "x.exponential_(0)",
             "torch.native_dropout(x, 2.0, True)", "x.bernoulli_(float('nan'))"):
    try:
        eval(call)
        print("taken", call)
    except RuntimeError as error:
        print(error)
x.bernoulli_(0.25)
print(native()[0])
with devices.fallback_policy("forbid"):
    try:
        x.bernoulli_(1.5)
    except RuntimeError as error:
        print(error)
"""


def test_numbers_that_the_cpu_refuses_are_refused_at_every_call() -> None:
    said = said_by(REFUSED)
    for line, words in zip(
        said,
        [
            "bernoulli_ expects p to be in [0, 1], but got p=1.5",
            "uniform_ expects to return a [from, to) range, but found from=3 > to=2",
            "normal expects std >= 0.0, but found std -1",
            "exponential_ expects lambda > 0.0, but found lambda=0",
            "bernoulli_ expects p to be in [0, 1], but got p=-1",
            "bernoulli_ expects p to be in [0, 1], but got p=nan",
        ],
        strict=False,
    ):
        assert line.startswith(words)
    assert said[-2] == "{'aten::bernoulli_.float': 2}"
    assert said[-1].startswith("bernoulli_ expects p to be in [0, 1], but got p=1.5")


CAPTURED = """
x = torch.linspace(-1, 1, 100).to("npu")
own = torch.Generator("npu").manual_seed(3)

def step():
    noise = torch.empty(100, device="npu").normal_(generator=own)
    return functional.dropout(x, 0.5) + noise, torch.rand(7, device="npu")

def seed(number):
    torch.npu.manual_seed(number)
    own.manual_seed(number + 1)

seed(2)
before = torch.npu.get_rng_state(), own.get_state()
graph = graphs.CapturedGraph()
with torch.no_grad(), graphs.capture(graph):
    results = step()
assert all(map(torch.equal, before, (torch.npu.get_rng_state(), own.get_state())))
seed(5)
expected = [[one.clone() for one in step()] for _ in range(4)]
left = torch.npu.get_rng_state(), own.get_state()
seed(5)
for one in expected:
    graph.replay()
    assert all(map(torch.equal, results, one))
assert all(map(torch.equal, left, (torch.npu.get_rng_state(), own.get_state())))
assert not torch.equal(expected[0][0], expected[1][0])
# Updates keep where a replay draws.
torch.npu.manual_seed(5)
wanted = functional.dropout(x, 0.125)
one = graphs.CapturedGraph()
with torch.no_grad(), graphs.capture(one):
    dropped = functional.dropout(x, 0.5)
one.update({next(name for name in one.slots if name.endswith(".p")): 0.125})
torch.npu.manual_seed(5)
one.replay()
assert torch.equal(dropped, wanted)
try:
    one.update({next(name for name in one.slots if name.endswith(".p")): 2.0})
except Exception as error:
    print(type(error).__name__)
torch.npu.manual_seed(5)
one.replay()
assert torch.equal(dropped, wanted)
print(sorted(native()[0]), native()[1])
"""


@pytest.mark.parametrize("host_code", part(["1", "0"], always=["0"]))
def test_replays_draw_what_calls_draw(host_code: str) -> None:
    said = said_by(CAPTURED, host_code)
    assert said[0] == "UpdateError"
    assert said[1].endswith("[]")


TRAINED = """
from torch.utils.checkpoint import checkpoint
model = torch.nn.Sequential(
    torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 8)
).to("npu")
x = torch.randn(16, 8).to("npu")
for reentrant in (False, True):
    gradients = []
    for checkpointed in (False, True):
        given = x.clone().requires_grad_()
        torch.npu.manual_seed(4)
        y = checkpoint(model, given, use_reentrant=reentrant) if checkpointed else model(given)
        torch.npu.manual_seed(77)
        y.square().sum().backward()
        gradients.append(given.grad)
    assert torch.equal(*gradients) and gradients[0].any()
print("aten::native_dropout" in native()[0])
"""


def test_a_checkpoint_draws_again_what_it_has_drawn() -> None:
    assert said_by(TRAINED) == ["True"]


OTHERS = """
import threading
torch.npu.manual_seed(3)
drawn, lock = [], threading.Lock()

def draw(stream):
    with torch.npu.stream(stream):
        mine = [torch.rand(4, device="npu").cpu() for _ in range(40)]
    with lock:
        drawn.extend(mine)

threads = [threading.Thread(target=draw, args=(torch.npu.Stream(),)) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
torch.npu.manual_seed(3)
expected = {tuple(torch.rand(4, device="npu").tolist()) for _ in range(160)}
assert {tuple(one.tolist()) for one in drawn} == expected and len(expected) == 160
print("done")
"""


def test_streams_and_threads_never_draw_the_same() -> None:
    assert said_by(OTHERS) == ["done"]


LAWS = """
import math
torch.npu.manual_seed(12)
count = 60000

def far(drawn, mean, variance):
    '''Standard errors of the mean, and the variance's share.'''
    drawn = drawn.cpu().double()
    return abs(drawn.mean() - mean) * math.sqrt(count / variance), abs(drawn.var() / variance - 1)

def empty():
    return torch.empty(count, device="npu")

laws = {
    "uniform": (empty().uniform_(), torch.distributions.Uniform(0.0, 1.0)),
    "normal": (empty().normal_(1, 3), torch.distributions.Normal(1.0, 3.0)),
    "exponential": (empty().exponential_(2), torch.distributions.Exponential(2.0)),
    "cauchy": (empty().cauchy_(), torch.distributions.Cauchy(0.0, 1.0)),
    "log_normal": (empty().log_normal_(0, 1), torch.distributions.LogNormal(0.0, 1.0)),
    "double": (empty().double().normal_(), torch.distributions.Normal(0.0, 1.0)),
}
for name, (drawn, law) in laws.items():
    # Chi-square over 64 shares of the law, that are as likely: 63 degrees of freedom.
    share = (law.cdf(drawn.cpu().double()) * 64).long().clamp(0, 63)
    seen = torch.bincount(share, minlength=64).double()
    chi = ((seen - count / 64) ** 2 / (count / 64)).sum()
    assert 25 < chi < 125, (name, chi)  # 1 in 10,000 on either side
    # Neighbours are independent, and so are numbers of two calls.
    ranks = share.double() - 31.5
    assert abs((ranks[1:] * ranks[:-1]).mean()) / 341.25 < 4 / math.sqrt(count), name
calls = torch.stack([torch.randn(4000, device="npu").cpu() for _ in range(12)])
torch.npu.manual_seed(13)
calls = torch.cat([calls, torch.stack([torch.randn(4000, device="npu").cpu() for _ in range(4)])])
assert torch.corrcoef(calls).fill_diagonal_(0).abs().max() < 5 / math.sqrt(4000)
for p in (0.25, 0.5, 0.9):
    error, spread = far(empty().bernoulli_(p), p, p * (1 - p))
    assert error < 4 and spread < 0.05
    dropped, kept = torch.native_dropout(torch.ones(count, device="npu"), p, True)
    error, spread = far(dropped, 1, p / (1 - p))
    assert error < 4 and spread < 0.05 and torch.equal(dropped != 0, kept)
print(native()[1])
"""


def test_numbers_have_their_distribution_and_are_independent() -> None:
    assert said_by(LAWS) == ["[]"]


RAW = """
source = jit.Source(name="noise.cpp", text='''
#include "bringup/kernel.h"
#include "bringup/random.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  const DLTensor* x = (const DLTensor*)args[0];
  const int64_t* point = (const int64_t*)((const bringup_list*)args[n - 2])->data;
  DLTensor* out = (DLTensor*)args[n - 1];
  for (int64_t i = ctx->block_index; i < x->shape[0]; i += ctx->block_count)
    ((float*)out->data)[i] = bringup_uniform_float(bringup_random_at(point[0], point[1], i), 3);
  return 0;
}
''')
plain = jit.Source(name="plain.cpp", entry="noise", text='''
#include "bringup/device.h"
#include "bringup/random.h"
BRINGUP_EXPORT void noise(const bringup_position* at, float* out, int64_t n, int64_t seed,
                          int64_t offset) {
  for (int64_t i = 0; i < n; ++i)
    out[i] = bringup_uniform_float(bringup_random_at(seed, offset, i), 3);
}
''')
one = devices.kernel("aten::bernoulli.out", source=source, kind="raw") if sys.argv[1] == "1" else (
    devices.kernel("aten::bernoulli.out", source=plain, kind="raw",
                   args="ptr(out), numel(out), generator[0], generator[1]"))
torch.npu.manual_seed(6)
torch.rand(1, device="npu")
x, y = torch.ones(6, device="npu"), torch.empty(6, device="npu")
drawn = torch.bernoulli(x, out=y).cpu()
assert (drawn.double() * 2**24).tolist() == [words(6, 1, i)[3] >> 8 for i in range(6)]
own = torch.Generator("npu").manual_seed(8)
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    torch.bernoulli(x, generator=own, out=y)
for offset in range(3):
    graph.replay()
    assert (y.cpu().double() * 2**24).tolist() == [words(8, offset, i)[3] >> 8 for i in range(6)]
print(native())
function = jit.Source(name="f.cpp", text='''
template <class T>
void native_dropout(T x, double p, bool, bringup_random random, T* out, T* kept) {
  *kept = bringup_uniform_float(random, 1) >= p;
  *out = x * *kept;
}
''')
devices.kernel("aten::native_dropout", source=function, random=True)
torch.npu.manual_seed(6)
out, kept = torch.native_dropout(torch.ones(6, device="npu"), 0.5, True)
assert kept.tolist() == [words(6, 0, i)[1] >> 31 == 1 for i in range(6)]
assert torch.equal(out, kept.float()) and kept.dtype is torch.bool
"""


@pytest.mark.parametrize("host_code", ["1", "0"])
def test_a_raw_kernel_gets_seed_and_offset(host_code: str, tmp_path: Path) -> None:
    program = LOADED + RAW
    said = output_of(program, host_code, BRINGUP_SIM_HOST_CODE=host_code).splitlines()
    assert said == ["({'aten::bernoulli.out': 2, 'aten::uniform_': 1}, [])"]
