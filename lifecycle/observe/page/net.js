// The connection to the program: requests with the token, and one stream with all changes.

const KEY = "lifecycle.token";

// Milliseconds until a hidden page disconnects, and until a connection without messages is closed. The program sends
// figures every 2 seconds, and a comment every 15.
const RESTING = 30_000, SILENT = 20_000;

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Read the token from the fragment, which is not sent to servers, and remove it from the address bar. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  token.set(given);
  history.replaceState(null, "", location.pathname);
}

// Without storage, the token is kept as long as the page is open.
let kept = "";

export const token = {
  get() {
    try {
      return sessionStorage.getItem(KEY) ?? kept;
    } catch {
      return kept;
    }
  },
  set(value) {
    kept = value;
    try {
      if (value) sessionStorage.setItem(KEY, value);
      else sessionStorage.removeItem(KEY);
    } catch { /* the variable still contains it */ }
  },
};

export async function ask(path, { body, signal, as } = {}) {
  const headers = {};
  const own = as ?? token.get();
  // Not all characters are valid in a header. A token with any others is wrong anyway.
  if (own) headers.Authorization = `Bearer ${/^[\x21-\x7e]+$/.test(own) ? own : "-"}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method: body === undefined ? "GET" : "POST",
    body: body === undefined ? undefined : JSON.stringify(body),
    headers,
    signal,
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
  if (!answer.ok) throw new Refused(answer.status, await reason(answer));
  return answer;
}

export async function told(path, options) {
  return (await ask(path, options)).json();
}

async function reason(answer) {
  try {
    return (await answer.json()).error ?? answer.statusText;
  } catch {
    return answer.statusText || `status ${answer.status}`;
  }
}

/** Follows the program while the page is visible; `notify` receives ("open" | "closed" | "refused" | event, data). */
export class Live {
  #notify;
  #abort = null;
  // Timers to reconnect, to disconnect a hidden page, and to close a silent connection.
  #again = 0;
  #rest = 0;
  #silence = 0;
  #wait = 250;

  constructor(notify) {
    this.#notify = notify;
    // A hidden page disconnects, which saves the program work and frees a connection in the browser.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#restSoon() : this.#wake()));
  }

  start() {
    clearTimeout(this.#again);
    if (!this.#abort) this.#follow();
  }

  restart() {
    this.stop();
    this.start();
  }

  stop() {
    clearTimeout(this.#again);
    clearTimeout(this.#silence);
    const abort = this.#abort;
    this.#abort = null;
    abort?.abort();
  }

  #restSoon() {
    clearTimeout(this.#rest);
    this.#rest = setTimeout(() => {
      this.stop();
      this.#notify("closed", "resting");
    }, RESTING);
  }

  #wake() {
    clearTimeout(this.#rest);
    this.start();
  }

  /** Close the connection if no message arrives in time. The program sends one every few seconds. */
  #expectMore(abort) {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => abort.abort(new Error("no message for too long")), SILENT);
  }

  async #follow() {
    // Without a token, the program would refuse the request.
    if (!token.get()) return this.#notify("refused");
    const abort = (this.#abort = new AbortController());
    try {
      this.#expectMore(abort);
      const answer = await ask("/api/live", { signal: abort.signal });
      this.#notify("open");
      await this.#read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), abort);
      throw new Error("the stream has ended");
    } catch (error) {
      // This connection was stopped, and another one may already exist.
      if (this.#abort !== abort) return;
      clearTimeout(this.#silence);
      this.#abort = null;
      if (error.status === 401) {
        // A restarted program may use a different token.
        token.set("");
        return this.#notify("refused");
      }
      this.#notify("closed", error.message);
      this.#again = setTimeout(() => this.start(), this.#wait);
      this.#wait = Math.min(5000, this.#wait * 1.6);
    }
    return undefined;
  }

  async #read(reader, abort) {
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      this.#expectMore(abort);
      this.#wait = 250;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) this.#message(part);
    }
  }

  #message(text) {
    let [name, data] = ["message", ""];
    for (const line of text.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data) this.#notify(name, JSON.parse(data));
  }
}
