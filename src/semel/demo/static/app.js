// The page: one account, one order at a time, and the timeline that tells what becomes of its key.

import { Order, resolve, statement, token } from "/client.js";
import { repeat, scenarios } from "/scenarios.js";
import * as view from "/view.js";

const $ = (id) => document.getElementById(id);
let account = "";
let order = null;
let began = { at: 0, isProtected: true };
let unresolved = null;
let events = null;
const listeners = new Map();

const stage = {
  request: view.request,
  money: view.money,
  once: (kind, key, tell) => listeners.set(`${kind} ${key}`, tell),
  unresolved: (which) => { unresolved = which; },
};

function watch() {
  events?.close();
  events = new EventSource(`/timeline?account=${account}`);
  events.addEventListener("begin", () => {
    view.line(`account ${account}, connected`);
    if (document.body.dataset.state === "starting") view.state("idle");
  });
  events.addEventListener("error", () => view.line("the worker is away, reconnecting …"));
  events.addEventListener("message", (message) => happened(JSON.parse(message.data)));
}

function happened(event) {
  const ours = order && (event.key || "") === order.key;
  const worker = order && event.worker && event.at_ms >= began.at;
  if (!ours && !worker) return;
  view.happened(event, began.at);
  if (event.kind === "charged") refresh();
  const name = `${event.kind} ${order.key}`;
  listeners.get(name)?.();
  listeners.delete(name);
}

async function refresh() {
  const found = await statement(account);
  view.ledger(found, order?.key);
  return found;
}

async function run(scenario) {
  if (document.body.dataset.state !== "idle") return;
  view.state("running");
  unresolved = null;
  const isProtected = $("protection").checked;
  order = new Order(account, isProtected);
  began = { at: Date.now(), isProtected };
  view.begin(order, isProtected);
  await scenario(order, stage);
  await judge();
}

async function judge() {
  view.requestsEnded();
  const paid = (await refresh()).entries.filter((entry) => entry.reference === order.key);
  const sum = view.money(paid.reduce((total, entry) => total + entry.amount, 0));
  if (paid.length === 0 && !unresolved) {
    view.verdict("bad", "Not charged: the account is empty. Press \"New account\" at the end of the page.");
  } else if (paid.length > 1) {
    view.verdict("bad", `Charged ${times(paid.length)}: ${sum} for one order. Nothing remembered the key.`);
  } else if (unresolved) {
    view.verdict("unknown", `Charged ${times(paid.length)}. The worker died before it could say so, and no retry pays again: the outcome is unknown until an operator finds out.`);
  } else {
    view.verdict("good", `Charged ${times(paid.length)}: ${sum}.${began.isProtected ? " One order, one payment, whatever happened." : " This time nothing was repeated."}`);
  }
  $("verdict").dataset.charges = paid.length;
  $("resolve").hidden = !unresolved;
  view.state("idle");
}

async function operate() {
  if (document.body.dataset.state !== "idle" || !unresolved) return;
  view.state("running");
  const which = unresolved;
  unresolved = null;
  await resolve(which);
  await repeat(which, stage);
  await judge();
  document.querySelector('[data-scenario="crash"]').focus();
}

function times(count) {
  return count === 1 ? "once" : count === 2 ? "twice" : count === 0 ? "not at all" : `${count} times`;
}

// The account of the lines that the terminal prints, until the visitor asks for another one.
function openAccount() {
  account = new URLSearchParams(location.search).get("account") || "guest";
  order = null;
  watch();
  refresh();
}

for (const button of document.querySelectorAll("[data-scenario]")) {
  button.addEventListener("click", () => run(scenarios[button.dataset.scenario]));
}
$("protection").addEventListener("change", (change) => view.protection(change.target.checked));
$("resolve").addEventListener("click", operate);
$("again").addEventListener("click", () => {
  if (document.body.dataset.state === "idle") location.search = `?account=shop-${token()}`;
});
view.protection($("protection").checked);
openAccount();
