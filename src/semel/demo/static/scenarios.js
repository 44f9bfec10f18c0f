// What goes wrong between a shop and a bank. Each scenario is one order; `view.request(label)` shows one request of it.

const PRICE = 2500;
const OTHER = 9900;
const CLICKS = 20;

export const scenarios = {
  async pay(order, view) {
    await order.settle(PRICE, view.request("Click"));
  },

  async double(order, view) {
    const shows = [view.request("First click"), view.request("Second click")];
    await Promise.all(shows.map((show) => order.settle(PRICE, show)));
  },

  async lost(order, view) {
    // The service says when the answer is on its way; then we hang up.
    const hangUp = new AbortController();
    const show = view.request("Click");
    view.once("lost", order.key, () => hangUp.abort());
    show(await order.send(PRICE, { fault: "lose-answer", signal: hangUp.signal }));
    await order.settle(PRICE, view.request("Retry"));
  },

  async parallel(order, view) {
    const shows = Array.from({ length: CLICKS }, (_, number) => view.request(`Click ${number + 1}`));
    await Promise.all(shows.map((show) => order.settle(PRICE, show)));
  },

  async crash(order, view) {
    const show = view.request("Click");
    show(await order.send(PRICE, { fault: "crash" }));
    await repeat(order, view, "Retry");
  },

  async other(order, view) {
    await order.settle(PRICE, view.request(`Pay ${view.money(PRICE)}`));
    await order.settle(OTHER, view.request(`Same key, ${view.money(OTHER)}`));
  },
};

export async function repeat(order, view, label = "Repeat") {
  const last = await order.settle(PRICE, view.request(label));
  if (last.problem === "outcome-unknown") view.unresolved(order);
}
