"""Operators over lists against the same for each tensor, as text for programs on a DEVICE."""

LISTS = """
import os, random
import torch
from bringup import devices
draw = random.Random(3)
torch.manual_seed(0)

def launches(function="launch"):
    torch.get_device_module(DEVICE).synchronize()
    with open(os.environ["BRINGUP_DRIVER_TRACE"]) as lines:
        return sum(f'"function":"{function}' in line for line in lines)

def made(shapes, dtype, scale=4):
    return [(torch.randn(shape) * scale).abs().to(dtype).to(DEVICE) for shape in shapes]

def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.cpu().tolist().__repr__()

def copies(xs):
    return [torch.empty_like(x).copy_(x) for x in xs]

numbers = [draw.choice((2, 0.5, 3)) for _ in range(5000)]
# What is called, with what behind the first list: "y" and "z" are lists, "s" numbers.
CASES = (("add", 2), ("add", "y"), ("mul", "s"), ("sub_", "y"), ("maximum", "y"))
FLOATING = (
    ("sqrt",), ("div_", "s"), ("lerp_", "y", 0.3), ("addcmul_", "y", "y", 0.3),
    ("addcdiv_", "y", "z", "s"),
)

def single(name, x, *rest):
    if name.startswith("addc"):
        return getattr(x, name)(*rest[:2], value=rest[2])
    return getattr(x, name)(*rest)

def compare(cases, xs, ys, zs):
    lists = {"y": ys, "z": zs, "s": numbers[:len(xs)]}
    for name, *rest in cases:
        wanted = [
            bits(single(name, x, *(lists[one][i] if one in lists else one for one in rest)))
            for i, x in enumerate(copies(xs))
        ]
        own = copies(xs)
        given = getattr(torch, "_foreach_" + name)(own, *(lists.get(one, one) for one in rest))
        written = own if name.endswith("_") else given
        assert [bits(one) for one in written] == wanted, name

SHAPES = draw.choices(((), (1,), (7,), (0,), (3, 5), (2, 3, 4), (1500,), (33, 40)), k=37)
for dtype in (torch.float32, torch.bfloat16, torch.int32):
    compare(CASES, *(made(SHAPES, dtype) for _ in range(3)))
    if dtype.is_floating_point:
        compare(FLOATING, *(made(SHAPES, dtype) for _ in range(3)))
    # Of other layouts.
    odd = [x.t() if x.dim() == 2 else x[::2] if x.dim() == 1 else x for x in made(SHAPES, dtype)]
    compare(CASES, odd, made([x.shape for x in odd], dtype), odd)
mixed = [x.to(draw.choice((torch.float32, torch.bfloat16))) for x in made(SHAPES, torch.float32)]
compare(CASES[1:2], mixed, made(SHAPES, torch.float32), mixed)

# One after the other, where one writes what another reads.
x = torch.arange(12.0, device=DEVICE)
before = launches()
torch._foreach_mul_([x, x, x[2:6], x[4:8]], 2)
wanted = torch.arange(12.0)
for part in (wanted, wanted, wanted[2:6], wanted[4:8]):
    part.mul_(2)
assert x.tolist() == wanted.tolist()
torch._foreach_add_([x[0:2], x[2:4], x[4:6], x[6:8]], [x[2:4], x[4:6], x[6:8], x[0:2]])
assert launches() - before == 8, launches() - before
for to in (0, 2, 4, 6):
    at = (to + 2) % 8
    wanted[to:to + 2] += wanted[at:at + 2]
assert x.tolist() == wanted.tolist()

# What a call has made when a later one is refused.
a, b = torch.ones(3, device=DEVICE), torch.ones(3, device=DEVICE)
try:
    torch._foreach_add_([a, b], [torch.ones(3, device=DEVICE), torch.ones(2, device=DEVICE)])
except RuntimeError as error:
    refused = str(error)
assert "size of tensor" in refused and a.tolist() == [2, 2, 2] and b.tolist() == [1, 1, 1]
try:
    torch._foreach_add([], 1)
except RuntimeError as error:
    refused = str(error)
assert "at least one tensor" in refused

many = made([(draw.randint(1, 9),) for _ in range(1000)], torch.float32)
compare(CASES[2:4], many, copies(many), many)
"""

COUNTED = """
from bringup import graphs

# 29 tensors, as a small GPT has: a launch takes MOST, or FEWER of add with its alpha.
xs, ys = made([(5,)] * 29, torch.float32), made([(5,)] * 29, torch.float32)
torch._foreach_mul_(xs, 2)
before = launches()
torch._foreach_mul_(xs, 2)
assert launches() - before == -(-29 // MOST), launches() - before
before = launches()
torch._foreach_mul_(xs[:3], ys[:3])
assert launches() - before == 1

graph = graphs.CapturedGraph()
with graphs.capture(graph):
    zs = torch._foreach_add(xs, ys, alpha=2)
    torch._foreach_mul_(ys, 3)
former = [(x.clone(), y.clone()) for x, y in zip(xs, ys)]

def replayed(alpha):
    graph.replay()
    for z, y, (x, old) in zip(zs, ys, former):
        assert torch.equal(z.cpu(), torch.add(x, old, alpha=alpha).cpu())
        assert torch.equal(y.cpu(), (old * 3).cpu())
        old.copy_(y)

added = launches("graph_add_kernel") + launches("graph_add_values")
assert added == -(-29 // FEWER) + -(-29 // MOST), added
replayed(2)
slots = [slot for slot in graph.slots if slot.endswith("alpha")]
assert len(slots) == 29
graph.update(dict.fromkeys(slots, 5))
replayed(5)
graph.update({slots[7]: 1})
graph.replay()
for i, (z, (x, old)) in enumerate(zip(zs, former)):
    assert torch.equal(z.cpu(), torch.add(x, old, alpha=1 if i == 7 else 5).cpu())
print("done")
"""
