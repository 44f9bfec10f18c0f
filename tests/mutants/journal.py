"""Faults in a caller's journal: keys, leases, ages, what is on the disk, and what is sealed."""

from mutants.fault import Fault

CORE, MODEL = "core/journal.py", "core/journal_model.py"
JOURNAL, SQLITE = "client/journal.py", "client/sqlite.py"
FILE, SCHEMA, ROWS = "client/file.py", "client/schema.py", "client/rows.py"

FAULTS = [
    Fault(
        "a lease is ignored",
        MODEL,
        "elif entry.is_held(now_ms):\n        return book, IntentHeld",
        "elif False:\n        return book, IntentHeld",
    ),
    Fault(
        "a dead sender's lease never ends",
        CORE,
        "return self.owner != NOBODY and now_ms < self.lease_until_ms",
        "return self.owner != NOBODY",
    ),
    Fault(
        "the sender that takes over brings a new key",
        MODEL,
        "entry, owner=call.owner, lease_until_ms",
        "entry, key=call.key, owner=call.owner, lease_until_ms",
    ),
    Fault(
        "an answer is overwritten",
        MODEL,
        "entry.key != call.key or entry.state is IntentState.ANSWERED:",
        "entry.key != call.key:",
    ),
    Fault(
        "an answer under another key is kept",
        MODEL,
        "entry is None or entry.key != call.key or entry.state is",
        "entry is None or entry.state is",
    ),
    Fault(
        "another request under the name is sent",
        MODEL,
        "elif entry.request.digest != (digest := call.request.digest):",
        "elif not (digest := call.request.digest):",
    ),
    Fault("the body is no part of the digest", CORE, "for text in texts), self.body)", "for text in texts),)"),
    Fault(
        "any sender renews, begins and leaves",
        MODEL,
        "entry.owner == owner != NOBODY else None",
        "owner != NOBODY else None",
    ),
    Fault(
        "an intent past its max_age is sent",
        MODEL,
        "is IntentState.DOUBTFUL or entry.is_too_old(now_ms):",
        "is IntentState.DOUBTFUL:",
    ),
    Fault(
        "an attempt begins past max_age", MODEL, "if entry is None or entry.is_too_old(now_ms):", "if entry is None:"
    ),
    Fault(
        "at max_age it is sent once more",
        CORE,
        "now_ms - self.created_ms >= self.max_age_ms",
        "now_ms - self.created_ms > self.max_age_ms",
    ),
    Fault(
        "a longer max_age makes it younger",
        MODEL,
        "max_age_ms=min(entry.max_age_ms, call.max_age_ms)",
        "max_age_ms=call.max_age_ms",
    ),
    Fault(
        "its age begins anew with each sender",
        MODEL,
        "entry, owner=call.owner, lease_until_ms",
        "entry, created_ms=now_ms, owner=call.owner, lease_until_ms",
    ),
    Fault(
        "an intent in doubt is sent again",
        MODEL,
        "if entry.state is IntentState.DOUBTFUL or entry.is_too_old(now_ms):",
        "if entry.is_too_old(now_ms):",
    ),
    Fault("a doubt is forgotten", MODEL, "IntentState.DOUBTFUL if call.in_doubt else entry.state", "entry.state"),
    Fault(
        "an intent is forgotten while it is sent",
        MODEL,
        "entry.key != call.key or entry.is_held(now_ms):",
        "entry.key != call.key:",
    ),
    Fault("open intents are purged (model)", MODEL, "and entry.state is IntentState.ANSWERED\n        and", "and"),
    Fault(
        "open intents are purged",
        SQLITE,
        "namespace = ? AND state = 'answered' AND finished_ms <= ?",
        "namespace = ? AND finished_ms <= ?",
    ),
    Fault(
        "credentials are kept",
        CORE,
        "            if name.lower() in REQUEST_HEADERS or (key and value.strip() == key)\n",
        "",
    ),
    Fault(
        "a transaction that reads first does not lock",
        FILE,
        """connection.execute("BEGIN IMMEDIATE")
                schema""",
        """connection.execute("BEGIN")
                schema""",
    ),
    Fault(
        "the reply is given without a commit",
        FILE,
        """yield connection
                connection.execute("COMMIT")""",
        """yield connection
                connection.execute("ROLLBACK")""",
    ),
    Fault("commits are not synced", FILE, "PRAGMA synchronous = FULL", "PRAGMA synchronous = OFF"),
    Fault("an answer is not written", SQLITE, "outcome = :outcome", "outcome = outcome"),
    Fault(
        "names in other namespaces are listed",
        SQLITE,
        "WHERE namespace = ? AND name > ? AND",
        "WHERE namespace >= ? AND name > ? AND",
    ),
    Fault("the umask takes the owner's right away", FILE, "os.fchmod(descriptor, MODE)", "os.fchmod"),
    Fault("everybody may read the file", FILE, "MODE = 0o600", "MODE = 0o644"),
    Fault("a file that was removed is written to", FILE, "if self._look() != self._identity:", "if False:"),
    Fault("the journal of a newer version is written to", SCHEMA, "> SCHEMA_VERSION:", "> 1_000:"),
    Fault(
        "another program's database is written to",
        SCHEMA,
        "if application != APPLICATION_ID and (tables or version or application):",
        "if application != APPLICATION_ID and version:",
    ),
    Fault(
        "what is sealed is not bound to its name",
        ROWS,
        'Key(name.namespace, f"journal: {part}", name.name)',
        'Key(name.namespace, f"journal: {part}", "-")',
    ),
    Fault(
        "what is sealed is not bound to its namespace",
        ROWS,
        'Key(name.namespace, f"journal: {part}", name.name)',
        'Key("", f"journal: {part}", name.name)',
    ),
    Fault("what is sealed is not bound to its key", ROWS, "key, 0, NOBODY, created_ms)", '"", 0, NOBODY, created_ms)'),
    Fault("what is sealed is not bound to its age", ROWS, "key, 0, NOBODY, created_ms)", "key, 0, NOBODY, 0)"),
    Fault(
        "an answer is not sealed",
        ROWS,
        'outcome = self._close(plain, _origin("outcome", entry.id, entry.key, entry.created_ms))',
        "outcome = msgspec.msgpack.encode(KeptPart(PLAIN, plain))",
    ),
    Fault("a sealed journal is opened without its keys", SCHEMA, "elif mark is not None:", "elif False:"),
    Fault(
        "a sealed journal is opened with other keys",
        SCHEMA,
        "        if mark is not None:\n            _open_mark(seal, mark, path)\n",
        "",
    ),
    Fault("an old key is never given up", SCHEMA, "if mark is None or not seal.is_current(mark):", "if mark is None:"),
    Fault(
        "what is past max_age is resumed",
        JOURNAL,
        "if found.state is IntentState.OPEN and found.is_too_old(wall_clock_ms()):",
        "if False:",
    ),
    Fault("what is in doubt is resumed", JOURNAL, "raise Indeterminate.of(found, CallRefusal.DOUBTFUL)", "pass"),
    Fault(
        "what was forgotten is resumed under a new key",
        JOURNAL,
        "if found is None or found.key != entry.key:",
        "if found is None:",
    ),
]
