// What is on the page: the client's requests, the bank's ledger, the timeline and the verdict.

import { record } from "/client.js";

const $ = (id) => document.getElementById(id);

const STORY = {
  claimed: ["claimed", "This request runs. No other request with this key may.", "good"],
  taken_over: ["taken over", "A repeat runs it as a new attempt.", "good"],
  charged: ["bank paid", "", "money"],
  completed: ["completed", "The answer is stored first, then sent.", "good"],
  replayed: ["replayed", "The stored answer, byte for byte. Nothing ran.", "good"],
  in_flight: ["in flight", "The first request holds the key: 409, retry after a second.", "wait"],
  mismatched: ["mismatched", "Another request under the same key: 422.", "bad"],
  unknown: ["unknown", "The lease ran out without a result. semel does not guess: 409.", "bad"],
  lost: ["answer lost", "Everything is done, and the line goes dead.", "bad"],
  killed: ["worker killed", "SIGKILL. No cleanup, no goodbye.", "bad"],
  started: ["worker started", "The supervisor held the socket: no request was refused.", "quiet"],
  resolved: ["resolved", "The operator asked the bank, and stored its answer.", "good"],
  released: ["released", "Nothing was done, so the key is free again.", "quiet"],
};

const TITLES = { "The account is empty": "account empty" };
const PROBLEMS = { "in-progress": "in progress", "outcome-unknown": "outcome unknown", "key-reused": "key reused" };

export function money(cents) {
  return `${(cents / 100).toFixed(2)} €`;
}

export function request(label) {
  const badges = make("span", "badges");
  const waiting = make("span", "badge waiting", "…");
  badges.append(waiting);
  const item = make("li");
  item.append(make("span", "label", label), badges);
  $("client").append(item);
  return (answer) => {
    const [text, kind] = described(answer);
    const last = waiting.previousElementSibling;
    if (last?.dataset.text === text) {
      last.dataset.count = Number(last.dataset.count) + 1;
      last.textContent = `${text} ×${last.dataset.count}`;
    } else {
      const badge = make("button", `badge ${kind}`, text);
      badge.type = "button";
      badge.title = "Show the request, the response and the record";
      badge.addEventListener("click", () => exchange(answer));
      badge.dataset.text = text;
      badge.dataset.count = 1;
      waiting.before(badge);
    }
    waiting.hidden = !(answer.lost || answer.retryAfter);
  };
}

function described(answer) {
  if (answer.lost) return ["no answer", "bad"];
  if (answer.status === 201) return answer.replayed ? ["201 replayed", "good"] : ["201 created", "new"];
  const words = PROBLEMS[answer.problem] || TITLES[answer.document.title] || answer.document.title || "";
  return [`${answer.status} ${words}`.trim(), answer.retryAfter ? "wait" : "bad"];
}

/** What went over the wire, and what the store holds now. */
async function exchange(answer) {
  $("exchange-request").textContent = answer.request;
  $("exchange-response").textContent = answer.response;
  $("exchange-record").textContent = "…";
  $("exchange").showModal();
  $("exchange-record").textContent = await record(answer.order);
}

/** Every request of the order is over: nothing waits any more. */
export function requestsEnded() {
  for (const waiting of document.querySelectorAll("#client .waiting")) waiting.remove();
}

export function ledger(statement, key) {
  $("balance").textContent = money(statement.balance);
  const rows = statement.entries.map((entry) => {
    const row = make("tr");
    if (entry.reference === key) row.className = "current";
    const time = new Date(entry.at_ms).toLocaleTimeString([], { hour12: false });
    row.append(make("td", "", `${entry.number}`), make("td", "when", time), make("td", "", entry.reference));
    row.append(make("td", "number", `−${money(entry.amount)}`));
    return row;
  });
  $("ledger").tBodies[0].replaceChildren(...rows);
}

export function begin(order, isProtected) {
  $("client").replaceChildren();
  $("timeline").replaceChildren();
  $("key").textContent = order.key;
  $("timeline-empty").className = isProtected ? "empty" : "note";
  $("timeline-empty").textContent = isProtected ? "…" : "The service ignores the key, so there are no decisions about it.";
  $("resolve").hidden = true;
  verdict("busy", "Running …");
}

export function happened(event, beganAt) {
  const [title, text, kind] = STORY[event.kind] || [event.kind.replaceAll("_", " "), "", "quiet"];
  let item = $("timeline").lastElementChild;
  if (item?.dataset.kind !== event.kind) {
    item = make("li", kind);
    Object.assign(item.dataset, { kind: event.kind, count: 0, amount: 0 });
    const name = make("b", "", title);
    name.append(make("span", "count"));
    item.append(make("time", "", `+${Math.max(0, event.at_ms - beganAt)} ms`), name, make("span", "text"));
    $("timeline").append(item);
  }
  const count = Number(item.dataset.count) + 1;
  const amount = Number(item.dataset.amount) + (event.amount || 0);
  Object.assign(item.dataset, { count, amount });
  item.querySelector(".count").textContent = count > 1 ? `×${count}` : "";
  item.querySelector(".text").textContent = amount ? `${money(amount)} left the account.`
    : event.worker ? `${text} Process ${event.worker}.` : text;
}

export function verdict(kind, text) {
  $("verdict").dataset.kind = kind;
  $("verdict-text").textContent = text;
}

export function protection(isProtected) {
  document.body.dataset.protection = isProtected ? "on" : "off";
  $("protection-word").textContent = isProtected ? "on" : "off";
  $("endpoint").textContent = isProtected ? "POST /payments" : "POST /unprotected/payments";
}

export function state(name) {
  document.body.dataset.state = name;
  for (const button of document.querySelectorAll("main button:not(.badge), footer button")) button.setAttribute("aria-disabled", name !== "idle");
}

export function line(text) {
  $("line").textContent = text;
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
