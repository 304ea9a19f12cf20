// The events, newest first, with their outcomes.

import { clock, count, duration, matcher, rate, visible } from "./format.js";
import { html, icon, nothing, panel, Rows, spark, status } from "./parts.js";

const FATES = [
  ["", "Any outcome"], ["failed", "failed"], ["dropped superseded refused", "dropped"], ["unrouted", "unrouted"],
  ["merged held", "merged"], ["queued running", "in progress"], ["handled", "handled"],
];

export class Events {
  #pattern = "";
  #matches = () => true;
  #fates = "";
  #frozen = null;

  constructor(app) {
    this.app = app;
    this.rows = new Rows("events-rows", 28, app.draw, { least: 18, most: 18 });
  }

  get following() {
    return this.#frozen === null;
  }

  draw() {
    const { store } = this.app;
    // Once the user has scrolled down, rows must not move.
    if (this.rows.top > 0 && !this.#frozen) this.#freeze("scroll");
    if (this.rows.top <= 0 && this.#frozen?.why === "scroll") this.#frozen = null;
    const items = this.#frozen?.items ?? this.#items();
    const fresh = this.#frozen ? Math.max(0, store.seen - this.#frozen.seen) : 0;
    return panel("events", "Events", {
      note: html`<span class="number">${rate(store.rate("events"))}/s</span>${spark(store.series.get("events"), { width: 60, height: 16, label: "Events in the last minute" })}`,
      tools: html`
        <input class="filter mono" type="search" placeholder="Topic: file/**" aria-label="Filter events by topic" id="events-filter" @input=${this.#typed}>
        <select aria-label="Filter events by outcome" @change=${this.#chosen}>${FATES.map(([value, said]) => html`<option value=${value}>${said}</option>`)}</select>
        <button class="small" aria-pressed=${this.following} @click=${() => this.toggle()} title="Show new events as they arrive (p)">${icon("play")}<span>Follow</span></button>`,
      body: html`<div class="table events" role="table" aria-label="Events">
        <div class="head" role="row">${["Time", "Outcome", "Topic", "Route", "Took"].map((word) => html`<span role="columnheader">${word}</span>`)}</div>
        ${fresh ? html`<button class="fresh" @click=${() => this.follow()}>${count(fresh)} newer</button>` : nothing}
        ${items.length ? this.rows.draw(items, (entry) => entry.id, this.#row, { label: "Events, newest first" }) : html`<p class="empty">${store.entries.size ? "No event matches the filter." : "No events yet."}</p>`}
        ${store.missed ? html`<p class="foot">${count(store.missed)} changes arrived too fast to be shown; counts and rates include them.</p>` : nothing}
      </div>`,
    });
  }

  toggle() {
    if (!this.following) this.follow();
    else {
      this.#freeze("button");
      this.app.draw();
    }
  }

  follow() {
    this.#frozen = null;
    this.rows.top = 0;
    const element = document.getElementById(this.rows.id);
    if (element) element.scrollTop = 0;
    this.app.draw();
  }

  #freeze(why) {
    this.#frozen = { why, items: this.#items(), seen: this.app.store.seen };
  }

  #items() {
    const items = [];
    for (const entry of this.app.store.entries.values()) {
      if (this.#matches(entry.topic) && (!this.#fates || this.#fates.includes(entry.what))) items.push(entry);
    }
    return items.sort((one, other) => other.id - one.id);
  }

  #typed = (event) => {
    this.#pattern = event.target.value;
    this.#matches = matcher(this.#pattern);
    this.follow();
  };

  #chosen = (event) => {
    this.#fates = event.target.value;
    this.follow();
  };

  #row = (entry) => html`<div class="row" role="row" @click=${() => this.app.inspect({ event: entry.id })}>
      <span role="cell" class="number quiet time">${clock(entry.time)}</span>
      <span role="cell">${status(entry.what)}</span>
      <span role="cell" class="topic"><button class="plain mono" tabindex="-1" title=${visible(entry.topic)}><bdi>${visible(entry.topic)}</bdi></button><small><bdi>${visible(entry.error ?? entry.summary)}</bdi></small></span>
      <span role="cell" class="mono quiet clip"><bdi>${visible(entry.pattern)}</bdi></span>
      <span role="cell" class="number">${duration(entry.duration)}</span>
    </div>`;
}
