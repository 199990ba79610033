"""The garbage collector is paused for blocks only, and left as it was found."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bringup._garbage_collection import collector_paused


@pytest.fixture(autouse=True)
def _enabled_afterwards() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_paused_until_the_last_of_overlapping_blocks_ends() -> None:
    outer, inner = collector_paused(), collector_paused()
    outer.__enter__()
    assert not gc.isenabled()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert not gc.isenabled()
    inner.__exit__(None, None, None)
    assert gc.isenabled()


def test_it_goes_on_after_a_block_that_raises() -> None:
    with pytest.raises(KeyError), collector_paused():
        raise KeyError
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
