"""The committed stubs are what `make proto` makes of generate.proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
STUBS = ("generate_pb2.py", "generate_pb2.pyi", "generate_pb2_grpc.py")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proto")
    # -o: the environment that runs this test is there; it is not to be made, nor made anew.
    command = ["make", "-o", ".venv/.installed", "proto", f"PROTO_OUT={folder}", f"BIN={Path(sys.executable).parent}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder / "text_generation_proto"


@pytest.mark.parametrize("name", STUBS)
def test_committed_stub_is_up_to_date(made: Path, name: str) -> None:
    committed = ROOT / "proto" / "text_generation_proto" / name
    assert committed.read_text() == (made / name).read_text(), "run `make proto` and commit what it wrote"
