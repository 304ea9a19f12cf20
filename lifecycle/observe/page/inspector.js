// Details of the selected item: a node with its commands, an event with its tree, or a stored flow with its steps.

import { age, bytes, clock, duration, tone, visible } from "./format.js";
import { told } from "./net.js";
import { html, icon, nothing, repeat, status } from "./parts.js";

// The number of lines of output to show, and the milliseconds between two requests for them.
const LINES = 200, EVERY = 1000;

const HIDDEN = new Set(["id", "kind", "parent", "name", "status", "error", "follow", "children", "items"]);

const OUTPUT = new Set(["process", "container"]);

// The states in which a workflow can be retried, and in which a step has ended.
const RETRIED = new Set(["FAILURE", "REVERTED", "CANCELLED"]), ENDED = new Set(["SUCCESS", "FAILURE"]);

export class Inspector {
  #target = null;
  #trace = null;
  // The output of the selected process: its lines, or an error; null until it arrives.
  #output = null;
  // The selected flow as stored, or an error; null until it arrives.
  #flow = null;
  #timer = 0;
  #from = null;

  constructor(app) {
    this.app = app;
  }

  get open() {
    return this.#target !== null;
  }

  show(target) {
    if (!this.open) this.#from = document.activeElement;
    this.#target = target;
    this.#trace = this.#output = this.#flow = null;
    clearTimeout(this.#timer);
    if (target.flow !== undefined) this.#follow(target);
    else if (target.event !== undefined) this.#fetch(target.event);
    else this.#read(target);
    this.app.draw();
    requestAnimationFrame(() => document.getElementById("inspector")?.focus());
  }

  close() {
    this.#target = null;
    clearTimeout(this.#timer);
    this.app.draw();
    this.#from?.focus?.();
  }

  draw() {
    if (!this.open) return nothing;
    const { node, event, flow } = this.#target;
    const [kind, title, body] = flow !== undefined ? this.#stored(flow) : node === undefined ? this.#event(event) : this.#node(node);
    return html`<aside id="inspector" tabindex="-1" aria-label="Details">
      <header><span class="what">${kind}</span><h2><bdi>${title}</bdi></h2><button class="ghost" aria-label="Close" @click=${() => this.close()}>${icon("close")}</button></header>
      <div class="scrolls">${body}</div>
    </aside>`;
  }

  #node(id) {
    const node = this.app.store.nodes.get(id);
    if (!node) return ["gone", visible(id.split("/").at(-1)), html`<p class="empty">It no longer exists.</p>`];
    const facts = Object.entries(node).filter(([name, value]) => !HIDDEN.has(name) && value !== null && value !== "");
    const memory = this.app.store.figures.memory[node.pid];
    return [node.kind, visible(node.name), html`
      ${node.status ? html`<p>${status(node.status)}</p>` : nothing}
      ${node.error ? html`<pre class="error">${node.error}</pre>` : nothing}
      ${this.#actions(node)}
      <dl class="facts long">
        ${memory ? html`<div><dt>memory</dt><dd>${bytes(memory)}</dd></div>` : nothing}
        ${facts.map(([name, value]) => html`<div><dt>${name.replaceAll("_", " ")}</dt><dd>${this.#value(name, value)}</dd></div>`)}
      </dl>
      ${this.#output === null ? nothing : html`<h3>Output</h3>${this.#lines()}`}`];
  }

  #lines() {
    if (this.#output instanceof Error) return html`<p class="empty">${visible(this.#output.message)}</p>`;
    if (!this.#output.length) return html`<p class="empty">No lines yet.</p>`;
    return html`<div class="output"><pre>${this.#output.map(visible).join("\n")}</pre></div>`;
  }

  /** Load the output of a process now, and again every second while it is shown. */
  async #read(target) {
    const node = this.app.store.nodes.get(target.node);
    if (!OUTPUT.has(node?.type)) return;
    const query = new URLSearchParams({ worker: this.app.pathOf(node), lines: LINES });
    let output;
    try {
      output = await told(`/api/logs?${query}`);
    } catch (error) {
      output = error;
    }
    if (this.#target !== target) return;
    this.#output = output;
    this.app.draw();
    this.#timer = setTimeout(() => this.#read(target), EVERY);
  }

  #actions(node) {
    if (this.app.restarts(node)) {
      return html`<p class="buttons"><button @click=${() => this.app.restart(node)}>${icon("reload")}<span>Restart</span></button></p>`;
    }
    if (node.kind === "source") {
      return html`<p class="buttons">
        <button @click=${() => this.app.command(["hold", node.name])}>${icon("pause")}<span>Hold</span></button>
        <button @click=${() => this.app.command(["release", node.name])}>${icon("play")}<span>Release</span></button></p>`;
    }
    return nothing;
  }

  #value(name, value) {
    if (typeof value === "number" && name.endsWith("_at")) return html`${clock(value)} <span class="quiet">${age(this.app.store.now() - value)} ago</span>`;
    if (typeof value === "number" && /^(p\d+|duration|uptime|.*_p\d+)$/.test(name)) return duration(value);
    if (typeof value === "object") return this.#table(value) ?? html`<code class="block">${visible(JSON.stringify(value, null, 1).replace(/\n\s*/g, " "))}</code>`;
    return html`<bdi>${visible(value)}</bdi>`;
  }

  /** Return names and plain values, one pair per line; undefined if a value is not plain. */
  #table(value) {
    const pairs = Object.entries(value);
    if (Array.isArray(value) || !pairs.length || pairs.some(([, each]) => each !== null && typeof each === "object")) return undefined;
    return html`<span class="pairs">${pairs.map(([name, each]) => html`<span class="quiet">${visible(name.replaceAll("_", " "))}</span><span class="number">${this.#value(name, each ?? "–")}</span>`)}</span>`;
  }

  async #fetch(id) {
    try {
      const trace = await told(`/api/trace/${id}`);
      if (this.#target?.event === id) this.#trace = trace.nodes;
    } catch (error) {
      if (this.#target?.event === id) this.#trace = error;
    }
    this.app.draw();
  }

  #event(id) {
    const entry = this.app.store.entries.get(id) ?? (Array.isArray(this.#trace) ? this.#trace.find((each) => each.id === id) : undefined);
    if (!entry) return ["event", `#${id}`, html`<p class="empty">The log no longer has this event.</p>`];
    const facts = [
      ["accepted", clock(entry.time)], ["router", visible(entry.router)], ["route", visible(entry.pattern)],
      ["handler", visible(entry.handler)], ["waited", duration(entry.waited)], ["took", duration(entry.duration)],
      ["attempt", entry.attempt > 1 ? entry.attempt : null], ["merged into", entry.into && `#${entry.into}`], ["merged events", entry.merged || null],
      ["passed on by", entry.passed?.length ? visible(entry.passed.join(", ")) : null],
    ].filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== "–");
    return ["event", visible(entry.topic), html`
      <p>${status(entry.what)} <span class="quiet">#${entry.id}</span></p>
      ${entry.error ? html`<pre class="error">${entry.error}</pre>` : nothing}
      ${entry.summary ? html`<code class="block">${visible(entry.summary)}</code>` : nothing}
      <dl class="facts long">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd class="mono">${value}</dd></div>`)}</dl>
      <h3>Trace</h3>${this.#tree(id)}`];
  }

  #tree(id) {
    if (this.#trace === null) return html`<p class="empty">…</p>`;
    if (this.#trace instanceof Error) return html`<p class="empty">${visible(this.#trace.message)}</p>`;
    const nodes = this.#trace.slice(0, 500).map((each) => ({ ...each, ...this.app.store.entries.get(each.id) }));
    return html`<ol class="trace">${repeat(nodes, (each) => each.id, (each) => html`<li .style=${`--depth:${Math.min(each.depth, 10)}`}>
      <button class="plain ${each.id === id ? "current" : ""}" aria-current=${each.id === id} @click=${() => this.show({ event: each.id })}>
        <i class="dot ${tone(each.what)}"></i><span class="mono clip"><bdi>${visible(each.topic)}</bdi></span><span class="quiet">${each.what}</span><span class="number">${duration(each.duration)}</span>
      </button></li>`)}</ol>
      ${this.#trace.length > 500 ? html`<p class="foot">${this.#trace.length - 500} more</p>` : nothing}`;
  }

  // -- stored flows --------------------------------------------------------------------------------------------------

  /** Load the flow now, and again every second while it is shown. */
  async #follow(target) {
    let flow;
    try {
      flow = await told(`/api/flow?${new URLSearchParams({ id: target.flow })}`);
    } catch (error) {
      flow = error;
    }
    if (this.#target !== target) return;
    this.#flow = flow;
    this.app.draw();
    this.#timer = setTimeout(() => this.#follow(target), EVERY);
  }

  #stored(id) {
    const flow = this.#flow;
    if (flow === null) return ["flow", visible(id), html`<p class="empty">…</p>`];
    if (flow instanceof Error) return ["flow", visible(id), html`<p class="empty">${visible(flow.message)}</p>`];
    const facts = [
      ["id", visible(flow.id)], ["started", flow.created && clock(flow.created)], ["changed", flow.changed && clock(flow.changed)],
      ["due", flow.due && this.#due(flow.due)], ["parent", flow.parent && this.#link(flow.parent)],
      ["signals not received", visible(flow.signals.join(", "))], ["result", flow.result !== null && this.#value("result", flow.result)],
    ].filter(([, value]) => value);
    return [flow.kind, visible(flow.name), html`
      <p>${status(flow.state.toLowerCase())}</p>
      ${flow.error ? html`<pre class="error">${flow.error}</pre>` : nothing}
      ${flow.kind === "workflow" ? this.#controls(flow) : nothing}
      <dl class="facts long">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      <h3>Steps</h3><ol class="steps">${repeat(flow.steps, (step) => step.name, (step) => this.#step(flow, step))}</ol>`];
  }

  #controls(flow) {
    const retry = () => this.app.command(["flows", "retry", flow.id]);
    if (RETRIED.has(flow.state)) return html`<p class="buttons"><button id="flow-retry" @click=${retry}>${icon("reload")}<span>Retry</span></button></p>`;
    if (flow.state === "SUCCESS") return nothing;
    const awaited = flow.steps.find((step) => step.kind === "wait" && step.state === "RUNNING");
    return html`<p class="buttons">
      <button id="flow-signal" @click=${() => this.app.dialogs.signal(flow.id, awaited?.name.replace(/^\S+ /, "") ?? "")}>${icon("play")}<span>Signal…</span></button>
      <button id="flow-cancel" class="stops" @click=${() => this.#cancel(flow)}>${icon("stop")}<span>Cancel…</span></button></p>`;
  }

  #cancel(flow) {
    this.app.dialogs.confirm({
      title: `Cancel ${visible(flow.id)}?`,
      text: "Its running steps are cancelled, and its undo functions run.",
      verb: "Cancel the workflow",
      act: () => this.app.command(["flows", "cancel", flow.id]),
    });
  }

  #step(flow, step) {
    const number = step.name.split(" ")[0];
    const retried = flow.kind === "workflow" && RETRIED.has(flow.state) && /^\d/.test(number) && step.kind !== "undo";
    return html`<li>
      <p><b class="clip"><bdi>${visible(step.name)}</bdi></b><span class="quiet">${step.kind}</span>${status(step.state.toLowerCase())}${step.attempt > 1 ? html`<span class="number">×${step.attempt}</span>` : nothing}</p>
      <p class="quiet">${step.due && !ENDED.has(step.state) ? this.#due(step.due) : step.at ? clock(step.at) : nothing}
        ${step.child ? this.#link(step.child) : nothing}
        ${retried ? html`<button class="small" aria-label="Retry from ${visible(step.name)}" @click=${() => this.app.command(["flows", "retry", flow.id, number])}>Retry from here</button>` : nothing}</p>
      ${step.error ? html`<pre class="error">${step.error}</pre>` : step.result === null ? nothing : html`<code class="block">${visible(JSON.stringify(step.result))}</code>`}
    </li>`;
  }

  #link(id) {
    return html`<button class="plain" @click=${() => this.show({ flow: id })}><bdi>${visible(id)}</bdi></button>`;
  }

  #due(time) {
    const left = time - this.app.store.now();
    return left > 0 ? `due in ${age(left)}` : "due now";
  }
}
