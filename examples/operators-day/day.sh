#!/bin/sh
# An operator's day: a service is killed under load, and every unknown outcome is found, exported, looked up at the bank,
# resolved from JSON lines and verified. Everything that is done about it is done with the semel command.
#
#     pip install 'semel[cli]' uvicorn
#     ./day.sh            # or: SEMEL_STORE=postgresql://localhost/shop ./day.sh
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
orders=${ORDERS:-200}
export SEMEL_STORE="${SEMEL_STORE:-sqlite:///$work/semel.db}" BANK="$work/bank.db"
service=
trap '[ -z "$service" ] || kill "$service" 2>/dev/null || true; rm -rf "$work"' EXIT

start() {
    rm -f "$work/port"
    python3 "$here/shop.py" "$work/port" &
    service=$!
}

echo "== The morning: the shop takes payments"
semel migrate
start
python3 "$here/buyers.py" "$work/port" "$orders" > "$work/told" &
buyers=$!
while [ "$(python3 "$here/bank.py" | cut -d' ' -f1)" -lt 20 ]; do sleep 0.02; done

echo "== It is killed under load"
kill -9 "$service"
wait "$service" 2>/dev/null || true
wait "$buyers"
echo "The buyers were told: $(cat "$work/told")"
echo "The bank has: $(python3 "$here/bank.py")"

echo "== Leases lapse, and what was interrupted is an unknown outcome"
while [ -n "$(semel keys list --state in_progress --json-lines)" ]; do sleep 0.05; done
found=0
semel stuck --limit 5 --sort created || found=$?
[ "$found" = 1 ] || { echo "semel stuck ended with $found, and 1 was expected" >&2; exit 1; }

echo "== Export, ask the bank, and see what would be done"
semel stuck --limit 100000 --names --json-lines > "$work/unknown.jsonl" || [ $? = 1 ]
python3 "$here/verdicts.py" < "$work/unknown.jsonl" > "$work/verdicts.jsonl"
semel keys resolve-many "$work/verdicts.jsonl" --dry-run | tail -n 1

echo "== Resolve"
semel keys resolve-many "$work/verdicts.jsonl" --yes

echo "== Verify: nothing is stuck, and every buyer who asks again gets a receipt"
semel stuck
start
python3 "$here/buyers.py" "$work/port" "$orders"
semel stats
echo "The bank has: $(python3 "$here/bank.py")"
