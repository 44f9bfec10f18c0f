"""The nemesis: kills, pauses, cuts, holds and restarts, in three lanes at once, and keeps count of what it did."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from blackbox.deployment import CONTROL, LEASE_S, Deployment
from semel.testing.proxy import Fault, FaultProxy, ProxyExchange, always

LANES_MAX = 8
HOLD_S = 0.6
HIT_S = 2.0
"""How long a fault waits for an exchange to happen to."""
CONTROL_CUT = "exchange with a client of the control: cut after"
EXCHANGE_FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.HALF_CLOSE, Fault.GARBLE, Fault.DELAY)


class Lanes:
    """Acts of violence in several lanes at once. `faults` counts what happened, by kind.

    A fault that met nothing did not happen.
    """

    def __init__(self, proxies: Sequence[FaultProxy], seed: int) -> None:
        self.faults: Counter[str] = Counter()
        self._proxies = proxies
        self._seed = seed
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(LANES_MAX, thread_name_prefix="nemesis")
        self._lanes: list[Future[None]] = []
        self._rounds: Counter[str] = Counter()

    def begin(self, *lanes: Callable[[random.Random], None]) -> None:
        for number, lane in enumerate(lanes):
            self._lanes.append(self._threads.submit(lane, random.Random(self._seed + number)))

    def stop(self) -> None:
        """End all lanes. Everything runs again, and nothing is held."""
        self._ended.set()
        for lane in self._lanes:
            lane.result()
        self._threads.shutdown()
        for proxy in self._proxies:
            proxy.clear()

    @property
    def failed(self) -> bool:
        """A lane has ended by an exception, which `stop` raises."""
        return any(lane.done() for lane in self._lanes)

    @property
    def went_around(self) -> bool:
        """Every lane has done everything that it can do."""
        return len(self._rounds) == len(self._lanes)

    def _count(self, kind: str) -> None:
        with self._lock:
            self.faults[kind] += 1

    def _acts(
        self, random: random.Random, kinds: Sequence[Callable[[random.Random], None]], *, pause_s: float
    ) -> Iterator[Callable[[random.Random], None]]:
        """Each kind in turn, in an order that changes every time around."""
        while True:
            for kind in random.sample(kinds, len(kinds)):
                if self._ended.wait(pause_s * random.uniform(0.5, 1.5)):
                    return
                yield kind
            self._rounds[kinds[0].__name__] += 1

    def _break(self, proxy: FaultProxy, fault: Fault, kind: str, when: Callable[[ProxyExchange], bool]) -> None:
        injected = proxy.inject(fault, when=when, delay_s=0.3)
        injected.wait(HIT_S)
        injected.cancel()
        if injected.hits:
            self._count(kind)


class Nemesis(Lanes):
    """That of three servers and three stores."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        super().__init__([*deployment.doors, *deployment.links.values()], seed)
        self._deployment = deployment

    def start(self) -> None:
        self.begin(self._processes, self._stores, self._wires)

    @property
    def thorough(self) -> bool:
        """Every lane has done everything that it can do, and the control has lost some answers."""
        return self.went_around and self.faults[CONTROL_CUT] >= 3

    def _processes(self, random: random.Random) -> None:
        for act in self._acts(random, (self._kill, self._pause), pause_s=1.2):
            act(random)

    def _stores(self, random: random.Random) -> None:
        kinds = (self._kill_store, self._hold_store, self._cut_store, *(self._break_store,) * 4)
        for act in self._acts(random, kinds, pause_s=0.5):
            act(random)

    def _wires(self, random: random.Random) -> None:
        for act in self._acts(random, (self._cut_clients, self._cut_control, *(self._break_wire,) * 3), pause_s=0.4):
            act(random)

    def _kill(self, random: random.Random) -> None:
        server = random.choice(self._deployment.servers)
        server.kill()
        self._count("server killed (SIGKILL)")
        server.start()

    def _pause(self, random: random.Random) -> None:
        server = random.choice(self._deployment.servers)
        server.pause()
        self._ended.wait(LEASE_S * 1.2)
        server.resume()
        self._count("server stopped past the lease (SIGSTOP)")

    def _kill_store(self, random: random.Random) -> None:
        name = random.choice(list(self._deployment.databases))
        self._deployment.databases[name].kill()
        self._count(f"{name} killed (SIGKILL) and restarted")
        self._deployment.databases[name].restart()

    def _hold_store(self, random: random.Random) -> None:
        name = random.choice(list(self._deployment.links))
        self._deployment.links[name].hold()
        self._ended.wait(HOLD_S)
        self._deployment.links[name].let_go()
        self._count(f"{name} out of reach")

    def _cut_store(self, random: random.Random) -> None:
        name = random.choice(list(self._deployment.links))
        if self._deployment.links[name].cut():
            self._count(f"all connections to {name} cut")

    def _break_store(self, random: random.Random) -> None:
        name = random.choice(list(self._deployment.links))
        fault = random.choice(EXCHANGE_FAULTS)
        self._break(self._deployment.links[name], fault, f"exchange with {name}: {shown(fault)}", always)

    def _break_wire(self, random: random.Random) -> None:
        fault = random.choice((Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.HALF_CLOSE, Fault.DELAY))
        self._break(random.choice(self._deployment.doors), fault, f"exchange with a client: {shown(fault)}", always)

    def _cut_control(self, random: random.Random) -> None:
        def unprotected(exchange: ProxyExchange) -> bool:
            return exchange.request.startswith(f"POST /{CONTROL}/".encode())

        self._break(random.choice(self._deployment.doors), Fault.CUT_AFTER, CONTROL_CUT, unprotected)

    def _cut_clients(self, random: random.Random) -> None:
        if random.choice(self._deployment.doors).cut():
            self._count("all connections of a server's clients cut")


def shown(fault: Fault) -> str:
    return fault.name.lower().replace("_", " ")
