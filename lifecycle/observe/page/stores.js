// Pools, sources and lanes, inboxes and queues, and the load of each.

import { count, duration, tone, visible } from "./format.js";
import { bar, dot, html, icon, meter, nothing, panel, repeat, status } from "./parts.js";

export class Stores {
  constructor(app) {
    this.app = app;
  }

  get any() {
    const { store } = this.app;
    return this.has("inbox") || this.has("queue") || store.of("component").some((each) => each.runs === undefined);
  }

  has(kind) {
    return this.app.store.of(kind).length > 0;
  }

  pools() {
    const pools = this.app.store.of("pool");
    return panel("pools", "Pools", { note: pools.length, body: html`<div class="cards">${repeat(pools, (pool) => pool.id, this.#pool)}</div>` });
  }

  #pool = (pool) => {
    const { stats } = pool;
    const members = this.app.store.below(pool.id).filter((each) => each.kind === "member");
    const parts = [["busy", stats.busy ?? 0], ["idle", stats.idle ?? 0], ["starting", stats.starting ?? 0], ["degraded", stats.degraded ?? 0], ["stopping", stats.stopping ?? 0]];
    return html`<article class="card">
      <header><button class="plain" @click=${() => this.app.inspect({ node: pool.id })}><b><bdi>${visible(pool.name)}</bdi></b></button>${status(pool.status)}</header>
      ${bar(parts, "Pool workers")}
      <p class="legend">${parts.filter(([, amount]) => amount).map(([name, amount]) => html`<span class=${name}>${amount} ${name}</span>`)}</p>
      <dl class="facts">
        <div><dt>Saturation</dt><dd>${meter(stats.saturation, "Saturation")}<span class="number">${Math.round((stats.saturation ?? 0) * 100)} %</span></dd></div>
        <div><dt>Waiting</dt><dd class="number">${count(stats.queued)}</dd></div>
        <div><dt>Calls</dt><dd class="number">${count(stats.calls)}</dd></div>
        <div><dt>Wait p95</dt><dd class="number">${duration(stats.wait_p95)}</dd></div>
        <div><dt>Run p50 / p95</dt><dd class="number">${duration(stats.run_p50)} / ${duration(stats.run_p95)}</dd></div>
      </dl>
      ${members.length ? html`<div class="members" role="list" aria-label="Pool workers">${repeat(members, (each) => each.id, (each) => html`<button role="listitem" class="member ${tone(each.status)}" title="${visible(each.name)}: ${each.status}" aria-label="${visible(each.name)}: ${each.status}" @click=${() => this.app.inspect({ node: each.id })}></button>`)}</div>` : nothing}
    </article>`;
  };

  flowing() {
    const { store } = this.app;
    const [sources, lanes] = [store.of("source"), store.of("lane")];
    return panel("sources", "Sources and lanes", {
      note: sources.length + lanes.length,
      body: html`<div class="list" role="region" aria-label="Sources and lanes" tabindex="0">
        ${repeat(sources, (source) => source.id, this.#source)}
        ${repeat(lanes, (lane) => lane.id, this.#lane)}
        ${sources.length + lanes.length ? nothing : html`<p class="empty">No sources or lanes yet.</p>`}
      </div>`,
    });
  }

  #source = (source) => {
    const { held } = source;
    const refused = Object.entries(this.app.store.figures.refused[source.name] ?? {});
    return html`<div class="line"><span class="what">source</span><bdi class="name clip" title=${visible(source.name)}>${visible(source.name)}</bdi>${status(source.status)}
      ${refused.length ? html`<span class="number counts warm" title="Requests refused since the page was served, by status">${refused.map(([code, amount]) => `${count(amount)} × ${code}`).join(", ")} refused</span>` : nothing}
      <button class="small" aria-label="${held ? "Release" : "Hold"} ${visible(source.name)}" @click=${() => this.app.command([held ? "release" : "hold", source.name])}>${icon(held ? "play" : "pause")}<span>${held ? "Release" : "Hold"}</span></button></div>`;
  };

  #lane = (lane) => html`<div class="line"><span class="what">lane</span><bdi class="name clip mono" title=${visible(lane.name)}>${visible(lane.name)}</bdi>
      ${meter(lane.limit ? lane.waiting / lane.limit : 0, `Fill level of lane ${visible(lane.name)}`)}
      <span class="number counts"><b>${count(lane.running)}</b>/${count(lane.concurrency)} running</span><span class="number counts ${lane.waiting ? "warm" : "quiet"}"><b>${count(lane.waiting)}</b> waiting</span></div>`;

  kept() {
    const { store } = this.app;
    const all = [...store.of("inbox"), ...store.of("queue"), ...store.of("component").filter((each) => each.runs === undefined)];
    return panel("inboxes", "Inboxes, queues and more", {
      wide: true,
      note: all.length,
      body: html`<div class="cards">${repeat(all, (each) => each.id, this.#kept)}</div>`,
    });
  }

  #kept = (each) => html`<article class="card">
      <header><button class="plain" @click=${() => this.app.inspect({ node: each.id })}><b><bdi>${visible(each.name)}</bdi></b></button><span class="quiet">${visible(each.class ?? each.kind)}</span>${each.error ? dot("failed") : nothing}</header>
      ${each.error ? html`<p class="error">${visible(each.error)}</p>` : nothing}
      <dl class="facts">${numbers(each).map(([name, value]) => html`<div><dt>${visible(name.replaceAll("_", " "))}</dt><dd class="number ${tone(name) === "bad" && value ? "hot" : ""}">${count(value)}</dd></div>`)}</dl>
    </article>`;
}

const OWN = new Set(["id", "kind", "parent", "name", "status", "error", "details"]);

/** Return the counts of a component, from the first or second level of its fields. */
function numbers(node) {
  const found = [];
  for (const [name, value] of Object.entries(node)) {
    if (OWN.has(name)) continue;
    if (typeof value === "number") found.push([name, value]);
    else if (value && typeof value === "object" && !Array.isArray(value)) {
      for (const [inner, each] of Object.entries(value)) if (typeof each === "number") found.push([inner, each]);
    }
  }
  return found.slice(0, 12);
}
