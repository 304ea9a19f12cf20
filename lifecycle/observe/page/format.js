// Formatting of values: short, of constant width, and unambiguous.

const CONTROLS = /[\u0000-\u001f]/g;
// Characters that change the direction of text, and invisible ones.
const UNSEEN = /[\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/g;

/** Return a name as one line with every character visible. */
export function visible(text) {
  return String(text ?? "")
    .replace(CONTROLS, (char) => String.fromCharCode(0x2400 + char.charCodeAt(0)))
    .replace(UNSEEN, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : age(seconds);
}

/** Format a growing duration with at most two units and a stable width. */
export function age(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const [minutes, left] = [Math.floor(whole / 60) % 60, whole % 60];
  if (days) return `${days}d ${hours}h`;
  if (hours) return `${hours}h ${String(minutes).padStart(2, "0")}m`;
  return minutes ? `${minutes}m ${String(left).padStart(2, "0")}s` : `${left}s`;
}

export function bytes(count) {
  if (!count) return "–";
  const [unit, size] = count >= 2 ** 30 ? ["GB", 2 ** 30] : count >= 2 ** 20 ? ["MB", 2 ** 20] : ["kB", 2 ** 10];
  const value = count / size;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

export function count(number) {
  if (number == null) return "–";
  if (number < 10_000) return String(number);
  return number < 1e6 ? `${(number / 1e3).toFixed(1)}k` : `${(number / 1e6).toFixed(1)}M`;
}

export function rate(perSecond) {
  if (!perSecond) return "0";
  return perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond));
}

export function clock(epoch) {
  const date = new Date(epoch * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  return `${time}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** Quote a word for the program's command line. */
export function quoted(word) {
  return /^[\w./@:+,=-]+$/.test(word) ? word : `"${word.replace(/[\\"]/g, "\\$&")}"`;
}

/** Return a function that tests whether a topic matches a router's pattern: * ? [ ] in a segment, ** for any number of segments, names in braces. */
export function matcher(pattern) {
  const text = pattern.trim().replace(/(^|\/)\{[^{}/:]+(:\*\*)?\}(?=\/|$)/g, (_, slash, deep) => `${slash}${deep ? "**" : "*"}`);
  if (!text || text === "**") return () => true;
  // A plain word may be anywhere in the topic.
  if (!/[*?[\\/]/.test(text)) return (topic) => topic.toLowerCase().includes(text.toLowerCase());
  const expression = text.split("/").map(segment).join("").replace(/^\\\/|^\//, "");
  try {
    const compiled = new RegExp(`^${expression}$`, "su");
    return (topic) => compiled.test(topic);
  } catch {
    return () => false;
  }
}

function segment(text, place) {
  if (text === "**") return place ? "(?:/.*)?" : "(?:.*)?";
  const body = text.replace(/\\(.)|\[([!^]?)([^\]]+)\]|([*?])|([$()+.^{|}\\/[\]])/gsu,
    (_, escaped, not, set, wild, special) => {
      if (escaped) return escaped.replace(/[$()*+.?[\\\]^{|}/]/u, "\\$&");
      if (set) return `[${not ? "^/" : ""}${set.replace(/[\\\]^]/g, "\\$&")}]`;
      return wild ? (wild === "*" ? "[^/]*" : "[^/]") : `\\${special}`;
    });
  return place ? `/${body}` : body;
}

const TONES = {
  run: ["running", "executing", "ready", "up", "busy", "active"],
  done: ["finished", "success", "handled", "complete", "done", "idle", "retrying_done"],
  wait: ["created", "pending", "starting", "queued", "held", "scheduling", "waiting", "resuming", "warming", "claimed", "unclaimed"],
  busy: ["stopping", "reverting", "retrying", "analyzing", "degraded", "draining", "recycling", "suspending"],
  pause: ["suspended", "held"],
  bad: ["failed", "killed", "failure", "revert_failure", "dead", "discarded", "refused", "unhealthy", "unrouted", "error"],
};
const BY_STATUS = new Map(Object.entries(TONES).flatMap(([tone, names]) => names.map((name) => [name, tone])));

/** Return the style of a status, one of seven. Unknown statuses have the same style. */
export function tone(status) {
  const text = String(status ?? "").toLowerCase();
  return text.startsWith("stopped (") ? "bad" : BY_STATUS.get(text) ?? "off";
}
