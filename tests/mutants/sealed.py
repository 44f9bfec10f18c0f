"""Faults in what a sealed result is bound to, and in how a sealed store knows it."""

from mutants.fault import Fault

ORIGINS, SEAL, SEALED = "codecs/origins.py", "codecs/seal.py", "codecs/sealed.py"
PARTS = "return key.tenant, key.scope, key.name, self.fingerprint, str(self.attempt), self.owner, created"

FAULTS = [
    Fault("a result opens under another request", ORIGINS, PARTS, PARTS.replace("self.fingerprint, ", "")),
    Fault("a result opens in another attempt", ORIGINS, PARTS, PARTS.replace("str(self.attempt), ", "")),
    Fault("a result opens under another owner", ORIGINS, PARTS, PARTS.replace("self.owner, ", "")),
    Fault(
        "an operator's result opens in a later life", ORIGINS, PARTS, PARTS.replace("self.owner, created", "self.owner")
    ),
    Fault("a result opens under another key", ORIGINS, PARTS, PARTS.replace("key.name, ", "")),
    Fault("a failure opens as a success", SEAL, ', name, b"%d" % ok)', ", name)"),
    Fault(
        "what another version sealed passes for plain",
        SEAL,
        "            if result.format.startswith(ANY_FORMAT):",
        "            if False:",
    ),
    Fault(
        "claims that have ended are remembered", ORIGINS, "        self._known.pop((key, owner), None)", "        pass"
    ),
    Fault(
        "the memory of claims has no bound",
        ORIGINS,
        "                self._known.popitem(last=False)",
        "                pass",
    ),
    Fault(
        "claims are not remembered",
        SEALED,
        "        self._origins.remember(claimed, fingerprint)\n",
        "",
        2,
    ),
    Fault(
        "an operator's result is bound to what was seen",
        SEALED,
        "Origin.resolved(there or seen)",
        "Origin.resolved(seen)",
        2,
    ),
]
