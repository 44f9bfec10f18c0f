"""Faults in the MariaDB store's statements, and in how their rows are read."""

from mutants.fault import Fault

QUERIES, SCRIPTS, OPERATE = (f"stores/mariadb/{name}.py" for name in ("queries", "scripts", "operate"))
FINISHED = "r.lease_until_ms = {clock(now_ms)}, r.expires_ms = {clock(now_ms)} + c.retention_ms"
LATER = "SET r.owner = '', r.lease_until_ms = {now} WHERE {HELD} AND r.attempt > 1"

FAULTS = [
    Fault("ownership is not asked for", QUERIES, "r.owner = c.owner AND r.state", "r.state"),
    Fault(
        "what is finished may be changed", QUERIES, "r.owner = c.owner AND r.state = {IN_PROGRESS}", "r.owner = c.owner"
    ),
    Fault("complete does not restart the retention", QUERIES, FINISHED, "r.lease_until_ms = {clock(now_ms)}"),
    Fault("complete does not end the lease", QUERIES, FINISHED, "r.expires_ms = {clock(now_ms)} + c.retention_ms"),
    Fault("complete loses how long to refuse", QUERIES, " r.refuse_ms = c.refuse_ms,", ""),
    Fault("complete stores no format", QUERIES, " r.format = c.format,", " r.format = 'value.1',"),
    Fault(
        "renew extends from the lease's end",
        QUERIES,
        "r.lease_until_ms = {clock(now_ms)} + c.lease_ms",
        "r.lease_until_ms = r.lease_until_ms + c.lease_ms",
    ),
    Fault("release forgets earlier attempts", QUERIES, "WHERE {HELD} AND r.attempt = 1", "WHERE {HELD}"),
    Fault("a released attempt stays with its owner", QUERIES, LATER, LATER.replace("r.owner = '', ", "")),
    Fault("a released attempt stays live", QUERIES, LATER, LATER.replace(", r.lease_until_ms = {now}", "")),
    Fault("a claim's lease has no length", QUERIES, "{now}, {now} + c.lease_ms,", "{now}, {now},"),
    Fault("a claim's retention is its lease", QUERIES, "\n    {now} + c.retention_ms", "\n    {now} + c.lease_ms"),
    Fault(
        "a resolution keeps the old result",
        QUERIES,
        "format = {literal(format)}, payload = {literal(payload)}\nWHERE",
        "format = format\nWHERE",
    ),
    Fault(
        "a live lease is purged",
        QUERIES,
        "r.expires_ms <= {now} AND r.lease_until_ms <= {now}",
        "r.expires_ms <= {now}",
    ),
    Fault(
        "a purge forgets what is still refused",
        QUERIES,
        "r.refuse_ms > 0 AND r.expires_ms + r.refuse_ms > {now}",
        "FALSE",
    ),
    Fault("a refused key keeps its result", QUERIES, "SET format = NULL, payload = NULL, expires_ms", "SET expires_ms"),
    Fault(
        "a refused key is never purged",
        QUERIES,
        "expires_ms = expires_ms + refuse_ms, refuse_ms = 0",
        "refuse_ms = refuse_ms",
    ),
    Fault("a repeated release is told yes", SCRIPTS, " and given.index(held) == number", ""),
    Fault(
        "a zombie is told that its release is done", SCRIPTS, "rows).items() if state == IN_PROGRESS}", "rows).items()}"
    ),
    Fault(
        "the last of two completes wins",
        SCRIPTS,
        "dict(zip(given[::-1], calls[::-1], strict=True))",
        "dict(zip(given, calls, strict=True))",
    ),
    Fault("renew revives a result", SCRIPTS, "row is None or row[0] != IN_PROGRESS", "row is None"),
    Fault(
        "get shows what is past retention",
        SCRIPTS,
        "model.read(checked(found[0], key), found[1])",
        "checked(found[0], key)",
    ),
    Fault(
        "a list shows what is past retention", OPERATE, 'f"NOT {PAST_RETENTION.format(now=now)}", f"{now}', 'f"{now}'
    ),
    Fault(
        "a list of one scope shows others",
        OPERATE,
        'f"r.scope = {literal(filter.scope)}"',
        '"TRUE"',
    ),
    Fault(
        "a lapsed lease counts as in progress",
        OPERATE,
        "r.state = {IN_PROGRESS} AND r.lease_until_ms > {{now}}",
        "r.state = {IN_PROGRESS}",
    ),
]
