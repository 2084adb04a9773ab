from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.implementations import IMPLEMENTATIONS, Backend, Implementation


@pytest.fixture(autouse=True)
def _inference_mode() -> Iterator[None]:
    """Ops are called as the server calls them."""
    with torch.inference_mode():
        yield


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.name, scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    implementation: Implementation = request.param
    return Backend(implementation)
