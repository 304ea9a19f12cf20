// The page: drawing, keys and commands.

import { render } from "./vendor/lit-html/lit-html.js";
import { Dialogs } from "./dialogs.js";
import { Events } from "./events.js";
import { Flows } from "./flows.js";
import { age, quoted, visible } from "./format.js";
import { Inspector } from "./inspector.js";
import { Live, takeToken, token, told } from "./net.js";
import { html, icon, nothing, repeat, status } from "./parts.js";
import { handles, Routes } from "./routes.js";
import { Store } from "./store.js";
import { Stores } from "./stores.js";
import { tiles } from "./tiles.js";
import { Workers } from "./workers.js";

const LINKS = { open: "live", connecting: "connecting", closed: "not connected", resting: "idle", refused: "locked" };

// Milliseconds between two redraws.
const PACE = 200;

class App {
  store = new Store();
  #due = false;
  #later = 0;
  #drawn = 0;
  #link = "connecting";
  #toasts = [];
  #numbers = 0;
  #anew = new Set();
  #busy = new Set();

  constructor() {
    this.draw = this.draw.bind(this);
    this.workers = new Workers(this);
    this.routes = new Routes(this);
    this.events = new Events(this);
    this.flows = new Flows(this);
    this.stores = new Stores(this);
    this.inspector = new Inspector(this);
    this.dialogs = new Dialogs(this);
    this.live = new Live((name, data) => this.#receive(name, data));
  }

  start() {
    takeToken();
    addEventListener("hashchange", () => {
      takeToken();
      this.live.restart();
    });
    addEventListener("keydown", (event) => this.#key(event));
    setInterval(() => {
      this.store.sample();
      this.drawSoon();
    }, 1000);
    this.drawNow();
    this.live.start();
  }

  /** Draw at most once per frame. */
  draw() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => this.drawNow());
  }

