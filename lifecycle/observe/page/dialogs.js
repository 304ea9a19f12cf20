// The dialogs: the token, a confirmation, a signal, the command line, and the keyboard shortcuts.

import { live } from "./vendor/lit-html/directives/live.js";
import { visible } from "./format.js";
import { ask, token, told } from "./net.js";
import { html, icon, nothing, repeat } from "./parts.js";

const KEYS = [
  ["? ", "this help"], [": or Ctrl K", "command line"], ["/", "filter events"], ["p", "follow new events or stop following"],
  ["1 … 7", "go to a section"], ["t", "switch between light and dark"], ["↑ ↓ ← →", "move, fold and unfold in the tree"], ["Enter", "show details"], ["Esc", "close"],
];

export class Dialogs {
  #after = null;
  #wrong = "";
  #question = null;
  // The workflow that receives a signal, and the error in the data.
  #receiver = "";
  #unreadable = "";
  #commands = [];
  #line = "";
  #words = [];
  #said = [];
  #asked = 0;
  #past = [];
  // The index of the recalled line in the history. The index after the last line is the draft.
  #place = 0;
  #draft = "";

  constructor(app) {
    this.app = app;
  }

  draw() {
    return html`${this.#tokens()}${this.#confirming()}${this.#signalling()}${this.#commanding()}${this.#help()}`;
  }

  show(name) {
    this.app.drawNow();
    const dialog = document.getElementById(`dialog-${name}`);
    if (!dialog.open) dialog.showModal();
  }

