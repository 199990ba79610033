"""`options={"buckets": ...}`: one capture serves every length of a bucket."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from bringup import graphs, kernels
from bringup.errors import BringupError, KernelError

transformers = pytest.importorskip("transformers")
Tensor = torch.Tensor

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    kernels.load()
    with torch.no_grad():
        yield


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[graphs.CapturedGraph]:
    """The graphs that were captured."""
    made: list[graphs.CapturedGraph] = []
    enter = graphs.capture

    def counting(graph: graphs.CapturedGraph, *args: Any, **options: Any) -> Any:
        made.append(graph)
        return enter(graph, *args, **options)

    monkeypatch.setattr(graphs, "capture", counting)
    return made


def compiled(function: Any, buckets: Any, **options: Any) -> Any:
    return torch.compile(
        function,
        backend="bringup",
        dynamic=True,
        options={"mode": "serve", "buckets": buckets, **options},
    )


def model(name: str = "BertModel", **options: Any) -> Any:
    kind = getattr(transformers, name)
    return kernels.use_lengths(kind(kind.config_class(**SMALL, **options)).eval())


class Small(torch.nn.Module):
    """What those tests need of a model that are about buckets and not about a model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = torch.nn.Embedding(60, 8), torch.nn.Linear(8, 8)

    def forward(self, tokens: Tensor, actual_seq_lengths: list[int]) -> tuple[Tensor]:
        return (attend(self.mix(self.embed(tokens)), actual_seq_lengths),)


def small() -> Any:
    return Small().eval()


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(5, 60, (batch, length))


def assert_rows(got: Tensor, expected: Tensor, lengths: list[int]) -> None:
    assert got.shape == expected.shape
    assert got.is_contiguous()
    for b, n in enumerate(lengths):
        torch.testing.assert_close(got[b, :n], expected[b, :n], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("BertModel", {}),
        ("RobertaModel", {}),
        ("LlamaModel", {"num_key_value_heads": 2}),
        ("MistralModel", {"num_key_value_heads": 2, "sliding_window": 5}),
    ],
)
def test_a_new_length_captures_nothing_and_gives_what_the_model_gives(
    name: str, options: dict[str, Any], captures: list[graphs.CapturedGraph]
) -> None:
    served = model(name, **options)
    run = compiled(served, [16, 32])
    calls = [(9, [9, 4]), (12, [7, 12]), (16, [16, 2]), (5, [3, 5]), (31, [31, 17]), (20, [2, 20])]
    kept = []
    for length, lengths in calls:
        tokens = ids(2, length)
        expected = served(tokens, actual_seq_lengths=lengths)[0]
        got = run(tokens, actual_seq_lengths=lengths)[0]
        assert_rows(got, expected, lengths)
        kept.append((got, got.clone()))
    assert len(captures) == 2
    assert all(torch.equal(now, then) for now, then in kept)  # results belong to the caller


def test_another_batch_is_another_capture(captures: list[graphs.CapturedGraph]) -> None:
    run = compiled(small(), [16])
    for batch in (2, 3, 2):
        run(ids(batch, 9), actual_seq_lengths=[9, 4, 3][:batch])
    assert len(captures) == 2


