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
    try {
      const body = JSON.stringify({ amount });
      const response = await fetch(this.path, { method: "POST", headers, body, signal, cache: "no-store" });
      const document = await response.json();
      return {
        status: response.status,
        replayed: response.headers.get("Idempotent-Replayed") === "true",
        problem: (document.type || "").split("#")[1] || "",
        retryAfter: document.retryable ? Number(response.headers.get("Retry-After")) : 0,
        document,
      };
    } catch {
      return { status: 0, lost: true };
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

export function token() {
  return Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function pause(ms) {
  return new Promise((done) => setTimeout(done, ms));
}