  #close(name) {
    document.getElementById(`dialog-${name}`).close();
  }

  // -- the token -----------------------------------------------------------------------------------------------

  /** Ask for the token, then call ``after``. */
  unlock(after, wrong = "") {
    this.#after = after;
    this.#wrong = wrong;
    this.show("token");
  }

  #tokens() {
    return html`<dialog id="dialog-token" aria-labelledby="token-title"><form method="dialog" @submit=${this.#try}>
      <h2 id="token-title">Token</h2>
      <p>This page needs the program's token. The program printed it on its terminal, or it was set with <code>Dashboard(token=…)</code>. The page keeps it for this tab only.</p>
      <input id="token" type="password" autocomplete="off" spellcheck="false" aria-label="Token" aria-describedby="token-wrong" required>
      <p class="wrong" id="token-wrong" role="alert">${this.#wrong}</p>
      <p class="buttons end"><button type="button" class="ghost" @click=${() => this.#close("token")}>Cancel</button><button class="primary">Unlock</button></p>
    </form></dialog>`;
  }

  #try = async (event) => {
    event.preventDefault();
    const field = document.getElementById("token");
    try {
      await ask("/api/program", { as: field.value.trim() });
      token.set(field.value.trim());
      field.value = "";
      this.#wrong = "";
      this.#close("token");
      this.app.unlocked();
      this.#after?.();
    } catch (error) {
      this.#wrong = error.status === 401 ? "The token is wrong." : `The program did not respond: ${error.message}`;
      field.select();
    }
    this.app.draw();
  };

  // -- a confirmation ------------------------------------------------------------------------------------------

  confirm(question) {
    this.#question = question;
    this.show("confirm");
  }

  #confirming() {
    const { title, text, verb, act } = this.#question ?? {};
    return html`<dialog id="dialog-confirm" aria-labelledby="confirm-title" role="alertdialog"><form method="dialog">
      <h2 id="confirm-title">${title}</h2><p>${text}</p>
      <p class="buttons end"><button class="ghost" autofocus>Cancel</button><button class="danger" @click=${() => act?.()}>${verb}</button></p>
    </form></dialog>`;
  }

  // -- a signal ------------------------------------------------------------------------------------------------

  /** Ask for the data of a signal to a workflow. ``name`` is the suggested name of the signal. */
  signal(receiver, name) {
    this.#receiver = receiver;
    this.#unreadable = "";
    this.show("signal");
    document.getElementById("signal-name").value = name;
  }

  #signalling() {
    return html`<dialog id="dialog-signal" aria-labelledby="signal-title"><form method="dialog" @submit=${this.#sendSignal}>
      <h2 id="signal-title">Signal ${visible(this.#receiver)}</h2>
      <p><input id="signal-name" placeholder="Name" aria-label="Name" autocomplete="off" spellcheck="false" required></p>
      <input id="signal-data" class="mono" placeholder="Data as JSON, such as true" aria-label="Data as JSON" autocomplete="off" spellcheck="false" aria-describedby="signal-wrong">
      <p class="wrong" id="signal-wrong" role="alert">${this.#unreadable}</p>
      <p class="buttons end"><button type="button" class="ghost" @click=${() => this.#close("signal")}>Cancel</button><button class="primary">Send</button></p>
    </form></dialog>`;
  }

  #sendSignal = (event) => {
    event.preventDefault();
    const [name, data] = ["signal-name", "signal-data"].map((id) => document.getElementById(id).value.trim());
    try {
      JSON.parse(data || "null");
    } catch (error) {
      this.#unreadable = `The data is not JSON: ${error.message}`;
      this.app.draw();
      return;
    }
    this.#close("signal");
    this.app.command(["flows", "signal", this.#receiver, name, data || "null"]);
  };

  // -- the command line ----------------------------------------------------------------------------------------

  async command(line = "") {
    if (!token.get()) {
      this.unlock(() => this.command(line));
      return;
    }
    this.#line = line;
    this.show("command");
    try {
      this.#commands = await told("/api/commands");
    } catch (error) {
      this.note(line, error.message, "bad");
    }
    this.#complete();
  }

  /** Add the outcome of a line. The last thirty are kept. */
  note(line, text, look) {
    this.#said = [...this.#said.slice(-29), { line, text, look, key: (this.#asked += 1) }];
    this.app.draw();
  }

  #commanding() {
    return html`<dialog id="dialog-command" class="palette" aria-label="Command line">
      <form method="dialog" @submit=${this.#send}>${icon("command")}<input id="command" class="mono" autocomplete="off" autocapitalize="off" spellcheck="false" placeholder="Command and arguments" aria-label="Command" role="combobox" aria-expanded="true" aria-controls="command-words" .value=${live(this.#line)} @input=${this.#typed} @keydown=${this.#key}><button type="button" class="ghost" aria-label="Close" @click=${() => this.#close("command")}>${icon("close")}</button></form>
      <ul id="command-words" role="listbox" aria-label="Suggestions">${repeat(this.#words, (each) => each.word, (each) => html`<li role="option"><button type="button" tabindex="-1" @click=${() => this.#take(each)}><b class="mono">${visible(each.word)}</b><span>${visible(each.help)}</span></button></li>`)}</ul>
      ${this.#said.length ? html`<div class="said" role="log" aria-label="Replies">${repeat(this.#said.slice().reverse(), (each) => each.key, (each) => html`<div class=${each.look}><code>${visible(each.line)}</code><pre>${each.text}</pre></div>`)}</div>` : nothing}
    </dialog>`;
  }

  #typed = (event) => {
    this.#line = event.target.value;
    this.#complete();
  };

  #key = (event) => {
    if (event.key === "Tab" && this.#words.length && !event.shiftKey) this.#take(this.#words[0]);
    else if (event.key === "ArrowUp") this.#recall(this.#place - 1);
    else if (event.key === "ArrowDown") this.#recall(this.#place + 1);
    else return;
    event.preventDefault();
    this.app.draw();
  };

  /** Show the line at ``place`` in the history, or the draft. */
  #recall(place) {
    if (place < 0 || place > this.#past.length) return;
    if (this.#place === this.#past.length) this.#draft = this.#line;
    this.#place = place;
    this.#line = this.#past[place] ?? this.#draft;
    this.#complete();
  }

  #take(each) {
    const head = this.#line.includes(" ") ? this.#line.slice(0, this.#line.lastIndexOf(" ") + 1) : "";
    this.#line = `${head}${each.word} `;
    document.getElementById("command").focus();
    this.#complete();
  }

  async #complete() {
    const line = this.#line;
    const matching = this.#commands.filter((each) => each.name.startsWith(line.trim()));
    this.#words = line.includes(" ") ? [] : matching.slice(0, 40).map(({ name, help }) => ({ word: name, help }));
    this.app.draw();
    if (!line.includes(" ")) return;
    try {
      const words = await told(`/api/complete?line=${encodeURIComponent(line)}`);
      if (line === this.#line) this.#words = words.slice(0, 40).map((word) => ({ word, help: "" }));
    } catch { /* without completions, the user can still type */ }
    this.app.draw();
  }

  #send = (event) => {
    event.preventDefault();
    const line = this.#line.trim();
    if (!line) return;
    if (line !== this.#past.at(-1)) this.#past = [...this.#past.slice(-49), line];
    this.#place = this.#past.length;
    this.#draft = "";
    this.#line = "";
    this.#complete();
    this.app.send(line);
  };

  // -- keys ----------------------------------------------------------------------------------------------------

  #help() {
    return html`<dialog id="dialog-help" aria-labelledby="help-title"><form method="dialog">
      <h2 id="help-title">Keyboard shortcuts</h2>
      <dl class="keys">${KEYS.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
      <p class="buttons end"><button autofocus>Close</button></p>
    </form></dialog>`;
  }
}
