"""Hugging Face's transformers as the command line uses it: kept off the network, and quiet."""

from __future__ import annotations

import os
from typing import Any


def offline_transformers() -> Any:
    """Return the module `transformers`, which downloads nothing; `ImportError` if none."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported for the first time
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    return transformers
