"""`text-generation-server report`: one file with all that a bug report needs, and with nothing that nobody may see."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from text_generation_server.report.secrets import HIDDEN, Redactor, belongs_to_serving, is_secret

SECTIONS = ["versions", "doctor", "packages", "environment", "npu-smi", "self-check", "left out"]


def report(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "text_generation_server", "report", *arguments]
    variables = {"PATH": f"{folder}/bin", "HOME": str(folder / "home"), "TEXT_GENERATION_CACHE": str(folder / "cache")}
    return subprocess.run(
        command,
        env={"DEVICE": "cpu", "PORT": "0", **variables, **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=folder,
    )


def part(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n\n")[1].split("\n## ", maxsplit=1)[0]


def command(folder: Path, name: str, script: str) -> None:
    (folder / "bin").mkdir()
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_report_has_all_its_parts_and_is_for_its_user_alone(tmp_path: Path) -> None:
    result = report(folder=tmp_path, MAX_TOTAL_TOKENS="128")
    assert (result.returncode, result.stderr) == (0, "")
    assert "read it through before you attach it" in result.stdout
    path = tmp_path / "text-generation-report.txt"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == SECTIONS
    doctor = json.loads(part(text, "doctor"))
    assert doctor["device"] == "cpu"
    assert doctor["options"]["max_total_tokens"] == "128 (MAX_TOTAL_TOKENS)"
    assert "\ntorch==2." in part(text, "packages")
    assert "pytest" not in part(text, "packages")
    assert "MAX_TOTAL_TOKENS=128" in part(text, "environment")
    assert part(text, "npu-smi").strip() == "npu-smi is not there"
    assert part(text, "left out").startswith("Left out: ")


def test_no_secret_gets_into_a_report(tmp_path: Path) -> None:
    secrets = {
        "HF_TOKEN": "hf_abcdefghijklmnopqrst",
        "API_KEY": "letmein-please",
        "MODELSCOPE_API_TOKEN": "0123456789abcdef",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
        "DB_PASSWORD": "correct horse battery",
    }
    log = tmp_path / "server.log"
    log.write_text(
        "\n".join(
            [
                *(f"{name.lower()} was {value}" for name, value in secrets.items()),
                "GET / Authorization: Bearer abc.def.ghi-jkl",
                '{"headers": {"authorization": "Basic dXNlcjpwYXNz"}}',
                "proxy http://user:hunter2@proxy:3128/",
                "another hf_ZYXWVUTSRQPONMLKJIHG",
                '"token": "s3cr3t-t0ken"',
                f"model in {tmp_path}/home/models/llama",
                "max_new_tokens=20 eos_token_id=2",
            ]
        )
    )
    result = report("-o", "-", "--log", str(log), folder=tmp_path, PROJECT="moonshot", **secrets)
    text = result.stdout
    for value in (
        *secrets.values(),
        "abc.def",
        "dXNlcjpw",
        "hunter2",
        "hf_ZYX",
        "s3cr3t",
        "moonshot",
        f"{tmp_path}/home",
    ):
        assert value not in text, value
    assert "model in ~/models/llama" in text
    assert "max_new_tokens=20 eos_token_id=2" in text
    assert f"HF_TOKEN={HIDDEN}" in part(text, "environment")
    left_out = part(text, "left out")
    assert "the values of HF_TOKEN, MODELSCOPE_API_TOKEN" in left_out
    assert "variables that have nothing to do with serving" in left_out
    assert "--log FILE" not in left_out


def test_the_end_of_the_log_is_taken_in(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    text = report("-o", "-", "--log", str(log), "--log-lines", "3", folder=tmp_path).stdout
    assert part(text, f"last 3 lines of {log}").split("\n") == ["line 997", "line 998", "line 999", ""]
    missing = report("-o", "-", "--log", "nowhere.log", folder=tmp_path).stdout
    assert "nowhere.log cannot be read: No such file or directory" in missing


def test_npu_smi_and_kept_self_checks_are_taken_in(tmp_path: Path) -> None:
    command(tmp_path, "npu-smi", 'if [ "$3" = topo ]; then echo no topo; exit 3; fi\necho "asked for $*"')
    (tmp_path / "cache/selfcheck").mkdir(parents=True)
    (tmp_path / "cache/selfcheck/Ascend910A.json").write_text('{"rms_norm": "passed"}')
    text = report("-o", "-", folder=tmp_path).stdout
    assert "$ npu-smi info -m\nasked for info -m" in part(text, "npu-smi")
    assert "$ npu-smi info -t topo\nno topo" in part(text, "npu-smi")
    assert 'Ascend910A.json:\n{"rms_norm": "passed"}' in part(text, "self-check")


def test_a_bad_option_or_file_is_one_line(tmp_path: Path) -> None:
    result = report("-o", f"{tmp_path}/no/such/folder.txt", folder=tmp_path)
    assert result.returncode == 1
    assert "cannot be written (No such file or directory); choose another with --output" in result.stderr
    assert report("--nonsense", folder=tmp_path).returncode == 2
    assert "--log-lines" in report("--help", folder=tmp_path).stdout


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "API_KEY", "apikey", "MY_SECRET_ID", "X_PASSWD", "HUAWEICLOUD_SDK_AK", "SK"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["MAX_TOTAL_TOKENS", "ASCEND_RT_VISIBLE_DEVICES", "MONKEY", "TASK_QUEUE_ENABLE", "DISK"]
)
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret(name)


def test_variables_of_other_things_are_not_shown() -> None:
    assert belongs_to_serving("HCCL_BUFFSIZE")
    assert belongs_to_serving("DTYPE", {"DTYPE"})
    assert not belongs_to_serving("DTYPE")
    assert not any(map(belongs_to_serving, ("USER", "SSH_CONNECTION", "AWS_REGION", "OLDPWD")))


def test_short_values_cut_no_holes_into_the_text() -> None:
    redact = Redactor({"X_KEY": "1", "HOME": "/home/me", "LONG_KEY": "abcdefgh"})
    assert redact("1 + 1 = 2 abcdefgh /home/me/x /home/men/x") == f"1 + 1 = 2 {HIDDEN} ~/x /home/men/x"
    assert Redactor({"HOME": "/"})("/usr/lib") == "/usr/lib"