def test_a_length_beyond_the_largest_bucket_runs_uncaptured_and_says_so_once(
    captures: list[graphs.CapturedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    served = small()
    run = compiled(served, [8])
    with caplog.at_level(logging.WARNING, logger="bringup"):
        for length in (11, 12, 7):
            tokens, lengths = ids(2, length), [length, 3]
            assert_rows(
                run(tokens, actual_seq_lengths=lengths)[0],
                served(tokens, actual_seq_lengths=lengths)[0],
                lengths,
            )
    assert len(captures) == 1
    assert caplog.text.count("length 11 is beyond the largest bucket, 8") == 1
    assert "length 12" not in caplog.text


def test_a_bucket_longer_than_the_model_can_is_not_used(
    captures: list[graphs.CapturedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    served = model()
    run = compiled(served, [16, 100])
    with caplog.at_level(logging.WARNING, logger="bringup"):
        tokens, lengths = ids(2, 50), [50, 3]  # the model has 64 positions
        got = run(tokens, actual_seq_lengths=lengths)[0]
    assert_rows(got, served(tokens, actual_seq_lengths=lengths)[0], lengths)
    assert captures == []
    assert "length 50 cannot be padded to 100" in caplog.text


def test_a_bucket_longer_than_a_table_of_positions_is_not_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = torch.randn(12, 8)

    def embedded(x: Tensor, lengths: list[int]) -> Tensor:
        positions = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        return attend(x + torch.nn.functional.embedding(positions, table), lengths)

    run = compiled(embedded, [16])
    with caplog.at_level(logging.WARNING, logger="bringup"):
        for length in (9, 11):
            x = torch.randn(2, length, 8)
            torch.testing.assert_close(run(x, [length, 2]), embedded(x, [length, 2]))
    assert caplog.text.count("length 9 cannot be padded to 16: ") == 1


def test_a_length_longer_than_its_rows_is_refused_though_a_bucket_holds_it() -> None:
    run = compiled(attend, [16])
    run(torch.randn(2, 9, 8), [8, 4])
    for wrong in ([10, 4], [3, -1]):
        with pytest.raises(KernelError, match="must lie between 0 and the padded length"):
            run(torch.randn(2, 9, 8), wrong)


def test_a_histogram_makes_the_ladder(captures: list[graphs.CapturedGraph]) -> None:
    run = compiled(small(), {6: 10, 12: 5, 13: 1}, max_captures=2)
    for length in (5, 6, 9, 13):
        run(ids(2, length), actual_seq_lengths=[length, 2])
    assert len(captures) == 2


def test_fewer_captures_than_buckets_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="bringup"):
        for most, said in ((4, 0), (3, 1)):
            run = compiled(small(), [4, 8, 16, 32], max_captures=most)
            for length in (3, 7):
                run(ids(2, length), actual_seq_lengths=[length, 2])
            words = "4 buckets, but option 'max_captures' keeps 3 captures"
            assert caplog.text.count(words) == said


def test_auto_pads_by_a_third_at_most(captures: list[graphs.CapturedGraph]) -> None:
    run = compiled(small(), "auto")
    for length in (9, 16, 17, 24, 25):
        run(ids(2, length), actual_seq_lengths=[length, 2])
    assert len(captures) == 3


def test_two_threads_get_their_own_results() -> None:
    served = small()
    run = compiled(served, [16])
    run(ids(2, 9), actual_seq_lengths=[9, 2])
    calls = [(ids(2, n), [n, n - 2]) for n in (4, 7, 9, 12, 15, 16)]
    expected = [served(tokens, actual_seq_lengths=lengths)[0] for tokens, lengths in calls]
    errors: list[BaseException] = []

    def serve(order: list[int]) -> None:
        try:
            with torch.no_grad():
                for i in order * 5:
                    tokens, lengths = calls[i]
                    got = run(tokens, actual_seq_lengths=lengths)[0]
                    assert_rows(got, expected[i], lengths)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=serve, args=(order,)) for order in ([0, 2, 4], [5, 3, 1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def attend(x: Tensor, lengths: list[int]) -> Tensor:
    q = x.view(x.shape[0], x.shape[1], 2, 4).transpose(1, 2)
    return torch.ops.bringup.attention(q, q, q, lengths, 0.5).flatten(2)  # type: ignore[no-any-return]


PADDING_COUNTS: dict[str, Callable[[Tensor, list[int]], Tensor]] = {
    "aten::mean": lambda x, n: attend(x, n).mean(1),
    "aten::amax": lambda x, n: (attend(x, n) + 1).amax(1),
    "aten::_softmax": lambda x, n: attend(x, n).softmax(1),
    "aten::flip": lambda x, n: attend(x, n).flip(1),
    "aten::roll": lambda x, n: attend(x, n).roll(1, 1),
    "aten::bmm": lambda x, n: attend(x, n).transpose(1, 2) @ x,
    "aten::mul": lambda x, n: attend(x, n) * x.shape[1],
    "aten::select": lambda x, n: attend(x, n)[:, -1],
    "aten::slice": lambda x, n: attend(x, n)[:, 2:] + 1,
    "aten::view": lambda x, n: attend(x, n).reshape(x.shape[1], x.shape[0], 8) + 1,
    "aten::convolution": lambda x, n: (
        torch.conv1d(attend(x, n).mT, x.new_ones(8, 8, 3), padding=1).mT
    ),
    "aten::sort": lambda x, n: attend(x, n).sort(1)[0],
    "aten::rand_like|aten::rand": lambda x, n: attend(x, n) + torch.rand_like(x),
    "arange": lambda x, n: attend(x, n) + torch.arange(x.shape[1], 0, -1).view(1, -1, 1),
}


@pytest.mark.parametrize("name", PADDING_COUNTS)
def test_a_graph_in_which_padding_counts_is_not_padded(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    function = PADDING_COUNTS[name]
    run = compiled(function, [16])
    with caplog.at_level(logging.WARNING, logger="bringup"):
        for length in (9, 11):
            x = torch.randn(2, length, 8)
            got = run(x, [length - 1, 4])
            if "rand" not in name:
                torch.testing.assert_close(got, function(x, [length - 1, 4]))
    assert "is not padded to buckets" in caplog.text


BY_ROWS: dict[str, Callable[[Tensor, list[int]], Tensor]] = {
    "pool": lambda x, n: torch.ops.bringup.mean_pool(attend(x, n), n, True),
    "first row": lambda x, n: attend(x, n)[:, 0] * 2,
    "another dimension": lambda x, n: attend(x, n).softmax(-1) + x.mean(-1, keepdim=True),
    "merged rows": lambda x, n: (attend(x, n).view(-1, 8) @ torch.ones(8, 8)).view_as(x),
    "transposed": lambda x, n: (attend(x, n).transpose(0, 1) + 1).transpose(0, 1),
    "joined": lambda x, n: torch.cat([attend(x, n), x], -1).split(8, -1)[1] + 1,
    "prefix": lambda x, n: attend(x, n).cumsum(1),
    "positions": lambda x, n: attend(x, n) + torch.arange(x.shape[1]).view(1, -1, 1),
    "the length itself": lambda x, n: (attend(x, n), x.shape[1]),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("name", BY_ROWS)
def test_a_graph_of_rows_is_padded(name: str, captures: list[graphs.CapturedGraph]) -> None:
    function = BY_ROWS[name]
    run = compiled(function, [16])
    for lengths in ([8, 4], [11, 3], [2, 13]):
        x = torch.randn(2, max(lengths) + 1, 8)
        torch.testing.assert_close(run(x, lengths), function(x, lengths))
    assert len(captures) == 1


def test_a_graph_without_lengths_is_captured_for_each_size(
    captures: list[graphs.CapturedGraph], caplog: pytest.LogCaptureFixture
) -> None:
    run = compiled(lambda x: torch.relu(x) + 1, [16])
    with caplog.at_level(logging.WARNING, logger="bringup"):
        for length in (4, 5):
            run(torch.randn(2, length))
    assert len(captures) == 2
    assert "not padded to buckets: no operator of it takes actual_seq_lengths" in caplog.text


def test_a_static_length_says_how_it_becomes_symbolic(caplog: pytest.LogCaptureFixture) -> None:
    run = torch.compile(
        attend, backend="bringup", dynamic=False, options={"mode": "serve", "buckets": [16]}
    )
    with caplog.at_level(logging.WARNING, logger="bringup"):
        run(torch.randn(2, 9, 8), [8, 4])
    assert "its length is 9, not symbolic: compile with dynamic=True" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"buckets": [16, 8]}, "rising sizes"),
        ({"buckets": []}, "rising sizes"),
        ({"buckets": [0]}, "rising sizes"),
        ({"buckets": "all"}, "rising sizes"),
        ({"buckets": {}}, "no length above 0"),
        ({"buckets": [8], "mode": "default"}, "needs captures"),
        ({"buckets": [8], "capture": False}, "needs captures"),
    ],
)
def test_wrong_buckets_are_refused_when_compile_is_called(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BringupError, match=words):
        torch.compile(attend, backend="bringup", options={"mode": "serve", **options})
