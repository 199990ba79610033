"""`kernels.attention`: causal, grouped heads, windows, a cache, and every dtype it takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from bringup import kernels
from bringup.errors import ContractError, KernelError

Tensor = torch.Tensor
WIDE = (torch.float32, torch.float64)
FLOATS = (*WIDE, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    yield
    torch.set_num_threads(threads)


def heads(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[B, H, S, D], a transposed view as models have it."""
    batch, count, length, depth = shape
    return torch.randn(batch, length, count, depth, dtype=dtype).transpose(1, 2)


def sees(rows: int, keys: int, causal: bool, window: int) -> Tensor:
    """[rows, keys]: which row sees which key, by the definition."""
    position = torch.arange(rows).unsqueeze(1) + keys - rows
    key = torch.arange(keys)
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if causal:
        seen &= key <= position
    if window:
        seen &= (key - position).abs() < window
    return seen


def exact(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One sequence in float64, by the formula: the result [rows, H, E], and the same with the
    magnitudes of the values.
    """
    group = q.shape[0] // k.shape[0]
    k, v = (x.double().repeat_interleave(group, 0) for x in (k, v))
    scores = (q.double() @ k.transpose(1, 2)) * scale
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return (weights @ v).transpose(0, 1), (weights @ v.abs()).transpose(0, 1)


def bound(dtype: torch.dtype, keys: int, depth: int, largest_score: float) -> float:
    """Against the weighted magnitudes of the values: errors of a score move its weight, sums of
    keys, and one rounding of the result (docs/numerics.md, bound A).
    """
    v = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps / 2
    u = torch.finfo(dtype).eps / 2 if dtype not in WIDE else 0.0
    return (2 * (depth + 4) * largest_score + 2 * keys + 40) * v + u


def assert_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: list[int],
    keys: list[int] | None = None,
    causal: bool = False,
    window: int = 0,
) -> None:
    scale = q.shape[3] ** -0.5
    got = kernels.attention(q, k, v, rows, scale, causal, window, keys)
    assert got.shape == (q.shape[0], q.shape[2], q.shape[1], v.shape[3])
    assert got.dtype == q.dtype
    for b, (n, m) in enumerate(zip(rows, keys or rows, strict=True)):
        seen = sees(n, m, causal, window)
        expected, magnitude = exact(q[b, :, :n], k[b, :, :m], v[b, :, :m], seen, scale)
        norms = [x.double().norm(dim=-1).amax() for x in (q[b, :, :n], k[b, :, :m])]
        error = bound(q.dtype, m, q.shape[3], scale * float(norms[0] * norms[1])) * magnitude
        tiny = torch.finfo(q.dtype).tiny
        assert bool(((got[b, :n].double() - expected).abs() <= error + tiny).all())
        assert bool((got[b, n:] == 0).all())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("group", [1, 2, 7])
@pytest.mark.parametrize(("causal", "window"), [(False, 0), (True, 0), (True, 5), (False, 5)])
def test_attention_is_the_formula(
    dtype: torch.dtype, group: int, causal: bool, window: int
) -> None:
    for length, depth in ((1, 8), (3, 16), (29, 7), (130, 32), (300, 20)):
        q = heads(2, 2 * group, length, depth, dtype=dtype)
        k, v = (heads(2, 2, length, depth, dtype=dtype) for _ in range(2))
        assert_attention(q, k, v, [length, (length + 1) // 2], None, causal, window)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("window", [0, 3, 200])
def test_rows_are_the_last_ones_of_their_keys(dtype: torch.dtype, rows: int, window: int) -> None:
    q = heads(3, 6, rows, 24, dtype=dtype)
    k, v = (heads(3, 2, 290, 24, dtype=dtype) for _ in range(2))
    assert_attention(q, k, v, [rows, rows, rows], [290, rows, 147], True, window)
    assert_attention(q, k, v, [rows, rows, rows], [290, rows, 147], False, window)


def test_values_may_have_another_depth() -> None:
    q, k, v = heads(2, 4, 30, 24), heads(2, 2, 30, 24), heads(2, 2, 30, 37)
    assert_attention(q, k, v, [30, 17], None, True)


def test_a_cache_longer_than_its_sequences_is_read_to_their_ends_alone() -> None:
    q, k, v = heads(2, 2, 5, 16), heads(2, 2, 64, 16), heads(2, 2, 64, 16)
    k[:, :, 9:], v[:, :, 9:] = torch.nan, torch.nan
    assert_attention(q, k, v, [5, 3], [9, 4], True)
    assert_attention(q, k, v, [5, 3], None, True)


@pytest.mark.bits
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [2, 50])
def test_nan_in_padded_rows_leaves_every_bit(dtype: torch.dtype, rows: int) -> None:
    q, k, v = (heads(2, 2, 64, 16, dtype=dtype) for _ in range(3))
    clean = kernels.attention(q, k, v, [rows, 0], 0.25, True)
    for x in (q, k, v):
        x[:, :, rows:] = torch.nan
        x[1] = torch.nan
    assert torch.equal(kernels.attention(q, k, v, [rows, 0], 0.25, True), clean)
    assert bool((clean[1] == 0).all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_in_a_row_that_counts_shows_where_it_is_seen(dtype: torch.dtype) -> None:
    for length in (3, 40):
        q, k, v = (heads(1, 2, length, 16, dtype=dtype) for _ in range(3))
        k[0, 0, 1, 5] = torch.nan
        got = kernels.attention(q, k, v, [length], 0.25)
        assert bool(got[0, :, 0].isnan().all())
        assert not bool(got[0, :, 1].isnan().any())


def test_a_row_that_sees_no_key_is_zeros() -> None:
    q, k, v = heads(1, 1, 40, 16), heads(1, 1, 30, 16), heads(1, 1, 30, 16)
    for rows in (1, 40):
        assert bool((kernels.attention(q, k, v, [rows], 1.0, False, 0, [0]) == 0).all())
    assert_attention(q, k, v, [40], [30], False, 4)
    empty = heads(1, 1, 0, 16)
    assert bool((kernels.attention(q, empty, empty, [40], 1.0, False, 0, [0]) == 0).all())


@pytest.mark.bits
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_sequence_has_the_same_bits_alone_in_a_batch_padded_and_on_more_threads(
    dtype: torch.dtype,
) -> None:
    lengths = [1, 3, 37, 128, 200, 0]
    q = heads(6, 4, 200, 40, dtype=dtype)
    k, v = (heads(6, 2, 200, 40, dtype=dtype) for _ in range(2))
    torch.set_num_threads(2)
    together = kernels.attention(q, k, v, lengths, 0.2, True, 60)
    torch.set_num_threads(1)
    assert torch.equal(kernels.attention(q, k, v, lengths, 0.2, True, 60), together)
    for b, n in enumerate(lengths):
        alone = [x[b : b + 1, :, :n].contiguous() for x in (q, k, v)]
        assert torch.equal(kernels.attention(*alone, [n], 0.2, True, 60)[0], together[b, :n])


@pytest.mark.bits
def test_one_long_head_is_cut_into_pieces_of_the_same_bits() -> None:
    q, k, v = heads(1, 8, 300, 16), heads(1, 1, 300, 16), heads(1, 1, 300, 16)
    assert_attention(q, k, v, [299], None, True)
    eight = kernels.attention(*(x.expand(8, -1, -1, -1) for x in (q, k, v)), [299] * 8, 0.2, True)
    assert torch.equal(kernels.attention(q, k, v, [299], 0.2, True)[0], eight[5])


@pytest.mark.bits
@pytest.mark.parametrize("dtype", FLOATS)
def test_strides_change_no_bit(dtype: torch.dtype) -> None:
    for length in (2, 60):
        x = [heads(2, 3, length, 21, dtype=dtype) for _ in range(3)]
        expected = kernels.attention(*x, [length, 1], 0.3)
        turned = [part.transpose(2, 3).contiguous().transpose(2, 3) for part in x]
        assert torch.equal(kernels.attention(*turned, [length, 1], 0.3), expected)


def test_large_scores_do_not_overflow_in_any_block() -> None:
    q, k, v = heads(1, 1, 400, 16), heads(1, 1, 400, 16), heads(1, 1, 400, 16)
    expected, _ = exact(*(x[0] for x in (q * 90, k * 90, v)), sees(400, 400, True, 0), 1.0)
    got = kernels.attention(q * 90, k * 90, v, [400], 1.0, True)[0]
    torch.testing.assert_close(got.double(), expected, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("window", [2**62, 2**63 - 1, 61])
def test_a_window_wider_than_everything_is_none(window: int) -> None:
    q, k, v = (heads(1, 1, 30, 16) for _ in range(3))
    expected = kernels.attention(q, k, v, [30], 0.3)
    assert torch.equal(kernels.attention(q, k, v, [30], 0.3, False, window), expected)


X = torch.randn(1, 4, 5, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": X[:, :3], "v": X[:, :3]}, "heads of q must be a multiple of those of k"),
        ({"k": X[:, :0], "v": X[:, :0]}, "heads of q must be a multiple of those of k"),
        ({"window": -1}, "window must be 0"),
        ({"actual_seq_lengths_kv": [6]}, "actual_seq_lengths_kv .* between 0 and the padded"),
        ({"actual_seq_lengths_kv": [-1]}, "actual_seq_lengths_kv .* between 0 and the padded"),
        ({"actual_seq_lengths_kv": []}, "actual_seq_lengths_kv must have one length for each"),
        ({"actual_seq_lengths_kv": [2], "causal": True}, "as many keys as rows"),
        ({"k": X[:, :, :2], "v": X[:, :, :2]}, "actual_seq_lengths, where it is not given"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    options: dict[str, object], words: str
) -> None:
    arguments = {"q": X, "k": X, "v": X, "actual_seq_lengths": [5], "scale": 1.0, **options}
    with pytest.raises(KernelError, match=f"bringup::attention.*{words}"):
        kernels.attention(**arguments)


def test_keys_and_values_of_other_shapes_are_refused_on_fake_tensors_too() -> None:
    for k, v in ((X[..., :4], X), (X, X[:, :, :3]), (X[:0], X[:0])):
        with pytest.raises(ContractError, match=r"bringup::attention.*[kv] must have shape"):
            kernels.attention(X.to("meta"), k.to("meta"), v.to("meta"), [5], 1.0)


def test_new_lengths_compile_nothing() -> None:
    kernels.load()
    graphs = 0

    def counting(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        nonlocal graphs
        graphs += 1
        return graph

    def attend(x: Tensor, rows: list[int], keys: list[int]) -> Tensor:
        return torch.ops.bringup.attention(x, x, x, rows, 0.5, True, 0, keys)

    torch._dynamo.reset()
    compiled = torch.compile(attend, backend=counting, fullgraph=True, dynamic=True)
    x = heads(2, 2, 9, 8)
    for n, m in itertools.product((2, 5, 7), (8, 9)):
        assert torch.equal(compiled(x, [n, 3], [m, 6]), attend(x, [n, 3], [m, 6]))
    assert graphs == 1
