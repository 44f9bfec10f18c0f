"""Faults in how several servers are asked: routes, walks, the wait for replicas, and what is done about a refusal."""

from mutants.fault import Fault

CLUSTER, SENTINEL, SLOTS = (f"stores/redis/{name}.py" for name in ("cluster", "sentinel", "slots"))
COMMANDS, DRIVER, FAILURES = (f"stores/redis/{name}.py" for name in ("commands", "driver", "failures"))
SERVERS, SPREAD, WALK = (f"stores/redis/{name}.py" for name in ("servers", "spread", "walk"))
OPERATE, SCRIPTS, AIO = (f"stores/redis/{name}.py" for name in ("operate", "scripts", "aio"))
LATER = "            case _ if isinstance(reply, NOT_NOW):"
UNREACHED = "isinstance(found, Unreached) and sending.commands[index].node is None"

FAULTS = [
    Fault("what may have happened is sent again", CLUSTER, UNREACHED, UNREACHED.replace("Unreached", "StoreError")),
    Fault("a node that cannot be reached is the caller's error", CLUSTER, UNREACHED, "False"),
    Fault(
        "after a failure the old map is used",
        CLUSTER,
        "            self._stale = True\n            for index",
        "            for index",
    ),
    Fault(
        "an ask is remembered as a move",
        CLUSTER,
        LATER,
        f"                self._slots.move(reply.slot_id, sending.asked[index])\n{LATER}",
    ),
    Fault(
        "an ask is sent without asking",
        CLUSTER,
        "                words.append(ASKING)\n                indexes.append(-1)\n",
        "                pass\n",
    ),
    Fault(
        "a moved slot is forgotten",
        CLUSTER,
        "self._slots.move(reply.slot_id,",
        "sending.asked.__setitem__(index,",
    ),
    Fault(
        "a node without a name is nowhere",
        CLUSTER,
        "self._slots.move(reply.slot_id, (reply.host or part.address[0]",
        "self._slots.move(reply.slot_id, (reply.host",
    ),
    Fault("moved slots never lead to a new map", CLUSTER, "self._slots.moved > MOVED_MAX", "False"),
    Fault(
        "a cluster that is down is an error at once",
        CLUSTER,
        "case _ if isinstance(reply, NOT_NOW):",
        "case _ if False:",
    ),
    Fault("nodes that do not agree are asked without rest", CLUSTER, " or hops > HOPS_MAX):", "):"),
    Fault(
        "a slot without a node is asked of any",
        CLUSTER,
        "            return self._slots.owner(slot_of(command.key))\n",
        "            return self._slots.owner(slot_of(command.key)) or self._slots.masters()[0]\n",
    ),
    Fault(
        "operators see a part as if it were everything", CLUSTER, "failure is None and not missing:", "failure is None:"
    ),
    Fault("a listener always goes to the same node", CLUSTER, "masters[self._doors % len(masters)]", "masters[0]"),
    Fault(
        "all callers share one error object", CLUSTER, "sending.end(index, again(found))", "sending.end(index, found)"
    ),
    Fault(
        "nodes share one lane", CLUSTER, "        return self._slots.owner(slot_of(name))\n", "        return None\n"
    ),
    Fault(
        "a slot too few is read",
        SLOTS,
        "owners[first : last + 1] = [address] * (last + 1 - first)",
        "owners[first:last] = [address] * (last - first)",
    ),
    Fault(
        "the master is asked for once",
        SENTINEL,
        "if now_s >= self._asked_s + AGAIN_S:",
        "if self._asked_s == 0.0 and self._master is None:",
    ),
    Fault(
        "a demoted master's refusal is the caller's error",
        SENTINEL,
        "        if refusal is not None:",
        "        if False:",
    ),
    Fault(
        "a refusal inside of a script is not seen",
        SENTINEL,
        "return reply if isinstance(reply, list) else [reply]",
        "return [reply]",
    ),
    Fault("a lost connection to the master is followed", SENTINEL, "if not isinstance(found, Unreached):", "if False:"),
    Fault(
        "a master that failed is kept",
        SENTINEL,
        "        if isinstance(found, StoreError):\n            self._master = None\n",
        "        if isinstance(found, StoreError):\n",
    ),
    Fault(
        "a dead sentinel ends the search",
        SENTINEL,
        "        for address in list(self._sentinels):",
        "        for address in self._sentinels[:1]:",
    ),
    Fault("a grant needs no confirmation", COMMANDS, "isinstance(each, list) or each == 1 for", "each == 1 for"),
    Fault(
        "a completion needs no confirmation",
        COMMANDS,
        "isinstance(each, list) or each == 1 for",
        "isinstance(each, list) for",
    ),
    Fault(
        "a replay waits for replicas",
        COMMANDS,
        "isinstance(each, list) or each == 1 for",
        "isinstance(each, list | bytes) or each == 1 for",
    ),
    Fault("too few replicas are enough", DRIVER, "count >= wanted", "count >= 0"),
    Fault("no claim waits for replicas", SCRIPTS, "confirms=has_changed), _claim", "confirms=None), _claim"),
    Fault("what was not confirmed is read as if it was", SCRIPTS, "confirms=has_found", "confirms=None"),
    Fault("the role of a master is not asked", DRIVER, '    if found[0] != b"master":', "    if not found:"),
    Fault("nothing was sent, but it may have happened", FAILURES, "Unreached(str(made)) if", "made if"),
    Fault("a cluster's node is used alone", FAILURES, "^(MovedError|", "^("),
    Fault("records of one slot share a script", SPREAD, "groups.setdefault(name, [])", "groups.setdefault(b'', [])"),
    Fault(
        "a batch waits for the slowest node",
        AIO,
        "return type(call) if route is None else",
        "return type(call) if route else",
    ),
    Fault("a walk forgets what it has walked through", WALK, "done = self.done | self.slots", "done = self.slots"),
    Fault(
        "a slot that left during a pass is not walked again",
        WALK,
        "replace(self, slots=self.slots & here.slots), here",
        "self, here",
    ),
    Fault(
        "a promoted replica is walked from a cursor of the old master",
        WALK,
        "if node.name == self.node and node.slots & self.slots",
        "if node.slots & self.slots",
    ),
    Fault("a slot that came is walked twice", WALK, "here.slots & ~self.done), here", "here.slots), here"),
    Fault("a purge ignores its limit", OPERATE, "else limit - gone\n", "else len(names)\n"),
    Fault(
        "only the first server is checked", SERVERS, "drive(check(self._settings), partial(self.ask, due_s))", "None"
    ),
]
