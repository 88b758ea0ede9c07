"""How a gateway starts, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aibs.demo.fleet import environment
from aibs.errors import ConfigurationError
from aibs.gateway import entry
from aibs.settings import load

if TYPE_CHECKING:
    from pathlib import Path

URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2")


def test_several_workers_that_each_admit_by_themselves_are_refused(tmp_path: Path) -> None:
    alone = {**environment(tmp_path, URLS), "AIBS_MODEL_CLUSTER_ENABLED": "false"}
    settings = load(alone, env_file=None)
    with pytest.raises(ConfigurationError, match="each admit requests") as refused:
        entry.run(settings, port=0, workers=2, local_anyway=True)
    assert "AIBS_MODEL_CLUSTER_ENABLED=true" in refused.value.mend
