// A client that behaves as a good one should: one key for each order, and the same key with every retry of it.

const ATTEMPTS_MAX = 30;

export class Order {
  constructor(account, isProtected) {
    this.account = account;
    this.path = isProtected ? "/payments" : "/unprotected/payments";
    this.key = `order-${token()}`;
  }

  /** One request. An answer that never comes is an answer, too: `lost`. */
  async send(amount, { fault, signal } = {}) {
    const headers = { "Account": this.account, "Content-Type": "application/json", "Idempotency-Key": this.key };
    if (fault) headers["Demo-Fault"] = fault;
    const body = JSON.stringify({ amount });
    const asked = { order: this, request: raw(`POST ${this.path} HTTP/1.1`, Object.entries(headers), body) };
    try {
      const response = await fetch(this.path, { method: "POST", headers, body, signal, cache: "no-store" });
      const text = await response.text();
      const document = JSON.parse(text);
      return {
        ...asked,
        response: raw(`HTTP/1.1 ${response.status} ${response.statusText}`, response.headers, text),
        status: response.status,
        replayed: response.headers.get("Idempotent-Replayed") === "true",
        problem: (document.type || "").split("#")[1] || "",
        retryAfter: document.retryable ? Number(response.headers.get("Retry-After")) : 0,
        document,
      };
    } catch {
      return { ...asked, response: "The connection ended without an answer.", status: 0, lost: true };
    }
  }

  /** Send until there is an answer that a retry would not change. Every answer on the way is shown. */
  async settle(amount, show) {
    for (let attempt = 1; ; attempt++) {
      const answer = await this.send(amount);
      show(answer);
      if (!(answer.lost || answer.retryAfter) || attempt === ATTEMPTS_MAX) return answer;
      await pause(answer.lost ? 200 : answer.retryAfter * 1000);
    }
  }
}

/** What the store keeps for the key of an order, as text. */
export async function record(order) {
  const response = await fetch(`/record?account=${order.account}&key=${order.key}`, { cache: "no-store" }).catch(() => null);
  if (!response) return "The worker is away. Try again in a moment.";
  const found = await response.json();
  return response.ok ? JSON.stringify(found, null, 2) : "Nothing: the service ignored the key.";
}

/** What the bank knows of the account. The worker may be away for a moment. */
export async function statement(account) {
  for (;;) {
    try {
      const response = await fetch(`/bank?account=${account}`, { cache: "no-store" });
      return await response.json();
    } catch {
      await pause(200);
    }
  }
}

/** Whatever comes of it, a repeat of the order will tell. */
export async function resolve(order) {
  const headers = { "Account": order.account, "Content-Type": "application/json" };
  const body = JSON.stringify({ key: order.key });
  await fetch("/operator/resolve", { method: "POST", headers, body }).catch(() => undefined);
}

function raw(start, headers, body) {
  return [start, ...Array.from(headers, ([name, value]) => `${name}: ${value}`), "", body].join("\n");
}

export function token() {
  return Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function pause(ms) {
  return new Promise((done) => setTimeout(done, ms));
}
