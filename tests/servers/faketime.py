"""Another wall clock for one process: the environment for libfaketime."""

from servers import binaries


def faked(hours: int, *, all_clocks: bool) -> dict[str, str]:
    """With `all_clocks`, the ones that only go forward show the faked time of day, too."""
    environment = {"LD_PRELOAD": str(binaries.require("faketime")), "FAKETIME": f"{hours:+d}h"}
    return environment if all_clocks else environment | {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
