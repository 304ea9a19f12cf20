// Flows as live diagrams: tasks with their states, laid out in layers. Workflows as timelines, also those that wait.

import { Graph, layout } from "./vendor/dagre/dagre.esm.js";
import { age, tone, visible } from "./format.js";
import { told } from "./net.js";
import { bar, html, nothing, panel, repeat, status, svg } from "./parts.js";

const HEIGHT = 30, PAD = 22, MOST = 24, WIDEST = 220;

/** Return the status of a stored flow: its state, or why it is stopped. */
function shown(flow) {
  return flow.status === flow.state ? flow.state.toLowerCase() : flow.status;
}

// Workflows in these states are not in memory. They are read from the stores every few milliseconds, up to a limit.
const STORED = ["WAITING", "FAILURE"], EVERY = 3000, LIMIT = 100;

export class Flows {
  // Layouts by flow. They are recomputed only when the flow's structure changes.
  #laid = new Map();
  #open = new Set();
  #closed = new Set();

  #stored = [];

  constructor(app) {
    this.app = app;
    setInterval(() => this.#read(), EVERY);
  }

  get any() {
    return this.app.store.of("flow").length > 0 || this.#stored.length > 0;
  }

  /** Load the workflows that wait or have failed, if the program has a store open and the page is visible. */
  async #read() {
    if (document.hidden || !this.app.store.of("component").some((each) => each.runs !== undefined)) return;
    try {
      const lists = await Promise.all(STORED.map((state) => told(`/api/flows?state=${state}&limit=${LIMIT}`)));
      this.#stored = lists.flat().filter((each) => each.kind === "workflow");
    } catch { /* the next attempt may succeed */ }
    this.app.draw();
  }

  draw() {
    const flows = this.app.store.of("flow");
    for (const id of this.#laid.keys()) if (!this.app.store.nodes.has(id)) this.#laid.delete(id);
    const shown = flows.slice(0, MOST);
    return panel("flows", "Flows", {
      wide: true,
      note: flows.length + this.#stored.length,
      body: html`<div class="flows">${repeat(shown, (flow) => flow.id, (flow, place) => this.#flow(flow, place))}
        ${flows.length > MOST ? html`<p class="foot">${flows.length - MOST} more; <code>lifecycle flows</code> lists all of them.</p>` : nothing}
        ${repeat(this.#stored, (each) => `${each.id} ${each.name}`, (each) => this.#waiting(each))}
        ${this.#stored.length >= LIMIT ? html`<p class="foot">At most ${LIMIT} waiting and ${LIMIT} failed ones are shown; <code>lifecycle flows</code> lists all.</p>` : nothing}</div>`,
    });
  }

  #waiting(each) {
    const now = this.app.store.now();
    const due = each.due ? (each.due > now ? `due in ${age(each.due - now)}` : "due now") : "";
    return html`<article class="flow stored"><header>
      <button class="plain" @click=${() => this.app.inspect({ flow: each.id })}><b><bdi>${visible(each.name)}</bdi></b></button>
      <code class="quiet clip">${visible(each.id)}</code>${status(shown(each))}
      <span class="quiet">${each.error ? visible(each.error) : due}</span>
    </header></article>`;
  }

  #flow(flow, place) {
    const steps = leaves(this.app.store, flow.id);
    const tally = new Map();
    for (const step of steps) tally.set(tone(step.status), (tally.get(tone(step.status)) ?? 0) + 1);
    const open = this.#open.has(flow.id) || (place < 4 && !this.#closed.has(flow.id));
    const name = visible(flow.name);
    return html`<article class="flow">
      <header>
        <button class="plain" aria-expanded=${open} @click=${() => this.#toggle(flow.id, open)}><b><bdi>${name}</bdi></b></button>
        <button class="plain clip" aria-label="Details of ${name}" @click=${() => this.app.inspect({ flow: flow.flow })}><code class="quiet">${visible(String(flow.flow))}</code></button>
        ${status(flow.status)}
        ${bar([...tally], `${tally.get("done") ?? 0} of ${steps.length} done`)}
        <span class="number quiet">${tally.get("done") ?? 0}/${steps.length}</span>
      </header>
      ${flow.error ? html`<p class="error">${visible(flow.error)}</p>` : nothing}
      ${!open ? nothing : isWorkflow(this.app.store, flow.id) ? this.#timeline(flow, steps) : this.#diagram(flow, name)}
    </article>`;
  }

  #toggle(id, open) {
    (open ? this.#open : this.#closed).delete(id);
    (open ? this.#closed : this.#open).add(id);
    this.app.draw();
  }

  #timeline(flow, steps) {
    return html`<ol class="timeline">${repeat(steps.slice(-MOST), (step) => step.id, (step) => html`<li>
      <button class="plain" @click=${() => this.app.inspect({ flow: flow.flow })}>${visible(step.name)}</button>
      <span class="quiet">${step.type}</span>${status(step.status)}${step.attempt > 1 ? html`<span class="number">×${step.attempt}</span>` : nothing}
    </li>`)}</ol>`;
  }

  #diagram(flow, name) {
    const shape = this.#shape(flow);
    const { store } = this.app;
    return html`<div class="scroll" tabindex="0" role="region" aria-label="Diagram of ${name}"><svg class="diagram" width=${shape.width} height=${shape.height} viewBox="0 0 ${shape.width} ${shape.height}" role="group">
      ${shape.frames.map((frame) => svg`<g class="frame"><rect x=${frame.x} y=${frame.y} width=${frame.width} height=${frame.height} rx="8"></rect><text x=${frame.x + 10} y=${frame.y + 15}>${frame.name}</text></g>`)}
      ${shape.edges.map((edge) => svg`<path class="edge ${tone(store.nodes.get(edge.from)?.status)}" d=${edge.path}></path>`)}
      ${shape.boxes.map((box) => this.#box(box, store.nodes.get(box.id) ?? {}))}
    </svg></div>`;
  }

  #box(box, node) {
    const said = `${box.name}: ${node.status ?? "unknown"}${node.error ? `, ${visible(node.error)}` : ""}`;
    const open = () => this.app.inspect({ node: box.id });
    return svg`<g class="box ${tone(node.status)}" role="button" tabindex="0" aria-label=${said} transform="translate(${box.x},${box.y})"
        @click=${open} @keydown=${(event) => { if (event.key === "Enter") open(); }}>
      <title>${said}</title>
      <rect width=${box.width} height=${HEIGHT} rx="7"></rect>
      <circle cx="14" cy=${HEIGHT / 2} r="4.5"></circle>
      <text x="26" y=${HEIGHT / 2 + 4}>${box.label}</text>
      ${node.attempt > 1 ? svg`<text class="times" x=${box.width - 8} y=${HEIGHT / 2 + 4}>×${node.attempt}</text>` : nothing}
    </g>`;
  }

  #shape(flow) {
    const { store } = this.app;
    const built = signature(store, flow.id);
    const known = this.#laid.get(flow.id);
    if (known?.built === built) return known.shape;
    const shape = laidOut(store, flow.id);
    this.#laid.set(flow.id, { built, shape });
    return shape;
  }
}

