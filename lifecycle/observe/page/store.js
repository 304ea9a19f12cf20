// The page's state: the program's nodes, their changes, and the latest events. Each of these is limited in size.

export const SAMPLES = 60;
const MOST_ENTRIES = 2000;

export class Store {
  constructor() {
    this.nodes = new Map();
    this.children = new Map();
    this.kinds = new Map();
    this.figures = { latency: {}, refused: {}, memory: {}, cpu: null };
    this.entries = new Map();
    // The number of events so far, and of changes that were dropped because they arrived too fast.
    this.seen = 0;
    this.missed = 0;
    this.series = new Map();
    // The program's clock minus the browser's, in seconds.
    this.skew = 0;
  }

  /** Remove all nodes, because a new stream begins with all of them. */
  clear() {
    this.nodes.clear();
    this.children.clear();
    this.kinds.clear();
  }

  now() {
    return Date.now() / 1000 + this.skew;
  }

  apply({ time, nodes }) {
    if (time) this.skew = time - Date.now() / 1000;
    for (const [id, node] of Object.entries(nodes)) {
      if (node === null) this.#drop(id);
      else this.#put(id, node);
    }
  }

  add({ entries, dropped }) {
    this.missed += dropped;
    for (const entry of entries) {
      if (!this.entries.has(entry.id)) this.seen += 1;
      // A changed entry keeps its position.
      this.entries.set(entry.id, entry);
    }
    for (const id of this.entries.keys()) {
      if (this.entries.size <= MOST_ENTRIES) break;
      this.entries.delete(id);
    }
  }

  of(kind) {
    return [...(this.kinds.get(kind) ?? [])].map((id) => this.nodes.get(id));
  }

  below(id) {
    return [...(this.children.get(id) ?? [])].map((each) => this.nodes.get(each));
  }

  first(kind) {
    const ids = this.kinds.get(kind);
    return ids?.size ? this.nodes.get(ids.values().next().value) : undefined;
  }

  /** Compute the rate of each counter; called once per second. */
  sample() {
    let [events, failures] = [0, 0];
    for (const route of this.of("route")) this.#grow(`${route.id}|rate`, route.routed);
    for (const router of this.of("router")) {
      events += router.routed + router.unrouted;
      failures += router.failed;
    }
    this.#grow("events", events);
    this.#grow("failures", failures);
    for (const key of this.series.keys()) {
      const id = key.endsWith("|rate") && key.slice(0, -5);
      if (id && !this.nodes.has(id)) this.series.delete(key);
    }
  }

  rate(key) {
    return this.series.get(key)?.values.at(-1) ?? 0;
  }

  #grow(key, total) {
    const now = performance.now();
    const known = this.series.get(key);
    if (known === undefined) {
      this.series.set(key, { total, at: now, values: [] });
      return;
    }
    const seconds = Math.max(0.2, (now - known.at) / 1000);
    known.values.push(Math.max(0, total - known.total) / seconds);
    if (known.values.length > SAMPLES) known.values.shift();
    known.total = total;
    known.at = now;
  }

  #put(id, node) {
    const old = this.nodes.get(id);
    if (old && (old.parent !== node.parent || old.kind !== node.kind)) this.#drop(id);
    this.nodes.set(id, node);
    group(this.children, node.parent).add(id);
    group(this.kinds, node.kind).add(id);
  }

  #drop(id) {
    const node = this.nodes.get(id);
    if (!node) return;
    this.nodes.delete(id);
    this.children.get(node.parent)?.delete(id);
    this.kinds.get(node.kind)?.delete(id);
    if (!this.children.get(id)?.size) this.children.delete(id);
  }
}

function group(map, key) {
  let found = map.get(key);
  if (!found) map.set(key, (found = new Set()));
  return found;
}
