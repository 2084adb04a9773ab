"""Driver, CANN and NNAL as files and variables show them, installed by root or into a user's home."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator

from text_generation_launcher.doctor.facts import AscendFacts, Installation
from text_generation_launcher.doctor.host import Host

# What torch_npu's own libraries are linked against. NNAL's libatb is looked for apart: only some ops need it.
LIBRARIES = (
    "libascendcl.so",
    "libhccl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
)
_DRIVER_INFO = "/usr/local/Ascend/driver/version.info"
_SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"


def probe_ascend(host: Host) -> AscendFacts:
    home = host.environ.get("ASCEND_HOME_PATH") or host.environ.get("ASCEND_TOOLKIT_HOME") or None
    installations = tuple(_installations(host, home))
    cann = next(iter(installations), None)
    folders = _library_folders(host)
    return AscendFacts(
        driver_version=_driver_version(host),
        home=home,
        cann=cann,
        installations=installations,
        missing_libraries=tuple(name for name in LIBRARIES if not _is_in(host, folders, name)),
        kernels=_kernels(host, cann),
        nnal=_nnal(host),
        nnal_home=host.environ.get("ATB_HOME_PATH") or None,
        has_libatb=_is_in(host, folders, "libatb.so"),
    )


def _driver_version(host: Host) -> str | None:
    text = host.text(_DRIVER_INFO)
    return None if text is None else _value(text, "Version")


def _places(host: Host) -> list[str]:
    """Where Ascend software is installed: by root, or by a user into the home directory."""
    own = host.environ.get("HOME", "")
    return ["/usr/local/Ascend", *([f"{own.rstrip('/')}/Ascend"] if own else [])]


def _installations(host: Host, home: str | None) -> Iterator[Installation]:
    """Every CANN found, that of ASCEND_HOME_PATH first, each folder once."""
    seen = set()
    candidates = [home] if home else []
    for place in _places(host):
        candidates += [f"{place}/ascend-toolkit/latest", f"{place}/cann"]
        candidates += [f"{place}/{name}" for name in reversed(host.names(place)) if name.startswith("cann-")]
    for path in candidates:
        folder = host.path(path)
        if not host.exists(path) or folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        yield Installation(path, _cann_version(host, path), _set_env(host, path))


def _cann_version(host: Host, home: str) -> str:
    """From whichever file this release of CANN keeps it in."""
    configured = host.text(f"{home}/version.cfg") or ""
    for component in ("toolkit", "runtime"):
        match = re.search(rf"^{component}_running_version=\[[^:\]]*:([^\]]+)\]", configured, re.MULTILINE)
        if match:
            return match[1]
    for name in (f"{platform.machine()}-linux/ascend_toolkit_install.info", "ascend_toolkit_install.info"):
        if version := _value(host.text(f"{home}/{name}") or "", "version"):
            return version
    return _value(host.text(f"{home}/runtime/version.info") or "", "Version")


def _set_env(host: Host, home: str) -> str:
    """ascend-toolkit/latest has its script one level up, cann beside it."""
    parent = home.rstrip("/").rpartition("/")[0]
    return next((path for path in (f"{home}/set_env.sh", f"{parent}/set_env.sh") if host.exists(path)), "")


def _kernels(host: Host, cann: Installation | None) -> tuple[str, ...]:
    if cann is None:
        return ()
    return tuple(name for name in host.names(f"{cann.path}/{_KERNELS}") if name.startswith("ascend"))


def _nnal(host: Host) -> Installation | None:
    """ATB_HOME_PATH is <NNAL>/atb/latest/atb/cxx_abi_1, and the version is kept two levels above."""
    home = host.environ.get("ATB_HOME_PATH", "").rstrip("/")
    found = [home.rsplit("/", 2)[0]] if home.count("/") > 2 else []
    found += [f"{place}/nnal/atb/latest" for place in _places(host)]
    for path in found:
        if host.exists(path):
            text = host.text(f"{path}/version.info") or ""
            match = re.search(r"^\s*Ascend-cann-atb\s*:\s*(\S+)", text, re.MULTILINE)
            return Installation(path, match[1] if match else "", _set_env(host, path))
    return None


def _library_folders(host: Host) -> list[str]:
    """Where the dynamic linker looks: LD_LIBRARY_PATH, the folders that ld.so.conf names, the system's own."""
    folders = [folder for folder in host.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for name in ("/etc/ld.so.conf", *(f"/etc/ld.so.conf.d/{name}" for name in host.names("/etc/ld.so.conf.d"))):
        folders += [line.strip() for line in (host.text(name) or "").splitlines() if line.startswith("/")]
    return [*folders, *_SYSTEM_LIBRARIES, *(f"/usr/lib/{name}" for name in host.names("/usr/lib") if "-linux" in name)]


def _is_in(host: Host, folders: list[str], library: str) -> bool:
    return any(host.exists(f"{folder}/{library}") for folder in folders)


def _value(text: str, key: str) -> str:
    """What a file of key=value lines says about a key, "" if nothing."""
    match = re.search(rf"^\s*{key}=(.*)$", text, re.MULTILINE)
    return match[1].strip().strip('"') if match else ""