function items(store, id) {
  return store.below(id).filter((node) => node.kind === "item");
}

function isWorkflow(store, id) {
  return items(store, id)[0]?.type === "workflow";
}

function leaves(store, id) {
  return items(store, id).flatMap((item) => (items(store, item.id).length ? leaves(store, item.id) : [item]));
}

function signature(store, id) {
  return items(store, id).map((item) => `${item.id}>${JSON.stringify(item.follow)}(${signature(store, item.id)})`).join(";") + JSON.stringify(store.nodes.get(id)?.follow ?? "");
}

/** Return the layout of a flow: boxes, frames around nested flows, and edges between consecutive items. */
function laidOut(store, id) {
  const graph = new Graph({ compound: true });
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 34, marginx: 10, marginy: 10 });
  graph.setDefaultEdgeLabel(() => ({}));
  put(store, graph, id, undefined, true);
  layout(graph);
  const [boxes, frames] = [[], []];
  for (const each of graph.nodes()) {
    const { x, y, width, height, name, label } = graph.node(each);
    const corner = { id: each, name, label, x: x - width / 2, y: y - height / 2, width, height };
    (graph.children(each).length ? frames : boxes).push(corner);
  }
  const edges = graph.edges().map((edge) => ({ from: edge.v, path: curve(graph.edge(edge).points) }));
  const { width, height } = graph.graph();
  return { boxes, frames, edges, width: Math.ceil(Number.isFinite(width) ? width : 0), height: Math.ceil(Number.isFinite(height) ? height : 0) };
}

/** Add the descendants of ``id`` to the graph, and return its first and last leaves. */
function put(store, graph, id, frame, outermost) {
  const below = items(store, id);
  const ends = below.map((item) => {
    const inner = items(store, item.id);
    const name = visible(item.name);
    if (inner.length && outermost && below.length === 1) return put(store, graph, item.id, frame, false);
    const label = name.length > 26 ? `${name.slice(0, 25)}…` : name;
    const text = Math.min(WIDEST, Math.max(56, label.length * 6.9 + 26 + PAD));
    graph.setNode(item.id, inner.length ? { name } : { name, label, width: text, height: HEIGHT });
    if (frame !== undefined) graph.setParent(item.id, frame);
    if (inner.length) return put(store, graph, item.id, item.id, false);
    return { first: [item.id], last: [item.id] };
  });
  const follow = store.nodes.get(id).follow ?? [];
  const [followed, follows] = [new Set(), new Set()];
  follow.forEach((row, from) => row.forEach((to) => {
    if (!ends[from] || !ends[to]) return;
    follows.add(from);
    followed.add(to);
    for (const one of ends[from].last) for (const other of ends[to].first) graph.setEdge(one, other);
  }));
  return {
    first: ends.flatMap((end, place) => (followed.has(place) ? [] : end.first)),
    last: ends.flatMap((end, place) => (follows.has(place) ? [] : end.last)),
  };
}

function curve(points) {
  const at = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
  if (points.length < 3) return `M${at(points[0])}L${at(points.at(-1))}`;
  const middle = (one, other) => ({ x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 });
  let path = `M${at(points[0])}`;
  for (let place = 1; place < points.length - 1; place += 1) {
    const to = place === points.length - 2 ? points[place + 1] : middle(points[place], points[place + 1]);
    path += `Q${at(points[place])} ${at(to)}`;
  }
  return path;
}
