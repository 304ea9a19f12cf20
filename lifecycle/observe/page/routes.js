// Routes: their rates, and the latencies of their handlers.

import { count, duration, matcher, rate, visible } from "./format.js";
import { html, nothing, panel, Rows, spark } from "./parts.js";

const LENT = /^command\/\[(\w)\]/;
// Patterns that may match a command. Most routes are not compiled.
const COMMANDING = /^(lifecycle\/|command\/|[*?[{])/;

/** Return whether the program has a route of its own for a command such as `suspend`. */
export function handles(store, word) {
  const topics = [`lifecycle/${word}`, `command/${word}`];
  return store.of("route").some(({ pattern }) => COMMANDING.test(pattern) && !LENT.test(pattern) && topics.some(matcher(pattern)));
}

export class Routes {
  #filter = "";

  constructor(app) {
    this.app = app;
    this.rows = new Rows("routes-rows", 30, app.draw);
  }

  draw() {
    // Routes of built-in commands, such as `command/[s]top`, are shown only once they have been used.
    const routes = this.app.store.of("route").filter((route) => route.routed || !LENT.test(route.pattern));
    const items = routes.filter((route) => `${route.pattern} ${route.handler}`.toLowerCase().includes(this.#filter));
    return panel("routes", "Routes", {
      note: count(routes.length),
      tools: html`<input class="filter" type="search" placeholder="Filter by pattern" aria-label="Filter routes by pattern or handler" @input=${this.#typed}>`,
      body: html`<div class="table routes" role="table" aria-label="Routes">
        <div class="head" role="row">${["Pattern", "Last minute", "Per s", "p50", "p95", "Failed"].map((word) => html`<span role="columnheader">${word}</span>`)}</div>
        ${items.length ? this.rows.draw(items, (route) => route.id, this.#row, { whole: routes.length, label: "Routes" }) : html`<p class="empty">${routes.length ? "No route matches the filter" : "No routes yet"}.</p>`}
      </div>`,
    });
  }

  #typed = (event) => {
    this.#filter = event.target.value.toLowerCase();
    this.app.draw();
  };

  #row = (route) => {
    const { store } = this.app;
    const latency = (store.figures.latency[route.id] ?? store.figures.latency[route.pattern]);
    const pattern = visible(route.pattern.replace(LENT, "command/$1"));
    return html`<div class="row" role="row" @click=${() => this.app.inspect({ node: route.id })}>
      <span role="cell" class="name"><button class="plain" tabindex="-1" title=${pattern}><bdi>${pattern}</bdi></button><small>${visible(route.handler)}</small></span>
      <span role="cell">${spark(store.series.get(`${route.id}|rate`), { label: `Rate of ${pattern}` })}</span>
      <span role="cell" class="number">${rate(store.rate(`${route.id}|rate`))}</span>
      <span role="cell" class="number">${latency ? duration(latency.p50) : "–"}</span>
      <span role="cell" class="number">${latency ? duration(latency.p95) : "–"}</span>
      <span role="cell" class="number ${route.failed ? "hot" : "quiet"}">${count(route.failed)}${route.dropped ? html`<small title="dropped">+${count(route.dropped)}</small>` : nothing}</span>
    </div>`;
  };
}
