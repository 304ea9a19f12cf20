// The building blocks of panels.

import { html, nothing, svg } from "./vendor/lit-html/lit-html.js";
import { repeat } from "./vendor/lit-html/directives/repeat.js";
import { tone, visible } from "./format.js";
import { SAMPLES } from "./store.js";

export { html, nothing, repeat, svg };

const PATHS = {
  pause: "M5 3h2v10H5zM9 3h2v10H9z",
  play: "M5 3l8 5-8 5z",
  reload: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
  stop: "M4 4h8v8H4z",
  lock: "M4 7h8v6H4zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
  unlock: "M4 7h8v6H4zM5.5 7V5a2.5 2.5 0 0 1 4.8-1",
  theme: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  command: "M3 4l4 4-4 4M8.5 12H13",
  close: "M4 4l8 8M12 4l-8 8",
  help: "M6 6a2 2 0 1 1 2.6 1.9c-.5.2-.6.6-.6 1.1M8 11.6v.2",
  chevron: "M6 4l4 4-4 4",
};
const FILLED = new Set(["play", "stop", "pause"]);

export function icon(name) {
  return html`<svg class="icon ${FILLED.has(name) ? "filled" : ""}" viewBox="0 0 16 16" aria-hidden="true">${svg`<path d=${PATHS[name]}></path>`}</svg>`;
}

/** Return a status with a shape, a color and a word, so that each can be understood without the others. */
export function status(word, said = word) {
  return html`<span class="status ${tone(word)}"><i class="dot"></i>${visible(said)}</span>`;
}

export function dot(word) {
  return html`<i class="dot ${tone(word)}" title=${word}></i>`;
}

const WIDTH = 84, HEIGHT = 20;

export function spark(series, { width = WIDTH, height = HEIGHT, label = "" } = {}) {
  const values = series?.values ?? [];
  const most = Math.max(1e-9, ...values);
  const step = width / (SAMPLES - 1);
  const left = (SAMPLES - values.length) * step;
  const y = (value) => (height - 1.5 - (value / most) * (height - 4)).toFixed(1);
  const line = values.map((value, place) => `${(left + place * step).toFixed(1)},${y(value)}`).join(" ");
  return html`<svg class="spark" viewBox="0 0 ${width} ${height}" preserveAspectRatio="none" role="img" aria-label=${label}>${
    svg`<path d="M0 ${height - 1}H${width}"></path><polygon points=${`${left.toFixed(1)},${height} ${line} ${width},${height}`}></polygon><polyline points=${line}></polyline>`}</svg>`;
}

/** Return the parts of a whole as one bar. */
export function bar(parts, label) {
  const whole = parts.reduce((sum, [, amount]) => sum + amount, 0) || 1;
  return html`<div class="bar" role="img" aria-label=${label}>${parts.map(
    ([name, amount]) => (amount ? html`<i class="${name}" .style=${`flex-grow:${amount / whole}`} title="${amount} ${name}"></i>` : nothing),
  )}</div>`;
}

export function meter(share, label) {
  const percent = Math.round(Math.min(1, Math.max(0, share || 0)) * 100);
  return html`<div class="meter ${percent >= 90 ? "hot" : ""}" role="meter" aria-valuenow=${percent} aria-valuemin="0" aria-valuemax="100" aria-label=${label}><i .style=${`width:${percent}%`}></i></div>`;
}

export function panel(id, title, { note = nothing, tools = nothing, body, wide = false }) {
  return html`<section class="panel ${wide ? "wide" : ""}" id=${id} aria-labelledby="${id}-title" tabindex="-1">
    <header><h2 id="${id}-title">${title}</h2><span class="note">${note}</span><div class="tools">${tools}</div></header>
    ${body}
  </section>`;
}

/** A list of rows of the same height. Only the visible rows are in the document. */
export class Rows {
  top = 0;
  view = 480;
  #watched = null;
  // Reading the height at each redraw instead would force a layout.
  #sizes = new ResizeObserver(([{ contentRect }]) => {
    const height = Math.round(contentRect.height);
    if (!height || height === this.view) return;
    this.view = height;
    this.changed();
  });

  /** ``height``: pixels per row. ``least`` and ``most``: the minimum and maximum number of visible rows. */
  constructor(id, height, changed, { least = 4, most = 14 } = {}) {
    this.id = id;
    this.height = height;
    this.changed = changed;
    this.least = least;
    this.most = most;
  }

  /**
   * ``whole`` is the number of rows without a filter, so that a filter does not change the height. With ``tree``, the
   * list itself keeps the focus, because scrolling removes rows. ``tree.keys`` handles keys, and ``tree.at`` is the index
   * of the current row.
   */
  draw(items, key, row, { label, tree, whole = items.length } = {}) {
    const room = Math.min(this.most, Math.max(this.least, whole)) * this.height;
    const over = 6;
    const last = Math.max(0, items.length * this.height - this.view);
    const top = Math.min(this.top, last);
    const first = Math.max(0, Math.floor(top / this.height) - over);
    const shown = items.slice(first, first + Math.ceil(this.view / this.height) + 2 * over);
    const active = tree && tree.at >= first && tree.at < first + shown.length;
    return html`<div class="rows" id=${this.id} role=${tree ? "treegrid" : "rowgroup"} aria-label=${label} tabindex="0" .style=${`--room:${room}px`}
        @scroll=${this.#scrolled} @keydown=${tree?.keys ?? this.#step}
        aria-rowcount=${tree ? items.length + 1 : nothing} aria-owns=${tree ? `${this.id}-head` : nothing}
        aria-activedescendant=${active ? this.rowId(tree.at) : nothing}>
      <div class="all" .style=${`height:${items.length * this.height}px`} role="presentation">
        <div class="seen" .style=${`transform:translateY(${first * this.height}px)`} role="presentation">${repeat(shown, key, (item, at) => row(item, first + at))}</div>
      </div></div>`;
  }

  rowId(place) {
    return `${this.id}-${place}`;
  }

  /** Observe the height of the visible part. Call this after each redraw. */
  measure() {
    const element = document.getElementById(this.id);
    if (element === this.#watched) return;
    this.#sizes.disconnect();
    this.#watched = element;
    if (element) this.#sizes.observe(element);
  }

  reveal(place) {
    const element = document.getElementById(this.id);
    if (!element) return;
    const at = place * this.height;
    if (at < element.scrollTop) element.scrollTop = at;
    else if (at + this.height > element.scrollTop + element.clientHeight) {
      element.scrollTop = at + this.height - element.clientHeight;
    }
  }

  /** Move between rows with the arrow keys. The row's button receives the focus. */
  #step = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const box = event.currentTarget;
    const rows = [...box.querySelectorAll(".row")];
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const row = at < 0 ? rows.find((each) => each.getBoundingClientRect().top >= box.getBoundingClientRect().top) : rows[at + step];
    row?.querySelector("button")?.focus();
    event.preventDefault();
  };

  #scrolled = (event) => {
    this.top = event.target.scrollTop;
    this.changed();
  };
}
