"""The settings as text: the template of `.env`, and the page of the documentation.

python -m aibs.settings.reference     # writes .env.example and docs/settings.md
"""

from __future__ import annotations

from pathlib import Path

from aibs.settings.document import shown_value
from aibs.settings.fields import FIELDS, Variables, traits, variable

TITLES = {
    "coordination": "Coordination",
    "roster": "Roster",
    "cluster": "Cluster: the shared fleet",
    "log": "The log, the queue and what they bound",
    "gateway": "Gateway and logs",
    "tests": "Tests",
}


def _grouped() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {group: [] for group in TITLES}
    for field in FIELDS:
        groups[traits(field)[0]].append(field)
    return groups


def _default(field: str) -> str:
    return shown_value(field, Variables.model_fields[field].default)


def env_example() -> str:
    """`.env.example`: every setting at its default, commented out."""
    lines = [
        "# Every setting of aibs with its default. Copy to .env and uncomment what you change;",
        "# the environment goes before .env. `aibs config check` shows what is in force.",
    ]
    for group, fields in _grouped().items():
        lines += ["", f"# --- {TITLES[group]}"]
        for field in fields:
            lines += [
                f"# {Variables.model_fields[field].description}",
                f"#{variable(field)}={_default(field)}",
            ]
    return "\n".join(lines) + "\n"


def markdown() -> str:
    """`docs/settings.md`."""
    lines = [
        "# Settings",
        "",
        "From the environment, over `.env` in the working directory. An empty variable is one that "
        "is not set. Lists are",
        "comma-separated; times are seconds, fractions allowed, unless the name ends in `_MS`; GB "
        "are 10^9 bytes.",
        "",
        "Every fault is reported at once, with exit status 2: the variable, what is wrong, the "
        "mend. An unknown `AIBS_` name is a",
        "warning with the nearest known one, because environments share `.env` files between "
        "releases;",
        "`aibs config check --strict` makes it a fault. So is a name that `.env` sets twice (the "
        "last counts). A line of `.env`",
        "that begins with a setting's name and is not `NAME=value` is a fault. Values are taken as "
        "they stand: `${...}` is not",
        "filled in. In a URL, write `/ ? # @ :` of a user or password as `%2F %3F %23 %40 %3A`.",
        "",
        "Rules that bind several settings:",
        "",
        "- monitor lease TTL > poll interval + poll timeout",
        "- poll interval + lease TTL + standby retry + 2 x poll timeout ≤ max residency staleness",
        "- history TTL ≥ history window; heartbeat interval < active lease TTL / 3",
        "- one URL for each node id, all different; budgets, slots, telemetry URLs and memory "
        "kinds one for each node or none",
        "- with `AIBS_MODEL_CLUSTER_ENABLED=true`: no memory backend; budgets and slots given; an "
        "embedded pool only with",
        "  `AIBS_MODEL_CLUSTER_SINGLE_HOST=true`",
    ]
    for group, fields in _grouped().items():
        lines += [
            "",
            f"## {TITLES[group]}",
            "",
            "| variable | default | what it is |",
            "|---|---|---|",
        ]
        for field in fields:
            default = _default(field)
            shown = f"`{default}`" if default else "(empty)"
            description = (Variables.model_fields[field].description or "").replace("|", "\\|")
            lines.append(f"| `{variable(field)}` | {shown} | {description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(".env.example").write_text(env_example(), "utf-8")
    Path("docs/settings.md").write_text(markdown(), "utf-8")
