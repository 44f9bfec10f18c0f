"""What the operator finds out: asks the bank about each unknown outcome, and adds the verdict to its line."""

import json
import sys

import bank

for line in sys.stdin:
    record = json.loads(line)
    receipt = bank.receipt(record["name"])
    if receipt is None:
        record["verdict"] = "nothing-done"
    else:
        record["verdict"] = "answer"
        record["answer"] = {"status": 201, "json": receipt}
    print(json.dumps(record))