  /** Draw after a message from the program, at most a few times per second. */
  drawSoon() {
    if (this.#due || this.#later) return;
    this.#later = setTimeout(this.draw, Math.max(0, this.#drawn + PACE - performance.now()));
  }

  drawNow() {
    this.#due = false;
    clearTimeout(this.#later);
    this.#later = 0;
    this.#drawn = performance.now();
    render(this.#page(), document.getElementById("app"));
    for (const part of [this.workers, this.routes, this.events]) part.rows.measure();
  }

  inspect(target) {
    this.inspector.show(target);
  }

  unlocked() {
    if (this.#link === "refused") this.live.restart();
    this.draw();
  }

  // -- commands ------------------------------------------------------------------------------------------------

  command(words) {
    return this.send(words.map(quoted).join(" "));
  }

  restart(node) {
    this.command(["restart", this.pathOf(node)]);
  }

  /** Return the path of a worker from the root, as commands expect it. */
  pathOf(node) {
    const names = [];
    for (let each = node; each && each.kind !== "program"; each = this.store.nodes.get(each.parent)) names.unshift(each.name);
    return names.join("/");
  }

  /** Return whether a node can be restarted: it is a pool, or its parent is a supervisor. */
  restarts(node) {
    return node.kind === "pool" || (this.store.nodes.get(node.parent)?.kind === "supervisor" && node.kind !== "member");
  }

  async send(line) {
    if (!token.get()) return this.dialogs.unlock(() => this.send(line));
    if (this.#busy.has(line)) return undefined;
    this.#busy.add(line);
    this.draw();
    try {
      const outcome = await told("/api/command", { body: { line } });
      const good = outcome.outcome === "handled";
      const text = outcome.error ?? outcome.answer ?? outcome.outcome;
      this.#note(line, good && !outcome.answer ? "done" : text, good ? "good" : "bad");
    } catch (error) {
      if (error.status === 401) {
        token.set("");
        return this.dialogs.unlock(() => this.send(line), "The token is wrong.");
      }
      this.#note(line, error.message, "bad");
    } finally {
      this.#busy.delete(line);
      this.draw();
    }
    return undefined;
  }

  #note(line, text, look) {
    this.dialogs.note(line, text, look);
    if (document.getElementById("dialog-command").open) return;
    const toast = { line, text: String(text).split("\n")[0], look, key: (this.#numbers += 1) };
    this.#toasts = [...this.#toasts.slice(-3), toast];
    setTimeout(() => {
      this.#toasts = this.#toasts.filter((each) => each !== toast);
      this.draw();
    }, look === "bad" ? 12_000 : 4000);
    this.draw();
  }

  #stop() {
    const name = visible(this.store.first("program")?.name ?? "the program");
    this.dialogs.confirm({
      title: `Stop ${name}?`,
      text: "Running work finishes, workers are stopped, and the program exits. You cannot start it again from this page.",
      verb: "Stop",
      act: () => this.send("stop"),
    });
  }

  // -- messages ------------------------------------------------------------------------------------------------

  #receive(name, data) {
    if (name === "open") {
      this.#link = "open";
      // A stream begins with all nodes and events. Until they arrive, the page shows the last state.
      this.#anew = new Set(["change", "entries"]);
    } else if (name === "closed" || name === "refused") {
      this.#link = data === "resting" ? "resting" : name;
      if (name === "refused") this.#hide();
    } else if (name === "change") {
      if (this.#anew.delete(name)) this.store.clear();
      this.store.apply(data);
    } else if (name === "entries") {
      if (this.#anew.delete(name)) this.store.entries.clear();
      this.store.add(data);
    } else if (name === "figures") this.store.figures = data;
    this.drawSoon();
  }

  /** Without a token, show nothing of the program, and ask for the token. */
  #hide() {
    this.store = new Store();
    if (this.inspector.open) this.inspector.close();
    this.dialogs.unlock(() => {});
  }

  // -- keys ----------------------------------------------------------------------------------------------------

  #key(event) {
    if (event.key === "k" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.dialogs.command();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      if (this.inspector.open) this.inspector.close();
      else event.target.blur?.();
      return;
    }
    if (event.target.closest("input, select, textarea")) return;
    const sections = this.#sections();
    const act = {
      "?": () => this.dialogs.show("help"),
      ":": () => this.dialogs.command(),
      "/": () => document.getElementById("events-filter")?.focus(),
      p: () => this.events.toggle(),
      t: () => this.#theme(),
    }[event.key] ?? (sections[event.key - 1] && (() => goTo(sections[event.key - 1][0])));
    if (!act) return;
    event.preventDefault();
    act();
  }

  #theme() {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = dark ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem("lifecycle.theme", theme);
    } catch { /* the choice is lost when the page is closed */ }
  }

  // -- drawing ------------------------------------------------------------------------------------------------

  #sections() {
    if (this.#link === "refused") return [];
    return [
      ["workers", "Workers"],
      ["events", "Events"],
      ["routes", "Routes"],
      ["sources", "Sources"],
      this.stores.has("pool") && ["pools", "Pools"],
      this.flows.any && ["flows", "Flows"],
      this.stores.any && ["inboxes", "More"],
    ].filter(Boolean);
  }

  #page() {
    const sections = this.#sections();
    const there = new Set(sections.map(([id]) => id));
    return html`
      <a class="skip" href="#workers" @click=${(event) => jump(event, "workers")}>Skip to workers</a>
      ${this.#header(sections)}
      ${this.#link === "refused" ? html`<main><p class="empty">Locked: this page needs the program's token.</p></main>` : html`<main class=${this.#link === "open" ? "" : "stale"}>
        ${tiles(this.store, this.workers.all())}
        <div class="grid">
          <div class="column">${this.workers.draw()}${this.events.draw()}</div>
          <div class="column">${this.routes.draw()}${this.stores.flowing()}${there.has("pools") ? this.stores.pools() : nothing}</div>
          ${there.has("flows") ? this.flows.draw() : nothing}
          ${there.has("inboxes") ? this.stores.kept() : nothing}
        </div>
      </main>`}
      ${this.inspector.draw()}
      <div class="toasts" role="status" aria-live="polite">${repeat(this.#toasts, (toast) => toast.key, (toast) => html`<p class=${toast.look}><code>${visible(toast.line)}</code> ${visible(toast.text)}</p>`)}</div>
      ${this.dialogs.draw()}`;
  }

  #header(sections) {
    const program = this.store.first("program") ?? {};
    const lifetime = this.store.first("lifetime");
    const name = this.#link === "refused" ? "lifecycle" : visible(program.name ?? "…");
    document.title = name === "lifecycle" ? name : `${name} – lifecycle`;
    const state = lifetime?.status ?? (this.#link === "open" ? "running" : "unknown");
    const locked = !token.get();
    const busy = (word) => this.#busy.has(word);
    const button = (word, sign, said) => !handles(this.store, word) ? nothing : html`<button id="do-${word}" ?disabled=${busy(word)} @click=${() => this.send(word)} title=${said}>${icon(sign)}<span>${said}</span></button>`;
    return html`<header class="top">
      <div class="who">
        <h1><bdi>${name}</bdi></h1>${this.#link === "refused" ? nothing : html`${status(state)}
        <span class="quiet number" title="Uptime">${program.started_at ? age(this.store.now() - program.started_at) : "–"}</span>`}
        <span class="quiet wide-only number">${program.pid ? `pid ${program.pid}` : ""}</span>
        <span class="quiet wide-only"><bdi>${visible(program.host ?? "")}</bdi></span>
      </div>
      ${locked ? nothing : html`<div class="buttons" role="group" aria-label="Commands">
        ${button("suspend", "pause", "Suspend")}${button("resume", "play", "Resume")}${button("reload", "reload", "Reload")}
        <button id="do-stop" class="stops" @click=${() => this.#stop()} title="Stop the program">${icon("stop")}<span>Stop…</span></button>
        <button id="do-command" @click=${() => this.dialogs.command()} title="Command line (:)">${icon("command")}<span>Command</span></button>
      </div>`}
      <div class="signs">
        <span class="link ${this.#link}" role="status"><i class="dot ${this.#link === "open" ? "run" : "bad"}"></i><span>${LINKS[this.#link]}</span></span>
        <button class="ghost" id="do-unlock" aria-label=${locked ? "Enter the token" : "Forget the token"} title=${locked ? "Enter the token" : "Forget the token"} @click=${() => this.#lock(locked)}>${icon(locked ? "lock" : "unlock")}</button>
        <button class="ghost" aria-label="Switch between light and dark" title="Switch between light and dark (t)" @click=${() => this.#theme()}>${icon("theme")}</button>
        <button class="ghost" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" @click=${() => this.dialogs.show("help")}>${icon("help")}</button>
      </div>
      <nav aria-label="Sections">${sections.map(([id, said]) => html`<a href="#${id}" @click=${(event) => jump(event, id)}>${said}</a>`)}</nav>
    </header>`;
  }

  #lock(locked) {
    if (locked) this.dialogs.unlock(() => {});
    else {
      token.set("");
      this.live.restart();
    }
    this.draw();
  }
}

function jump(event, id) {
  event.preventDefault();
  goTo(id);
}

function goTo(id) {
  const section = document.getElementById(id);
  section?.scrollIntoView({ block: "start" });
  section?.focus({ preventScroll: true });
}

new App().start();
