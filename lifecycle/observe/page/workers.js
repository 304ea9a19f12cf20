// The supervisor tree: every worker, supervisor, pool and pool worker, with its status.

import { age, bytes, count, tone, visible } from "./format.js";
import { dot, html, icon, nothing, panel, Rows, status } from "./parts.js";

const KINDS = ["supervisor", "worker", "pool", "member"];
const GROUPS = [["all", "All"], ["run", "Running"], ["bad", "Failed"], ["pause", "Suspended"], ["other", "Other"]];

export class Workers {
  #folded = new Set();
  #filter = "";
  #group = "all";
  #at = null;

  constructor(app) {
    this.app = app;
    this.rows = new Rows("workers-rows", 30, app.draw, { least: 6, most: 16 });
  }

  all() {
    return KINDS.flatMap((kind) => this.app.store.of(kind));
  }

  draw() {
    const every = this.all();
    const counts = { all: every.length, run: 0, bad: 0, pause: 0, other: 0 };
    for (const node of every) counts[groupOf(node)] += 1;
    const items = this.#items(every);
    this.items = items;
    const at = items.findIndex((item) => item.node.id === this.#at);
    const tree = { at, keys: this.#keys };
    return panel("workers", "Workers", {
      note: html`${count(every.length)}`,
      tools: html`
        <div class="chips" role="group" aria-label="Show">${GROUPS.map(([name, said]) => html`
          <button class="chip ${name} ${counts[name] ? "" : "none"}" aria-pressed=${this.#group === name} @click=${() => this.#show(name)}>${said} <b>${count(counts[name])}</b></button>`)}</div>
        <input class="filter" type="search" placeholder="Filter by name" aria-label="Filter workers by name" @input=${this.#typed}>`,
      body: html`<div class="table workers">
        <div class="head" role="row" id="workers-rows-head">${["Name", "Status", "Restarts", "Health", "Memory", "Up"].map((word) => html`<span role="columnheader">${word}</span>`)}<span></span></div>
        ${items.length ? this.rows.draw(items, (item) => item.node.id, this.#row, { tree, whole: every.length, label: "Workers" })
          : html`<p class="empty">${every.length ? "No worker matches the filter." : "This program has no workers."}</p>`}
      </div>`,
    });
  }

  #show(name) {
    this.#group = name;
    this.app.draw();
  }

  #typed = (event) => {
    this.#filter = event.target.value.toLowerCase();
    this.app.draw();
  };

  #items(every) {
    if (this.#filter || this.#group !== "all") {
      return every
        .filter((node) => (this.#group === "all" || groupOf(node) === this.#group) && String(node.name).toLowerCase().includes(this.#filter))
        .map((node) => ({ node, depth: 0, inner: false }));
    }
    const known = new Set(every.map((node) => node.id));
    const items = [];
    const walk = (node, depth) => {
      const below = this.app.store.below(node.id).filter((each) => known.has(each.id));
      const folded = this.#folded.has(node.id);
      items.push({ node, depth, inner: below.length > 0, folded });
      if (!folded) for (const each of below) walk(each, depth + 1);
    };
    for (const node of every) if (!known.has(node.parent)) walk(node, 0);
    return items;
  }

  #row = ({ node, depth, inner, folded }, at) => {
    const { store } = this.app;
    const health = node.health;
    return html`<div class="row ${tone(node.status)}" role="row" id=${this.rows.rowId(at)} aria-rowindex=${at + 2} aria-level=${depth + 1} aria-expanded=${inner ? String(!folded) : nothing}
        aria-selected=${this.#at === node.id} data-id=${node.id} @click=${() => this.#pick(node)}>
      <span role="gridcell" class="name" .style=${`padding-left:${Math.min(depth, 8) * 16}px`}>
        ${inner ? html`<button class="fold" tabindex="-1" aria-label="${folded ? "Unfold" : "Fold"} ${visible(node.name)}" @click=${(event) => this.#fold(event, node)}>${icon("chevron")}</button>` : html`<i class="fold"></i>`}
        <bdi title=${visible(node.name)}>${visible(node.name)}</bdi>${node.kind === "supervisor" || node.kind === "pool" ? html`<small>${node.kind}</small>` : nothing}</span>
      <span role="gridcell">${status(node.status)}${node.circuit === "open" ? html`<em class="tag bad">given up</em>` : nothing}</span>
      <span role="gridcell" class="number ${node.restarts ? "warm" : "quiet"}">${node.restarts}</span>
      <span role="gridcell">${health ? dot(health.healthy ? "up" : "failed") : html`<span class="quiet">–</span>`}</span>
      <span role="gridcell" class="number">${bytes(store.figures.memory[node.pid])}</span>
      <span role="gridcell" class="number">${node.started_at && ["running", "suspended"].includes(node.status) ? age(store.now() - node.started_at) : "–"}</span>
      <span role="gridcell" class="act">${!this.app.restarts(node) ? nothing : html`<button class="ghost" tabindex="-1" title="Restart" aria-label="Restart ${visible(node.name)}" @click=${(event) => this.#restart(event, node)}>${icon("reload")}</button>`}</span>
    </div>`;
  };

  #pick(node) {
    this.#at = node.id;
    this.app.inspect({ node: node.id });
  }

  #fold(event, node) {
    event.stopPropagation();
    if (!this.#folded.delete(node.id)) this.#folded.add(node.id);
    this.app.draw();
  }

  #restart(event, node) {
    event.stopPropagation();
    this.app.restart(node);
  }

  #keys = (event) => {
    const at = this.items.findIndex((item) => item.node.id === this.#at);
    const item = this.items[at];
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: this.items.length - 1, PageDown: at + 10, PageUp: at - 10 };
    if (event.key in moves) {
      const place = Math.min(this.items.length - 1, Math.max(0, moves[event.key]));
      this.#at = this.items[place].node.id;
      this.rows.reveal(place);
    } else if (item && (event.key === "Enter" || event.key === " ")) this.app.inspect({ node: item.node.id });
    else if (item?.inner && event.key === "ArrowLeft") this.#folded.add(item.node.id);
    else if (item?.inner && event.key === "ArrowRight") this.#folded.delete(item.node.id);
    else return;
    event.preventDefault();
    this.app.draw();
  };
}

function groupOf(node) {
  const look = node.circuit === "open" ? "bad" : tone(node.status);
  return ["run", "bad", "pause"].includes(look) ? look : "other";
}
