"""The driver's device files, and whether this user may open them. They are looked at, never opened."""

from __future__ import annotations

import re
import stat

from text_generation_launcher.doctor.facts import DeviceNode, NodeFacts
from text_generation_launcher.doctor.host import FileOwner, Host

_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


def probe_nodes(host: Host) -> NodeFacts:
    users, groups = _names(host, "/etc/passwd"), _names(host, "/etc/group")
    numbers = sorted(
        int(match[1]) for match in map(re.compile(r"davinci([0-9]+)").fullmatch, host.names("/dev")) if match
    )
    cards = [f"/dev/davinci{number}" for number in numbers]
    owners = {path: host.owner(path) for path in (*cards, *_MANAGERS)}

    def nodes(paths: list[str] | tuple[str, ...]) -> tuple[DeviceNode, ...]:
        found = ((path, owners[path]) for path in paths)
        return tuple(_node(host, path, owner, users, groups) for path, owner in found if owner is not None)

    return NodeFacts(
        cards=nodes(cards),
        managers=nodes(_MANAGERS),
        missing_managers=tuple(path for path in _MANAGERS if owners[path] is None),
        user=users.get(host.user_id, str(host.user_id)),
        groups=tuple(groups.get(group, str(group)) for group in sorted(host.group_ids)),
        in_container=host.exists("/.dockerenv") or host.exists("/run/.containerenv") or _is_pod(host),
    )


def _is_pod(host: Host) -> bool:
    return "KUBERNETES_SERVICE_HOST" in host.environ


def _node(host: Host, path: str, owner: FileOwner, users: dict[int, str], groups: dict[int, str]) -> DeviceNode:
    user = users.get(owner.user_id, str(owner.user_id))
    group = groups.get(owner.group_id, str(owner.group_id))
    return DeviceNode(path, stat.filemode(owner.mode)[1:], f"{user}:{group}", host.may_open(owner))


def _names(host: Host, file: str) -> dict[int, str]:
    """Number -> name, of /etc/passwd or /etc/group."""
    fields = (line.split(":") for line in (host.text(file) or "").splitlines())
    return {int(parts[2]): parts[0] for parts in fields if len(parts) > 2 and parts[2].isdigit()}
